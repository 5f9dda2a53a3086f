"""Gradients of convolutions by own kernels, and transposed convolutions, which are gradients of images.

%1, _, _ = convolution_backward(%g, %x, %w, ..., [True, False, False])   ==>   a convolution of %g, by %w turned
%1 = conv_transpose2d(%g, %w, %b, ...)                                   ==>   the same, with a bias
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from smelt.codegen.conv.shape import ConvShape
from smelt.codegen.conv.weight_gradient import GradientPlan, plan_gradient
from smelt.codegen.llvm.isa import Isa, host_isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, row_major, tensor_type
from smelt.codegen.lower.images.convolution import Convolution, channels_last, per_axis
from smelt.codegen.lower.images.convolution_shapes import four, window_of
from smelt.codegen.lower.images.own_convolution import shape_text
from smelt.codegen.lower.launched_kernels import About, launch
from smelt.codegen.lower.memory.geometry import Geometry, same_layout
from smelt.codegen.lower.static.static_program import Content
from smelt.diag.records import record
from smelt.ir import DType, Node, TensorType, Value
from smelt.ir.sizes import is_symbolic
from smelt.passes.layers.transposed import TRANSPOSED, writes_parts

BACKWARD = "aten.convolution_backward.default"


def image_gradient_of(ctx: Context, node: Node) -> Convolution | None:
    """The convolution that gives the gradient of an image, if a node asks for that alone."""
    found = _convolution(ctx, node, 0)
    if found is None or (any(step > 1 for step in found.stride) and any(d > 1 for d in found.dilation)):
        return None
    return found


def _convolution(ctx: Context, node: Node, which: int) -> Convolution | None:
    """What a node is the gradient of, `x` being the result's gradient, if it asks for one gradient alone."""
    if node.op != BACKWARD or node.mode or ctx.options.numerics == "eager-library":
        return None
    call = ctx.call_arguments(node)
    g, image, weight = call["grad_output"], call["input"], call["weight"]
    if not isinstance(g, Value) or not isinstance(image, Value) or not isinstance(weight, Value):
        return None
    if call["transposed"] or [bool(r.users) for r in node.results] != [i == which for i in range(3)]:
        return None
    if not _are_floats((g, image, weight, node.results[which])):
        return None
    axes = len(tensor_type(weight).sizes) - 2
    stride, before, dilation = (per_axis(call[name], axes) for name in ("stride", "padding", "dilation"))
    groups = call["groups"]
    if axes not in (1, 2) or stride is None or before is None or dilation is None or not isinstance(groups, int):
        return None
    return Convolution(node, g, weight, None, stride, before, before, dilation, groups, is_live=True, is_turned=True)


def transposed_convolution_of(ctx: Context, node: Node) -> Convolution | None:
    """The transposed convolution that a node is, if it is the gradient of an image that kernels compute."""
    if node.op not in TRANSPOSED or node.mode or ctx.options.numerics == "eager-library":
        return None
    call = ctx.call_arguments(node)
    x, weight, bias, groups = call["input"], call["weight"], call["bias"], call["groups"]
    if not isinstance(x, Value) or not isinstance(weight, Value) or not (bias is None or isinstance(bias, Value)):
        return None
    if not _are_floats([v for v in (x, weight, bias, node.result) if v is not None]) or not isinstance(groups, int):
        return None
    sizes = tensor_type(weight).sizes
    axes = len(sizes) - 2
    stride, before, dilation = (per_axis(call[name], axes) for name in ("stride", "padding", "dilation"))
    if len(tensor_type(x).sizes) != axes + 2 or stride is None or before is None or dilation is None:
        return None
    if any(d > 1 for d in dilation) or not writes_parts(tensor_type(x).sizes, sizes, stride, before):
        return None
    is_live = not ctx.statics.is_static(weight)
    return Convolution(node, x, weight, bias, stride, before, before, dilation, groups, None, is_live, is_turned=True)


def _are_floats(values: Sequence[Value]) -> bool:
    """Whether all are tensors of f32, of sizes that are known and not 0."""
    types = [v.type for v in values]
    if not all(isinstance(t, TensorType) and t.dtype is DType.F32 and t.is_static and t.numel for t in types):
        return False
    return not any(is_symbolic(tensor_type(v).sizes) for v in values)


# --- weights


