"""Convolutions by own kernels: which node has one, what is fused behind it, and the launch.

    %1 = pad(%x); %2 = conv2d(%1, %w, %b); %3 = add(%2, %r); %4 = relu(%3)
    ==>   one launch: x, weight packed, then bias, residual and relu on each tile of sums before it is stored

Invariant: what is fused has eager's own formula, so NaN, inf and signs of zero come out as from the separate operators.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from smelt.codegen.conv.epilogue import BIAS, Epilogue, OperandKind
from smelt.codegen.conv.kernels import ConvPlan, Strides, is_few, plan_frames, plan_kernel, plan_phase
from smelt.codegen.conv.repack import repacking
from smelt.codegen.conv.shape import ConvShape
from smelt.codegen.fusion.epilogue import epilogue_expr, epilogue_nodes, leave_last_out
from smelt.codegen.fusion.index import NeedSplit, Unfusible
from smelt.codegen.fusion.pull import Memory
from smelt.codegen.fusion.rules.rules import RULES
from smelt.codegen.fusion.tidy import mapped
from smelt.codegen.kernels.nest import ACC, Const, Expr, Index, Load, Op, Ref
from smelt.codegen.llvm.isa import Isa, host_isa, is_for_elsewhere
from smelt.codegen.llvm.lanes.lanes import is_supported
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, row_major, tensor_type
from smelt.codegen.lower.images.convolution import Convolution, channels_last
from smelt.codegen.lower.images.convolution_shapes import (
    Part,
    conv_shape,
    filter_sizes,
    four,
    frames_of,
    over_frames,
    phases_of,
    spatial,
)
from smelt.codegen.lower.launched_kernels import About, launch
from smelt.codegen.lower.memory.geometry import Geometry, same_layout
from smelt.codegen.lower.report import CandidateReport, ChoiceReport
from smelt.codegen.lower.static.plan_tensors import HowMade, PackedFilters
from smelt.codegen.lower.static.static_program import Content, program_of
from smelt.diag.records import record
from smelt.ir import Arg, DType, Node, TensorType, Value
from smelt.ops.convert import to_torch
from smelt.ops.registry import overload
from smelt.passes.layers.transposed import TRANSPOSED
from smelt.runtime.filters import Filters, is_finite, turned


@record
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
    if shape is None:
        return None
    out = conv.result.type
    if not isinstance(out, TensorType) or spatial(out.sizes) != (shape.n, shape.cout, shape.oh, shape.ow):
        return None
    if not _is_worthwhile(isa, shape) or (conv.is_live and shape.pixels < _LEAST_PIXELS):
        return None
    plan = _plan_of_frames(isa, conv) if len(conv.stride) == 3 else _plan_of_images(isa, conv, shape)
    if plan is None:
        return None
    if plan.finite and not conv.is_live:
        ctx.decided_by_contents.append(f"whether %{conv.weight.name} is finite")
        if not is_finite(ctx.statics.bake(conv.weight)):
            return None
    return _with_epilogue(isa, conv, shape, claimed)


def _plan_of_images(isa: Isa, conv: Convolution, shape: ConvShape) -> ConvPlan | None:
    strides = _dense_strides(shape.n, shape.cin, shape.h, shape.w)
    parts = phases_of(conv) if conv.is_turned else None
    if parts is None:
        return plan_kernel(isa, shape, strides, BIAS, live=conv.is_live)
    plans = _plans_of_phases(isa, conv, parts, strides, BIAS)
    return replace(plans[0], finite=any(plan.finite for plan in plans)) if plans else None


def _plans_of_phases(
    isa: Isa, conv: Convolution, parts: Sequence[Part], strides: Strides, epilogue: Epilogue
) -> list[ConvPlan]:
    """The kernels of the parts of an image's gradient."""
    how = {"live": conv.is_live, "turned": not conv.is_live}
    return [plan_phase(isa, part.shape, strides, epilogue, part.phase, **how) for part in parts]


def _plan_of_frames(isa: Isa, conv: Convolution) -> ConvPlan | None:
    """One of the kernels of a convolution over frames; None where some frames of the result are the bias alone."""
    if 0 in tensor_type(conv.result).sizes:
        return None
    lies = channels_last(tensor_type(conv.x).sizes)
    whole = plan_frames(isa, over_frames(conv), lies, BIAS)
    if whole is not None:
        return whole
    parts = frames_of(conv, lies)
    plans = [plan_phase(isa, part.shape, part.strides, BIAS, part.phase, live=False) for part in parts]
    if not plans or not all(part.phase.taps for part in parts):
        return None
    is_finite_only = any(conv.before) or any(plan.finite for plan in plans)
    return replace(plans[0], finite=is_finite_only)


