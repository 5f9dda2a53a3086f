"""Two-dimensional convolutions with packed weights, channels-last from one to the next.

    %1 = conv2d(%x, %w, %b); %2 = conv2d(%1, ...)   ==>   %x copied to channels-last once; no reorder between the two

The result stays channels-last for whoever takes any layout; who does not gets a copy in eager's layout.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt._torch import mkldnn
from smelt.codegen.lower.builder import Place, Storage
from smelt.codegen.lower.context import Context, tensor_type
from smelt.codegen.lower.fuse import Epilogue, sole_user
from smelt.codegen.lower.geometry import Geometry, same_layout
from smelt.ir import Arg, DType, Node, TensorType, Value
from smelt.runtime import calls

CONVOLUTIONS = ("aten.conv2d.default", "aten.conv2d.padding", "aten.convolution.default")


@dataclass(frozen=True, slots=True)
class Convolution:
    """f32[n, c, h, w] with weight f32[out, c / groups, kh, kw] -> f32[n, out, h', w']."""

    node: Node
    x: Value
    weight: Value
    bias: Value | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    pad: Node | None = None


def convolution_of(ctx: Context, node: Node) -> Convolution | None:
    """The convolution that a node is, if oneDNN takes it with a packed weight."""
    if node.op not in CONVOLUTIONS or ctx.options.numerics == "eager-library" or not mkldnn.has_convolution():
        return None
    call = ctx.call_arguments(node)
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if not isinstance(x, Value) or not isinstance(weight, Value) or not (bias is None or isinstance(bias, Value)):
        return None
    if call.get("transposed") or "autocast" in node.mode or not ctx.statics.is_static(weight):
        return None
    types = [v.type for v in (x, weight, bias, node.result) if v is not None]
    if not all(isinstance(t, TensorType) and t.dtype is DType.F32 and t.numel > 0 for t in types):
        return None
    if len(tensor_type(x).sizes) != 4 or len(tensor_type(weight).sizes) != 4:
        return None
    stride, dilation = _pair(call["stride"]), _pair(call["dilation"])
    groups = call["groups"]
    if stride is None or dilation is None or not isinstance(groups, int):
        return None
    padding = _padding(call["padding"], tensor_type(weight).sizes[2:], dilation)
    if padding is None:
        return None
    pad = _zero_border(ctx, x)
    if pad is not None and isinstance(pad[0].args[0], Value):
        node_of_pad, (top, left) = pad
        padding = (padding[0] + top, padding[1] + left)
        return Convolution(node, pad[0].args[0], weight, bias, stride, padding, dilation, groups, node_of_pad)
    return Convolution(node, x, weight, bias, stride, padding, dilation, groups)


_PADS = ("aten.pad.default", "aten.constant_pad_nd.default")


def _zero_border(ctx: Context, x: Value) -> tuple[Node, tuple[int, int]] | None:
    """The node that puts zeros around x for this convolution alone, and how many above and left (equal on both sides).

    %1 = pad(%x, [1, 1, 1, 1]); %2 = conv2d(%1, %w)   ==>   conv2d(%x, %w, padding = 1)
    """
    node = x.node
    if node is None or node.op not in _PADS or sole_user(x) is None or node.mode or ctx.statics.is_static(x):
        return None
    call = ctx.call_arguments(node)
    pad = call["pad"]
    if call.get("mode", "constant") != "constant" or call["value"] not in (None, 0) or not isinstance(pad, tuple):
        return None
    sizes = [p for p in pad if isinstance(p, int)]
    if len(sizes) != 4 or len(pad) != 4 or sizes[0] != sizes[1] or sizes[2] != sizes[3] or min(sizes) < 0:
        return None
    return node, (sizes[2], sizes[0])


def _pair(arg: Arg) -> tuple[int, int] | None:
    match arg:
        case (int(a),) | int(a):
            return a, a
        case (int(a), int(b)):
            return a, b
    return None


def _padding(arg: Arg, kernel: tuple[int, ...], dilation: tuple[int, int]) -> tuple[int, int] | None:
    """Zeros on each side; None where "same" would need more on one side than on the other."""
    if arg == "valid":
        return 0, 0
    if arg == "same":
        total = [d * (size - 1) for d, size in zip(dilation, kernel, strict=True)]
        return None if any(t % 2 for t in total) else (total[0] // 2, total[1] // 2)
    return _pair(arg)


def channels_last(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Channels-last strides of [n, c, h, w]."""
    _, c, h, w = sizes
    return h * w * c, 1, w * c, c


def lower_convolution(ctx: Context, conv: Convolution, epilogue: Epilogue) -> bool:
    """Lower a convolution with its epilogue; False if the weight cannot be packed."""
    packed = _packed(ctx, conv)
    if packed is None:
        return False
    x = _channels_last_slot(ctx, conv.x)
    bias = None if conv.bias is None else ctx.slot(conv.bias)
    other = None if epilogue.residual is None else _channels_last_slot(ctx, epilogue.residual)
    dst = ctx.result(epilogue.result, channels_last(tensor_type(epilogue.result).sizes))
    post = epilogue.post
    call = calls.packed_convolution(
        dst, x, packed.slot, bias, stride=conv.stride, padding=conv.padding, dilation=conv.dilation,
        groups=conv.groups, post=post.name, scalars=post.scalars, algorithm=post.algorithm, other=other,
    )  # fmt: skip
    ctx.builder.emit(call)
    ctx.note(conv.node, "library", call.symbol)
    for node in (*epilogue.nodes, *(() if conv.pad is None else (conv.pad,))):
        ctx.note(node, "fused", f"%{conv.node.result.name}")
    return True


def _channels_last_slot(ctx: Context, value: Value) -> int:
    place = ctx.place(value)
    strides = channels_last(place.geometry.sizes)
    if not same_layout(place.geometry.sizes, place.geometry.strides, strides):
        return ctx.builder.handle(ctx.with_strides(place, strides))
    # The same memory; the strides of dimensions of size 1 are spelled out because the library looks at them.
    return ctx.builder.handle(Place(place.storage, Geometry(place.geometry.sizes, strides, place.geometry.offset)))


def _packed(ctx: Context, conv: Convolution) -> Storage | None:
    sizes = tensor_type(conv.x).sizes
    key = ("convolution", conv.weight, sizes, conv.stride, conv.padding, conv.dilation, conv.groups)
    if key not in ctx.packed:
        weight = ctx.statics.bake(conv.weight)
        with ctx.timed("pack"):
            packed = mkldnn.pack_convolution(
                weight, padding=conv.padding, stride=conv.stride, dilation=conv.dilation, groups=conv.groups,
                input_size=sizes,
            )  # fmt: skip
        if packed is None:
            return None
        ctx.packed[key] = ctx.builder.held(packed)
        ctx.packed_nbytes += weight.numel() * weight.element_size()
    return ctx.packed[key]
