"""What a rank computes where a dimension is divided that the operator goes along: sums and maxima are exchanged.

A form writes nodes and tells how each result lies; None where the node is like any other here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from smelt.ir import Arg, Node, TensorType, Value
from smelt.ops.catalogue.gradients.attention import products
from smelt.ops.catalogue.sharding import experts, places
from smelt.ops.catalogue.sharding.forming import Form, Parting, call_of, device_of, divided
from smelt.ops.catalogue.sharding.terms import dims_arg, ones_in_order, sizes_of
from smelt.ops.lowering import GraphEmitter
from smelt.ops.ranks import collectives as dist
from smelt.ops.ranks.placements import WHOLE, Partial, Placement, Replicate, Rows, Shard, offsets
from smelt.ops.registry import as_call, schema_of


def _linear(part: Parting, node: Node) -> Sequence[tuple[Value, Placement]] | None:
    """Inner dimension divided: the bias is added to the sum, once."""
    call = call_of(node)
    given, weight, bias = call["input"], call["weight"], call.get("bias")
    assert isinstance(given, Value) and isinstance(weight, Value)
    own, other = divided(part, given), divided(part, weight)
    last = len(sizes_of(given)) - 1
    if bias is None:
        return None
    inner = other if other is not None and other.dim == 1 else None
    if inner is None and own is not None and own.dim == last and other is None:
        inner = Shard(1, own.sizes, own.blocks)
    if inner is None:
        return None
    b = part.emitter
    x = part.get(given, Shard(last, inner.sizes, inner.blocks))
    made = b.call("aten.linear.default", x, part.get(weight, inner))
    return _with_bias(part, node, made, bias)


def _addmm(part: Parting, node: Node) -> Sequence[tuple[Value, Placement]] | None:
    call = call_of(node)
    left, right = call["mat1"], call["mat2"]
    assert isinstance(left, Value) and isinstance(right, Value)
    if call.get("beta", 1) != 1 or call.get("alpha", 1) != 1:
        return None
    other = divided(part, right)
    own = divided(part, left)
    inner = other if other is not None and other.dim == 0 else None
    if inner is None and own is not None and own.dim == 1 and other is None:
        inner = Shard(0, own.sizes, own.blocks)
    if inner is None:
        return None
    b = part.emitter
    x = part.get(left, Shard(1, inner.sizes, inner.blocks))
    made = b.call("aten.mm.default", x, part.get(right, inner))
    return _with_bias(part, node, made, call["self"])


def _with_bias(part: Parting, node: Node, made: Value, bias: Arg) -> Sequence[tuple[Value, Placement]]:
    total, at = part.summed(made, node)
    is_column = isinstance(at, Shard) and at.dim == len(sizes_of(node.result)) - 1
    lies = Shard(0, at.sizes, at.blocks) if isinstance(at, Shard) and is_column else WHOLE
    added = part.arg(bias, lies, entered=isinstance(at, Shard))
    return [(part.emitter.call("aten.add.Tensor", total, added), at)]


def _embedding(part: Parting, node: Node) -> Sequence[tuple[Value, Placement]] | None:
    """Rows of the table divided: each rank looks up those that it has; the others count zero."""
    call = call_of(node)
    table, places = call["weight"], call["indices"]
    assert isinstance(table, Value) and isinstance(places, Value)
    at = divided(part, table)
    if at is None or at.dim != 0 or at.blocks != 1 or divided(part, places) is not None:
        return None
    b = part.emitter
    count, start = at.local(part.rank), offsets(at.sizes)[part.rank]
    index = part.get(places, WHOLE)
    own = b.call("aten.sub.Tensor", index, start)
    outside = b.call("aten.logical_or.default", b.call("aten.lt.Scalar", own, 0), b.call("aten.ge.Scalar", own, count))
    rows = part.get(table, at)
    if count == 0:
        sizes = (*sizes_of(places), sizes_of(table)[1])
        return [(b.call("aten.new_zeros.default", rows, sizes), Partial())]
    found = b.call("aten.embedding.default", rows, b.call("aten.masked_fill.Scalar", own, outside, 0))
    zeroed = b.call("aten.masked_fill.Scalar", found, b.call("aten.unsqueeze.default", outside, -1), 0.0)
    return [(zeroed, Partial())]


def _cross_entropy(part: Parting, node: Node) -> Sequence[tuple[Value, Placement]] | None:
    call = call_of(node)
    logits, target = call["self"], call["target"]
    assert isinstance(logits, Value) and isinstance(target, Value)
    at, sizes = part.placement(logits), sizes_of(logits)
    if isinstance(at, Replicate) and isinstance(part.placement(target), Replicate):
        return None
    if call.get("weight") is not None or call.get("label_smoothing", 0.0) != 0.0 or len(sizes) != 2:
        return None
    if not isinstance(target.type, TensorType) or target.type.dtype.kind != "int":
        return None
    if isinstance(at, Shard) and at.dim == 1 and at.blocks == 1:
        return _of_classes(part, node, call, at)
    rows = at if isinstance(at, Shard) and at.dim == 0 else divided(part, target)
    return _of_rows(part, call, rows) if rows is not None else None


def _of_classes(
    part: Parting, node: Node, call: Mapping[str, Arg], at: Shard
) -> Sequence[tuple[Value, Placement]] | None:
    """Cross-entropy of logits of which each rank has some classes."""
    logits, target = call["self"], call["target"]
    assert isinstance(logits, Value) and isinstance(target, Value)
    count, start = at.local(part.rank), offsets(at.sizes)[part.rank]
    if 0 in at.sizes:
        return None
    b, axis = part.emitter, part.axis
    own = part.get(logits, at)
    wanted = part.get(target, WHOLE)
    top = b.call("aten.amax.default", b.call("aten.detach.default", own), (1,), True)
    top = b.call(dist.ALL_REDUCE, top, "max", axis)
    shifted = b.call("aten.sub.Tensor", own, top)
    total = b.call("aten.sum.dim_IntList", b.call("aten.exp.default", shifted), (1,))
    index = b.call("aten.sub.Tensor", wanted, start)
    outside = b.call(
        "aten.logical_or.default", b.call("aten.lt.Scalar", index, 0), b.call("aten.ge.Scalar", index, count)
    )
    inside = b.call("aten.unsqueeze.default", b.call("aten.masked_fill.Scalar", index, outside, 0), 1)
    chosen = b.call("aten.squeeze.dim", b.call("aten.gather.default", shifted, 1, inside), 1)
    chosen = b.call("aten.masked_fill.Scalar", chosen, outside, 0.0)
    # Both sums in one message.
    both = b.call(dist.ALL_REDUCE, b.call("aten.stack.default", (total, chosen)), "sum", axis)
    losses = b.call(
        "aten.sub.Tensor", b.call("aten.log.default", b.call("aten.select.int", both, 0, 0)),
        b.call("aten.select.int", both, 0, 1),
    )  # fmt: skip
    ignored = b.call("aten.eq.Scalar", wanted, call["ignore_index"])
    losses = b.call("aten.masked_fill.Scalar", losses, ignored, 0.0)
    return [(_combined(b, call, losses, ignored, None), WHOLE)]


def _of_rows(part: Parting, call: Mapping[str, Arg], rows: Shard) -> Sequence[tuple[Value, Placement]] | None:
    """Cross-entropy where each rank has some rows: a mean counts those of all ranks."""
    logits, target = call["self"], call["target"]
    assert isinstance(logits, Value) and isinstance(target, Value)
    b = part.emitter
    own = part.get(logits, Shard(0, rows.sizes, rows.blocks))
    wanted = part.get(target, Shard(0, rows.sizes, rows.blocks))
    losses = b.call("aten.cross_entropy_loss.default", own, wanted, None, 0, call["ignore_index"])
    if call["reduction"] == 0:
        return [(losses, Shard(0, rows.sizes, rows.blocks))]
    ignored = b.call("aten.eq.Scalar", wanted, call["ignore_index"])
    return [(_combined(b, call, losses, ignored, part.axis), Partial())]


def _combined(b: GraphEmitter, call: Mapping[str, Arg], losses: Value, ignored: Value, axis: str | None) -> Value:
    """No, mean or sum of losses, as `reduction` says. axis: along which counts are added up."""
    if call["reduction"] == 0:
        return losses
    total = b.call("aten.sum.default", losses)
    if call["reduction"] == 2:
        return total
    assert isinstance(losses.type, TensorType)
    counted = b.call("aten.to.dtype", b.call("aten.logical_not.default", ignored), losses.type.dtype)
    count = b.call("aten.sum.default", counted)
    if axis is not None:
        count = b.call(dist.ALL_REDUCE, count, "sum", axis)
    return b.call("aten.div.Tensor", total, count)


def _mean(part: Parting, node: Node) -> Sequence[tuple[Value, Placement]] | None:
    """Over a divided dimension: a rank's share of the sum, over the count of all."""
    call = call_of(node)
    given = call["self"]
    assert isinstance(given, Value)
    at = part.placement(given)
    if not isinstance(at, Shard | Rows) or (isinstance(at, Rows) and at.spare):
        return None
    sizes = sizes_of(given)
    dims = dims_arg(call.get("dim"), len(sizes))
    if dims is None or at.dim not in dims:
        return None
    b = part.emitter
    count = 1
    for dim in dims:
        count *= sizes[dim]
    result = node.result.type
    assert isinstance(result, TensorType)
    total = b.call(
        "aten.sum.dim_IntList", part.get(given, at), dims, call.get("keepdim", False), dtype=call.get("dtype")
    )
    return [(b.call("aten.div.Tensor", total, count), Partial())]


