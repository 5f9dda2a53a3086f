"""Results of operands with a dimension of one element, along which any stride may stand, lie as on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import smelt

Tensor = torch.Tensor
OPERANDS: dict[str, Callable[[Tensor], Tensor]] = {
    "a row as a column": lambda x: x[:1].t(),
    "a corner": lambda x: x[:1, :1],
    "a column": lambda x: x[:, 1:2].t(),
    "every second of a row": lambda x: x[:1, ::2],
}
OPERATORS: dict[str, Callable[[Tensor], object]] = {
    "sum": lambda x: x + 1, "relu": lambda x: x.relu(), "comparison": lambda x: x > 0, "clamp": lambda x: x.clamp(0, 1),
    "flip": lambda x: x.flip(0), "sort": lambda x: x.sort(0), "tril": lambda x: x.tril(),
    "zeros_like": torch.zeros_like, "masked_fill": lambda x: x.masked_fill(x > 1, 2),
    "promoted": lambda x: x.int() + 1.5, "view": lambda x: x.reshape(1, -1),
    "windows": lambda x: x.unfold(0, 1, 1) + 1, "with itself": lambda x: x * x,
}  # fmt: skip


@pytest.mark.spread(4)
@pytest.mark.parametrize("made", OPERANDS)
def test_results_in_branches_lie_as_in_eager(made: str) -> None:
    operand = OPERANDS[made]
    for name, operator in OPERATORS.items():

        def f(x: Tensor, operator: Callable[[Tensor], object] = operator) -> object:
            one = operand(x)
            if x.sum() > 0:
                return operator(one), one
            return operator(one + 1), one

        g = smelt.compile(f)
        for sign in (1, -1, 1):
            x = torch.arange(1.0, 13.0).reshape(3, 4) * sign
            for got, want in zip(_tensors(g(x)), _tensors(f(x)), strict=True):
                assert got.stride() == want.stride(), (made, name)
                assert torch.equal(got, want), (made, name)
        assert g.stats().builds == 1, (made, name)


def _tensors(value: object) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [t for v in value for t in _tensors(v)]  # type: ignore[attr-defined]
