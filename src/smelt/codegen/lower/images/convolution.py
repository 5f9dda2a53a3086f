"""Convolutions, channels-last from one to the next, and the library's way to run those with static weights.

    %1 = conv2d(%x, %w, %b); %2 = conv2d(%1, ...)   ==>   %x copied to channels-last once; no reorder between the two

The result stays channels-last for whoever takes any layout; who does not gets a copy in eager's layout. Candidates:
`own` (own_convolution.py) and `onednn` (here: weight packed by the library, its post-ops as epilogue).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from smelt._torch.library import mkldnn
from smelt.codegen.lower.builder import Place, Storage
from smelt.codegen.lower.context import Context, tensor_type
from smelt.codegen.lower.generic import dispatch
from smelt.codegen.lower.library import lower_pad
from smelt.codegen.lower.memory.geometry import Geometry, same_layout
from smelt.codegen.lower.products.fuse import Epilogue, sole_user
from smelt.diag.records import record
from smelt.ir import Arg, DType, Node, TensorType, Value
from smelt.ir.sizes import is_symbolic
from smelt.ir.sizes import value as at_hand
from smelt.passes.layers.frames import OVER_FRAMES, reads_frames
from smelt.runtime import calls

CONVOLUTIONS = (
    "aten.conv1d.default", "aten.conv1d.padding", "aten.conv2d.default", "aten.conv2d.padding",
    "aten.convolution.default", OVER_FRAMES,
)  # fmt: skip


@record
class Convolution:
    """f32[n, c, h, w] with weight f32[out, c / groups, kh, kw] -> f32[n, out, h', w'], or both without h and kh, or
    with frames and taps in time before them.

    Per axis: strides, zeros before and after, dilations. pad: the node that made (some of) those zeros. is_live: the
    weight is known in a call only. is_turned: it is the gradient of an image, or a transposed convolution: `x` is the
    result's gradient, strides and zeros are those of the convolution that had the image.
    """

    node: Node
    x: Value
    weight: Value
    bias: Value | None
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    pad: Node | None = None
    is_live: bool = False
    is_turned: bool = False

    @property
    def result(self) -> Value:
        """What it gives."""
        return self.node.results[0]


def convolution_of(ctx: Context, node: Node) -> Convolution | None:
    """The convolution that a node is, if it has one or two axes, or three whose frames kernels read where they lie."""
    if node.op not in CONVOLUTIONS or ctx.options.numerics == "eager-library":
        return None
    call = ctx.call_arguments(node)
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if not isinstance(x, Value) or not isinstance(weight, Value) or not (bias is None or isinstance(bias, Value)):
        return None
    if call.get("transposed") or "autocast" in node.mode:
        return None
    is_live = not ctx.statics.is_static(weight)
    if not _are_alike([v for v in (x, weight, bias, node.result) if v is not None], is_live):
        return None
    axes = len(tensor_type(weight).sizes) - 2
    if axes not in (1, 2, 3) or len(tensor_type(x).sizes) != axes + 2:
        return None
    if axes == 3 and not _is_over_frames(call, is_live):
        return None
    stride, dilation = per_axis(call["stride"], axes), per_axis(call["dilation"], axes)
    groups = call["groups"]
    if stride is None or dilation is None or not isinstance(groups, int):
        return None
    padding = _padding(call["padding"], tensor_type(weight).sizes[2:], dilation)
    if padding is None:
        return None
    before, after = padding
    found = Convolution(node, x, weight, bias, stride, before, after, dilation, groups, is_live=is_live)
    border = _zero_border(ctx, x, axes)
    if border is None or not isinstance(border[0].args[0], Value):
        return found
    pad, more_before, more_after = border
    return replace(
        found, x=border[0].args[0], pad=pad,
        before=tuple(map(sum, zip(before, more_before, strict=True))),
        after=tuple(map(sum, zip(after, more_after, strict=True))),
    )  # fmt: skip


def _is_over_frames(call: Mapping[str, Arg], is_live: bool) -> bool:
    """Whether a convolution of three axes is one whose frames kernels read where they lie."""
    x, weight = call["input"], call["weight"]
    assert isinstance(x, Value) and isinstance(weight, Value)
    sizes = tensor_type(weight).sizes
    if is_live or call["groups"] != 1 or is_symbolic((*tensor_type(x).sizes, *sizes)):
        return False
    return reads_frames(sizes)


def _are_alike(values: Sequence[Value], is_live: bool) -> bool:
    """Whether all are tensors of one dtype that kernels have. is_live: and of known sizes."""
    types = [v.type for v in values]
    kinds = {t.dtype if isinstance(t, TensorType) and t.numel > 0 else None for t in types}
    if is_live:
        return kinds == {DType.F32} and all(isinstance(t, TensorType) and not is_symbolic(t.sizes) for t in types)
    return kinds in ({DType.F32}, {DType.BF16})


def without_pad(ctx: Context, conv: Convolution) -> Convolution:
    """The convolution of what its padding node makes, which is then lowered by itself."""
    assert conv.pad is not None
    border = _zero_border(ctx, conv.pad.result, len(conv.stride))
    assert border is not None
    _, before, after = border
    return replace(
        conv, x=conv.pad.result, pad=None,
        before=tuple(b - more for b, more in zip(conv.before, before, strict=True)),
        after=tuple(a - more for a, more in zip(conv.after, after, strict=True)),
    )  # fmt: skip


_PADS = ("aten.pad.default", "aten.constant_pad_nd.default")


def _zero_border(ctx: Context, x: Value, axes: int) -> tuple[Node, tuple[int, ...], tuple[int, ...]] | None:
    """The node that puts zeros around x for this convolution alone, and how many before and after, per axis.

    %1 = pad(%x, [0, 1, 0, 1]); %2 = conv2d(%1, %w)   ==>   conv2d(%x, %w, 0 above and left, 1 right and below)
    """
    node = x.node
    if node is None or node.op not in _PADS or sole_user(x) is None or node.mode or ctx.statics.is_static(x):
        return None
    call = ctx.call_arguments(node)
    pad = call["pad"]
    if call.get("mode", "constant") != "constant" or call["value"] not in (None, 0) or not isinstance(pad, tuple):
        return None
    sizes = [p for p in pad if isinstance(p, int)]
    if len(sizes) != len(pad) or len(sizes) % 2 or len(sizes) > 2 * axes or min(sizes, default=-1) < 0:
        return None
    # The last axis comes first in a padding.
    sizes += [0] * (2 * axes - len(sizes))
    return node, tuple(sizes[0::2])[::-1], tuple(sizes[1::2])[::-1]


def per_axis(arg: Arg, axes: int) -> tuple[int, ...] | None:
    if isinstance(arg, int):
        return (arg,) * axes
    if not isinstance(arg, tuple):
        return None
    found = tuple(a for a in arg if isinstance(a, int))
    if len(found) != len(arg):
        return None
    return found * axes if len(found) == 1 else found if len(found) == axes else None


def _padding(
    arg: Arg, kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Zeros before and after, per axis."""
    if arg == "valid":
        return (0,) * len(kernel), (0,) * len(kernel)
    if arg == "same":
        total = [d * (size - 1) for d, size in zip(dilation, kernel, strict=True)]
        return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    both = per_axis(arg, len(kernel))
    return None if both is None else (both, both)


