"""Gradients of pooling and upsampling: by torch's own kernels, which have gradients here, too."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.ir import Value
from smelt.ops.catalogue.gradients.parts import (
    has_sizes,
    of_ranks,
    of_sizes,
    rank_of,
    reshaped,
    reshaped_like,
    sizes_of,
)
from smelt.ops.record import Call, Emitter, Gradient, Parts

_AVERAGE = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
_MAXIMUM = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


def _zeros(b: Emitter, call: Call, grad: Value) -> Value:
    """Of what a backward reads the sizes of alone, autograd has zeros."""
    return b.call("aten.zeros_like.default", call["self"])


def _strided(call: Call) -> Call:
    """A window steps by its own size where no other step is given."""
    return call if call["stride"] else {**call, "stride": call["kernel_size"]}


def _of_average(b: Emitter, call: Call, grad: Value) -> Value:
    how = (_strided(call)[n] for n in _AVERAGE)
    return b.call("aten.avg_pool2d_backward.default", grad, call["self"], *how)


def _of_average_backward(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.avg_pool2d.default", grad, *(call[n] for n in _AVERAGE))


def _of_maximum(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    grad, how = grads[0], [_strided(call)[n] for n in _MAXIMUM]
    if grad is None:
        return {}
    name = "aten.max_pool2d_with_indices_backward.default"
    return {"self": lambda: b.call(name, grad, call["self"], *how, results[1])}


def _of_maximum_backward(b: Emitter, call: Call, grad: Value) -> Value:
    """Where the maxima were."""
    indices = call["indices"]
    planes = (b.call("aten.flatten.using_ints", x, -2) for x in (grad, indices))
    plane, places = planes
    return reshaped_like(b, b.call("aten.gather.default", plane, -1, places), indices)


def _of_adaptive(b: Emitter, call: Call, grad: Value) -> Value:
    x = call["self"]
    height, width = sizes_of(x)[-2:]
    if sizes_of(grad)[-2:] == (1, 1):
        return b.call("aten.expand.default", b.call("aten.div.Tensor", grad, height * width or 1), sizes_of(x))
    return b.call("aten._adaptive_avg_pool2d_backward.default", grad, x)


def _of_adaptive_line(b: Emitter, call: Call, grad: Value) -> Value:
    x = call["self"]
    image, of_image = (b.call("aten.unsqueeze.default", v, rank_of(v) - 1) for v in (x, grad))
    return b.call("aten.squeeze.dim", _of_adaptive(b, {"self": image}, of_image), -2)


def _of_adaptive_backward(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten._adaptive_avg_pool2d.default", grad, sizes_of(call["grad_output"])[-2:])


def _of_nearest(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    """Where each pixel becomes a block of pixels of one size: sums of blocks. Else by torch's kernel."""
    (grad,) = grads
    x, scales = call["input"], call["scale_factors"]
    if grad is None or not has_sizes(call, grad):
        return None
    sizes, wide = sizes_of(x), sizes_of(grad)
    times = [large // small if small else 1 for large, small in zip(wide[2:], sizes[2:], strict=True)]
    is_whole = [n * size for n, size in zip(times, sizes[2:], strict=True)] == list(wide[2:])
    if not is_whole or (scales is not None and list(scales) != times):
        how = (wide[2:], sizes, *(scales or (None, None)))
        return {"input": lambda: b.call("aten.upsample_nearest2d_backward.default", grad, *how)}
    blocks = (*sizes[:2], sizes[2], times[0], sizes[3], times[1])
    return {"input": lambda: b.call("aten.sum.dim_IntList", reshaped(b, grad, blocks), (3, 5))}


GRADIENTS: Mapping[str, Gradient] = {
    "aten.avg_pool2d.default": of_ranks(self=_of_average),
    "aten.avg_pool2d_backward.default": of_ranks(grad_output=_of_average_backward, self=_zeros),
    "aten.max_pool2d_with_indices.default": _of_maximum,
    "aten.max_pool2d_with_indices_backward.default": of_ranks(grad_output=_of_maximum_backward, self=_zeros),
    "aten.adaptive_avg_pool2d.default": of_sizes(self=_of_adaptive),
    "aten._adaptive_avg_pool2d.default": of_sizes(self=_of_adaptive),
    "aten._adaptive_avg_pool2d_backward.default": of_sizes(grad_output=_of_adaptive_backward, self=_zeros),
    "aten.adaptive_avg_pool1d.default": of_sizes(self=_of_adaptive_line),
    "aten.upsample_nearest2d.vec": _of_nearest,
}
"""Gradients of pooling and upsampling."""
