"""Views of tensors whose sizes are known at run time only: the expressions are torch's layouts wherever guards hold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from smelt.ir.sizes import Evaluation, Range, Size, Trace, current_trace, is_symbolic, tracing
from smelt.ops.registry import overload
from smelt.ops.shapes.pointwise import pointwise_strides
from smelt.ops.shapes.views import Layout, view_layouts
from tests.symbolic.test_geometry_views import _CASES, _call

NAMES = ("A", "B", "C", "D")


def _layout(rng: random.Random, trace: Trace, rank: int) -> Layout:
    """Sizes of which some are symbols, dense in some order or spread."""
    sizes = tuple(trace.symbols[NAMES[i]] if rng.random() < 0.7 else rng.choice((1, 2, 3, 8)) for i in range(rank))
    order = list(range(rank))
    if rng.random() < 0.5:
        rng.shuffle(order)
    strides: list[int] = [0] * rank
    step: Any = 1
    for d in reversed(order):
        strides[d] = step
        step = step * sizes[d] * (2 if rng.random() < 0.1 else 1)
    return Layout(sizes, tuple(strides))


def _tensor(at: Layout) -> torch.Tensor:
    extent = 1 + sum(max(n - 1, 0) * s for n, s in zip(at.sizes, at.strides, strict=True))
    return torch.empty(extent).as_strided(at.sizes, at.strides)


def _run(op: str, x: torch.Tensor, args: Sequence[Any]) -> list[torch.Tensor] | None:
    try:
        made = overload(op)(x, *args)  # type: ignore[misc]
    except (RuntimeError, IndexError, ValueError):
        return None
    found = [made] if isinstance(made, torch.Tensor) else list(made)
    return found if all(r.untyped_storage()._cdata == x.untyped_storage()._cdata for r in found) else []


@pytest.mark.spread(10)
@pytest.mark.parametrize("name", sorted(_CASES))
def test_layouts_hold_wherever_guards_do(name: str) -> None:
    op, rng = f"aten.{name}", random.Random(name)
    told = elsewhere = 0
    for _ in range(200):
        hints = {n: rng.randint(2, 6) for n in NAMES}
        with tracing({n: (hint, Range(rng.choice((0, 1, 2)))) for n, hint in hints.items()}) as trace:
            at = _layout(rng, trace, rng.randint(1, 4))
            x = _tensor(Evaluation(trace, hints)(at))
            try:
                args = _CASES[name](rng, x)
            except (RuntimeError, IndexError, ValueError):
                continue
            views = _run(op, x, args)
            if not views:
                continue
            found = view_layouts(op, at, _call(op, (x, *args)))
            if found is None:
                # How many parts there are is no expression.
                continue
            told += 1
            points = [hints] + [{n: rng.randint(2, 9) for n in NAMES} for _ in range(4)]
            for i, point in enumerate(points):
                there = Evaluation(trace, point)
                if not all(map(there.holds, trace.guards)):
                    assert i
                    continue
                y = _tensor(there(at))
                views = _run(op, y, args)
                if views is None:
                    # What eager refuses there is refused when it is called.
                    assert i
                    continue
                elsewhere += i > 0
                assert [(one.sizes, one.strides) for one in there(found)] == [
                    (tuple(v.shape), v.stride()) for v in views
                ], (at, args, point, trace.guards)
                assert all(
                    not v.numel() or one.offset == v.storage_offset()
                    for one, v in zip(there(found), views, strict=True)
                )
            assert not trace.leaks
    assert told > 10 and (elsewhere > 10 or name in ("split.sizes", "split_with_sizes.default", "view_as.default"))


def test_results_of_elements_hold_wherever_guards_do() -> None:
    rng = random.Random(0)
    elsewhere = 0
    for _ in range(400):
        hints = {n: rng.randint(2, 6) for n in NAMES}
        with tracing({n: (hint, Range(1)) for n, hint in hints.items()}) as trace:
            rank = rng.randint(1, 4)
            first = _layout(rng, trace, rank)
            other = Layout(first.sizes, _layout(rng, trace, rank).strides) if rng.random() < 0.5 else first
            found = pointwise_strides([first, other], first.sizes)
            points = [hints] + [{n: rng.randint(1, 9) for n in NAMES} for _ in range(4)]
            for i, point in enumerate(points):
                there = Evaluation(trace, point)
                if all(map(there.holds, trace.guards)):
                    elsewhere += i > 0
                    made = _tensor(there(first)) + _tensor(there(other))
                    assert there(found) == made.stride(), (first, other, point, trace.guards)
            assert not trace.leaks
    assert elsewhere > 400


def test_no_guard_where_expressions_tell() -> None:
    """A transformer's views of [B, S, D] compare nothing."""
    with tracing({"B": (4, Range()), "S": (64, Range())}) as trace:
        b, s = trace.symbols["B"], trace.symbols["S"]
        rows = Layout((b, s, 768), (s * 768, 768, 1))
        (heads,) = view_layouts("aten.view.default", rows, {"size": (b, s, 12, 64)}) or []
        (turned,) = view_layouts("aten.transpose.int", heads, {"dim0": 1, "dim1": 2}) or []
        assert view_layouts("aten.reshape.default", turned, {"shape": (b * 12, s * 64)}) is None
        (back,) = view_layouts("aten.transpose.int", turned, {"dim0": 1, "dim1": 2}) or []
        (flat,) = view_layouts("aten.view.default", back, {"size": (-1, 768)}) or []
        assert flat.sizes == (b * s, 768) and type(flat.sizes[0]) is Size
        assert pointwise_strides([turned, turned], turned.sizes) == turned.strides
        assert trace.guards == [] and is_symbolic(flat) and current_trace() is trace
