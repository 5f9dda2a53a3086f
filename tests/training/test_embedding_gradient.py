"""Gradients of tables of embeddings: eager's very sums, for any size of table, padding and dtype of the index."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import smelt

Tensor = torch.Tensor


def same(
    rows: int,
    width: int,
    shape: tuple[int, ...],
    padding: int | None = None,
    dtype: torch.dtype = torch.float32,
    index: torch.dtype = torch.int64,
) -> str:
    """Two calls of a program whose gradient equals eager's to the bit; what `explain` says."""
    torch.manual_seed(rows + width)
    table, given = torch.randn(rows, width, dtype=dtype), torch.randint(0, rows, shape).to(index)
    scale = torch.randn(*shape, width, dtype=dtype)

    def program(table: Tensor, given: Tensor, scale: Tensor) -> Tensor:
        return (F.embedding(given, table, padding) * scale).sum()

    compiled = smelt.compile(program, options={"train": True})
    for _ in range(2):
        found = []
        for run in (program, compiled):
            leaf = table.clone().requires_grad_()
            found.append(torch.autograd.grad(run(leaf, given, scale), leaf)[0])
        assert torch.equal(*found)
    return smelt.explain(compiled).to_text()


def test_rows_are_added_in_eagers_order() -> None:
    for rows, width, shape in ((3, 1, (50,)), (11, 70, (4, 30)), (1, 8, (9,)), (9000, 64, (5, 7)), (700, 1000, (2,))):
        text = same(rows, width, shape)
        assert "gradient of embedding" in text and "own kernels do 100%" in text


def test_padding_and_dtypes() -> None:
    same(5, 24, (40,), padding=2)
    same(5, 24, (40,), padding=-1)
    same(5, 9, (40,), dtype=torch.float64, index=torch.int32)


def test_gradients_that_are_views_and_broadcast() -> None:
    def turned(table: Tensor, given: Tensor, scale: Tensor) -> Tensor:
        return (F.embedding(given, table).transpose(0, 1) * scale).sum() + F.embedding(given, table).sum()

    compiled = smelt.compile(turned, options={"train": True})
    table, given, scale = torch.randn(6, 8), torch.randint(0, 6, (3, 5)), torch.randn(5, 3, 8)
    for _ in range(2):
        found = []
        for run in (turned, compiled):
            leaf = table.clone().requires_grad_()
            found.append(torch.autograd.grad(run(leaf, given, scale), leaf)[0])
        torch.testing.assert_close(*found)
