"""What a loop puts behind the other items of a list of Python's, one call for each.

    while ... with (%l = %list, ...) { ...; %m = py.append(%l, %h); yield %m, ... }
        ==>   PyCall(put %h behind those in the slot of %l)

A list of the graph is a value: each append makes another one. Where nobody sees the one before, it is the same object
of Python all along, and stays in its slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context
from smelt.codegen.lower.python.plain import is_number, is_plain_type
from smelt.codegen.lower.python.python_nodes import is_unsafe
from smelt.ir import ListType, Node, Region, TensorType, Value
from smelt.ops.convert import strided_copy
from smelt.runtime.plan import PyCall


def lower_append(ctx: Context, node: Node) -> None:
    """Put one more item into a list."""
    items, added = node.args
    assert isinstance(items, Value) and isinstance(added, Value)
    copied: Callable[[Any], Any] | None = None
    if isinstance(added.type, TensorType):
        slot = ctx.object_slot(added)
        if is_unsafe(ctx, slot, added):
            copied = strided_copy if added.type.strides is not None else torch.clone
    else:
        slot = ctx.number(added).slot
    held = ctx.number(items)
    call = _Append(copied, is_in_place=_is_alone(items, node.parent))
    if call.is_in_place:
        ctx.bind(node.result, Place(held, held.base))
        ctx.builder.emit(PyCall(call, (held.slot, slot)))
    else:
        ctx.builder.emit(PyCall(call, (held.slot, slot), (ctx.number(node.result).slot,)))
    ctx.share(node.results)
    ctx.note(node, "python", node.op)


def is_append(node: Node) -> bool:
    """Whether a node puts one tensor, number or list, which has a slot of its own, behind the others of a list."""
    if node.op != "py.append" or len(node.args) != 2 or node.mode or not all(isinstance(a, Value) for a in node.args):
        return False
    items, added = (arg.type for arg in node.args if isinstance(arg, Value))
    is_one = is_plain_type(added) if isinstance(added, TensorType) else is_number(added) or isinstance(added, ListType)
    return isinstance(items, ListType) and is_one


class _Append:
    """copied: makes what is put into the list of what is given, where the memory of that is written over later."""

    def __init__(self, copied: Callable[[Any], Any] | None, *, is_in_place: bool) -> None:
        self.copied, self.is_in_place = copied, is_in_place
        self.__qualname__ = "append"

    def __call__(self, items: list[Any], added: Any) -> Any:
        own = added if self.copied is None else self.copied(added)
        if not self.is_in_place:
            return ([*items, own],)
        items.append(own)
        return ()


def grown_from(node: Node, place: int) -> Value | None:
    """The list that a branch's result in a place is, grown in some arms, if nobody else sees that one."""
    found = _source(node, place)
    return found if found is not None and _is_alone(found, node.parent) else None


def _source(node: Node, place: int) -> Value | None:
    sources: set[Value] = set()
    for arm in node.regions:
        value = arm.yields[place]
        while isinstance(value, Value) and value.node is not None and value.node.parent is arm:
            if value.node.op != "py.append" or sum(value.users.values()) != 1:
                return None
            value = value.node.args[0]
        if not isinstance(value, Value) or not isinstance(value.type, ListType):
            return None
        sources.add(value)
    return sources.pop() if len(sources) == 1 else None


def _is_alone(value: Value, region: Region | None, seen: frozenset[Value] = frozenset()) -> bool:
    """Whether a list was made by this run, in this region, and nobody sees it any more once it is another one."""
    if value in seen:
        return True
    if not _is_used_once(value) or region is None:
        return False
    while isinstance(region.owner, Node) and region.owner.op == "if" and region.owner.parent is not None:
        region = region.owner.parent
    owner, seen = value.owner, seen | {value}
    if isinstance(owner, Region):
        loop = owner.owner
        is_body = isinstance(loop, Node) and loop.op in ("for", "while") and owner is loop.regions[-1]
        if owner is not region or not is_body or not isinstance(loop, Node):
            return False
        return _is_carried_alone(loop, owner.params.index(value) - (loop.op == "for"), seen)
    if owner.parent is not region:
        return False
    match owner.op:
        case "py.list":
            return True
        case "py.append":
            return isinstance(owner.args[0], Value) and _is_alone(owner.args[0], region, seen)
        case "if":
            source = _source(owner, owner.results.index(value))
            return source is not None and _is_alone(source, region, seen)
        case "for" | "while":
            return _is_carried_alone(owner, owner.results.index(value), seen)
    return False


def _is_used_once(value: Value) -> bool:
    """Whether each way through the program uses a value once: it is used once, or once in each arm of a branch."""
    uses = sum(value.users.values())
    arms = {user if isinstance(user, Region) else user.parent for user in value.users}
    if uses != 2 or len(arms) != 2:
        return uses == 1
    one, other = (None if arm is None else arm.owner for arm in arms)
    return one is other and isinstance(one, Node) and one.op == "if"


def _is_carried_alone(loop: Node, place: int, seen: frozenset[Value]) -> bool:
    """The same for what a loop carries in a place: for what comes in, and for what each turn leaves."""
    if place < 0:
        return False
    first, left = loop.args[place + (3 if loop.op == "for" else 0)], loop.regions[-1].yields[place]
    if not isinstance(first, Value) or not isinstance(left, Value):
        return False
    return _is_alone(first, loop.parent, seen) and _is_alone(left, loop.regions[-1], seen)
