"""Ways that part inside a call meet again where it returns: the questions of many calls add, they do not multiply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.ops.evaluate import evaluate

CALLS = 6


def multiple(x: Tensor, k: int) -> Tensor | None:
    return None if x.size(0) % k == 0 else x * k


def with_or_without(x: Tensor, k: int) -> Tensor:
    y = multiple(x, k)
    return x - 1 if y is None else y.tanh()


def none_or_a_tensor(x: Tensor) -> Tensor:
    for k in range(2, 2 + CALLS):
        x = with_or_without(x, k)
    return x


def summed(x: Tensor, k: int) -> Tensor:
    more = {}
    if x.size(0) > k:
        more["dim"] = 0
    return torch.sum(x, **more)


def arguments_by_name(x: Tensor) -> Tensor:
    found = x.sum()
    for k in range(2, 2 + CALLS):
        found = found * summed(x, k).sum() / 8
    return found


class Counter:
    def __init__(self) -> None:
        self.seen = 0
        self.last: Any = None


def counted(x: Tensor, counter: Counter) -> Tensor:
    y = multiple(x, counter.seen + 2)
    counter.seen += 1
    counter.last = x
    if y is None:
        return x + counter.seen
    return y


def what_calls_leave(x: Tensor) -> tuple[Tensor, Tensor, int]:
    counter = Counter()
    for _ in range(CALLS):
        x = counted(x, counter)
    return x, counter.last, counter.seen


def in_place(x: Tensor, where: Tensor, k: int) -> Tensor:
    y = multiple(x, k)
    if y is None:
        where.add_(k)
        return x - 1
    where[0] = k
    return y


def writes_of_calls(x: Tensor) -> tuple[Tensor, Tensor]:
    where = torch.zeros(3)
    for k in range(2, 2 + CALLS):
        x = in_place(x, where, k) + x
    return x, where


def results(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


@pytest.mark.spread(2)
@pytest.mark.parametrize("f", [none_or_a_tensor, arguments_by_name, what_calls_leave, writes_of_calls])
def test_ways_add(f: Callable[..., Any]) -> None:
    program = smelt.script(f)
    questions = sum(node.op == "if" for node in program.graph.walk())
    assert questions <= 6 * CALLS
    for n in (4, 5, 12):
        x = torch.randn(n, 3, generator=torch.Generator().manual_seed(n))
        want = results(f(x))
        for got in (results(program(x)), list(evaluate(program.graph, program.inputs_for(x)))):
            for a, b in zip(want, got, strict=False):
                torch.testing.assert_close(torch.as_tensor(b), torch.as_tensor(a))


def passes_on(x: Tensor, k: int) -> Tensor:
    return multiple(x, k)


def refused(x: Tensor) -> Tensor:
    return passes_on(x, 2) + 1


def test_an_error_of_one_way_is_eagers() -> None:
    program = smelt.script(refused)
    x = torch.randn(5)
    torch.testing.assert_close(program(x), refused(x))
    with pytest.raises(TypeError, match="unsupported operand"):
        refused(torch.randn(4))
    with pytest.raises(TypeError, match="unsupported operand"):
        program(torch.randn(4))
