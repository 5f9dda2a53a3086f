"""Emitted nests against the evaluator, under every instruction set of the machine, whole and in split ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from smelt.codegen.kernels.evaluate import evaluate_nest
from smelt.codegen.kernels.nest import (
    FAILED,
    POSITIONS,
    Expr,
    Gather,
    Index,
    Let,
    Load,
    Nest,
    Position,
    Reduce,
    ReduceKind,
    Ref,
    Scan,
    Statement,
    Store,
)
from smelt.codegen.llvm.isa import NEON, Isa
from smelt.codegen.llvm.nests import nest_frame, nest_ir
from smelt.codegen.llvm.nests.nest_ir import emit_nest, simplify_nest, unsupported
from smelt.diag import InternalError
from smelt.ir import DType
from tests.kernels.machine import TORCH_DTYPE, machine_isas
from tests.kernels.nests import (
    F32,
    at,
    const,
    contiguous,
    layer_norm,
    load,
    nest,
    op,
    pointwise,
    reduce_columns,
    reduce_rows,
    run,
    softmax,
)

ISAS = pytest.mark.parametrize("isa", machine_isas(), ids=lambda isa: isa.name)
FLOATS = (DType.F32, DType.F64, DType.BF16, DType.F16)


def _drawn(sizes: Sequence[int], dtype: DType = F32, seed: int = 0) -> torch.Tensor:
    made = torch.randn(tuple(sizes), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if dtype.is_floating:
        return made.to(TORCH_DTYPE[dtype])
    if dtype is DType.BOOL:
        return made > 0.5
    return (made * 20).to(torch.int64).remainder(100).to(TORCH_DTYPE[dtype])


_FENCE = 0xA5


def _fenced(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy of the same layout, and the bytes behind it, which nobody may touch."""
    nbytes = t.untyped_storage().nbytes()
    memory = torch.full((nbytes + 4096,), _FENCE, dtype=torch.uint8)
    copy = memory[:nbytes].view(t.dtype).as_strided(t.shape, t.stride(), t.storage_offset())
    return copy.copy_(t), memory[nbytes:]


