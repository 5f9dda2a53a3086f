"""Elements by indices in ONNX: gathers, scatters, masks."""

from __future__ import annotations

from typing import Any

from smelt.ir import DType, TensorType, Value
from smelt.ops.catalogue.onnx.base import (
    LAST,
    Forms,
    axis_of,
    cast,
    compared,
    dtype_of,
    operand,
    permute,
    promoted,
    rank_of,
    reshape,
    sizes_of,
    sliced,
    unsqueeze,
    where,
)
from smelt.ops.catalogue.onnx.views import scattered
from smelt.ops.record import Call, NoOnnxForm, OnnxEmitter, OnnxForm, OnnxValue, Types, tensor_type


def _index_select(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return b.op("Gather", call["self"], call["index"], axis=axis_of(call["dim"], rank_of(call["self"])))


def _embedding(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return b.op("Gather", call["weight"], call["indices"], axis=0)


def _gather(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    if not rank_of(call["self"]):
        return b.value(call["self"])
    return b.op("GatherElements", call["self"], call["index"], axis=axis_of(call["dim"], rank_of(call["self"])))


_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def _scatter(reduction: str = "none") -> OnnxForm:
    """Elements into places; reduction "given": as the call says."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        how = reduction
        if how == "given":
            how = _REDUCTIONS.get(call["reduce"], "")
            if not how or not call["include_self"]:
                raise NoOnnxForm("ONNX has no such reduction for elements that share a position")
        x, index = b.value(call["self"]), call["index"]
        if not rank_of(call["self"]) or rank_of(index) != rank_of(call["self"]):
            raise NoOnnxForm("ONNX scatters into tensors with as many dimensions as the indices have")
        inner = DType.U8 if x.dtype is DType.BOOL and how == "none" else x.dtype
        if "src" in call:
            src = operand(b, call["src"], inner)
            if tensor_type(call["src"]).shape != tensor_type(index).shape:
                axes = list(range(rank_of(index)))
                zeros = b.constant([0] * len(axes), DType.I64)
                src = b.op("Slice", src, zeros, sizes_of(b, index), b.constant(axes, DType.I64))
        else:
            src = b.op("Expand", operand(b, call["value"], inner), sizes_of(b, index))
        axis = axis_of(call["dim"], rank_of(index))
        found = b.op("ScatterElements", cast(b, x, inner), index, src, axis=axis, reduction=how)
        return cast(b, found, x.dtype)

    return form


def _index_into(reduction: str) -> OnnxForm:
    """Rows into places along a dimension."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x, rank = b.value(call["self"]), rank_of(call["self"])
        source = operand(b, call["source"], x.dtype)
        if call.get("alpha", 1) != 1:
            source = b.op("Mul", source, operand(b, call["alpha"], x.dtype))
        if rank == 0:
            return b.op("Add", x, source) if reduction == "add" else source
        places = reshape(b, operand(b, call["index"], DType.I64), [-1])
        return scattered(b, x, source, places, axis_of(call["dim"], rank), rank, reduction)

    return form


def _index_fill(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, rank = b.value(call["self"]), rank_of(call["self"])
    axis = axis_of(call["dim"], rank)
    places = reshape(b, operand(b, call["index"], DType.I64), [-1])
    rows = b.op("Gather", x, places, axis=axis)
    filled = b.op("Expand", operand(b, call["value"], x.dtype), b.op("Shape", rows, dtype=DType.I64))
    return scattered(b, x, filled, places, axis, rank)


# --- indices in brackets


class _Brackets:
    """Which dimensions `x[i, :, mask]` takes by indices, and these, broadcast.

    front: the indexed dimensions first, then the others, which is the order that ONNX takes. at: where the dimensions
    of the indices stand in torch's result.
    """

    def __init__(self, b: OnnxEmitter, x: Value, given: Any) -> None:
        self.rank = rank_of(x)
        self.indices: list[OnnxValue] = []
        self.dims: list[int] = []
        self.index_rank = 0
        dim = 0
        for arg in given:
            if arg is None:
                dim += 1
                continue
            for index in _numbers(b, arg):
                self.indices.append(index)
                self.dims.append(dim)
                dim += 1
            is_mask = tensor_type(arg).dtype in (DType.BOOL, DType.U8)
            self.index_rank = max(self.index_rank, 1 if is_mask else rank_of(arg))
        others = [i for i in range(self.rank) if i not in self.dims]
        self.front = [*self.dims, *others]
        is_adjacent = self.dims == list(range(self.dims[0], self.dims[0] + len(self.dims)))
        self.at = self.dims[0] if is_adjacent else 0

    @property
    def shape(self) -> tuple[int, int]:
        """How many dimensions indices and others have."""
        return self.index_rank, self.rank - len(self.dims)

    def stacked(self, b: OnnxEmitter) -> OnnxValue:
        """All indices of a place side by side."""
        if len(self.indices) == 1:
            return unsqueeze(b, self.indices[0], self.index_rank)
        total = self.indices[0]
        for index in self.indices[1:]:
            total = b.op("Add", total, index)  # of the broadcast sizes
        sizes = b.op("Shape", total, dtype=DType.I64)
        spread = [unsqueeze(b, b.op("Expand", index, sizes), self.index_rank) for index in self.indices]
        return b.op("Concat", *spread, axis=self.index_rank)

    def to_torch(self) -> list[int]:
        """The order of dimensions from indices first to torch's."""
        n, rest = self.shape
        return [*range(n, n + self.at), *range(n), *range(n + self.at, n + rest)]

    def from_torch(self) -> list[int]:
        """The other way round."""
        order = self.to_torch()
        return [order.index(i) for i in range(len(order))]


def _numbers(b: OnnxEmitter, arg: Value) -> list[OnnxValue]:
    """An index as whole numbers: of a mask, those of its true elements in each dimension."""
    x = b.value(arg)
    if x.dtype not in (DType.BOOL, DType.U8):
        return [operand(b, arg, DType.I64)]
    places, rank = b.op("NonZero", cast(b, x, DType.BOOL), dtype=DType.I64), rank_of(arg)
    if rank == 1:
        return [reshape(b, places, [-1])]
    return [b.op("Gather", places, b.constant(i, DType.I64), axis=0) for i in range(rank)]


def _index(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    given = [arg for arg in call["indices"] if arg is not None]
    if len(given) == 1 and tensor_type(given[0]).dtype not in (DType.BOOL, DType.U8):
        return b.op("Gather", call["self"], given[0], axis=call["indices"].index(given[0]))
    if any(rank_of(arg) == 0 and tensor_type(arg).dtype is DType.BOOL for arg in given):
        raise NoOnnxForm("an index that is a bool without dimensions has no form")
    at = _Brackets(b, call["self"], call["indices"])
    found = b.op("GatherND", permute(b, call["self"], at.front), at.stacked(b))
    return permute(b, found, at.to_torch())


def _index_put(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, values, given = b.value(call["self"]), operand(b, call["values"], dtype_of(results)), call["indices"]
    whole = given[0] if len(given) == 1 and given[0] is not None else None
    is_mask = whole is not None and tensor_type(whole).dtype is DType.BOOL
    if is_mask and rank_of(call["values"]) == 0 and not call["accumulate"]:
        missing = range(rank_of(whole), rank_of(call["self"]))
        return where(b, unsqueeze(b, b.value(whole), *missing), values, x)
    if any(arg is not None and rank_of(arg) == 0 and tensor_type(arg).dtype is DType.BOOL for arg in given):
        raise NoOnnxForm("an index that is a bool without dimensions has no form")
    at = _Brackets(b, call["self"], given)
    inner = DType.U8 if x.dtype is DType.BOOL and not call["accumulate"] else x.dtype
    placed, turned = at.stacked(b), permute(b, cast(b, x, inner), at.front)
    lead = sliced(b, b.op("Shape", placed, dtype=DType.I64), 0, 0, -1)
    rest = sliced(b, b.op("Shape", turned, dtype=DType.I64), 0, len(at.dims), LAST)
    sizes = b.op("Concat", lead, rest, axis=0)
    if at.at:  # as torch has the dimensions of what is written
        order = at.to_torch()
        sizes = b.op("Gather", sizes, b.constant(order, DType.I64), axis=0)
    spread = permute(b, b.op("Expand", cast(b, values, inner), sizes), at.from_torch())
    found = b.op("ScatterND", turned, placed, spread, reduction="add" if call["accumulate"] else "none")
    back = [at.front.index(i) for i in range(at.rank)]
    return cast(b, permute(b, found, back), x.dtype)


def _nonzero(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    places = b.op("NonZero", operand(b, call["self"], DType.BOOL), dtype=DType.I64)
    return permute(b, places, [1, 0])


def _nonzero_apart(name: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> tuple[OnnxValue, ...]:
        places = b.op("NonZero", operand(b, call[name], DType.BOOL), dtype=DType.I64)
        return tuple(b.op("Gather", places, b.constant(i, DType.I64), axis=0) for i in range(rank_of(call[name])))

    return form


def _masked_select(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, mask = b.value(call["self"]), operand(b, call["mask"], DType.BOOL)
    if tensor_type(call["self"]).shape != tensor_type(call["mask"]).shape:
        mask = b.op("And", mask, b.op("Expand", b.constant(True, DType.BOOL), sizes_of(b, call["self"])))
        x = b.op("Expand", x, b.op("Shape", mask, dtype=DType.I64))
    return b.op("Compress", reshape(b, x, [-1]), reshape(b, mask, [-1]), axis=0)


def _masked_scatter(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    """The elements of a source one after the other into the places where a mask is true."""
    x, mask = b.value(call["self"]), operand(b, call["mask"], DType.BOOL)
    sizes = sizes_of(b, call["self"])
    mask = reshape(b, b.op("Expand", mask, sizes), [-1])
    places = permute(b, b.op("NonZero", mask, dtype=DType.I64), [1, 0])
    count = b.op("Shape", places, dtype=DType.I64, start=0, end=1)
    src = sliced(b, reshape(b, operand(b, call["source"], x.dtype), [-1]), 0, 0, count)
    return reshape(b, b.op("ScatterND", reshape(b, x, [-1]), places, src), sizes)


def _bucketize(numbers: str, boundaries: str) -> OnnxForm:
    """How many boundaries a number is behind; NaN is behind all."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        dtype = promoted(call[numbers], call[boundaries])
        if call.get("sorter") is not None or call.get("side") is not None or rank_of(call[boundaries]) != 1:
            raise NoOnnxForm("only sorted boundaries of one dimension have a form")
        limits = operand(b, call[boundaries], dtype)
        x = unsqueeze(b, operand(b, call[numbers], dtype), rank_of(call[numbers]))
        ahead = compared(b, "Greater" if call["right"] else "GreaterOrEqual", limits, x)
        count = b.op("ReduceSum", cast(b, b.op("Not", ahead), DType.I64), b.constant([-1], DType.I64), keepdims=0)
        return cast(b, count, dtype_of(results))

    return form


def _one_hot(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    kind = results[0]
    classes = kind.shape[-1] if isinstance(kind, TensorType) and kind.shape else None
    if not isinstance(classes, int):
        raise NoOnnxForm("how many classes there are follows from the data")
    values = b.constant([0, 1], DType.I64)
    return b.op("OneHot", call["self"], b.constant(classes, DType.I64), values, dtype=DType.I64, axis=-1)


FORMS: Forms = {
    "aten.index_select.default": _index_select,
    "aten.embedding.default": _embedding,
    "aten.gather.default": _gather,
    **{f"aten.scatter.{form}": _scatter() for form in ("src", "value")},
    "aten.scatter_add.default": _scatter("add"),
    "aten.scatter_reduce.two": _scatter("given"),
    "aten.index_add.default": _index_into("add"),
    "aten.index_copy.default": _index_into("none"),
    "aten.index_fill.int_Scalar": _index_fill,
    "aten.index.Tensor": _index,
    "aten.index_put.default": _index_put,
    "aten.nonzero.default": _nonzero,
    "aten.nonzero_numpy.default": _nonzero_apart("self"),
    "aten.where.default": _nonzero_apart("condition"),
    "aten.masked_select.default": _masked_select,
    "aten.masked_scatter.default": _masked_scatter,
    "aten.bucketize.Tensor": _bucketize("self", "boundaries"),
    "aten.searchsorted.Tensor": _bucketize("self", "sorted_sequence"),
    "aten.one_hot.default": _one_hot,
}
