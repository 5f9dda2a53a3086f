"""Normalisations, dropout, pooling and losses of neural networks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from smelt.ir import Arg
from smelt.ops.record import Call, Emitter, OpRecord, Sample, Trait, library, sample, tensor_type
from smelt.ops.samples import fixed, floats, ints, positives, strided


def _dropout_draws(call: Call) -> bool:
    return call["train"] is not False and not (type(call["p"]) in (int, float) and call["p"] == 0)


def _running_stats(call: Call) -> tuple[str, ...]:
    """Training mode updates the running statistics in place, which the schema does not say."""
    training = call.get("training", call.get("use_input_stats"))
    return () if training is False else tuple(n for n in ("running_mean", "running_var") if call[n] is not None)


def _lower_layer_norm(b: Emitter, call: Call) -> Arg:
    x, dims = call["input"], tuple(range(-len(call["normalized_shape"]), 0))
    centred = b.call("aten.sub.Tensor", x, b.call("aten.mean.dim", x, dims, True))
    variance = b.call("aten.mean.dim", b.call("aten.mul.Tensor", centred, centred), dims, True)
    y = b.call(
        "aten.mul.Tensor", centred, b.call("aten.rsqrt.default", b.call("aten.add.Tensor", variance, call["eps"]))
    )
    return _affine(b, y, call["weight"], call["bias"])


def _lower_mse_loss(b: Emitter, call: Call) -> Arg | None:
    """The mean, or the sum, of each element's loss, which is an operator of its own."""
    reduced = {1: "aten.mean.default", 2: "aten.sum.default"}.get(call["reduction"])
    if reduced is None:
        return None
    return b.call(reduced, b.call("aten.mse_loss.default", call["self"], call["target"], 0))


def _lower_rms_norm(b: Emitter, call: Call) -> Arg | None:
    x, dims = call["input"], tuple(range(-len(call["normalized_shape"]), 0))
    if call["eps"] is None:
        return None
    squares = b.call("aten.mean.dim", b.call("aten.mul.Tensor", x, x), dims, True)
    y = b.call("aten.mul.Tensor", x, b.call("aten.rsqrt.default", b.call("aten.add.Tensor", squares, call["eps"])))
    return _affine(b, y, call["weight"], None)


def _lower_batch_norm(b: Emitter, call: Call) -> Arg | None:
    if call["training"] is not False or call["running_mean"] is None or call["running_var"] is None:
        return None
    x = call["input"]
    column = (-1,) + (1,) * ((tensor_type(x).rank or 2) - 2)
    scale = b.call("aten.rsqrt.default", b.call("aten.add.Tensor", call["running_var"], call["eps"]))
    if call["weight"] is not None:
        scale = b.call("aten.mul.Tensor", scale, call["weight"])
    centred = b.call("aten.sub.Tensor", x, b.call("aten.reshape.default", call["running_mean"], column))
    y = b.call("aten.mul.Tensor", centred, b.call("aten.reshape.default", scale, column))
    return (
        y
        if call["bias"] is None
        else b.call("aten.add.Tensor", y, b.call("aten.reshape.default", call["bias"], column))
    )


def _affine(b: Emitter, y: Arg, weight: Arg, bias: Arg) -> Arg:
    if weight is not None:
        y = b.call("aten.mul.Tensor", y, weight)
    return y if bias is None else b.call("aten.add.Tensor", y, bias)


def _lower_average_all(b: Emitter, call: Call) -> Arg | None:
    kind = tensor_type(call["self"])
    if tuple(call["output_size"]) != (1, 1) or kind.strides is not None or kind.numel == 0:
        return None
    return b.call("aten.mean.dim", call["self"], (-1, -2), True)


def _norms(rms: bool = False) -> Iterator[Sample]:
    for x in (floats(3, 4), strided(3, 4), floats(2, 3, 4), floats(3, 4, dtype=torch.float64), torch.empty(0, 4)):
        weight, bias = floats(4, seed=1, dtype=x.dtype), floats(4, seed=2, dtype=x.dtype)
        if rms:
            yield sample(x, [4], weight, 1e-6)
            yield sample(x, [4])
        else:
            yield sample(x, [4])
            yield sample(x, [4], weight, bias, 1e-6)


def _rms_norms() -> Iterator[Sample]:
    yield from _norms(rms=True)


def _batch_norms() -> Iterator[Sample]:
    for x in (floats(2, 3, 4, 4), floats(5, 3), floats(2, 3, 4, 4).to(memory_format=torch.channels_last)):
        yield sample(x, floats(3, seed=1), floats(3, seed=2), floats(3, seed=3), positives(3), False, 0.1, 1e-5, True)
    yield sample(floats(5, 3), None, None, floats(3, seed=3), positives(3), False, 0.1, 1e-5, True)


_IMAGES = (floats(2, 3, 8, 8), floats(2, 3, 8, 8).to(memory_format=torch.channels_last))
_OFF = fixed(lambda: [sample(floats(3, 4), 0.5, False), sample(strided(3, 4), 0.0, True)])