def check(
    made: Nest, isa: Isa, inputs: Sequence[torch.Tensor], *outputs: torch.Tensor, tolerance: float = 2e-6
) -> None:
    """The emitted nest gives what the evaluator gives; any split of its items gives the same bits."""
    want = [t.clone() for t in outputs]
    assert evaluate_nest(made, [*inputs, *want]) == 0
    kernel = emit_nest(made, isa)
    whole, beyond = zip(*map(_fenced, outputs), strict=True)
    assert run(kernel, isa, [*inputs, *whole]) == 0
    assert all(bool((fence == _FENCE).all()) for fence in beyond), "the kernel wrote past its result"
    for got, exact in zip(whole, want, strict=True):
        if got.dtype.is_floating_point:
            torch.testing.assert_close(got, exact, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert torch.equal(got, exact)
    cut = [t.clone() for t in outputs]
    points = sorted({0, kernel.items // 3, kernel.items // 2, kernel.items - 1, kernel.items})
    ranges = list(pairwise(points))[::-1] or [(0, kernel.items)]
    assert run(kernel, isa, [*inputs, *cut], ranges) == 0
    for got, other in zip(whole, cut, strict=True):
        assert torch.equal(got.view(torch.uint8).flatten(), other.view(torch.uint8).flatten())


# --- pointwise


@pytest.mark.spread(2)
@ISAS
@pytest.mark.parametrize("n", [*range(1, 70, 3), 127, 128, 1000, 4097, 100_003])
def test_every_length(n: int, isa: Isa) -> None:
    check(pointwise([F32, F32], (n,), op("mul", load(0, 1), const(2.5))), isa, [_drawn([n])], torch.zeros(n))


@ISAS
def test_broadcast(isa: Isa) -> None:
    x, row, column = _drawn([5, 6, 37]), _drawn([37], seed=1), _drawn([5, 6], seed=2)
    expr = op("add", op("mul", load(0, 222, 37, 1), load(1, 0, 0, 1)), load(2, 6, 1, 0))
    check(pointwise([F32] * 4, (5, 6, 37), expr), isa, [x, row, column], torch.zeros(5, 6, 37))


@ISAS
def test_strides_and_offsets(isa: Isa) -> None:
    x = _drawn([40, 90])
    made = nest([F32, F32], (19, 21), (), [Store(1, at(23, 1, offset=3), op("neg", load(0, 180, 4, offset=7)))])
    check(made, isa, [x], torch.zeros(19 * 23 + 3))


@ISAS
def test_one_buffer_at_several_offsets(isa: Isa) -> None:
    """As columns of boxes: each load begins at an element of its own."""
    n = 75
    parts = [load(0, 1, offset=k * n) for k in range(4)]
    expr = op("sub", op("mul", parts[1], parts[2]), op("add", parts[0], parts[3]))
    made = nest([F32, F32], (n,), (), [Store(1, at(1), expr), Store(1, at(1, offset=n), parts[3])])
    check(made, isa, [_drawn([4, n])], torch.zeros(2, n))


@pytest.mark.spread(6)
@ISAS
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(16, 16), (33, 70), (8, 100), (100, 8), (1, 5), (128, 64)], ids=str)
def test_transpose(shape: tuple[int, int], dtype: DType, isa: Isa) -> None:
    rows, columns = shape
    expr = op("add", load(0, 1, columns, dtype=dtype), load(1, rows, 1, dtype=dtype))
    made = nest([dtype] * 3, (columns, rows), (), [Store(2, at(rows, 1), expr)])
    inputs = [_drawn([rows, columns], dtype), _drawn([columns, rows], dtype, 1)]
    check(made, isa, inputs, torch.zeros(columns, rows, dtype=TORCH_DTYPE[dtype]))


@ISAS
def test_batched_transpose(isa: Isa) -> None:
    made = nest([F32, F32], (3, 37, 50), (), [Store(1, at(1850, 50, 1), load(0, 1850, 1, 37))])
    check(made, isa, [_drawn([3, 50, 37])], torch.zeros(3, 37, 50))


@ISAS
def test_mixed_dtypes_and_several_stores(isa: Isa) -> None:
    n = 203
    a, b, c = _drawn([n]), _drawn([n], DType.BF16, 1), _drawn([n], DType.I64, 2)
    wide = op("cast", load(1, 1, dtype=DType.BF16), dtype=F32)
    less = op("lt", load(0, 1), wide, dtype=DType.BOOL)
    body = [
        Let("less", less),
        Store(3, at(1), Ref("less", DType.BOOL)),
        Store(4, at(1), op("select", Ref("less", DType.BOOL), load(2, 1, dtype=DType.I64), Position(0))),
        Store(5, at(1), op("cast", op("add", load(0, 1), wide), dtype=DType.F16)),
        Store(6, at(1), op("cast", load(2, 1, dtype=DType.I64), dtype=DType.U8)),
    ]
    made = nest([F32, DType.BF16, DType.I64, DType.BOOL, DType.I64, DType.F16, DType.U8], (n,), (), body)
    outputs = [torch.zeros(n, dtype=t) for t in (torch.bool, torch.int64, torch.float16, torch.uint8)]
    check(made, isa, [a, b, c], *outputs)


@ISAS
@pytest.mark.parametrize("dtype", [DType.BOOL, DType.U8, DType.I8, DType.I16, DType.I32, DType.I64], ids=str)
def test_small_integers(dtype: DType, isa: Isa) -> None:
    for n in (7, 64, 131):
        name = "xor" if dtype is DType.BOOL else "sub"
        expr = op(name, load(0, 1, dtype=dtype), load(1, 1, dtype=dtype))
        inputs = [_drawn([n], dtype), _drawn([n], dtype, 1)]
        check(pointwise([dtype] * 3, (n,), expr), isa, inputs, torch.zeros(n, dtype=TORCH_DTYPE[dtype]))


@ISAS
def test_masked_load_is_padding(isa: Isa) -> None:
    # constant_pad of f32[6, 21] by (2, 3) and (1, 1)
    inside = op(
        "and",
        op("and", op("ge", Position(0), const(1, DType.I64), dtype=DType.BOOL),
           op("lt", Position(0), const(7, DType.I64), dtype=DType.BOOL)),
        op("and", op("ge", Position(1), const(2, DType.I64), dtype=DType.BOOL),
           op("lt", Position(1), const(23, DType.I64), dtype=DType.BOOL)),
    )  # fmt: skip
    x = Load(0, Index(-23, (21, 1)), F32, inside, const(-1.5))
    check(pointwise([F32, F32], (8, 26), x), isa, [_drawn([6, 21])], torch.zeros(8, 26))


@ISAS
def test_masked_store(isa: Isa) -> None:
    n = 77
    keep = op("gt", load(0, 1), const(0.0), dtype=DType.BOOL)
    made = nest([F32, F32], (n,), (), [Store(1, at(1), load(0, 1), keep)])
    check(made, isa, [_drawn([n])], torch.full((n,), 9.0))


@ISAS
def test_in_place(isa: Isa) -> None:
    made = nest([F32], (75,), (), [Store(0, at(1), op("exp", load(0, 1)))])
    check(made, isa, [], _drawn([75]))


# --- gathers


def _embedding(rows: int, width: int, count: int, wraps: bool = False) -> Nest:
    place = Gather(load(1, 1, 0, dtype=DType.I64), width, rows, wraps)
    return nest(
        [F32, DType.I64, F32], (count, width), (), [Store(2, at(width, 1), Load(0, Index(0, (0, 1), (place,)), F32))]
    )


@ISAS
def test_gather_of_rows(isa: Isa) -> None:
    place = torch.randint(0, 50, (23,), generator=torch.Generator().manual_seed(3))
    check(_embedding(50, 40, 23), isa, [_drawn([50, 40]), place], torch.zeros(23, 40))
    check(_embedding(50, 40, 23, wraps=True), isa, [_drawn([50, 40]), place - 50], torch.zeros(23, 40))


@ISAS
@pytest.mark.parametrize("bad", [50, -1, 2**40])
def test_a_place_out_of_range_is_refused(bad: int, isa: Isa) -> None:
    place = torch.zeros(23, dtype=torch.int64)
    place[17] = bad
    kernel = emit_nest(_embedding(50, 40, 23), isa)
    assert run(kernel, isa, [_drawn([50, 40]), place, torch.zeros(23, 40)]) == FAILED


@ISAS
@pytest.mark.parametrize("dtype", [DType.F32, DType.I64, DType.BF16, DType.U8], ids=str)
def test_gather_of_elements(dtype: DType, isa: Isa) -> None:
    n = 83
    place = torch.randint(-31, 31, (n,), generator=torch.Generator().manual_seed(3))
    gather = Gather(load(1, 1, dtype=DType.I64), 3, 31, True)
    made = nest([dtype, DType.I64, dtype], (n,), (), [Store(2, at(1), Load(0, Index(2, (0,), (gather,)), dtype))])
    check(made, isa, [_drawn([96], dtype), place], torch.zeros(n, dtype=TORCH_DTYPE[dtype]))
    place[n - 1] = 31
    kernel = emit_nest(made, isa)
    assert run(kernel, isa, [_drawn([96], dtype), place, torch.zeros(n, dtype=TORCH_DTYPE[dtype])]) == FAILED


@ISAS
def test_a_masked_gather_does_not_look(isa: Isa) -> None:
    n = 45
    place = torch.arange(n) - 7
    index = load(1, 1, dtype=DType.I64)
    fits = op(
        "and",
        op("ge", index, const(0, DType.I64), dtype=DType.BOOL),
        op("lt", index, const(30, DType.I64), dtype=DType.BOOL),
    )
    expr = Load(0, Index(0, (0,), (Gather(index, 1, 30),)), F32, fits, const(5.0))
    check(nest([F32, DType.I64, F32], (n,), (), [Store(2, at(1), expr)]), isa, [_drawn([30]), place], torch.zeros(n))


@ISAS
def test_scatter_adds_in_order(isa: Isa) -> None:
    rows, width = 40, 19
    place = torch.randint(0, 6, (rows,), generator=torch.Generator().manual_seed(4))
    gather = Gather(load(1, 1, 0, dtype=DType.I64), width, 6)
    body = [Store(2, Index(0, (0, 1), (gather,)), load(0, width, 1), mode="add")]
    made = nest([F32, DType.I64, F32], (rows, width), (), body, ordered=True)
    kernel = emit_nest(made, isa)
    assert kernel.items == 1
    x, out, want = _drawn([rows, width]), torch.ones(6, width), torch.ones(6, width)
    assert run(kernel, isa, [x, place, out]) == 0
    for row, target in enumerate(place.tolist()):
        want[target] += x[row]
    assert torch.equal(out, want)


@ISAS
def test_scatter_of_elements(isa: Isa) -> None:
    n = 37
    place = torch.randperm(n, generator=torch.Generator().manual_seed(5))
    body = [Store(2, Index(0, (0,), (Gather(load(1, 1, dtype=DType.I64), 1, n),)), load(0, 1))]
    check(nest([F32, DType.I64, F32], (n,), (), body), isa, [_drawn([n]), place], torch.zeros(n))


# --- reductions


@pytest.mark.spread(6)
@ISAS
@pytest.mark.parametrize("kind", ["sum", "max", "argmin"])
def test_rows_of_every_length(kind: str, isa: Isa) -> None:
    for n in (1, 2, 5, 8, 15, 16, 17, 33, 47, 63, 64, 65, 200, 1023, 5000, 70001):
        rows = 1 if n > 1000 else 3
        out = torch.zeros(rows, dtype=torch.int64 if kind == "argmin" else torch.float32)
        check(reduce_rows(kind, rows, n), isa, [_drawn([rows, n])], out, tolerance=1e-4 if n > 1000 else 1e-5)


@pytest.mark.spread(24)
@ISAS
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin", "argmax_element", "argmin_element"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I64, DType.I32, DType.U8], ids=str)
def test_rows_and_columns(kind: str, dtype: DType, isa: Isa) -> None:
    for rows, columns in ((5, 43), (40, 7), (3, 300)):
        x = _drawn([rows, columns], dtype)
        out = torch.int64 if kind in POSITIONS else TORCH_DTYPE[dtype]
        check(reduce_rows(kind, rows, columns, dtype), isa, [x], torch.zeros(rows, dtype=out), tolerance=1e-5)
        check(reduce_columns(kind, rows, columns, dtype), isa, [x], torch.zeros(columns, dtype=out), tolerance=1e-5)


@ISAS
@pytest.mark.parametrize("kind", ["any", "all"])
def test_any_and_all(kind: str, isa: Isa) -> None:
    for n in (1, 5, 64, 131):
        x = torch.zeros(4, n, dtype=torch.bool) if kind == "any" else torch.ones(4, n, dtype=torch.bool)
        x[1, n - 1] = x[2, 0] = kind == "any"
        check(reduce_rows(kind, 4, n, DType.BOOL), isa, [x], torch.zeros(4, dtype=torch.bool))
        check(reduce_columns(kind, 4, n, DType.BOOL), isa, [x], torch.zeros(n, dtype=torch.bool))


@ISAS
@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin", "argmax_element", "argmin_element"])
def test_ties_nan_and_infinities(kind: str, isa: Isa) -> None:
    n = 150
    x = torch.zeros(8, n)
    x[1, 70] = x[1, 20] = math.nan
    x[2] = -math.inf
    x[3] = math.inf
    x[4, [3, 99, 140]] = 5.0
    x[5, [3, 99, 140]] = -5.0
    x[6] = math.nan
    x[7, n - 1] = math.nan
    name = kind.removesuffix("_element")
    want = getattr(torch, name if name.startswith("arg") else f"a{name}")(x, dim=1)
    if kind != name:
        want = x.gather(1, want[:, None])[:, 0]
    out = torch.zeros_like(want)
    assert run(emit_nest(reduce_rows(kind, 8, n), isa), isa, [x, out]) == 0
    torch.testing.assert_close(out, want, equal_nan=True, rtol=0, atol=0)
    across = torch.zeros_like(want)
    assert run(emit_nest(reduce_columns(kind, n, 8), isa), isa, [x.T.contiguous(), across]) == 0
    torch.testing.assert_close(across, want, equal_nan=True, rtol=0, atol=0)


@ISAS
@pytest.mark.parametrize("is_up", [True, False])
@pytest.mark.parametrize("n", [2, 15, 64, 150])
def test_of_equal_zeros_the_first_one_is_the_extreme(is_up: bool, n: int, isa: Isa) -> None:
    x = torch.zeros(8, n).copysign(_drawn([8, n]))

    kinds: tuple[ReduceKind, ReduceKind] = ("argmax", "argmax_element") if is_up else ("argmin", "argmin_element")
    for strides, given in (((n, 1), x), ((1, 8), x.T.contiguous())):
        body: list[Statement] = [Reduce(kind, kind, load(0, *strides), F32) for kind in kinds]
        body += [Store(1, at(1, 0), Ref(kinds[0], DType.I64)), Store(2, at(1, 0), Ref(kinds[1], F32))]
        places, elements = torch.ones(8, dtype=torch.int64), torch.ones(8)
        kernel = emit_nest(nest([F32, DType.I64, F32], (8,), (n,), body), isa)
        assert run(kernel, isa, [given, places, elements]) == 0
        assert not places.any()
        assert torch.equal(elements.signbit(), x[:, 0].signbit()) and not elements.any()


@ISAS
def test_several_inner_loops(isa: Isa) -> None:
    # Mean over (0, 2) of f32[9, 4, 25], and of f32[600, 2, 3] where the blocks of sums matter.
    for a, b, c in ((9, 4, 25), (600, 2, 3), (3, 50, 700)):
        reduce = Reduce("s", "sum", load(0, c, b * c, 1), F32)
        made = nest([F32, F32], (b,), (a, c), [reduce, Store(1, at(1, 0, 0), op("div", Ref("s", F32), const(a * c)))])
        check(made, isa, [_drawn([a, b, c])], torch.zeros(b), tolerance=1e-5)


@ISAS
def test_argmax_over_two_loops_counts_row_major(isa: Isa) -> None:
    reduce = Reduce("r", "argmax", load(0, 5, 35, 1), F32)
    made = nest([F32, DType.I64], (7,), (6, 5), [reduce, Store(1, at(1, 0, 0), Ref("r", DType.I64))])
    check(made, isa, [_drawn([6, 7, 5])], torch.zeros(7, dtype=torch.int64))


@ISAS
@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (7, 64), (2, 128), (5, 1000), (1, 5000)], ids=str)
def test_softmax_and_layer_norm(sizes: tuple[int, int], isa: Isa) -> None:
    x, w = _drawn(sizes), _drawn([sizes[1]], seed=1)
    check(softmax(*sizes), isa, [x], torch.zeros(sizes))
    check(layer_norm(*sizes), isa, [x, w], torch.zeros(sizes), tolerance=2e-5)


