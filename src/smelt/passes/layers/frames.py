"""Convolutions over frames as convolutions of images.

    %1 = conv3d %x, %w, %b      ==>   for frames that the same taps in time reach, channels side by side:
                                      %f = cat [frames -1, 0, 1 of %x]; %y = conv2d %f, %v, %b; %1 = cat [%y, ...]

A frame of the result is a convolution of as many frames of the input as the weight has in time, whose channels add up
in one sum. Frames at both ends, where some of these are the border's, are convolutions of their own with fewer of them:
no zero is multiplied. Frames lie with their channels side by side, as kernels read images.

Where a frame has more than a few channels, or so few that kernels copy what a window sees, they read frames where they
lie (`reads_frames`): no rewrite is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from smelt.diag.records import record
from smelt.ir import Graph, Node, Value
from smelt.passes.base import Pass, PassContext, call_of, emitter
from smelt.passes.layers.convolutions import of_axis, rewritable
from smelt.passes.layouts import replace_result
from smelt.passes.matching import static_tensor
from smelt.rewrite import Rewriter

OVER_FRAMES = "aten.conv3d.default"
"""The convolution of three axes."""


COPIED_CHANNELS = 7
"""Of an image at most, of which kernels copy the rows that a window sees."""
_FEW_CHANNELS = 16
"""Of a frame, with which the channels of several are worth joining: they are what a kernel goes over."""


@record
class Frames:
    """`count` frames of a result from `first` on, which the taps from `tap` to before `after` in time reach."""

    first: int
    count: int
    tap: int
    after: int


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    for node in rewritable(graph, context, (OVER_FRAMES,)):
        x, weight = (static_tensor(call_of(node)[name]) for name in ("input", "weight"))
        if x is not None and weight is not None and len(x.sizes) == 5 and not reads_frames(weight.sizes):
            _rewrite(rewriter, node)
    return rewriter.edits > 0


def reads_frames(weight: Sequence[int]) -> bool:
    """Whether kernels of a convolution read several frames of one image where they lie. weight: sizes, of five axes."""
    if weight[1] <= COPIED_CHANNELS:
        return weight[3] > 1 or weight[4] > 1
    return weight[1] >= _FEW_CHANNELS and weight[2] > 1


def frames_by_taps(sizes: tuple[int, int], taps: int, step: int, border: int, dilation: int) -> list[Frames]:
    """The result's frames by the taps that reach them. sizes: frames of the image and of the result."""
    frames, results = sizes

    def reached(at: int) -> tuple[int, int]:
        inside = [t for t in range(taps) if 0 <= at * step - border + t * dilation < frames]
        return (inside[0], inside[-1] + 1) if inside else (0, 0)

    return [
        Frames(group[0], len(group), tap, after)
        for (tap, after), members in groupby(range(results), reached)
        for group in [list(members)]
    ]


def _rewrite(rewriter: Rewriter, node: Node) -> None:
    call = call_of(node)
    options = [[of_axis(call[name], axis) for axis in range(3)] for name in ("stride", "padding", "dilation")]
    x, weight, out = (static_tensor(v) for v in (call["input"], call["weight"], node.result))
    if x is None or weight is None or out is None or any(n is None for option in options for n in option):
        return
    (step, *steps), (border, *borders), (dilation, *dilations) = ([n for n in o if n is not None] for o in options)
    classes = frames_by_taps((x.sizes[2], out.sizes[2]), weight.sizes[2], step, border, dilation)
    if any(c.tap == c.after for c in classes):
        return
    with rewriter.builder.at(node):
        emit = emitter(rewriter)
        rows = emit.call("aten.permute.default", call["input"], (0, 2, 3, 4, 1))
        in_images = (*steps,), (*borders,), (*dilations,)
        parts: list[Value] = []
        for one in classes:
            firsts = [one.first * step - border + tap * dilation for tap in range(one.tap, one.after)]
            read = [emit.call("aten.slice.Tensor", rows, 1, at, at + (one.count - 1) * step + 1, step) for at in firsts]
            joined = read[0] if len(read) == 1 else emit.call("aten.cat.default", tuple(read), -1)
            images = emit.call("aten.reshape.default", joined, (-1, *x.sizes[3:], len(read) * x.sizes[1]))
            images = emit.call("aten.permute.default", images, (0, 3, 1, 2))
            filters = emit.call("aten.slice.Tensor", call["weight"], 2, one.tap, one.after)
            filters = emit.call("aten.permute.default", filters, (0, 2, 1, 3, 4))
            filters = emit.call("aten.reshape.default", filters, (weight.sizes[0], -1, *weight.sizes[3:]))
            made = emit.call("aten.conv2d.default", images, filters, call["bias"], *in_images)
            made = emit.call("aten.permute.default", made, (0, 2, 3, 1))
            parts.append(emit.call("aten.reshape.default", made, (x.sizes[0], one.count, *out.sizes[3:], out.sizes[1])))
        whole = parts[0] if len(parts) == 1 else emit.call("aten.cat.default", tuple(parts), 1)
        whole = emit.call("aten.permute.default", whole, (0, 4, 1, 2, 3))
    replace_result(rewriter, node, whole)


images_of_frames = Pass(
    "images-of-frames",
    "%1 = conv3d %x, %w   ==>   %f = cat [frames of %x]; %1 = conv2d %f, %v   (%v: from the parameters)",
    _run,
    rounding=True,
)
