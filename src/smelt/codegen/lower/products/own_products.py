"""Products with a static weight by own kernels: what is fused behind one, which kernel it is, and the launch.

    %1 = linear(%x, %w, %b); %2 = gelu(%1); %3 = add(%2, %r)      ==>      one launch: x, w packed, b, r -> %3

Few rows read the live weight as it lies, or coded where it comes from memory, unless a run reads it again and again
from cache; more rows read it packed in panels, one packing for all row counts. Where the number of rows is known at run
time only, the kernel has both.
Invariant: what is fused is eager's own formula with eager's roundings, so NaN, inf and signs of zero come out as from
the operators one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.codegen.contract.coding import Coding, coding_tiling
from smelt.codegen.contract.dots import HEIGHTS
from smelt.codegen.contract.epilogue import Bound, bound, is_emittable
from smelt.codegen.contract.gemm import Right
from smelt.codegen.contract.narrow.int4_forms import Int4Form
from smelt.codegen.contract.narrow.int8_forms import Int8Form
from smelt.codegen.contract.packing import Packing
from smelt.codegen.contract.planning import (
    Both,
    PartsPlan,
    ProductPlan,
    heights_of_both,
    is_few,
    is_near,
    is_worth_coding,
    plan_both,
    plan_coded,
    plan_parts,
    plan_product,
)
from smelt.codegen.contract.problem import Problem
from smelt.codegen.contract.tiling import Tiling, tiling_for
from smelt.codegen.fusion.epilogue import epilogue_expr, epilogue_nodes, in_eager_layout, leave_last_out
from smelt.codegen.fusion.index import NeedSplit, Unfusible
from smelt.codegen.fusion.pull import Memory
from smelt.codegen.fusion.tidy import mapped
from smelt.codegen.kernels.nest import ACC, Expr, Index, Load, Op, Ref
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.lower.builder import Storage
from smelt.codegen.lower.context import Context, row_major, tensor_type
from smelt.codegen.lower.launched_kernels import About, launch
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.lower.products.linear import Product, as_matrix, choose, matrix_of, own_isa
from smelt.codegen.lower.products.packed_weight import Form, matrix_again, packed_weight
from smelt.codegen.lower.static.plan_tensors import HowMade, Panels
from smelt.codegen.lower.static.static_program import program_of
from smelt.diag.records import record
from smelt.ir import Arg, DType, Node, Region, Value
from smelt.ir.sizes import is_one
from smelt.ops.convert import dtype_to_torch, to_torch
from smelt.ops.registry import overload

# Products with one weight, as in a loop written out, for which a packed copy of it is worth its memory.
_TURNS = 4


@record
class OwnProduct:
    """A product with the nodes fused behind it; `result` is what the last of them gives."""

    product: Product
    nodes: tuple[Node, ...]
    result: Value

    def bare(self) -> OwnProduct:
        """The same with nothing behind it but the bias."""
        return OwnProduct(self.product, (), self.product.node.result)


def own_product_of(ctx: Context, product: Product, claimed: set[Node]) -> OwnProduct | None:
    """The product and what can be fused behind it, if an own kernel computes it."""
    isa = own_isa(ctx, tensor_type(product.x).dtype)
    if choose(ctx, product) != "own" or isa is None:
        return None
    value = product.node.result
    nodes = epilogue_nodes(value, lambda node: node not in claimed, meeting=True)
    while nodes and not is_fusible(isa, nodes, value):
        leave_last_out(nodes, value)
    return OwnProduct(product, tuple(nodes), nodes[-1].result if nodes else value)


def is_fusible(isa: Isa, nodes: Sequence[Node], product: Value) -> bool:
    """Whether an own kernel can do the nodes behind a product."""
    result = tensor_type(nodes[-1].result)
    if result.dtype is not tensor_type(product).dtype or result.strides is not None:
        return False
    try:
        found = epilogue_expr(nodes, product, in_eager_layout)
    except (Unfusible, NeedSplit):
        return False
    made = bound(found.expr, result.dtype, [b.dtype for b in found.buffers])
    return made is not None and is_emittable(made.epilogue.expr, isa)


# --- lowering


def lower_own_product(ctx: Context, own: OwnProduct) -> None:
    """Place the launch of a product and its epilogue."""
    product = own.product
    dtype = tensor_type(product.x).dtype
    isa = own_isa(ctx, dtype)
    tiling = None if isa is None else tiling_for(isa, dtype)
    assert isa is not None and tiling is not None
    fused = fused_behind(ctx, own.nodes, product.node.result, product.bias)
    read = _right(ctx, product, isa, tiling)
    x, left_row, left_k = _left(ctx, product, tiling, read)
    problem = Problem(product.rows, product.n, product.k, left_row, left_k, read.panel, read.step, product.n, 0)
    in_parts = None if read.both or read.coding else plan_parts(isa, dtype, read.lies, problem, fused.bound)
    if in_parts is not None:
        _emit_parts(ctx, in_parts, own, (x, *read.slots), fused)
        return
    if read.both is not None:
        plan = plan_both(isa, dtype, problem, read.both, fused.bound)
    elif read.coding is not None:
        plan = plan_coded(isa, problem, read.coding, fused.bound)
    else:
        if read.lies == "packed" and is_few(product.rows):
            forward = ctx.walked_forward[read.slots[0]] = not ctx.walked_forward.get(read.slots[0], False)
            problem = replace(problem, reading=int(forward))
        plan = plan_product(isa, dtype, read.lies, problem, 1, fused.bound)
    out = ctx.buffer(own.result, (product.rows, product.n))
    form = read.coding or (Packing(tiling, product.n, product.k) if read.lies == "packed" else None)
    eager = _eager(product, form, len(read.slots), own.nodes, fused.values)
    emit(ctx, plan, (x, *read.slots), out, fused, eager, _about(own, plan.kind, read.coding))


def _about(own: OwnProduct, kind: str, coding: Coding | None = None) -> About:
    product = own.product
    itemsize = tensor_type(product.x).dtype.itemsize
    weight_nbytes = product.n * product.k * itemsize if coding is None else coding.read_nbytes
    return About(
        f"{product.shape} ({kind})", (product.node, *own.nodes),
        nbytes=product.rows * (product.k + product.n) * itemsize + weight_nbytes,
        flops=2 * product.rows * product.n * product.k,
    )  # fmt: skip


def _emit_parts(ctx: Context, plan: PartsPlan, own: OwnProduct, matrices: tuple[int, ...], fused: Fused) -> None:
    """Append the launch of a product's parts, into memory of the arena, and that of their sum."""
    product = own.product
    type_ = tensor_type(product.node.result)
    sizes = (plan.count, product.rows, product.n)
    parts = ctx.builder.arena(row_major(sizes), dtype_to_torch(type_.dtype))
    launch(
        ctx, plan.parts.source, (*matrices, parts.slot), plan.parts.words, items=plan.parts.items,
        eager=_eager_parts(product), writes=(2,), item_ns=plan.parts.item_ns,
        scratch_nbytes=plan.parts.scratch_nbytes, label=f"product {plan.parts.kind}",
        about=_about(own, f"{plan.count} slices of K by {plan.parts.kind}"),
    )  # fmt: skip
    out = ctx.buffer(own.result, (product.rows, product.n))
    about = About(
        f"sum of {plan.count} slices of {product.shape}", (product.node, *own.nodes),
        nbytes=(plan.count + 1) * product.rows * product.n * type_.dtype.itemsize,
        flops=(plan.count - 1) * product.rows * product.n,
    )  # fmt: skip
    eager = _eager_joined(product, own.nodes, fused.values)
    emit(ctx, plan.joined, (parts.slot,), out, fused, eager, about)


