"""Which operand a node's results are views of, as far as the lowering follows views."""

from __future__ import annotations

from smelt.ir import Node, TupleType, Value
from smelt.ops.effects import alias_of, aliases
from smelt.ops.registry import overload

# They give back the very tensor that they got, where they share at all.
_RETURNS_ITSELF = frozenset(
    f"aten.{name}"
    for name in (
        "contiguous.default", "to.dtype", "to.device", "to.other", "to.dtype_layout", "dropout.default",
        "feature_dropout.default", "alpha_dropout.default", "type_as.default", "positive.default",
        "lift_fresh.default", "resolve_conj.default", "resolve_neg.default",
    )
)  # fmt: skip


def view_source(node: Node) -> Value | None:
    """The operand that the node's result (or each tensor of its list result) is a view of, or is; None if none is."""
    if node.op in ("write", "unpack"):
        return next(node.operands(), None)
    if len(node.results) != 1 or overload(node.op) is None:
        return None
    if isinstance(node.result.type, TupleType):
        (shared,) = aliases(node)
        return shared[0] if len(shared) == 1 else None
    return alias_of(node)


def returns_itself(node: Node) -> bool:
    """Whether a view node gives back its operand as the same object (a write gives back its target)."""
    return node.op == "write" or node.op in _RETURNS_ITSELF


def feared_sources(node: Node) -> tuple[Value, ...]:
    """Operands whose memory a result may share without our knowing how."""
    if overload(node.op) is None or view_source(node) is not None:
        return ()
    return tuple({v for shared in aliases(node) for v in shared})
