"""Nests as Triton kernels against the evaluator, in Triton's interpreter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

import pytest
import torch

from smelt.codegen.kernels.evaluate import evaluate_nest
from smelt.codegen.kernels.graph import Graph
from smelt.codegen.kernels.nest import (
    POSITIONS,
    Expr,
    Gather,
    Index,
    Let,
    Load,
    Nest,
    Position,
    Reduce,
    Ref,
    Scan,
    Statement,
    Store,
)
from smelt.codegen.kernels.operations import KERNEL_OPS, KernelOp
from smelt.codegen.kernels.simplify import simplify_nest
from smelt.codegen.triton.emit import emit_triton, unsupported
from smelt.codegen.triton.layout import FORMS, Form, fits
from smelt.diag import InternalError
from smelt.ir import DType
from tests.kernels.machine import TORCH_DTYPE
from tests.kernels.nests import (
    F32,
    at,
    const,
    layer_norm,
    load,
    nest,
    op,
    pointwise,
    reduce_columns,
    reduce_rows,
    softmax,
)
from tests.kernels.test_nest_emission import _drawn as drawn
from tests.kernels.test_nest_emission import _embedding as embedding
from tests.kernels.test_nest_emission_fuzz import Fuzz
from tests.triton.harness import check, interpreter

INNER: tuple[Form, ...] = ("rows", "chunk", "serial")
HALVES = (DType.BF16, DType.F16)


# --- pointwise


@pytest.mark.spread(3)
@pytest.mark.parametrize("n", [1, 7, 64, 1000, 1024, 4097])
def test_every_length(n: int) -> None:
    check(pointwise([F32, F32], (n,), op("mul", load(0, 1), const(2.5))), [drawn([n])], torch.zeros(n))


@pytest.mark.parametrize("form", ["flat", "tile"])
def test_broadcast_and_strides(form: Form) -> None:
    x, row, column = drawn([5, 6, 37]), drawn([37], seed=1), drawn([5, 6], seed=2)
    expr = op("add", op("mul", load(0, 222, 37, 1), load(1, 0, 0, 1)), load(2, 6, 1, 0))
    check(pointwise([F32] * 4, (5, 6, 37), expr), [x, row, column], torch.zeros(5, 6, 37), form=form)
    made = nest([F32, F32], (19, 21), (), [Store(1, at(23, 1, offset=3), op("neg", load(0, 180, 4, offset=7)))])
    check(made, [drawn([40, 90])], torch.zeros(19 * 23 + 3), form=form)


@pytest.mark.parametrize("dtype", [F32, DType.F64, *HALVES, DType.U8, DType.BOOL], ids=str)
def test_transpose(dtype: DType) -> None:
    made = nest([dtype] * 2, (3, 37, 50), (), [Store(1, at(1850, 50, 1), load(0, 1850, 1, 37, dtype=dtype))])
    kernel = check(made, [drawn([3, 50, 37], dtype)], torch.zeros(3, 37, 50, dtype=TORCH_DTYPE[dtype]))
    assert kernel.form == "tile"


def test_mixed_dtypes_and_several_stores() -> None:
    n = 203
    a, b, c = drawn([n]), drawn([n], DType.BF16, 1), drawn([n], DType.I64, 2)
    wide = op("cast", load(1, 1, dtype=DType.BF16), dtype=F32)
    less = Ref("less", DType.BOOL)
    body = [
        Let("less", op("lt", load(0, 1), wide, dtype=DType.BOOL)),
        Store(3, at(1), less),
        Store(4, at(1), op("select", less, load(2, 1, dtype=DType.I64), Position(0))),
        Store(5, at(1), op("cast", op("add", load(0, 1), wide), dtype=DType.F16)),
        Store(6, at(1), op("cast", load(2, 1, dtype=DType.I64), dtype=DType.U8)),
    ]
    made = nest([F32, DType.BF16, DType.I64, DType.BOOL, DType.I64, DType.F16, DType.U8], (n,), (), body)
    outputs = [torch.zeros(n, dtype=t) for t in (torch.bool, torch.int64, torch.float16, torch.uint8)]
    check(made, [a, b, c], *outputs)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_each_operation_of_half_floats_rounds(dtype: DType) -> None:
    x, y = load(0, 1, dtype=dtype), load(1, 1, dtype=dtype)
    expr = op("div", op("add", op("mul", x, y), x), op("sub", y, const(3.0, dtype)))
    inputs = [drawn([2000], dtype), drawn([2000], dtype, 1)]
    inputs[0][:4] = torch.tensor([math.nan, math.inf, -0.0, 1e-39])
    check(pointwise([dtype] * 3, (2000,), expr), inputs, torch.zeros(2000, dtype=TORCH_DTYPE[dtype]), tolerance=0.0)


def _numbers(dtype: DType) -> torch.Tensor:
    if dtype is DType.BOOL:
        return torch.tensor([False, True])
    if not dtype.is_floating:
        low, high = torch.iinfo(TORCH_DTYPE[dtype]).min, torch.iinfo(TORCH_DTYPE[dtype]).max
        return torch.tensor(
            [low, low + 1, -1 % 256 if low == 0 else -1, 0, 1, 2, 3, 7, 64, high], dtype=TORCH_DTYPE[dtype]
        )
    floats = [0.0, -0.0, 0.25, 0.75, -0.5, 1.0, -1.0, 1.5, 2.5, -3.0, 7.25, -20.5, math.inf, -math.inf, math.nan]
    return torch.tensor(floats, dtype=TORCH_DTYPE[dtype])


def _of_operation(record: KernelOp, dtype: DType) -> tuple[Nest, list[torch.Tensor], torch.Tensor]:
    """An operation on all pairs of a dtype's numbers."""
    x = _numbers(dtype)
    grids = [g.flatten() for g in torch.meshgrid(*[x] * min(record.arity, 2), indexing="ij")]
    if record.name in ("idiv", "floordiv", "rem", "fmod") and not dtype.is_floating:
        # torch itself ends the process where the least integer is divided by -1.
        least = torch.iinfo(TORCH_DTYPE[dtype]).min
        fine = (grids[1] != 0) & ~((grids[0] == least) & (grids[1] == -1) & (least < 0))
        grids = [g[fine] for g in grids]
    result = DType.BOOL if record.gives_bool else dtype
    args: list[Expr] = [load(k, 1, dtype=dtype) for k in range(len(grids))]
    tensors, dtypes = list(grids), [dtype] * len(grids)
    if record.name == "select":
        tensors, dtypes = [torch.arange(grids[0].numel()) % 3 == 0, *tensors], [DType.BOOL, *dtypes]
        args = [load(0, 1, dtype=DType.BOOL), load(1, 1, dtype=dtype), load(2, 1, dtype=dtype)]
    elif record.arity == 3:
        args.append(args[0])
    made = pointwise([*dtypes, result], (grids[0].numel(),), op(record.name, *args, dtype=result))
    return made, tensors, torch.zeros(grids[0].numel(), dtype=TORCH_DTYPE[result])