@record
class OwnWeightGradient:
    """The gradient of the weight of `conv`, whose x is the image; grad: that of the result."""

    conv: Convolution
    shape: ConvShape
    grad: Value

    @property
    def node(self) -> Node:
        """The operator."""
        return self.conv.node

    @property
    def result(self) -> Value:
        """What it gives."""
        return self.conv.node.results[1]


def own_weight_gradient_of(ctx: Context, node: Node) -> OwnWeightGradient | None:
    """The gradient of a weight, if a node asks for that alone and an own kernel computes it."""
    isa = host_isa()
    found = _convolution(ctx, node, 1)
    if isa is None or found is None:
        return None
    call = ctx.call_arguments(node)
    image = call["input"]
    assert isinstance(image, Value)
    conv = Convolution(
        node,
        image,
        found.weight,
        None,
        found.stride,
        found.before,
        found.after,
        found.dilation,
        found.groups,
        is_live=True,
    )
    shape = window_of(conv)
    own = OwnWeightGradient(conv, shape, found.x)
    x = channels_last(tensor_type(image).sizes)
    return None if _plan(isa, own, x, row_major(tensor_type(own.result).sizes).strides) is None else own


def _plan(isa: Isa, own: OwnWeightGradient, x: tuple[int, ...], out: tuple[int, ...]) -> GradientPlan | None:
    o, i, *taps = out
    sizes = tensor_type(own.result).sizes[2:]
    along = taps[-1] if sizes[-1] > 1 else taps[0]
    if len(taps) == 2 and min(sizes) > 1 and taps[0] != taps[1] * sizes[1]:
        return None
    return plan_gradient(isa, own.shape, four(x), (o, i, along))


def lower_own_weight_gradient(ctx: Context, own: OwnWeightGradient) -> None:
    """Place the launch."""
    isa = host_isa()
    assert isa is not None
    x, grad = (_channels_last(ctx, value) for value in (own.conv.x, own.grad))
    type_ = tensor_type(own.result)
    layout = Geometry.of(type_)
    plan = _plan(isa, own, x.geometry.strides, layout.strides)
    if plan is None:
        layout = row_major(type_.sizes)
        plan = _plan(isa, own, x.geometry.strides, layout.strides)
    assert plan is not None, "there was a kernel for the same shape before"
    storage = ctx.memory_for(own.result, layout)
    ctx.bind(own.result, Place(storage, layout))
    key = ("gradient taps", own.shape, x.geometry.strides)
    if key not in ctx.packed:
        ctx.packed[key] = ctx.held(plan.table, partial(Content.of, plan.table))
    source = KernelSource.of(plan.text)
    moved = sum(tensor_type(v).numel for v in (own.conv.x, own.grad, own.result))
    launch(
        ctx, source, (ctx.builder.handle(x), ctx.builder.handle(grad), storage.slot, ctx.packed[key].slot), plan.words,
        items=plan.items, eager=_eager(own), writes=(2,), item_ns=plan.item_ns, scratch_nbytes=plan.scratch_nbytes,
        label=f"gradient of a weight {shape_text(own.shape)}", may_refuse=False,
        about=About(nodes=(own.node,), nbytes=4 * moved, flops=2 * own.shape.macs),
    )  # fmt: skip
    ctx.note(own.node, "kernel", source.symbol)


def _channels_last(ctx: Context, value: Value) -> Place:
    """Where a value lies channels-last, strides of size 1 included."""
    place = ctx.place(value)
    strides = channels_last(place.geometry.sizes)
    if not same_layout(place.geometry.sizes, place.geometry.strides, strides):
        return ctx.with_strides(place, strides)
    return Place(place.storage, Geometry(place.geometry.sizes, strides, place.geometry.offset))


def _eager(own: OwnWeightGradient) -> Callable[..., Any]:
    """The same in torch."""
    conv, axes = own.conv, len(own.conv.stride)
    how = conv.stride, conv.before, conv.dilation, False, (0,) * axes, conv.groups, (False, True, False)

    def run(x: torch.Tensor, grad: torch.Tensor, out: torch.Tensor, _: torch.Tensor) -> None:
        weight = out.new_empty(1).expand(out.shape)
        out.copy_(torch.ops.aten.convolution_backward(grad, x, weight, None, *how)[1])

    return run
