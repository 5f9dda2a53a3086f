"""Selecting by data: where a mask holds, what stands at indices, what is put or added there.

    nonzero(m)       the places of the flat mask, as many as it has elements, 0 behind what counts; how many
    x[m], x[i]       gathered at these
    x[m] = v         where(m, v gathered at how many were set before, x)
    x.index_add(i)   with what changes nothing in the rows that do not count

Invariant: an index that does not count is 0, so that no kernel refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from smelt.codegen.lower.unknown.values import (
    Count,
    Emitter,
    Held,
    Padded,
    Parts,
    Refused,
    padded_or_value,
    same_count,
    size_of,
    type_of,
)
from smelt.ir import Arg, Node, Value
from smelt.ops.catalogue.indexing import BY_INDEX

if TYPE_CHECKING:
    from smelt.codegen.lower.unknown.rewriting import Rewriting

Call: TypeAlias = Mapping[str, Arg]
Rule: TypeAlias = "Callable[[Rewriting, Node, Call], Sequence[Held]]"
Tensor: TypeAlias = "Padded | Value"


def tensor_of(r: Rewriting, arg: Arg) -> Tensor:
    """What stands for a tensor. Raises: Refused for anything else, and for tensors of unknown size."""
    held = r.get(arg)
    if isinstance(held, Padded):
        return held
    if not isinstance(held, Value):
        raise Refused("it is no tensor")
    type_of(held)
    return held


def whole_of(tensor: Tensor) -> Value:
    """The tensor with all that does not count."""
    return tensor.tensor if isinstance(tensor, Padded) else tensor


def counts_of(tensor: Tensor) -> tuple[Count | None, ...]:
    """The counts of all dimensions."""
    return tensor.counts if isinstance(tensor, Padded) else (None,) * len(type_of(tensor).sizes)


def sizes_of(tensor: Tensor) -> tuple[int, ...]:
    """The most that there can be in each dimension."""
    return type_of(whole_of(tensor)).sizes


def counting(r: Rewriting, tensor: Tensor) -> Value | None:
    """A mask of what counts, to be broadcast over the tensor; None where all does."""
    emit, found = r.emit, None
    sizes = sizes_of(tensor)
    for dim, count in enumerate(counts_of(tensor)):
        if count is not None:
            index = emit("aten.arange.default", sizes[dim])
            behind = len(sizes) - dim - 1
            if behind:
                index = emit("aten.view.default", index, (sizes[dim], *([1] * behind)))
            one = emit("aten.lt.Scalar", index, count)
            found = one if found is None else emit("aten.bitwise_and.Tensor", found, one)
    return found


def masked(r: Rewriting, tensor: Tensor, other: float | bool) -> Value:
    """The tensor with a number in all places that do not count."""
    here, whole = counting(r, tensor), whole_of(tensor)
    if here is None:
        return whole
    if type_of(whole).dtype.kind == "bool" and other is False:
        return r.emit("aten.bitwise_and.Tensor", whole, here)
    return r.emit("aten.where.ScalarOther", here, whole, other)


# --- where a mask holds


def _places(r: Rewriting, tensor: Tensor) -> tuple[Value, Count]:
    """Where the elements that are not 0 stand in the flat tensor, and how many there are."""
    whole = whole_of(tensor)
    if type_of(whole).dtype.kind != "bool":
        whole = r.emit("aten.ne.Scalar", whole, 0)
        tensor = padded_or_value(whole, counts_of(tensor))
    total = type_of(whole).numel
    if total < 1:
        raise Refused("it is empty")
    emit = r.emit
    flat = masked(r, tensor, False)
    if len(type_of(flat).sizes) != 1:
        flat = emit("aten.reshape.default", flat, (total,))
    found = emit("aten.nonzero_static.default", flat, size=total, fill_value=0)
    count = emit("aten.item.default", emit("aten.sum.default", flat))
    r.bounds[count] = total
    counts = counts_of(tensor)
    if len(counts) == 1 and isinstance(counts[0], Value):
        r.facts.below[count] = (counts[0], 0)
    return emit("aten.view.default", found, (total,)), count


def columns(r: Rewriting, tensor: Tensor) -> list[Padded]:
    """The indices of the elements that are not 0, one tensor for each dimension."""
    places, count = _places(r, tensor)
    sizes, emit = sizes_of(tensor), r.emit
    found, step = list[Padded](), 1
    for dim in reversed(range(len(sizes))):
        index = places
        if step != 1:
            index = emit("aten.div.Tensor_mode", index, step, rounding_mode="floor")
        if dim:
            index = emit("aten.remainder.Scalar", index, sizes[dim])
        found.append(Padded(index, (count,), size_of(tensor, dim)))
        step *= sizes[dim]
    return found[::-1]


def columns_of_positions(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    tensor = tensor_of(r, node.args[0])
    if not sizes_of(tensor):
        raise Refused("of a number")
    return [Parts(tuple(columns(r, tensor)))]


def positions(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    tensor = tensor_of(r, node.args[0])
    if not sizes_of(tensor):
        raise Refused("of a number")
    found = columns(r, tensor)
    rows = r.emit("aten.stack.default", tuple(column.tensor for column in found), 1)
    return [Padded(rows, (found[0].counts[0], None))]


def selected_by_mask(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    tensor, mask = tensor_of(r, node.args[0]), tensor_of(r, node.args[1])
    sizes, others = sizes_of(tensor), sizes_of(mask)
    if sizes != others or counts_of(tensor) != counts_of(mask) or not sizes:
        raise Refused("of another shape")
    places, count = _places(r, mask)
    flat = r.emit("aten.reshape.default", whole_of(tensor), (type_of(whole_of(tensor)).numel,))
    return [Padded(r.emit("aten.index.Tensor", flat, (places,)), (count,))]


# --- what stands at indices


def _clean(r: Rewriting, index: Tensor) -> Value:
    """Indices that are 0 where nothing counts."""
    if isinstance(index, Padded) and index.below is None:
        return masked(r, index, 0)
    return whole_of(index)


def _indices(r: Rewriting, tensor: Tensor, given: Arg) -> list[Tensor | None]:
    """The indices, masks as the columns of where they hold. Raises: Refused where one may be out of what counts."""
    if not isinstance(given, tuple):
        raise Refused("a list")
    found: list[Tensor | None] = []
    for arg in given:
        if arg is None:
            found.append(None)
            continue
        index = tensor_of(r, arg)
        kind = type_of(whole_of(index)).dtype
        if kind.kind == "uint":
            raise Refused("a mask of bytes")
        if kind.kind != "bool":
            found.append(index)
            continue
        first = len(found)
        for dim in range(len(sizes_of(index))):
            at = first + dim
            if at >= len(sizes_of(tensor)) or sizes_of(index)[dim] != sizes_of(tensor)[at]:
                raise Refused("a mask of another shape")
            if not same_count(size_of(index, dim), size_of(tensor, at)):
                raise Refused("a mask of another size")
        if not sizes_of(index):
            raise Refused("a mask of one element")
        found.extend(columns(r, index))
    for count, one in zip(counts_of(tensor), found, strict=False):
        if one is not None and count is not None:
            below = one.below if isinstance(one, Padded) else None
            if below is None or not same_count(below, count):
                raise Refused("an index that may be out of what counts")
    return found


def index_by_tensors(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    tensor = tensor_of(r, call["self"])
    indices = _indices(r, tensor, call["indices"])
    used = [i for i in indices if i is not None]
    rank = max((len(sizes_of(i)) for i in used), default=0)
    counts = together(used, rank)
    made = r.emit("aten.index.Tensor", whole_of(tensor), tuple(None if i is None else _clean(r, i) for i in indices))
    where = [dim for dim, i in enumerate(indices) if i is not None]
    rest = list(counts_of(tensor))
    kept = [count for dim, count in enumerate(rest) if dim not in where]
    is_one_block = where == list(range(where[0], where[-1] + 1))
    first = where[0] if is_one_block else 0
    return [padded_or_value(made, (*kept[:first], *counts, *kept[first:]))]


def together(tensors: Sequence[Tensor], rank: int) -> list[Count | None]:
    """The counts of tensors that are broadcast together. Raises: Refused where they may differ."""
    counts: list[Count | None] = [None] * rank
    for tensor in tensors:
        for dim, count in enumerate(reversed(counts_of(tensor)), 1):
            known = counts[-dim]
            if count is not None and known is not None and not same_count(known, count):
                raise Refused("sizes that may differ")
            counts[-dim] = known if count is None else count
    for tensor in tensors:
        for dim, (size, count) in enumerate(
            zip(reversed(sizes_of(tensor)), reversed(counts_of(tensor)), strict=True), 1
        ):
            if counts[-dim] is not None and count is None and size != 1:
                raise Refused("a size that may be another")
    return counts


def pick(emit: Emitter, tensor: Value, dim: int, index: Value) -> Value:
    """Slices of a tensor along a dimension, by their positions."""
    return emit(BY_INDEX, tensor, dim, index)


def select_by_index(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    tensor, index, dim = tensor_of(r, call["self"]), tensor_of(r, call["index"]), call["dim"]
    if type(dim) is not int or len(sizes_of(index)) != 1 or not sizes_of(tensor):
        raise Refused("of another shape")
    at = dim % len(sizes_of(tensor))
    counts = list(counts_of(tensor))
    if counts[at] is not None:
        _indices(r, tensor, (*([None] * at), call["index"]))
    made = pick(r.emit, whole_of(tensor), dim, _clean(r, index))
    counts[at] = counts_of(index)[0]
    return [padded_or_value(made, counts)]


def rows_of_table(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    weight, index = tensor_of(r, call["weight"]), tensor_of(r, call["indices"])
    if isinstance(weight, Padded) or len(node.args) > 2 or node.kwargs:
        raise Refused("a table of unknown length, or one that is written to")
    made = r.emit("aten.embedding.default", weight, _clean(r, index))
    return [padded_or_value(made, (*counts_of(index), None))]


# --- what is put there


def index_written(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    tensor, given = tensor_of(r, call["self"]), call["indices"]
    values = tensor_of(r, call["values"])
    if call.get("accumulate", False) is not False or not isinstance(given, tuple) or not given:
        raise Refused("sums")
    mask = tensor_of(r, given[0])
    if len(given) != 1 or type_of(whole_of(mask)).dtype.kind != "bool" or not sizes_of(mask):
        raise Refused("indices")
    if type_of(whole_of(values)).dtype is not type_of(whole_of(tensor)).dtype:
        raise Refused("values of another type")
    _indices(r, tensor, given)
    emit, depth = r.emit, len(sizes_of(mask))
    rest = sizes_of(tensor)[depth:]
    if any(count is not None for count in counts_of(tensor)[depth:]):
        raise Refused("rows of unknown size")
    where = whole_of(mask)
    if isinstance(values, Padded):
        _, count = _places(r, mask)
        if sizes_of(values)[1:] != rest or not same_count(size_of(values, 0), count) or any(values.counts[1:]):
            raise Refused("values of another shape")
        flat = emit("aten.reshape.default", masked(r, mask, False), (type_of(where).numel,))
        before = emit("aten.sub.Tensor", emit("aten.cumsum.default", flat, 0), 1)
        rank = emit("aten.reshape.default", emit("aten.clamp.default", before, 0), sizes_of(mask))
        source = emit("aten.index.Tensor", values.tensor, (rank,))
    else:
        sizes = sizes_of(values)
        if len(sizes) > len(rest) and sizes[0] != 1:
            raise Refused("values of another shape")
        source = whole_of(values)
        if len(sizes) > len(rest):
            if len(sizes) != len(rest) + 1:
                raise Refused("values of another shape")
            source = emit("aten.reshape.default", source, sizes[1:])
    if rest:
        where = emit("aten.reshape.default", where, (*sizes_of(mask), *([1] * len(rest))))
    made = emit("aten.where.self", where, source, whole_of(tensor))
    if type_of(made).sizes != sizes_of(tensor):
        raise Refused("values of another shape")
    return [padded_or_value(made, counts_of(tensor))]


def index_added(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    tensor, dim, alpha = tensor_of(r, call["self"]), call["dim"], call.get("alpha", 1)
    index, source = tensor_of(r, call["index"]), tensor_of(r, call["source"])
    if isinstance(tensor, Padded) or type(dim) is not int or type(alpha) not in (int, float) or alpha != 1:
        raise Refused("into a tensor of unknown size")
    at = dim % max(len(sizes_of(tensor)), 1)
    if len(sizes_of(index)) != 1 or len(sizes_of(source)) != len(sizes_of(tensor)):
        raise Refused("of another shape")
    if not same_count(size_of(source, at), size_of(index, 0)) or sizes_of(source)[at] != sizes_of(index)[0]:
        raise Refused("sizes that may differ")
    if any(count is not None for d, count in enumerate(counts_of(source)) if d != at):
        raise Refused("rows of unknown size")
    kind = type_of(tensor).dtype.kind
    if kind not in ("float", "int"):
        raise Refused(f"sums of {kind}")
    # -0.0 changes no number, not even -0.0.
    nothing = masked(r, source, -0.0 if kind == "float" else 0)
    return [r.emit("aten.index_add.default", tensor, dim, _clean(r, index), nothing)]
