"""Tensors joined of many pieces: in a nest, an element is that of the piece its index falls into, and vectors compute
all of them. What several pieces need would be computed for each anew: the running values of a loop, kept in a list that
`stack` takes, in a time that grows with the square of its turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.fusion.groups import Facts
from smelt.ir import Node, Value

MOST_SHARED = 8
"""Pieces of a tensor that may need one value that is computed in its nest."""


def is_needed_by_many(nodes: Sequence[Node], facts: Facts) -> bool:
    """Whether one of these nodes (in program order) joins many pieces, several of which need another one of them."""
    return any(
        _is_shared(nodes[:place], pieces, facts)
        for place, node in enumerate(nodes)
        if len(pieces := _pieces(node)) > MOST_SHARED
    )


def _pieces(node: Node) -> Sequence[Value]:
    if node.op not in ("aten.stack.default", "aten.cat.default") or not isinstance(node.args[0], tuple):
        return ()
    return [piece for piece in node.args[0] if isinstance(piece, Value)]


def _is_shared(nodes: Sequence[Node], pieces: Sequence[Value], facts: Facts) -> bool:
    needed = dict.fromkeys(nodes, 0)  # by which pieces, a bit each
    for place, piece in enumerate(pieces):
        _note(needed, facts.source(piece), 1 << place)
    for node in reversed(nodes):
        for operand in node.operands():
            _note(needed, facts.source(operand), needed[node])
    return any(bits & (bits - 1) for bits in needed.values())


def _note(needed: dict[Node, int], value: Value, bits: int) -> None:
    if value.node is not None and value.node in needed:
        needed[value.node] |= bits
