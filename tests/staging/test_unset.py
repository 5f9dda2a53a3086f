"""Variables that some ways leave without a value: whatever asks for one raises there as in eager, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.ops.evaluate import evaluate


def returned(x: Tensor, c: Tensor) -> Any:
    if c.sum() > 0:
        if c.amax() > 5:
            return x
        v = x + 1
    return v


def returned_beside_another_kind(x: Tensor, c: Tensor) -> Any:
    if c.sum() > 0:
        if c.amax() > 5:
            return [x]
        v = x + 1
    return v


def returned_in_a_list(x: Tensor, c: Tensor) -> Any:
    if c.sum() > 0:
        if c.amax() > 5:
            return [x]
        v = x + 1
    return [v]


def handed_to_a_function_that_does_not_look(x: Tensor, c: Tensor) -> Any:
    if c.sum() > 0:
        v = x + 1

    def second(a: Any, b: Tensor) -> Tensor:
        return b

    return second(v, x)


def kept_and_never_read(x: Tensor, c: Tensor) -> Any:
    if c.sum() > 0:
        v = x + 1
    kept = {"v": (v, x)}  # noqa: F841
    return x


def of_the_function_around(x: Tensor, c: Tensor) -> Any:
    def inner() -> list[Tensor]:
        return [v for _ in range(2)]

    if c.sum() > 0:
        if c.amax() > 5:
            return [x, x]
        v = x + 1
    return inner()


def in_a_lambda_and_a_comprehension(x: Tensor, c: Tensor) -> Any:
    for i in range(int(c[0]) % 3):
        v = x * i
    chosen = (lambda: v)()
    return [v for _ in range(2)], chosen


def of_a_choice(x: Tensor, c: Tensor) -> Any:
    if c.sum() > 0:
        v = x + 1
    return (v if c.amax() > 5 else x), x


PROGRAMS = (
    returned, returned_beside_another_kind, returned_in_a_list, handed_to_a_function_that_does_not_look,
    kept_and_never_read, of_the_function_around, in_a_lambda_and_a_comprehension, of_a_choice,
)  # fmt: skip
CASES = [torch.tensor(c) for c in ([2.0, 6, 1], [2.0, 1, 1], [-2.0, -1, -9], [9.0, 1, 1], [-9.0, 7, -9], [0.0, 0, 0])]


def outcome(program: Callable[..., Any], *args: Any) -> tuple[str, Any]:
    """What a call gives, or raises, as text that tells tensors apart."""
    try:
        return "gives", str(program(*args))
    except NameError as error:
        return type(error).__name__, str(error)


@pytest.mark.spread(3)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_in_eager(program: Callable[..., Any]) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    for order in (CASES, CASES[::-1]):
        compiled = smelt.compile(program)
        assert [outcome(compiled, x, c) for c in order] == [outcome(program, x, c) for c in order]


@pytest.mark.spread(3)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_graphs_from_source(program: Callable[..., Any]) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    try:
        scripted = smelt.script(program, example_inputs=(x, CASES[0]))
    except smelt.CaptureError as error:
        assert error.code == "S0109" and program is returned_beside_another_kind
        return

    def graph(*args: Any) -> Any:
        found = evaluate(scripted.graph, scripted.inputs_for(*args), scripted.unit.lookup)
        return scripted.unit.signature.rebuild(found, args, {})

    assert [outcome(graph, x, c) for c in CASES] == [outcome(program, x, c) for c in CASES]
