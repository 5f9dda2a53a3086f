"""Products with a weight known before the run: linear, addmm, mm and matmul with a static matrix.

Candidates: `own` (this project's kernels, `own_products`), `onednn` (weight packed, epilogue fused), `mkl` (weight
packed for the rows at hand), `plain` (what eager calls, written into planned memory). Own kernels are taken where there
are any; among the libraries one short measurement per shape and process decides, a rule where measuring is off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch

from smelt._torch.library import mkldnn, products
from smelt.codegen.contract.planning import is_worthwhile
from smelt.codegen.contract.tiling import tiling_for
from smelt.codegen.llvm.isa import Isa, host_isa
from smelt.codegen.lower.builder import Place, Storage
from smelt.codegen.lower.context import Context, row_major, tensor_type
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.lower.products.fuse import Epilogue
from smelt.codegen.lower.report import CandidateReport, ChoiceReport
from smelt.codegen.lower.static.measure import CHOICES, Timing, time_candidates
from smelt.diag import Options
from smelt.diag.records import record
from smelt.ir import DType, Node, TensorType, Value
from smelt.ir.sizes import blind, equals, is_one, is_symbolic
from smelt.runtime import calls
from smelt.runtime.machine.cpu import cpu_flags

# Below this many multiply-adds the fixed cost of a oneDNN call (about 9 us) outweighs its speed.
MIN_ONEDNN_WORK = 1 << 20
# Above this many, packing for MKL gains nothing over the plain call, and timing it costs.
MAX_MKL_WORK = 1 << 24
# Timed products are cut down to this many rows and columns, so that a large vocabulary costs little.
_TIMED_ROWS, _TIMED_COLUMNS = 1024, 4096
_NOISE = 1.05
# Terms of a sum up to which oneDNN's error, one chain's, is within what is promised.
_MAX_CHAIN = 768
# Up to so many rows a product takes as long as its weight takes to read.
_FEW_ROWS = 8
# A lowering that has measured this long (a busy machine) goes on by rule.
MAX_MEASURING_MS = 150.0


@record
class Product:
    """x @ weight^T + bias. `weight` is [n, k], or [k, n] where `is_transposed`; `x` is [..., k]."""

    node: Node
    x: Value
    weight: Value
    bias: Value | None
    is_transposed: bool
    rows: int
    n: int
    k: int

    @property
    def work(self) -> int:
        """Multiply-adds."""
        return self.rows * self.n * self.k

    @property
    def shape(self) -> str:
        """Rows x columns x inner size, with the dtype, and whether a bias is added."""
        return f"{tensor_type(self.x).dtype} {self.rows}x{self.n}x{self.k}{'' if self.bias is None else '+bias'}"


def product_of(ctx: Context, node: Node) -> Product | None:
    """The product that a node is, if its weight is static and libraries take it."""
    operands = _operands(ctx, node)
    if operands is None:
        return None
    x, weight, bias, is_transposed = operands
    types = [v.type for v in (x, weight, bias) if v is not None]
    if not all(isinstance(t, TensorType) for t in types) or not isinstance(node.result.type, TensorType):
        return None
    kind, matrix = tensor_type(x), tensor_type(weight)
    if any(tensor_type(v).dtype is not kind.dtype for v in (weight, node.result)) or kind.dtype not in _DTYPES:
        return None
    if len(matrix.sizes) != 2 or len(kind.sizes) < 1 or not ctx.statics.is_static(weight):
        return None
    if ctx.statics.is_static(x) or "autocast" in node.mode or 0 in (*kind.sizes, *matrix.sizes):
        return None
    k, n = matrix.sizes if is_transposed else (matrix.sizes[1], matrix.sizes[0])
    if bias is not None and (tensor_type(bias).sizes != (n,) or tensor_type(bias).dtype is not kind.dtype):
        return None
    result = tensor_type(node.result)
    if result.sizes != (*kind.sizes[:-1], n) or result.strides is not None:
        return None
    return Product(node, x, weight, bias, is_transposed, kind.numel // k, n, k)


_DTYPES = (DType.F32, DType.BF16, DType.F64)


def _operands(ctx: Context, node: Node) -> tuple[Value, Value, Value | None, bool] | None:
    """(x, weight, bias, whether the weight is [k, n]) of a node that is a product of matrices."""
    call = ctx.call_arguments(node) if node.op in PRODUCTS else {}
    match node.op:
        case "aten.linear.default":
            x, weight, bias = call["input"], call["weight"], call["bias"]
            is_transposed = False
        case "aten.addmm.default":
            if call["beta"] != 1 or call["alpha"] != 1:
                return None
            x, weight, bias = call["mat1"], call["mat2"], call["self"]
            is_transposed = True
        case "aten.mm.default":
            x, weight, bias, is_transposed = call["self"], call["mat2"], None, True
        case "aten.matmul.default":
            x, weight, bias, is_transposed = call["self"], call["other"], None, True
        case _:
            return None
    if not isinstance(x, Value) or not isinstance(weight, Value) or not (bias is None or isinstance(bias, Value)):
        return None
    return x, weight, bias, is_transposed


PRODUCTS = ("aten.linear.default", "aten.addmm.default", "aten.mm.default", "aten.matmul.default")


def lower_product(ctx: Context, product: Product, epilogue: Epilogue) -> bool:
    """Lower a product that the library computes (`choose`); True if its epilogue is done as well, False if its nodes
    are still to be lowered.
    """
    match ctx.choices[product.shape].chosen:
        case "onednn":
            return _lower_onednn(ctx, product, epilogue)
        case "mkl":
            _lower_mkl(ctx, product)
        case _:
            _lower_plain(ctx, product)
    return False


# --- the choice


def choose(ctx: Context, product: Product) -> str:
    """The candidate to use for a product; recorded in the report."""
    known = ctx.choices.get(product.shape)
    if known is not None:
        ctx.choices[product.shape] = replace(known, nodes=known.nodes + 1)
        return known.chosen
    choice = _choose(ctx, product)
    ctx.choices[product.shape] = choice
    return choice.chosen


@blind
def _candidates(ctx: Context, product: Product) -> list[str]:
    """The ways that compute a product, any of which is right."""
    if ctx.options.numerics == "eager-library":
        return ["plain"]
    dtype = tensor_type(product.x).dtype
    is_own = (
        own_isa(ctx, dtype) is not None
        and is_worthwhile(product.rows, product.n, product.k)
        and not library_has_tiles(dtype, product.rows)
    )
    names = ["own"] if is_own else []
    if dtype is DType.F64:
        return [*names, "plain"]
    if mkldnn.has_linear() and is_accurate(ctx, product):
        names.append("onednn")
    # What MKL packs is for the rows at hand.
    is_fixed = not is_symbolic(product.rows)
    if is_fixed and product.work <= MAX_MKL_WORK and dtype is DType.F32 and mkldnn.has_mkl_linear():
        names.append("mkl")
    return [*names, "plain"]


def own_isa(ctx: Context, dtype: DType) -> Isa | None:
    """The instruction set of own products of a dtype; None where the library's are used."""
    return own_isa_of(ctx.options, dtype)


