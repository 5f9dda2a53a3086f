"""Whether it pays to compute what does not count: against calling operators one by one, which is what is saved.

How much will count is not known. Invariant: what padding costs is bounded by what it saves where a quarter counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.ir import Node, TensorType, Value
from smelt.ir.sizes import value
from smelt.ops.catalogue.packed import PACKED_LAYERS
from smelt.ops.record import Trait
from smelt.ops.sets import PRODUCTS, where

# A graph that Python goes through, and an operator on small tensors through the dispatcher, without what it computes;
# twice that, since some of the padded work counts.
_CALLS_NS, _CALL_NS = 40_000.0, 5_000.0

# Nanoseconds an element of the result; measured on one core, in cache.
_POINTWISE_NS, _GATHER_NS, _FLOPS_A_NS = 0.15, 0.2, 128.0
_SLOW = where(Trait.ONE_BY_ONE) | {"aten.nonzero_static.default"}


def saved_ns(nodes: int) -> float:
    """What so many operators on exact tensors would take to be called."""
    return _CALLS_NS + _CALL_NS * nodes


def added_ns(node: Node, made: Sequence[Node]) -> float:
    """What it takes to compute the nodes that stand for a node.

    Nothing for a recurrent layer, whose steps pass by what does not count: its products take the library no less.
    """
    return 0.0 if node.op in PACKED_LAYERS else sum(map(work_ns, made))


def copy_ns(type_: TensorType) -> float:
    """What it takes to copy a tensor to where a block keeps it."""
    return _POINTWISE_NS * value(type_.numel)


def work_ns(node: Node) -> float:
    """What it takes to compute a node on padded tensors."""
    total = 0.0
    for result in node.results:
        if isinstance(result.type, TensorType) and result.type.is_static:
            numel = value(result.type.numel)
            total += numel * (_GATHER_NS if node.op in _SLOW else _POINTWISE_NS)
            if node.op in PRODUCTS:
                total += 2 * numel * _depth(node) / _FLOPS_A_NS
    return total


def _depth(node: Node) -> int:
    """The length of a product's sums."""
    left = node.args[PRODUCTS[node.op].first]
    assert isinstance(left, Value) and isinstance(left.type, TensorType)
    return int(value(left.type.sizes[-1])) if left.type.sizes else 1