OPERATIONS = [
    pytest.param(record, dtype, id=f"{record.name}-{dtype}")
    for record in KERNEL_OPS
    for dtype in (F32, DType.BF16, DType.F64, DType.I64, DType.I32, DType.I8, DType.U8, DType.BOOL)
    if dtype in record.operands and record.name not in ("cast",)
]


@pytest.mark.spread(16)
@pytest.mark.parametrize(("record", "dtype"), OPERATIONS)
def test_operations(record: KernelOp, dtype: DType) -> None:
    made, tensors, out = _of_operation(record, dtype)
    exact = record.exact or record.family in ("arithmetic", "modulo", "comparison", "bits")
    tolerance = 0.0 if exact and record.name != "fma" else 1e-2 if dtype.is_half else 1e-5
    wanted = None
    if record.name == "gelu":
        # Of an infinite float, oneDNN's is NaN on CPUs with AVX-512. Of doubles it is torch's own.
        wide, doubles, limit = _of_operation(record, DType.F64)
        evaluate_nest(wide, [*doubles, limit])
        wanted = [limit.to(out.dtype)]
        assert math.inf in wanted[0]
    check(made, tensors, out, tolerance=tolerance, wanted=wanted)


def test_signs_of_zeros_and_powers() -> None:
    x = torch.tensor([0.0, -0.0, 3.0, -2.0])
    check(pointwise([F32, F32], (4,), op("recip", op("neg", load(0, 1)))), [x], torch.ones(4), tolerance=0.0)
    for exponent in (2.0, 3.0, 0.5):
        made = pointwise([F32, F32], (4,), op("pow", load(0, 1), const(exponent)))
        check(made, [x.abs()], torch.zeros(4), tolerance=1e-6)


