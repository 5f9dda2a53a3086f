"""Sizes of convolutions of a graph and of the gradients of their images, as the kernels count them.

the gradient of an image, strides of 1:   the convolution of the result's gradient by the weight turned
strides of 2:                             four of them, each for every other row and column, by a part of the taps
a convolution over frames:                one, or several, each for frames that the same taps in time reach
"""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.conv.kernels import Phase
from smelt.codegen.conv.shape import ConvShape, Over, Window
from smelt.codegen.lower.context import tensor_type
from smelt.codegen.lower.images.convolution import Convolution, channels_last
from smelt.diag.records import record
from smelt.passes.layers.frames import frames_by_taps


def conv_shape(conv: Convolution) -> ConvShape | None:
    """Sizes of a convolution; one axis counts as columns of a single row.

    That of an image's gradient is the one that gives it, of the result's gradient with zeros between its pixels where
    strides were larger than 1; None where there is none.
    """
    if not conv.is_turned:
        return window_of(conv)
    n, cin, h, w = spatial(tensor_type(conv.x).sizes)
    _, inner, kh, kw = spatial(tensor_type(conv.weight).sizes)
    stride, dilation, before = (
        _two((fill, *axes) if len(axes) == 1 else axes)
        for fill, axes in ((1, conv.stride), (1, conv.dilation), (0, conv.before))
    )
    _, _, *image = spatial(tensor_type(conv.result).sizes)
    spread = tuple((size - 1) * step + 1 for size, step in zip((h, w), stride, strict=True))
    reach = tuple(d * (k - 1) for d, k in zip(dilation, (kh, kw), strict=True))
    lead = tuple(r - b for r, b in zip(reach, before, strict=True))
    rest = tuple(size + r - s - a for size, r, s, a in zip(image, reach, spread, lead, strict=True))
    if min(*lead, *rest) < 0:
        return None
    window = Window((1, 1), dilation, _two(lead), _two(rest))
    return ConvShape(n, cin, *_two(spread), inner * conv.groups, kh, kw, window, conv.groups)


def window_of(conv: Convolution) -> ConvShape:
    """Sizes of a convolution that is no gradient; one axis counts as columns of a single row, and each frame of a
    result as an image.
    """
    n, cin, h, w = spatial(tensor_type(conv.x).sizes)
    cout, _, kh, kw = filter_sizes(tensor_type(conv.weight).sizes)
    if len(conv.stride) == 3:
        n, kh = spatial(tensor_type(conv.result).sizes)[0], tensor_type(conv.weight).sizes[3]
    stride, dilation, before, after = (
        _two((fill, *axes) if len(axes) == 1 else axes[-2:])
        for fill, axes in ((1, conv.stride), (1, conv.dilation), (0, conv.before), (0, conv.after))
    )
    return ConvShape(n, cin, h, w, cout, kh, kw, Window(stride, dilation, before, after), conv.groups)


@record
class Part:
    """A phase of a result: the convolution that gives its pixels, and the strides of what that reads."""

    shape: ConvShape
    phase: Phase
    strides: tuple[int, int, int, int] = (0, 1, 0, 0)


def over_frames(conv: Convolution) -> Over:
    """A convolution over frames as the kernels that give all of them count it."""
    sizes, results, taps = (tensor_type(v).sizes for v in (conv.x, conv.result, conv.weight))
    shape = replace(window_of(conv), n=sizes[0])
    return Over(shape, sizes[2], results[2], taps[2], conv.stride[0], conv.before[0], conv.dilation[0])


_MOST_SAMPLES = 16
"""Samples whose frames are parts of their own."""


