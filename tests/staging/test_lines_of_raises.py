"""An exception that the graph raises stands at the line that raises it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.ir import Node

X = torch.ones(3)


def behind_a_branch(x: Tensor) -> Tensor:
    if x.sum() < 0:
        y = x.sum()

        raise ValueError("negative", y.shape)
    return x * 2


def behind_a_loop(x: Tensor) -> Tensor:
    kept = []
    for v in x:
        if v > 0:
            kept.append(v)
    if len(kept) == 0:
        raise ValueError("none")
    return torch.stack(kept)


def in_a_loop(x: Tensor) -> Tensor:
    while x.sum() > 1:
        x = x / 2
        if x[0] > 5:
            pass
            raise RuntimeError("large")
    return x


def check(x: Tensor) -> None:
    if x[0] > 3:
        message = "large"
        raise KeyError(message)


def in_a_call(x: Tensor) -> Tensor:
    check(x)
    return x + 1


def from_a_cause(x: Tensor) -> Tensor:
    if x.sum() < 0:
        cause = KeyError("k")
        raise ValueError("negative") from cause
    return x * 2


def line_of(fn: Callable[..., Any], text: str) -> int:
    lines, start = inspect.getsourcelines(fn)
    return start + next(i for i, line in enumerate(lines) if text in line)


def raising(graph: smelt.Graph) -> Node:
    (found,) = [node for node in graph.walk() if node.op == "py.raise"]
    return found


PROGRAMS = {
    behind_a_branch: behind_a_branch,
    behind_a_loop: behind_a_loop,
    in_a_loop: in_a_loop,
    in_a_call: check,
    from_a_cause: from_a_cause,
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("how", ["trace", "script"])
def test_where_it_is_raised(program: Callable[..., Any], how: str) -> None:
    raiser = PROGRAMS[program]
    found = smelt.trace(program, (X,)) if how == "trace" else smelt.script(program, example_inputs=(X,))
    span = raising(found.graph).span
    assert span is not None
    assert (span.file, span.line) == (__file__, line_of(raiser, "raise "))
    assert span.function.endswith(raiser.__name__)


def test_explain_tells_the_line() -> None:
    compiled = smelt.compile(behind_a_loop)
    with torch.no_grad():
        compiled(X)
    told = smelt.explain(compiled).to_text(everything=True)
    line = line_of(behind_a_loop, "raise ")
    (said,) = [one for one in told.splitlines() if "py.raise runs in Python" in one]
    assert said.endswith(f"{__file__.rpartition('/')[2]}:{line}")
