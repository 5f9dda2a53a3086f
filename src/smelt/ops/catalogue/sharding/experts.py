"""Rows that are sorted by what they belong to: each rank sorts its own, and works on them in its own order.

    ids: S(0)
    %v, %n = aten.sort(ids)                     each rank's own rows, sorted: S(0) by %n
    %x = aten.index(rows, [%n])                 S(0) by %n
    %c = aten.histc(%v, ...)                    how many of each kind: a sum over ranks
    %y = aten._grouped_mm(%x, weights, ends)    by %n; `ends`, sums of %c, are those of the rank's own rows
    %m = aten.index_put(.., [%n], arange)       what undoes the sort
    aten.index(%y, [%m])                        S(0): as the rows came

Experts that are divided among ranks get their rows: sent from the ranks that have them, or taken of those that all have
(`ops.ranks.expert_rows`). What is computed of rows stays there; whatever needs them elsewhere has them sent back.

So a mixture of experts is computed where its tokens are, and tokens of a microbatch stay in it: which place a row has
among all tokens does not matter, as long as nothing but what belongs to rows is computed in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from smelt.ir import Arg, Node, TensorType, Value
from smelt.ops.catalogue.sharding.forming import Exchange, Form, Parting, call_of, device_of, divided
from smelt.ops.catalogue.sharding.reductions import OF_COUNTS, PICKS
from smelt.ops.catalogue.sharding.terms import sizes_of
from smelt.ops.ranks import collectives as dist
from smelt.ops.ranks.placements import WHOLE, Order, Partial, Placement, Rows, Shard
from smelt.ops.registry import as_call, schema_of

_Found = Sequence[tuple[Value, Placement]] | None


def _sort(part: Parting, node: Node) -> _Found:
    """One dimension's rows are sorted by each rank for itself."""
    call = call_of(node)
    given = call["self"]
    assert isinstance(given, Value)
    at = part.placement(given)
    if len(sizes_of(given)) != 1:
        return None
    order = node.results[-1].name
    if isinstance(at, Order) and at.per == 1 and call.get("descending") is not True:
        # What sorts a permutation undoes it; sorted, its numbers count up.
        found: Placement = Order(at.sizes, at.order, undoes=not at.undoes)
        made = _on(part, node, call, {"self": part.get(given, at)})
        if len(node.results) == 1:
            return [(made.result, found)]
        return [(_counting(part, node.results[0]), WHOLE), (made.results[-1], found)]
    shard = divided(part, given)
    if shard is None or shard.blocks != 1:
        return None
    made = _on(part, node, call, {"self": part.get(given, shard)})
    numbers = made.results[-1], Order(shard.sizes, order)
    return [numbers] if len(node.results) == 1 else [(made.results[0], Rows(0, shard.sizes, order)), numbers]


def _on(part: Parting, node: Node, call: Mapping[str, Arg], changes: Mapping[str, Arg]) -> Node:
    """A node's operator called with some other arguments."""
    schema = schema_of(node.op)
    assert schema is not None
    args, kwargs = as_call(schema, {**call, **changes})
    return part.emitter.node(node.op, args, kwargs)


def _counting(part: Parting, like: Value) -> Value:
    type_ = like.type
    assert isinstance(type_, TensorType)
    return part.emitter.call("aten.arange.default", type_.sizes[0], dtype=type_.dtype, device=device_of(type_))


def _divided_by(part: Parting, node: Node) -> _Found:
    """Of numbers of rows that repeat each of a tensor's: the numbers of that tensor's."""
    call = call_of(node)
    given, by = call["self"], call["other"]
    at = part.placement(given) if isinstance(given, Value) else WHOLE
    if not isinstance(given, Value) or not isinstance(at, Order) or at.undoes or type(by) is not int or by < 1:
        return None
    if call.get("rounding_mode", "floor") not in ("floor", "trunc") or any(n % (at.per * by) for n in at.sizes):
        return None
    made = part.emitter.call(node.op, part.get(given, at), by, **_mode(call))
    return [(made, Order(at.sizes, at.order, at.per * by))]


def _mode(call: Mapping[str, Arg]) -> dict[str, Arg]:
    return {"rounding_mode": call["rounding_mode"]} if "rounding_mode" in call else {}


def _index(part: Parting, node: Node) -> _Found:
    """Rows brought into the order of a sort, or back."""
    call = call_of(node)
    given, places = call["self"], call.get("indices", call.get("index"))
    if isinstance(places, tuple) and len(places) == 1:
        places = places[0]
    if not isinstance(given, Value) or not isinstance(places, Value) or call.get("dim", 0) != 0:
        return None
    at = part.placement(places)
    if not isinstance(at, Order):
        return None
    lies, made = _meant(part, given, at)
    if lies is None:
        return None
    rows, numbers = part.get(given, lies), part.get(places, at)
    own: dict[str, Arg] = {"indices": (numbers,)} if "indices" in call else {"index": numbers}
    return [(_on(part, node, call, {"self": rows, **own}).result, made)]