def own_isa_of(options: Options, dtype: DType) -> Isa | None:
    """The same for options alone: without wide vectors the library's kernels are better."""
    isa = host_isa()
    if isa is None or isa.name == "baseline" or options.numerics == "eager-library":
        return None
    return isa if tiling_for(isa, dtype) is not None else None


@blind
def library_has_tiles(dtype: DType, rows: int) -> bool:
    """Whether oneDNN has the CPU's tile registers (AMX) for a product, several times as fast as vectors are.

    Few rows are read at the memory's pace, in which tiles are no better.
    """
    return dtype is DType.BF16 and rows > _FEW_ROWS and "amx_bf16" in cpu_flags() and mkldnn.has_linear()


def is_accurate(ctx: Context, product: Product) -> bool:
    """Whether oneDNN's error is within 1.5 times eager's: it sums K in one chain (measured: 1.47 at 768, 2.2 at 2048).

    bf16 is exact enough at any K: it is summed in f32 and rounded at the end.
    """
    return tensor_type(product.x).dtype is DType.BF16 or product.k <= _MAX_CHAIN or ctx.options.numerics == "fast"


def _choose(ctx: Context, product: Product) -> ChoiceReport:
    names = _candidates(ctx, product)
    untimed = tuple(CandidateReport(name, None) for name in names)
    if len(names) == 1:
        return ChoiceReport(product.shape, names[0], untimed, "the only candidate")
    if "own" in names:
        # Never measured slower than a library where there are vectors, and as exact as eager.
        return ChoiceReport(product.shape, "own", untimed, "rule")
    if ctx.options.deterministic or not ctx.options.measure or is_symbolic(product.rows):
        return ChoiceReport(product.shape, rule(product, names), untimed, "rule")
    if ctx.spent_ms.get("measure", 0.0) > MAX_MEASURING_MS:
        return ChoiceReport(product.shape, rule(product, names), untimed, "rule: measuring took too long")
    key = (product.shape, tuple(names), torch.get_num_threads())
    with ctx.timed("measure"):
        timings = CHOICES.timings(key, lambda: _time(product, names))
    if not timings:
        return ChoiceReport(product.shape, rule(product, names), untimed, "rule")
    timed = tuple(CandidateReport(t.name, round(t.latency_us, 1)) for t in timings)
    return ChoiceReport(product.shape, _preferred(product, timings), timed, "measured")


