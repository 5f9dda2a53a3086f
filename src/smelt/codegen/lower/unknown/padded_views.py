"""Views of padded tensors: cuts change a count, the others carry counts along."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from smelt.codegen.lower.unknown.selecting import Tensor, counts_of, pick, sizes_of, tensor_of, whole_of
from smelt.codegen.lower.unknown.values import (
    Count,
    Held,
    Padded,
    Refused,
    counted_alike,
    padded_or_value,
    same_count,
    size_of,
    type_of,
)
from smelt.ir import INT, Arg, Node, TensorType, Value
from smelt.ir.sizes import size_min

if TYPE_CHECKING:
    from smelt.codegen.lower.unknown.rewriting import Rewriting

Call: TypeAlias = Mapping[str, Arg]
Rule: TypeAlias = "Callable[[Rewriting, Node, Call], Sequence[Held]]"

_END = 2**63 - 1


def dim_of(given: Arg, rank: int) -> int:
    """A dimension as a number from 0 on. Raises: Refused."""
    if type(given) is not int or not -rank <= given < rank:
        raise Refused("a dimension that is not there")
    return given % rank


def select(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    tensor, index = tensor_of(r, call["self"]), r.get(call["index"])
    rank = len(sizes_of(tensor))
    dim = dim_of(call["dim"], rank)
    counts = list(counts_of(tensor))
    count = counts.pop(dim)
    if count is not None:
        least = r.facts.at_least(count)
        if type(index) is not int or not -least <= index < least:
            raise Refused("an element that may not be there")
        if index < 0:
            index = r.emit.number("sub", count, -index)
    assert isinstance(index, (int, Value))
    return [padded_or_value(r.emit("aten.select.int", whole_of(tensor), dim, index), counts)]


def slice_of(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    tensor = tensor_of(r, call["self"])
    sizes, counts = sizes_of(tensor), list(counts_of(tensor))
    dim = dim_of(call.get("dim", 0), len(sizes))
    start, end = r.get(call.get("start")), r.get(call.get("end"))
    start = 0 if start is None else start
    if call.get("step", 1) != 1 or not _is_place(start):
        raise Refused("a slice whose start is not known")
    if end is not None and not _is_place(end):
        raise Refused("a slice without an end")
    assert isinstance(start, (int, Value)) and (end is None or isinstance(end, (int, Value)))
    if isinstance(start, Value):
        return _slice_from(r, node, tensor, dim, start, end)
    if start < 0:
        raise Refused("a slice whose start counts from the end")
    most, count = sizes[dim], counts[dim]
    is_open = end is None or (isinstance(end, int) and end >= most)
    if count is None and not isinstance(end, Value):
        made = r.emit("aten.slice.Tensor", whole_of(tensor), dim, start, _END if end is None else end)
        return [padded_or_value(made, counts)]
    if isinstance(end, int) and end < 0:
        return _slice_from_end(r, tensor, dim, start, -end)
    until = size_min(end, most) if isinstance(end, int) else most
    if most < 1:
        raise Refused("there is nothing")
    _, left = between(r, start, None if is_open else end, most if count is None else count)
    if start and is_open and isinstance(count, Value) and isinstance(left, Value):
        r.facts.below[left] = (count, start)
        r.facts.least[left] = max(r.facts.at_least(count) - start, 0)
    made = whole_of(tensor)
    if until - start < 1:
        # Nothing is left; what stands for it is not empty.
        made = r.emit("aten.slice.Tensor", made, dim, 0, 1)
    elif start or until != most:
        made = r.emit("aten.slice.Tensor", made, dim, start, until)
    counts[dim] = left
    return [padded_or_value(made, counts)]


def _slice_from_end(r: Rewriting, tensor: Tensor, dim: int, start: int, less: int) -> Sequence[Held]:
    """A cut that leaves out so many at the end."""
    counts, number = list(counts_of(tensor)), r.emit.number
    count = counts[dim]
    if start or not isinstance(count, Value):
        raise Refused("a slice from the end")
    counts[dim] = left = number("max", number("sub", count, less), 0)
    assert isinstance(left, Value)
    r.facts.below[left] = (count, less)
    r.facts.least[left] = max(r.facts.at_least(count) - less, 0)
    return [padded_or_value(whole_of(tensor), counts)]


def _is_place(given: Held) -> bool:
    return type(given) is int or (isinstance(given, Value) and given.type == INT)


def _slice_from(
    r: Rewriting, node: Node, tensor: Padded | Value, dim: int, start: Value, end: Count | None
) -> Sequence[Held]:
    """A cut that begins at a number: its rows are gathered, so nobody may see that it was to be the same memory."""
    if r.sharing.may_leave(node.result):
        raise Refused("memory that is seen outside")
    if isinstance(end, int) and end < 0:
        raise Refused("a slice from the end")
    sizes, counts = sizes_of(tensor), list(counts_of(tensor))
    most, count = sizes[dim], counts[dim]
    if most < 1:
        raise Refused("there is nothing")
    first, left = between(r, start, end, most if count is None else count)
    emit = r.emit
    index = emit("aten.add.Scalar", emit("aten.arange.default", most), first)
    made = pick(emit, whole_of(tensor), dim, emit("aten.clamp.default", index, 0, most - 1))
    counts[dim] = left
    return [padded_or_value(made, counts)]


def between(r: Rewriting, start: Count, end: Count | None, size: Count) -> tuple[Count, Count]:
    """Where a cut of a dimension begins, and how much of it is left; end None: all the rest."""
    number = r.emit.number
    left = size if end is None else number("min", size, _counted_end(r, end, size))
    if isinstance(start, Value):
        start = number("min", _counted_end(r, start, size), size)
    elif start == 0:
        return 0, left
    return start, number("max", number("sub", left, start), 0)


def slice_scattered(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    """The rows of a cut put where they were cut from, by a choice for each row."""
    tensor, source = tensor_of(r, call["self"]), tensor_of(r, call["src"])
    sizes, counts = sizes_of(tensor), counts_of(tensor)
    dim = dim_of(call.get("dim", 0), len(sizes))
    start, end = r.get(call.get("start")), r.get(call.get("end"))
    start = 0 if start is None else start
    if call.get("step", 1) != 1 or not _is_place(start) or not (end is None or _is_place(end)):
        raise Refused("a slice elsewhere in memory")
    assert isinstance(start, (int, Value)) and (end is None or isinstance(end, (int, Value)))
    if any(isinstance(place, int) and place < 0 for place in (start, end)):
        raise Refused("a slice from the end")
    most, rows = sizes[dim], sizes_of(source)[dim] if len(sizes_of(source)) == len(sizes) else 0
    if most < 1 or rows < 1 or type_of(whole_of(source)).dtype is not type_of(whole_of(tensor)).dtype:
        raise Refused("another tensor")
    for at, (size, count) in enumerate(zip(sizes_of(source), counts_of(source), strict=True)):
        if at != dim and (size != sizes[at] or not counted_alike(count, counts[at])):
            raise Refused("rows of another size")
    whole = counts[dim]
    first, left = between(r, start, end, most if whole is None else whole)
    if not same_count(size_of(source, dim), left):
        raise Refused("a size that may be another")
    emit, index, part = r.emit, r.emit("aten.arange.default", most), whole_of(source)
    here = emit("aten.lt.Scalar", index, emit.number("add", first, left))
    if isinstance(first, Value) or first != 0:
        here = emit("aten.bitwise_and.Tensor", here, emit("aten.ge.Scalar", index, first))
    if isinstance(first, Value) or first != 0 or rows != most:
        back = emit("aten.clamp.default", emit("aten.sub.Scalar", index, first), 0, rows - 1)
        part = pick(emit, part, dim, back)
    behind = len(sizes) - dim - 1
    if behind:
        here = emit("aten.view.default", here, (most, *([1] * behind)))
    made = emit("aten.where.self", here, part, whole_of(tensor))
    kind = node.result.type
    if not isinstance(kind, TensorType) or (kind.is_static and kind.steps != type_of(made).steps):
        raise Refused("it has another memory layout")
    return [padded_or_value(made, counts)]


def _counted_end(r: Rewriting, end: Count, size: Count) -> Count:
    """Where a cut ends that may be told from the end: never less than 0."""
    if not isinstance(end, Value):
        return end
    number = r.emit.number
    is_negative = r.emit("py.lt", end, 0)
    wrapped = number("add", end, r.emit("py.mul", is_negative, size))
    return number("max", wrapped, 0)


def view(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    """Only the first dimension is counted, and stays as it is."""
    tensor, size = tensor_of(r, call["self"]), call.get("size", call.get("shape"))
    counts, sizes = counts_of(tensor), sizes_of(tensor)
    if (
        not isinstance(size, tuple)
        or not size
        or not counts
        or counts[0] is None
        or any(c is not None for c in counts[1:])
    ):
        raise Refused("a size in the middle")
    first, *rest = (r.get(s) for s in size)
    if any(type(n) is not int for n in rest):
        raise Refused("a size that is no number")
    known = [n for n in rest if isinstance(n, int)]
    row = 1
    for n in sizes[1:]:
        row *= n
    is_open = first == -1 and type(first) is int
    if not is_open and not (isinstance(first, Value) and same_count(first, counts[0])):
        raise Refused("a size that may be another")
    if -1 in known:
        others = 1
        for n in known:
            others *= n if n != -1 else 1
        if is_open or known.count(-1) > 1 or others < 1 or row % others:
            raise Refused("sizes that do not fit")
        known = [row // others if n == -1 else n for n in known]
    total = 1
    for n in known:
        total *= n
    if total != row or row < 1:
        raise Refused("sizes that do not fit")
    made = r.emit("aten.reshape.default", whole_of(tensor), (sizes[0], *known))
    return [Padded(made, (counts[0], *([None] * len(known))))]


def flatten(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    tensor = tensor_of(r, call["self"])
    counts = counts_of(tensor)
    first, last = dim_of(call.get("start_dim", 0), len(counts)), dim_of(call.get("end_dim", -1), len(counts))
    if any(c is not None for c in counts[first : last + 1]):
        raise Refused("a size in the middle")
    made = r.emit("aten.flatten.using_ints", whole_of(tensor), first, last)
    kept = (*counts[:first], None, *counts[last + 1 :])
    return [padded_or_value(made, kept if last > first else counts)]


def expand(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    tensor, size = tensor_of(r, call["self"]), call["size"]
    counts, sizes = counts_of(tensor), sizes_of(tensor)
    if not isinstance(size, tuple) or len(size) < len(sizes):
        raise Refused("sizes that are no numbers")
    wanted = [r.get(s) for s in size]
    new, found = list[int](), list[Count | None]()
    ahead = len(wanted) - len(sizes)
    for at, want in enumerate(wanted):
        known, count = (1, None) if at < ahead else (sizes[at - ahead], counts[at - ahead])
        if count is not None:
            if not (want == -1 and type(want) is int) and not (isinstance(want, Value) and same_count(want, count)):
                raise Refused("a size that may be another")
            new.append(known)
            found.append(count)
        elif isinstance(want, Value):
            if known != 1 or want not in r.bounds:
                raise Refused("a number that is no count")
            new.append(r.bounds[want])
            found.append(want)
        elif isinstance(want, int):
            new.append(known if type(want) is int and want == -1 else want)
            found.append(None)
        else:
            raise Refused("a size that is no number")
    made = r.emit("aten.expand.default", whole_of(tensor), tuple(new))
    type_of(made)
    return [padded_or_value(made, found)]
