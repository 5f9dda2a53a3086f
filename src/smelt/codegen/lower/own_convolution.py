"""Convolutions by own kernels: which node has one, what is fused behind it, and the launch.

    %1 = pad(%x); %2 = conv2d(%1, %w, %b); %3 = add(%2, %r); %4 = relu(%3)
    ==>   one launch: x, weight packed, then bias, residual and relu on each tile of sums before it is stored

Invariant: what is fused has eager's own formula, so NaN, inf and signs of zero come out as from the separate operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from smelt.codegen.conv.epilogue import BIAS, Epilogue, OperandKind
from smelt.codegen.conv.kernels import ConvPlan, plan_kernel
from smelt.codegen.conv.shape import ConvShape, Window
from smelt.codegen.fusion.epilogue import epilogue_expr, epilogue_nodes
from smelt.codegen.fusion.index import NeedSplit, Unfusible
from smelt.codegen.fusion.pull import Memory
from smelt.codegen.fusion.rules import RULES
from smelt.codegen.fusion.tidy import mapped
from smelt.codegen.kernels.nest import ACC, Const, Expr, Index, Load, Op, Ref
from smelt.codegen.llvm.isa import Isa, host_isa
from smelt.codegen.llvm.lanes import is_supported
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, row_major, tensor_type
from smelt.codegen.lower.convolution import Convolution, channels_last
from smelt.codegen.lower.geometry import Geometry, same_layout
from smelt.codegen.lower.kernels import About, launch
from smelt.codegen.lower.report import CandidateReport, ChoiceReport
from smelt.ir import Arg, DType, Node, TensorType, Value
from smelt.ops.convert import to_torch
from smelt.ops.registry import overload


@dataclass(frozen=True, slots=True)
class OwnConvolution:
    """A convolution with what is fused behind it; `operands` are the epilogue's, in its order."""

    conv: Convolution
    shape: ConvShape
    epilogue: Epilogue
    operands: tuple[Value, ...]
    nodes: tuple[Node, ...]
    result: Value

    def bare(self) -> OwnConvolution:
        """The same with nothing behind it but the bias."""
        return _bare(self.conv, self.shape)


def own_convolution_of(ctx: Context, conv: Convolution, claimed: set[Node]) -> OwnConvolution | None:
    """The convolution with its epilogue if an own kernel computes it, else None."""
    isa = host_isa()
    if isa is None or tensor_type(conv.x).dtype is not DType.F32:
        return None
    shape = conv_shape(conv)
    out = conv.node.result.type
    if not isinstance(out, TensorType) or _spatial(out.sizes) != (shape.n, shape.cout, shape.oh, shape.ow):
        return None
    if not _is_worthwhile(isa, shape):
        return None
    plan = plan_kernel(isa, shape, _dense_strides(shape.n, shape.cin, shape.h, shape.w), BIAS)
    if plan is None:
        return None
    if plan.finite:
        ctx.decided_by_contents.append(f"whether %{conv.weight.name} is finite")
        if not bool(torch.isfinite(ctx.statics.bake(conv.weight)).all()):
            return None
    return _with_epilogue(isa, conv, shape, claimed)


def _is_worthwhile(isa: Isa, shape: ConvShape) -> bool:
    """Whether the rule prefers the own kernel: all but groups too narrow for the vector lanes."""
    return shape.groups == 1 or shape.groups == shape.cin == shape.cout or shape.group_out >= isa.f32_lanes


def conv_shape(conv: Convolution) -> ConvShape:
    """Sizes of a convolution; one axis counts as columns of a single row."""
    n, cin, h, w = _spatial(tensor_type(conv.x).sizes)
    cout, _, kh, kw = _spatial(tensor_type(conv.weight).sizes)
    stride, dilation, before, after = (
        (fill, *axes) if len(axes) == 1 else axes
        for fill, axes in ((1, conv.stride), (1, conv.dilation), (0, conv.before), (0, conv.after))
    )
    window = Window(_two(stride), _two(dilation), _two(before), _two(after))
    return ConvShape(n, cin, h, w, cout, kh, kw, window, conv.groups)


def _two(axes: tuple[int, ...]) -> tuple[int, int]:
    first, second = axes
    return first, second


