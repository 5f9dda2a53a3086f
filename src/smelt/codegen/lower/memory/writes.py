"""Write-backs into inputs, buffers and parameters, after everything that needs the old value has it.

%1 = add(%x, 1); %2 = write(%x, %1)   ==>   a copy into the live tensor, which bumps its version as eager does; of a
                                            value that lies there already (`in_place`) its version alone
"""

from __future__ import annotations

from smelt.codegen.lower.builder import Place, Storage
from smelt.codegen.lower.context import Context, cannot_lower, read_values
from smelt.codegen.lower.memory.in_place import memory_of
from smelt.codegen.lower.result import Mutation
from smelt.ir import Node, Value
from smelt.ir.sizes import is_symbolic
from smelt.runtime.plan import Blit, Bump, Copy


def lower_write(ctx: Context, node: Node) -> None:
    """Copy the value into its target; who needs the old value later gets a copy of it first."""
    target, value = node.args
    if not isinstance(target, Value) or not isinstance(value, Value):
        raise cannot_lower(node, "its target or its value is no tensor")
    place = ctx.origin(target)
    if place is None:
        raise cannot_lower(node, "its target comes from no input, parameter or buffer")
    if node in ctx.in_place:
        if ctx.in_place[node]:
            ctx.builder.emit(Bump(place.storage.slot))
        ctx.writes_to_come -= 1
        ctx.bind(node.result, place)
        ctx.note(node, "in place", f"%{value.name}")
        return
    for needed in _needed_later(ctx, node, place.storage):
        ctx.bind(needed, ctx.cloned(ctx.place(needed)))
    if _lies_alike(ctx, node, place):
        source = ctx.place(value)
        nbytes = place.geometry.numel * place.storage.dtype.itemsize
        ctx.builder.emit(Blit(ctx.builder.handle(place), ctx.builder.handle(source), nbytes))
        ctx.builder.emit(Bump(place.storage.slot))
    else:
        ctx.builder.emit(Copy(ctx.builder.handle(place), ctx.slot(value, any_layout=True)))
    ctx.overwritten(place.storage)
    ctx.writes_to_come -= 1
    ctx.bind(node.result, place)
    ctx.note(node, "copy", ctx.why_copied.get(node, ""))


def _lies_alike(ctx: Context, node: Node, place: Place) -> bool:
    """Whether a value is copied by its bytes: from the run's own memory to all of a tensor that is laid out like it."""
    target, value = node.args
    if not isinstance(value, Value) or ctx.builder.in_block or ctx.statics.is_static(value) or not ctx.is_bound(value):
        return False
    source, at = ctx.place(value), place.geometry
    if (
        memory_of(ctx, target) is None
        or source.storage.kind != "arena"
        or source.storage.dtype is not place.storage.dtype
    ):
        return False
    if any(map(is_symbolic, (*at.sizes, *at.strides))) or at != place.storage.base or 0 in at.sizes:
        return False
    return at.extent == at.numel and (source.geometry.sizes, source.geometry.strides) == (at.sizes, at.strides)


def _needed_later(ctx: Context, node: Node, storage: Storage) -> list[Value]:
    """Values in some memory that this write or a node after it reads, apart from targets of writes, as first read."""
    lying = set(ctx.lying_in(storage, node))
    found: dict[Value, None] = {}
    later: Node | None = node
    while later is not None and len(found) < len(lying):
        found.update((value, None) for value in read_values(later) if value in lying)
        later = later.next
    return list(found)


def mutations(ctx: Context) -> tuple[Mutation, ...]:
    """The inputs and state that the plan writes to, in order of the first write."""
    found: dict[Mutation, None] = {}
    for node in ctx.graph.body:
        if node.op == "write" and isinstance(node.args[0], Value):
            place = ctx.origin(node.args[0])
            if place is not None and place.storage.source is not None:
                found[Mutation(place.storage.source)] = None
    return tuple(found)
