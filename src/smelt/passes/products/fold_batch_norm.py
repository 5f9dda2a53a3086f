"""Fold batch normalisation in eval mode into the convolution (or linear) before it.

    %1 = conv2d %x, %w, %b                         %s  = rsqrt(%var + eps) * %gamma
    %2 = batch_norm %1, %gamma, %beta,      ==>    %w2 = %w * view(%s, [-1, 1, 1, 1])
           %mean, %var, False, _, eps              %b2 = (%b - %mean) * %s + %beta
                                                   %2  = conv2d %x, %w2, %b2

The new weight and bias are ordinary nodes over parameters and buffers, in their dtype; whoever runs the graph computes
them once. A transposed convolution's channels are the second axis of its weight.
Source: arXiv:1502.03167, section 3.1 (inference).
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.analysis import is_static
from smelt.analysis.dependence import Dependence
from smelt.ir import Arg, Graph, Node, TensorType, Value
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.passes.base import Pass, PassContext, call_of, can_erase, emitter
from smelt.passes.layers.transposed import TRANSPOSED
from smelt.passes.matching import FLOATS, Disturbances, is_autocast, is_used_once, static_tensor
from smelt.rewrite import Match, Rewriter, Rule, apply_rules, op

_LINEAR = "aten.linear.default"
_TRANSPOSED = frozenset((*TRANSPOSED, "aten.conv_transpose3d.input"))
_HOSTS = where(Trait.CONVOLVES) | _TRANSPOSED | {"aten.conv3d.padding", "aten.convolution.default", _LINEAR}


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    found = context.dependence(graph)
    disturbances = Disturbances(graph)

    def build(rewriter: Rewriter, match: Match) -> Arg:
        norm, host = match.root, _host(match.root)
        if host is None or disturbances.between(rewriter, host, norm):
            return None
        call = {**call_of(host), "norm": call_of(norm)}
        return _fold(rewriter, norm, host, call) if _may_fold(norm, host, call, found) else None

    apply_rules(rewriter, (Rule("fold", op("aten.batch_norm.default", open_ended=True), build),), can_erase=can_erase)
    return rewriter.edits > 0


def _host(norm: Node) -> Node | None:
    """The product whose only use is this normalisation."""
    x = call_of(norm)["input"]
    if not isinstance(x, Value) or x.node is None or x.node.op not in _HOSTS or not is_used_once(x):
        return None
    return x.node


def _may_fold(norm: Node, host: Node, call: Mapping[str, object], found: dict[Value, Dependence]) -> bool:
    given = call["norm"]
    assert isinstance(given, dict)
    if given["training"] is not False or call.get("transposed", False) is not False:
        return False
    if not isinstance(given["eps"], (int, float)) or host.mode != norm.mode or is_autocast(norm):
        return False
    needed = (call["weight"], given["running_mean"], given["running_var"])
    optional = (call["bias"], given["weight"], given["bias"])
    tensors = [t for t in (*needed, *optional) if t is not None]
    if None in needed or not all(isinstance(t, Value) and is_static(t, found) for t in tensors):
        return False
    x, out, weight = (static_tensor(v) for v in (call["input"], host.result, call["weight"]))  # type: ignore[arg-type]
    if x is None or out is None or weight is None or out.dtype not in FLOATS or norm.result.type != out:
        return False
    # Channels are dimension 1 of what is normalised: the batched convolution's, or a matrix's columns.
    if len(x.sizes) != len(weight.sizes) or len(out.sizes) < 2 or out.sizes[1] != weight.sizes[_channels(host)]:
        return False
    kinds = [t.type for t in tensors if isinstance(t, Value)]
    return all(isinstance(k, TensorType) and k.dtype is out.dtype and k.is_static for k in kinds)


def _channels(host: Node) -> int:
    """The axis of a weight that the result's channels are; of a transposed convolution in groups those of one group."""
    return int(host.op in _TRANSPOSED)


def _fold(rewriter: Rewriter, norm: Node, host: Node, call: dict[str, Arg | dict[str, Arg]]) -> Value | None:
    """The host with the normalisation in its weight and bias, of the host's own type."""
    given = call["norm"]
    assert isinstance(given, dict)
    emit = emitter(rewriter)
    scale: Arg = emit.call("aten.rsqrt.default", emit.call("aten.add.Tensor", given["running_var"], given["eps"]))
    if given["weight"] is not None:
        scale = emit.call("aten.mul.Tensor", scale, given["weight"])
    weight = static_tensor(call["weight"])  # type: ignore[arg-type]
    assert weight is not None
    at = _channels(host)
    column = emit.call("aten.view.default", scale, (*(1,) * at, -1, *(1,) * (len(weight.sizes) - 1 - at)))
    new_weight = emit.call("aten.mul.Tensor", call["weight"], column)  # type: ignore[arg-type]
    mean = given["running_mean"]
    shift: Arg
    if call["bias"] is None:
        shift = emit.call("aten.neg.default", mean)
    else:
        shift = emit.call("aten.sub.Tensor", call["bias"], mean)  # type: ignore[arg-type]
    shift = emit.call("aten.mul.Tensor", shift, scale)
    if given["bias"] is not None:
        shift = emit.call("aten.add.Tensor", shift, given["bias"])
    arguments = {name: arg for name, arg in call.items() if name != "norm"}
    arguments |= {"weight": new_weight, "bias": shift}
    made = emit.call(host.op, **arguments)  # type: ignore[arg-type]
    return made if made.type == norm.result.type else None


fold_batch_norm = Pass(
    "fold-batch-norm",
    "%1 = conv2d %x, %w, %b; %2 = batch_norm %1, ...   ==>   %2 = conv2d %x, %w2, %b2   (%w2, %b2 from the parameters)",
    _run,
    rounding=True,
)
