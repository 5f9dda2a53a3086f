"""Several questions on one line, one of which cannot be merged; `torch.tensor` of an element type that a run knows."""

from __future__ import annotations

import array
import contextlib
import contextvars
import copy
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import smelt
from smelt.ops.evaluate import evaluate


def none_behind_an_and(x: torch.Tensor) -> torch.Tensor | None:
    return x.sum() if x.numel() % 2 == 0 and x.numel() else None


def helper(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor | None:
    return y if x.numel() > 4 else x


def merged_first_and_not_later(x: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return helper(x, x * 2), helper(x, None)


def appended_to_nothing(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.tensor([], dtype=x.dtype, device=x.device), x], -1)


def constants_of_its_type(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * torch.tensor([0.1], dtype=x.dtype), torch.tensor(3, dtype=x.dtype)


def results(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


@pytest.mark.parametrize(
    "f", [none_behind_an_and, merged_first_and_not_later, appended_to_nothing, constants_of_its_type]
)
def test_the_graph_gives_what_eager_gives(f: Callable[..., Any]) -> None:
    program = smelt.script(f)
    assert not any(node.op == "py.raise" for node in program.graph.walk())
    for n, dtype in ((3, torch.float32), (4, torch.bfloat16), (6, torch.float16), (0, torch.float64)):
        x = torch.randn(n).to(dtype)
        want = results(f(x))
        for got in (results(program(x)), list(evaluate(program.graph, program.inputs_for(x)))):
            for a, b in zip(want, got, strict=True):
                assert (a is None and b is None) or (a.dtype == b.dtype and torch.equal(a, b))


class Layer:
    """A cache that notes what its tensors are made of, as those of language models do."""

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None

    def update(self, x: torch.Tensor) -> torch.Tensor:
        if self.keys is None:
            self.dtype, self.device = x.dtype, x.device
            self.keys = torch.tensor([], dtype=self.dtype, device=self.device)
        self.keys = torch.cat([self.keys, x], -1)
        return self.keys


class Result(dict):
    pass


def with_cache(x: torch.Tensor, scale: torch.Tensor | None = None) -> Result:
    cache = Layer()
    y = cache.update(x) * 2
    if x.numel() == 5:
        raise ValueError("no five")
    if scale is not None:
        return Result(out=y * scale, loss=y.sum(), layers=[cache])
    return Result(out=y if x.numel() > 3 else y + 1, loss=None, layers=[cache])


def test_a_result_that_holds_objects_with_dtypes_is_one_of_two_ways() -> None:
    program = smelt.script(with_cache)
    for x, scale in ((torch.ones(3), None), (torch.ones(4).double(), None), (torch.ones(2), torch.tensor(3.0))):
        want, got = with_cache(x, scale), program(x, scale)
        assert torch.equal(want["out"], got["out"]) and (want["loss"] is None) == (got["loss"] is None)
        assert type(got["layers"][0]) is Layer and torch.equal(got["layers"][0].keys, x)
        assert (got["layers"][0].dtype, got["layers"][0].device) == (x.dtype, x.device)
    with pytest.raises(ValueError, match="no five"):
        program(torch.ones(5))


def _states() -> list[tuple[str, Any, Any]]:
    """Programs with state that no container holds, and what tells that state."""

    class Slots:
        __slots__ = ("__n", "last")

        def __init__(self) -> None:
            self.__n = 0

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            self.__n += 1
            self.last = x
            return x * self.__n if x.sum() > 0 else x - self.__n

        def told(self) -> Any:
            return self.__n, hasattr(self, "last")

    slots, data, numbers = Slots(), bytearray(1), array.array("i", [0])
    drawn, own, variable = random.Random(3), threading.local(), contextvars.ContextVar("variable", default=1)
    elements = np.zeros(2)

    def change(x: torch.Tensor) -> torch.Tensor:
        data[0] += 1
        numbers.append(len(numbers))
        numbers.pop()
        numbers[0] += 1
        own.n = getattr(own, "n", 0) + 1
        variable.set(variable.get() + 1)
        elements[1] += 1
        k = data[0] + numbers[0] + own.n + drawn.random()
        return x * k if x.sum() > 0 else x - k

    def told() -> Any:
        return bytes(data), list(numbers), vars(own), variable.get(), drawn.getstate(), elements.tolist()

    return [("slots", slots, slots.told), ("others", change, told)]


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("which", [0, 1])
def test_scripting_leaves_state_that_no_container_holds(which: int) -> None:
    _, program, told = _states()[which]
    before = copy.deepcopy(told())
    with contextlib.suppress(smelt.SmeltError):
        smelt.script(program)
    assert told() == before


def test_an_iterator_from_outside_is_not_advanced_by_scripting() -> None:
    for items in (itertools.count(1), iter([1, 2, 3]), (n for n in (1, 2, 3))):

        def first(x: torch.Tensor, items: Any = items) -> torch.Tensor:
            return x * next(items)

        def each(x: torch.Tensor, items: Any = items) -> torch.Tensor:
            for n in items:
                return x * n
            return x

        for program in (first, each):
            with pytest.raises(smelt.CaptureError, match="an iterator from outside is advanced"):
                smelt.script(program)
        assert next(items) == 1


def test_an_iterator_that_the_program_does_not_touch_is_no_hindrance() -> None:
    source = itertools.count(1)

    def program(x: torch.Tensor, n: int | None = None) -> torch.Tensor:
        return x if n is not None and next(source) < 0 else torch.relu(x)

    scripted = smelt.script(program)
    x = torch.randn(3)
    assert torch.equal(scripted(x), torch.relu(x))
    assert next(source) == 1