def _any(part: Parting, node: Node) -> Sequence[tuple[Value, Placement]] | None:
    """`any`, `all` of what is divided: of counts of all ranks."""
    given = node.args[0]
    assert isinstance(given, Value)
    at = divided(part, given)
    if at is None or len(node.args) > 1:
        return None
    b, is_any = part.emitter, node.op == "aten.any.default"
    count = b.call("aten.sum.default", b.call("aten.ne.Scalar" if is_any else "aten.eq.Scalar", part.get(given, at), 0))
    total = b.call(dist.ALL_REDUCE, count, "sum", part.axis)
    return [(b.call("aten.gt.Scalar" if is_any else "aten.eq.Scalar", total, 0), WHOLE)]


_LOSSES = (
    "aten.mse_loss.default", "aten.l1_loss.default", "aten.smooth_l1_loss.default", "aten.huber_loss.default",
    "aten.binary_cross_entropy_with_logits.default", "aten.binary_cross_entropy.default",
    "aten.soft_margin_loss.default",
)  # fmt: skip


def _loss(part: Parting, node: Node) -> Sequence[tuple[Value, Placement]] | None:
    """A loss by elements: a mean counts those of all ranks."""
    call = call_of(node)
    given = [v for v in node.operands() if isinstance(v.type, TensorType)]
    at = next((found for v in given if (found := divided(part, v)) is not None), None)
    if at is None or len(given) != 2 or sizes_of(given[0]) != sizes_of(given[1]):
        return None
    schema, count = schema_of(node.op), given[0].type
    assert schema is not None and isinstance(count, TensorType)
    own = {name: part.get(arg, at) for name, arg in call.items() if isinstance(arg, Value)}
    args, kwargs = as_call(schema, {**call, **own, "reduction": 2 if call["reduction"] else 0})
    made = part.emitter.call(node.op, *args, **kwargs)
    if call["reduction"] == 0:
        return [(made, at)]
    return [(made if call["reduction"] == 2 else part.emitter.call("aten.div.Tensor", made, count.numel), Partial())]


