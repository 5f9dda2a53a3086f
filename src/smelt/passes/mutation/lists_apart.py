"""One operator over lists of tensors as one operator for each tensor, which is what torch does on the CPU.

_foreach_mul_.Scalar([%a, %b], 0.9)      ==>      mul_ %a 0.9; mul_ %b 0.9
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.ir import Arg, Node, Value
from smelt.ops.lowering import GraphEmitter
from smelt.ops.registry import Schema, arguments_of, schema_of
from smelt.rewrite import Rewriter

_PREFIX = "aten._foreach_"
_BINARY = ("add", "sub", "mul", "div")
# What takes a number where another operator takes a tensor.
_OF_A_NUMBER = {"maximum": "clamp_min", "minimum": "clamp_max"}
_PLAIN = ("addcdiv", "addcmul", "mm")


def take_lists_apart(rewriter: Rewriter, emit: GraphEmitter) -> None:
    """Write out such operators where the lists are known and each tensor has its own operator."""
    for node in list(rewriter.graph.walk()):
        schema = schema_of(node.op) if node.op.startswith(_PREFIX) else None
        if schema is not None:
            _take_apart(rewriter, emit, node, schema)


def _take_apart(rewriter: Rewriter, emit: GraphEmitter, node: Node, schema: Schema) -> None:
    call = arguments_of(schema, node.args, node.kwargs)
    lists = {name: arg for name, arg in call.items() if isinstance(arg, tuple)}
    tensors = next(iter(lists.values()), ())
    if not tensors or not all(isinstance(t, Value) for t in tensors):
        return
    if any(len(arg) != len(tensors) for arg in lists.values()):
        return
    users = [user for result in node.results for user in result.users]
    if not all(isinstance(user, Node) and user.op == "unpack" for user in users):
        return
    one = [_one(node.op, {**call, **{n: arg[i] for n, arg in lists.items()}}) for i in range(len(tensors))]
    if any(found is None or schema_of(_there(found[0])) is None for found in one):
        return
    with rewriter.builder.at(node):
        made = [_emitted(emit, *found) for found in one if found is not None]
    for user in users:
        assert isinstance(user, Node)
        rewriter.replace_node(user, [part.result for part in made])
    rewriter.erase(node)


def _there(op: str) -> str:
    """The operator, or that which gives what it would write, where torch has none for one tensor (`maximum_`)."""
    return op if schema_of(op) is not None else op.replace("_.", ".")


def _emitted(emit: GraphEmitter, op: str, args: tuple[Arg, ...], kwargs: dict[str, Arg]) -> Node:
    made = emit.node(_there(op), args, kwargs)
    return made if op == _there(op) else emit.node("aten.copy_.default", (args[0], made.result), {})


def _one(op: str, call: Mapping[str, Arg]) -> tuple[str, tuple[Arg, ...], dict[str, Arg]] | None:
    """The operator, arguments and keywords for one tensor; None where there is none."""
    base, _, overload = op.removeprefix(_PREFIX).partition(".")
    name, ending = base.removesuffix("_"), "_" if base.endswith("_") else ""
    given = dict(call)
    alpha, number = given.pop("alpha", 1), given.pop("value", None)
    if name == "norm":
        return "aten.linalg_vector_norm.default", (given["self"], given["ord"]), {"dtype": given["dtype"]}
    if name in ("powsum", "clone") or given.get("non_blocking"):
        return None
    given.pop("non_blocking", None)
    args = tuple(given.values())
    if name in ("addcdiv", "addcmul"):
        if overload == "Tensor":
            return None
        number = args[3] if overload == "ScalarList" else number
        return f"aten.{name}{ending}.default", args[:3], {"value": number}
    kwargs: dict[str, Arg] = {} if alpha == 1 else {"alpha": alpha}
    if len(args) == 1 or name in (*_PLAIN, "copy"):
        found = f"{name}.default"
    elif overload in ("Scalar", "ScalarList"):
        own = _OF_A_NUMBER.get(name, name)
        found = _first(own, "Tensor" if name in _BINARY else "Tensor_Scalar", "Scalar", "default")
    elif overload in ("List", "Tensor"):
        found = _first(name, "Tensor_Tensor", "Tensor", "default")
    elif (name, overload) == ("pow", "ScalarAndTensor"):
        found = "pow.Scalar"
    else:
        return None
    base, _, variant = found.partition(".")
    return f"aten.{base}{ending}.{variant}", args, kwargs


def _first(name: str, *overloads: str) -> str:
    """The first of an operator's overloads that there is."""
    return next(
        (f"{name}.{one}" for one in overloads if schema_of(f"aten.{name}.{one}") is not None), f"{name}.default"
    )
