"""Steps on loops of nests: random ones against the kernel as it is; what keeps the order, bit for bit; refusals."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
import torch

from smelt.codegen.kernels.nest import Gather, Index, Load, Nest, Op, Position, Reduce, Ref, Scan, Store
from smelt.codegen.llvm.isa import AVX2, Isa
from smelt.codegen.llvm.nests.nest_ir import emit_nest, emit_nests, loops_text, simplify_nest
from smelt.diag import ScheduleError
from smelt.diag.loops import LoopStep, Parallel, Tile, Unroll, Vectorize
from smelt.ir import DType
from tests.kernels.directed import legal
from tests.kernels.machine import machine_isas
from tests.kernels.nests import F32, at, const, layer_norm, load, nest, op, pointwise, reduce_rows, run, softmax
from tests.kernels.test_nest_emission_fuzz import Fuzz

ISAS = pytest.mark.parametrize("isa", machine_isas(), ids=lambda isa: isa.name)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _bits(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [t.contiguous().view(torch.uint8) for t in tensors]


def _answers(made: Nest, isa: Isa, given: Sequence[torch.Tensor], steps: Sequence[LoopStep] = ()) -> list[torch.Tensor]:
    """What a kernel with steps gives, its items in parts that run from the last to the first."""
    (kernel,) = emit_nests(made, isa, steps)
    tensors = [t.clone() for t in given]
    points = sorted({0, kernel.items // 3, kernel.items // 2, kernel.items - 1, kernel.items})
    assert run(kernel, isa, tensors, list(pairwise(points))[::-1]) == 0
    return tensors


def _compare(seed: int, tries: int) -> int:
    """One random nest with random steps, on every instruction set; how many times there were any."""
    source, count = random.Random(seed), 0
    fuzz = Fuzz(seed)
    made = fuzz.nest()
    for isa in machine_isas():
        plain = emit_nest(made, isa)
        want = [t.clone() for t in fuzz.tensors]
        code = run(plain, isa, want)
        for _ in range(tries):
            steps = legal(source, made, isa, simplify_nest(made))
            (kernel,) = emit_nests(made, isa, steps)
            got = [t.clone() for t in fuzz.tensors]
            assert run(kernel, isa, got, [(k, k + 1) for k in reversed(range(kernel.items))]) == code
            count += bool(steps)
            for k in made.writes if not code else ():
                # The numbers are exact in every dtype, and so is each sum in any order.
                note = f"seed {seed} {isa.name} {steps}\n{loops_text(made, isa, steps)}"
                assert torch.allclose(want[k].double(), got[k].double(), rtol=1e-5, atol=1e-5, equal_nan=True), note
    return count


def test_random_steps_on_random_nests() -> None:
    assert sum(_compare(seed, 1) for seed in range(14)) > 10 * len(machine_isas())


@pytest.mark.nightly
def test_many_random_steps() -> None:
    assert sum(_compare(seed, 3) for seed in range(1000, 1200)) > 400 * len(machine_isas())


# --- the order of operations stays


def _transpose(rows: int, columns: int) -> Nest:
    expr = op("add", load(0, 1, rows), op("exp", load(1, columns, 1)))
    return nest([F32] * 3, (rows, columns), (), [Store(2, at(columns, 1), expr)])


def _windows(rows: int, columns: int) -> Nest:
    total = Reduce("s", "sum", op("mul", load(0, columns + 4, 1, columns + 4, 1), const(0.3)), F32)
    return nest([F32, F32], (rows, columns), (3, 3), [total, Store(1, at(columns, 1, 0, 0), Ref("s", F32))])


def _running(rows: int, n: int) -> Nest:
    body = [Scan("c", "sum", load(0, n, 1), F32), Store(1, at(n, 1), Ref("c", F32))]
    return nest([F32, F32], (rows,), (n,), body)


_ROWS: list[tuple[LoopStep, ...]] = [(Tile(0, "i0", 8), Unroll(0, "i0", 3)), (Parallel(0, "i0", 5),)]
_SAME: list[tuple[Nest, list[tuple[LoopStep, ...]]]] = [
    (_transpose(70, 133), [
        (Tile(0, "i1", 48), Tile(0, "i0", 32)), (Tile(0, "i0", 20),),
        (Parallel(0, "i0"), Parallel(0, "i1", 16)), (Tile(0, "i0", 24), Parallel(0, "i0")),
        (Vectorize(0, "i0"), Unroll(0, "i1", 5)), (Vectorize(0, "i1", 4), Tile(0, "i1", 12)), (Vectorize(0, "i1", 1),),
        (Tile(0, "i0", 7), Unroll(0, "i0", 3)),
    ]),
    (softmax(37, 150), _ROWS),
    (layer_norm(37, 75), _ROWS),
    (_windows(9, 40), [
        (Unroll(0, "j0"),), (Unroll(0, "j0"), Unroll(0, "j1")), (Unroll(0, "j0", 2), Unroll(0, "i0", 2)),
        (Tile(0, "i0", 4), Tile(0, "i1", 16), Unroll(0, "j1", 2)),
    ]),
    (_running(30, 65), [(Unroll(0, "j0", 4),), (Tile(0, "j0", 16),), (Vectorize(0, "i0", 4), Unroll(0, "j0", 2))]),
]  # fmt: skip


@pytest.mark.spread(10)
@ISAS
@pytest.mark.parametrize("case", _SAME, ids=["transpose", "softmax", "layer norm", "windows", "scan"])
def test_what_keeps_the_order_keeps_the_bits(case: tuple[Nest, list[tuple[LoopStep, ...]]], isa: Isa) -> None:
    made, ways = case
    torch.manual_seed(0)
    given = [torch.randn(20_000) for _ in made.buffers]
    want = _bits(_answers(made, isa, given))
    for steps in ways:
        for a, b in zip(want, _bits(_answers(made, isa, given, steps)), strict=True):
            assert torch.equal(a, b), loops_text(made, isa, steps)


@ISAS
def test_sums_in_another_order_are_as_exact(isa: Isa) -> None:
    n = 200_000
    made = reduce_rows("sum", 3, n)
    x = torch.rand(3, n)
    exact = x.double().sum(1)
    error = (_answers(made, isa, [x, torch.zeros(3)])[1].double() - exact).abs().max()
    for steps in (
        [Tile(0, "j0", 64)], [Tile(0, "j0", 1 << 16)], [Tile(0, "j0", n)], [Vectorize(0, "j0", 1)],
        [Vectorize(0, "j0", 2), Unroll(0, "j0", 8)], [Unroll(0, "j0", 2), Tile(0, "j0", 32)], [Vectorize(0, "i0", 2)],
    ):  # fmt: skip
        got = _answers(made, isa, [x, torch.zeros(3)], steps)[1].double()
        assert (got - exact).abs().max() <= 4 * error + 1e-6 * exact.max(), loops_text(made, isa, steps)


def test_a_step_that_is_no_change_leaves_the_text() -> None:
    made = softmax(16, 64)
    assert emit_nests(made, AVX2, ())[0] is emit_nests(made, AVX2)[0]


# --- what is refused

_SCATTER = nest(
    [F32, DType.I64, F32], (50, 8), (),
    [Store(2, Index(0, (0, 1), (Gather(load(1, 1, 0, dtype=DType.I64), 8, 9),)), load(0, 8, 1), None, "add")],
    ordered=True,
)  # fmt: skip
_FIRST = nest(
    [F32, DType.I64], (20,), (6, 7),
    [Reduce("r", "argmax", Load(0, Index(0, (50, 8, 1)), F32), F32), Store(1, at(1, 0, 0), Ref("r", DType.I64))],
)  # fmt: skip
_MAP = pointwise([F32, F32], (64, 100), op("add", load(0, 100, 1), Op("cast", (Position(0),), F32)))
_REFUSED: list[tuple[Nest, tuple[LoopStep, ...], str]] = [
    (_MAP, (Tile(0, "k", 4),), "no loop 'k'"),
    (_MAP, (Tile(0, "j0", 4),), "no loop 'j0'"),
    (_MAP, (Tile(0, "i0", 0),), "cannot have 0"),
    (_MAP, (Tile(0, "i0", 4), Tile(0, "i0", 2)), "tiled again"),
    (_MAP, (Tile(0, "i1", 20),), "no multiple"),
    (_MAP, (Parallel(0, "i0", 4), Tile(0, "i0", 2)), "spread over threads already"),
    (_MAP, (Tile(0, "i0", 4), Parallel(0, "i0", 2)), "its tiles are the work items"),
    (_MAP, (Parallel(0, "i1", 12),), "no multiple"),
    (_MAP, (Vectorize(0, "i1", 3),), "no vectors of 3"),
    (_MAP, (Vectorize(0, "i1", 16),), "no vectors of 16"),
    (_MAP, (Vectorize(0, "i1", 8), Vectorize(0, "i0", 8)), "vectorized again"),
    (_MAP, (Unroll(0, "i1", 3),), "power of two"),
    (_MAP, (Unroll(0, "i1", 16),), "fewer iterations than these vectors"),
    (_MAP, (Unroll(0, "i0", 65),), "it has 64 iterations"),
    (_MAP, (Unroll(0, "i0"), Unroll(0, "i1", 2)), "128 bodies"),
    (_MAP, (Tile(0, "i0", 2), Unroll(0, "i0", 4)), "a tile of it has 2 iterations"),
    (_MAP, (Parallel(0, "i0"), Unroll(0, "i0", 2)), "both unrolled and spread"),
    (_MAP, (Unroll(0, "i0", 1),), "cannot have 1"),
    (softmax(16, 64), (Parallel(0, "j0"),), "combined for each point"),
    (_running(16, 64), (Vectorize(0, "j0"),), "carries a scan"),
    (_windows(16, 16), (Vectorize(0, "j0"),), "along the innermost"),
    (_FIRST, (Tile(0, "j1", 2),), "first of equal elements"),
    (_SCATTER, (Tile(0, "i0", 2),), "in order"),
    (_SCATTER, (Parallel(0, "i0"),), "in order"),
    (_SCATTER, (Vectorize(0, "i0"),), "in order"),
]  # fmt: skip


@pytest.mark.parametrize("case", _REFUSED, ids=lambda case: case[2])
def test_what_cannot_be_is_refused_with_a_reason(case: tuple[Nest, tuple[LoopStep, ...], str]) -> None:
    made, steps, told = case
    with pytest.raises(ScheduleError) as caught:
        emit_nests(made, AVX2, steps)
    assert caught.value.code == "S0614" and caught.value.fix
    assert told in f"{caught.value.what}: {caught.value.why}"
    emit_nests(made, AVX2, steps[:-1])


def test_points_in_order_may_be_unrolled() -> None:
    (kernel,) = emit_nests(_SCATTER, AVX2, [Unroll(0, "i0", 4)])
    assert kernel.items == 1
    isa = machine_isas()[0]
    places = torch.randint(0, 9, (50,))
    given = [torch.randn(50, 8), places, torch.zeros(9, 8)]
    for a, b in zip(_answers(_SCATTER, isa, given), _answers(_SCATTER, isa, given, [Unroll(0, "i0", 4)]), strict=True):
        assert torch.equal(a, b)
