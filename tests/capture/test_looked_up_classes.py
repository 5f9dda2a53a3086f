"""Libraries that look a tensor's class up (in a table, in `sys.modules`, by `singledispatch`): one graph for all sizes.

Each class or function here imitates how a known library finds what to do with a tensor.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import smelt
from smelt.compiler.object.compiled import dispatcher_of


class Backend:
    """As einops' and einx': subclasses know the tensors of one library, found by name among what is imported."""

    name = ""

    def fits(self, tensor: Any) -> bool:
        return False

    def total(self, tensor: Any) -> Any:
        raise NotImplementedError


class OfNumpy(Backend):
    name = "numpy"

    def fits(self, tensor: Any) -> bool:
        return isinstance(tensor, np.ndarray)


class OfTorch(Backend):
    name = "torch"

    def fits(self, tensor: Any) -> bool:
        return isinstance(tensor, torch.Tensor)

    def total(self, tensor: Any) -> Any:
        return tensor.sum(-1)


BY_TYPE: dict[type, Backend] = {}
LOADED: dict[str, Backend] = {}


def backend_of(tensor: Any) -> Backend:
    found = BY_TYPE.get(type(tensor))
    if found is not None:
        return found
    for loaded in list(LOADED.values()):
        if loaded.fits(tensor):
            BY_TYPE[type(tensor)] = loaded
            return loaded
    for kind in Backend.__subclasses__():
        if kind.name not in LOADED and kind.name in sys.modules:
            made = kind()
            LOADED[made.name] = made
            if made.fits(tensor):
                BY_TYPE[type(tensor)] = made
                return made
    raise RuntimeError(f"no backend for {type(tensor)}")


@functools.lru_cache(maxsize=64)
def plan(pattern: str, shape: tuple[int, ...]) -> tuple[list[int], int]:
    if shape[-1] % 2:
        raise ValueError(f"{pattern}: {shape[-1]} is odd")
    return [*shape[:-1], 2, shape[-1] // 2], len(shape)


@functools.singledispatch
def doubled(value: Any) -> Any:
    raise TypeError(type(value))


@doubled.register
def _(value: torch.Tensor) -> Any:
    return value * 2


@functools.lru_cache(maxsize=16)
def is_subclass(cls: type, module: str, name: str) -> bool:
    if module not in sys.modules:
        return False
    return issubclass(cls, getattr(sys.modules[module], name))


def namespace_of(value: Any) -> Any:
    """As array-api-compat's: by the class and the name of its library."""
    if is_subclass(type(value), "torch", "Tensor"):
        return torch
    raise TypeError(type(value))


def by_table(x: torch.Tensor) -> Any:
    return backend_of(x).total(x)


def by_plan(x: torch.Tensor) -> Any:
    sizes, rank = plan("a (two b)", tuple(x.shape))
    return x.reshape(sizes).sum(-2) * rank


def by_module_name(x: torch.Tensor) -> Any:
    """As opt_einsum's: the first part of the class's module."""
    return {"torch": torch.relu, "numpy": np.abs}[type(x).__module__.split(".", maxsplit=1)[0]](x)


def by_dispatch(x: torch.Tensor) -> Any:
    return doubled(x)


def by_class(x: torch.Tensor) -> Any:
    return x + 1 if x.__class__ is torch.Tensor and type(x) is torch.Tensor else x - 1


def by_namespace(x: torch.Tensor) -> Any:
    return namespace_of(x).tanh(x)


def by_imports(x: torch.Tensor) -> Any:
    return x + 1 if "torch" in sys.modules and "no_such_module" not in sys.modules else x - 1


@pytest.fixture(autouse=True)
def _empty_tables() -> None:
    BY_TYPE.clear()
    LOADED.clear()
    plan.cache_clear()
    is_subclass.cache_clear()


@pytest.mark.spread(10)
@pytest.mark.parametrize("is_branching", [False, True], ids=["plain", "branching"])
@pytest.mark.parametrize(
    "program", [by_table, by_plan, by_module_name, by_dispatch, by_class, by_namespace, by_imports]
)
def test_the_class_of_a_tensor_is_looked_up(program: Callable[..., Any], is_branching: bool) -> None:
    def branching(x: torch.Tensor) -> Any:
        if x.sum() > 0:
            x = x * 3
        return program(x)

    tested = branching if is_branching else program
    compiled = smelt.compile(tested)
    with torch.no_grad():
        for rows in (2, 3, 5, 4, 7, 6):
            x = torch.randn(rows, 2 * rows)
            torch.testing.assert_close(compiled(x), tested(x))
    stats = dispatcher_of(compiled).stats()
    # The tables are filled in the first call, which is recorded again for that.
    assert stats.builds <= 4 and sum(stats.fallbacks.values()) <= 1, (stats.builds, stats.fallbacks)


def test_what_is_imported_later_is_asked_for_again() -> None:
    name = "made_for_this_test"

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if name in sys.modules else x - 1

    compiled = smelt.compile(program)
    x = torch.ones(3)
    assert torch.equal(compiled(x), x - 1) and torch.equal(compiled(x), x - 1)
    sys.modules[name] = sys
    try:
        assert torch.equal(compiled(x), x + 1)
    finally:
        del sys.modules[name]
    assert torch.equal(compiled(x), x - 1)


def test_a_cache_that_gives_what_its_function_no_longer_does_keeps_sizes_fixed() -> None:
    scale = [2]

    @functools.lru_cache(maxsize=64)
    def scaled(width: int) -> int:
        return width * scale[0]

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * scaled(x.shape[0])

    compiled = smelt.compile(program)
    for size in (2, 3):
        assert torch.equal(compiled(torch.ones(size)), torch.ones(size) * size * 2)
    scale[0] = 5
    for size, factor in ((2, 4), (3, 6), (4, 20), (4, 20)):
        assert torch.equal(compiled(torch.ones(size)), torch.ones(size) * factor)


def test_a_checker_without_source_that_compares_with_a_sentinel_leaves_sizes_free() -> None:
    """As beartype's: a wrapper that is made by `exec`."""
    scope: dict[str, Any] = {"kind": torch.Tensor, "missing": object(), "function": lambda x: x * 2}
    text = """def checked(*args):
    found = args[0] if args else missing
    if found is not missing:
        if not isinstance(found, kind):
            raise TypeError("no tensor")
    return function(*args)
"""
    exec(compile(text, "<made for a check>", "exec"), scope)
    compiled = smelt.compile(scope["checked"])
    for rows in (2, 3, 4, 5):
        x = torch.randn(rows, 3)
        assert torch.equal(compiled(x), x * 2)
    stats = dispatcher_of(compiled).stats()
    assert (stats.builds, stats.fallbacks) == (2, {})
