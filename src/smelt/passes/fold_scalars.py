"""Python's scalars that are known: of literals, of static sizes, of containers that were just made.

%1 = py.add(2, 3); %2 = sym_size %x 0; %3 = py.getitem(py.list(%a, %b), 0)   ==>   5, 8 (of f32[8, 4]), %a
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.ir import (
    ANY,
    Arg,
    Graph,
    ListType,
    Node,
    OptionalType,
    ScalarType,
    TensorType,
    TupleType,
    Value,
    fits,
    type_of_arg,
    values_in,
)
from smelt.ir.sizes import MARK, is_symbolic
from smelt.ops.convert import to_torch
from smelt.ops.effects import effects
from smelt.ops.evaluate import constant
from smelt.ops.python.python_ops import python_op
from smelt.passes.base import erase_dead
from smelt.rewrite import Rewriter

# What is longer stays an operation: text and bits of a literal.
_MOST_TEXT = 256
_MOST_BITS = 256


def fold_scalar(graph: Graph, rewriter: Rewriter, node: Node) -> bool:
    """Put a literal, or a value that was there before, in the place of a node that gives a scalar or an element."""
    if len(node.results) != 1 or node.regions or node.parent is None:
        return False
    found = _known(graph, node)
    if not found or not fits(type_of_arg(found[0]), node.result.type):
        return False
    operands = [v.node for v in node.operands() if v.node is not None]
    rewriter.replace_node(node, found)
    erase_dead(rewriter, operands)
    return True


def _known(graph: Graph, node: Node) -> tuple[Arg] | tuple[()]:
    """What a node gives, if that is known."""
    if node.op.startswith("aten."):
        return _of_tensor(graph, node)
    python = python_op(node.op)
    if python is None or not python.is_pure or python.results != 1:
        return ()
    made = _of_container(node)
    if made:
        return made
    if any(True for arg in (*node.args, *node.kwargs.values()) for _ in values_in(arg)):
        return ()
    try:
        result = python.run(*map(to_torch, node.args), **{k: to_torch(v) for k, v in node.kwargs.items()})
    except Exception:
        # Python raises here too, in each call, where the user sees it.
        return ()
    return (result,) if _is_small(result) else ()


def _is_small(result: Any) -> bool:
    """Whether a result may stand as a literal: the text of a size is another one in each call."""
    if isinstance(result, str):
        return len(result) <= _MOST_TEXT and MARK not in result
    if isinstance(result, int) and not is_symbolic(result):
        return result.bit_length() <= _MOST_BITS
    return result is None or isinstance(result, (float, complex))


def _of_tensor(graph: Graph, node: Node) -> tuple[Arg] | tuple[()]:
    """Sizes by the type; the element of a constant that nobody writes."""
    source = node.args[0] if node.args else None
    type_ = source.type if isinstance(source, Value) else None
    if not isinstance(source, Value) or not isinstance(type_, TensorType) or type_.shape is None:
        return ()
    match node.op:
        case "aten.dim.default":
            return (len(type_.shape),)
        case "aten.sym_numel.default" | "aten.numel.default" if type_.is_static:
            return (type_.numel,)
        case "aten.sym_size.int" | "aten.size.int" if not effects(node).may_throw:
            size = type_.shape[node.args[1]]  # type: ignore[index]
            return (size,) if isinstance(size, int) else ()
        case "aten.sym_stride.int" | "aten.stride.int" if not effects(node).may_throw and type_.is_static:
            return (type_.steps[node.args[1]],)  # type: ignore[index]
        case "aten.item.default" if source.node is not None and source.node.op == "const":
            is_written = any(isinstance(user, Node) and source in effects(user).writes for user in source.users)
            data = constant(graph, source.node) if not is_written and _is_read_only(source) else None
            return (data.item(),) if isinstance(data, torch.Tensor) and data.numel() == 1 else ()
    return ()


def _is_read_only(value: Value) -> bool:
    """Whether all users of a value make scalars of it."""
    return all(isinstance(user, Node) and user.op == "aten.item.default" for user in value.users)


def _of_container(node: Node) -> tuple[Arg] | tuple[()]:
    """An element or the length of what was made in sight; whether a value may be None at all."""
    container = node.args[0] if node.args else None
    if not isinstance(container, Value):
        return ()
    if node.op == "py.is_none":
        never = isinstance(container.type, (TensorType, ListType, TupleType)) or (
            isinstance(container.type, ScalarType) and container.type.name not in ("none", "any")
        )
        return (False,) if never and container.type != ANY and not isinstance(container.type, OptionalType) else ()
    if node.op == "py.len" and isinstance(container.type, TupleType):
        return (len(container.type.elements),)
    maker = container.node
    if maker is None or maker.op not in ("py.list", "py.tuple"):
        return ()
    if node.op == "py.len":
        return (len(maker.args),)
    if node.op == "py.getitem" and type(node.args[1]) is int and -len(maker.args) <= node.args[1] < len(maker.args):
        return (maker.args[node.args[1]],)
    return ()
