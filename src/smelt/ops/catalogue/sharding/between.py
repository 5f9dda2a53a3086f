"""Collectives of one axis, divided along another: dimensions that they do not move are labels."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from smelt.ir import Arg, Node
from smelt.ops.catalogue.sharding.terms import is_known, numbered, tensors
from smelt.ops.ranks import collectives as dist
from smelt.ops.ranks.placements import Correspondence, Rule

_FIRST = (frozenset((0,)),)


def _same(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    dims = numbered(len(tensors(node)[0].sizes))
    is_sum = node.op != dist.ALL_REDUCE or node.args[1] == "sum"
    return Correspondence((dims,), (dims,), linear=_FIRST if is_sum else ())


def _moved(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    touched = [node.args[1], *([node.args[4]] if node.op == dist.ALL_TO_ALL else [])]
    dims = numbered(len(tensors(node)[0].sizes), [d for d in touched if isinstance(d, int)])
    return Correspondence((dims,), (dims,), linear=_FIRST)


def _rows(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """All dimensions but that of rows; which rows those are depends on all (`experts`)."""
    if not is_known(node):
        return None
    dims = numbered(len(tensors(node)[0].sizes), (0,))
    return Correspondence((dims, (None, None)), (dims,), linear=_FIRST)


_ROWS = (dist.SEND_ROWS, dist.RETURN_ROWS, dist.TAKE_ROWS, dist.PUT_ROWS)
_MOVES = (dist.ALL_GATHER, dist.REDUCE_SCATTER, dist.ALL_TO_ALL, dist.SHARD)
RULES: Mapping[str, Rule] = MappingProxyType({
    **dict.fromkeys((dist.ALL_REDUCE, dist.ENTER, dist.BROADCAST), _same), **dict.fromkeys(_MOVES, _moved),
    **dict.fromkeys(_ROWS, _rows),
})  # fmt: skip