@pytest.mark.parametrize("source", [F32, DType.BF16, DType.F64, DType.I64, DType.I8, DType.U8, DType.BOOL], ids=str)
def test_casts(source: DType) -> None:
    x = _numbers(source)
    if source.is_floating:
        x = x[x.isfinite() & (x >= 0)]
    n = x.numel()
    targets = [d for d in TORCH_DTYPE if d is not source]
    body = [Store(k + 1, at(1), op("cast", load(0, 1, dtype=source), dtype=d)) for k, d in enumerate(targets)]
    check(nest([source, *targets], (n,), (), body), [x], *(torch.zeros(n, dtype=TORCH_DTYPE[d]) for d in targets))


# --- memory


def test_masked_loads_and_stores() -> None:
    inside = op(
        "and",
        op("and", op("ge", Position(0), const(1, DType.I64), dtype=DType.BOOL),
           op("lt", Position(0), const(7, DType.I64), dtype=DType.BOOL)),
        op("and", op("ge", Position(1), const(2, DType.I64), dtype=DType.BOOL),
           op("lt", Position(1), const(23, DType.I64), dtype=DType.BOOL)),
    )  # fmt: skip
    x = Load(0, Index(-23, (21, 1)), F32, inside, const(-1.5))
    check(pointwise([F32, F32], (8, 26), x), [drawn([6, 21])], torch.zeros(8, 26))
    keep = op("gt", load(0, 1), const(0.0), dtype=DType.BOOL)
    check(nest([F32, F32], (77,), (), [Store(1, at(1), load(0, 1), keep)]), [drawn([77])], torch.full((77,), 9.0))


@pytest.mark.parametrize("form", INNER)
def test_in_place(form: Form) -> None:
    check(nest([F32], (75,), (), [Store(0, at(1), op("exp", load(0, 1)))]), [], drawn([75]))
    x = load(0, 70, 1)
    body = [Reduce("s", "sum", x, F32), Store(0, at(70, 1), op("sub", x, Ref("s", F32)))]
    kernel = check(nest([F32], (4,), (70,), body), [], drawn([4, 70]), tolerance=1e-5, form=form, b=16)
    assert "tl.debug_barrier()" in kernel.source.text


def test_rows_that_are_reversed_in_place_are_whole() -> None:
    x = Load(0, Index(69, (70, -1)), F32)
    body = [Reduce("s", "sum", x, F32), Store(0, at(70, 1), op("add", x, Ref("s", F32)))]
    made = nest([F32], (4,), (70,), body)
    assert check(made, [], drawn([4, 70]), tolerance=1e-5).form == "rows"
    for form in ("chunk", "serial"):
        with pytest.raises(InternalError, match="in the form"):
            emit_triton(made, form)
    far = Load(0, Index(19_999, (20_000, -1)), F32)
    long = [Reduce("s", "sum", far, F32), Store(0, at(20_000, 1), op("add", far, Ref("s", F32)))]
    assert "rows are too long" in str(unsupported(nest([F32], (4,), (20_000,), long)))


@pytest.mark.parametrize("form", ["flat", "tile"])
def test_gather_of_rows(form: Form) -> None:
    place = torch.randint(0, 50, (23,), generator=torch.Generator().manual_seed(3))
    check(embedding(50, 40, 23), [drawn([50, 40]), place], torch.zeros(23, 40), form=form)
    check(embedding(50, 40, 23, wraps=True), [drawn([50, 40]), place - 50], torch.zeros(23, 40), form=form)


@pytest.mark.parametrize("bad", [50, -1, 2**40])
def test_a_position_out_of_range_is_told(bad: int) -> None:
    place = torch.zeros(23, dtype=torch.int64)
    place[17] = bad
    check(embedding(50, 40, 23), [drawn([50, 40]), place], torch.zeros(23, 40))


def test_a_masked_gather_does_not_look() -> None:
    n = 45
    index = load(1, 1, dtype=DType.I64)
    fits_ = op(
        "and",
        op("ge", index, const(0, DType.I64), dtype=DType.BOOL),
        op("lt", index, const(30, DType.I64), dtype=DType.BOOL),
    )
    expr = Load(0, Index(0, (0,), (Gather(index, 1, 30),)), F32, fits_, const(5.0))
    made = nest([F32, DType.I64, F32], (n,), (), [Store(2, at(1), expr)])
    check(made, [drawn([30]), torch.arange(n) - 7], torch.zeros(n))


