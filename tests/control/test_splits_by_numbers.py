"""Splits by numbers of data, and joins along a dimension of which some counts: native, and refused as by torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import smelt

Tensor = torch.Tensor


class Router(nn.Module):
    """Each row to the experts that suit it best: rows ordered by expert, split by how many each has, joined again."""

    def __init__(self, width: int = 8, experts: int = 4, chosen: int = 2) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.chosen = chosen

    def forward(self, x: Tensor) -> Tensor:
        weights, which = self.gate(x).softmax(-1).topk(self.chosen, -1)
        flat = which.flatten()
        order = flat.argsort(stable=True)
        sizes = nn.functional.one_hot(flat, len(self.experts)).sum(0).tolist()
        rows = order // self.chosen
        parts = x[rows].split(sizes, 0)
        made = torch.cat([torch.relu(expert(part)) for expert, part in zip(self.experts, parts, strict=True)])
        return torch.zeros_like(x).index_add(0, rows, made * weights.flatten()[order][:, None])


def python_nodes(compiled: object) -> object:
    return [row["where"] for row in smelt.explain(compiled).to_dict()["fallbacks"]]


@pytest.mark.spread(2)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_router_is_native(dynamic: bool | None) -> None:
    torch.manual_seed(0)
    model = Router().eval().requires_grad_(False)
    compiled = smelt.compile(model, dynamic=dynamic)
    for call in range(24):
        x = torch.randn((6, 6, 6, 9, 2, 1)[call % 6] if dynamic else 6, 8) + (call % 3)
        torch.testing.assert_close(compiled(x), model(x))
    assert compiled.stats().builds <= (3 if dynamic else 1) and not compiled.stats().fallbacks
    if not dynamic:
        assert python_nodes(compiled) == []
        graph = smelt.trace(model, (torch.randn(6, 8),))
        for _ in range(8):
            x = torch.randn(6, 8) * 3
            torch.testing.assert_close(graph(x), model(x))


def halves(x: Tensor, n: Tensor) -> Tensor:
    a, b = x.split(n.tolist(), 0)
    return torch.cat((b * 2, a + 1))


def columns(x: Tensor, n: Tensor) -> Tensor:
    a, b, c = x.split([2, *n.tolist()], 1)
    return torch.cat((c, a, b), 1)


def selected(x: Tensor, n: Tensor) -> Tensor:
    return torch.cat((x[x[:, 0] > 0], x[:2], x[x[:, 1] > 0]))


def turned(x: Tensor, n: Tensor) -> Tensor:
    return torch.cat(x.split(n.tolist(), 0)[::-1])


def reduced(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.split(n.tolist(), 0)
    joined = torch.cat((a, x, b))
    return joined.sum(0), joined.amax(1)


PROGRAMS: list[tuple[Callable[[Tensor, Tensor], object], int, list[torch.dtype]]] = [
    (halves, 6, [torch.float32, torch.float64, torch.int64]),
    (columns, 3, [torch.float32, torch.bfloat16, torch.bool]),
    (selected, 6, [torch.float32, torch.int32, torch.bool]),
    (turned, 6, [torch.float16, torch.uint8, torch.bool]),
    (reduced, 6, [torch.float64, torch.int64]),
]


@pytest.mark.spread(10)
@pytest.mark.parametrize(("f", "total", "dtype"), [(f, total, d) for f, total, dtypes in PROGRAMS for d in dtypes])
def test_parts_of_any_size(f: Callable[[Tensor, Tensor], object], total: int, dtype: torch.dtype) -> None:
    compiled = smelt.compile(f)
    torch.manual_seed(0)
    for first in (2, 0, total, 1, total - 1, 3, 2):
        x, n = (torch.randn(6, 5) * 3).to(dtype), torch.tensor([first, total - first])
        torch.testing.assert_close(compiled(x, n), f(x, n), rtol=0, atol=1e-12)
    assert not compiled.stats().fallbacks


@pytest.mark.spread(2)
@pytest.mark.parametrize("wrong", [[2, 3], [4, 3], [-1, 7], [7, -1]])
def test_what_torch_refuses_is_refused(wrong: list[int]) -> None:
    x, compiled = torch.randn(6, 5), smelt.compile(halves)
    for _ in range(3):
        compiled(x, torch.tensor([2, 4]))
    with pytest.raises(RuntimeError) as eager:
        halves(x, torch.tensor(wrong))
    for _ in range(2):
        with pytest.raises(RuntimeError) as found:
            compiled(x, torch.tensor(wrong))
        assert str(found.value).splitlines()[0] == str(eager.value).splitlines()[0]
    graph = smelt.trace(halves, (x, torch.tensor([2, 4])))
    with pytest.raises(RuntimeError):
        graph(x, torch.tensor(wrong))
    for program in (compiled, graph):
        torch.testing.assert_close(program(x, torch.tensor([5, 1])), halves(x, torch.tensor([5, 1])))


def test_parts_that_are_seen_outside_are_views() -> None:
    def f(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        a, b = x.split(n.tolist(), 0)
        return a, b, torch.cat((b, a))

    compiled = smelt.compile(f)
    for n in ([2, 4], [0, 6], [5, 1]):
        x = torch.randn(6, 5)
        a, b, joined = compiled(x, torch.tensor(n))
        torch.testing.assert_close((a, b, joined), f(x, torch.tensor(n)))
        x.zero_()
        assert not a.any() and not b.any()
