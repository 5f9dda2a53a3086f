"""Losses by class in operators that have kernels: what each row's class has, beside the logarithm of its row's sum.

    cross_entropy(x, target)   ==>   m = amax(x, 1); log(sum(exp(x - m), 1)) - (x[row, target] - m), then their mean

As in `log_softmax`, the maximum is taken off first, so that no digit is lost where scores are large.
"""

from __future__ import annotations

from typing import Final

from smelt.ir import Arg, DType, Value
from smelt.ops.record import Call, Emitter, tensor_type

CROSS_ENTROPY: Final = "aten.cross_entropy_loss.default"
_NONE, _MEAN = 0, 1


def lower_cross_entropy(b: Emitter, call: Call) -> Arg | None:
    """Of scores [n, c, ...] with one class for each row; not for probabilities, weights and smoothed labels.

    A class that there is not is refused by `gather`, except where it is the one to be ignored.
    """
    x, target = call["self"], call["target"]
    scores, classes = tensor_type(x), tensor_type(target)
    plain = call["weight"] is None and call["label_smoothing"] == 0 and isinstance(call["ignore_index"], int)
    if not plain or scores.rank is None or scores.rank < 2 or classes.dtype is not DType.I64:
        return None
    if classes.rank != scores.rank - 1 or scores.dtype not in (DType.F32, DType.F64) or not scores.numel:
        return None
    valid = b.call("aten.ne.Scalar", target, call["ignore_index"])
    chosen = b.call("aten.unsqueeze.default", b.call("aten.where.ScalarOther", valid, target, 0), 1)
    top = b.call("aten.amax.default", x, (1,), True)
    powers = b.call("aten.exp.default", b.call("aten.sub.Tensor", x, top))
    logarithm = b.call("aten.log.default", b.call("aten.sum.dim_IntList", powers, (1,), True))
    own = b.call("aten.sub.Tensor", b.call("aten.gather.default", x, 1, chosen), top)
    losses = b.call("aten.squeeze.dim", b.call("aten.sub.Tensor", logarithm, own), 1)
    return _reduced(b, b.call("aten.where.ScalarOther", valid, losses, 0), valid, call["reduction"], scores.dtype)


def _reduced(b: Emitter, losses: Value, valid: Value, reduction: Arg, dtype: DType) -> Value:
    """What becomes of each row's loss; the mean is over the rows that are not ignored."""
    if reduction == _NONE:
        return losses
    total = b.call("aten.sum.default", losses)
    if reduction != _MEAN:
        return total
    count = b.call("aten._to_copy.default", b.call("aten.sum.default", valid), dtype=dtype)
    return b.call("aten.div.Tensor", total, count)