def frames_of(conv: Convolution, strides: tuple[int, ...]) -> tuple[Part, ...]:
    """The parts of a convolution over frames. strides: of n, c, frames, h and w, channels side by side.

    Images of a part are frames of one sample, which stay in the cache until the next one reads them. Where there is one
    such frame, or there are many samples, they are the same frame of all samples.
    """
    sizes, out = tensor_type(conv.x).sizes, tensor_type(conv.result).sizes
    taps, kh, kw = tensor_type(conv.weight).sizes[2:]
    shape, cin = window_of(conv), sizes[1]
    step, border, dilation = conv.stride[0], conv.before[0], conv.dilation[0]
    down, right = shape.window.dilation
    to_sample, _, to_frame, to_row, to_column = channels_last(out)
    found = []
    for one in frames_by_taps((sizes[2], out[2]), taps, step, border, dilation):
        if one.count == 1 or sizes[0] > _MOST_SAMPLES:
            places = [(0, at) for at in range(one.first, one.first + one.count)]
            images, apart, results_apart = sizes[0], strides[0], to_sample
        else:
            places = [(sample, one.first) for sample in range(sizes[0])]
            images, apart, results_apart = one.count, step * strides[2], to_frame
        for sample, frame in places:
            begin = sample * strides[0] + (frame * step - border) * strides[2]
            reached = tuple(
                (ky * down, kx * right, ((tap * kh + ky) * kw + kx) * cin, begin + tap * dilation * strides[2])
                for tap in range(one.tap, one.after)
                for ky in range(kh)
                for kx in range(kw)
            )
            place = results_apart, to_row, to_column, sample * to_sample + frame * to_frame
            phase = Phase(reached, place, taps * kh * kw * cin)
            found.append(Part(replace(shape, n=images), phase, (apart, strides[1], *_two(strides[3:]))))
    return tuple(found)


def phases_of(conv: Convolution) -> tuple[Part, ...] | None:
    """The parts of an image's gradient whose pixels are read by the same taps; None for strides of 1.

    Pixel y of the image took part in result o by tap k where y = o * stride - before + k: of the pixels that are equal
    modulo the stride, the same taps.
    """
    if all(step == 1 for step in conv.stride):
        return None
    n, cin, h, w = spatial(tensor_type(conv.x).sizes)
    _, inner, kh, kw = spatial(tensor_type(conv.weight).sizes)
    _, _, *image = spatial(tensor_type(conv.result).sizes)
    stride, before = (
        _two((fill, *axes) if len(axes) == 1 else axes) for fill, axes in ((1, conv.stride), (0, conv.before))
    )
    step = inner * conv.groups
    rows, columns = (
        [_along(*axis, at) for at in range(axis[3])]
        for axis in zip((h, w), (kh, kw), before, stride, image, strict=True)
    )
    found = []
    for a, down in enumerate(rows):
        for b, right in enumerate(columns):
            if not down.size or not right.size:
                continue
            # In the packed weight the last tap comes first.
            taps = tuple(
                (dy, dx, ((kh - 1 - ky) * kw + kw - 1 - kx) * (cin // conv.groups), 0)
                for dy, ky in enumerate(down.taps)
                for dx, kx in enumerate(right.taps)
            )
            window = Window((1, 1), (1, 1), (down.before, right.before), (down.after, right.after))
            shape = ConvShape(n, cin, h, w, step, max(len(down.taps), 1), max(len(right.taps), 1), window, conv.groups)
            width = image[1]
            out = image[0] * width * step, stride[0] * width * step, stride[1] * step, (a * width + b) * step
            found.append(Part(shape, Phase(taps, out, kh * kw * (cin // conv.groups))))
    return tuple(found)


@record
class _Axis:
    """One axis of a phase: how many pixels, its taps from the first one that is met, and zeros around."""

    size: int
    taps: tuple[int, ...]
    before: int
    after: int


def _along(given: int, kernel: int, before: int, stride: int, image: int, at: int) -> _Axis:
    """The pixels at, at + stride, ... of an axis of `image` pixels, whose result's gradient has `given` pixels."""
    size = max(0, -(-(image - at) // stride))
    first = (at + before) % stride
    taps = tuple(range(first, kernel, stride))[::-1]
    if not taps:
        return _Axis(size, (), 0, size - given)
    lead = len(taps) - 1 - (at + before - first) // stride
    return _Axis(size, taps, lead, size + len(taps) - 1 - lead - given)


def _two(axes: tuple[int, ...]) -> tuple[int, int]:
    first, second = axes
    return first, second


def spatial(sizes: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Sizes of images with a row axis put in where there is one axis only; frames are images."""
    n, c, *axes = sizes
    if len(axes) == 3:
        return n * axes[0], c, axes[1], axes[2]
    h, w = axes if len(axes) == 2 else (1, axes[0])
    return n, c, h, w


def filter_sizes(sizes: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Sizes of a weight as `spatial` has them; its taps in time are rows."""
    if len(sizes) == 5:
        return sizes[0], sizes[1], sizes[2] * sizes[3], sizes[4]
    return spatial(sizes)


def four(strides: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Strides of n, c, h and w; of an axis alone as those of a row."""
    n, c, *axes = strides
    h, w = axes if len(axes) == 2 else (0, axes[0])
    return n, c, h, w
