"""What the verifier cannot know: whether a node's arguments fit its operator's schema.

Pass `check` to `smelt.ir.verify`. Operators that are not registered in this process are let through.
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.ir import (
    ANY,
    NONE,
    Arg,
    ListType,
    Node,
    OptionalType,
    ScalarType,
    TensorType,
    TupleType,
    Type,
    Value,
    may_hold_tensor,
)
from smelt.ops.python.python_calls import is_callable_by_name
from smelt.ops.python.python_ops import NAMESPACES, PyOp, arity_fault, python_op
from smelt.ops.registry import Argument, arguments_of, schema_of


def check(node: Node) -> Iterator[str]:
    """The faults of one node: arguments that the schema does not take, results that it does not give."""
    schema = schema_of(node.op)
    if schema is None:
        python = python_op(node.op)
        if python is not None:
            yield from _python_faults(node, python)
        elif node.op.startswith(NAMESPACES):
            yield f"there is no operator {node.op}"
        return
    try:
        call = arguments_of(schema, node.args, node.kwargs)
    except TypeError as error:
        yield str(error)
        return
    if len(node.results) != len(schema.returns):
        yield f"{node.op} has {len(schema.returns)} results, not {len(node.results)}"
    for argument in schema.arguments:
        fault = _argument_fault(argument, call[argument.name])
        if fault:
            yield f"{node.op}: {argument.name} is {fault}"
    for result, returned in zip(node.results, schema.returns, strict=False):
        # An operator leaves out a tensor that it was not asked for.
        if returned.type == "Tensor" and not isinstance(result.type, TensorType) and result.type not in (NONE, ANY):
            yield f"%{result.name} is a tensor, not {result.type}"
        if returned.type == "List[Tensor]" and not _is_list(result.type):
            yield f"%{result.name} is a list of tensors, not {result.type}"


def _python_faults(node: Node, op: PyOp) -> Iterator[str]:
    fault = arity_fault(op, len(node.args))
    if fault:
        yield fault
        return
    if len(node.results) != op.results:
        yield f"{op.name} has {op.results} results, not {len(node.results)}"
        return
    if op.name == "py.call":
        if not is_callable_by_name(node.args[0]):
            yield f"py.call cannot call {node.args[0]!r}"
        return
    for name in node.kwargs:
        if name not in op.keywords:
            yield f"{op.name} has no argument {name!r}"
    if op.name == "py.raise" and not isinstance(node.args[0], str):
        yield "py.raise takes the name of a class of exceptions first"
    for result, type_ in zip(node.results, op.result(node.args), strict=True):
        if _contradicts(result.type, type_):
            yield f"%{result.name} is {type_}, not {result.type}"


def _contradicts(declared: Type, inferred: Type) -> bool:
    """Whether no value can be of both types; which of the two is the wider one does not matter."""
    if ANY in (declared, inferred) or isinstance(declared, OptionalType) or isinstance(inferred, OptionalType):
        return False
    if isinstance(declared, ScalarType) or isinstance(inferred, ScalarType):
        return declared != inferred
    return type(declared) is not type(inferred)


def _is_list(type_: Type) -> bool:
    return isinstance(type_, (TupleType, ListType)) or type_ == ANY


def _argument_fault(argument: Argument, value: Arg) -> str:
    if value is None:
        allowed = argument.type.startswith("Optional[") or (argument.has_default and argument.default is None)
        return "" if allowed else "none, which it may not be"
    if argument.type in ("Tensor", "Optional[Tensor]"):
        return _tensor_fault(value)
    if argument.type in ("List[Tensor]", "List[Optional[Tensor]]", "Optional[List[Tensor]]"):
        if isinstance(value, Value):
            return "" if _is_list(value.type) else f"{value.type}, not a list of tensors"
        if not isinstance(value, tuple):
            return "not a list"
        return next((f for item in value if item is not None and (f := _tensor_fault(item))), "")
    return ""


def _tensor_fault(value: Arg) -> str:
    """Python numbers stand for tensors in arithmetic, as torch allows."""
    if isinstance(value, Value):
        is_container = may_hold_tensor(value.type) and isinstance(value.type, (TupleType, ListType))
        return "" if not is_container else f"{value.type}, not a tensor"
    return "" if isinstance(value, (bool, int, float, complex)) else f"{value!r}, not a tensor"
