"""Whole layers as products, attention and norms.   %1 = _transformer_encoder_layer_fwd %x, ...   ==>   %1 = linear ...

So are batch norm in training, as means and what each element becomes, and cross-entropy by class.
`torch.nn` runs a layer of a transformer as one operator in evaluation mode; spelled out, each part gets the kernels and
the fusion that it would get anywhere else. Left out where eager's own libraries are asked for.
"""

from __future__ import annotations

from smelt.ir import Graph
from smelt.ops.catalogue.by_channel import BATCH_NORM, lower_batch_norm
from smelt.ops.catalogue.by_class import CROSS_ENTROPY, lower_cross_entropy
from smelt.ops.catalogue.layers import LAYERS
from smelt.ops.record import Lowering
from smelt.passes.base import Pass, PassContext
from smelt.passes.layers.decompose import lower_node

_OWN: dict[str, Lowering] = {BATCH_NORM: lower_batch_norm, CROSS_ENTROPY: lower_cross_entropy}
EXPANDED = frozenset((*(record.name for record in LAYERS), *_OWN))
"""Operators that this pass takes apart."""


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    for node in [n for n in graph.walk() if n.op in EXPANDED]:
        lower_node(rewriter, node, exact=False, given=_OWN.get(node.op))
    return rewriter.edits > 0


expand_layers = Pass(
    "expand-layers",
    "%1 = _transformer_encoder_layer_fwd %x, ...   ==>   %2 = linear %x, %w; ...; %1 = layer_norm ...",
    _run,
    rounding=True,
)
