"""Whether a node reads memory that it writes, at other places than it writes there.

    x[:, 1:] += x[:, :-1]        eager sees, in what order its loops go, what it has written already

A graph without writes computes from what was there before, so that such a node has to stay as it is. Eager refuses
tensors without gaps that overlap in a part, and nothing else.
"""

from __future__ import annotations

import torch

from smelt.analysis import Aliases
from smelt.ir import Arg, Node, TensorType, Value, values_in
from smelt.ops.convert import to_torch
from smelt.ops.effects import effects
from smelt.ops.record import Trait
from smelt.ops.registry import overload, schema_of
from smelt.ops.sets import is_by_elements, where
from smelt.ops.shapes.pointwise import is_dense
from smelt.ops.shapes.views import Layout
from smelt.passes.mutation.parents import parent_of
from smelt.passes.mutation.placed_views import is_placed

_MOST_PLACES = 1 << 20
# Views in which no element has two places.
_ROWS = where(Trait.STRIDED_PART)


def reads_what_it_writes(node: Node, target: Value, aliases: Aliases) -> bool:
    """Whether an operand of a node may be other places of the memory that it writes, and eager takes it; or these very
    places, which a reduction clears before it reads them (`torch.sum(x, 0, out=x)`).
    """
    if _clears_first(node) and any(aliases.may_share(operand, target) for operand in _read_by(node)):
        return True
    return any(
        operand is not target and aliases.may_share(operand, target) and _may_turn(node, operand, target, aliases)
        for operand in node.operands()
    )


def _clears_first(node: Node) -> bool:
    """Whether a node writes its result into a tensor that it is given, not element by element."""
    schema = schema_of(node.op)
    return schema is not None and any(a.is_out for a in schema.arguments) and not is_by_elements(node.op)


def _read_by(node: Node) -> list[Value]:
    """The operands of an `out=` operator but those that it writes."""
    schema = schema_of(node.op)
    outs = {a.name for a in schema.arguments if a.is_out} if schema is not None else set()
    return list(values_in((node.args, tuple(arg for name, arg in node.kwargs.items() if name not in outs))))


def _may_turn(node: Node, operand: Value, target: Value, aliases: Aliases) -> bool:
    if _lies_placed(operand, aliases) or _lies_placed(target, aliases):
        return True
    if _has_no_gaps(operand) and _has_no_gaps(target):
        return operand.type != target.type and _covers(operand, aliases) and _covers(target, aliases)
    return not _are_apart(node, operand, target, aliases)


def _has_no_gaps(value: Value) -> bool:
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None:
        return False
    return type_.strides is None or (type_.is_static and is_dense(Layout.of(type_)))


def _covers(value: Value, aliases: Aliases) -> bool:
    """Whether a tensor has all elements of what it may be a view of."""
    kinds = (value.type, *(root.type for root in aliases.of(value)))
    if any(_is_less_than(value.type, kind) for kind in kinds):
        return False
    return len({k.numel if isinstance(k, TensorType) and k.is_static else None for k in kinds}) == 1


def _is_less_than(part: object, whole: object) -> bool:
    """Whether one tensor surely has fewer elements than another, by a size of the same dimension."""
    if not (isinstance(part, TensorType) and isinstance(whole, TensorType)):
        return False
    sizes = zip(part.shape or (), whole.shape or (), strict=False)
    return part.rank == whole.rank and any(isinstance(a, int) and isinstance(b, int) and a < b for a, b in sizes)


def _lies_placed(value: Value, aliases: Aliases) -> bool:
    """Whether a value is seen through a view that names places, and so may lie across what it shares memory with."""
    return any(step.node is not None and is_placed(step.node) for step in _chain(value, aliases.of(value)))


def _chain(value: Value, roots: frozenset[Value]) -> list[Value]:
    """A value and what it is a view of, up to the root."""
    found = []
    current: Value | None = value
    while current is not None and current not in roots:
        found.append(current)
        current = parent_of(current)
    return found