def _is_worthwhile(isa: Isa, shape: ConvShape) -> bool:
    """Whether the rule prefers the own kernel: all but groups too narrow for the vector lanes."""
    return shape.groups == 1 or shape.groups == shape.cin == shape.cout or shape.group_out >= isa.f32_lanes


# Below so many pixels packing the weight in a call costs more than the products.
_LEAST_PIXELS = 16


def _dense_strides(n: int, c: int, h: int, w: int) -> tuple[int, int, int, int]:
    return h * w * c, 1, w * c, c


# --- the epilogue


def _with_epilogue(isa: Isa, conv: Convolution, shape: ConvShape, claimed: set[Node]) -> OwnConvolution:
    product = conv.result
    nodes = epilogue_nodes(product, lambda node: node not in claimed and node.op in RULES, meeting=True)
    while nodes:
        found = _fused(isa, conv, shape, nodes)
        if found is not None:
            return found
        leave_last_out(nodes, product)
    return _bare(conv, shape)


def _bare(conv: Convolution, shape: ConvShape) -> OwnConvolution:
    if conv.bias is None:
        return OwnConvolution(conv, shape, Epilogue(), (), (), conv.result)
    return OwnConvolution(conv, shape, BIAS, (conv.bias,), (), conv.result)


def _fused(isa: Isa, conv: Convolution, shape: ConvShape, nodes: Sequence[Node]) -> OwnConvolution | None:
    """The convolution with all of `nodes` behind it; None if its tiles cannot do them."""
    value = nodes[-1].result
    if not isinstance(value.type, TensorType) or value.type.dtype is not DType.F32:
        return None
    results = {conv.result, *(node.result for node in nodes)}
    used = {v for node in nodes for v in node.operands()} - results
    if not all(isinstance(v.type, TensorType) and v.type.dtype is DType.F32 for v in used):
        return None
    try:
        made = epilogue_expr(nodes, conv.result, _channels_last_memory, column=1)
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
    """Place the launches of a convolution and its epilogue: one, but for parts of an image's gradient."""
    isa = host_isa()
    assert isa is not None
    conv, shape = own.conv, own.shape
    x, plans, strides = _input(ctx, isa, own)
    is_parted = len(conv.stride) == 3 or (conv.is_turned and not conv.is_live)
    if is_parted:
        reads = [_filters(ctx, own, plan) for plan in plans]
    elif conv.is_live:
        reads = [_live_weight(ctx, isa, own, plans[0])] * len(plans)
    else:
        reads = [_static_weight(ctx, own, plans[0], strides)]
    loads = [_operand(ctx, value) for value in own.operands]
    type_ = tensor_type(own.result)
    layout = Geometry(type_.sizes, channels_last(type_.sizes))
    build = ctx.builder.empty if ctx.escapes(own.result) else ctx.builder.arena
    storage = build(layout, torch.float32)
    ctx.bind(own.result, Place(storage, layout))
    for number, (plan, read) in enumerate(zip(plans, reads, strict=True)):
        source = KernelSource.of(plan.text)
        tables = _tables(ctx, own, plan, (strides, number)) if conv.is_live or is_parted else read.tables
        buffers = (x, storage.slot, read.packed, *tables, *loads, *read.whole)
        launch(
            ctx, source, buffers, plan.words, items=plan.items, eager=_eager(own, read.weight, 3 + len(tables)),
            writes=(1,), item_ns=plan.item_ns, scratch_nbytes=plan.scratch_nbytes,
            label=_label(own, plan), about=_about(own, len(plans)), may_refuse=plan.finite,
        )  # fmt: skip
    ctx.note(conv.node, "kernel", KernelSource.of(plans[0].text).symbol)
    for node in (*own.nodes, *(() if conv.pad is None else (conv.pad,))):
        ctx.note(node, "fused", f"%{conv.result.name}")
    _report(ctx, shape, plans[0])


def _plans(isa: Isa, own: OwnConvolution, lies: tuple[int, ...]) -> list[ConvPlan] | None:
    """The kernels of the launches, for an input that lies so; None where there is none."""
    if len(lies) == 5:
        over = over_frames(own.conv)
        whole = plan_frames(isa, over, lies, own.epilogue)
        if whole is not None:
            return [whole]
        if lies[1] != 1 or is_few(over.shape):
            return None
        frames = frames_of(own.conv, lies)
        return [plan_phase(isa, one.shape, one.strides, own.epilogue, one.phase, live=False) for one in frames]
    strides = four(lies)
    parts = phases_of(own.conv) if own.conv.is_turned else None
    if parts is None:
        found = plan_kernel(isa, own.shape, strides, own.epilogue, live=own.conv.is_live)
        return None if found is None else [found]
    if strides[1] != 1:
        return None
    return _plans_of_phases(isa, own.conv, parts, strides, own.epilogue)