@ISAS
@pytest.mark.parametrize("dtype", [F32, DType.F64], ids=str)
@pytest.mark.parametrize("n", [5, 64, 1000])
def test_rows_of_scratch_lie_apart(n: int, dtype: DType, isa: Isa) -> None:
    """Two rows of values that later passes read again."""
    e, t = op("exp", load(0, n, 1, dtype=dtype)), op("tanh", load(1, n, 1, dtype=dtype))
    total = [op("div", part, Ref(name, dtype)) for part, name in ((e, "r"), (t, "s"))]
    body = [Let("e", e), Let("t", t), Reduce("r", "sum", e, dtype), Reduce("s", "max", t, dtype)]
    made = nest([dtype] * 3, (3,), (n,), [*body, Store(2, at(n, 1), op("sub", *total))])
    x, y = _drawn([3, n], dtype), _drawn([3, n], dtype, 1)
    check(made, isa, [x, y], torch.zeros(3, n, dtype=x.dtype))
    assert emit_nest(made, isa).scratch_nbytes >= 2 * n * dtype.itemsize


@ISAS
def test_softmax_of_columns_keeps_lanes_apart(isa: Isa) -> None:
    n, columns = 30, 75
    x = load(0, 1, columns)
    e = op("exp", op("sub", x, Ref("m", F32)))
    body = [Reduce("m", "max", x, F32), Reduce("s", "sum", e, F32)]
    made = nest([F32, F32], (columns,), (n,), [*body, Store(1, at(1, columns), op("div", e, Ref("s", F32)))])
    check(made, isa, [_drawn([n, columns])], torch.zeros(n, columns))


