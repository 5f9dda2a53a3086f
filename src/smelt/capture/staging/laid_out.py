"""How results lie on the CPU where torch's kernels without data lay them out otherwise.

These do not look at the indices of an index with tensors (a mask stands for the places of its true elements, one index
for each of its dimensions), and keep the strides of a view in the same sizes, of which dimensions of size 1 get others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.capture.dynamic.values import number_of
from smelt.ops.shapes.indexing import INDEXING, index_strides
from smelt.ops.shapes.views import Layout, seen_as

_REGROUPING = frozenset(
    f"aten.{name}"
    for name in ("view.default", "reshape.default", "view_as.default", "reshape_as.default", "flatten.using_ints",
                 "unflatten.int", "ravel.default")
)  # fmt: skip


def steps_of_indexed(name: str, args: Sequence[Any], result: Any) -> tuple[Any, ...] | None:
    """The strides of an index's result; None for what is no index, and where its own are these."""
    if name not in INDEXING or not isinstance(result, torch.Tensor) or len(args) < 2:
        return None
    x, given = args[0], args[1]
    if any(isinstance(index, torch.Tensor) and index.is_sparse for index in (x, *given)):
        return None
    steps = index_strides(_layout(x), _without_masks(given, result))
    if steps is None or len(steps) != result.dim() or steps == _numbers(result.stride()):
        return None
    return steps


def steps_of_regrouped(name: str, args: Sequence[Any], result: Any) -> tuple[Any, ...] | None:
    """The strides of a view in other sizes, some of which are 1; None for what is none, and where its own are these."""
    if name not in _REGROUPING or not isinstance(result, torch.Tensor) or result is args[0] or not result._is_view():
        return None
    sizes, steps = _numbers(result.shape), _numbers(result.stride())
    if not any(type(size) is int and size == 1 for size in sizes):
        return None
    found = seen_as(_layout(args[0]), sizes)
    return None if found == steps else found


def _without_masks(given: Sequence[Any], result: torch.Tensor) -> list[Layout | None]:
    """The layouts of the indices, None for a dimension that is taken whole."""
    found: list[Layout | None] = []
    plain = [index for index in given if index is not None and not _is_mask(index)]
    for index in given:
        if index is None or not _is_mask(index):
            found.append(None if index is None else _layout(index))
            continue
        sizes = [_numbers(other.shape)[-1] for other in plain if other.dim()]
        count = sizes[0] if sizes else _numbers(result.shape)[_first_place(given)]
        found += [Layout((count,), (1,))] * index.dim()
    return found


def _first_place(given: Sequence[Any]) -> int:
    """The dimension in which masks alone leave the count of their elements."""
    places: list[int] = []
    dim = 0
    for index in given:
        if index is not None:
            places += range(dim, dim + index.dim())
        dim += 1 if index is None else index.dim()
    is_joined = places == list(range(places[0], places[-1] + 1))
    return places[0] if is_joined else 0


def _is_mask(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8) and index.dim() > 0


def _layout(tensor: torch.Tensor) -> Layout:
    return Layout(_numbers(tensor.shape), _numbers(tensor.stride()))


def _numbers(numbers: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(map(number_of, numbers))