def _nll(part: Parting, node: Node) -> Sequence[tuple[Value, Placement]] | None:
    """Of rows, as cross-entropy."""
    call = call_of(node)
    given, target = call["self"], call["target"]
    assert isinstance(given, Value) and isinstance(target, Value)
    at = divided(part, given)
    rows = at if at is not None and at.dim == 0 else divided(part, target)
    if rows is None or call.get("weight") is not None or len(sizes_of(given)) != 2:
        return None
    own = part.get(given, Shard(0, rows.sizes, rows.blocks))
    wanted = part.get(target, Shard(0, rows.sizes, rows.blocks))
    losses = part.emitter.call(node.op, own, wanted, None, 0, call["ignore_index"])
    if call["reduction"] == 0:
        return [(losses, Shard(0, rows.sizes, rows.blocks))]
    ignored = part.emitter.call("aten.eq.Scalar", wanted, call["ignore_index"])
    return [(_combined(part.emitter, call, losses, ignored, part.axis), Partial())]


def _dropout(part: Parting, node: Node) -> Sequence[tuple[Value, Placement]] | None:
    """The numbers that one process would draw: all ranks draw all of them, and use their part."""
    call = call_of(node)
    given, p = call["input"], call["p"]
    assert isinstance(given, Value) and isinstance(given.type, TensorType)
    at = part.placement(given)
    if isinstance(at, Replicate) or call["train"] is False or p == 0:
        return None
    if not isinstance(at, Shard):
        return None
    b = part.emitter
    return [(b.call("aten.mul.Tensor", part.get(given, at), _noise(part, node, given.type, p, at)), at)]