@ISAS
def test_softmax_of_half_floats(isa: Isa) -> None:
    for dtype in (DType.BF16, DType.F16):
        x = _drawn([4, 77], dtype)
        check(softmax(4, 77, dtype), isa, [x], torch.zeros(4, 77, dtype=x.dtype), tolerance=1e-2)


@ISAS
def test_inputs_written_in_place_are_read_once(isa: Isa) -> None:
    rows, n = 4, 70
    x = load(0, n, 1)
    body = [Reduce("s", "sum", x, F32), Store(0, at(n, 1), op("sub", x, Ref("s", F32)))]
    check(nest([F32], (rows,), (n,), body), isa, [], _drawn([rows, n]), tolerance=1e-5)


def test_sums_are_as_exact_as_eagers() -> None:
    isa = machine_isas()[0]
    generator = torch.Generator().manual_seed(7)
    for rows, columns in ((1, 1 << 20), (1 << 14, 16), (1024, 768), (100000, 17)):
        x = torch.rand((rows, columns), generator=generator)
        for dim, made in ((1, reduce_rows("sum", rows, columns)), (0, reduce_columns("sum", rows, columns))):
            out = torch.zeros(rows if dim == 1 else columns)
            assert run(emit_nest(made, isa), isa, [x, out]) == 0
            exact = x.double().sum(dim)
            ours = float((out.double() - exact).square().mean().sqrt())
            eagers = float((x.sum(dim).double() - exact).square().mean().sqrt())
            ulp = float(exact.max()) * 2.0**-23
            assert ours <= 1.5 * eagers + ulp, (rows, columns, dim, ours, eagers)