def test_scatters() -> None:
    rows, width = 40, 19
    place = torch.randint(0, 6, (rows,), generator=torch.Generator().manual_seed(4))
    gather = Gather(load(1, 1, 0, dtype=DType.I64), width, 6)
    body = [Store(2, Index(0, (0, 1), (gather,)), load(0, width, 1), mode="add")]
    made = nest([F32, DType.I64, F32], (rows, width), (), body, ordered=True)
    check(made, [drawn([rows, width]), place], torch.ones(6, width), tolerance=1e-5)
    place = torch.randperm(37, generator=torch.Generator().manual_seed(5))
    body = [Store(2, Index(0, (0,), (Gather(load(1, 1, dtype=DType.I64), 1, 37),)), load(0, 1))]
    check(nest([F32, DType.I64, F32], (37,), (), body), [drawn([37]), place], torch.zeros(37))


def test_division_by_zero_is_told() -> None:
    expr = op("floordiv", load(0, 1, dtype=DType.I64), load(1, 1, dtype=DType.I64))
    kernel = emit_triton(pointwise([DType.I64] * 3, (21,), expr))
    a, b, out = torch.arange(21), torch.arange(1, 22), torch.zeros(21, dtype=torch.int64)
    assert interpreter().run(kernel, [a, b, out]) == 0 and torch.equal(out, a // b)
    b[20] = 0
    assert interpreter().run(kernel, [a, b, out]) == 1


@pytest.mark.parametrize("dtype", [DType.I64, DType.I32, DType.I8], ids=str)
def test_the_least_integer_by_minus_one_wraps(dtype: DType) -> None:
    least = torch.iinfo(TORCH_DTYPE[dtype]).min
    x, minus = torch.full((3,), least, dtype=TORCH_DTYPE[dtype]), torch.full((3,), -1, dtype=TORCH_DTYPE[dtype])
    for name, want in (("idiv", least), ("floordiv", least), ("rem", 0), ("fmod", 0)):
        out = torch.ones_like(x)
        made = pointwise([dtype] * 3, (3,), op(name, load(0, 1, dtype=dtype), load(1, 1, dtype=dtype)))
        assert interpreter().run(emit_triton(made), [x, minus, out]) == 0
        assert out.tolist() == [want] * 3


# --- reductions and scans


@pytest.mark.spread(24)
@pytest.mark.parametrize("form", INNER)
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin", "argmax_element", "argmin_element"])
@pytest.mark.parametrize("dtype", [F32, DType.F64, DType.I64, DType.I32, DType.U8], ids=str)
def test_rows_and_columns(kind: str, dtype: DType, form: Form) -> None:
    for rows, columns in ((5, 43), (40, 7)):
        x = drawn([rows, columns], dtype)
        out = torch.int64 if kind in POSITIONS else TORCH_DTYPE[dtype]
        by_row, by_column = reduce_rows(kind, rows, columns, dtype), reduce_columns(kind, rows, columns, dtype)
        check(by_row, [x], torch.zeros(rows, dtype=out), tolerance=1e-5, form=form, b=16)
        check(by_column, [x], torch.zeros(columns, dtype=out), tolerance=1e-5, form=form, b=16)


@pytest.mark.spread(2)
@pytest.mark.parametrize("form", INNER)
@pytest.mark.parametrize("kind", ["any", "all"])
def test_any_and_all(kind: str, form: Form) -> None:
    for n in (1, 5, 64):
        x = torch.zeros(4, n, dtype=torch.bool) if kind == "any" else torch.ones(4, n, dtype=torch.bool)
        x[1, n - 1] = x[2, 0] = kind == "any"
        check(reduce_rows(kind, 4, n, DType.BOOL), [x], torch.zeros(4, dtype=torch.bool), form=form, b=16)


@pytest.mark.spread(4)
@pytest.mark.parametrize("form", INNER)
@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin", "argmax_element", "argmin_element"])
def test_ties_nan_and_infinities(kind: str, form: Form) -> None:
    n = 50
    x = torch.zeros(8, n)
    x[1, 40] = x[1, 20] = math.nan
    x[2] = -math.inf
    x[3] = math.inf
    x[4, [3, 29, 41]] = 5.0
    x[5, [3, 29, 41]] = -5.0
    x[6] = math.nan
    x[7, n - 1] = math.nan
    out = torch.zeros(8, dtype=torch.int64 if kind in POSITIONS else torch.float32)
    check(reduce_rows(kind, 8, n), [x], out, form=form, b=16, tolerance=0.0)


@pytest.mark.parametrize("kind", ["argmax", "argmin_element", "max"])
def test_the_functions_of_reductions_as_they_are_written(kind: str) -> None:
    """In one lane turn by turn, where nothing of NumPy stands in for them."""
    x = torch.tensor([[0.0, -0.0, math.nan, 1.0, math.nan], [2.0, 2.0, -3.0, -3.0, 2.0]])
    out = torch.zeros(2, dtype=torch.int64 if kind in POSITIONS else torch.float32)
    check(reduce_rows(kind, 2, 5), [x], out, form="serial", tolerance=0.0)


def test_several_inner_loops() -> None:
    for form in INNER:
        reduce = Reduce("s", "sum", load(0, 25, 100, 1), F32)
        made = nest([F32, F32], (4,), (9, 25), [reduce, Store(1, at(1, 0, 0), op("div", Ref("s", F32), const(225.0)))])
        check(made, [drawn([9, 4, 25])], torch.zeros(4), tolerance=1e-5, form=form, b=64)
        reduce = Reduce("r", "argmax", load(0, 5, 35, 1), F32)
        made = nest([F32, DType.I64], (7,), (6, 5), [reduce, Store(1, at(1, 0, 0), Ref("r", DType.I64))])
        check(made, [drawn([6, 7, 5])], torch.zeros(7, dtype=torch.int64), form=form, b=8)


@pytest.mark.spread(2)
@pytest.mark.parametrize("form", INNER)
@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (5, 100)], ids=str)
def test_softmax_and_layer_norm(sizes: tuple[int, int], form: Form) -> None:
    x, w = drawn(sizes), drawn([sizes[1]], seed=1)
    check(softmax(*sizes), [x], torch.zeros(sizes), form=form, b=16)
    check(layer_norm(*sizes), [x, w], torch.zeros(sizes), tolerance=2e-5, form=form, b=16)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_softmax_of_half_floats(dtype: DType) -> None:
    check(softmax(4, 77, dtype), [drawn([4, 77], dtype)], torch.zeros(4, 77, dtype=TORCH_DTYPE[dtype]), tolerance=1e-2)


