"""How results lie on the CPU, where torch's kernels without data may lay them out otherwise.

These kernels skip what eager does with dimensions of size 0 and 1, do not look at the indices of an index, and keep the
strides of a view in the same sizes. So a rule tells the layout where there is one that is exact for all sizes: of
views, of what goes over its operands element by element, of indexing (`ops.shapes`). Its comparisons of sizes leave
guards. Where there is no rule, it is decided of each size whether it is 0 or 1 (a guard where the ranges leave it
open), and the CPU is asked where one is.

Invariant: of operands and results that are row-major and not empty at all sizes nothing is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs
from smelt._torch.seen.staged_fakes import FakeTensors
from smelt._torch.storage import same_storage
from smelt.capture.dynamic.arithmetic import is_symbolic
from smelt.capture.dynamic.trace import CaptureTrace
from smelt.capture.dynamic.typed_calls import (
    is_plain,
    numbers,
    resolved,
    same,
    shown,
    tensors_in,
    type_of,
    typed_call,
)
from smelt.capture.dynamic.values import number_of
from smelt.capture.recording.opinfo import OpInfo
from smelt.capture.staging.fakes.by_trial import types_by_trial
from smelt.ir import TensorType, TupleType, Type
from smelt.ops.convert import dtype_from_torch
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.ops.shapes.indexing import INDEXING, index_strides
from smelt.ops.shapes.pointwise import pointwise_strides
from smelt.ops.shapes.symbolic import CannotTell, iterated, ruled_view
from smelt.ops.shapes.views import VIEW_RULES, Layout, row_major

_COPYING = frozenset(f"aten.{name}" for name in ("reshape.default", "reshape_as.default", "flatten.using_ints"))
"""Views that copy, row-major, what no view can show."""
_PARTS = where(Trait.LIST_OF_VIEWS) | {"aten.tensor_split.sections", "aten.tensor_split.indices"}
"""Parts of one dimension have the strides of the whole, whatever their sizes are."""
_ASKED_ALWAYS = frozenset(("roll", "channel_shuffle", "native_channel_shuffle"))
"""Their results keep the memory format of their operand on the CPU, and are row-major without data."""
_MOST_ELEMENTS = 1 << 14
"""Of an operand of a trial: it costs next to nothing then."""


def laid_as_on_cpu(
    fakes: FakeTensors,
    trace: CaptureTrace | None,
    info: OpInfo,
    args: OpArgs,
    kwargs: OpKwargs,
    result: Any,
) -> object:
    """The results of an operator on fake tensors, laid out as on the CPU."""
    results, operands = list(tensors_in(result)), list(tensors_in((args, list(kwargs.values()))))
    if info.writes or not results or not operands or any(r is o for r in results for o in operands):
        return result
    if not all(map(_is_strided, (*results, *operands))) or all(map(is_plain, (*results, *operands))):
        return result
    if info.name in _PARTS:
        return result
    if info.name == "aten.diagonal.default":
        return _of_diagonal(fakes, result, *args, **kwargs)
    if info.name in VIEW_RULES:
        layouts = _viewed(info.name, args, kwargs)
        if layouts is not None:
            return _as_views(fakes, trace, args[0], result, results, layouts)
        if info.name in _COPYING:
            steps: list[Any] = [row_major(numbers(r.shape)) for r in results]
            return _replaced(fakes, trace, result, results, steps, is_copy=True)
        return result
    if info.name in INDEXING:
        return _replaced(fakes, trace, result, results, [_indexed(args, result)])
    if info.sized_by is not None or any(r._is_view() for r in results):
        return result
    return _replaced(fakes, trace, result, results, _laid(trace, info, args, kwargs, results, operands))


def _laid(
    trace: CaptureTrace | None,
    info: OpInfo,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    results: Sequence[torch.Tensor],
    operands: Sequence[torch.Tensor],
) -> list[Any]:
    """The strides of results that have memory of their own; None for those that nothing else is known of."""
    try:
        gives = dtype_from_torch(results[0].dtype)
        layouts = iterated(info.name, *typed_call(args, kwargs)[:2], type_of, gives) if len(results) == 1 else None
    except TypeError:
        layouts = None  # an argument that no graph names
    if layouts is not None:
        return [pointwise_strides(layouts, numbers(results[0].shape))]
    tensors = (*operands, *results)
    if trace is not None:
        _decide(trace, tensors, 0)
        if all(map(is_plain, tensors)):
            return [None] * len(results)
        _decide(trace, tensors, 1)
    if not (any(map(_is_at_edge, tensors)) or info.short in _ASKED_ALWAYS) or info.is_random:
        return [None] * len(results)
    try:
        types = types_by_trial(trace, info.name, args, kwargs, most=_MOST_ELEMENTS)
    except (CannotTell, TypeError):
        return [None] * len(results)
    found = [type_.steps for type_ in types for type_ in _tensor_types(type_)]
    return found if len(found) == len(results) else [None] * len(results)


def _decide(trace: CaptureTrace, tensors: Sequence[torch.Tensor], edge: int) -> None:
    """Decide of each size, for all sizes that are left, whether it is this one."""
    for size in (n for tensor in tensors for n in numbers(tensor.shape)):
        if is_symbolic(size) and trace.bounds(trace.resolved(size.poly))[0] <= edge:
            bool(size == edge)


def _is_at_edge(tensor: torch.Tensor) -> bool:
    """Whether it is empty, or has a dimension of one element along which no row-major stride stands."""
    sizes, steps = numbers(tensor.shape), numbers(tensor.stride())
    if 0 in [n for n in map(resolved, sizes) if type(n) is int]:
        return True
    step: object = 1
    for size, own in zip(reversed(sizes), reversed(steps), strict=True):
        if resolved(size) == 1 and type(resolved(size)) is int and not same(own, step):
            return True
        step = step * size
    return False


def _of_diagonal(
    fakes: FakeTensors, result: torch.Tensor, of: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """A diagonal, which begins where its operand does if it has no elements."""
    if not offset or not bool(numbers(result.shape)[-1] == 0):
        return result
    return fakes.view(of, result.shape, result.stride(), of.storage_offset())


def _viewed(name: str, args: OpArgs, kwargs: OpKwargs) -> list[Layout] | None:
    try:
        return ruled_view(name, *typed_call(args, kwargs)[:2], type_of, number_of(args[0].storage_offset()))
    except TypeError:
        return None  # an argument that no graph names


def _indexed(args: OpArgs, result: torch.Tensor) -> tuple[object, ...] | None:
    steps = index_strides(_layout(args[0]), _without_masks(args[1], result))
    return steps if steps is not None and len(steps) == result.dim() else None


def _without_masks(given: Sequence[Any], result: torch.Tensor) -> list[Layout | None]:
    """The layouts of the indices, None for a dimension that is taken whole; a mask stands for the places of its true
    elements, one index for each of its dimensions."""
    found: list[Layout | None] = []
    plain = [index for index in given if index is not None and not _is_mask(index)]
    for index in given:
        if index is None or not _is_mask(index):
            found.append(None if index is None else _layout(index))
            continue
        sizes = [numbers(other.shape)[-1] for other in plain if other.dim()]
        rank = max([1, *(other.dim() for other in plain)])
        wide = [n for n in sizes if not (type(n) is int and n == 1)]
        count = wide[0] if wide else numbers(result.shape)[_first_place(given) + rank - 1]
        found += [Layout((count,), (1,))] * index.dim()
    return found


def _first_place(given: Sequence[Any]) -> int:
    """The first dimension of a result that its indices leave."""
    places: list[int] = []
    dim = 0
    for index in given:
        taken = 1 if index is None or not _is_mask(index) else index.dim()
        if index is not None:
            places += range(dim, dim + taken)
        dim += taken
    is_joined = places == list(range(places[0], places[-1] + 1))
    return places[0] if is_joined else 0


def _is_mask(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8) and index.dim() > 0


# --- fake tensors in other layouts


def _as_views(
    fakes: FakeTensors,
    trace: CaptureTrace | None,
    of: torch.Tensor,
    result: object,
    results: Sequence[torch.Tensor],
    layouts: Sequence[Layout],
) -> object:
    if len(results) != len(layouts):
        return result
    made: dict[int, object] = {}
    for one, at in zip(results, layouts, strict=True):
        offset = number_of(one.storage_offset())
        is_so = same_storage(one, of) and _are_same(numbers(one.stride()), at.strides) and same(offset, at.offset)
        if not is_so:
            made[id(one)] = fakes.view(of, one.shape, shown(trace, at.strides), shown(trace, (at.offset,))[0])
    return _with(result, made)


def _replaced(
    fakes: FakeTensors,
    trace: CaptureTrace | None,
    result: object,
    results: Sequence[torch.Tensor],
    steps: Sequence[Sequence[object] | None],
    *,
    is_copy: bool = False,
) -> object:
    """Results with these strides. is_copy: and with memory of their own."""
    made: dict[int, object] = {}
    for one, own in zip(results, steps, strict=True):
        if own is None or (_are_same(numbers(one.stride()), own) and not (is_copy and one._is_view())):
            continue
        made[id(one)] = fakes.relaid(one, shown(trace, own))
    return _with(result, made)


def _with(result: Any, made: Mapping[int, Any]) -> object:
    if not made or isinstance(result, torch.Tensor):
        return made.get(id(result), result)
    laid = [_with(one, made) for one in result]
    return type(result)(laid) if type(result) in (list, tuple) else type(result)(*laid)


def _tensor_types(type_: Type) -> Iterator[TensorType]:
    if isinstance(type_, TensorType):
        yield type_
    elif isinstance(type_, TupleType):
        for element in type_.elements:
            yield from _tensor_types(element)


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu"


def _layout(tensor: torch.Tensor) -> Layout:
    return Layout(numbers(tensor.shape), numbers(tensor.stride()))


def _are_same(one: Sequence[object], other: Sequence[object]) -> bool:
    return len(one) == len(other) and all(map(same, one, other))
