"""Attributes that are only written, and on some ways only: on the others they keep what they held before the call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt


class Marked(nn.Module):
    """Writes what it never reads."""

    kind = "flag"

    def __init__(self) -> None:
        super().__init__()
        self.flag: Any = False
        self.last: Any = torch.zeros(4)
        self.seen: Any = None
        self.steps: Any = 0

    def forward(self, x: Tensor) -> Tensor:
        match self.kind:
            case "flag":
                if x.max() > 0:
                    self.flag = True
            case "both":
                if x.max() > 2:
                    self.flag = "large"
                elif x.max() > 0:
                    self.flag = "small"
            case "tensor":
                if x.max() > 0:
                    self.last = x[0] * 2
            case "none":
                if x.max() > 0:
                    self.seen = x[0] + 1
            case "loop":
                i = 0
                while x[0, 0] > i:
                    i += 1
                    self.steps = i
            case "before":
                self.flag = False
                if x.max() > 0:
                    self.flag = True
            case "function":

                def mark() -> None:
                    for _ in range(3):
                        self.flag = 7

                if x.max() > 0:
                    mark()
        return x + 1


KINDS = ("flag", "both", "tensor", "none", "loop", "before", "function")


def _same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b and type(a) is type(b)


@pytest.mark.spread(10)
@pytest.mark.parametrize("order", [(1.0, 3.0, 0.0, 1.0, 0.0, 0.0, 3.0), (0.0, 1.0, 0.0, 3.0, 0.0, 1.0)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_as_in_eager(kind: str, order: tuple[float, ...]) -> None:
    one, other = Marked(), Marked()
    one.kind = other.kind = kind
    compiled = smelt.compile(one, options={"measure": False})
    with torch.no_grad():
        for value in (*order, *order):
            x = torch.full((2, 4), value)
            assert torch.equal(compiled(x), other(x))
            for name in ("flag", "last", "seen", "steps"):
                assert _same(getattr(one, name), getattr(other, name)), (name, value)
            if value == 3.0:
                one.flag = other.flag = "mine"  # what others put there stays, too


@pytest.mark.parametrize("kind", ["flag", "function"])
def test_one_graph_once_it_is_known(kind: str) -> None:
    one = Marked()
    one.kind = kind
    compiled = smelt.compile(one, options={"measure": False})
    with torch.no_grad():
        for value in (1.0, 1.0, 0.0, 1.0, 0.0):
            compiled(torch.full((2, 4), value))
    (row,) = compiled.stats().rows
    assert row.entry is not None and "if" in {node.op for node in row.entry.captured.graph.walk()}
    assert compiled.stats().builds == 2


@pytest.mark.parametrize("kind", KINDS)
def test_traces_are_right_or_refuse(kind: str) -> None:
    one, other = Marked(), Marked()
    one.kind = other.kind = kind
    x = torch.full((2, 4), 1.0)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *args, **kwargs: None)
        patch.setattr("warnings.warn_explicit", lambda *args, **kwargs: None)
        program = smelt.trace(one, (x,))
        other(x)
        for value in (1.0, 0.0, 3.0, 0.0):
            x = torch.full((2, 4), value)
            try:
                found = program(x)
            except smelt.CaptureError:
                continue
            assert torch.equal(found, other(x))
            for name in ("flag", "last", "seen", "steps"):
                assert _same(getattr(one, name), getattr(other, name)), (name, value)
