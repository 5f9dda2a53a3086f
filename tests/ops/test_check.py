"""Nodes that do not fit their operator's schema are refused with the operator's and argument's names."""

from __future__ import annotations

import pytest

from smelt.diag import VerifyError
from smelt.ir import parse, verify
from smelt.ops.check import check


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%0: f32[2] = aten.add.Tensor(%x)", "lacks 'other'"),
        ("%0: f32[2] = aten.add.Tensor(%x, 1, 2, 3)", "takes 2 positional arguments, not 4"),
        ("%0: f32[2] = aten.add.Tensor(%x, 1, beta=2)", "no argument 'beta'"),
        ('%0: f32[2] = aten.add.Tensor(%x, "a")', "other is 'a', not a tensor"),
        ("%0: f32[2] = aten.sin.default(None)", "self is none"),
        ("%0: f32[2] = aten.cat.default(%x)", r"tensors is f32\[2\], not a list of tensors"),
        ("%0: f32[2] = aten.cat.default(1)", "tensors is not a list"),
        ("%0: f32[2], %1: f32[2] = aten.sin.default(%x)", "has 1 results, not 2"),
        ("%0: int = aten.sin.default(%x)", "%0 is a tensor, not int"),
        ("%0: f32[2] = aten.unbind.int(%x)", "list of tensors"),
    ],
)
def test_faults(line: str, message: str) -> None:
    graph = parse(f"graph f(%x: f32[2]) -> f32[2] {{\n  {line}\n  return %x\n}}")
    verify(graph)
    with pytest.raises(VerifyError, match=message):
        verify(graph, check)


def test_what_fits_and_what_is_not_registered() -> None:
    graph = parse(
        """graph f(%x: f32[2], %i: i64[1]) -> f32[1] {
          %0: f32[2] = aten.clamp.default(%x, None, 1)
          %1: f32[1] = aten.index.Tensor(%0, [%i])
          %2: f32[1] = elsewhere.op.default(%1, what=[1])
          return %2
        }"""
    )
    verify(graph, check)
