"""Calls of operators that have a gradient in the catalogue, but no record, and so no samples there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from smelt.ops.record import Sample, sample
from smelt.ops.samples import floats, ints, positives

Tensor = torch.Tensor
X, ROW = floats(3, 4), floats(4, seed=1)
IMAGE, VOLUME = floats(2, 3, 4, 4), floats(1, 2, 3, 4, 4)
UNIT = torch.linspace(0.1, 0.9, 12).reshape(3, 4)
CLASSES = ints(3, low=0, high=4)
BEYOND_1 = positives(3, 4) + 1
_PLACES = torch.tensor([2, 0])
_MASK = torch.tensor([[True, False, False, True], [False, True, True, False], [False] * 4])
_MAXIMA = torch.ops.aten.max_pool2d_with_indices(IMAGE, [2, 2])[1]
_INDEX = ints(3, 2, low=0, high=4)


def _each(names: str, *samples: Sample) -> dict[str, Sequence[Sample]]:
    return {f"aten.{name if '.' in name else f'{name}.default'}": samples for name in names.split()}


def _images() -> dict[str, Sequence[Sample]]:
    made = {}
    for n, x in ((1, floats(2, 3, 5)), (2, IMAGE), (3, VOLUME)):
        pads, wide = [1, 2, 1, 0, 1, 1][: 2 * n], [s + 3 for s in x.shape[2:]]
        for kind in ("reflection", "replication"):
            there = getattr(torch.ops.aten, f"{kind}_pad{n}d")
            made |= _each(f"{kind}_pad{n}d", sample(x, pads), sample(x[0], pads))
            made |= _each(f"{kind}_pad{n}d_backward", sample(there(x, pads), x, pads))
        for name in ("upsample_nearest", "_upsample_nearest_exact"):
            made |= _each(f"{name}{n}d", sample(x, wide))
            made |= _each(f"{name}{n}d_backward", sample(floats(*x.shape[:2], *wide), wide, list(x.shape)))
        for name in {1: ["linear1d"], 2: ["bilinear2d", "bicubic2d"], 3: ["trilinear3d"]}[n]:
            made |= _each(f"upsample_{name}", sample(x, wide, True), sample(x, wide, False))
            made |= _each(f"upsample_{name}_backward", sample(floats(*x.shape[:2], *wide), wide, list(x.shape), False))
    for name in ("bilinear2d", "bicubic2d"):
        made |= _each(f"_upsample_{name}_aa", sample(IMAGE, [3, 2], False))
        made |= _each(f"_upsample_{name}_aa_backward", sample(floats(2, 3, 3, 2), [3, 2], [2, 3, 4, 4], False))
    return made


CALLS: Mapping[str, Sequence[Sample]] = {
    # --- functions
    **_each("exp2 deg2rad rad2deg sinc i0 special_erfcx special_log_ndtr sgn angle", sample(X)),
    **_each("lgamma digamma special_entr", sample(BEYOND_1)),
    **_each("erfinv special_ndtri", sample(UNIT)),
    **_each("polygamma", sample(1, BEYOND_1)),
    **_each("logit", sample(UNIT), sample(UNIT, 0.2)),
    **_each("logaddexp logaddexp2 hypot copysign.Tensor", sample(X, ROW)),
    **_each("copysign.Scalar", sample(X, -1.0)),
    **_each("round.decimals", sample(X, decimals=1)),
    **_each("xlogy.Tensor special_xlog1py", sample(X, BEYOND_1), sample(torch.tensor([0.0, 1.0]), BEYOND_1[0, :2])),
    **_each("xlogy.Scalar_Self special_xlog1py.self_scalar", sample(1.5, BEYOND_1)),
    **_each("xlogy.Scalar_Other special_xlog1py.other_scalar", sample(X, 2.5)),
    # --- activations
    **_each("celu", sample(X), sample(X, 0.5)),
    **_each("threshold", sample(X, 0.2, -3.0)),
    **_each("hardshrink softshrink", sample(X), sample(X, 0.2)),
    **_each("_prelu_kernel", sample(X, ROW)),
    **_each("glu", sample(X), sample(floats(4, 3, 2), 0)),
    **_each("clamp_min.Tensor clamp_max.Tensor", sample(X, ROW)),
    # --- reductions
    **_each("var.default std.default var_mean.default std_mean.default", sample(X), sample(X, False)),
    **_each("var.dim std.dim var_mean.dim std_mean.dim", sample(X, [1]), sample(X, [0], False, True)),
    **_each("var_mean.correction std_mean.correction", sample(X, [1], correction=0), sample(X, None, keepdim=True)),
    **_each("prod", sample(X), sample(floats(40)), sample(torch.tensor([[0.0, 2.0, 0.0], [1.0, 3.0, 0.0]]))),
    **_each("prod.dim_int", sample(X, 1), sample(floats(2, 3, 4), 0, True), sample(torch.tensor([0.0, 2.0, 3.0]), 0)),
    **_each("nansum", sample(X), sample(torch.tensor([1.0, torch.nan])), sample(X, [1], True)),
    **_each("median nanmedian", sample(X)),
    **_each("median.dim nanmedian.dim mode", sample(X, 1), sample(X, 0, True)),
    **_each("kthvalue", sample(X, 2), sample(X, 1, 0, True)),
    **_each("aminmax", sample(X), sample(X, dim=1), sample(X, dim=0, keepdim=True)),
    **_each("cummax cummin", sample(X, 1), sample(floats(2, 5, 3), -2)),
    **_each("sort.stable", sample(X, stable=True, dim=0)),
    **_each("norm.Scalar", sample(X), sample(X, 3)),
    **_each("norm.ScalarOpt_dim", sample(X, 2, [1]), sample(X, None, [0], True), sample(X, 1, [0, 1])),
    **_each("dist", sample(X, ROW), sample(X, ROW, 3), sample(X, ROW, torch.inf)),
    **_each("_log_softmax", sample(X, 1, False)),
    **_each("_safe_softmax", sample(X, 1)),
    # --- indexing
    **_each("index_fill.int_Scalar", sample(X, 1, _PLACES, 2.0)),
    **_each("index_fill.int_Tensor", sample(X, 1, torch.tensor([2, 0, 2]), torch.tensor(2.0))),
    **_each("index_copy", sample(X, 0, _PLACES, floats(2, 4))),
    **_each("masked_scatter", sample(X, _MASK, floats(2, 3)), sample(X, _MASK[0], floats(7))),
    **_each("take", sample(X, torch.tensor([[0, 5], [-1, 0]]))),
    **_each("scatter_add", sample(X, 1, _INDEX, floats(3, 2))),
    **_each("fill.Tensor", sample(X, torch.tensor(2.0))),
    **_each("embedding_dense_backward", sample(floats(3, 5), CLASSES, 4, 1, False)),
    **_each("unfold_backward", sample(floats(3, 2, 2), [3, 4], 1, 2, 2)),
    **_each("diag_embed", sample(X), sample(X, 1, 0, 2)),
    **_each("trace", sample(X)),
    # --- products
    **_each("addmv", sample(floats(3), X, ROW, beta=2, alpha=0.5)),
    **_each("addr", sample(X, floats(3), ROW), sample(ROW, floats(3), ROW, alpha=2)),
    **_each("addbmm", sample(floats(2, 2), floats(3, 2, 4), floats(3, 4, 2), beta=0.5)),
    **_each("vdot", sample(ROW, floats(4))),
    **_each("linalg_cross", sample(floats(2, 3), floats(3)), sample(floats(3, 2), floats(3, 2, seed=1), dim=0)),
    **_each("_euclidean_dist", sample(X, floats(2, 4, seed=1)), sample(floats(2, 3, 4), floats(2, 5, 4, seed=1))),
    **_each("_cdist_forward", sample(X, floats(2, 4, seed=1), 2.0, None), sample(X, floats(2, 4, seed=1), 3.0, None)),
    # --- losses
    **_each("binary_cross_entropy", sample(UNIT, UNIT.flip(0)), sample(UNIT, UNIT.flip(0), UNIT, 0)),
    **_each("binary_cross_entropy_with_logits huber_loss smooth_l1_loss l1_loss kl_div", sample(X, UNIT)),
    **_each("soft_margin_loss", sample(X, X.sign()), sample(X, X.sign(), 0)),
    # --- norms, pooling, convolutions
    **_each("native_layer_norm", sample(X, [4], ROW, ROW, 1e-5)),
    **_each("native_group_norm", sample(IMAGE[:, :2], ROW[:2], ROW[:2], 2, 2, 16, 2, 1e-5)),
    **_each("_adaptive_avg_pool2d", sample(IMAGE, [2, 1])),
    **_each("_adaptive_avg_pool2d_backward", sample(floats(2, 3, 2, 1), IMAGE)),
    **_each("avg_pool2d_backward", sample(floats(2, 3, 2, 2), IMAGE, [2, 2], [2, 2], [0, 0], False, True, None)),
    **_each("max_pool2d_with_indices", sample(IMAGE, [2, 2])),
    **_each("max_pool2d_with_indices_backward", sample(
        floats(2, 3, 2, 2), IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], False, _MAXIMA
    )),
    **_each("_native_batch_norm_legit_functional", sample(
        IMAGE, floats(3), floats(3, seed=1), torch.zeros(3), torch.ones(3), True, 0.1, 1e-5
    )),
    **_each("conv3d", sample(VOLUME, floats(2, 2, 2, 2, 2), floats(2))),
    **_each("conv_transpose1d", sample(floats(2, 3, 4), floats(3, 2, 3), floats(2))),
    **_each("conv_transpose3d.input", sample(VOLUME, floats(2, 2, 2, 2, 2), floats(2))),
    **_each("convolution", sample(IMAGE, floats(2, 3, 3, 3), floats(2), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    # --- images
    **_images(),
    **_each("pixel_shuffle", sample(floats(1, 4, 2, 3), 2)),
    **_each("pixel_unshuffle", sample(floats(1, 2, 4, 2), 2)),
    **_each("channel_shuffle", sample(floats(2, 6, 2), 3)),
    **_each("rot90", sample(X), sample(floats(2, 3, 4), 3, [1, 2])),
}  # fmt: skip
