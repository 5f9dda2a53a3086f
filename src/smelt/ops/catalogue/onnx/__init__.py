"""What operators are in ONNX: one function an operator, or a family.

Operators that have no record, and Python's own (`py.*`), have a form here, too.

Invariant: what is written computes what torch computes, up to the rounding of another order of operations, or the run
fails; what ONNX cannot say raises `NoOnnxForm`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from smelt.ops.catalogue.onnx import creation, indexing, layers, pointwise, products, python, reductions, views
from smelt.ops.record import OnnxForm

ONNX_FORMS: Mapping[str, OnnxForm] = MappingProxyType(
    {
        **pointwise.FORMS,
        **reductions.FORMS,
        **views.FORMS,
        **indexing.FORMS,
        **creation.FORMS,
        **products.FORMS,
        **layers.FORMS,
        **python.FORMS,
    }
)

WHY_NOT: Mapping[str, str] = MappingProxyType(
    {
        "aten.diagonal_scatter.default": "ONNX scatters along whole dimensions",
        "aten.as_strided_scatter.default": "tensors of ONNX have no strides",
        **{
            f"aten.{name}": "ONNX has no packed sequences"
            for name in (
                "_pack_padded_sequence.default", "_pad_packed_sequence.default", "lstm.data", "gru.data",
                "rnn_tanh.data", "rnn_relu.data",
            )
        },
    }
)  # fmt: skip
"""Of records without a form, why they have none."""
