"""Transposed convolutions as convolutions whose results are woven together.

    %1 = conv_transpose2d %x, %w, %b, 2, 1   ==>   %y = conv2d %x, %v, %c, 1, 1     (%v: four weights of 2x2 of %w)
    (%w: 4x4)                                      %1 = four results of each place side by side, without the border

Rows of the result that are equal modulo the stride are made by the same taps, each a stride apart: so they are
the result of one convolution with a stride of 1, and no zero is put between the pixels. An image of one pixel is a row
of a product. Windows are whole multiples of the stride, so that no tap is made up which would meet what is infinite.

Where the result has more than a few channels, kernels write its parts where they lie (`writes_parts`): nothing is
computed beyond the border, and no rewrite is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from smelt.diag.records import record
from smelt.ir import Graph, Node, TensorType, Value
from smelt.ops.record import Emitter
from smelt.passes.base import Pass, PassContext, call_of, emitter
from smelt.passes.layers.convolutions import of_axis, rewritable
from smelt.passes.layouts import replace_result
from smelt.passes.matching import static_tensor
from smelt.rewrite import Rewriter

TRANSPOSED = {
    "aten.conv_transpose1d.default": "aten.conv1d.default",
    "aten.conv_transpose2d.input": "aten.conv2d.default",
}
_FEW_CHANNELS = 16
"""Of a result, of which several parts fill the registers that one would not."""
_MOST_WASTE = 2.5
"""Places that are computed for each pixel of the image, at most: those beyond its border are thrown away."""


@record
class _Axis:
    """One axis: pixels of the image and the result, the stride, taps of each part, zeros around the image, and what of
    the woven rows comes before the result's first one.
    """

    image: int
    result: int
    stride: int
    taps: int
    border: int
    first: int

    @property
    def places(self) -> int:
        """How many places each part is computed for."""
        return self.image + 2 * self.border - self.taps + 1


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    for node in rewritable(graph, context, TRANSPOSED):
        axes = None if _has_kernel(node) else _axes(node)
        if axes is not None:
            _rewrite(rewriter, node, axes)
    return rewriter.edits > 0


def writes_parts(image: Sequence[int], weight: Sequence[int], strides: Sequence[int], padding: Sequence[int]) -> bool:
    """Whether kernels write each part of the result where it lies. image, weight: sizes of both, channels included."""
    is_within = all(zeros < window for zeros, window in zip(padding, weight[2:], strict=True))
    return weight[1] >= _FEW_CHANNELS and prod(image[2:]) > 1 and max(strides) > 1 and is_within


def _has_kernel(node: Node) -> bool:
    call = call_of(node)
    x, weight = static_tensor(call["input"]), static_tensor(call["weight"])
    if x is None or weight is None or len(x.sizes) != len(weight.sizes):
        return False
    axes = range(len(weight.sizes) - 2)
    options = [[of_axis(call[name], axis) for axis in axes] for name in ("stride", "padding", "dilation")]
    steps, padding, dilation = ([n for n in option if n is not None] for option in options)
    if len(steps) != len(axes) or len(padding) != len(axes) or dilation != [1] * len(axes):
        return False
    return writes_parts(x.sizes, weight.sizes, steps, padding)


def _axes(node: Node) -> list[_Axis] | None:
    call = call_of(node)
    x, weight, out = (static_tensor(v) for v in (call["input"], call["weight"], node.result))
    if x is None or weight is None or out is None or len(x.sizes) != len(weight.sizes):
        return None
    count = len(weight.sizes) - 2
    found = []
    for axis in range(count):
        stride, padding, dilation = (of_axis(call[name], axis) for name in ("stride", "padding", "dilation"))
        if stride is None or padding is None or dilation != 1:
            return None
        one = _axis(x.sizes[2 + axis], out.sizes[2 + axis], weight.sizes[2 + axis], stride, padding)
        if one is None:
            return None
        found.append(one)
    if prod(one.places for one in found) > _MOST_WASTE * prod(x.sizes[2:]) and prod(x.sizes[2:]) > 1:
        return None
    return found


def _axis(image: int, result: int, window: int, stride: int, padding: int) -> _Axis | None:
    if window % stride:
        return None
    taps = window // stride
    for cut in range(min(padding // stride, taps - 1), -1, -1):
        found = _Axis(image, result, stride, taps, taps - 1 - cut, padding - cut * stride)
        if found.first + result <= stride * found.places:
            return found
    return None


def _rewrite(rewriter: Rewriter, node: Node, axes: Sequence[_Axis]) -> None:
    x, out = static_tensor(call_of(node)["input"]), static_tensor(node.result)
    assert x is not None and out is not None
    with rewriter.builder.at(node):
        emit = emitter(rewriter)
        is_row = prod(x.sizes[2:]) == 1 and all(one.first == 0 and one.result == one.stride * one.taps for one in axes)
        made = _row(emit, node, out) if is_row else _woven(emit, node, axes)
    replace_result(rewriter, node, made)


def _row(b: Emitter, node: Node, out: TensorType) -> Value:
    """Of images of one pixel: a product of their channels."""
    call = call_of(node)
    n, columns, *windows = out.sizes
    weight = b.call("aten.permute.default", call["weight"], (*range(1, len(out.sizes)), 0))
    weight = b.call("aten.reshape.default", weight, (columns * prod(windows), -1))
    bias = call["bias"]
    if bias is not None:
        bias = b.call("aten.repeat_interleave.self_int", bias, prod(windows))
    made = b.call("aten.linear.default", b.call("aten.reshape.default", call["input"], (n, -1)), weight, bias)
    return b.call("aten.view.default", made, (n, columns, *windows))


def _woven(b: Emitter, node: Node, axes: Sequence[_Axis]) -> Value:
    """One convolution for all parts, whose results are put side by side."""
    call, count = call_of(node), len(axes)
    weight = static_tensor(call["weight"])
    assert weight is not None
    inputs, columns = weight.sizes[:2]
    strides = [one.stride for one in axes]
    # Tap number t of a row is tap t // stride of part t % stride; a convolution's first tap is the last one here.
    split = tuple(n for one in axes for n in (one.taps, one.stride))
    taps, parts = range(2, 2 + 2 * count, 2), range(3, 3 + 2 * count, 2)
    filters = b.call("aten.reshape.default", call["weight"], (inputs, columns, *split))
    filters = b.call("aten.flip.default", filters, tuple(taps))
    filters = b.call("aten.permute.default", filters, (*parts, 1, 0, *taps))
    filters = b.call("aten.reshape.default", filters, (prod(strides) * columns, inputs, *(one.taps for one in axes)))
    bias = call["bias"]
    if bias is not None:
        bias = b.call("aten.repeat.default", bias, (prod(strides),))
    borders = tuple(one.border for one in axes)
    made = b.call(TRANSPOSED[node.op], call["input"], filters, bias, (1,) * count, borders)
    # [n, places.., part.., channels] -> [n, places x parts.., channels]
    made = b.call("aten.permute.default", made, (0, *range(2, 2 + count), 1))
    made = b.call("aten.reshape.default", made, (-1, *(one.places for one in axes), *strides, columns))
    woven = tuple(dim for axis in range(count) for dim in (1 + axis, 1 + count + axis))
    made = b.call("aten.permute.default", made, (0, *woven, 1 + 2 * count))
    made = b.call("aten.reshape.default", made, (-1, *(one.places * one.stride for one in axes), columns))
    for axis, one in enumerate(axes):
        made = b.call("aten.slice.Tensor", made, 1 + axis, one.first, one.first + one.result)
    return b.call("aten.permute.default", made, (0, 1 + count, *range(1, 1 + count)))


woven_convolutions = Pass(
    "woven-convolutions",
    "%1 = conv_transpose2d %x, %w, 2   ==>   %y = conv2d %x, %v; %1 = a view of %y's parts woven   (%v: from %w)",
    _run,
    rounding=True,
)
