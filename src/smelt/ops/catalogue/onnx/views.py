"""Other sizes, orders and parts of tensors in ONNX, where each is a tensor of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.ir import DType, TensorType, TupleType, Type, Value
from smelt.ir.types import contiguous_strides
from smelt.ops.catalogue.onnx.base import (
    LAST,
    Forms,
    axes_of,
    axis_of,
    cast,
    compared,
    dtype_of,
    ints,
    operand,
    permute,
    rank_of,
    reshape,
    size_of,
    sizes_of,
    sizes_of_type,
    sliced,
    squeeze,
    static_size,
    unsqueeze,
)
from smelt.ops.record import Call, NoOnnxForm, OnnxEmitter, OnnxForm, OnnxValue, Types, tensor_type

# --- sizes


def reshaped(b: OnnxEmitter, x: OnnxValue | Value, result: Type, wanted: Any = None) -> OnnxValue:
    """The elements under the sizes of a result's type; wanted: the sizes that the call gives."""
    shape = result.shape if isinstance(result, TensorType) else None
    if shape is None:
        raise NoOnnxForm("the number of dimensions of its result is not known before the run")
    open_ = [i for i, dim in enumerate(shape) if not isinstance(dim, int)]
    if not open_ or (len(open_) == 1 and 0 not in shape):
        return reshape(b, x, [dim if isinstance(dim, int) else -1 for dim in shape])
    if wanted is not None:
        sizes = ints(b, wanted)
        return b.op("Reshape", x, sizes, allowzero=0) if -1 in wanted else reshape(b, x, sizes)
    sizes_known = sizes_of_type(b, result)
    if sizes_known is None:
        raise NoOnnxForm("sizes of its result are not known before the run")
    return reshape(b, x, sizes_known)