def _are_apart(node: Node, operand: Value, target: Value, aliases: Aliases) -> bool:
    """Whether what is read for an element was not written before: it is that very element, a later one, or none."""
    if len(aliases.of(operand) | aliases.of(target)) != 1:
        return False
    by_elements = is_by_elements(node.op) or node.op == "aten.copy_.default"
    if by_elements and _are_one_or_rows(operand, target, aliases):
        return True
    read, written = _places(operand, aliases), _places(target, aliases)
    if read is None or written is None:
        return False
    if by_elements:
        try:
            read = read.expand_as(written)
        except RuntimeError:
            return False
        # In the order of memory what lies further on is written later.
        (root,) = aliases.of(target)
        later = isinstance(root.type, TensorType) and root.type.strides is None
        read = read[(read < written) if later else (read != written)]
    return not bool(torch.isin(read.reshape(-1), written.reshape(-1)).any())


def _are_one_or_rows(operand: Value, target: Value, aliases: Aliases) -> bool:
    """Whether both are the same view, or take one place along the same dimensions: then they are one row, or two."""
    ours, theirs = (_views(v, aliases) for v in (operand, target))
    # Of windows, two places may have elements in common.
    are_rows = all(node.op in _ROWS for node in ours)
    return len(ours) == len(theirs) and all(_is_alike(a, b, are_rows) for a, b in zip(ours, theirs, strict=True))


def _is_alike(a: Node, b: Node, are_rows: bool) -> bool:
    if a.op != b.op or a.kwargs != b.kwargs or len(a.args) != len(b.args):
        return False
    compared = 2 if are_rows and a.op == "aten.select.int" else len(a.args)
    return a.args[1:compared] == b.args[1:compared]


def _views(value: Value, aliases: Aliases) -> list[Node]:
    """The nodes by which a value is a view of its root, but for those that give back what they get."""
    steps = [step.node for step in _chain(value, aliases.of(value))]
    return [node for node in steps if node is not None and not effects(node).writes and not _is_idle(node)]


def _is_idle(node: Node) -> bool:
    """Whether a node expands nothing: where it would, there is a stride of 0."""
    source = parent_of(node.results[0])
    if node.op != "aten.expand.default" or source is None:
        return False
    old, new = source.type, node.result.type
    if not isinstance(old, TensorType) or not isinstance(new, TensorType) or old.rank != new.rank:
        return False
    return old.strides == new.strides and (new.strides is not None or old.shape == new.shape)


def _places(value: Value, aliases: Aliases) -> torch.Tensor | None:
    """Which elements of its root a view has, as numbers in its shape; None where that is not known or too much."""
    (root,) = aliases.of(value)
    type_ = root.type
    if not isinstance(type_, TensorType) or any(type(size) is not int for size in type_.shape or (None,)):
        return None
    if type_.numel > _MOST_PLACES:
        return None
    found: object = torch.arange(type_.numel, device="cpu").view(type_.sizes)
    for step in reversed(_chain(value, aliases.of(value))):
        node = step.node
        assert node is not None
        found = found if effects(node).writes else _seen(node, step, found)
    return found if isinstance(found, torch.Tensor) and found.dtype == torch.int64 else None


def _seen(node: Node, step: Value, found: object) -> object:
    if node.op == "unpack":
        return found[node.results.index(step)] if isinstance(found, (list, tuple)) else None
    op, parent = overload(node.op), parent_of(step)
    if op is None or not isinstance(found, torch.Tensor) or set(node.operands()) != {parent}:
        return None

    def argument(arg: Arg) -> object:
        return found if isinstance(arg, Value) else to_torch(arg)

    try:
        return op(*map(argument, node.args), **{name: argument(arg) for name, arg in node.kwargs.items()})
    except (RuntimeError, TypeError, IndexError, ValueError):
        return None


__all__ = ["reads_what_it_writes"]
