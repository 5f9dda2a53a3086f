"""What a value is a view of, one step back."""

from __future__ import annotations

from smelt.ir import STATE_OPS, Value
from smelt.ops.effects import aliases


def parent_of(value: Value) -> Value | None:
    """The operand that a value is a view of, or None for a root."""
    node = value.node
    if node is None or node.op in STATE_OPS or node.op == "const":
        return None
    shared = aliases(node)[node.results.index(value)]
    return shared[0] if len(shared) == 1 else None


__all__ = ["parent_of"]
