"""torch's two operators of gradient scaling (`torch.amp.GradScaler`), in the operators that they consist of.

    _amp_foreach_non_finite_check_and_unscale_([%g], %found, %inverse)
        ==>   %bad = any(logical_not(isfinite(%g))); masked_fill_(%found, %bad, 1); mul_(%g, %inverse)
    _amp_update_scale_(%scale, %tracker, %found, 2.0, 0.5, 2000)
        ==>   %bad = ne(%found, 0); copy_(%scale, where(%bad, %scale * 0.5, ...)); copy_(%tracker, ...)

Whether a gradient overflowed stays a tensor: nothing here asks for its value.
"""

from __future__ import annotations

from smelt.ir import Arg, DType, Value
from smelt.ops.lowering import GraphEmitter
from smelt.ops.registry import arguments_of, schema_of
from smelt.rewrite import Rewriter

_UNSCALE = "aten._amp_foreach_non_finite_check_and_unscale_.default"
_UPDATE = "aten._amp_update_scale_.default"


def write_scaling_out(rewriter: Rewriter, emit: GraphEmitter) -> None:
    """Write out such operators."""
    for node in list(rewriter.graph.walk()):
        if node.op not in (_UNSCALE, _UPDATE):
            continue
        schema = schema_of(node.op)
        assert schema is not None
        call = arguments_of(schema, node.args, node.kwargs)
        if node.op == _UPDATE:
            with rewriter.builder.at(node):
                made = _update(emit, call)
            rewriter.replace_node(node, [made])
        elif isinstance(grads := call["self"], tuple) and all(isinstance(one, Value) for one in grads):
            with rewriter.builder.at(node):
                _unscale(emit, grads, call["found_inf"], call["inv_scale"])
            rewriter.erase(node)


def _unscale(emit: GraphEmitter, grads: tuple[Arg, ...], found: Arg, inverse: Arg) -> None:
    bad: Value | None = None
    for grad in grads:
        infinite = emit.call("aten.logical_not.default", emit.call("aten.isfinite.default", grad))
        one = emit.call("aten.any.default", infinite)
        bad = one if bad is None else emit.call("aten.logical_or.default", bad, one)
    if bad is None:
        return
    emit.node("aten.masked_fill_.Scalar", (found, bad, 1.0))
    for grad in grads:
        emit.node("aten.mul_.Tensor", (grad, inverse))


def _update(emit: GraphEmitter, call: dict[str, Arg]) -> Value:
    scale, tracker = call["self"], call["growth_tracker"]
    bad = emit.call("aten.ne.Scalar", call["found_inf"], 0)
    count = emit.call("aten.add.Tensor", tracker, 1)
    is_full = emit.call("aten.eq.Scalar", count, call["growth_interval"])
    grown = _times(emit, scale, call["scale_growth_factor"])
    grows = emit.call("aten.logical_and.default", is_full, emit.call("aten.isfinite.default", grown))
    kept = emit.call("aten.where.self", grows, grown, scale)
    shrunk = _times(emit, scale, call["scale_backoff_factor"])
    starts = emit.call("aten.logical_or.default", bad, is_full)
    counted = emit.call("aten.masked_fill.Scalar", count, starts, 0)
    emit.node("aten.copy_.default", (tracker, counted))
    return emit.node("aten.copy_.default", (scale, emit.call("aten.where.self", bad, shrunk, kept))).result


def _times(emit: GraphEmitter, scale: Arg, factor: Arg) -> Value:
    """The product as a double, rounded once."""
    wide = emit.call("aten._to_copy.default", scale, dtype=DType.F64)
    return emit.call("aten._to_copy.default", emit.call("aten.mul.Tensor", wide, factor), dtype=DType.F32)