def _input(ctx: Context, isa: Isa, own: OwnConvolution) -> tuple[int, list[ConvPlan], tuple[int, ...]]:
    """The slot of x, the kernels, and x's strides: as it lies if there is a kernel, else channels-last."""
    place = ctx.place(own.conv.x)
    plans = _plans(isa, own, place.geometry.strides)
    if plans is None:
        place = ctx.with_strides(place, channels_last(place.geometry.sizes))
        plans = _plans(isa, own, place.geometry.strides)
    assert plans is not None, "there was a kernel for the same shape before"
    return ctx.builder.handle(place), plans, place.geometry.strides


@record
class _Weight:
    """The weight of a launch: the slot where it is packed, those of tables if all launches read the same; the tensor if
    it is static, else the slot of it as it lies.
    """

    packed: int
    tables: tuple[int, ...] = ()
    weight: torch.Tensor | None = None
    whole: tuple[int, ...] = ()


def _static_weight(ctx: Context, own: OwnConvolution, plan: ConvPlan, strides: tuple[int, ...]) -> _Weight:
    """The packed weight and its tables, shared by equal convolutions with one weight."""
    weight = ctx.statics.bake(own.conv.weight).detach()
    key = ("own-convolution", own.conv.weight, own.shape, plan.text, strides)
    slots: list[int] = []
    if (*key, 0) not in ctx.packed:
        sizes = spatial(tuple(weight.shape))
        with ctx.timed("pack"):
            made = _packed(weight.reshape(sizes), plan.filters)
        ctx.packed[(*key, 0)] = ctx.held(made, _filters_of(ctx, own.conv.weight, plan.filters, sizes))
        for i, table in enumerate(plan.tables()):
            ctx.packed[(*key, 1 + i)] = ctx.held(table, partial(Content.of, table))
            ctx.packed_nbytes += table.nbytes
        ctx.packed_nbytes += made.nbytes
    while (*key, len(slots)) in ctx.packed:
        slots.append(ctx.packed[(*key, len(slots))].slot)
    return _Weight(slots[0], tuple(slots[1:]), weight)


def _filters(ctx: Context, own: OwnConvolution, plan: ConvPlan) -> _Weight:
    """The weight as the kernel of a part reads it, the same for all that read it so."""
    weight = ctx.statics.bake(own.conv.weight).detach()
    key = ("own-convolution filters", own.conv.weight, plan.filters)
    if key not in ctx.packed:
        sizes = filter_sizes(tuple(weight.shape))
        with ctx.timed("pack"):
            made = _packed(weight.reshape(sizes), plan.filters)
        ctx.packed[key] = ctx.held(made, _filters_of(ctx, own.conv.weight, plan.filters, sizes))
        ctx.packed_nbytes += made.nbytes
    return _Weight(ctx.packed[key].slot, weight=weight)


def _packed(weight: torch.Tensor, filters: Filters) -> torch.Tensor:
    """The weight as its kernel reads it; of a plan for another machine memory alone, which nobody reads here."""
    if is_for_elsewhere():
        return weight.new_empty(filters.shape(tuple(weight.shape)))
    return filters.packed(weight)


def _filters_of(ctx: Context, weight: Value, filters: Filters, sizes: tuple[int, ...]) -> HowMade:
    """How the packed weight is made again."""
    statics = ctx.statics

    def how() -> PackedFilters | None:
        program = program_of(statics, weight)
        return None if program is None else PackedFilters(program, filters, sizes)

    return how


def _live_weight(ctx: Context, isa: Isa, own: OwnConvolution, plan: ConvPlan) -> _Weight:
    """The weight packed by a launch in front of those that read it."""
    place = ctx.place(own.conv.weight)
    strides = row_major(place.geometry.sizes).strides
    if not same_layout(place.geometry.sizes, place.geometry.strides, strides):
        place = ctx.with_strides(place, strides)
    slot = ctx.builder.handle(place)
    packed = replace(plan.packed, turned=own.conv.is_turned)
    made = repacking(isa, own.shape, packed)
    storage = ctx.builder.arena(Geometry((made.nelements,), (1,)), torch.float32)
    pack = partial(_pack_in_torch, plan, own.conv)
    about = About(nodes=(own.conv.node,), nbytes=4 * (place.geometry.numel + made.nelements))
    launch(
        ctx, KernelSource.of(made.text), (slot, storage.slot), made.words, items=made.items, eager=pack, writes=(1,),
        item_ns=made.nelements / made.items, label=f"pack a weight, {packed.form}", about=about, may_refuse=False,
    )  # fmt: skip
    return _Weight(storage.slot, whole=(slot,))