# --- scans


@ISAS
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_scans(kind: str, isa: Isa) -> None:
    for outer_strides, inner_stride, outer, inner in ((50, 1, 4, 50), (1, 40, 40, 9)):
        x = load(0, outer_strides, inner_stride)
        scan = Scan("c", kind, x, F32)  # type: ignore[arg-type]
        body = [scan, Store(1, at(outer_strides, inner_stride), op("mul", Ref("c", F32), const(2.0)))]
        made = nest([F32, F32], (outer,), (inner,), body)
        check(made, isa, [_drawn([outer * inner])], torch.zeros(outer * inner), tolerance=1e-5)


@ISAS
def test_a_scan_read_by_a_later_pass(isa: Isa) -> None:
    x = load(0, 20, 1)
    body = [
        Scan("c", "sum", x, F32),
        Reduce("m", "max", Ref("c", F32), F32),
        Store(1, at(20, 1), op("sub", Ref("c", F32), Ref("m", F32))),
    ]
    check(nest([F32, F32], (5,), (20,), body), isa, [_drawn([5, 20])], torch.zeros(5, 20), tolerance=1e-5)


# --- the rest


def test_contiguous_loops_become_one() -> None:
    made = simplify_nest(pointwise([F32, F32], (8, 16, 32), op("neg", load(0, *contiguous((8, 16, 32))))))
    assert made.outer == (4096,) and made.inner == ()