def _preferred(product: Product, timings: tuple[Timing, ...]) -> str:
    """The fastest; the rule's choice where that is as fast within the noise, so that processes agree."""
    expected = rule(product, [t.name for t in timings])
    close = [t.name for t in timings if t.latency_us <= _NOISE * timings[0].latency_us]
    return expected if expected in close else timings[0].name


@blind
def rule(product: Product, names: list[str]) -> str:
    """The choice without measuring: oneDNN for large products on AVX-512, where MKL's f32 may run at AVX2 speed."""
    wide = torch.backends.cpu.get_cpu_capability() in ("AVX512", "AMX")
    is_large = product.work >= MIN_ONEDNN_WORK
    return "onednn" if "onednn" in names and wide and is_large else "plain"


def _time(product: Product, names: list[str]) -> tuple[Timing, ...]:
    """Time the candidates on made-up data of the product's shape, cut down where it is large."""
    dtype = torch.float32 if tensor_type(product.x).dtype is DType.F32 else torch.bfloat16
    rows, n = min(product.rows, _TIMED_ROWS), min(product.n, _TIMED_COLUMNS)
    x = torch.full((rows, product.k), 0.5, dtype=dtype)
    weight = torch.full((n, product.k), 0.25, dtype=dtype)
    bias = None if product.bias is None else torch.zeros(n, dtype=dtype)
    out = torch.empty(rows, n, dtype=dtype)
    runs: dict[str, Callable[[], object]] = {}
    if "onednn" in names:
        packed = mkldnn.pack_linear(weight, rows)
        if packed is not None:
            runs["onednn"] = lambda: products.onednn_linear(x, packed, bias)
    if "mkl" in names:
        mkl = mkldnn.pack_mkl_linear(weight, rows)
        if mkl is not None:
            runs["mkl"] = lambda: products.mkl_linear(x, mkl, weight, bias)
    matrix = weight.t()
    if bias is None:
        runs["plain"] = lambda: torch.mm(x, matrix, out=out)
    else:
        runs["plain"] = lambda: torch.addmm(bias, x, matrix, out=out)
    with torch.no_grad():
        if any(run() is None for run in runs.values()):
            return ()
        return time_candidates(runs)


# --- the candidates


def matrix_of(ctx: Context, product: Product) -> torch.Tensor:
    """The weight as [n, k], a value known at build time from now on."""
    tensor = ctx.statics.bake(product.weight).detach()
    return tensor.t() if product.is_transposed else tensor


