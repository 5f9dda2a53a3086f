"""Lists of numbers that data make long, and tensors of them: one graph, with a buffer where a loop takes away."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def nms(boxes: Tensor, scores: Tensor, limit: float = 0.5) -> Tensor:
    """f32[n, 4], f32[n] -> i64[k], the boxes that are kept."""
    order, keep = scores.argsort(descending=True), []
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    while order.numel() > 0:
        i, rest = order[0], order[1:]
        keep.append(i.item())
        low = torch.maximum(boxes[rest, :2], boxes[i, :2])
        high = torch.minimum(boxes[rest, 2:], boxes[i, 2:])
        common = (high - low).clamp(min=0).prod(1)
        order = rest[common / (area[i] + area[rest] - common) <= limit]
    return torch.tensor(keep)


def boxes(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    low = torch.rand(n, 2, generator=generator) * 6
    return torch.cat([low, low + 0.1 + torch.rand(n, 2, generator=generator) * 4], 1), torch.rand(
        n, generator=generator
    )


def test_boxes_that_are_kept_by_number_are_one_graph() -> None:
    compiled = smelt.compile(nms, options={"measure": False})
    for n in (12, 12, 9, 17, 25, 25, 7, 3, 30):
        assert torch.equal(compiled(*boxes(n)), nms(*boxes(n)))
    assert compiled.stats().builds == 2
    report = smelt.explain(compiled)
    assert [row["paths"][:10] for row in report.graphs] == ["all: while", "all: while"]
    assert not [row for row in report.fallbacks if "append" in row["reason"] or "while" in row["reason"]]


def firsts(x: Tensor, kind: str, dtype: Any = None) -> Any:
    """f32[n] -> what was collected while the rest was not empty."""
    found = []
    while x.numel() > 0:
        first = x[0]
        found.append(
            {"float": first.item(), "int": int(first * 4), "bool": bool(first > 0.5), "twice": first.item() * 2}[kind]
        )
        x = x[1:][x[1:] > first]
    return torch.tensor(found, dtype=dtype) if dtype is not None else torch.tensor(found), len(found)


@pytest.mark.spread(5)
@pytest.mark.parametrize("kind", ["float", "int", "bool", "twice"])
@pytest.mark.parametrize("dtype", [None, torch.float64, torch.int32])
def test_tensors_of_numbers_that_were_collected(kind: str, dtype: torch.dtype | None) -> None:
    compiled = smelt.compile(firsts, options={"measure": False})
    for seed in range(6):
        x = torch.rand(11, generator=torch.Generator().manual_seed(seed))
        found, expected = compiled(x, kind, dtype), firsts(x, kind, dtype)
        assert found[0].dtype is expected[0].dtype and torch.equal(found[0], expected[0]) and found[1] == expected[1]
    assert compiled.stats().builds == 1


def some(x: Tensor, dtype: Any = None) -> Tensor:
    found = []
    for row in x:
        if row.sum() > 0:
            found.append(int(row[0] * 10))
    return torch.tensor(found, dtype=dtype)


def some_of_floats(x: Tensor) -> Tensor:
    return torch.as_tensor([float(row.sum()) for row in x if row.sum() > 0])


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "f", [some, lambda x: some(x, torch.int16), some_of_floats], ids=["ints", "ints with a dtype", "floats"]
)
def test_lists_that_may_be_empty(f: Callable[..., Tensor]) -> None:
    compiled = smelt.compile(f, options={"measure": False})
    for x in (torch.rand(5, 2), torch.rand(5, 2) - 0.5, -torch.rand(5, 2), torch.rand(5, 2), -torch.rand(5, 2)):
        found, expected = compiled(x), f(x)
        assert found.dtype is expected.dtype and torch.equal(found, expected)


def test_the_graph_of_a_trace_is_code_and_text() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = smelt.trace(nms, boxes(12))
    assert "torch.LongTensor" in str(program.graph) and smelt.parse(str(program.graph)) == program.graph
    other = boxes(12)[0].flip(0), boxes(12)[1]
    assert torch.equal(program(*other), nms(*other))
    assert torch.equal(program.code.run(*other)[0], nms(*other))
