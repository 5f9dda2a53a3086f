"""The one spelling of a node that matching compares: a key for what it computes, and all arguments by name.

`view` and `reshape` are one key, so are the overloads that differ in tensor or number only (`add.Tensor`,
`add.Scalar`); defaults are filled in from the schema. What only asks for sizes, or computes with Python's numbers, is
*arithmetic*: it is compared by value (`terms`), not node by node.
"""

from __future__ import annotations

from smelt.ir import STATE_OPS, Arg, Node, Region, Value
from smelt.ir.type_order import may_hold_tensor
from smelt.ops.catalogue import record_of
from smelt.ops.effects import effects
from smelt.ops.record import Trait
from smelt.ops.registry import arguments_of, overload, schema_of
from smelt.ops.sets import bases_where, where

STATE = frozenset(STATE_OPS)
VIEW = "view"
TRANSPOSE = "aten.transpose.int"
_VIEWS = where(Trait.TO_SIZES)
_TENSOR_OR_NUMBER = frozenset(
    base for base in bases_where(Trait.TAKES_RUN_NUMBERS)
    if record_of(f"aten.{base}.Tensor") and overload(f"aten.{base}.Scalar")
) - {"rsub", "fmod", "lerp", "masked_fill"}  # fmt: skip
_SIZE_QUESTIONS = frozenset({
    "aten.sym_size.default", "aten.sym_size.int", "aten.sym_numel.default", "aten.sym_stride.int", "aten.dim.default",
})  # fmt: skip
_CONTROL = frozenset({"if", "for", "while"})
_ENDS = frozenset({"py.raise", "py.assert"})
# Arguments that count axes of the first tensor, from either end.
_AXES = frozenset({"dim", "dims", "start_dim", "end_dim"})
_NEW_AXIS = frozenset({"aten.stack.default", "aten.unsqueeze.default"})


def key_of(node: Node) -> str:
    """What a node computes, in one spelling."""
    if node.op in _VIEWS:
        return VIEW
    return _key(node.op)


def _key(op: str) -> str:
    parts = op.split(".")
    if len(parts) == 3 and parts[0] == "aten" and parts[1] in _TENSOR_OR_NUMBER and parts[2] in ("Tensor", "Scalar"):
        return f"aten.{parts[1]}"
    return op


_COMMUTATIVE = frozenset(map(_key, where(Trait.COMMUTES)))


def named_arguments(node: Node) -> dict[str, Arg]:
    """All arguments by name, defaults filled in; by position where there is no schema."""
    schema = schema_of(node.op)
    if schema is not None:
        try:
            found = arguments_of(schema, node.args, node.kwargs)
        except TypeError:
            pass
        else:
            if node.op in _VIEWS and "shape" in found:
                found["size"] = found.pop("shape")
            if node.op == TRANSPOSE:
                found["dims"] = (found.pop("dim0"), found.pop("dim1"))
            return found
    return {**{str(i): arg for i, arg in enumerate(node.args)}, **node.kwargs}


def commutes(key: str, arguments: dict[str, Arg]) -> bool:
    """Whether `self` and `other` of a call may change places."""
    if key == "aten.add":
        return type(arguments.get("alpha")) is int and arguments["alpha"] == 1
    return key in _COMMUTATIVE


def counts_axes(key: str, name: str) -> bool:
    """Whether an argument names axes of the first tensor."""
    return name in _AXES and key.startswith("aten.") and key not in _NEW_AXIS


def is_arithmetic(node: Node) -> bool:
    """Whether a node gives Python's values only and looks at no tensor's data."""
    if not node.results or any(may_hold_tensor(result.type) for result in node.results):
        return False
    if node.op in _CONTROL:
        return all(map(is_check, (inner for region in node.regions for inner in region)))
    return node.op in _SIZE_QUESTIONS or (node.op.startswith("py.") and effects(node).is_pure)


def is_check(node: Node) -> bool:
    """Whether a node is arithmetic, or only raises where arithmetic says so."""
    if node.op in _ENDS or is_arithmetic(node):
        return True
    inside = (inner for region in node.regions for inner in region)
    return node.op in _CONTROL and not node.results and all(map(is_check, inside))


def is_idle(user: Node | Region) -> bool:
    """Whether a use asks for sizes that nothing but checks, or nobody, wants to know."""
    if isinstance(user, Region):
        return isinstance(user.owner, Node) and is_idle(user.owner)
    if user.op in _ENDS:
        return True
    if not is_check(user):
        return False
    return all(is_idle(other) for result in user.results for other in result.users)


def item_of(value: Value) -> tuple[Value, int] | None:
    """The container and the index, where a value is one of a list or tuple of tensors: `unpack` or `py.getitem`."""
    node = value.node
    if node is None or not may_hold_tensor(value.type):
        return None
    if node.op == "unpack" and isinstance(node.args[0], Value):
        return node.args[0], node.results.index(value)
    if node.op == "py.getitem" and isinstance(node.args[0], Value) and type(node.args[1]) is int:
        return node.args[0], node.args[1]
    return None
