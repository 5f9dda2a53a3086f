"""Products of two activations by own kernels: mm, bmm, addmm, baddbmm, matmul and linear, with what follows fused.

    %1 = baddbmm(%c, %a, %b, beta=0.5); %2 = relu(%1)      ==>      one launch: a, b, c -> %2

Operands are read as they lie wherever one of the right one's two strides is 1, transposed views and broadcast batches
included; batches need two loops at most. Where many blocks of a product would each read a matrix across its lines or
pack it for themselves, the run packs it once, before: 110 GFLOP/s where it were 90 to 100.

    %1 = mm(%a.T, %b)      ==>      tiles of a; panels of b; one launch: tiles, panels -> %1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.codegen.contract.dots import HEIGHTS
from smelt.codegen.contract.epilogue import bound
from smelt.codegen.contract.gemm import Right
from smelt.codegen.contract.packing import Packing, TilePacking, packing_source, tile_packing_source
from smelt.codegen.contract.planning import (
    BYTES_PER_NS,
    is_few,
    is_worthwhile,
    packings_in_run,
    plan_product,
    takes_dots,
)
from smelt.codegen.contract.problem import Problem
from smelt.codegen.fusion.epilogue import epilogue_expr, epilogue_nodes, leave_last_out
from smelt.codegen.fusion.pull import Memory
from smelt.codegen.fusion.tidy import mapped
from smelt.codegen.kernels.nest import ACC, Const, Expr, Index, Load, Op, Ref
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, row_major, tensor_type
from smelt.codegen.lower.launched_kernels import About, launch
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.lower.products.linear import library_has_tiles, own_isa
from smelt.codegen.lower.products.own_products import Fused, applied, emit, is_fusible
from smelt.codegen.lower.products.packed_weight import packed_by_torch, tiles_by_torch, tiles_in_rows, unpacked
from smelt.diag.records import record
from smelt.ir import DType, Node, TensorType, Value
from smelt.ir.sizes import blind, equals, is_one, is_symbolic
from smelt.ops.convert import dtype_to_torch
from smelt.ops.sets import PRODUCTS


@record
class Batches:
    """The loops over the batches of a product: sizes, and strides of the left, right, added and resulting tensor."""

    sizes: tuple[int, int]
    left: tuple[int, int]
    right: tuple[int, int]
    added: tuple[int, int]
    out: tuple[int, int]

    @property
    def count(self) -> int:
        """Products in all."""
        return self.sizes[0] * self.sizes[1]

    def without_inner(self) -> Batches:
        """The outer loop alone."""
        return Batches((1, self.sizes[0]), *((0, loop[0]) for loop in (self.left, self.right, self.added, self.out)))


@record
class OwnMatmul:
    """alpha * left @ right + beta * added, right read as its transpose where `is_transposed`, with the nodes behind.

    is_turned: right is a single column, so that right^T @ left^T is computed, a single row.
    """

    node: Node
    left: Value
    right: Value
    added: Value | None
    alpha: float
    beta: float
    is_transposed: bool
    nodes: tuple[Node, ...]
    is_turned: bool = False

    @property
    def result(self) -> Value:
        """What the last node gives."""
        return self.nodes[-1].result if self.nodes else self.node.result

    def bare(self) -> OwnMatmul:
        """The same with nothing behind it."""
        return replace(self, nodes=())


def own_matmul_of(ctx: Context, node: Node, claimed: set[Node]) -> OwnMatmul | None:
    """The product with what can be fused behind it, if an own kernel computes it."""
    found = _operands(ctx, node)
    if found is None or not _is_plain(node, found):
        return None
    isa = own_isa(ctx, tensor_type(node.result).dtype)
    eager = [Geometry.of(tensor_type(v)) for v in (found.left, found.right)]
    *_, m, n = tensor_type(node.result).sizes
    if library_has_tiles(tensor_type(node.result).dtype, m):
        return None
    if _has_one_column(found, m, n):
        found, m, n = replace(found, is_turned=True), 1, m
    if isa is None or _batches(found, *eager) is None or not is_worthwhile(m, n, tensor_type(found.left).sizes[-1]):
        return None
    nodes = epilogue_nodes(node.result, lambda n: n not in claimed, meeting=True)
    while nodes and not is_fusible(isa, nodes, node.result):
        leave_last_out(nodes, node.result)
    return replace(found, nodes=tuple(nodes))


@blind
def _has_one_column(own: OwnMatmul, m: int, n: int) -> bool:
    """Whether right is a single column, for more rows than dot products take at once."""
    types = [tensor_type(v) for v in (own.left, own.right)]
    is_flat = all(len(t.sizes) == 2 and t.is_static and t.dtype in (DType.F32, DType.F64) for t in types)
    return is_flat and n == 1 and m > max(HEIGHTS)


def _operands(ctx: Context, node: Node) -> OwnMatmul | None:
    product = PRODUCTS.get(node.op)
    if product is None:
        return None
    call = ctx.call_arguments(node)
    left, right = call[product.left], call[product.right]
    added = call[product.added] if product.added else None
    alpha, beta = call.get("alpha", 1), call.get("beta", 1)
    if not isinstance(left, Value) or not isinstance(right, Value) or not (added is None or isinstance(added, Value)):
        return None
    # With a beta of 0 eager does not read what it would add.
    if not isinstance(alpha, (int, float)) or not isinstance(beta, (int, float)) or beta == 0:
        return None
    is_transposed = node.op == "aten.linear.default"
    return OwnMatmul(node, left, right, added, float(alpha), float(beta), is_transposed, ())


def _is_plain(node: Node, found: OwnMatmul) -> bool:
    """Whether all are non-empty tensors of one dtype with two dimensions or more, the result row-major."""
    result = node.result.type
    if not isinstance(result, TensorType) or result.strides is not None or "autocast" in node.mode:
        return False
    operands = [v for v in (found.left, found.right, found.added) if v is not None]
    if not all(isinstance(v.type, TensorType) and v.type.dtype is result.dtype and v.type.numel for v in operands):
        return False
    return all(len(tensor_type(v).sizes) >= 2 for v in (found.left, found.right))


# --- batches


def _batches(own: OwnMatmul, left: Geometry, right: Geometry, added: Geometry | None = None) -> Batches | None:
    """The loops over batches, neighbours that run on merged; None where more than two are left."""
    sizes = tensor_type(own.node.result).sizes
    if added is None:
        added = Geometry((), ()) if own.added is None else Geometry.of(tensor_type(own.added))
    operands = (left, right, added, row_major(sizes))
    loops: list[tuple[int, tuple[int, ...]]] = []
    for dim, size in enumerate(sizes[:-2]):
        if is_one(size):
            continue
        strides = tuple(_stride(g, dim - len(sizes)) for g in operands)
        if loops and all(equals(outer, inner * size) for outer, inner in zip(loops[-1][1], strides, strict=True)):
            loops[-1] = (loops[-1][0] * size, strides)
        else:
            loops.append((size, strides))
    if len(loops) > 2:
        return None
    nothing = (1, (0,) * len(operands))
    outer, inner = [nothing] * (2 - len(loops)) + loops
    pairs = tuple(zip(outer[1], inner[1], strict=True))
    return Batches((outer[0], inner[0]), *pairs)


def _as_rows(m: int, batches: Batches, left: Geometry, added: Geometry | None) -> tuple[int, Batches]:
    """Rows of a product and its batches, where batches that share the right matrix and follow each other as rows do
    are rows of one product: it packs the matrix once. So many batches of few rows as only the run knows stay apart:
    dot products suit them, a kernel for any number of rows does not.
    """
    row = left.strides[-2]
    added_row = 0 if added is None else _stride(added, -2)

    for _ in range(2):
        count, shares = batches.sizes[1], equals(batches.right[1], 0)
        follows = equals(batches.left[1], m * row) and equals(batches.added[1], m * added_row)
        if is_one(count) or not (shares and follows) or (is_few(m) and is_symbolic(count)):
            break
        m = m * count
        batches = batches.without_inner()
    return m, batches


def _stride(geometry: Geometry, dim: int) -> int:
    """The stride of a dimension counted from the end; 0 where it is broadcast."""
    if len(geometry.sizes) < -dim or is_one(geometry.sizes[dim]):
        return 0
    return geometry.strides[dim]


# --- lowering


def lower_own_matmul(ctx: Context, own: OwnMatmul) -> None:
    """Place the launch of a product and its epilogue."""
    dtype = tensor_type(own.node.result).dtype
    isa = own_isa(ctx, dtype)
    assert isa is not None
    if own.is_turned:
        _lower_column(ctx, own, isa)
        return
    sizes = tensor_type(own.node.result).sizes
    m, n, k = sizes[-2], sizes[-1], tensor_type(own.left).sizes[-1]
    lies, right = _right(ctx, own, m)
    left = _left(ctx, own, takes_dots(m, lies) or dtype is DType.BF16)
    added = None if own.added is None else _added(ctx, own.added)
    added_geometry = None if added is None else added.geometry
    batches = _batches(own, left.geometry, right.geometry, added_geometry)
    if batches is None:
        left, right = (ctx.with_strides(p, row_major(p.geometry.sizes).strides) for p in (left, right))
        lies = "columns" if own.is_transposed else "rows"
        batches = _batches(own, left.geometry, right.geometry, added_geometry)
        assert batches is not None, "it was found for dense operands before"
    m, batches = _as_rows(m, batches, left.geometry, added_geometry)
    fused = _fused(ctx, own, added, batches, m)
    step = _steps(right.geometry, own.is_transposed)[0 if lies == "rows" else 1]
    row, along_k = left.geometry.strides[-2:]
    panel, left_slot, right_slot = 0, ctx.builder.handle(left), ctx.builder.handle(right)
    panels, tiles = packings_in_run(
        isa, dtype, m, n, k, batches.count, left_lies_in_rows=not is_one(row) or is_one(along_k)
    )
    if tiles is not None:
        left_slot = _emit_tiles(ctx, own, tiles, left_slot, along_k)
        row, along_k = k, tiles.tiling.rows
    if panels is not None:
        right_slot, panel = _emit_panels(ctx, own, panels, right_slot, lies, step), panels.panel_nelements
        lies, step = "packed", panels.step
    problem = Problem(
        m, n, k, row, along_k, panel, step, n, 0, batches.sizes[1], *batches.left, *batches.right, *batches.out
    )
    plan = plan_product(isa, dtype, lies, problem, batches.count, fused.bound, tiled=tiles is not None)
    out = ctx.buffer(own.result, sizes)
    nbytes = (batches.count * m * (n + k) + k * n) * dtype.itemsize
    about = About(
        f"{dtype} {batches.count}x {m}x{n}x{k} ({plan.kind})", (own.node, *own.nodes), nbytes,
        2 * batches.count * m * n * k,
    )  # fmt: skip
    emit(ctx, plan, (left_slot, right_slot), out, fused, _eager(own, fused.values, panels, tiles), about)


def _emit_tiles(ctx: Context, own: OwnMatmul, packing: TilePacking, matrix: int, step: int) -> int:
    """Append the launch that packs the left matrix; the slot of its tiles."""
    source, words = tile_packing_source(packing.tiling), packing.words(step)
    return _emit_packing(ctx, own, packing, matrix, source, words, "tiles", lambda left: tiles_by_torch(left, packing))


def _emit_panels(ctx: Context, own: OwnMatmul, packing: Packing, matrix: int, lies: Right, step: int) -> int:
    """Append the launch that packs the right matrix; the slot of its panels."""
    along_columns, is_transposed = lies == "columns", own.is_transposed

    def packed(right: torch.Tensor) -> torch.Tensor:
        weight = right if is_transposed else right.transpose(-1, -2)
        return packed_by_torch(weight.reshape(weight.shape[-2:]), packing)

    source, words = packing_source(packing.tiling, along_columns), packing.words(step, along_columns)
    return _emit_packing(ctx, own, packing, matrix, source, words, "panels", packed)


def _emit_packing(
    ctx: Context, own: OwnMatmul, packing: Packing | TilePacking, matrix: int, source: KernelSource,
    words: tuple[int, ...], what: str, packed: Callable[[torch.Tensor], torch.Tensor],
) -> int:  # fmt: skip
    """Append the launch that packs a matrix into memory of the arena; its slot. packed: the same in torch."""
    dtype = tensor_type(own.node.result).dtype
    made = ctx.builder.arena(row_major((packing.nelements,)), dtype_to_torch(dtype))
    lines, nbytes = packing.n if isinstance(packing, Packing) else packing.m, 2 * packing.nelements * dtype.itemsize
    launch(
        ctx, source, (matrix, made.slot), words, items=packing.items,
        eager=lambda given, out: out.copy_(packed(given)), writes=(1,),
        item_ns=nbytes / packing.items / BYTES_PER_NS, label=f"{what} of a product", may_refuse=False,
        about=About(f"{dtype} {lines}x{packing.k}", (own.node,), nbytes),
    )  # fmt: skip
    return made.slot


def _lower_column(ctx: Context, own: OwnMatmul, isa: Isa) -> None:
    """The launch of a product with a single column: dot products of that with the rows of left."""
    type_, (m, k) = tensor_type(own.node.result), tensor_type(own.left).sizes
    column, matrix = ctx.place(own.right), ctx.place(own.left)
    if _steps(column.geometry, own.is_transposed)[0] != 1:
        column = ctx.with_strides(column, row_major(column.geometry.sizes).strides)
    if 1 not in matrix.geometry.strides:
        matrix = ctx.with_strides(matrix, row_major(matrix.geometry.sizes).strides)
    row, along_k = matrix.geometry.strides
    lies: Right = "columns" if along_k == 1 else "rows"
    added = None if own.added is None else ctx.place(own.added)
    batches = _batches(own, matrix.geometry, column.geometry, None if added is None else added.geometry)
    assert batches is not None, "there are none of two dimensions"
    fused = _fused(ctx, own, added, batches, m)
    problem = Problem(1, m, k, k, 1, 0, row if lies == "columns" else along_k, m, 0, 1, *((0, 0) * 3))
    plan = plan_product(isa, type_.dtype, lies, problem, 1, fused.bound)
    out = ctx.buffer(own.result, type_.sizes)
    nbytes, work = (m + m * k + k) * type_.dtype.itemsize, f"{type_.dtype} {m}x1x{k} ({plan.kind})"
    eager = _eager(own, fused.values)
    emit(
        ctx, plan, (ctx.builder.handle(column), ctx.builder.handle(matrix)), out, fused,
        lambda right, left, *others: eager(left, right, *others),
        About(work, (own.node, *own.nodes), nbytes, 2 * m * k),
    )  # fmt: skip


def _steps(right: Geometry, is_transposed: bool) -> tuple[int, int]:
    """Strides of the right matrix along k and along its columns."""
    *_, first, second = right.strides
    return (second, first) if is_transposed else (first, second)


def _right(ctx: Context, own: OwnMatmul, m: int) -> tuple[Right, Place]:
    """How the right matrix is read, and where; copied if neither of its strides is 1."""
    place = ctx.place(own.right)
    along_k, along_n = _steps(place.geometry, own.is_transposed)
    *_, n = tensor_type(own.node.result).sizes
    is_single = is_one(tensor_type(own.left).sizes[-1])
    if (is_one(along_k) or is_single) and (not is_one(along_n) or takes_dots(m, "columns")):
        return "columns", place
    if is_one(along_n) or is_one(n):
        return "rows", place
    return "columns" if own.is_transposed else "rows", ctx.with_strides(place, row_major(place.geometry.sizes).strides)


def _left(ctx: Context, own: OwnMatmul, needs_unit: bool) -> Place:
    """Where the left matrix is read; copied if a stride of 1 along k is needed and it has another."""
    place = ctx.place(own.left)
    if needs_unit and not _is_dense(place):
        return ctx.with_strides(place, row_major(place.geometry.sizes).strides)
    return place


def _added(ctx: Context, value: Value) -> Place:
    """Where the added tensor is read; copied if its columns are neither side by side nor one."""
    place = ctx.place(value)
    if place.geometry.sizes and not _is_dense(place):
        return ctx.with_strides(place, row_major(place.geometry.sizes).strides)
    return place


def _is_dense(place: Place) -> bool:
    """Whether the elements of a row lie side by side."""
    return is_one(place.geometry.strides[-1]) or is_one(place.geometry.sizes[-1])


def _fused(ctx: Context, own: OwnMatmul, added: Place | None, batches: Batches, m: int) -> Fused:
    """The epilogue over (outer, inner, row, column): the added tensor first, then the nodes."""
    values: list[Value] = []

    def where(value: Value) -> Memory:
        if value not in values:
            values.append(value)
        return Memory(value, f"%{value.name}", Geometry.of(tensor_type(value)))

    found = epilogue_expr(own.nodes, own.node.result, where)
    operands = [key for key in found.keys if isinstance(key, Value)]
    slots = [ctx.slot(v) for v in operands]
    dtypes = [b.dtype for b in found.buffers]

    def in_batches(index: Index) -> Index:
        row, column = index.strides
        if own.is_turned:
            return Index(index.offset, (0, 0, column, row))
        return Index(index.offset, (row * m * batches.sizes[1], row * m, row, column))

    def combined(part: Expr) -> Expr | None:
        if not isinstance(part, Ref) or part.name != ACC:
            return None
        product: Expr = part
        if own.alpha != 1:
            product = Op("mul", (product, Const(own.alpha, part.dtype)), part.dtype)
        if added is None or own.added is None:
            return product
        dtype = tensor_type(own.added).dtype
        rows = _stride(added.geometry, -2), _stride(added.geometry, -1)
        strides = (*batches.added, *(reversed(rows) if own.is_turned else rows))
        load: Expr = Load(len(operands), Index(0, strides), dtype)
        if dtype is not part.dtype:
            load = Op("cast", (load,), part.dtype)
        if own.beta != 1:
            load = Op("mul", (load, Const(own.beta, part.dtype)), part.dtype)
        return Op("add", (product, load), part.dtype)

    # Loads of the nodes are spread over the batches before the added tensor's, whose index already is.
    expr = mapped(mapped(found.expr, lambda part: None, in_batches), combined)
    if added is not None and own.added is not None:
        operands.append(own.added)
        slots.append(ctx.builder.handle(added))
        dtypes.append(tensor_type(own.added).dtype)
    made = bound(expr, tensor_type(own.result).dtype, dtypes)
    assert made is not None, "it was bound for the same nodes before"
    return Fused(made, tuple(slots), tuple(operands))


def _eager(
    own: OwnMatmul, operands: Sequence[Value], panels: Packing | None = None, tiles: TilePacking | None = None
) -> Callable[..., Any]:
    """The same in torch: (left, right, operands.., out) -> writes out. The matrices come packed if these are given."""
    left_sizes, right_sizes = tensor_type(own.left).sizes, tensor_type(own.right).sizes

    def run(*tensors: torch.Tensor) -> None:
        left, right, *others, out = tensors
        if tiles is not None:
            left = tiles_in_rows(left, tiles).view(left_sizes)
        if panels is not None:
            matrix = unpacked(right, panels)
            right = (matrix if own.is_transposed else matrix.t()).reshape(right_sizes)
        known = {own.left: left, own.right: right, **dict(zip(operands, others, strict=True))}
        with torch.no_grad():
            for node in (own.node, *own.nodes):
                known[node.result] = applied(node, known)
            out.copy_(known[own.result])

    return run