def _noise(part: Parting, node: Node, type_: TensorType, p: Arg, at: Shard) -> Value:
    """This rank's part of what dropout multiplies with."""
    b = part.emitter
    if part.forks(node):
        sizes = list(type_.sizes)
        sizes[at.dim] = at.local(part.rank)
        own = b.call("aten.ones.default", tuple(sizes), dtype=type_.dtype, device=device_of(type_))
        return b.call(dist.OWN_NOISE, own, p, part.rank, part.axis)
    noise = b.call("aten.dropout.default", ones_in_order(b, type_), p, True)
    return b.call(dist.SHARD, noise, at.dim, at.sizes, at.blocks, part.rank, part.axis)


def _attention(part: Parting, node: Node) -> Sequence[tuple[Value, Placement]] | None:
    """Attention with dropout: written out, with the numbers that one process would draw."""
    call = call_of(node)
    query, key, value = (call[name] for name in ("query", "key", "value"))
    assert isinstance(query, Value) and isinstance(key, Value) and isinstance(value, Value)
    p, sizes, others = call.get("dropout_p", 0.0), sizes_of(query), sizes_of(key)
    if p == 0.0 or len(sizes) != 4 or len(others) != 4 or sizes_of(value)[1] != others[1]:
        return None
    shared = sizes[1] // others[1] if call.get("enable_gqa") is True and others[1] else 1
    at = divided(part, query)
    if at is None:
        of_keys = next((s for v in (key, value) if (s := divided(part, v)) is not None), None)
        at = of_keys if of_keys is None or of_keys.dim != 1 else _times(of_keys, shared)
    if at is None or at.dim > 1 or (at.dim == 1 and any(n % shared for n in at.sizes)):
        return None
    of_keys = Shard(1, tuple(n // shared for n in at.sizes), at.blocks) if at.dim == 1 else at
    if of_keys.total != others[at.dim] or at.total != sizes[at.dim]:
        return None
    own = {"query": part.get(query, at), "key": part.get(key, of_keys), "value": part.get(value, of_keys)}
    whole, mask = (*sizes[:3], others[2]), call.get("attn_mask")
    own_mask = _like_scores(part, mask, whole, at) if isinstance(mask, Value) else None

    def drop(weights: Value) -> Value:
        assert isinstance(weights.type, TensorType)
        noise = _noise(part, node, TensorType(weights.type.dtype, whole, None, weights.type.device), p, at)
        return part.emitter.call("aten.mul.Tensor", weights, noise)

    return [(products(part.emitter, {**call, **own, "attn_mask": own_mask}, drop), at)]


def _times(at: Shard, count: int) -> Shard:
    return Shard(at.dim, tuple(n * count for n in at.sizes), at.blocks)


def _like_scores(part: Parting, mask: Value, whole: tuple[int, ...], at: Shard) -> Value:
    """A mask beside scores of which a dimension is divided."""
    sizes = sizes_of(mask)
    dim = at.dim - (4 - len(sizes))
    if dim >= 0 and sizes[dim] == whole[at.dim] and whole[at.dim] > 1:
        return part.get(mask, Shard(dim, at.sizes, at.blocks))
    return part.get(mask, WHOLE, entered=True)


def _batch_norm(part: Parting, node: Node) -> Sequence[tuple[Value, Placement]] | None:
    """In training, with the batch divided: statistics are those of all ranks' images."""
    call = call_of(node)
    given = call["input"]
    assert isinstance(given, Value) and isinstance(given.type, TensorType)
    at = divided(part, given)
    if at is None or at.dim == 1 or node.op != "aten._native_batch_norm_legit_functional.default":
        return None
    b, axis = part.emitter, part.axis
    sizes = given.type.sizes
    count = given.type.numel // sizes[1]
    over = tuple(i for i in range(len(sizes)) if i != 1)
    x = part.get(given, at)

    def mean_of(value: Value) -> Value:
        total = b.call("aten.sum.dim_IntList", value, over)
        total = b.call(dist.ALL_REDUCE, total, "sum", axis)
        return b.call("aten.div.Tensor", total, count)

    def spread(value: Value) -> Value:
        return b.call("aten.view.default", value, (1, sizes[1], *(1 for _ in sizes[2:])))

    mean = mean_of(x)
    # Each rank's use of what all have is its own from here on.
    centered = b.call("aten.sub.Tensor", x, spread(b.call(dist.ENTER, mean, axis)))
    var = mean_of(b.call("aten.mul.Tensor", centered, centered))
    eps, momentum = call["eps"], call["momentum"]
    invstd = b.call("aten.rsqrt.default", b.call("aten.add.Tensor", var, eps))
    made = b.call("aten.mul.Tensor", centered, spread(b.call(dist.ENTER, invstd, axis)))
    weight, bias = call.get("weight"), call.get("bias")
    if isinstance(weight, Value):
        made = b.call("aten.mul.Tensor", made, spread(part.get(weight, WHOLE, entered=True)))
    if isinstance(bias, Value):
        made = b.call("aten.add.Tensor", made, spread(part.get(bias, WHOLE, entered=True)))
    assert isinstance(momentum, int | float)
    unbiased = b.call("aten.mul.Tensor", b.call("aten.detach.default", var), count / max(count - 1, 1))
    running = []
    for name, new in (("running_mean", b.call("aten.detach.default", mean)), ("running_var", unbiased)):
        old = part.arg(call[name], WHOLE)
        kept = b.call("aten.mul.Tensor", old, 1 - momentum)
        running.append(b.call("aten.add.Tensor", kept, b.call("aten.mul.Tensor", new, momentum)))
    return [(made, at), (mean, WHOLE), (invstd, WHOLE), (running[0], WHOLE), (running[1], WHOLE)]


Wants: TypeAlias = Callable[[Mapping[str, Arg], str, Shard], "Mapping[str, Shard] | None"]
"""Where an argument of a call lies so: how a form wants others; None where there is no form for it."""


def _wants_inner(left: str, right: str, side: int) -> Wants:
    def wants(call: Mapping[str, Arg], name: str, at: Shard) -> Mapping[str, Shard] | None:
        last = len(sizes_of(call[left])) - 1
        if name == left and at.dim == last:
            return {right: Shard(side, at.sizes, at.blocks)}
        if name == right and at.dim == side:
            return {left: Shard(last, at.sizes, at.blocks)}
        return None

    return wants


def _wants_rows(call: Mapping[str, Arg], name: str, at: Shard) -> Mapping[str, Shard] | None:
    return {} if name == "weight" and at.dim == 0 and at.blocks == 1 else None


def _wants_classes(call: Mapping[str, Arg], name: str, at: Shard) -> Mapping[str, Shard] | None:
    plain = call.get("weight") is None and call.get("label_smoothing", 0.0) == 0.0
    return {} if plain and name == "self" and at.dim == 1 and at.blocks == 1 else None


WANTS: Mapping[str, Wants] = MappingProxyType({
    "aten.linear.default": _wants_inner("input", "weight", 1), "aten.addmm.default": _wants_inner("mat1", "mat2", 0),
    "aten.embedding.default": _wants_rows, "aten.cross_entropy_loss.default": _wants_classes,
})  # fmt: skip
"""Of forms that end a division: their results are whole, or sums."""

FORMS: Mapping[str, Form] = MappingProxyType({
    "aten.linear.default": _linear, "aten.addmm.default": _addmm, "aten.embedding.default": _embedding,
    "aten.cross_entropy_loss.default": _cross_entropy, "aten.mean.dim": _mean, "aten.mean.default": _mean,
    "aten.dropout.default": _dropout, "aten.scaled_dot_product_attention.default": _attention,
    "aten._native_batch_norm_legit_functional.default": _batch_norm, **experts.FORMS, **places.FORMS,
    "aten.any.default": _any, "aten.all.default": _any, "aten.nll_loss_nd.default": _nll,
    **dict.fromkeys(_LOSSES, _loss),
})  # fmt: skip
