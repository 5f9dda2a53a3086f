"""Bilinear resampling as four gathers and their weighted sum, which one kernel computes with what is around it.

    %y = upsample_bilinear2d(%x, [32, 32], False)
==> %l, %r = columns of %x left and right of each column of the result; %m = (1 - w) * %l + w * %r; the same of rows

Columns first: then only an image as high as the first is gathered element by element, and rows are read in their
memory layout.
"""

from __future__ import annotations

from smelt.diag.records import record
from smelt.ir import Arg, DType, Value
from smelt.ops.catalogue.indexing import BY_INDEX
from smelt.ops.record import Call, Emitter, tensor_type

BILINEAR = "aten.upsample_bilinear2d.vec"


@record
class _Between:
    """The two neighbours of each place of the result along one dimension, and the weight of the second one."""

    low: Value
    high: Value
    weight: Value


def lower_bilinear(b: Emitter, call: Call) -> Value | None:
    """For row-major results of known sizes in f32 and f64."""
    x, wanted, factors, aligned = (call[name] for name in ("input", "output_size", "scale_factors", "align_corners"))
    kind = tensor_type(x)
    if kind.rank != 4 or kind.dtype not in (DType.F32, DType.F64) or type(aligned) is not bool:
        return None
    image = kind.sizes[2:]
    scales = factors if isinstance(factors, tuple) else (None, None)
    given = wanted if isinstance(wanted, tuple) else tuple(
        int(n * s) if isinstance(s, float) else n for n, s in zip(image, scales, strict=True)
    )  # fmt: skip
    if not all(type(n) is int and n > 0 for n in (*image, *given)):
        return None
    down, across = (
        _between(b, n, out, scale, kind.dtype, aligned=aligned)
        for n, out, scale in zip(image, given, scales, strict=True)
    )
    found = _mixed(b, _mixed(b, x, across, 3), down, 2)
    return None if tensor_type(found).strides is not None else found


def _between(b: Emitter, size: int, out: int, scale: Arg, dtype: DType, *, aligned: bool) -> _Between | None:
    """None where the dimension keeps its size: each place is both of its neighbours."""
    if out == size:
        return None
    at = b.call("aten.arange.default", out, dtype=dtype)
    if aligned:
        at = b.call("aten.mul.Tensor", at, (size - 1) / (out - 1) if out > 1 else 0.0)
    else:
        step = 1.0 / scale if isinstance(scale, float) and scale > 0 else size / out
        at = b.call("aten.mul.Tensor", b.call("aten.add.Tensor", at, 0.5), step)
        at = b.call("aten.clamp_min.default", b.call("aten.sub.Tensor", at, 0.5), 0.0)
    low = b.call("aten.clamp_max.default", b.call("aten.to.dtype", at, DType.I64), size - 1)
    high = b.call("aten.clamp_max.default", b.call("aten.add.Tensor", low, 1), size - 1)
    weight = b.call("aten.clamp.default", b.call("aten.sub.Tensor", at, low), 0.0, 1.0)
    return _Between(low, high, weight)


def _mixed(b: Emitter, x: Value, between: _Between | None, dim: int) -> Value:
    if between is None:
        # As eager has it, of which the second neighbour's weight is 0: infinity becomes NaN.
        return b.call("aten.add.Tensor", x, b.call("aten.mul.Tensor", x, 0.0))
    first, second = (b.call(BY_INDEX, x, dim, at) for at in (between.low, between.high))
    weight = between.weight if dim == 3 else b.call("aten.unsqueeze.default", between.weight, 1)
    rest = b.call("aten.rsub.Scalar", weight, 1.0)
    return b.call("aten.add.Tensor", b.call("aten.mul.Tensor", first, rest), b.call("aten.mul.Tensor", second, weight))