def _reshape(wanted: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        given = call.get(wanted)
        return reshaped(b, call["self"], results[0], given if isinstance(given, tuple) else None)

    return form


def _reshape_as(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return reshape(b, call["self"], sizes_of(b, call["other"]))


def _expand(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    sizes = sizes_of_type(b, results[0])
    if sizes is None:  # -1 keeps a size, and so does 1 in ONNX
        sizes = ints(b, tuple(1 if type(n) is int and n == -1 else n for n in call["size"]))
    return b.op("Expand", call["self"], sizes)


def _expand_as(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return b.op("Expand", call["self"], sizes_of(b, call["other"]))


def _unsqueeze(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return unsqueeze(b, call["self"], axis_of(call["dim"], rank_of(call["self"]) + 1))


def _squeeze(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    shape = tensor_type(call["self"]).shape or ()
    axes = [axis for axis in axes_of(call.get("dim"), rank_of(call["self"])) if shape[axis] == 1]
    return squeeze(b, call["self"], *axes) if axes else b.value(call["self"])


# --- orders


def _transpose(first: str, second: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        rank = rank_of(call["self"])
        order = list(range(rank))
        if rank:
            one, other = axis_of(call[first], rank), axis_of(call[second], rank)
            order[one], order[other] = order[other], order[one]
        return permute(b, call["self"], order)

    return form


def _permute(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return permute(b, call["self"], [axis_of(dim, rank_of(call["self"])) for dim in call["dims"]])


def _reversed(last: int) -> OnnxForm:
    """The last dimensions in the other order; last 0: all of them."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        rank = rank_of(call["self"])
        kept = max(rank - last, 0) if last else 0
        return permute(b, call["self"], [*range(kept), *reversed(range(kept, rank))])

    return form


def _movedim(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    rank = rank_of(call["self"])
    source, target = axes_of(call["source"], rank), axes_of(call["destination"], rank)
    placed = dict(zip(target, source, strict=True))
    rest = iter(axis for axis in range(rank) if axis not in source)
    return permute(b, call["self"], [placed[i] if i in placed else next(rest) for i in range(rank)])


# --- parts


def _number(b: OnnxEmitter, given: Any, default: int) -> Any:
    return default if given is None else given if isinstance(given, int) else ints(b, (given,))


def _slice(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    start, end = _number(b, call["start"], 0), _number(b, call["end"], LAST)
    axis, step = axis_of(call["dim"], rank_of(call["self"])), _number(b, call["step"], 1)
    if (start, step) == (0, 1) and end == LAST:
        return b.value(call["self"])
    if isinstance(step, OnnxValue):
        raise NoOnnxForm("a slice's step is not known before the run")
    return sliced(b, call["self"], axis, start, end, step)


def _select(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    index = operand(b, call["index"], DType.I64)
    return b.op("Gather", call["self"], index, axis=axis_of(call["dim"], rank_of(call["self"])))


def _narrow(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    axis, start, length = axis_of(call["dim"], rank_of(call["self"])), call["start"], call["length"]
    if isinstance(start, int) and isinstance(length, int):
        begin = start if start >= 0 else start + static_size(call["self"], axis)
        return sliced(b, call["self"], axis, begin, begin + length)
    first = ints(b, (start,))
    return sliced(b, call["self"], axis, first, b.op("Add", first, ints(b, (length,))))


def _parts(b: OnnxEmitter, call: Call, results: Types) -> tuple[OnnxValue, ...]:
    """The parts whose sizes the types of the results tell."""
    (kind,) = results
    if not isinstance(kind, TupleType):
        raise NoOnnxForm("how many slices there are is not known before the run")
    x, axis = call["self"], axis_of(call["dim"], rank_of(call["self"]))
    sizes = [part.shape[axis] for part in kind.elements if isinstance(part, TensorType) and part.shape is not None]
    if len(sizes) == 1:
        return (b.value(x),)
    given = call.get("split_sizes")
    if isinstance(given, tuple) and not all(isinstance(n, int) for n in sizes):
        return b.ops("Split", (b.value(x).dtype,) * len(sizes), x, ints(b, given), axis=axis)
    known = [b.constant([n], DType.I64) if isinstance(n, int) else b.size(n) for n in sizes]
    found = [reshape(b, n, [1]) for n in known if n is not None]
    if len(found) < len(kind.elements):
        raise NoOnnxForm("the sizes of the slices are not known before the run")
    split = b.constant([int(n) for n in sizes if isinstance(n, int)], DType.I64)
    if not all(isinstance(n, int) for n in sizes):
        split = b.op("Concat", *found, axis=0)
    return b.ops("Split", (b.value(x).dtype,) * len(sizes), x, split, axis=axis)


def _unbind(b: OnnxEmitter, call: Call, results: Types) -> tuple[OnnxValue, ...]:
    (kind,) = results
    if not isinstance(kind, TupleType):
        raise NoOnnxForm("how many slices there are is not known before the run")
    axis = axis_of(call["dim"], rank_of(call["self"]))
    return tuple(b.op("Gather", call["self"], b.constant(i, DType.I64), axis=axis) for i in range(len(kind.elements)))


def _picked(b: OnnxEmitter, x: OnnxValue, table: torch.Tensor, axis: int) -> OnnxValue:
    """Elements by constant indices along an axis, in whose place the dimensions of the table stand."""
    return b.op("Gather", x, b.constant(table, DType.I64), axis=axis)


def _diagonal(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    rank = rank_of(call["self"])
    one, other = axis_of(call["dim1"], rank), axis_of(call["dim2"], rank)
    rows, columns = static_size(call["self"], one), static_size(call["self"], other)
    places = torch.arange(rows * columns).reshape(rows, columns).diagonal(int(call["offset"]))
    rest = [axis for axis in range(rank) if axis not in (one, other)]
    x = permute(b, call["self"], [*rest, one, other])
    sizes = sizes_of_type(b, results[0])
    if rest and sizes is None:
        raise NoOnnxForm("sizes of its result are not known before the run")
    lead = [] if sizes is None or not rest else [sliced(b, sizes, 0, 0, len(rest))]
    flat = reshape(b, x, b.op("Concat", *lead, b.constant([rows * columns], DType.I64), axis=0) if lead else [-1])
    return _picked(b, flat, places, len(rest))


def _unfold(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    rank = rank_of(call["self"])
    axis, size, step = axis_of(call["dimension"], rank), int(call["size"]), int(call["step"])
    places = torch.arange(static_size(call["self"], axis)).unfold(0, size, step)
    found = _picked(b, b.value(call["self"]), places, axis)
    order = [i for i in range(rank + 1) if i != axis + 1]
    return permute(b, found, [*order, axis + 1])


def _as_strided(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    kind = tensor_type(call["self"])
    literal = [*call["size"], *call["stride"], call["storage_offset"] or 0]
    if not kind.is_static or not all(isinstance(n, int) for n in literal):
        raise NoOnnxForm("it reads memory by strides, which tensors of ONNX have none of")
    if call["storage_offset"] is not None and not b.owns_memory(call["self"]):
        raise NoOnnxForm("it counts from the beginning of memory, and where its operand begins there is not known")
    # The elements as they lie in memory, if the operand has all of it.
    order = sorted(range(len(kind.sizes)), key=lambda axis: (-kind.steps[axis], kind.sizes[axis] == 1))
    if [kind.steps[axis] for axis in order] != list(contiguous_strides([kind.sizes[axis] for axis in order])):
        raise NoOnnxForm("it reads memory by strides, and its operand is a part of another tensor")
    size, stride, offset = call["size"], call["stride"], int(call["storage_offset"] or 0)
    if 0 not in size and offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) >= kind.numel:
        raise NoOnnxForm("it reads memory of another tensor's, and tensors of ONNX share none")
    places = torch.arange(kind.numel).as_strided(size, stride, offset)
    return _picked(b, reshape(b, permute(b, call["self"], order), [-1]), places, 0)


def _flip(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    axes = list(axes_of(call["dims"], rank_of(call["self"]))) if call["dims"] else []
    if not axes:
        return b.value(call["self"])
    counts = ([-1] * len(axes), [-LAST] * len(axes), axes, [-1] * len(axes))
    return b.op("Slice", call["self"], *(b.constant(each, DType.I64) for each in counts))


def _roll(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, rank = b.value(call["self"]), rank_of(call["self"])
    if not call["dims"]:
        flat = _rolled(b, reshape(b, x, [-1]), 0, call["shifts"][0], tensor_type(call["self"]).numel)
        return reshape(b, flat, sizes_of(b, call["self"]))
    for shift, dim in zip(call["shifts"], axes_of(call["dims"], rank), strict=True):
        shape = tensor_type(call["self"]).shape or ()
        x = _rolled(b, x, dim, shift, shape[dim])
    return x


def _rolled(b: OnnxEmitter, x: OnnxValue, axis: int, shift: Any, size: Any) -> OnnxValue:
    if not isinstance(shift, int):
        raise NoOnnxForm("how far it rolls is not known before the run")
    if isinstance(size, int):
        shift = shift % max(size, 1)
    # Of a free size, which is not smaller than the shift: a slice that ends before the first element is empty.
    return x if shift == 0 else _concat(b, [sliced(b, x, axis, -shift, LAST), sliced(b, x, axis, 0, -shift)], axis)


def _repeat(given: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        rank, repeats = rank_of(call["self"]), tuple(call[given])
        repeats = (1,) * (rank - len(repeats)) + repeats
        x = unsqueeze(b, call["self"], *range(len(repeats) - rank))
        return b.op("Tile", x, ints(b, repeats)) if repeats else x

    return form


def _repeat_interleave(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, rank = b.value(call["self"]), rank_of(call["self"])
    if call["dim"] is None:
        x, rank, axis = reshape(b, x, [-1]), 1, 0
    else:
        axis = axis_of(call["dim"], rank)
    repeats = tuple(call["repeats"] if i == axis + 1 else 1 for i in range(rank + 1))
    return reshaped(b, b.op("Tile", unsqueeze(b, x, axis + 1), ints(b, repeats)), results[0])


def _repeated_numbers(b: OnnxEmitter, repeats: Value, count: OnnxValue | None) -> OnnxValue:
    """0, 0, 1, 3, 3, 3 for [2, 1, 0, 3]: of each place how many numbers end at it or before; count: of numbers."""
    times = operand(b, repeats, DType.I64)
    if count is not None:
        times = b.op("Expand", times, count)
    ends = b.op("CumSum", times, b.constant(0, DType.I64))
    total = b.op("ReduceSum", times, keepdims=0)
    places = b.op("Range", b.constant(0, DType.I64), total, b.constant(1, DType.I64))
    before = compared(b, "LessOrEqual", unsqueeze(b, ends, 0), unsqueeze(b, places, 1))
    return b.op("ReduceSum", cast(b, before, DType.I64), b.constant([1], DType.I64), keepdims=0)


def _repeat_by_tensor(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, axis = b.value(call["self"]), 0
    if call["dim"] is None:
        x = reshape(b, x, [-1])
    else:
        axis = axis_of(call["dim"], rank_of(call["self"]))
    count = b.op("Shape", x, dtype=DType.I64, start=axis, end=axis + 1)
    return b.op("Gather", x, _repeated_numbers(b, call["repeats"], count), axis=axis)


def _repeat_numbers(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return _repeated_numbers(b, call["repeats"], None)


# --- several


def _concat(b: OnnxEmitter, parts: Sequence[OnnxValue], axis: int) -> OnnxValue:
    return parts[0] if len(parts) == 1 else b.op("Concat", *parts, axis=axis)


def _is_left_out(arg: Any, rank: int) -> bool:
    """An empty tensor of one dimension, which torch joins to anything."""
    return rank != 1 and isinstance(arg, Value) and isinstance(arg.type, TensorType) and arg.type.shape == (0,)


def _gathered(b: OnnxEmitter, given: Any) -> OnnxValue | None:
    """The tensors of a list that a loop gathers, one over the other; torch joins none."""
    stacked = b.stacked(given)
    if stacked is not None:
        count = reshape(b, b.op("Shape", stacked, dtype=DType.I64, start=0, end=1), [])
        b.require(compared(b, "Greater", count, b.constant(0, DType.I64)), "a list that is not empty")
    return stacked


def _cat(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    given, dtype = call["tensors"], dtype_of(results)
    kind = results[0]
    rank = kind.rank if isinstance(kind, TensorType) else None
    if rank is None:
        raise NoOnnxForm("the number of dimensions of its result is not known before the run")
    axis = axis_of(call["dim"], rank)
    if isinstance(given, tuple):
        given = tuple(arg for arg in given if not _is_left_out(arg, rank))
    stacked = _gathered(b, given)
    if stacked is not None:
        # Of tensors one over the other the first dimension goes before the one along which they are joined.
        order = [*range(1, axis + 1), 0, *range(axis + 1, rank + 1)]
        return reshaped(b, permute(b, stacked, order), kind)
    items = b.items(given)
    if isinstance(items, OnnxValue):
        return b.op("ConcatFromSequence", items, dtype=items.dtype, axis=axis, new_axis=0)
    return _concat(b, [operand(b, item, dtype) for item in items], axis)


def _stack(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    kind = results[0]
    rank = kind.rank if isinstance(kind, TensorType) else None
    if rank is None:
        raise NoOnnxForm("the number of dimensions of its result is not known before the run")
    axis, dtype = axis_of(call["dim"], rank), dtype_of(results)
    stacked = _gathered(b, call["tensors"])
    if stacked is not None:
        return permute(b, stacked, [*range(1, axis + 1), 0, *range(axis + 1, rank)])
    items = b.items(call["tensors"])
    if isinstance(items, OnnxValue):
        return b.op("ConcatFromSequence", items, dtype=items.dtype, axis=axis, new_axis=1)
    return _concat(b, [unsqueeze(b, operand(b, item, dtype), axis) for item in items], axis)


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _pad(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    pairs, mode = call["pad"], _MODES[call.get("mode", "constant")]
    x, kept = b.value(call["self"]), (0,) * (rank_of(call["self"]) - len(pairs) // 2)
    if not pairs:
        return x
    inner = DType.U8 if x.dtype is DType.BOOL else x.dtype
    value = operand(b, call["value"], inner) if mode == "constant" and call.get("value") is not None else None
    # For all dimensions: onnxruntime moves a Transpose over a Pad as if it had no list of axes.
    pads = ints(b, (*kept, *pairs[-2::-2], *kept, *pairs[-1::-2]))
    return cast(b, b.op("Pad", cast(b, x, inner), pads, value, mode=mode), x.dtype)


def _triangle(upper: int) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x = b.value(call["self"])
        inner = x.dtype if x.dtype.is_floating or x.dtype is DType.BOOL else DType.I64
        found = b.op("Trilu", cast(b, x, inner), operand(b, call["diagonal"], DType.I64), upper=upper)
        return cast(b, found, x.dtype)

    return form


def _slice_scatter(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, rank = b.value(call["self"]), rank_of(call["self"])
    axis, src = axis_of(call["dim"], rank), operand(b, call["src"], x.dtype)
    start, end = _number(b, call["start"], 0), _number(b, call["end"], LAST)
    if isinstance(start, int) and isinstance(end, int) and call["step"] == 1 and start >= 0 and end >= start:
        whole = (tensor_type(call["self"]).shape or ())[axis]
        if start == 0 and isinstance(whole, int) and end >= whole:
            return src
        parts = [] if start == 0 else [sliced(b, x, axis, 0, start)]
        parts += [src] if end == LAST else [src, sliced(b, x, axis, end, LAST)]
        return _concat(b, parts, axis)
    return scattered(b, x, src, _places(b, call["self"], axis, start, end, call["step"]), axis, rank)


def _places(b: OnnxEmitter, x: Value, axis: int, start: Any, end: Any, step: Any) -> OnnxValue:
    """The numbers of the elements of a slice."""
    one = [reshape(b, size_of(b, x, axis), []), b.constant(1, DType.I64)]
    return sliced(b, b.op("Range", b.constant(0, DType.I64), *one), 0, start, end, int(step))


def scattered(
    b: OnnxEmitter, x: OnnxValue, src: OnnxValue, places: OnnxValue, axis: int, rank: int, reduction: str = "none"
) -> OnnxValue:
    """A tensor with others in its places along an axis."""
    order = [axis, *(i for i in range(rank) if i != axis)]
    back = [order.index(i) for i in range(rank)]
    inner = DType.U8 if x.dtype is DType.BOOL and reduction == "none" else x.dtype
    found = b.op(
        "ScatterND", permute(b, cast(b, x, inner), order), unsqueeze(b, places, 1),
        permute(b, cast(b, src, inner), order), reduction=reduction,
    )  # fmt: skip
    return cast(b, permute(b, found, back), x.dtype)


def _select_scatter(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, rank = b.value(call["self"]), rank_of(call["self"])
    axis = axis_of(call["dim"], rank)
    src = unsqueeze(b, operand(b, call["src"], x.dtype), axis)
    return scattered(b, x, src, ints(b, (call["index"],)), axis, rank)


FORMS: Forms = {
    "aten.view.default": _reshape("size"),
    "aten._unsafe_view.default": _reshape("size"),
    "aten.reshape.default": _reshape("shape"),
    "aten.flatten.using_ints": _reshape(""),
    "aten.unflatten.int": _reshape(""),
    "aten.view_as.default": _reshape_as,
    "aten.reshape_as.default": _reshape_as,
    "aten.expand.default": _expand,
    "aten.expand_as.default": _expand_as,
    "aten.broadcast_to.default": _expand,
    "aten.unsqueeze.default": _unsqueeze,
    **{f"aten.squeeze.{form}": _squeeze for form in ("default", "dim", "dims")},
    "aten.transpose.int": _transpose("dim0", "dim1"),
    "aten.swapaxes.default": _transpose("axis0", "axis1"),
    "aten.swapdims.default": _transpose("dim0", "dim1"),
    "aten.permute.default": _permute,
    "aten.t.default": _reversed(2),
    "aten.mT.default": _reversed(2),
    "aten.numpy_T.default": _reversed(0),
    **{f"aten.{name}.{form}": _movedim for name in ("movedim", "moveaxis") for form in ("int", "intlist")},
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.narrow.default": _narrow,
    **{f"aten.{name}": _parts for name in ("split.Tensor", "split_with_sizes.default", "split.sizes", "chunk.default")},
    "aten.unbind.int": _unbind,
    "aten.diagonal.default": _diagonal,
    "aten.unfold.default": _unfold,
    "aten.as_strided.default": _as_strided,
    "aten.flip.default": _flip,
    "aten.roll.default": _roll,
    "aten.repeat.default": _repeat("repeats"),
    "aten.tile.default": _repeat("dims"),
    "aten.repeat_interleave.self_int": _repeat_interleave,
    "aten.repeat_interleave.self_Tensor": _repeat_by_tensor,
    "aten.repeat_interleave.Tensor": _repeat_numbers,
    **{f"aten.{name}.default": _cat for name in ("cat", "concat", "concatenate")},
    "aten.stack.default": _stack,
    **{f"aten.{name}.default": _pad for name in ("constant_pad_nd", "pad")},
    "aten.tril.default": _triangle(0),
    "aten.triu.default": _triangle(1),
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
}