def channels_last(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Channels-last strides of [n, c, h, w], [n, c, w] or [n, c, frames, h, w]."""
    _, c, *axes = sizes
    inner = [c]
    for size in reversed(axes):
        inner.append(inner[-1] * size)
    return inner[-1], 1, *inner[-2::-1]


def takes_library(conv: Convolution) -> bool:
    """Whether oneDNN has the convolution (perhaps after its padding node): two axes, borders alike on both sides."""
    return (
        not conv.is_live
        and not conv.is_turned
        and mkldnn.has_convolution()
        and len(conv.stride) == 2
        and (conv.pad is not None or conv.before == conv.after)
    )


def lower_convolution(ctx: Context, conv: Convolution, epilogue: Epilogue) -> bool:
    """Lower a convolution with its epilogue by the library; False if it does not take it (its padding is done then)."""
    if conv.pad is not None and (conv.before != conv.after or _packed(ctx, conv) is None):
        ctx.enter(conv.pad)
        if not lower_pad(ctx, conv.pad):
            dispatch(ctx, conv.pad)
        conv = without_pad(ctx, conv)
        ctx.enter(conv.node)
    packed = _packed(ctx, conv) if conv.before == conv.after else None
    if packed is None:
        return False
    x = channels_last_slot(ctx, conv.x)
    bias = None if conv.bias is None else ctx.slot(conv.bias)
    other = None if epilogue.residual is None else channels_last_slot(ctx, epilogue.residual)
    dst = ctx.result(epilogue.result, channels_last(tensor_type(epilogue.result).sizes))
    post = epilogue.post
    call = calls.packed_convolution(
        dst, x, packed.slot, bias, stride=conv.stride, padding=conv.before, dilation=conv.dilation,
        groups=conv.groups, post=post.name, scalars=post.scalars, algorithm=post.algorithm, other=other,
    )  # fmt: skip
    ctx.builder.emit(call)
    ctx.note(conv.node, "library", call.symbol)
    for node in (*epilogue.nodes, *(() if conv.pad is None else (conv.pad,))):
        ctx.note(node, "fused", f"%{conv.node.result.name}")
    return True


def channels_last_slot(ctx: Context, value: Value) -> int:
    """A slot with the value's tensor in channels-last layout, copied where it lies otherwise."""
    place = ctx.place(value)
    strides = channels_last(place.geometry.sizes)
    if not same_layout(place.geometry.sizes, place.geometry.strides, strides):
        return ctx.builder.handle(ctx.with_strides(place, strides))
    # The same memory; the strides of dimensions of size 1 are spelled out because the library looks at them.
    return ctx.builder.handle(Place(place.storage, Geometry(place.geometry.sizes, strides, place.geometry.offset)))


def _packed(ctx: Context, conv: Convolution) -> Storage | None:
    # The library prepares for inputs of these sizes, and takes others, too.
    sizes = tuple(map(at_hand, tensor_type(conv.x).sizes))
    key = ("convolution", conv.weight, sizes, conv.stride, conv.before, conv.dilation, conv.groups)
    if key not in ctx.packed:
        weight = ctx.statics.bake(conv.weight)
        with ctx.timed("pack"):
            packed = mkldnn.pack_convolution(
                weight, padding=conv.before, stride=conv.stride, dilation=conv.dilation, groups=conv.groups,
                input_size=sizes,
            )  # fmt: skip
        if packed is None:
            return None
        ctx.packed[key] = ctx.builder.held(packed)
        ctx.packed_nbytes += weight.numel() * weight.element_size()
    return ctx.packed[key]
