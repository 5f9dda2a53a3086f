"""Bilinear resampling: behind the 1x1 convolution that reads it where that is less work, and then as gathers.

    %u = upsample_bilinear2d %x, [32, 32]                %a = conv2d %y, slice %w, %b
    %j = cat [%y, %u], 1                          ==>    %u = upsample_bilinear2d (conv2d %x, slice %w), [32, 32]
    %1 = conv2d %j, %w, %b      (%w: 1x1)                %1 = add %a, %u

A 1x1 convolution mixes channels, resampling mixes pixels, and both are sums: in either order the same products are
added up. The convolution is then computed for the pixels that there are, not for those made of them. The weights of a
resampled pixel add up to 1, so a constant, the bias, comes out as it went in: it is added in one part only. What is
infinite or NaN meets the same weights, zeros among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from smelt.diag.records import record
from smelt.ir import Arg, DType, Graph, Node, Value
from smelt.ops.catalogue.resampling import BILINEAR, lower_bilinear
from smelt.ops.record import Call, Emitter
from smelt.passes.base import Pass, PassContext, call_of
from smelt.passes.layers.decompose import lower_node
from smelt.passes.matching import Disturbances, is_autocast, sole_node, static_tensor
from smelt.rewrite import Rewriter

_CONVOLUTION = "aten.conv2d.default"
_JOIN = "aten.cat.default"

_FLOPS_PER_ELEMENT = 64.0
"""Operations of a convolution in the time in which resampling makes an element."""


@record
class _Part:
    """Channels of what a convolution reads. resampling: the node that makes them of `x`, None where none does."""

    x: Value
    channels: int
    resampling: Node | None


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    disturbances = Disturbances(graph)
    for node in [n for n in graph.walk() if n.op == _CONVOLUTION]:
        parts = _parts(rewriter, node, disturbances)
        if parts is None:
            continue
        join = sole_node(call_of(node)["input"], _JOIN)
        lower_node(rewriter, node, exact=False, given=partial(_commuted, parts))
        # What raised for these sizes would raise behind the convolution as well.
        for old in (join, *(part.resampling for part in parts)):
            if node.parent is None and old is not None:
                rewriter.erase(old)
    return rewriter.edits > 0


def _parts(rewriter: Rewriter, conv: Node, disturbances: Disturbances) -> list[_Part] | None:
    """What a convolution of single pixels reads, by channels, if some of it is better resampled behind it."""
    call = call_of(conv)
    weight, x, out = (static_tensor(arg) for arg in (call["weight"], call["input"], conv.result))
    if weight is None or x is None or out is None or is_autocast(conv) or weight.sizes[2:] != (1, 1):
        return None
    if out.dtype not in (DType.F32, DType.F64) or call["groups"] != 1 or len(x.sizes) != 4:
        return None
    if not _are(call["stride"], 1) or not _are(call["padding"], 0):
        return None
    join = sole_node(call["input"], _JOIN)
    joined: Sequence[Arg] = (call["input"],)
    if join is not None:
        of = call_of(join)
        tensors = of["tensors"]
        if of["dim"] not in (1, -3) or not isinstance(tensors, tuple) or disturbances.between(rewriter, join, conv):
            return None
        joined = tensors
    found = []
    for arg in joined:
        kind = static_tensor(arg)
        if kind is None or len(kind.sizes) != 4 or kind.dtype is not out.dtype or not isinstance(arg, Value):
            return None
        node = sole_node(arg, BILINEAR)
        if node is None or node.mode != conv.mode or disturbances.between(rewriter, node, conv):
            found.append(_Part(arg, kind.sizes[1], None))
            continue
        source = call_of(node)["input"]
        if static_tensor(source) is None or not isinstance(source, Value):
            return None
        found.append(_Part(source, kind.sizes[1], node))
    if not all(type(n) is int and n > 0 for part in found for n in (*_sizes(part.x), *out.sizes, part.channels)):
        return None
    pixels, columns = prod(out.sizes[2:]), out.sizes[1]
    saved = [2.0 * part.channels * columns * (pixels - prod(_sizes(part.x)[2:])) for part in found]
    resampled = sum(columns - part.channels for part in found if part.resampling is not None)
    return found if sum(saved) > _FLOPS_PER_ELEMENT * pixels * max(resampled, 0) else None


def _sizes(value: Value) -> tuple[int, ...]:
    kind = static_tensor(value)
    assert kind is not None
    return kind.sizes


def _are(arg: Arg, number: int) -> bool:
    return all(one == number for one in (arg if isinstance(arg, tuple) else (arg,)))


def _commuted(parts: Sequence[_Part], b: Emitter, call: Call) -> Value:
    """The convolution of what is not resampled, and of each part that is, resampled behind it; their sum."""
    weight, bias, first = call["weight"], call["bias"], 0
    plain: list[Value] = []
    weights: list[Value] = []
    sums: list[Value] = []
    resampled: list[tuple[_Part, Value]] = []
    for part in parts:
        own = weight
        if len(parts) > 1:
            own = b.call("aten.slice.Tensor", weight, 1, first, first + part.channels)
        first += part.channels
        assert isinstance(own, Value)
        if part.resampling is None:
            plain.append(part.x)
            weights.append(own)
        else:
            resampled.append((part, own))
    if plain:
        sums.append(b.call(_CONVOLUTION, _joined(b, plain), _joined(b, weights), bias))
        bias = None
    for part, own in resampled:
        assert part.resampling is not None
        made = b.call(_CONVOLUTION, part.x, own, bias)
        sums.append(b.call(BILINEAR, made, *part.resampling.args[1:], **part.resampling.kwargs))
        bias = None
    total = sums[0]
    for one in sums[1:]:
        total = b.call("aten.add.Tensor", total, one)
    return total


def _joined(b: Emitter, values: Sequence[Value]) -> Value:
    return values[0] if len(values) == 1 else b.call(_JOIN, tuple(values), 1)


def _expand(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    for node in [n for n in graph.walk() if n.op == BILINEAR]:
        lower_node(rewriter, node, exact=False, given=lower_bilinear)
    return rewriter.edits > 0


commute_resampling = Pass(
    "commute-resampling",
    "%1 = conv2d (upsample_bilinear2d %x, ...), %w   ==>   %1 = upsample_bilinear2d (conv2d %x, %w), ...   (%w: 1x1)",
    _run,
    rounding=True,
)
expand_resampling = Pass(
    "expand-resampling",
    "%1 = upsample_bilinear2d %x, ...   ==>   %2 = weighted columns of %x; %1 = weighted rows of %2",
    _expand,
    rounding=True,
)
