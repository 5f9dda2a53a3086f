"""Gradients of padding, resampling and rearranging images: by torch's kernels, which have gradients here, too.

Invariant: each operator and its backward are the gradients of each other, as both are linear.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.ir import Value
from smelt.ops.catalogue.gradients.parts import of_ranks, of_sizes, sizes_of
from smelt.ops.record import Call, Emitter, Gradient

_PADS = tuple(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3))
_SMOOTH = (
    "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip
_NEAREST = tuple(f"{name}{n}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3))


def _zeros(b: Emitter, call: Call, grad: Value) -> Value:
    """Of what a backward reads the sizes of alone, autograd has zeros."""
    return b.call("aten.zeros_like.default", call["self"])


def _pad(name: str) -> dict[str, Gradient]:
    there, back = f"aten.{name}.default", f"aten.{name}_backward.default"
    return {
        there: of_ranks(self=lambda b, call, grad: b.call(back, grad, call["self"], call["padding"])),
        back: of_ranks(grad_output=lambda b, call, grad: b.call(there, grad, call["padding"]), self=_zeros),
    }


def _resampled(name: str) -> dict[str, Gradient]:
    there, back = f"aten.{name}.default", f"aten.{name}_backward.default"

    def settings(call: Call) -> tuple[Any, ...]:
        """What follows the sizes: whether corners are kept, and the factors."""
        return tuple(arg for key, arg in call.items() if key.startswith(("align", "scales")))

    def forward(b: Emitter, call: Call, grad: Value) -> Value:
        return b.call(there, grad, call["output_size"], *settings(call))

    def backward(b: Emitter, call: Call, grad: Value) -> Value:
        return b.call(back, grad, call["output_size"], sizes_of(call["self"]), *settings(call))

    return {there: of_sizes(self=backward), back: of_ranks(grad_output=forward)}


def _of_channels(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.channel_shuffle.default", grad, sizes_of(grad)[1] // call["groups"])


GRADIENTS: Mapping[str, Gradient] = {
    **{name: rule for pad in _PADS for name, rule in _pad(pad).items()},
    **{name: rule for resampled in (*_SMOOTH, *_NEAREST) for name, rule in _resampled(resampled).items()},
    "aten.pixel_shuffle.default": of_ranks(
        self=lambda b, call, grad: b.call("aten.pixel_unshuffle.default", grad, call["upscale_factor"])
    ),
    "aten.pixel_unshuffle.default": of_ranks(
        self=lambda b, call, grad: b.call("aten.pixel_shuffle.default", grad, call["downscale_factor"])
    ),
    "aten.channel_shuffle.default": of_sizes(self=_of_channels),
    "aten.rot90.default": of_ranks(
        self=lambda b, call, grad: b.call("aten.rot90.default", grad, -call["k"], call["dims"])
    ),
}
