"""Lists that grow in loops: one buffer, a row for each tensor.

    %ys = for ... { ...; %m = py.append(%l, %h); yield %m, ... };  %y = aten.stack.default(%ys)
        ==>   the buffer, written row by row

Invariant: the list itself is nowhere; who asks for its tensors gets rows of the buffer, who joins them the whole of it.
"""

from __future__ import annotations

from math import prod

from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context
from smelt.codegen.lower.memory.copies import copy_into
from smelt.codegen.lower.memory.geometry import Geometry, row_major
from smelt.codegen.lower.python.growing import Growing
from smelt.codegen.lower.python.plain import is_plain_type
from smelt.ir import Node, TensorType, Value
from smelt.ops.convert import dtype_to_torch


def begin(ctx: Context, result: Value, growing: Growing) -> Place:
    """The buffer of a list, with the tensors that are in it at first."""
    geometry, dtype = growing.geometry, dtype_to_torch(growing.element.dtype)
    user = _joined_in_place(result)
    storage = ctx.builder.arena(geometry, dtype) if user is None else ctx.memory_for(user.result, geometry)
    if storage.base != geometry:
        storage = ctx.builder.arena(geometry, dtype)
    for index, value in enumerate(growing.first):
        copy_into(ctx.builder, Place(storage, growing.row(index)), ctx.place(value))
    ctx.lists[result] = [Place(storage, growing.row(i)) for i in range(growing.length)]
    return Place(storage, geometry)


def _joined_in_place(result: Value) -> Node | None:
    """The node that stacks or joins the rows as they lie, if nothing else uses the list."""
    if sum(result.users.values()) != 1:
        return None
    (user,) = result.users
    if not isinstance(user, Node) or user.parent is not (result.node and result.node.parent):
        return None
    type_ = user.results[0].type if user.results else None
    is_plain = isinstance(type_, TensorType) and is_plain_type(type_) and type_.strides is None
    return user if is_plain and _joining(user) == ("stack", 0) else None


def _joining(node: Node) -> tuple[str, int] | None:
    """Whether a node stacks or joins a list, and along which dimension; None for any other."""
    name = {"aten.stack.default": "stack", "aten.cat.default": "cat", "aten.concat.default": "cat"}.get(node.op)
    if name is None or node.kwargs or len(node.args) > 2:
        return None
    dim = node.args[1] if len(node.args) == 2 else 0
    return (name, dim) if type(dim) is int else None


def lower_joined(ctx: Context, node: Node) -> bool:
    """Stack or join a list whose tensors are rows of one buffer; False where it is none."""
    joining = _joining(node)
    value = node.args[0] if node.args else None
    if joining is None or not isinstance(value, Value) or value not in ctx.lists or not ctx.lists[value]:
        return False
    type_ = node.result.type
    rows = ctx.lists[value]
    if not isinstance(type_, TensorType) or not is_plain_type(type_) or not _is_buffer(rows):
        return False
    storage, row = rows[0].storage, rows[0].geometry
    name, dim = joining
    rank = len(row.sizes) + (name == "stack")
    dim = dim % rank
    step = rows[0].geometry.numel
    # The list's own dimension in front of the one that it is joined along.
    sizes = (*row.sizes[:dim], len(rows), *row.sizes[dim:])
    seen = Place(storage, Geometry(sizes, (*row.strides[:dim], step, *row.strides[dim:]), row.offset))
    if prod(sizes) != type_.numel or type_.strides is not None:
        return False
    is_whole = len(rows) * step == storage.base.numel and dim == 0 and name == "stack"
    if is_whole and _joined_in_place(value) is node and (storage.kind == "owned") == ctx.escapes(node.result):
        ctx.bind(node.result, Place(storage, storage.base))
        ctx.note(node, "view")
        return True
    target = ctx.memory_for(node.result, Geometry.of(type_))
    copy_into(ctx.builder, Place(target, row_major(sizes)), seen)
    ctx.bind(node.result, Place(target, target.base))
    ctx.note(node, "copy")
    return True


def _is_buffer(rows: list[Place]) -> bool:
    """Whether the places are the rows of one buffer, in order."""
    first = rows[0].geometry
    if first.strides != row_major(first.sizes).strides:
        return False
    return all(
        place.storage is rows[0].storage
        and place.geometry == Geometry(first.sizes, first.strides, first.offset + i * first.numel)
        for i, place in enumerate(rows)
    )