def _spatial(sizes: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Sizes with a row axis put in where there is one axis only."""
    n, c, *axes = sizes
    h, w = axes if len(axes) == 2 else (1, axes[0])
    return n, c, h, w


def _dense_strides(n: int, c: int, h: int, w: int) -> tuple[int, int, int, int]:
    return h * w * c, 1, w * c, c


# --- the epilogue


def _with_epilogue(isa: Isa, conv: Convolution, shape: ConvShape, claimed: set[Node]) -> OwnConvolution:
    product = conv.node.result
    nodes = epilogue_nodes(product, lambda node: node not in claimed and node.op in RULES)
    while nodes:
        found = _fused(isa, conv, shape, nodes)
        if found is not None:
            return found
        nodes.pop()
    return _bare(conv, shape)


def _bare(conv: Convolution, shape: ConvShape) -> OwnConvolution:
    if conv.bias is None:
        return OwnConvolution(conv, shape, Epilogue(), (), (), conv.node.result)
    return OwnConvolution(conv, shape, BIAS, (conv.bias,), (), conv.node.result)


def _fused(isa: Isa, conv: Convolution, shape: ConvShape, nodes: Sequence[Node]) -> OwnConvolution | None:
    """The convolution with all of `nodes` behind it; None if its tiles cannot do them."""
    value = nodes[-1].result
    if not isinstance(value.type, TensorType) or value.type.dtype is not DType.F32:
        return None
    results = {conv.node.result, *(node.result for node in nodes)}
    used = {v for node in nodes for v in node.operands()} - results
    if not all(isinstance(v.type, TensorType) and v.type.dtype is DType.F32 for v in used):
        return None
    try:
        made = epilogue_expr(nodes, conv.node.result, _channels_last_memory, column=1)
    except (Unfusible, NeedSplit):
        return None
    before = _bare(conv, shape)
    start, shift = before.epilogue.expr, len(before.operands)
    kinds: dict[int, OperandKind] = {}
    is_fine = True

    def ours(item: Expr) -> Expr | None:
        nonlocal is_fine
        match item:
            case Ref(name=name) if name == ACC:
                return start
            case Load(buffer=buffer, index=index, dtype=DType.F32, where=None):
                kind = _operand_kind(index, shape)
                is_fine = is_fine and kind is not None and kinds.setdefault(buffer, kind) == kind
                return Load(shift + buffer, Index(0, ()), DType.F32)
            case Op(op=op, args=args, dtype=dtype):
                operand = dtype if op == "select" else args[0].dtype
                is_fine = is_fine and is_supported(op, operand, isa)
                return None
            case Const():
                return item
            case _:
                is_fine = False
                return item

    expr = mapped(made.expr, ours)
    operands = [key for key in made.keys if isinstance(key, Value)]
    if not is_fine or len(kinds) != len(made.keys) or used != set(operands):
        return None
    epilogue = Epilogue(expr, (*before.epilogue.operands, *(kinds[i] for i in range(len(operands)))))
    return OwnConvolution(conv, shape, epilogue, (*before.operands, *operands), tuple(nodes), value)


def _channels_last_memory(value: Value) -> Memory:
    """Where an operand of an epilogue will lie."""
    return Memory(value, f"%{value.name}", Geometry(tensor_type(value).sizes, _operand_strides(value)))


def _operand_strides(value: Value) -> tuple[int, ...]:
    """An image lies as the result does, all else row-major."""
    sizes = tensor_type(value).sizes
    return channels_last(sizes) if len(sizes) > 2 else row_major(sizes).strides


def _operand_kind(index: Index, shape: ConvShape) -> OperandKind | None:
    """What a load at (pixel, channel) reads."""
    row, column = index.strides
    if index.offset or index.gathers:
        return None
    is_row, is_column = row != 0, column != 0
    if is_row:
        fits = row == shape.cout and (column == 1 if is_column else shape.cout == 1)
        return "element" if fits else None
    if is_column:
        return "channel" if column == 1 else None
    return "scalar"


# --- lowering


def lower_own_convolution(ctx: Context, own: OwnConvolution) -> None:
    """Place the launch of a convolution and its epilogue."""
    isa = host_isa()
    assert isa is not None
    conv, shape = own.conv, own.shape
    x, plan, strides = _input(ctx, isa, own)
    weight = ctx.statics.bake(conv.weight).detach()
    held = _held(ctx, own, plan, strides, weight)
    loads = [_operand(ctx, value) for value in own.operands]
    type_ = tensor_type(own.result)
    layout = Geometry(type_.sizes, channels_last(type_.sizes))
    build = ctx.builder.empty if ctx.escapes(own.result) else ctx.builder.arena
    storage = build(layout, torch.float32)
    ctx.bind(own.result, Place(storage, layout))
    source = KernelSource.of(plan.text)
    launch(
        ctx, source, (x, storage.slot, *held, *loads), plan.words, items=plan.items,
        eager=_eager(own, weight, 2 + len(held)), writes=(1,), item_ns=plan.item_ns, scratch_nbytes=plan.scratch_nbytes,
        label=f"convolution {plan.kind} {_shape_text(shape)}", about=_about(own, weight),
    )  # fmt: skip
    ctx.note(conv.node, "kernel", source.symbol)
    for node in (*own.nodes, *(() if conv.pad is None else (conv.pad,))):
        ctx.note(node, "fused", f"%{conv.node.result.name}")
    _report(ctx, shape, plan)


def _input(ctx: Context, isa: Isa, own: OwnConvolution) -> tuple[int, ConvPlan, tuple[int, int, int, int]]:
    """The slot of x, the kernel, and x's strides (n, c, h, w): as it lies if there is a kernel, else channels-last."""
    place = ctx.place(own.conv.x)
    plan = plan_kernel(isa, own.shape, _four(place.geometry.strides), own.epilogue)
    if plan is None:
        place = ctx.with_strides(place, channels_last(place.geometry.sizes))
        plan = plan_kernel(isa, own.shape, _four(place.geometry.strides), own.epilogue)
    assert plan is not None, "there was a kernel for the same shape before"
    return ctx.builder.handle(place), plan, _four(place.geometry.strides)


def _four(strides: tuple[int, ...]) -> tuple[int, int, int, int]:
    n, c, *axes = strides
    h, w = axes if len(axes) == 2 else (0, axes[0])
    return n, c, h, w


def _held(
    ctx: Context, own: OwnConvolution, plan: ConvPlan, strides: tuple[int, ...], weight: torch.Tensor
) -> tuple[int, ...]:
    """The slots of the packed weight and its tables, shared by equal convolutions with one weight."""
    key = ("own-convolution", own.conv.weight, own.shape, plan.text, strides)
    slots: list[int] = []
    if (*key, 0) not in ctx.packed:
        with ctx.timed("pack"):
            made = plan.pack(weight.reshape(_spatial(tuple(weight.shape))))
        for i, tensor in enumerate(made):
            ctx.packed[(*key, i)] = ctx.builder.held(tensor)
            ctx.packed_nbytes += tensor.numel() * tensor.element_size()
    while (*key, len(slots)) in ctx.packed:
        slots.append(ctx.packed[(*key, len(slots))].slot)
    return tuple(slots)


def _operand(ctx: Context, value: Value) -> int:
    """The slot of an operand of the epilogue, laid out as the kernel reads it."""
    place = ctx.place(value)
    wanted = _operand_strides(value)
    if not same_layout(place.geometry.sizes, place.geometry.strides, wanted):
        place = ctx.with_strides(place, wanted)
    return ctx.builder.handle(place)


def _eager(own: OwnConvolution, weight: torch.Tensor, first: int) -> Callable[..., Any]:
    """The same in torch: (x, result, held tensors.., operands from position `first`) -> writes the result."""
    conv = own.conv
    after = [n for pair in zip(reversed(conv.before), reversed(conv.after), strict=True) for n in pair]
    convolve = F.conv2d if len(conv.stride) == 2 else F.conv1d
    steps = []
    value = conv.node.result
    for node in own.nodes:
        steps.append((overload(node.op), node, value))
        value = node.result

    def run(*tensors: torch.Tensor) -> None:
        operands = dict(zip(own.operands, tensors[first:], strict=True))
        bias = None if conv.bias is None else operands[conv.bias]
        made = convolve(F.pad(tensors[0], after), weight, bias, conv.stride, 0, conv.dilation, conv.groups)
        for op, node, fed in steps:
            assert op is not None

            def bound(arg: Arg, fed: Value = fed, made: torch.Tensor = made) -> Any:
                if isinstance(arg, Value):
                    return made if arg is fed else operands[arg]
                return to_torch(arg)

            made = op(*map(bound, node.args), **{k: bound(a) for k, a in node.kwargs.items()})
        tensors[1].copy_(made)

    return run


def _about(own: OwnConvolution, weight: torch.Tensor) -> About:
    """What is read and written at least once, and computed."""
    moved = sum(tensor_type(v).numel for v in (own.conv.x, own.result, *own.operands)) + weight.numel()
    return About(nodes=(own.conv.node, *own.nodes), nbytes=4 * moved, flops=2 * own.shape.macs)


def _shape_text(shape: ConvShape) -> str:
    kernel = f"{shape.kh}x{shape.kw}" + (f"/{shape.window.stride[0]}" if shape.window.stride != (1, 1) else "")
    groups = f" in {shape.groups} groups" if shape.groups > 1 else ""
    return f"{shape.n}x{shape.cin}x{shape.h}x{shape.w} to {shape.cout}, {kernel}{groups}"


def _report(ctx: Context, shape: ConvShape, plan: ConvPlan) -> None:
    name = f"f32 convolution {_shape_text(shape)}"
    known = ctx.choices.get(name)
    candidates = (CandidateReport("own", None), CandidateReport("onednn", None))
    nodes = 1 if known is None else known.nodes + 1
    ctx.choices[name] = ChoiceReport(name, "own", candidates, "rule", nodes)
