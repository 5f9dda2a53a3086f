"""Programs that pass through the doors, each with several inputs; and how two answers are compared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Case:
    """make: the program; calls: (args, kwargs) that it is called with, the first to capture it."""

    name: str
    make: Callable[[], nn.Module]
    calls: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, f: Any) -> None:
        super().__init__()
        self.f = f

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.f(*args, **kwargs)


class Counting(nn.Module):
    """Counts its calls in a buffer, and keeps a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.norm = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.norm(x) * self.scale + self.count


class Held(nn.Module):
    """A tensor that is neither parameter nor buffer, tied weights, nested modules."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(4.0)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
        self.layers[2].weight = self.layers[0].weight

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *, gain: float = 2.0) -> torch.Tensor:
        y = self.layers(x) * gain + self.table + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return y if mask is None else y * mask


def _writes_argument(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    cache[1].copy_(x[0])
    cache.mul_(2)
    return x + cache.sum()


def _nested(pair: tuple[torch.Tensor, dict[str, torch.Tensor]], more: list[torch.Tensor]) -> Any:
    x, named = pair
    return {"out": x + named["a"], "parts": [more[0], (named["b"] * 2, None)]}


def _autocast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ w


def _split(x: torch.Tensor) -> Any:
    a, b = x.split(2, dim=1)
    values, indices = x.topk(2)
    return a * b, values, indices


_X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
_Y = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))


def _two(f: Any, *rest: Any) -> tuple[Any, ...]:
    return f, ((_X, *rest), {}), ((_Y, *rest), {})


def _case(name: str, f: Any, *calls: Any) -> Case:
    make = f if isinstance(f, type) else lambda: Of(f)
    return Case(name, make, tuple(calls))


CASES = (
    _case("pointwise", *_two(lambda x: torch.sin(x) * 2 + x.relu())),
    _case("matmul", *_two(lambda x, w: (x @ w).softmax(-1), torch.ones(4, 5))),
    _case("reduction", *_two(lambda x: (x.mean(), x.sum(0), x.argmax(1), x.var(1)))),
    _case("integers", *_two(lambda x: (x * 10).long() // 3 % 2)),
    _case("booleans", *_two(lambda x: (x > 0) & (x < 1))),
    _case("double", *_two(lambda x: x.double() + x.half())),
    _case("strides", *_two(lambda x: (x.t() + 1, x.t().contiguous(), x.expand(2, 3, 4)))),
    _case("strided input", lambda x: x * 2 + 1, ((_X.t(),), {}), ((_Y.t(),), {})),
    _case("views", *_two(lambda x: x.view(2, 6)[1:, ::2].flatten().unsqueeze(0))),
    _case("gather", lambda x, i: x[i] + x.gather(0, i.view(1, -1)).sum(),
          ((_X, torch.tensor([0, 2, 1])), {}), ((_Y, torch.tensor([1, 1, 0])), {})),
    _case("split", *_two(_split)),
    _case("where", *_two(lambda x: torch.where(x > 0, x, -x * float("inf")))),
    _case("nan", *_two(lambda x: x / 0 * float("nan"))),
    _case("constant", *_two(lambda x: x + torch.tensor([[1.5], [2.5], [3.5]]))),
    _case("many constants", *_two(lambda x: x + torch.arange(12.0).view(3, 4))),
    _case("in place", *_two(lambda x: x.clone().add_(1).mul_(x))),
    _case("writes its argument", _writes_argument,
          ((_X, torch.zeros(2, 4)), {}), ((_Y, torch.ones(2, 4)), {})),
    _case("nested", _nested, (((_X, {"a": _Y, "b": _X}), [_X]), {}), (((_Y, {"a": _X, "b": _Y}), [_Y]), {})),
    _case("none in the middle", lambda x, n, y: x + y if n is None else x, ((_X, None, _Y), {}), ((_Y, None, _X), {})),
    _case("numbers", lambda x, n, f, s: x * n + f if s == "on" else x,
          ((_X, 3, 0.5, "on"), {}), ((_Y, 3, 0.5, "on"), {})),
    _case("keywords", Held, ((_X,), {"mask": _Y}), ((_Y,), {"mask": _X})),
    _case("state", Held, ((_X,), {}), ((_Y,), {})),
    _case("buffers", Counting, ((_X,), {}), ((_Y,), {})),
    _case("the same output twice", *_two(lambda x: (x * 2,) * 2)),
    _case("an input returned", *_two(lambda x: (x, x * 2))),
    _case("autocast", *_two(_autocast, torch.ones(4, 4))),
    _case("no grad", *_two(torch.no_grad()(lambda x: x * 2))),
    _case("scalar", lambda x: x.exp() + x, ((torch.tensor(0.5),), {}), ((torch.tensor(-0.5),), {})),
    _case("empty", lambda x: (x * 2, x.sum()), ((torch.empty(0, 4),), {})),
    _case("convolution", lambda x, w: torch.conv2d(x, w, padding=1).relu(),
          ((torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3)), {})),
)  # fmt: skip


def fresh(value: Any) -> Any:
    """The same arguments over tensors of their own, strides kept."""
    return pytree.tree_map(lambda t: copy.deepcopy(t) if isinstance(t, torch.Tensor) else t, value)


def assert_alike(found: Any, expected: Any) -> None:
    """The same structure, types and values; floats but for rounding."""
    a, of_a = pytree.tree_flatten(found)
    b, of_b = pytree.tree_flatten(expected)
    assert of_a == of_b
    for one, other in zip(a, b, strict=True):
        assert type(one) is type(other) or isinstance(one, torch.Tensor)
        if isinstance(one, torch.Tensor):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            torch.testing.assert_close(one, other, equal_nan=True)
        else:
            assert one == other


def assert_same_call(found: Any, expected: Any, args: Any, kwargs: Any) -> None:
    """Two programs answer alike, and leave their arguments alike."""
    given, wanted = fresh((args, kwargs)), fresh((args, kwargs))
    assert_alike(found(*given[0], **given[1]), expected(*wanted[0], **wanted[1]))
    assert_alike(given, wanted)
