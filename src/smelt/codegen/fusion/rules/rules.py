"""The rule of every operator that a nest can compute: how an element of a result comes of elements of operands.

This is the operators' C kernel: what fuses, in one place. A rule builds an expression, or raises `Unfusible` with the
reason why it can compute no nest for the types at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from smelt.codegen.fusion.pull import Rule
from smelt.codegen.fusion.rules import activations, creation, indexing, narrow, norms, reductions, views, windows
from smelt.codegen.fusion.rules.pointwise import POINTWISE, formula, unary
from smelt.ops.own import narrow_linear


def _all(rule: Rule, *names: str) -> dict[str, Rule]:
    return dict.fromkeys(names, rule)


def _of_ranks(form: str, make: Callable[[int], Rule], ranks: Sequence[int] = (1, 2, 3)) -> dict[str, Rule]:
    return {form.format(rank): make(rank) for rank in ranks}


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **POINTWISE,
        # activations
        "aten.relu.default": activations.relu,
        "aten.relu6.default": formula(activations.relu6),
        "aten.silu.default": unary("silu"),
        "aten.mish.default": unary("mish"),
        "aten.gelu.default": activations.gelu,
        "aten.hardswish.default": formula(activations.hardswish),
        "aten.hardsigmoid.default": formula(activations.hardsigmoid),
        "aten.log_sigmoid.default": formula(activations.log_sigmoid),
        "aten.leaky_relu.default": activations.leaky_relu,
        "aten.elu.default": activations.elu,
        "aten.selu.default": activations.selu,
        "aten.celu.default": activations.celu,
        "aten.softplus.default": activations.softplus,
        "aten.glu.default": indexing.gated,
        # reductions and scans
        **_all(reductions.summed, "aten.sum.default", "aten.sum.dim_IntList"),
        **_all(reductions.mean_of, "aten.mean.default", "aten.mean.dim"),
        **_all(reductions.multiplied, "aten.prod.default", "aten.prod.dim_int"),
        **_all(reductions.extreme_of("max"), "aten.amax.default", "aten.max.default"),
        **_all(reductions.extreme_of("min"), "aten.amin.default", "aten.min.default"),
        "aten.max.dim": reductions.extreme_with_position("max", "argmax"),
        "aten.min.dim": reductions.extreme_with_position("min", "argmin"),
        "aten.argmax.default": reductions.position_of("argmax"),
        "aten.argmin.default": reductions.position_of("argmin"),
        **_all(reductions.truth("any"), "aten.any.default", "aten.any.dim", "aten.any.dims"),
        **_all(reductions.truth("all"), "aten.all.default", "aten.all.dim", "aten.all.dims"),
        **_all(reductions.variance(False), "aten.var.correction", "aten.var.dim", "aten.var.default"),
        **_all(reductions.variance(True), "aten.std.correction", "aten.std.dim", "aten.std.default"),
        "aten.logsumexp.default": reductions.logsumexp,
        "aten.linalg_vector_norm.default": reductions.vector_norm,
        **_all(reductions.count_nonzero, "aten.count_nonzero.default", "aten.count_nonzero.dim_IntList"),
        "aten.cumsum.default": reductions.scan("sum"),
        "aten.cumprod.default": reductions.scan("prod"),
        "aten.cummax.default": reductions.cumulative_extreme("max"),
        "aten.cummin.default": reductions.cumulative_extreme("min"),
        **_all(reductions.softmax, "aten.softmax.int", "aten._softmax.default"),
        **_all(reductions.log_softmax, "aten.log_softmax.int", "aten._log_softmax.default"),
        # norms
        **_all(norms.layer_norm, "aten.layer_norm.default", "aten.native_layer_norm.default"),
        "aten.rms_norm.default": norms.rms_norm,
        "aten.group_norm.default": norms.group_norm,
        "aten.instance_norm.default": norms.instance_norm,
        "aten.batch_norm.default": norms.batch_norm,
        # elements by their positions, and tensors joined
        "aten.gather.default": indexing.gather,
        "aten.index_select.default": indexing.select_by_index,
        "aten.embedding.default": indexing.rows_of_table,
        "aten.index.Tensor": indexing.index_by_tensors,
        "aten.cat.default": indexing.concatenate,
        "aten.stack.default": indexing.stacked,
        **_all(indexing.padded, "aten.pad.default", "aten.constant_pad_nd.default"),
        "aten.flip.default": indexing.flipped,
        "aten.roll.default": indexing.rolled,
        "aten.repeat.default": indexing.repeated,
        "aten.repeat_interleave.self_int": indexing.interleaved,
        "aten.slice_scatter.default": indexing.slice_scattered,
        "aten.select_scatter.default": indexing.select_scattered,
        "aten.diagonal_scatter.default": indexing.diagonal_scattered,
        "aten.pixel_shuffle.default": indexing.pixel_shuffled,
        # windows
        **_of_ranks("aten.max_pool{}d.default", windows.max_pool),
        **_of_ranks("aten.avg_pool{}d.default", windows.avg_pool),
        **_of_ranks("aten.adaptive_avg_pool{}d.default", windows.adaptive_pool),
        **_of_ranks("aten.upsample_nearest{}d.vec", windows.nearest),
        **_of_ranks("aten.upsample_nearest{}d.default", windows.nearest),
        # tensors out of numbers and positions
        "const": creation.one_literal,
        **_all(creation.filled("fill_value"), "aten.full.default", "aten.full_like.default", "aten.new_full.default"),
        "aten.fill.Scalar": creation.filled("value"),
        "aten.scalar_tensor.default": creation.filled("s"),
        **_all(
            creation.constant(0), "aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default",
            "aten.zero.default",
        ),
        **_all(creation.constant(1), "aten.ones.default", "aten.ones_like.default", "aten.new_ones.default"),
        **_all(creation.counting, "aten.arange.default", "aten.arange.start", "aten.arange.start_step"),
        **_all(creation.identity, "aten.eye.default", "aten.eye.m"),
        "aten.tril.default": creation.triangle(True),
        "aten.triu.default": creation.triangle(False),
        # views
        **_all(
            views.regrouped, "aten.view.default", "aten._unsafe_view.default", "aten.reshape.default",
            "aten.flatten.using_ints", "aten.unflatten.int", "aten.view_as.default", "aten.reshape_as.default",
        ),
        "aten.permute.default": views.view_at(views.permuted),
        "aten.transpose.int": views.view_at(views.transposed),
        **_all(views.view_at(views.turned), "aten.t.default", "aten.numpy_T.default"),
        "aten.mT.default": views.view_at(views.matrix_turned),
        **_all(views.view_at(views.expanded), "aten.expand.default", "aten.expand_as.default"),
        "aten.unsqueeze.default": views.view_at(views.unsqueezed),
        **_all(views.view_at(views.squeezed), "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims"),
        "aten.slice.Tensor": views.slice_of,
        "aten.narrow.default": views.view_at(views.narrowed),
        "aten.select.int": views.view_at(views.selected),
        "aten.diagonal.default": views.view_at(views.diagonal),
        "aten.unfold.default": views.view_at(views.unfolded),
        **_all(views.idle, "aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default"),
        "unpack": views.unpacked,
        # weights of few bits
        narrow_linear.BYTES: narrow.of_bytes,
        narrow_linear.NIBBLES: narrow.of_nibbles,
    }
)  # fmt: skip
"""Every operator that a nest can compute."""
