"""Overloads without a record of operators whose results have memory of their own."""

from __future__ import annotations

import pytest
import torch

from smelt.ops.effects import _FRESH, _is_always_fresh
from smelt.ops.registry import overload
from tests.forked import torch_forks

OVERLOADS = ["aten.var.dim", "aten.var.default", "aten.std.dim", "aten.std.default", "aten.sum.dim_IntList"]


@pytest.mark.parametrize("name", OVERLOADS)
def test_they_are_fresh_and_torch_agrees(name: str) -> None:
    found = overload(name)
    assert found is not None and _is_always_fresh(found)
    for x in (torch.randn(3, 1), torch.randn(1), torch.randn(1, 1)):
        result = found(x, [0]) if name.endswith(("dim", "List")) else found(x)
        assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_what_may_give_its_operand_is_not_among_them() -> None:
    assert _FRESH.isdisjoint(("to", "contiguous", "dropout", "reshape", "type_as"))


def test_a_variance_compiles_without_torchs_symbolic_shapes() -> None:
    program = (
        "import sys, torch, smelt\n"
        "compiled = smelt.compile(lambda x: x / x.var(0) + x.std(1, keepdim=True))\n"
        "compiled(torch.randn(8, 8))\n"
        "assert 'sympy' not in sys.modules\n"
    )
    torch_forks().run(program)
