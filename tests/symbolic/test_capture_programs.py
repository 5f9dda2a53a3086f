"""Programs over sizes and numbers: one capture with symbols does at other sizes what eager does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.symbolic.capture_harness import check

Call = tuple[Any, ...]


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def i(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape)


def view_known(x: Any) -> Any:
    b, s, d = x.shape
    return x.view(b * s, d).relu()


def view_open(x: Any) -> Any:
    return x.view(x.size(0), -1) * 2


def reshape_heads(x: Any) -> Any:
    b, s, _ = x.shape
    return x.reshape(b, s, 2, -1).transpose(1, 2).reshape(b, 2 * s, -1)


def flatten_unflatten(x: Any) -> Any:
    return x.flatten(0, 1).unflatten(0, (x.shape[0], -1)) + x


def concat(x: Any, y: Any) -> Any:
    return torch.cat([x, y, x], dim=1).sum(0)


def stacked(x: Any) -> Any:
    return torch.stack([x, x + 1], 1).flatten(0, 1)


def positions(x: Any) -> Any:
    return x + torch.arange(x.shape[1], dtype=x.dtype)


def arange_step(x: Any) -> Any:
    return torch.arange(0, x.shape[0] * 2, 2) * x.shape[0]


def causal(x: Any) -> Any:
    s = x.size(1)
    mask = torch.full((s, s), float("-inf")).triu(1)
    return (x @ x.transpose(1, 2) / math.sqrt(x.shape[-1]) + mask).softmax(-1)


def tril_mask(x: Any) -> Any:
    return x.masked_fill(torch.ones(x.shape[-2:], dtype=torch.bool).tril().logical_not(), 0.0)


def half(x: Any) -> Any:
    h = x.size(0) // 2
    return x[:h] + x[h : 2 * h]


def remainder(x: Any) -> Any:
    return x[: x.shape[0] - x.shape[0] % 4].sum(), x.shape[0] % 4


def chunks(x: Any) -> Any:
    a, b = x.chunk(2, dim=-1)
    return a.sum(-1) - b.sum(-1)


def halves_split(x: Any) -> Any:
    a, b = x.split(x.shape[-1] // 2, dim=-1)
    return a * b


def padded(x: Any) -> Any:
    return F.pad(x, (0, (-x.shape[1]) % 8))


def padded_ceil(x: Any) -> Any:
    n = math.ceil(x.shape[1] / 8) * 8
    return F.pad(x, (0, n - x.shape[1])).view(x.shape[0], -1, 8).sum(-1)


def pool(x: Any) -> Any:
    return F.avg_pool2d(F.conv2d(x, torch.ones(4, 3, 3, 3), padding=1), 2)


def strided_conv(x: Any) -> Any:
    return F.conv2d(x, torch.ones(4, 3, 3, 3), stride=2, padding=1)


def last_rows(x: Any) -> Any:
    return x[-2:], x[:-1], x[x.shape[0] - 1], x[-1]


def middle_none(x: Any) -> Any:
    return x[:, None] * x[None, :, None].squeeze(2)


def numel_len(x: Any) -> Any:
    return x.sum() / x.numel() + len(x)


def shape_tuple(x: Any) -> Any:
    t = tuple(x.shape)
    return torch.zeros((*t[:-1], 3)), x.new_ones(x.shape[:1] + torch.Size([2]))


def size_equality(x: Any, y: Any) -> Any:
    return x + y if x.shape == y.shape else x.sum() + y.sum()


def broadcast(x: Any, y: Any) -> Any:
    return x + y


def bool_of_size(x: Any) -> Any:
    return x.mean() if x.shape[0] else x.sum()


def branch_on_size(x: Any) -> Any:
    return x.sum(0) if x.shape[0] > 8 else x.amax(0)


def keyed_by_size(x: Any) -> Any:
    return x * {4: 2.0, 6: 3.0}.get(x.shape[0], 1.0)


def formatted(x: Any) -> Any:
    return {f"size{x.shape[0]}": x.sum()}


def returns_sizes(x: Any) -> Any:
    return x.relu(), x.shape[0], x.size(1) * 2 + 1, x.shape[0] / 2


def float_of(x: Any) -> Any:
    return x * float(x.shape[0]) / math.sqrt(x.shape[1])


def mean_by_hand(x: Any) -> Any:
    return x.sum(0) / x.shape[0] + x.shape[0] ** -0.5


def repeated(x: Any) -> Any:
    return x.repeat(2, x.shape[0]), x.expand(3, *x.shape)


def outer(x: Any) -> Any:
    return torch.einsum("bi,bj->ij", x, x)


def rolled(x: Any) -> Any:
    return x.roll(1, 0).flip(0), x.cumsum(0)


def topk_half(x: Any) -> Any:
    return x.topk(2, dim=-1).values, x.sort(dim=-1).values


def one_hots(x: Any) -> Any:
    return F.one_hot(x % 5, 5).sum(0)


def embedding(x: Any) -> Any:
    return F.embedding(x, torch.ones(10, 4).cumsum(0)) + torch.arange(x.shape[1])[:, None]


def gathered(x: Any) -> Any:
    return x.gather(1, torch.zeros(x.shape[0], 2, dtype=torch.int64)), x.index_select(0, torch.arange(x.shape[0] - 1))


def norm(x: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:]), F.group_norm(x, 1)


def interpolated(x: Any) -> Any:
    return F.interpolate(x, scale_factor=2.0), F.interpolate(x, size=(x.shape[2] // 2, x.shape[3]))


def attention(x: Any) -> Any:
    b, s, d = x.shape
    q = x.view(b, s, 2, d // 2).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(b, s, d)


def einops_like(x: Any) -> Any:
    b, c, h, w = x.shape
    return x.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, (h // 2) * (w // 2), c * 4)


def in_place(x: Any) -> Any:
    y = x.clone()
    y[: x.shape[0] // 2].mul_(2)
    y[:, 0] = x.shape[1]
    x += 1
    return y


def takes(x: Any, n: Any) -> Any:
    return x[:, :n] * n


def drops(x: Any, n: Any) -> Any:
    return x[n:] if n >= 0 else x[:n]


def scaled(x: Any, a: Any) -> Any:
    return x * a + a**2 if a > 0 else x - a


def counted(n: Any) -> Any:
    return torch.zeros(n, n + 1), n * 2


def clamped(x: Any, n: Any) -> Any:
    return x[: min(n, x.shape[0])], max(n, 2)


def asserted(x: Any) -> Any:
    assert x.shape[1] % 2 == 0, f"odd {x.shape}"
    return x.view(x.shape[0], 2, -1)


@dataclass
class Pair:
    left: Any
    right: Any


def of_pair(p: Any) -> Any:
    return p["a"].left @ p["a"].right.T


PROGRAMS: list[tuple[Callable[..., Any], Call, list[Call], list[Call]]] = [
    (view_known, (f(4, 6, 8),), [(f(2, 3, 5),), (f(7, 2, 2),)], []),
    (view_open, (f(4, 6, 8),), [(f(3, 2, 5),)], []),
    (reshape_heads, (f(4, 6, 8),), [(f(3, 5, 4),)], [(f(3, 5, 7),)]),
    (flatten_unflatten, (f(4, 6, 8),), [(f(3, 5, 7),)], []),
    (concat, (f(4, 6), f(4, 3)), [(f(3, 5), f(3, 2))], [(f(3, 5), f(2, 5))]),
    (stacked, (f(4, 6),), [(f(3, 2),)], []),
    (positions, (f(4, 6),), [(f(3, 11),)], []),
    (arange_step, (f(4, 6),), [(f(9, 2),)], []),
    (causal, (f(2, 6, 4),), [(f(3, 9, 4),), (f(5, 2, 7),)], []),
    (tril_mask, (f(2, 6, 4),), [(f(3, 9, 5),)], []),
    (half, (f(8, 3),), [(f(6, 2),), (f(9, 2),)], []),
    (remainder, (f(6, 3),), [(f(9, 3),), (f(18, 2),)], []),
    (chunks, (f(4, 6),), [(f(3, 8),), (f(5, 12),)], []),
    (halves_split, (f(4, 6),), [(f(3, 8),)], [(f(3, 7),)]),
    (padded, (f(4, 6),), [(f(3, 11),), (f(2, 15),)], []),
    (padded_ceil, (f(4, 6),), [(f(3, 11),), (f(2, 15),)], []),
    (pool, (f(2, 3, 8, 8),), [(f(3, 3, 10, 12),), (f(3, 3, 9, 7),)], [(f(2, 4, 8, 8),)]),
    (strided_conv, (f(2, 3, 8, 8),), [(f(3, 3, 11, 12),)], []),
    (last_rows, (f(4, 6),), [(f(3, 2),), (f(9, 2),)], []),
    (middle_none, (f(4, 6),), [(f(3, 2),)], []),
    (numel_len, (f(4, 6),), [(f(3, 2),)], []),
    (shape_tuple, (f(4, 6),), [(f(3, 2),)], []),
    (size_equality, (f(4, 6), f(4, 6)), [(f(3, 2), f(3, 2))], [(f(3, 2), f(3, 4))]),
    (size_equality, (f(4, 6), f(4, 5)), [(f(3, 2), f(3, 4))], [(f(3, 2), f(3, 2))]),
    (broadcast, (f(4, 6), f(6)), [(f(3, 2), f(2))], [(f(3, 2), f(1))]),
    (broadcast, (f(4, 6), f(4, 1)), [(f(3, 2), f(3, 1))], []),
    (bool_of_size, (f(4, 6),), [(f(3, 2),)], [(f(0, 2),)]),
    (branch_on_size, (f(4, 6),), [(f(3, 2),), (f(8, 2),)], [(f(9, 2),)]),
    (branch_on_size, (f(9, 6),), [(f(12, 2),)], [(f(8, 2),)]),
    (keyed_by_size, (f(4, 6),), [(f(4, 2),)], [(f(6, 2),), (f(5, 2),)]),
    (formatted, (f(4, 6),), [(f(4, 2),)], [(f(6, 2),)]),
    (returns_sizes, (f(4, 6),), [(f(3, 2),)], []),
    (float_of, (f(4, 6),), [(f(3, 2),)], []),
    (mean_by_hand, (f(4, 6),), [(f(3, 2),)], []),
    (repeated, (f(4, 6),), [(f(3, 2),)], []),
    (outer, (f(4, 6),), [(f(3, 2),)], []),
    (rolled, (f(4, 6),), [(f(3, 2),)], []),
    (topk_half, (f(4, 6),), [(f(3, 5),), (f(7, 2),)], []),
    (one_hots, (i(9, 6),), [(i(9, 3),)], []),
    (embedding, (i(9, 4, 6),), [(i(9, 3, 2),)], []),
    (gathered, (f(4, 6),), [(f(3, 2),)], []),
    (norm, (f(4, 3, 6),), [(f(3, 3, 5),), (f(2, 5, 5),)], []),
    (interpolated, (f(2, 3, 8, 6),), [(f(3, 2, 5, 10),)], []),
    (attention, (f(2, 6, 8),), [(f(3, 5, 8),), (f(3, 5, 4),)], [(f(3, 5, 7),)]),
    (einops_like, (f(2, 3, 8, 6),), [(f(3, 2, 4, 10),)], [(f(3, 2, 5, 10),)]),
    (in_place, (f(4, 6),), [(f(3, 2),), (f(9, 2),)], []),
    (takes, (f(4, 6), 3), [(f(3, 7), 5), (f(3, 7), 2)], [(f(3, 7), -1), (f(3, 7), 8)]),
    (drops, (f(6, 3), 2), [(f(9, 2), 5)], [(f(9, 2), -1)]),
    (drops, (f(6, 3), -3), [(f(9, 2), -5)], [(f(9, 2), 2)]),
    (scaled, (f(4, 6), 0.5), [(f(3, 2), 2.25)], [(f(3, 2), -1.0), (f(3, 2), float("nan"))]),
    (scaled, (f(4, 6), -0.5), [(f(3, 2), -7.0), (f(3, 2), float("nan"))], [(f(3, 2), 1.0)]),
    (scaled, (f(4, 6), 3), [(f(3, 2), 4)], [(f(3, 2), -1)]),
    (counted, (3,), [(5,), (11,)], []),
    (clamped, (f(6, 3), 4), [(f(9, 2), 5)], [(f(6, 3), 7), (f(6, 3), 1)]),
    (asserted, (f(4, 6),), [(f(3, 8),)], [(f(3, 7),)]),
    (of_pair, ({"a": Pair(f(4, 6), f(3, 6))},), [({"a": Pair(f(5, 2), f(7, 2))},)], []),
]  # fmt: skip


@pytest.mark.spread(6)
@pytest.mark.parametrize("number", range(len(PROGRAMS)), ids=lambda n: f"{PROGRAMS[n][0].__name__}-{n}")
def test_programs(number: int) -> None:
    program, args, inside, outside = PROGRAMS[number]
    # A number that is written into a tensor is one, not a tensor of one element.
    check(program, args, *inside, outside=tuple(outside), is_straight=program is not in_place)
