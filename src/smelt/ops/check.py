"""What the verifier cannot know: whether a node's arguments fit its operator's schema.

Pass `check` to `smelt.ir.verify`. Operators that are not registered in this process are let through.
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.ir import NONE, Arg, Node, TensorType, TupleType, Value
from smelt.ops.registry import Argument, arguments_of, schema_of


def check(node: Node) -> Iterator[str]:
    """The faults of one node: arguments that the schema does not take, results that it does not give."""
    schema = schema_of(node.op)
    if schema is None:
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
        if returned.type == "Tensor" and not isinstance(result.type, TensorType) and result.type != NONE:
            yield f"%{result.name} is a tensor, not {result.type}"
        if returned.type == "List[Tensor]" and not isinstance(result.type, TupleType):
            yield f"%{result.name} is a list of tensors, not {result.type}"


def _argument_fault(argument: Argument, value: Arg) -> str:
    if value is None:
        allowed = argument.type.startswith("Optional[") or (argument.has_default and argument.default is None)
        return "" if allowed else "none, which it may not be"
    if argument.type in ("Tensor", "Optional[Tensor]"):
        return _tensor_fault(value)
    if argument.type in ("List[Tensor]", "List[Optional[Tensor]]", "Optional[List[Tensor]]"):
        if isinstance(value, Value):
            return "" if isinstance(value.type, TupleType) else f"{value.type}, not a list of tensors"
        if not isinstance(value, tuple):
            return "not a list"
        return next((f for item in value if item is not None and (f := _tensor_fault(item))), "")
    return ""


def _tensor_fault(value: Arg) -> str:
    """Python numbers stand for tensors in arithmetic, as torch allows."""
    if isinstance(value, Value):
        return "" if not isinstance(value.type, TupleType) else f"{value.type}, not a tensor"
    return "" if isinstance(value, (bool, int, float, complex)) else f"{value!r}, not a tensor"
