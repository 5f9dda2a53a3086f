"""Complex tensors whose memory holds the conjugate of their elements, and tensors whose memory holds the negated ones.

torch's conjugate and negative bits are no part of a type. They follow from the views that lead to a value: memory that
an operator fills has neither, and what a graph is given is taken to have neither.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.ir import Node, TensorType, Value

_CONJUGATES = frozenset(f"aten.{name}.default" for name in ("_conj", "conj", "adjoint", "mH", "matrix_H"))
_PARTS = ("aten.imag.default", "aten.real.default")


def is_copied(node: Node, source_of: Callable[[Node], Value | None]) -> bool:
    """Whether a `resolve_conj` or `resolve_neg` copies, because its operand has the bit; False for other operators.

    source_of: the operand that a node's result is a view of.
    """
    if node.op not in ("aten.resolve_conj.default", "aten.resolve_neg.default"):
        return False
    is_conjugated, is_negated = bits(node.args[0], source_of)
    return is_conjugated if node.op == "aten.resolve_conj.default" else is_negated


def bits(value: object, source_of: Callable[[Node], Value | None]) -> tuple[bool, bool]:
    """Whether a value has the conjugate bit, and whether the negative one. source_of: as for `is_copied`."""
    if not isinstance(value, Value) or value.node is None or value.node.regions:
        return False, False
    node, source = value.node, source_of(value.node)
    if source is None:
        return False, False
    is_conjugated, is_negated = bits(source, source_of)
    if node.op in _PARTS and _is_complex(source):
        # The imaginary part of memory that holds the conjugate is the negated one.
        return False, is_negated != (is_conjugated and node.op == "aten.imag.default")
    if node.op in _CONJUGATES and _is_complex(source):
        return not is_conjugated, is_negated
    return is_conjugated, is_negated != (node.op == "aten._neg_view.default")


def _is_complex(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.kind == "complex"
