"""Linear layers over few bits (`narrow.*`) by own kernels, with what follows fused, as of other products.

    %1 = narrow.int8(%x, %w, %b); %2 = gelu(%1)    ==>    bytes of x, row by row; one launch: bytes, w in bytes, b -> %2
    %1 = narrow.int4(%x, %w, %b, 32)               ==>    one launch: x, w in 4 bits, b -> %1

The rows in bytes are shared by all layers that read the same x. Without a kernel the operator runs in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.codegen.contract.narrow.int4_forms import Int4Form
from smelt.codegen.contract.narrow.int8 import byte_rows_source, row_words
from smelt.codegen.contract.narrow.int8_forms import Int8Form, RowForm
from smelt.codegen.contract.narrow.planning import plan_int4, plan_int8
from smelt.codegen.contract.planning import BYTES_PER_NS
from smelt.codegen.contract.tiling import byte_tiling
from smelt.codegen.fusion.epilogue import epilogue_nodes, leave_last_out
from smelt.codegen.lower.context import Context, row_major, tensor_type
from smelt.codegen.lower.launched_kernels import About, launch
from smelt.codegen.lower.products.linear import Product, as_matrix, own_isa
from smelt.codegen.lower.products.own_products import applied, emit, fused_behind, is_fusible, packed
from smelt.diag.records import record
from smelt.ir import DType, Node, TensorType, Value
from smelt.ir.sizes import is_one
from smelt.ops.own.narrow_linear import INT4, INT8, PREFIX


@record
class NarrowProduct:
    """A layer with the nodes fused behind it; `result` is what the last of them gives. group: of 4 bits, else 0."""

    product: Product
    nodes: tuple[Node, ...]
    result: Value
    group: int

    @property
    def node(self) -> Node:
        """The layer."""
        return self.product.node

    def bare(self) -> NarrowProduct:
        """The same with nothing behind it but the bias."""
        return NarrowProduct(self.product, (), self.product.node.result, self.group)


def narrow_product_of(ctx: Context, node: Node, claimed: set[Node]) -> NarrowProduct | None:
    """The layer and what can be fused behind it, if an own kernel computes it."""
    if not node.op.startswith(PREFIX):
        return None
    x, weight, bias, *rest = node.args
    assert isinstance(x, Value) and isinstance(weight, Value)
    isa, kind, matrix = own_isa(ctx, DType.F32), tensor_type(x), tensor_type(weight)
    if isa is None or (node.op == INT8 and byte_tiling(isa) is None) or not ctx.statics.is_static(weight):
        return None
    if not isinstance(node.result.type, TensorType) or node.result.type.strides is not None:
        return None
    n, k = matrix.sizes
    product = Product(node, x, weight, bias if isinstance(bias, Value) else None, False, kind.numel // k, n, k)
    value = node.result
    nodes = epilogue_nodes(value, lambda other: other not in claimed, meeting=True)
    while nodes and not is_fusible(isa, nodes, value):
        leave_last_out(nodes, value)
    group = rest[0] if rest else 0
    assert isinstance(group, int)
    return NarrowProduct(product, tuple(nodes), nodes[-1].result if nodes else value, group)


def lower_narrow_product(ctx: Context, own: NarrowProduct) -> None:
    """Place the launches of a layer and its epilogue."""
    product = own.product
    isa = own_isa(ctx, DType.F32)
    assert isa is not None
    fused = fused_behind(ctx, own.nodes, product.node.result, product.bias)
    form: Int8Form | Int4Form
    read: Callable[[torch.Tensor], tuple[torch.Tensor, Any]] = _matrix_of_floats
    if product.node.op == INT4:
        form = Int4Form(product.n, product.k, own.group)
        left, row = _rows_as_they_are(ctx, product)
        plan = plan_int4(isa, form, product.rows, row, fused.bound)
    else:
        tiling = byte_tiling(isa)
        assert tiling is not None
        form, rows = Int8Form(tiling, product.n, product.k), RowForm(tiling, product.k)
        left = _rows_in_bytes(ctx, own, rows)
        plan = plan_int8(isa, form, product.rows, rows.row_nelements, fused.bound)
        read = rows.read
    weight = packed(ctx, product, isa, form).slot
    out = ctx.buffer(own.result, (product.rows, product.n))
    about = About(
        f"{product.shape} ({plan.kind})", (product.node, *own.nodes),
        nbytes=product.rows * (product.k + product.n) * 4 + form.nbytes,
        flops=2 * product.rows * product.n * product.k,
    )  # fmt: skip
    emit(ctx, plan, (left, weight), out, fused, _eager(own, form, read, fused.values), about)


def _rows_as_they_are(ctx: Context, product: Product) -> tuple[int, int]:
    """The slot of x as a matrix whose rows are dense, and the elements between rows."""
    place = as_matrix(ctx, product)
    row, k = place.geometry.strides
    if not is_one(k) and product.k > 1:
        place = ctx.with_strides(place, (product.k, 1))
        row = product.k
    return ctx.builder.handle(place), row


def _rows_in_bytes(ctx: Context, own: NarrowProduct, rows: RowForm) -> int:
    """The slot of the rows of x in bytes, made by a launch of its own, once for all layers."""
    product = own.product
    known = ctx.rows_in_bytes.get(product.x)
    if known is not None and known[0] is product.node.parent:
        return known[1]
    x, row = _rows_as_they_are(ctx, product)
    made = ctx.builder.arena(row_major((product.rows, rows.row_nbytes)), torch.uint8)
    nbytes = 4 * product.k + rows.row_nbytes
    launch(
        ctx, byte_rows_source(rows.tiling), (x, made.slot), row_words(product.k, row, rows.row_nbytes),
        items=product.rows, eager=rows.write, writes=(1,), item_ns=nbytes / BYTES_PER_NS, label="rows in bytes",
        may_refuse=False,
        about=About(f"bytes of f32 {product.rows}x{product.k}", (product.node,), product.rows * nbytes),
    )  # fmt: skip
    ctx.rows_in_bytes[product.x] = product.node.parent, made.slot
    return made.slot


def _matrix_of_floats(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    return x.double(), 1.0


def _eager(
    own: NarrowProduct, form: Int8Form | Int4Form, read: Callable[[torch.Tensor], tuple[torch.Tensor, Any]],
    operands: Sequence[Value],
) -> Callable[..., Any]:  # fmt: skip
    """The same in torch: (rows, panels, operands.., out) -> writes out."""
    result, bias, nodes = own.product.node.result, own.product.bias, own.nodes
    sizes = tensor_type(result).sizes

    def run(*tensors: torch.Tensor) -> None:
        rows, panels, *others, out = tensors
        known = dict(zip(operands, others, strict=True))
        with torch.no_grad():
            steps, of_rows = read(rows)
            columns, of_columns = form.steps_of(panels)
            made = (steps @ columns.double().t()).float() * of_rows * of_columns
            if bias is not None:
                made = made + known[bias]
            known[result] = made.reshape(tuple(map(int, sizes)))
            for node in nodes:
                known[node.result] = applied(node, known)
            out.copy_(known[nodes[-1].result if nodes else result].reshape(out.shape))

    return run