def test_nests_of_one_structure_have_one_text() -> None:
    isa = machine_isas()[0]
    made = [emit_nest(softmax(rows, n), isa) for rows, n in ((512, 4096), (64, 8192))]
    assert made[0].source == made[1].source and made[0].words != made[1].words


def test_division_by_zero_is_refused() -> None:
    expr = op("floordiv", load(0, 1, dtype=DType.I64), load(1, 1, dtype=DType.I64))
    made = pointwise([DType.I64] * 3, (21,), expr)
    for isa in machine_isas():
        a, b, out = torch.arange(21), torch.arange(1, 22), torch.zeros(21, dtype=torch.int64)
        assert run(emit_nest(made, isa), isa, [a, b, out]) == 0
        assert torch.equal(out, a // b)
        b[20] = 0
        assert run(emit_nest(made, isa), isa, [a, b, out]) == FAILED


def test_what_has_no_code_is_told() -> None:
    made = pointwise([F32, F32], (4,), op("lgamma", load(0, 1)))
    isa = machine_isas()[0]
    assert unsupported(made, isa) == "there is no vector code for lgamma of f32"
    with pytest.raises(InternalError, match="lgamma"):
        emit_nest(made, isa)


def test_text_is_legal_for_neon() -> None:
    llvm = pytest.importorskip("llvmlite.binding")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM has no AArch64")
    machine = target.create_target_machine(cpu=NEON.cpu, features=NEON.features, opt=2, reloc="pic", codemodel="small")
    expr: Expr = op("gelu", load(0, 1))
    nests = [softmax(5, 77), layer_norm(5, 77), reduce_rows("argmax", 3, 50), pointwise([F32, F32], (99,), expr)]
    nests += [_embedding(50, 40, 23), nest([F32, F32], (37, 50), (), [Store(1, at(50, 1), load(0, 1, 37))])]
    for made in nests:
        module = llvm.parse_assembly(emit_nest(made, NEON).source.text)
        module.verify()
        code = machine.emit_object(module)
        assert code[:4] == b"\x7fELF"
        assert b"fmaf\0" not in code and b"expf\0" not in code


@ISAS
def test_rows_too_long_for_scratch_are_computed_again(isa: Isa) -> None:
    check(softmax(2, 200_003), isa, [_drawn([2, 200_003])], torch.zeros(2, 200_003))
    assert emit_nest(softmax(2, 200_003), isa).scratch_nbytes == 0
    assert emit_nest(softmax(2, 2003), isa).scratch_nbytes > 0


@pytest.mark.spread(3)
@ISAS
def test_a_chain_longer_than_pythons_stack(isa: Isa) -> None:
    body: list[Let | Store] = [Let("v0", load(0, 1))]
    for k in range(1500):
        body.append(Let(f"v{k + 1}", op("max", op("neg", Ref(f"v{k}", F32)), const(-0.5))))
    made = nest([F32, F32], (37,), (), [*body, Store(1, at(1), Ref("v1500", F32))])
    check(made, isa, [_drawn([37])], torch.zeros(37))


@pytest.mark.spread(4)
@ISAS
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_a_long_chain_are_called(isa: Isa, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is there once for vectors, whole or masked, and single elements; the bits are those of ones written out."""
    names = ("sigmoid", "tanh", "gelu", "sin") * 12
    expr: Expr = load(0, 1, dtype=dtype)
    for name in names:
        expr = op(name, op("mul", expr, const(1.5, dtype)))
    made, x = pointwise([dtype, dtype], (77,), expr), _drawn([77], dtype)
    results = []
    for is_called in (True, False):
        if not is_called:
            monkeypatch.setattr(nest_frame, "calls_functions", lambda graph: False)
        nest_ir._emitted.cache_clear()
        kernel = emit_nest(made, isa)
        results.append(torch.zeros_like(x))
        assert run(kernel, isa, [x, results[-1]]) == 0
        defined = [line for line in kernel.source.text.splitlines() if line.startswith("define internal")]
        for name in set(names):
            found = sum(f" @{name}." in line for line in defined)
            assert found in (1, 2) if is_called else found == 0
            assert kernel.source.text.count(f" @{name}.") == (24 + found if is_called else 0)
    nest_ir._emitted.cache_clear()
    assert torch.equal(results[0].view(torch.uint8), results[1].view(torch.uint8))


def test_functions_side_by_side_are_written_out() -> None:
    total: Expr = load(0, 1)
    for k in range(40):
        total = op("add", total, op("gelu", op("mul", load(0, 1), const(k + 1.0))))
    made = pointwise([F32, F32], (77,), total)
    assert "define internal" not in emit_nest(made, machine_isas()[0]).source.text


def test_llvm_sees_no_counter_but_of_windows() -> None:
    """The next value of each counter is frozen, so that LLVM looks for no other way to step through the loops."""
    isa = machine_isas()[0]
    for made in (pointwise((F32, F32), (7, 40), op("exp", load(0, 40, 1))), softmax(5, 40)):
        text = emit_nest(made, isa).source.text
        assert text.count("phi i64") == text.count("= freeze i64") > 0
    window = [Reduce("s", "sum", load(0, 2, 32, 1), F32), Store(1, at(1, 0, 0), Ref("s", F32))]
    assert "freeze" not in emit_nest(nest((F32, F32), (16,), (2, 2), window), isa).source.text
