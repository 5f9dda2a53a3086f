"""What a program reads of a Python module is seen by whatever name it has it, and however instructions are joined."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

NAME = "smelt_read_by_name"
module: Any = types.ModuleType(NAME)
home: Any = types.SimpleNamespace(k=2.0)


def by_argument(m: Any, x: Tensor) -> Tensor:
    return x * m.k  # type: ignore[no-any-return]


def of_tensor(m: Any, x: Tensor) -> Tensor:
    return x * m.weight  # type: ignore[no-any-return]


def by_function(m: Any, x: Tensor) -> Tensor:
    return m.scale(x)  # type: ignore[no-any-return]


def by_text(m: Any, x: Tensor) -> Tensor:
    return x * getattr(m, "k")  # type: ignore[no-any-return]  # noqa: B009


def by_dictionary(m: Any, x: Tensor) -> Tensor:
    return x * vars(m)["k"]  # type: ignore[no-any-return]


def if_there(m: Any, x: Tensor) -> Tensor:
    return x * 3 if hasattr(m, "extra") else x


def stored_then_loaded(x: Tensor) -> Tensor:
    m = module
    return x * m.k  # type: ignore[no-any-return]


def loaded_second(x: Tensor) -> Tensor:
    m = module
    y = x + 1
    return torch.mul(y, m.k)


def stored_second(x: Tensor) -> Tensor:
    y, m = x + 1, module
    return y * m.k  # type: ignore[no-any-return]


def bound_twice(x: Tensor) -> Tensor:
    m: Any = None
    if x.shape[0] > 1:
        m = module
    return x * m.k  # type: ignore[no-any-return]


def other_bound_again(x: Tensor) -> Tensor:
    m: Any = module
    y, m = x + 1, home
    return y * m.k  # type: ignore[no-any-return]


def of_three(x: Tensor) -> Tensor:
    a, m, b = x, module, 2
    return a * m.k * b  # type: ignore[no-any-return]


def chained(x: Tensor) -> Tensor:
    m = n = module
    return x * n.k * m.k  # type: ignore[no-any-return]


def walrus(x: Tensor) -> Tensor:
    return x * (m := module).k + m.k  # type: ignore[no-any-return]


def loop(x: Tensor) -> Tensor:
    for m in (module,):
        x = x * m.k
    return x


def deleted(x: Tensor) -> Tensor:
    m = module
    try:
        return x * m.k  # type: ignore[no-any-return]
    finally:
        del m


def imported(x: Tensor) -> Tensor:
    return by_argument(importlib.import_module(NAME), x)


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    made.__name__: made
    for made in (
        stored_then_loaded, loaded_second, stored_second, bound_twice, other_bound_again, of_three, chained, walrus,
        loop, deleted, imported,
    )
} | {
    "argument": lambda x: by_argument(module, x),
    "tensor": lambda x: of_tensor(module, x),
    "function": lambda x: by_function(module, x),
    "text": lambda x: by_text(module, x),
    "dictionary": lambda x: by_dictionary(module, x),
    "there": lambda x: if_there(module, x),
    "submodule": lambda x: by_argument(module.sub, x),
    "list": lambda x: x * [module][0].k,
    "dictionary of modules": lambda x: x * {"m": module}["m"].k,
    "lambda": lambda x: (lambda m: x * m.k)(module),
    "rest": lambda x: (lambda *args, **named: by_argument(args[0], named["x"]))(module, x=x),
    "loaded": lambda x: by_argument(sys.modules[NAME], x),
}  # fmt: skip


def change(value: float) -> None:
    module.k = home.k = module.sub.k = value
    module.weight = torch.full((2,), value)
    module.scale = lambda x: x * value
    if value == 3.0:
        module.extra = True
    else:
        vars(module).pop("extra", None)


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, NAME, module)
    module.sub = types.ModuleType(f"{NAME}.sub")
    with torch.no_grad():
        yield


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_change_is_seen(name: str) -> None:
    program, x = PROGRAMS[name], torch.ones(2)
    change(2.0)
    compiled = smelt.compile(program)
    for value in (2.0, 3.0, 3.0, 2.0):
        change(value)
        assert torch.equal(compiled(x), program(x))


def test_what_a_helper_counts_in_a_module() -> None:
    def count(m: Any, x: Tensor) -> Tensor:
        m.calls = getattr(m, "calls", 0) + 1
        return x * m.calls  # type: ignore[no-any-return]

    mine, twin = types.ModuleType("mine"), types.ModuleType("twin")
    compiled, x = smelt.compile(lambda x: count(mine, x)), torch.ones(2)
    with pytest.warns(smelt.SmeltWarning, match=r"changes mine\.calls"):
        found = [compiled(x) for _ in range(4)]
    assert torch.equal(torch.stack(found), torch.stack([count(twin, x) for _ in range(4)]))
    assert mine.calls == twin.calls == 4  # type: ignore[attr-defined]


def test_a_module_that_is_only_asked_for_names_costs_no_build() -> None:
    change(2.0)
    compiled, x = smelt.compile(lambda x: x * module.k), torch.ones(2)
    compiled(x)
    module.weight = torch.zeros(2)
    assert torch.equal(compiled(x), x * 2) and compiled.stats().builds == 1


def test_what_the_interpreter_brings_is_not_looked_through() -> None:
    def program(x: Tensor) -> Tensor:
        if hasattr(sys, "getwindowsversion") or "smelt_none" in sys.modules:
            return x + 3
        return x * 2

    compiled, x = smelt.compile(program), torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(x), x * 2)
    assert compiled.stats().builds == 1 and not compiled.stats().fallbacks
    sys.modules["smelt_none"] = module
    try:
        assert torch.equal(compiled(x), x + 3)
    finally:
        del sys.modules["smelt_none"]


def made() -> tuple[Callable[[Tensor], Tensor], list[int]]:
    held: list[int] = []

    def program(x: Tensor) -> Tensor:
        held.append(1)

        def count() -> int:
            return len(held)

        return x * count()

    return program, held


def test_a_list_that_an_inner_function_is_given_is_read() -> None:
    (program, held), (twin, _) = made(), made()
    compiled, x = smelt.compile(program), torch.ones(2)
    for _ in range(4):
        assert torch.equal(compiled(x), twin(x))
    assert len(held) == 4


def test_a_parameter_that_is_loaded_after_another_is_stored_is_read() -> None:
    def program(x: smelt.f32[2], n: int) -> Tensor:
        a = x + 1
        return n * a

    scripted = smelt.script(program)
    for n in (2, 3, 2):
        assert torch.equal(scripted(torch.ones(2), n), torch.full((2,), 2.0 * n))
