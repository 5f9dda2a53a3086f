"""Views in plain Python against torch: every rule, over random sizes, strides and arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from smelt.ir import DType, Graph, TensorType, Value
from smelt.ops.convert import from_torch
from smelt.ops.registry import arguments_of, overload, schema_of
from smelt.ops.shapes.views import VIEW_RULES, Layout, view_layouts

Arguments = Callable[[random.Random, torch.Tensor], Sequence[Any]]


def _sizes(rng: random.Random, rank: int) -> list[int]:
    return [rng.choice((0, 1, 1, 2, 2, 3, 4, 5, 6)) if rng.random() < 0.95 else 0 for _ in range(rank)]


def _tensor(rng: random.Random, least: int = 0) -> torch.Tensor:
    """A tensor of random layout: dense in some order, spread, broadcast, or a part."""
    rank = rng.randint(least, 4)
    sizes = _sizes(rng, rank)
    order = list(range(rank))
    if rng.random() < 0.5:
        rng.shuffle(order)
    strides, step = [0] * rank, 1
    for d in reversed(order):
        strides[d] = step
        if rng.random() < 0.15:
            strides[d] = 0
        step *= max(sizes[d], 1) * (2 if rng.random() < 0.15 else 1)
    offset = rng.choice((0, 0, 3))
    extent = offset + 1 + sum(max(n - 1, 0) * s for n, s in zip(sizes, strides, strict=True))
    return torch.empty(extent).as_strided(sizes, strides, offset)


def _dim(rng: random.Random, x: torch.Tensor, more: int = 0) -> int:
    rank = max(x.dim() + more, 1)
    return rng.randrange(-rank, rank)


def _factors(rng: random.Random, count: int, gap: bool = True) -> list[int]:
    sizes = []
    while count > 1 and rng.random() < 0.8:
        factor = rng.choice([d for d in range(1, count + 1) if count % d == 0])
        sizes.append(factor)
        count //= factor
    sizes.append(count)
    rng.shuffle(sizes)
    if gap and rng.random() < 0.4:
        sizes[rng.randrange(len(sizes))] = -1
    return sizes


def _view(rng: random.Random, x: torch.Tensor) -> Sequence[Any]:
    if x.numel() and rng.random() < 0.5:
        # Some of the sizes that are there stay, so that what is no row can be seen otherwise, too.
        at = rng.randrange(x.dim() + 1)
        split = _factors(rng, x.shape[at], gap=False) if at < x.dim() else [1]
        return ([*x.shape[:at], *split, *x.shape[at + 1 :]],)
    return (_factors(rng, x.numel()),)


def _other(rng: random.Random, x: torch.Tensor) -> Sequence[Any]:
    return (torch.empty([abs(n) for n in _factors(rng, x.numel(), gap=False)]),)


def _expanded(rng: random.Random, x: torch.Tensor) -> list[int]:
    lead = [rng.randint(1, 3) for _ in range(rng.randint(0, 2))]
    return lead + [n if n != 1 else rng.choice((1, 3)) for n in x.shape]


def _expand(rng: random.Random, x: torch.Tensor) -> Sequence[Any]:
    wanted = _expanded(rng, x)
    lead = len(wanted) - x.dim()
    return ([-1 if i >= lead and x.shape[i - lead] == n and rng.random() < 0.3 else n for i, n in enumerate(wanted)],)


def _slice(rng: random.Random, x: torch.Tensor) -> Sequence[Any]:
    bound = lambda: rng.choice((None, 9223372036854775807, *range(-8, 9)))  # noqa: E731
    return _dim(rng, x), bound(), bound(), rng.choice((1, 1, 2, 3))


def _narrow(rng: random.Random, x: torch.Tensor) -> Sequence[Any]:
    dim = _dim(rng, x)
    start = rng.randint(-x.shape[dim], x.shape[dim])
    return dim, start, rng.randint(0, x.shape[dim] - start % (x.shape[dim] or 1) if start < x.shape[dim] else 0)


def _parts(rng: random.Random, x: torch.Tensor) -> Sequence[Any]:
    dim = _dim(rng, x)
    first = rng.randint(0, x.shape[dim])
    return [first, x.shape[dim] - first], dim


def _dims(rng: random.Random, x: torch.Tensor) -> list[int]:
    order = list(range(x.dim()))
    rng.shuffle(order)
    return [d - x.dim() if rng.random() < 0.3 else d for d in order]


def _movedims(rng: random.Random, x: torch.Tensor) -> Sequence[Any]:
    count = rng.randint(0, x.dim())
    return _dims(rng, x)[:count], _dims(rng, x)[:count]


def _unflatten(rng: random.Random, x: torch.Tensor) -> Sequence[Any]:
    dim = _dim(rng, x)
    return dim, _factors(rng, x.shape[dim])


def _diagonal(rng: random.Random, x: torch.Tensor) -> Sequence[Any]:
    return rng.randint(-4, 4), *_dims(rng, x)[:2]


def _unfold(rng: random.Random, x: torch.Tensor) -> Sequence[Any]:
    dim = _dim(rng, x)
    return dim, rng.randint(1, max(x.shape[dim], 1)), rng.randint(1, 3)


_CASES: dict[str, Arguments] = {
    **dict.fromkeys(("view.default", "_unsafe_view.default", "reshape.default"), _view),
    **dict.fromkeys(("view_as.default", "reshape_as.default"), _other),
    "flatten.using_ints": lambda rng, x: sorted(_dim(rng, x) % max(x.dim(), 1) for _ in range(2)),
    "unflatten.int": _unflatten,
    **dict.fromkeys(
        ("transpose.int", "swapaxes.default", "swapdims.default"), lambda rng, x: (_dim(rng, x), _dim(rng, x))
    ),
    "permute.default": lambda rng, x: (_dims(rng, x),),
    **dict.fromkeys(
        ("t.default", "numpy_T.default", "mT.default", "alias.default", "detach.default", "lift_fresh.default",
         "positive.default", "contiguous.default", "squeeze.default", "ravel.default"), lambda rng, x: ()
    ),
    "movedim.int": lambda rng, x: (_dim(rng, x), _dim(rng, x)),
    "movedim.intlist": _movedims,
    "select.int": lambda rng, x: (_dim(rng, x), rng.randint(-6, 5)),
    "slice.Tensor": _slice,
    "narrow.default": _narrow,
    "split.Tensor": lambda rng, x: (rng.randint(1, 4), _dim(rng, x)),
    **dict.fromkeys(("split.sizes", "split_with_sizes.default"), _parts),
    "chunk.default": lambda rng, x: (rng.randint(1, 4), _dim(rng, x)),
    "tensor_split.sections": lambda rng, x: (rng.randint(1, 4), _dim(rng, x)),
    "tensor_split.indices": lambda rng, x: ([rng.randint(-6, 6) for _ in range(rng.randint(0, 3))], _dim(rng, x)),
    "unbind.int": lambda rng, x: (_dim(rng, x),),
    "unsqueeze.default": lambda rng, x: (_dim(rng, x, 1),),
    "squeeze.dim": lambda rng, x: (_dim(rng, x),),
    "squeeze.dims": lambda rng, x: (_dims(rng, x)[: rng.randint(0, x.dim())],),
    "expand.default": _expand,
    "expand_as.default": lambda rng, x: (torch.empty(_expanded(rng, x)),),
    "diagonal.default": _diagonal,
    "unfold.default": _unfold,
}  # fmt: skip


def _call(op: str, args: Sequence[Any]) -> dict[str, Any]:
    graph = Graph("g")

    def literal(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return Value("x", TensorType.of(DType.F32, arg.shape, arg.stride()), graph.body)
        return from_torch(arg)

    schema = schema_of(op)
    assert schema is not None
    return arguments_of(schema, tuple(map(literal, args)), {})


def test_every_rule_has_a_case() -> None:
    assert {f"aten.{name}" for name in _CASES} == set(VIEW_RULES)


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", sorted(_CASES))
def test_layouts_are_torchs(name: str) -> None:
    op, rng = f"aten.{name}", random.Random(name)
    run = overload(op)
    told = 0
    for _ in range(600):
        x = _tensor(rng)
        try:
            args = _CASES[name](rng, x)
            made = run(x, *args)  # type: ignore[misc]
        except (RuntimeError, IndexError, ValueError):
            continue
        results = [made] if isinstance(made, torch.Tensor) else list(made)
        at = Layout(tuple(x.shape), x.stride(), x.storage_offset())
        found = view_layouts(op, at, _call(op, (x, *args)))
        shares = all(r.untyped_storage()._cdata == x.untyped_storage()._cdata for r in results)
        if not shares:
            assert found is None, (at, args)
            continue
        assert found is not None, (at, args)
        told += 1
        assert len(found) == len(results), (at, args)
        for one, result in zip(found, results, strict=True):
            assert (one.sizes, one.strides) == (tuple(result.shape), result.stride()), (at, args)
            assert result.numel() == 0 or one.offset == result.storage_offset(), (at, args)
    assert told > 100
