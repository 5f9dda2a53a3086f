"""Tensors split by numbers of data, and joined again along a dimension of which some counts.

    a, b = x.split([n, m])      ==>     expect(n + m == 8);  a = x[arange(8) + 0], n;  b = x[arange(8) + n], m
    torch.cat((a, b))           ==>     where(arange(8) >= n, b[arange(8) - n], a), n + m

Invariant: indices are clamped to what there is; a split that torch refuses is refused, by an expectation that fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from smelt.codegen.lower.unknown.padded_views import dim_of
from smelt.codegen.lower.unknown.selecting import counts_of, pick, sizes_of, tensor_of, whole_of
from smelt.codegen.lower.unknown.values import (
    Count,
    Held,
    Padded,
    Parts,
    Refused,
    counted_alike,
    padded_or_value,
    size_of,
    type_of,
)
from smelt.ir import INT, Arg, Node, Value

if TYPE_CHECKING:
    from smelt.codegen.lower.unknown.rewriting import Rewriting

Call: TypeAlias = Mapping[str, Arg]


def split(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    """Each part as long as the whole, its rows gathered from where it begins."""
    tensor, given, dim = tensor_of(r, call["self"]), call["split_sizes"], call.get("dim", 0)
    sizes = sizes_of(tensor)
    if not isinstance(given, tuple):
        raise Refused("a list")
    dim = dim_of(dim, len(sizes))
    most, total = sizes[dim], size_of(tensor, dim)
    counts = [_count(r.get(size)) for size in given]
    if most < 1 or not any(isinstance(count, Value) for count in counts):
        raise Refused("sizes that are known")
    if any(r.sharing.may_leave(part) for user in node.result.users for part in _parts_of(user)):
        raise Refused("memory that is seen outside")
    emit, parts = r.emit, list[Held]()
    at: Count = 0
    for count in counts:
        rows = count if isinstance(count, int) else most
        if isinstance(count, Value):
            r.expect(emit("py.ge", count, 0))
        index = emit("aten.clamp.default", _moved(r, rows, "add", at), 0, most - 1)
        made = pick(emit, whole_of(tensor), dim, index)
        held = list(counts_of(tensor))
        held[dim] = count if isinstance(count, Value) else None
        parts.append(padded_or_value(made, held))
        at = emit.number("add", at, count)
    r.expect(emit("py.eq", at, total))
    r.facts.totals[tuple(counts)] = total, most
    for part in parts:
        r.note_bounds(part)
    return [Parts(tuple(parts))]


def join_along(r: Rewriting, held: Sequence[Padded | Value], dim: int) -> Sequence[Held]:
    """What counts of each, one behind the other."""
    first = held[0]
    for one in held:
        dims = enumerate(zip(sizes_of(one), sizes_of(first), counts_of(one), counts_of(first), strict=True))
        if type_of(whole_of(one)).dtype is not type_of(whole_of(first)).dtype:
            raise Refused("tensors of several types")
        if any(at != dim and (a != b or not counted_alike(c, d)) for at, (a, b, c, d) in dims):
            raise Refused("sizes that may differ")
    counts = [size_of(one, dim) for one in held]
    emit, known = r.emit, r.facts.totals.get(tuple(counts))
    most = sum(sizes_of(one)[dim] for one in held) if known is None else known[1]
    if any(sizes_of(one)[dim] < 1 for one in held):
        raise Refused("there is nothing")
    behind = [1] * (len(sizes_of(first)) - dim - 1)
    made: Value | None = None
    begin: Count = 0
    for one, count in zip(held, counts, strict=True):
        index = emit("aten.clamp.default", _moved(r, most, "sub", begin), 0, sizes_of(one)[dim] - 1)
        part = pick(emit, whole_of(one), dim, index)
        if made is None:
            made = part
        else:
            here = emit("aten.ge.Scalar", emit("aten.arange.default", most), begin)
            made = emit("aten.where.self", emit("aten.view.default", here, (most, *behind)), part, made)
        begin = emit.number("add", begin, count)
    assert made is not None
    total = begin if known is None else known[0]
    found = list(counts_of(first))
    found[dim] = total if isinstance(total, Value) else None
    return [padded_or_value(made, found)]


def _count(given: Held) -> Count:
    if isinstance(given, Value) and given.type == INT:
        return given
    if type(given) is int and given > 0:
        return given
    raise Refused("a size that is no number")


def _parts_of(user: object) -> Sequence[Value]:
    if not isinstance(user, Node) or user.op != "unpack":
        raise Refused("a list that something else takes")
    return user.results


def _moved(r: Rewriting, most: int, op: str, by: Count) -> Value:
    """The first numbers, moved."""
    index = r.emit("aten.arange.default", most)
    return index if by == 0 and not isinstance(by, Value) else r.emit(f"aten.{op}.Scalar", index, by)