def _packed(ctx: Context, product: Product, form: str) -> Storage | None:
    """The packed weight, shared by all products with this weight (for MKL: and this many rows)."""
    rows = product.rows if form == "mkl" else 0
    key = (form, product.weight, product.is_transposed, rows)
    if key not in ctx.packed:
        weight = matrix_of(ctx, product)
        # One packing serves all row counts; a large hint never measured slower.
        with ctx.timed("pack"):
            packed = mkldnn.pack_mkl_linear(weight, rows) if form == "mkl" else mkldnn.pack_linear(weight, 128)
        if packed is None:
            return None
        ctx.packed[key] = ctx.builder.held(packed)
        ctx.packed_nbytes += weight.numel() * weight.element_size()
    return ctx.packed[key]


def _bias_slot(ctx: Context, product: Product) -> int | None:
    return None if product.bias is None else ctx.slot(product.bias)


def _lower_onednn(ctx: Context, product: Product, epilogue: Epilogue) -> bool:
    packed = _packed(ctx, product, "onednn")
    if packed is None:
        _lower_plain(ctx, product)
        return False
    x, bias = ctx.slot(product.x, any_layout=True), _bias_slot(ctx, product)
    other = None if epilogue.residual is None else ctx.slot(epilogue.residual)
    dst = ctx.result(epilogue.result)
    post = epilogue.post
    call = calls.packed_linear(
        dst, x, packed.slot, bias, post=post.name, scalars=post.scalars, algorithm=post.algorithm, other=other
    )
    ctx.builder.emit(call)
    ctx.note(product.node, "library", call.symbol)
    for node in epilogue.nodes:
        ctx.note(node, "fused", f"%{product.node.result.name}")
    return True


def _lower_mkl(ctx: Context, product: Product) -> None:
    packed = _packed(ctx, product, "mkl")
    if packed is None:
        _lower_plain(ctx, product)
        return
    weight = ctx.constant(matrix_of(ctx, product).contiguous()) if product.is_transposed else None
    origin = weight.slot if weight is not None else ctx.slot(product.weight)
    x, bias = ctx.slot(product.x, any_layout=True), _bias_slot(ctx, product)
    call = calls.mkl_linear(ctx.result(product.node.result), x, packed.slot, origin, bias, product.rows)
    ctx.builder.emit(call)
    ctx.note(product.node, "library", call.symbol)


def _lower_plain(ctx: Context, product: Product) -> None:
    """addmm or mm over the live weight, into planned memory."""
    x = ctx.builder.handle(as_matrix(ctx, product))
    place = ctx.place(product.weight)
    if not product.is_transposed:
        at = place.geometry
        place = Place(place.storage, Geometry(at.sizes[::-1], at.strides[::-1], at.offset))
    weight, bias = ctx.builder.handle(place), _bias_slot(ctx, product)
    out = ctx.buffer(product.node.result, (product.rows, product.n))
    call = calls.mm_out(out, x, weight) if bias is None else calls.addmm_out(out, bias, x, weight)
    ctx.builder.emit(call)
    ctx.note(product.node, "library", call.symbol)


def as_matrix(ctx: Context, product: Product) -> Place:
    """x as a matrix [rows, k]: a view where its layout allows one, else a row-major copy."""
    type_, place = tensor_type(product.x), ctx.place(product.x)
    sizes = (product.rows, product.k)
    if len(type_.sizes) == 2:
        return place
    row = _row_step(type_.sizes, place.geometry.strides)
    if row is None:
        place = ctx.with_strides(place, row_major(type_.sizes).strides)
        row = product.k
    return Place(place.storage, Geometry(sizes, (row, place.geometry.strides[-1]), place.geometry.offset))


def _row_step(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """From one row to the next where all dimensions but the last are seen as one; None if they do not run on."""
    loops = [(n, step) for n, step in zip(sizes[:-1], strides[:-1], strict=True) if not is_one(n)]
    if not all(equals(outer, n * inner) for (_, outer), (n, inner) in pairwise(loops)):
        return None
    return loops[-1][1] if loops else sizes[-1] * strides[-1]