NN: tuple[OpRecord, ...] = (
    OpRecord(
        "aten.layer_norm.default",
        "torch.layer_norm",
        _norms,
        lower=_lower_layer_norm,
        source="arXiv:1607.06450",
        traits=Trait.IGNORES_AUTOCAST | Trait.KEPT_IN_F32 | Trait.READS_ALL | Trait.SHRINKS,
    ),
    OpRecord(
        "aten.rms_norm.default",
        "torch.rms_norm",
        _rms_norms,
        lower=_lower_rms_norm,
        source="arXiv:1910.07467",
        traits=Trait.IGNORES_AUTOCAST | Trait.KEPT_IN_F32 | Trait.READS_ALL,
    ),
    OpRecord(
        "aten.batch_norm.default",
        "torch.batch_norm",
        _batch_norms,
        lower=_lower_batch_norm,
        writes=_running_stats,
        source="arXiv:1502.03167",
        traits=Trait.ANY_LAYOUT | Trait.IGNORES_AUTOCAST | Trait.KEPT_IN_F32 | Trait.READS_ALL | Trait.SHRINKS,
    ),
    OpRecord(
        "aten.instance_norm.default",
        "torch.instance_norm",
        fixed(lambda: [sample(floats(2, 3, 8), None, None, None, None, True, 0.1, 1e-5, True)]),
        writes=_running_stats,
        traits=Trait.IGNORES_AUTOCAST | Trait.KEPT_IN_F32 | Trait.LIES_AS_OPERAND | Trait.READS_ALL,
    ),
    OpRecord(
        "aten.group_norm.default",
        "torch.group_norm",
        fixed(lambda: [sample(floats(2, 4, 3), 2), sample(floats(2, 4, 3), 2, floats(4), floats(4))]),
        source="arXiv:1803.08494",
        traits=Trait.IGNORES_AUTOCAST | Trait.KEPT_IN_F32 | Trait.LIES_AS_OPERAND | Trait.READS_ALL,
    ),
    OpRecord(
        "aten.dropout.default",
        "torch.dropout",
        _OFF,
        alias="maybe",
        rng=_dropout_draws,
        source="JMLR 15 (2014) 1929",
        traits=Trait.ANY_SHAPE | Trait.AT_START | Trait.IGNORES_AUTOCAST | Trait.READS_ALL | Trait.RETURNS_ITSELF,
    ),
    OpRecord(
        "aten.feature_dropout.default",
        "torch.feature_dropout",
        _OFF,
        alias="maybe",
        rng=_dropout_draws,
        traits=Trait.RETURNS_ITSELF,
    ),
    OpRecord(
        "aten.alpha_dropout.default",
        "torch.alpha_dropout",
        _OFF,
        alias="maybe",
        rng=_dropout_draws,
        traits=Trait.RETURNS_ITSELF,
    ),
    OpRecord(
        "aten.max_pool2d.default",
        "torch.max_pool2d",
        fixed(lambda: [*(sample(x, [3, 3], [2, 2], [1, 1]) for x in _IMAGES), sample(_IMAGES[0], [2, 2])]),
        traits=Trait.ANY_LAYOUT | Trait.IGNORES_AUTOCAST | Trait.SHRINKS,
    ),
    OpRecord(
        "aten.avg_pool2d.default",
        "torch.nn.functional.avg_pool2d",
        fixed(lambda: [*(sample(x, [2, 2]) for x in _IMAGES)]),
        traits=Trait.ANY_LAYOUT | Trait.SHRINKS,
    ),
    OpRecord(
        "aten.adaptive_avg_pool2d.default",
        "torch.nn.functional.adaptive_avg_pool2d",
        fixed(lambda: [*(sample(x, [1, 1]) for x in _IMAGES), *(sample(x, [3, 3]) for x in _IMAGES)]),
        lower=_lower_average_all,
        exact=True,
        traits=Trait.ANY_LAYOUT | Trait.IGNORES_AUTOCAST,
    ),
    OpRecord(
        "aten.adaptive_avg_pool1d.default",
        "torch.adaptive_avg_pool1d",
        fixed(lambda: [sample(floats(2, 3, 8), [2])]),
        traits=Trait.IGNORES_AUTOCAST,
    ),
    OpRecord(
        "aten.upsample_nearest2d.vec",
        "torch.ops.aten.upsample_nearest2d",
        fixed(lambda: [sample(floats(1, 2, 3, 3), None, [2.0, 2.0])]),
        traits=Trait.LIES_AS_OPERAND,
    ),
    OpRecord(
        "aten.one_hot.default",
        "torch.nn.functional.one_hot",
        fixed(lambda: [sample(ints(3, low=0, high=4), 4)]),
        may_throw=True,
        why_not=library("how many classes there are may follow from data"),
    ),
    OpRecord(
        "aten.cross_entropy_loss.default",
        "torch.nn.functional.cross_entropy",
        fixed(lambda: [sample(floats(3, 4), ints(3, low=0, high=4))]),
        may_throw=True,
        traits=Trait.KEPT_IN_F32,
    ),
    OpRecord(
        "aten.nll_loss_nd.default",
        "torch.nn.functional.nll_loss",
        fixed(lambda: [sample(floats(3, 4), ints(3, low=0, high=4))]),
        may_throw=True,
        why_not=library("its classes are checked by the library"),
    ),
    OpRecord(
        "aten.mse_loss.default",
        "torch.nn.functional.mse_loss",
        fixed(lambda: [sample(floats(3, 4), floats(3, 4, seed=1))]),
        lower=_lower_mse_loss,
        exact=True,
        traits=Trait.KEPT_IN_F32 | Trait.READS_ALL,
    ),
)
