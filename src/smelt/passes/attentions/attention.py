"""See attention where it is spelled out, and run it as one operator.

    %1 = matmul %q, (transpose %k)            %1 = scaled_dot_product_attention %q, %k, %v, %mask, scale = s
    %2 = mul %1, s                            %2 = amin (nan_to_num (sum (mul %k, 0)), inf)
    %3 = add %2, %mask               ==>      %3 = add (sum (mul %q, 0)), (mul %2, 0)
    %4 = softmax %3, -1                       %4 = add %3, (mul (amax %mask), 0)
    %5 = matmul %4, %v                        %5 = add %1, %4

The kernel answers 0 for a query whose scores are all -inf or NaN; spelled out, its softmax is NaN. So a term is added
that is 0, and NaN where the query is not finite, where no key is, or where the mask's row is all -inf, or holds NaN or
inf. Left out by `attention_fast`. An own kernel computes both as one (`attention_guard.guard_nodes` finds the term).

Heads of keys and values that were repeated for the query heads that share them are taken as they were before.

Bounds: a score that is not finite though its query is, under a mask that replaces scores (`masked_fill`, `where`),
gives NaN here; finite queries and keys whose products all overflow to -inf give 0 here. A mask that replaces scores
must do so with -inf, or a number that swallows every finite score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch

from smelt._torch.library.products import attention_is_flash
from smelt.ir import Arg, Device, DType, Graph, MemoryFormat, Node, TensorType, Type, Value
from smelt.ir.sizes import equals, is_one
from smelt.ops.convert import dummy_of
from smelt.ops.effects import alias_of
from smelt.ops.lowering import GraphEmitter
from smelt.ops.shapes.points import at_points
from smelt.passes.attentions.attention_guard import ATTENTION, guard
from smelt.passes.attentions.attention_heads import shared_heads
from smelt.passes.attentions.attention_match import Mask, Spelled, find
from smelt.passes.base import Pass, PassContext, call_of, can_erase, emitter
from smelt.passes.layouts import plan_layouts, set_layouts
from smelt.passes.matching import Disturbances, is_autocast, same_sizes, static_tensor
from smelt.rewrite import Match, Rewriter, Rule, apply_rules, op

_RESHAPE = "aten.reshape.default"
_DTYPES = (DType.F32, DType.F64, DType.BF16)


class _Unfit(Exception):
    """The operands cannot be brought into the form that the kernel takes."""


def _runner(is_guarded: bool) -> Callable[[Graph, PassContext], bool]:
    def run(graph: Graph, context: PassContext) -> bool:
        rewriter = context.rewriter(graph)
        disturbances = Disturbances(graph)

        def build(rewriter: Rewriter, match: Match) -> Arg:
            spelled = find(match.root)
            if spelled is None or disturbances.between(rewriter, spelled.first, match.root):
                return None
            try:
                return _build(rewriter, spelled, is_guarded)
            except _Unfit:
                return None

        def share(rewriter: Rewriter, match: Match) -> Arg:
            return _shared(rewriter, match.root)

        root = op(("aten.matmul.default", "aten.bmm.default"), open_ended=True)
        rules = (Rule("attention", root, build), Rule("shared heads", op(ATTENTION, open_ended=True), share))
        apply_rules(rewriter, rules, can_erase=can_erase)
        return rewriter.edits > 0

    return run


def _build(rewriter: Rewriter, spelled: Spelled, is_guarded: bool) -> Value | None:
    """The attention in the root's place, with the root's type; None where it would not run as one kernel."""
    emit = emitter(rewriter)
    scores, old = static_tensor(spelled.scores), static_tensor(spelled.root.result)
    if scores is None or old is None or scores.numel == 0 or old.numel == 0:
        return None
    lead = _lead(scores.sizes[:-2])
    if lead is None:
        return None
    query, key, value = (
        _four(emit, v, scores.sizes[:-2], lead) for v in (spelled.query, spelled.key(emit), spelled.value)
    )
    mask = _additive(emit, spelled, lead, query)
    bases = [shared_heads(v, lead[1]) for v in (key, value)]
    is_shared = all(base is not None for base in bases) and _sizes(bases[0])[:2] == _sizes(bases[1])[:2]
    if is_shared:
        key, value = (base for base in bases if base is not None)
    if not _is_one_kernel(query, key, value, mask, spelled.scale):
        return None
    made = emit.call(ATTENTION, query, key, value, mask, scale=spelled.scale, enable_gqa=is_shared)
    if is_guarded:
        made = emit.call("aten.add.Tensor", made, guard(emit, query, key, mask))
    if static_tensor(made) != old and len(old.sizes) != 4:
        made = emit.call(_RESHAPE, made, old.sizes)
    return _in_place_of(rewriter, emit, spelled.root.result, made)


def _shared(rewriter: Rewriter, node: Node) -> Value | None:
    """The attention with keys and values as they were before they were repeated, where eager would run one kernel."""
    call = call_of(node)
    query, key, value, mask = (call[name] for name in ("query", "key", "value", "attn_mask"))
    if not isinstance(query, Value) or not isinstance(key, Value) or not isinstance(value, Value):
        return None
    sizes, dropout, scale = _sizes(query), call["dropout_p"], call["scale"]
    if len(sizes) != 4 or dropout != 0 or call["enable_gqa"] or is_autocast(node):
        return None
    if not (mask is None or isinstance(mask, Value)) or not (scale is None or isinstance(scale, float)):
        return None
    keys, values = shared_heads(key, sizes[1]), shared_heads(value, sizes[1])
    if keys is None or values is None or _sizes(keys)[1] != _sizes(values)[1]:
        return None
    if not all(
        _is_one_kernel(query, *pair, mask, scale, bool(call["is_causal"])) for pair in ((key, value), (keys, values))
    ):
        return None
    made = emitter(rewriter).call(
        ATTENTION, query, keys, values, mask, 0.0, call["is_causal"], scale=scale, enable_gqa=True
    )
    return made if made.type == node.result.type else None


def _sizes(value: Value | None) -> tuple[int, ...]:
    type_ = static_tensor(value)
    return () if type_ is None else type_.sizes


def _lead(sizes: tuple[int, ...]) -> tuple[int, int] | None:
    """Batch and heads of the four dimensions that the kernel takes."""
    match sizes:
        case (batch, heads):
            return batch, heads
        case (batch,):
            return batch, 1
        case ():
            return 1, 1
    return None


def _sized(emit: GraphEmitter, value: Value, sizes: tuple[int, ...]) -> Value:
    """The value seen in other sizes. Raises: _Unfit where its strides do not allow that."""
    type_ = static_tensor(value)
    if type_ is None or same_sizes(type_.sizes, sizes):
        return value
    made = emit.call(_RESHAPE, value, sizes)
    if made.node is None or alias_of(made.node) is None:
        raise _Unfit
    return made


def _four(emit: GraphEmitter, value: Value, leading: tuple[int, ...], lead: tuple[int, int]) -> Value:
    """An operand or mask, whose leading sizes are those of the scores or broadcast to them, in four dimensions.

    Raises: _Unfit where its strides or sizes do not allow it.
    """
    type_ = static_tensor(value)
    if type_ is None:
        raise _Unfit
    sizes = (1,) * (2 - len(type_.sizes)) + type_.sizes
    own = (1,) * (len(leading) - len(sizes) + 2) + sizes[:-2]
    if same_sizes(own, leading) or equals(prod(own), prod(lead)):
        own = lead
    elif is_one(prod(own)):
        own = (1, 1)
    elif not same_sizes(leading, lead) or len(own) != 2:
        raise _Unfit
    return _sized(emit, value, (*own, *sizes[-2:]))


def _additive(emit: GraphEmitter, spelled: Spelled, lead: tuple[int, int], query: Value) -> Value | None:
    """All masks as one that is added to the scores."""
    total: Value | None = None
    kind = static_tensor(query)
    assert kind is not None
    for mask in spelled.masks:
        added = _four(emit, _as_added(emit, mask, kind), mask.scores.sizes[:-2], lead)
        total = added if total is None else emit.call("aten.add.Tensor", total, added)
    type_ = static_tensor(total)
    if total is not None and (type_ is None or type_.dtype is not kind.dtype):
        raise _Unfit
    return total


def _as_added(emit: GraphEmitter, mask: Mask, kind: TensorType) -> Value:
    if mask.fill is None:
        return mask.value
    if mask.scores.dtype is not kind.dtype:
        # The number is one of the scores' dtype, and may be no number of the kernel's.
        raise _Unfit
    zero = emit.call("aten.zeros.default", (), dtype=kind.dtype, device=Device(kind.device))
    if mask.fills_where_set:
        return emit.call("aten.where.ScalarSelf", mask.value, mask.fill, zero)
    return emit.call("aten.where.ScalarOther", mask.value, zero, mask.fill)


def _is_one_kernel(
    query: Value, key: Value, value: Value, mask: Value | None, scale: float | None, is_causal: bool = False
) -> bool:
    types = [static_tensor(v) for v in (query, key, value)]
    kind = types[0]
    if kind is None or kind.dtype not in _DTYPES or kind.device != "cpu":
        return False
    if any(t is None or t.dtype is not kind.dtype or not equals(t.sizes[0], kind.sizes[0]) for t in types):
        return False
    is_shared = _sizes(key)[1] < _sizes(query)[1]
    mask_type = static_tensor(mask)
    shapes = [t for t in (*types, mask_type) if t is not None]
    return all(_runs_flash(tried, is_causal, scale, is_shared) for tried in at_points(shapes))


def _runs_flash(types: Sequence[Type], is_causal: bool, scale: float | None, is_shared: bool) -> bool:
    """Whether eager runs its flash kernel for query, key, value and mask of these types."""
    q, k, v, *masks = (dummy_of(t) for t in types if isinstance(t, TensorType))
    if torch.empty_like(q, device="meta").stride(-1) != 1:
        # The kernel lays its result as the query lies, and writes rows: wrong where a query's elements share places.
        return False
    bias = masks[0] if masks else None
    return attention_is_flash(q, k, v, bias, is_causal=is_causal, scale=scale, enable_gqa=is_shared)


def _in_place_of(rewriter: Rewriter, emit: GraphEmitter, old: Value, made: Value) -> Value | None:
    """The new value itself where all users take its strides, else a copy with the old ones."""
    if made.type == old.type:
        return made
    assert isinstance(made.type, TensorType) and isinstance(old.type, TensorType)
    plan = plan_layouts({old: made.type})
    if plan is not None:
        set_layouts(rewriter, {old: made}, plan)
        return made
    copied = emit.call("aten.clone.default", made, memory_format=MemoryFormat("contiguous_format"))
    return copied if copied.type == old.type else None


attention = Pass(
    "attention",
    "%1 = matmul %q, %kT; %2 = mul %1, s; %3 = softmax %2, -1; %4 = matmul %3, %v   ==>   "
    "%4 = scaled_dot_product_attention %q, %k, %v, scale = s",
    _runner(is_guarded=True),
    rounding=True,
)
attention_fast = Pass(
    "attention-fast",
    "as attention, but a query whose scores are all -inf or NaN gives 0 instead of NaN",
    _runner(is_guarded=False),
    rounding=True,
)