def emit(
    ctx: Context, plan: ProductPlan, matrices: tuple[int, ...], out: int, fused: Fused, eager: Callable[..., Any],
    about: About,
) -> None:  # fmt: skip
    """Append the launch of a product of slots, and note how its nodes run; `about.nodes`: the product's, then those
    fused.
    """
    main, *nodes = about.nodes
    launch(
        ctx, plan.source, (*matrices, *fused.slots, out), plan.words, items=plan.items,
        eager=eager, writes=(len(matrices) + len(fused.slots),), item_ns=plan.item_ns,
        scratch_nbytes=plan.scratch_nbytes, label=f"product {plan.kind}",
        about=about,
    )  # fmt: skip
    ctx.note(main, "kernel", plan.source.symbol)
    for node in nodes:
        ctx.note(node, "fused", f"%{main.result.name}")


@record
class _Read:
    """How the weight is read: its layout, slots, elements between panels and between steps.

    both: of a kernel that reads the packed weight in the second slot if there are many rows. coding: of a coded weight.
    """

    lies: Right
    slots: tuple[int, ...]
    panel: int
    step: int
    both: Both | None = None
    coding: Coding | None = None


def _right(ctx: Context, product: Product, isa: Isa, tiling: Tiling) -> _Read:
    geometry = ctx.place(product.weight).geometry
    sizes, strides = geometry.sizes, geometry.strides
    along_k, along_n = (strides[0], strides[1]) if product.is_transposed else (strides[1], strides[0])
    k, n = (sizes[0], sizes[1]) if product.is_transposed else (sizes[1], sizes[0])
    takes_live = along_k == 1 or k == 1
    packing = Packing(tiling, product.n, product.k)
    panel, step = packing.panel_nelements, packing.step
    if is_few(product.rows) and not _is_near_at_each_turn(ctx, product):
        coding = _coding(ctx, product, isa)
        if coding is not None:
            slot = packed(ctx, product, isa, coding).slot
            return _Read("packed", (slot,), coding.panel_nbytes // 4, coding.rows_at, coding=coding)
        if takes_live:
            return _Read("columns", (ctx.builder.handle(ctx.place(product.weight)),), 0, along_n)
        if along_n == 1 or n == 1:
            return _Read("rows", (ctx.builder.handle(ctx.place(product.weight)),), 0, along_k)
    elif takes_live and (heights := heights_of_both(product.rows)) and _may_keep_both(ctx, product, heights):
        slots = (ctx.builder.handle(ctx.place(product.weight)), packed(ctx, product, isa, packing).slot)
        return _Read("columns", slots, 0, along_n, Both(heights, panel, step))
    return _Read("packed", (packed(ctx, product, isa, packing).slot,), panel, step)


def _coding(ctx: Context, product: Product, isa: Isa) -> Coding | None:
    """The coding of a weight that comes from memory at each run."""
    if not ctx.options.code_weights or tensor_type(product.weight).dtype is not DType.F32:
        return None
    tiling = coding_tiling(isa)
    if tiling is None or not is_worth_coding(product.rows, product.n, product.k, ctx.statics.state_nbytes):
        return None
    return Coding(tiling, product.n, product.k)


def _is_near_at_each_turn(ctx: Context, product: Product) -> bool:
    """Whether a run reads the weight several times, and finds it in a core's own cache: as panels it is read faster
    there than line by line (512 x 128 by one row in 1.76 us, not 2.05).
    """
    return is_near(ctx.statics.state_nbytes) and (len(product.weight.users) >= _TURNS or _is_in_loop(product.node))


def _is_in_loop(node: Node) -> bool:
    region: Region | None = node.parent
    while region is not None and isinstance(region.owner, Node):
        if region.owner.op in ("for", "while"):
            return True
        region = region.owner.parent
    return False


def _may_keep_both(ctx: Context, product: Product, heights: tuple[int, ...]) -> bool:
    """Whether the weight is read as it lies where it is packed, too: not if it is to be released then, and if it is a
    copy (merged weights), which would be kept for this only, not unless few rows are expected.
    """
    if ctx.options.release_originals:
        return False
    return heights == HEIGHTS or ctx.lies_in_state(product.weight, matrix_of(ctx, product))


def packed(ctx: Context, product: Product, isa: Isa, form: Form) -> Storage:
    """The weight in panels, shared by all products with this weight, in other plans too."""
    key = ("own", product.weight, product.is_transposed, form)
    if key not in ctx.packed:
        weight = matrix_of(ctx, product)  # [n, k]
        is_state = ctx.lies_in_state(product.weight, weight)
        with ctx.timed("pack"):
            made = packed_weight(weight, form, isa, ctx.options, ctx.fills, is_state=is_state)
            ctx.packed[key] = ctx.held(made, panels_of(ctx, product, form, is_state))
        if not is_state:
            ctx.statics.forget(product.weight)
        ctx.packed_nbytes += nbytes_of(form, weight.element_size())
    return ctx.packed[key]


def nbytes_of(form: Form, itemsize: int) -> int:
    """Memory that a weight takes in a form."""
    if isinstance(form, Int8Form | Int4Form):
        return form.nbytes
    return form.read_nbytes if isinstance(form, Coding) else form.nelements * itemsize


def panels_of(ctx: Context, product: Product, form: Form, is_state: bool) -> HowMade:
    """How the panels of a product's weight are made again."""
    value, is_transposed, statics = product.weight, product.is_transposed, ctx.statics

    def how() -> Panels | None:
        program = program_of(statics, value)
        return None if program is None else Panels(program, is_transposed, form, is_state)

    return how


def _left(ctx: Context, product: Product, tiling: Tiling, read: _Read) -> tuple[int, int, int]:
    """The slot of x as a matrix, and its strides along rows and k."""
    place = as_matrix(ctx, product)
    row, k = place.geometry.strides
    needs_unit = tiling.group > 1 or read.lies == "columns"
    if needs_unit and not is_one(k) and product.k > 1:
        place = ctx.with_strides(place, (product.k, 1))
        row, k = product.k, 1
    return ctx.builder.handle(place), row, k


# --- the epilogue


@record
class Fused:
    """An epilogue bound to slots, which hold the tensors of `values`."""

    bound: Bound
    slots: tuple[int, ...]
    values: tuple[Value, ...]


def fused_behind(ctx: Context, nodes: Sequence[Node], product: Value, bias: Value | None) -> Fused:
    """The epilogue of the nodes behind a product whose bias f[columns] is added first."""

    def where(value: Value) -> Memory:
        return Memory(value, f"%{value.name}", Geometry.of(tensor_type(value)))

    found = epilogue_expr(nodes, product, where)
    expr = found.expr
    keys: list[Hashable] = list(found.keys)
    dtypes = [b.dtype for b in found.buffers]
    if bias is not None:
        if bias not in keys:
            keys.append(bias)
            dtypes.append(tensor_type(bias).dtype)
        expr = with_bias(expr, keys.index(bias), tensor_type(bias).dtype)
    made = bound(expr, tensor_type(nodes[-1].result if nodes else product).dtype, dtypes)
    assert made is not None, "it was bound for the same nodes before"
    operands = tuple(key for key in keys if isinstance(key, Value))
    return Fused(made, tuple(ctx.slot(v) for v in operands), operands)


def _eager(
    product: Product, form: Form | None, weights: int, nodes: Sequence[Node], operands: Sequence[Value]
) -> Callable[..., Any]:
    """The same in torch: (x, weight as the kernel gets it, or more such, operands.., out) -> writes out."""
    result, bias, is_transposed = product.node.result, product.bias, product.is_transposed

    def run(*tensors: torch.Tensor) -> None:
        x, weight, *others, out = tensors
        known = dict(zip(operands, others[weights - 1 :], strict=True))
        if form is not None:
            weight = matrix_again(weight, form)
        elif is_transposed:
            weight = weight.t()
        with torch.no_grad():
            made = torch.nn.functional.linear(x, weight, None if bias is None else known[bias])
            known[result] = made.reshape(tuple(map(int, tensor_type(result).sizes)))
            for node in nodes:
                known[node.result] = applied(node, known)
            out.copy_(known[nodes[-1].result if nodes else result].reshape(out.shape))

    return run


def _eager_parts(product: Product) -> Callable[..., Any]:
    """The parts in torch, all of the product in the first: (x, weight, parts) -> writes parts."""
    is_transposed = product.is_transposed

    def run(x: torch.Tensor, weight: torch.Tensor, parts: torch.Tensor) -> None:
        with torch.no_grad():
            parts.zero_()
            parts[0] = torch.nn.functional.linear(x, weight.t() if is_transposed else weight)

    return run


def _eager_joined(product: Product, nodes: Sequence[Node], operands: Sequence[Value]) -> Callable[..., Any]:
    """Their sum and what follows in torch: (parts, operands.., out) -> writes out."""
    result, bias = product.node.result, product.bias

    def run(*tensors: torch.Tensor) -> None:
        parts, *others, out = tensors
        known = dict(zip(operands, others, strict=True))
        with torch.no_grad():
            made = parts.sum(0)
            if bias is not None:
                made = made + known[bias]
            known[result] = made.reshape(tuple(map(int, tensor_type(result).sizes)))
            for node in nodes:
                known[node.result] = applied(node, known)
            out.copy_(known[nodes[-1].result if nodes else result].reshape(out.shape))

    return run


def applied(node: Node, known: Mapping[Value, torch.Tensor]) -> torch.Tensor:
    """A node's result in torch, its operands known."""
    op = overload(node.op)
    assert op is not None

    def value(arg: Arg) -> Any:
        return known[arg] if isinstance(arg, Value) else to_torch(arg)

    return op(*map(value, node.args), **{k: value(a) for k, a in node.kwargs.items()})


def with_bias(expr: Expr, buffer: int, dtype: DType) -> Expr:
    """The expression over the product's element plus a bias along columns."""

    def plus(part: Expr) -> Expr | None:
        if not isinstance(part, Ref) or part.name != ACC:
            return None
        load: Expr = Load(buffer, Index(0, (0, 1)), dtype)
        if dtype is not part.dtype:
            load = Op("cast", (load,), part.dtype)
        return Op("add", (part, load), part.dtype)

    return mapped(expr, plus)