def _meant(part: Parting, given: Value, at: Order) -> tuple[Placement | None, Placement]:
    """How a tensor has to lie that numbers of rows are used for, and how what they find lies."""
    if at.undoes:
        lies = Rows(0, at.sizes, at.order)
        return (lies if part.placement(given) == lies else None), Shard(0, at.sizes)
    sizes = tuple(n // at.per for n in at.sizes)
    fits = sizes_of(given)[:1] == (sum(sizes),) and not isinstance(part.placement(given), Rows | Order)
    return (Shard(0, sizes) if fits else None), Rows(0, at.sizes, at.order)


def _put(part: Parting, node: Node) -> _Found:
    """Counting numbers put where a sort took rows from: what undoes it."""
    call = call_of(node)
    places, values, onto = call["indices"], call["values"], call["self"]
    if not isinstance(places, tuple) or len(places) != 1 or not isinstance(places[0], Value):
        return None
    at = part.placement(places[0])
    if not isinstance(at, Order) or at.per != 1 or at.undoes or not isinstance(onto, Value) or call["accumulate"]:
        return None
    if not _counts_up(values, sum(at.sizes)) or len(sizes_of(onto)) != 1 or sizes_of(onto)[0] != sum(at.sizes):
        return None
    type_ = onto.type
    assert isinstance(type_, TensorType)
    b, count = part.emitter, at.sizes[part.rank]
    device = device_of(type_)
    base = b.call("aten.zeros.default", (count,), dtype=type_.dtype, device=device)
    own = b.call("aten.arange.default", count, dtype=type_.dtype, device=device)
    made = b.call("aten.index_put.default", base, (part.get(places[0], at),), own)
    return [(made, Order(at.sizes, at.order, undoes=True))]


def _counts_up(value: Arg, count: int) -> bool:
    node = value.node if isinstance(value, Value) else None
    return node is not None and node.op == "aten.arange.default" and node.args[0] == count


def _empty(part: Parting, node: Node) -> _Found:
    """As large as numbers of rows are, whatever is in it."""
    given = node.args[0]
    if not isinstance(given, Value) or not isinstance(part.placement(given), Order):
        return None
    type_ = node.result.type
    assert isinstance(type_, TensorType)
    made = part.emitter.call("aten.zeros.default", type_.sizes, dtype=type_.dtype, device=device_of(type_))
    return [(made, WHOLE)]


def _add_rows(part: Parting, node: Node) -> _Found:
    """Sorted rows added to those that their numbers mean."""
    call = call_of(node)
    onto, places, rows = call["self"], call["index"], call["source"]
    assert isinstance(onto, Value) and isinstance(places, Value) and isinstance(rows, Value)
    at = part.placement(places)
    if not isinstance(at, Order) or at.undoes or call["dim"] not in (0, -len(sizes_of(onto))):
        return None
    lies, wanted = _meant(part, onto, at)
    if lies is None or part.placement(rows) != wanted:
        return None
    own = {"self": part.get(onto, lies), "index": part.get(places, at), "source": part.get(rows, wanted)}
    return [(_on(part, node, call, own).result, lies)]


def _of_counts(part: Parting, node: Node) -> _Found:
    """What is computed of counts of rows, each a whole number: of each rank's counts, those of all are the sum."""
    given = node.args[0]
    if not isinstance(given, Value) or part.placement(given) != Partial() or _counted_rows(given) is None:
        return None
    own = part.get(given, Partial())
    return [(part.emitter.node(node.op, (own, *node.args[1:]), node.kwargs).result, Partial())]


_COUNTS = ("aten.histc.default", "aten.bincount.default")
_FROM_COUNTS = (*OF_COUNTS, "aten.unsqueeze.default", dist.ALL_GATHER, dist.OWN_ENDS)


def _counted_rows(value: Value) -> Value | None:
    """The rows that counts, or what is computed of them, are of."""
    node = value.node
    while node is not None and node.op in _FROM_COUNTS:
        source = node.args[0]
        node = source.node if isinstance(source, Value) else None
    rows = node.args[0] if node is not None and node.op in _COUNTS else None
    return rows if isinstance(rows, Value) else None


def _are_counts_of(part: Parting, ends: Arg, rows: Rows) -> bool:
    """Whether numbers are where rows in this order end."""
    counted = _counted_rows(ends) if isinstance(ends, Value) else None
    at = part.placement(counted) if counted is not None else WHOLE
    return isinstance(at, Rows) and at.order == rows.order and not at.spare


def _grouped(part: Parting, node: Node) -> _Found:
    """Products of sorted rows, each with the weights of what it belongs to."""
    call = call_of(node)
    rows, weights, ends = call["self"], call["mat2"], call.get("offs")
    if not isinstance(rows, Value) or not isinstance(weights, Value) or not isinstance(ends, Value):
        return None
    if len(sizes_of(rows)) != 2 or len(sizes_of(weights)) != 3:
        return None
    at, experts = part.placement(rows), divided(part, weights)
    if experts is not None and experts.dim == 0 and experts.blocks == 1:
        return _of_own_experts(part, node, call, experts)
    if not isinstance(at, Rows) or at.dim != 0 or at in part.exchanges or not _are_counts_of(part, ends, at):
        return None
    given = {
        "self": part.get(rows, at), "mat2": part.get(weights, WHOLE, entered=True), "offs": part.get(ends, Partial()),
    }  # fmt: skip
    return [(_on(part, node, call, given).result, at)]


def _of_own_experts(part: Parting, node: Node, call: Mapping[str, Arg], experts: Shard) -> _Found:
    """Each rank has some of the experts, and computes their rows."""
    rows, weights, ends = call["self"], call["mat2"], call["offs"]
    assert isinstance(rows, Value) and isinstance(weights, Value) and isinstance(ends, Value)
    at = part.placement(rows)
    known = part.exchanges.get(at)
    if known is not None and known.of is ends and known.sizes == experts.sizes:
        moved, own = part.get(rows, at), known.own
    else:
        at, moved, own = _brought(part, rows, ends, experts.sizes)
    given = {"self": moved, "mat2": part.get(weights, experts), "offs": own}
    return [(_on(part, node, call, given).result, at)]


def _brought(part: Parting, rows: Value, ends: Value, sizes: tuple[int, ...]) -> tuple[Placement, Value, Value]:
    """Rows brought to the ranks that have their experts: how they lie there, they, and where each expert's end."""
    b, at, count = part.emitter, part.placement(rows), sizes_of(rows)[0]
    room = Rows(0, (count,) * part.ranks, ends.name, spare=True)
    if isinstance(at, Rows) and at not in part.exchanges and _are_counts_of(part, ends, at):
        each = b.call("aten.unsqueeze.default", part.get(ends, Partial()), 0)
        every = b.call(dist.ALL_GATHER, each, 0, (1,) * part.ranks, 1, part.rank, part.axis)
        moved = b.call(dist.SEND_ROWS, part.get(rows, at), every, sizes, count, part.rank, part.axis)
        back: Placement = at
    else:
        every = b.call("aten.unsqueeze.default", part.get(ends, WHOLE), 0)
        moved = b.call(dist.TAKE_ROWS, part.get(rows, WHOLE, entered=True), every, sizes, part.rank)
        back = Partial()
    own = b.call(dist.OWN_ENDS, every, sizes, part.rank)
    part.exchanges[room] = Exchange(ends, every, own, sizes, back)
    return room, moved, own


# --- what is done for one axis, divided along another


def _taken(part: Parting, node: Node) -> _Found:
    """Rows of the rank's own experts, of those that it has."""
    rows, ends = node.args[:2]
    at = part.placement(rows) if isinstance(rows, Value) else WHOLE
    is_back = node.op in (dist.PUT_ROWS, dist.RETURN_ROWS)
    if not isinstance(rows, Value) or not isinstance(ends, Value) or not isinstance(at, Rows):
        return None
    if at.spare != is_back or at in part.exchanges or not _are_counts_of(part, ends, at):
        return None
    sizes, more = at.sizes, node.args[2:]
    if node.op in (dist.SEND_ROWS, dist.RETURN_ROWS):
        room = node.args[3]
        assert isinstance(room, int)
        if room % part.ranks or len(set(at.sizes)) != 1:
            return None
        sizes = (room // part.ranks,) * part.ranks
        more = (node.args[2], sizes[part.rank], *node.args[4:])
    made = part.emitter.call(node.op, part.get(rows, at), part.get(ends, Partial()), *more)
    return [(made, Rows(0, sizes, at.order, spare=not is_back))]


FORMS: Mapping[str, Form] = MappingProxyType({
    **dict.fromkeys(("aten.sort.default", "aten.sort.stable", "aten.argsort.default", "aten.argsort.stable"), _sort),
    **dict.fromkeys(("aten.floor_divide.default", "aten.floor_divide.Scalar", "aten.div.Tensor_mode",
                     "aten.div.Scalar_mode"), _divided_by),
    **dict.fromkeys(PICKS, _index), "aten.index_put.default": _put,
    "aten.empty_like.default": _empty, "aten.index_add.default": _add_rows, **dict.fromkeys(_FROM_COUNTS, _of_counts),
    "aten._grouped_mm.default": _grouped,
    **dict.fromkeys((dist.SEND_ROWS, dist.RETURN_ROWS, dist.TAKE_ROWS, dist.PUT_ROWS), _taken),
})  # fmt: skip