def _pack_in_torch(plan: ConvPlan, conv: Convolution, weight: torch.Tensor, packed: torch.Tensor) -> None:
    whole = weight.reshape(spatial(tuple(weight.shape)))
    if conv.is_turned:
        whole = turned(whole, conv.groups)
    packed.copy_(plan.filters.packed(whole).flatten())


def _tables(ctx: Context, own: OwnConvolution, plan: ConvPlan, form: Hashable) -> tuple[int, ...]:
    """The slots of what a kernel reads beside a weight that is packed in the call."""
    conv, taps = own.conv, tensor_type(own.conv.weight).sizes[2:]
    along = conv.stride, conv.before, conv.dilation, conv.is_turned
    key = ("own-convolution tables", own.shape, taps, along, plan.text, form)
    if (*key, 0) not in ctx.packed:
        for i, table in enumerate(plan.tables()):
            ctx.packed[(*key, i)] = ctx.held(table, partial(Content.of, table))
    slots: list[int] = []
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


def _eager(own: OwnConvolution, weight: torch.Tensor | None, first: int) -> Callable[..., Any]:
    """The same in torch: (x, result, held tensors.., operands from position `first`, live weight) -> writes result."""
    conv = own.conv
    steps = []
    value = conv.result
    for node in own.nodes:
        steps.append((overload(node.op), node, value))
        value = node.result

    def run(*tensors: torch.Tensor) -> None:
        operands = dict(zip(own.operands, tensors[first:], strict=False))
        bias = None if conv.bias is None else operands[conv.bias]
        made = _convolved(conv, tensors[0], tensors[-1] if weight is None else weight, bias)
        for op, node, fed in steps:
            assert op is not None

            def bound(arg: Arg, fed: Value = fed, made: torch.Tensor = made) -> Any:
                if isinstance(arg, Value):
                    return made if arg is fed else operands[arg]
                return to_torch(arg)

            made = op(*map(bound, node.args), **{k: bound(a) for k, a in node.kwargs.items()})
        tensors[1].copy_(made)

    return run


def _convolved(conv: Convolution, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if conv.is_turned:
        axes = len(conv.stride)
        image = x.new_empty(1).expand(tensor_type(conv.result).sizes)
        how = conv.stride, conv.before, conv.dilation, False, (0,) * axes, conv.groups, (True, False, False)
        made = torch.ops.aten.convolution_backward(x, image, weight, None, *how)[0]
        return made if bias is None else made + bias.view(-1, *(1,) * axes)
    # Eager does not multiply zeros that it pads with: only what is padded on one side is made.
    both = tuple(map(min, conv.before, conv.after))
    sides = zip(reversed(conv.before), reversed(conv.after), reversed(both), strict=True)
    rest = [n - common for before, after, common in sides for n in (before, after)]
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(conv.stride) - 1]
    return convolve(F.pad(x, rest), weight, bias, conv.stride, both, conv.dilation, conv.groups)


def _about(own: OwnConvolution, parts: int) -> About:
    """What is read and written at least once, and computed, in one of several parts."""
    moved = sum(tensor_type(v).numel for v in (own.conv.x, own.conv.weight, own.result, *own.operands))
    macs = own.shape.macs
    if own.conv.is_turned:
        for step in own.conv.stride:
            macs //= step
    if len(own.conv.stride) == 3:
        macs *= tensor_type(own.conv.weight).sizes[2]
    return About(nodes=(own.conv.node, *own.nodes), nbytes=4 * moved // parts, flops=2 * macs // parts)


def _label(own: OwnConvolution, plan: ConvPlan) -> str:
    what = "transposed convolution" if own.conv.node.op in TRANSPOSED else "convolution"
    if own.conv.node.op == "aten.convolution_backward.default":
        what = "gradient of an image by a convolution"
    return f"{what} {plan.kind} {shape_text(own.shape)}"


def shape_text(shape: ConvShape) -> str:
    """For people: sizes, window and groups."""
    kernel = f"{shape.kh}x{shape.kw}" + (f"/{shape.window.stride[0]}" if shape.window.stride != (1, 1) else "")
    groups = f" in {shape.groups} groups" if shape.groups > 1 else ""
    return f"{shape.n}x{shape.cin}x{shape.h}x{shape.w} to {shape.cout}, {kernel}{groups}"


def _report(ctx: Context, shape: ConvShape, plan: ConvPlan) -> None:
    name = f"f32 convolution {shape_text(shape)}"
    known = ctx.choices.get(name)
    candidates = (CandidateReport("own", None), CandidateReport("onednn", None))
    nodes = 1 if known is None else known.nodes + 1
    ctx.choices[name] = ChoiceReport(name, "own", candidates, "rule", nodes)
