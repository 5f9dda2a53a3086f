"""What operators do on padded tensors: one rule each, told what the node is asked and what stands for its operands.

A rule gives what stands for the node's results, or raises Refused; then the node gets exact tensors. Invariant: what
counts of a result is computed of what counts, by the operators that would compute it exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from smelt.codegen.lower.unknown import packing, padded_views, rows, selecting
from smelt.codegen.lower.unknown.labelled import labelled
from smelt.codegen.lower.unknown.padded_views import dim_of
from smelt.codegen.lower.unknown.selecting import counts_of
from smelt.codegen.lower.unknown.splitting import join_along, split
from smelt.codegen.lower.unknown.values import (
    Buffer,
    Count,
    Held,
    Padded,
    Parts,
    Refused,
    literal,
    padded_or_value,
    row_of,
    same_count,
    size_of,
    type_of,
)
from smelt.ir import Arg, MemoryFormat, Node, TensorType, Value, map_values
from smelt.ops.catalogue.indexing import BY_INDEX
from smelt.ops.catalogue.packed import PACK, PACKED_LAYERS, PAD
from smelt.ops.raises import is_division
from smelt.ops.record import Trait
from smelt.ops.registry import overload, tags_of
from smelt.ops.sets import where

if TYPE_CHECKING:
    from smelt.codegen.lower.unknown.rewriting import Rewriting

Call: TypeAlias = Mapping[str, Arg]
Rule: TypeAlias = "Callable[[Rewriting, Node, Call], Sequence[Held]]"

_SAME_SHAPE = where(Trait.SAME_SHAPE)


def rule_for(op: str) -> Rule | None:
    """The rule of an operator."""
    found = RULES.get(op)
    if found is None and (op in _SAME_SHAPE or "pointwise" in tags_of(op)):
        return _pointwise
    return found


def _pointwise(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    if "nondeterministic_seeded" in tags_of(node.op):
        raise Refused("random numbers")
    if (found := overload(node.op)) is not None and is_division(found) and not _is_safe_division(r, node):
        raise Refused("a division of integers")  # what does not count may be 0
    made = r.emit.many(node.op, *_wholes(r, node.args), **_wholes_of(r, node.kwargs))
    return [padded_or_value(result, _broadcast(r, node, len(type_of(result).sizes))) for result in made]


def _is_safe_division(r: Rewriting, node: Node) -> bool:
    divisor = node.args[1]
    if not isinstance(divisor, Value):
        return type(divisor) in (int, float) and divisor != 0
    held = r.held[divisor]
    dtypes = [v.type.dtype.kind for v in node.operands() if isinstance(v.type, TensorType)]
    return not isinstance(held, Padded) or all(kind == "float" for kind in dtypes)


def _wholes(r: Rewriting, args: Sequence[Arg]) -> list[Arg]:
    return [map_values(arg, r.whole) for arg in args]


def _wholes_of(r: Rewriting, kwargs: Mapping[str, Arg]) -> dict[str, Arg]:
    return {name: map_values(arg, r.whole) for name, arg in kwargs.items()}


def _broadcast(r: Rewriting, node: Node, rank: int) -> list[Count | None]:
    """The counts of what operands of these counts give together. Raises: Refused where they may differ."""
    counts: list[Count | None] = [None] * rank
    tensors = [
        h for v in node.operands() if isinstance(v.type, TensorType) and isinstance(h := r.held[v], (Padded, Value))
    ]
    for held in tensors:
        if isinstance(held, Padded):
            for dim, count in enumerate(reversed(held.counts), 1):
                known = counts[-dim] if dim <= rank else None
                if count is None:
                    continue
                if known is not None and not same_count(known, count):
                    raise Refused("sizes that may differ")
                counts[-dim] = count
    for held in tensors:
        sizes = held.type.sizes if isinstance(held, Padded) else type_of(held).sizes
        for dim, size in enumerate(reversed(sizes), 1):
            is_counted = isinstance(held, Padded) and held.counts[-dim] is not None
            if counts[-dim] is not None and not is_counted and size != 1:
                raise Refused("a size that may be another")
    return counts


# --- sizes and sequences


def _size(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    held, dim = r.get(node.args[0]), node.args[1] if len(node.args) > 1 else 0
    if isinstance(held, Buffer) and node.op == "py.len":
        return [held.count]
    if not isinstance(held, (Padded, Value)) or type(dim) is not int:
        raise Refused("a size of a sequence")
    return [size_of(held, dim)]


def _numel(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    held = r.get(node.args[0])
    if not isinstance(held, Padded):
        raise Refused("it is no tensor")
    total: Count = 1
    for dim, count in enumerate(held.counts):
        if count is None:
            total = r.emit.number("mul", total, held.type.sizes[dim])
    for count in held.counts:
        if count is not None:
            total = r.emit.number("mul", count, total)
    return [total]


def _is_there(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    """Whether a list has items."""
    held = r.get(node.args[0])
    if not isinstance(held, Buffer):
        raise Refused("it is no list of ours")
    return [r.emit("py.gt", held.count, 0) if isinstance(held.count, Value) else held.count > 0]


def _rank(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    held = r.get(node.args[0])
    if not isinstance(held, Padded):
        raise Refused("it is no tensor")
    return [len(held.counts)]


def _unpack(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    held = r.get(node.args[0])
    if not isinstance(held, Parts):
        raise Refused("it is no sequence of ours")
    return held.held


def _append(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    held, item = (r.get(arg) for arg in node.args)
    if not isinstance(held, Buffer):
        raise Refused("it is no list of ours")
    added = row_of(r.emit, item, held.element)
    emit, sizes = r.emit, type_of(held.rows).sizes
    row = emit("aten.arange.default", sizes[0])
    if len(sizes) > 1:
        row = emit("aten.view.default", row, (sizes[0], *([1] * (len(sizes) - 1))))
    here = emit("aten.eq.Scalar", row, held.count)
    rows = emit("aten.where.self", here, added, held.rows)
    return [Buffer(rows, emit.number("add", held.count, 1), held.start)]


def _stack(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    held = r.get(node.args[0]) if isinstance(node.args[0], Value) else None
    if isinstance(held, Buffer):
        if r.facts.at_least(held.count) < 1:
            raise Refused("of a list that may be empty")
        rank = len(held.element.sizes) + 1
        at = dim_of(call.get("dim", 0), rank)
        rows = held.rows
        if at:
            order = (*range(1, at + 1), 0, *range(at + 1, rank))
            rows = r.emit("aten.permute.default", rows, order)
            rows = r.emit("aten.clone.default", rows, memory_format=MemoryFormat("contiguous_format"))
        return [Padded(rows, tuple(held.count if dim == at else None for dim in range(rank)))]
    return _joined(r, node, call)


def _called(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    held = r.get(node.args[1]) if len(node.args) > 1 else None
    made = node.result.type
    if not isinstance(held, Buffer) or not isinstance(made, TensorType) or held.element.dtype is not made.dtype:
        raise Refused("a call of Python's")
    return [Padded(held.rows, (held.count,))]


def _concatenated(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    held = r.get(node.args[0]) if isinstance(node.args[0], Value) else None
    if not isinstance(held, Buffer):
        return _joined(r, node, call)
    sizes = held.element.sizes
    if call.get("dim", 0) != 0 or not sizes or r.facts.at_least(held.count) < 1:
        raise Refused("of a list that may be empty")
    rows = r.emit("aten.view.default", held.rows, (type_of(held.rows).sizes[0] * sizes[0], *sizes[1:]))
    count = r.emit.number("mul", held.count, sizes[0])
    return [Padded(rows, (count, *([None] * (len(sizes) - 1))))]


def _joined(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    """Tensors side by side along a dimension that is not counted, with equal counts in the others."""
    items, dim = node.args[0], call.get("dim", 0)
    if not isinstance(items, tuple) or type(dim) is not int:
        raise Refused("a list")
    held = [r.held[v] for v in items if isinstance(v, Value)]
    along = _counted_join(node, dim, held)
    if along is not None:
        return join_along(r, [h for h in held if isinstance(h, (Padded, Value))], along)
    return labelled(r, node, call)


def _counted_join(node: Node, dim: int, held: Sequence[Held]) -> int | None:
    """The dimension along which tensors are joined, where that is counted in some of them; None elsewhere."""
    if node.op != "aten.cat.default" or not all(isinstance(h, (Padded, Value)) for h in held):
        return None
    counts = [counts_of(h) for h in held if isinstance(h, (Padded, Value))]
    ranks = {len(c) for c in counts}
    if len(ranks) != 1 or not -max(ranks) <= dim < max(ranks):
        return None
    along = dim % max(ranks)
    return along if any(c[along] is not None for c in counts) else None


def _made_of_counts(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    """`zeros(n, 4)`, `arange(n)` of counts."""
    name = "size" if "size" in call else "end"
    size = call[name]
    wanted = [r.get(s) for s in (size if isinstance(size, tuple) else (size,))]
    counts: list[Count | None] = []
    most: list[int] = []
    for number in wanted:
        if isinstance(number, Value) and number in r.bounds:
            counts.append(number)
            most.append(r.bounds[number])
        elif isinstance(number, int) and not isinstance(number, bool):
            counts.append(None)
            most.append(number)
        else:
            raise Refused("a number that is no count")
    args, kwargs = list(node.args), dict(node.kwargs)
    new: Arg = tuple(most) if name == "size" else most[0]
    if name in kwargs:
        kwargs[name] = new
    else:
        args[args.index(size)] = new
    made = r.emit(node.op, *_wholes(r, args), **_wholes_of(r, kwargs))
    if not all(literal(a) for a in (*args[1:], *kwargs.values())):
        raise Refused("a number that is known later")
    return [padded_or_value(made, counts)]


RULES: dict[str, Rule] = {
    # what selects by data
    "aten.nonzero.default": selecting.positions,
    "aten.argwhere.default": selecting.positions,
    "aten.nonzero_numpy.default": selecting.columns_of_positions,
    "aten.where.default": selecting.columns_of_positions,
    "aten.masked_select.default": selecting.selected_by_mask,
    "aten.index.Tensor": selecting.index_by_tensors,
    BY_INDEX: selecting.select_by_index,
    "aten.embedding.default": selecting.rows_of_table,
    "aten.index_put.default": selecting.index_written,
    "aten.index_add.default": selecting.index_added,
    # views
    "aten.select.int": padded_views.select,
    "aten.slice.Tensor": padded_views.slice_of,
    "aten.slice_scatter.default": padded_views.slice_scattered,
    **dict.fromkeys(where(Trait.TO_SIZES), padded_views.view),
    "aten.flatten.using_ints": padded_views.flatten,
    "aten.expand.default": padded_views.expand,
    # by labels of dimensions: moved, along rows, products; over rows
    **dict.fromkeys(
        (
            "aten.unsqueeze.default", "aten.squeeze.dim", "aten.permute.default", "aten.transpose.int",
            "aten.t.default", "aten.layer_norm.default", "aten.rms_norm.default", "aten.linear.default",
            "aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.addmm.default", "aten.softmax.int",
            "aten._softmax.default", "aten.log_softmax.int", "aten._log_softmax.default", "aten.cumsum.default",
            "aten.cumprod.default", "aten.sort.default", "aten.argsort.default", "aten.topk.default",
        ),
        labelled,
    ),
    **dict.fromkeys(
        (
            *rows.NEUTRAL_OF, *rows.EXTREMES, "aten.argmax.default", "aten.argmin.default", "aten.logsumexp.default",
            "aten.linalg_vector_norm.default", "aten.var.correction", "aten.std.correction",
        ),
        rows.reduced,
    ),
    **dict.fromkeys(("aten.mean.default", "aten.mean.dim"), rows.mean),
    # packed sequences
    PACK: packing.pack,
    PAD: packing.pad,
    **dict.fromkeys(PACKED_LAYERS, packing.run),
    # what asks, what makes tensors, lists
    **dict.fromkeys(("aten.sym_size.int", "aten.size.int", "py.len"), _size),
    **dict.fromkeys(("aten.sym_numel.default", "aten.numel.default"), _numel),
    "aten.dim.default": _rank,
    "unpack": _unpack,
    "aten.split_with_sizes.default": split,
    "py.append": _append,
    "py.bool": _is_there,
    "py.call": _called,
    "aten.stack.default": _stack,
    "aten.cat.default": _concatenated,
    **dict.fromkeys(
        ("aten.zeros.default", "aten.ones.default", "aten.full.default", "aten.arange.default"), _made_of_counts
    ),
}  # fmt: skip