@pytest.mark.spread(4)
@pytest.mark.parametrize("form", INNER)
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_scans(kind: str, form: Form) -> None:
    for outer_strides, inner_stride, outer, inner in ((50, 1, 4, 50), (1, 40, 40, 9)):
        scan = Scan("c", kind, load(0, outer_strides, inner_stride), F32)  # type: ignore[arg-type]
        body: Sequence[Statement] = [
            scan,
            Reduce("m", "max", Ref("c", F32), F32),
            Store(1, at(outer_strides, inner_stride), op("sub", op("mul", Ref("c", F32), const(2.0)), Ref("m", F32))),
        ]
        made = nest([F32, F32], (outer,), (inner,), body)
        check(made, [drawn([outer * inner])], torch.zeros(outer * inner), tolerance=1e-5, form=form, b=16)


def test_a_chain_longer_than_pythons_stack() -> None:
    body: list[Let | Store] = [Let("v0", load(0, 1))]
    for k in range(1500):
        body.append(Let(f"v{k + 1}", op("max", op("neg", Ref(f"v{k}", F32)), const(-0.5))))
    assert len(emit_triton(nest([F32, F32], (37,), (), [*body, Store(1, at(1), Ref("v1500", F32))])).source.text) > 1500


# --- random nests


def compare(seed: int) -> None:
    """One random nest in each form that it has."""
    fuzz = Fuzz(seed)
    made = fuzz.nest()
    graph = Graph(simplify_nest(made))
    assert unsupported(made) is None
    for form in FORMS:
        if not fits(graph, form) or (form == "serial" and prod(graph.nest.inner) > 100):
            continue
        across = max(1, prod(graph.nest.outer) // 8)
        r = 1 << across.bit_length() if form in ("flat", "serial") else 4 * (seed % 2) if form == "rows" else 0
        if emit_triton(made, form, r, 16 if form == "chunk" else 0).programs > 40:
            continue
        _same(made, fuzz, form, r, f"seed {seed} {form}")


def _same(made: Nest, fuzz: Fuzz, form: Form, r: int, note: str) -> None:
    want, got = ([t.clone() for t in fuzz.tensors] for _ in range(2))
    failed = evaluate_nest(made, want)
    kernel = emit_triton(made, form, r, 16 if form == "chunk" else 0)
    assert interpreter().run(kernel, got) == failed, note
    for k in made.writes if not failed else ():
        assert torch.allclose(got[k].double(), want[k].double(), rtol=1e-5, atol=1e-5, equal_nan=True), note


def test_random_nests() -> None:
    for seed in (4,):
        compare(seed)


@pytest.mark.nightly
def test_many_random_nests() -> None:
    for seed in range(1000, 1100):
        compare(seed)
