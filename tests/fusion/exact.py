"""Which operators give eager's bits, and how far the others may lie."""

from __future__ import annotations

import torch

from tests.differential.compare import bits_equal, tensor_difference

# Exponentials and the like have our own polynomials (eager's square root is not the nearest either); the order of
# sums is free.
ROUNDED = frozenset(
    f"aten.{name}"
    for name in (
        "sqrt.default", "exp.default", "exp2.default", "expm1.default", "log.default", "log2.default", "log10.default",
        "log1p.default", "rsqrt.default", "sin.default", "cos.default", "tan.default", "asin.default", "acos.default",
        "atan.default", "sinh.default", "cosh.default", "tanh.default", "asinh.default", "acosh.default",
        "atanh.default", "sigmoid.default", "erf.default", "erfc.default", "atan2.default", "pow.Tensor_Tensor",
        "pow.Tensor_Scalar", "pow.Scalar", "silu.default", "mish.default", "gelu.default", "elu.default",
        "selu.default", "celu.default", "softplus.default", "log_sigmoid.default", "sum.default", "sum.dim_IntList",
        "mean.default", "mean.dim", "prod.default", "logsumexp.default", "softmax.int", "_softmax.default",
        "log_softmax.int", "layer_norm.default", "batch_norm.default", "instance_norm.default", "group_norm.default",
        "rms_norm.default", "avg_pool2d.default", "adaptive_avg_pool2d.default", "adaptive_avg_pool1d.default",
        "lerp.Scalar", "lerp.Tensor", "var.correction", "std.correction", "linalg_vector_norm.default",
        "cumsum.default", "special_expit.default", "special_erf.default", "special_softmax.default", "arctan.default",
        "arccos.default", "arcsin.default", "mse_loss.default", "hypot.default", "logaddexp.default",
        "linear.default", "matmul.default", "mm.default", "bmm.default", "addmm.default", "baddbmm.default",
        "mv.default", "dot.default", "outer.default", "einsum.default", "conv1d.default", "conv2d.default",
        "conv1d.padding", "conv2d.padding", "conv_transpose2d.input", "scaled_dot_product_attention.default",
        "lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input",
    )
)  # fmt: skip


def difference(op: str, expected: torch.Tensor, found: torch.Tensor) -> str | None:
    """How a result differs from eager's beyond what its operator may; None where it does not."""
    if bits_equal(expected.contiguous(), found.contiguous()):
        return None
    if op == "aten.gelu.default":
        # Of +inf eager makes NaN in vectors, and inf where it goes element by element.
        expected = torch.where(found.isnan() & expected.isinf(), found, expected)
    if op not in ROUNDED:
        return tensor_difference(expected.contiguous(), found.contiguous(), is_exact=True) or "other bits"
    return tensor_difference(expected.contiguous(), found.contiguous(), is_exact=False)
