"""Which operand a node's results are views of, as far as the lowering follows views."""

from __future__ import annotations

from smelt.ir import Node, TupleType, Value
from smelt.ops.effects import alias_of, aliases
from smelt.ops.record import Trait
from smelt.ops.registry import overload
from smelt.ops.sets import where

# They give back the very tensor that they got, where they share at all.
_RETURNS_ITSELF = where(Trait.RETURNS_ITSELF) | {
    f"aten.{name}.default"
    for name in (
        "positive", "resolve_conj", "resolve_neg", "real", "conj", "atleast_1d", "atleast_2d", "atleast_3d",
        "sum_to_size",
    )
}  # fmt: skip


_DROPOUTS_IN_PLACE = ("aten.dropout_.default", "aten.feature_dropout_.default", "aten.alpha_dropout_.default")


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


def sources_of(value: Value) -> list[Value]:
    """A value and all that it is a view of, at places that numbers of the run tell, too."""
    found = [value]
    while found[-1].node is not None and not found[-1].node.regions:
        source = view_source(found[-1].node)
        if source is None:
            break
        found.append(source)
    return found


def returns_itself(node: Node) -> bool:
    """Whether a view node gives back its operand as the same object (a write gives back its target)."""
    if node.op in _RETURNS_ITSELF:
        return all(v.type == node.result.type for v in node.operands() if v is view_source(node))
    return node.op == "write" or is_idle_dropout(node)


def very_tensor(value: Value) -> Value:
    """The value whose tensor object this one is, through operators that give back their operand."""
    current = value
    while current.node is not None and returns_itself(current.node):
        before = view_source(current.node)
        if before is None:
            break
        current = before
    return current


def is_idle_dropout(node: Node) -> bool:
    """Whether a node is an in-place dropout outside training: by its schema it writes, in truth it does nothing."""
    return node.op in _DROPOUTS_IN_PLACE and len(node.args) == 3 and node.args[2] is False


def feared_sources(node: Node) -> tuple[Value, ...]:
    """Operands whose memory a result may share without our knowing how."""
    if overload(node.op) is None or view_source(node) is not None:
        return ()
    return tuple({v for shared in aliases(node) for v in shared})
