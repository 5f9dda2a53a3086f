"""Nests whose sizes are known at run time only, on both sides of every threshold that known sizes are told apart by.

Each graph is made once and run at other sizes beside eager and float64; made again there it must be the same kernels
and words (`nest_harness.check`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from smelt.codegen.llvm.isa import Isa, host_isa
from smelt.ir import DType, Value
from smelt.ir.sizes import Evaluation
from tests.kernels.machine import machine_isas
from tests.symbolic.nest_harness import Lowered, Make, Sheet, Sizes, check, draw, lower

pytestmark = pytest.mark.skipif(host_isa() is None, reason="there are no own kernels for this machine")


def at(*pairs: tuple[int, int]) -> list[Sizes]:
    return [{"B": b, "S": s} for b, s in pairs]


# Rows shorter than a vector, of whole vectors, of one more, of several at once, and long enough for blocks.
ROWS = at((3, 5), (2, 2), (40, 16), (3, 17), (2, 63), (2, 64), (2, 65), (5, 200), (2, 1025), (2, 5000))


def relu(s: Sheet, z: Sizes) -> Sequence[Value]:
    shape = (z["B"], z["S"])
    return [s.add("relu.default", s.add("add.Tensor", s.input(*shape), s.input(*shape[1:]), to=shape), to=shape)]


def softmax(s: Sheet, z: Sizes) -> Sequence[Value]:
    shape = (z["B"], z["S"])
    return [s.add("softmax.int", s.input(*shape), -1, to=shape)]


def norm(s: Sheet, z: Sizes) -> Sequence[Value]:
    shape = (z["B"], z["S"])
    return [s.add("layer_norm.default", s.input(*shape), shape[1:], s.input(*shape[1:]), None, 1e-5, to=shape)]


def rows(s: Sheet, z: Sizes) -> Sequence[Value]:
    return [s.add("sum.dim_IntList", s.input(z["B"], z["S"]), (1,), False, to=(z["B"],))]


def columns(s: Sheet, z: Sizes) -> Sequence[Value]:
    return [s.add("mean.dim", s.input(z["S"], z["B"]), (0,), True, to=(1, z["B"]))]


def scan(s: Sheet, z: Sizes) -> Sequence[Value]:
    shape = (z["B"], z["S"])
    return [s.add("cumsum.default", s.input(*shape), 1, to=shape)]


def turned(s: Sheet, z: Sizes) -> Sequence[Value]:
    x = s.input(z["B"], z["S"])
    y = s.add("transpose.int", x, 0, 1, to=(z["S"], z["B"]))
    return [s.add("mul.Scalar", y, 3.0, to=(z["S"], z["B"]))]


def joined(s: Sheet, z: Sizes) -> Sequence[Value]:
    """Parts of one free size each and of a known one, along rows and across them."""
    b, n = z["B"], z["S"]
    parts = [s.input(b, n), s.input(b, 3), s.input(b, n + 1), s.input(b, 64), s.input(b, n)]
    rows = s.add("cat.default", tuple(parts), 1, to=(b, 3 * n + 68))
    lines = tuple(s.add("relu.default", s.input(b, n), to=(b, n)) for _ in range(4))
    return [s.add("neg.default", rows, to=(b, 3 * n + 68)), s.add("cat.default", lines, 0, to=(4 * b, n)),
            s.add("stack.default", lines, 1, to=(b, 4, n))]  # fmt: skip


def test_joins_of_every_length() -> None:
    made = check(joined, at((40, 64))[0], ROWS)
    assert made.trace.guards == []
    check(joined, at((2, 3))[0], [*ROWS, *at((40, 64))])


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("make", "hint"),
    [*((make, (4, 64)) for make in (relu, softmax, norm, rows, columns, scan)), (softmax, (3, 5)), (rows, (3, 5))],
)
def test_rows_of_every_length(make: Make, hint: tuple[int, int]) -> None:
    assert check(make, at(hint)[0], ROWS).trace.guards == []


@pytest.mark.spread(3)
@pytest.mark.parametrize("isa", machine_isas()[1:], ids=lambda isa: isa.name)
@pytest.mark.parametrize("make", [relu, softmax, rows, turned], ids=lambda make: make.__name__)
def test_other_instruction_sets(make: Make, isa: Isa) -> None:
    check(make, at((4, 64))[0], [*ROWS, *at((17, 33))], isa=isa)


@pytest.mark.spread(2)
@pytest.mark.parametrize("make", [relu, softmax, norm, rows, columns, scan, turned], ids=lambda make: make.__name__)
def test_sizes_that_may_be_one(make: Make) -> None:
    check(make, {"B": 4, "S": 1}, at((1, 1), (1, 7), (7, 1), (3, 40)), low=1)


def test_transposes_in_squares_and_without() -> None:
    check(turned, at((3, 40))[0], at((40, 3), (2, 2), (16, 16), (17, 33), (64, 100), (15, 16)))


def test_ranges_leave_out_what_they_exclude() -> None:
    """Short rows need no blocks and long ones no lanes across them."""
    both = len(lower(softmax, {"B": 4, "S": 64}).symbols)
    short = len(lower(softmax, {"B": 4, "S": 64}, high=512).symbols)
    long = len(lower(softmax, {"B": 100, "S": 100}, low=100).symbols)
    assert both > short > 1
    assert both > long
    check(softmax, {"B": 4, "S": 64}, at((512, 2), (2, 512)), high=512)


# --- sums


@pytest.mark.parametrize("make", [rows, columns], ids=lambda make: make.__name__)
@pytest.mark.parametrize("hint", [8, 70_000])
def test_sums_add_in_the_order_of_known_sizes(make: Make, hint: int) -> None:
    """No block, one level of blocks, two: the very bits of a nest of these sizes."""
    made = lower(make, {"B": 20, "S": hint})
    for n in (3, 64, 65, 1000, 1025, 4097, 70_000):
        sizes = {"B": 20, "S": n}
        tensors = draw(made, sizes)
        known = lower(_known(make, sizes), {})
        assert torch.equal(made.run(sizes, tensors)[0], known.run({}, tensors)[0]), n


def _known(make: Make, sizes: Sizes) -> Make:
    return lambda sheet, none: make(sheet, sizes)


@pytest.mark.parametrize("make", [rows, columns], ids=lambda make: make.__name__)
@pytest.mark.parametrize("hint", [8, 200_000])
def test_long_sums_lose_no_more_than_in_blocks(make: Make, hint: int) -> None:
    """Of numbers that are all positive: one chain of so many additions would be off by hundreds of roundings."""
    made = lower(make, {"B": 2, "S": hint})
    for n in (60, 5000, 200_000):
        tensors = [t.abs() + 0.1 for t in draw(made, {"B": 2, "S": n})]
        (got,) = made.run({"B": 2, "S": n}, tensors)
        (exact,) = made.eager({"B": 2, "S": n}, [t.double() for t in tensors])
        assert float(((got - exact) / exact).abs().max()) <= 16 * torch.finfo(torch.float32).eps


def test_sums_over_two_loops() -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        x = s.input(3, z["B"], 5, z["S"])
        return [s.add("sum.dim_IntList", x, (1, 3), False, to=(3, 5)), s.add("amax.default", x, (1, 3), to=(3, 5))]

    check(make, at((4, 8))[0], at((2, 2), (9, 70), (300, 2), (2, 3000)))


# --- a reduction of few points, for several threads


def total(s: Sheet, z: Sizes) -> Sequence[Value]:
    return [s.add("sum.default", s.input(z["B"], z["S"]), to=())]


def test_a_whole_sum_is_a_plan_of_its_own_where_it_is_large() -> None:
    small, large = at((4, 64), (400, 100))
    check(total, small, at((2, 2), (100, 327)), outside=[large])
    check(total, large, at((512, 64), (333, 1009), (2, 16_384)), outside=[small])


@pytest.mark.parametrize("kind", ["prod.default", "amin.default", "all.default"])
def test_chunks_that_do_not_fill_the_row(kind: str) -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        x = s.input(z["S"], dtype=DType.BOOL if kind == "all.default" else DType.F32)
        if kind == "prod.default":
            x = s.add("add.Scalar", s.add("mul.Scalar", x, 1e-4, to=(z["S"],)), 1.0, to=(z["S"],))
        args = ((),) if kind == "amin.default" else ()
        return [s.add(kind, x, *args, to=(), dtype=DType.BOOL if kind == "all.default" else DType.F32)]

    check(make, {"S": 40_000}, [{"S": 40_001}, {"S": 65_536}, {"S": 100_003}], outside=[{"S": 32_767}])


def test_rows_that_may_be_few_are_not_cut_for_threads() -> None:
    make = lambda s, z: [s.add("sum.dim_IntList", s.input(z["B"], 40_000), (1,), False, to=(z["B"],))]  # noqa: E731
    assert check(make, {"B": 2}, [{"B": 3}, {"B": 9}]).trace.guards == []
    (one,) = lower(make, {"B": 3}, high=3).emitted
    assert len({id(stage) for stage, _ in one.kernels}) == 2


# --- sizes as numbers


@pytest.mark.spread(4)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.BF16, DType.F16])
def test_sizes_that_are_divided_by(dtype: DType) -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        x = s.input(z["B"], z["S"], dtype=dtype)
        mean = s.add("mean.dim", x, (1,), False, to=(z["B"],), dtype=dtype)
        var = s.add("var.correction", x, (1,), to=(z["B"],), dtype=dtype)
        scaled = s.add("mul.Scalar", x, 1.0 / z["S"] ** 0.5, to=(z["B"], z["S"]), dtype=dtype)
        moved = s.add("add.Tensor", x, scaled, alpha=z["S"], to=(z["B"], z["S"]), dtype=dtype)
        return [mean, var, scaled, moved]

    check(make, at((3, 7))[0], at((2, 3), (5, 300), (2, 2)))


def test_a_weight_that_says_how_to_round_is_a_guard() -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        return [s.add("lerp.Scalar", s.input(20), s.input(20), 1.0 / z["B"], to=(20,))]

    check(make, {"B": 5}, [{"B": 3}, {"B": 40}], outside=[{"B": 2}])
    check(make, {"B": 2}, [{"B": 2}], outside=[{"B": 3}])


def test_sizes_that_are_counted_with() -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        n, whole = z["S"], DType.I64
        count = s.add("arange.start_step", n, 3 * n, 2, to=(n,), dtype=whole)
        below = s.add("lt.Scalar", count, 2 * n, to=(n,), dtype=DType.BOOL)
        full = s.add("full.default", (n,), n, to=(n,), dtype=whole)
        kept = s.add("where.self", below, count, full, to=(n,), dtype=whole)
        rest = s.add("remainder.Scalar", kept, n, to=(n,), dtype=whole)
        short = s.add("add.Scalar", s.input(n, dtype=DType.I32), n, to=(n,), dtype=DType.I32)
        more = s.add("sub.Tensor", kept, rest, alpha=n, to=(n,), dtype=whole)
        return [more, s.add("sum.default", rest, to=(), dtype=whole), short]

    check(make, {"S": 12}, [{"S": 2}, {"S": 13}, {"S": 200}])


def test_triangles_and_eyes() -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        shape = (z["B"], z["S"])
        x = s.input(*shape)
        eye = s.add("eye.m", *shape, to=shape)
        return [s.add("tril.default", x, -1, to=shape), s.add("triu.default", x, 2, to=shape), eye]

    check(make, at((8, 8))[0], at((2, 9), (9, 2), (3, 40)))


# --- joins and cuts


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_joined(dim: int) -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        shape = (z["B"], z["S"], 20)
        new = [1 if d == dim else n for d, n in enumerate(shape)]
        same = [n + (d == dim) for d, n in enumerate(shape)]
        one = s.add("cat.default", (s.input(*shape), s.input(*new)), dim, to=same)
        last = [n + (m if d == dim else 0) for d, (n, m) in enumerate(zip(same, shape, strict=True))]
        return [s.add("neg.default", s.add("cat.default", (one, s.input(*shape)), dim, to=last), to=last)]

    check(make, at((4, 30))[0], at((2, 2), (5, 31), (2, 70)))


def test_cut() -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        b, n = z["B"], z["S"]
        x = s.add("mul.Scalar", s.input(b, n), 2.0, to=(b, n))
        parts = [
            s.add("slice.Tensor", x, 1, 1, n, 1, to=(b, n - 1)),
            s.add("slice.Tensor", x, 1, -2, 1 << 62, 1, to=(b, 2)),
            s.add("select.int", x, 0, -1, to=(n,)),
            s.add("narrow.default", x, 1, n - 2, 2, to=(b, 2)),
        ]
        return [s.add("exp.default", p, to=p.type.sizes) for p in parts]  # type: ignore[union-attr]

    check(make, at((3, 12))[0], at((2, 2), (5, 3), (2, 40)), fused=False)


def test_parts_of_lists() -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        b, n = z["B"], z["S"]
        x = s.add("sigmoid.default", s.input(b, 3 * n), to=(b, 3 * n))
        q, k, v = s.parts("split.Tensor", x, n, 1, to=[(b, n)] * 3)
        first, second = s.parts("split_with_sizes.default", x, (n - 1, 2 * n + 1), 1, to=[(b, n - 1), (b, 2 * n + 1)])
        halves = s.parts("chunk.default", x, 3, 1, to=[(b, n)] * 3)
        whole = s.add("add.Tensor", s.add("mul.Tensor", q, k, to=(b, n)), v, to=(b, n))
        whole = s.add("sub.Tensor", whole, halves[2], to=(b, n))
        return [whole, s.add("cos.default", first, to=(b, n - 1)), s.add("cos.default", second, to=(b, 2 * n + 1))]

    check(make, at((3, 12))[0], at((2, 2), (5, 3), (2, 40)))


def test_moved() -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        shape = (z["B"], z["S"])
        x = s.input(*shape)
        wide = (z["B"], z["S"] + 3)
        return [
            s.add("flip.default", x, (0, 1), to=shape),
            s.add("roll.default", x, (1, -1), (0, 1), to=shape),
            s.add("constant_pad_nd.default", x, (1, 2), 0.5, to=wide),
            s.add("pad.default", x, (1, 1), "replicate", to=(z["B"], z["S"] + 2)),
        ]

    check(make, at((3, 12))[0], at((2, 2), (5, 3), (2, 40)))


def test_merged_and_parted() -> None:
    """[B, S, 8] as [B * S, 8], as [B, S * 8], as [B, S, 2, 4], and back."""

    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        b, n = z["B"], z["S"]
        x = s.add("tanh.default", s.input(b, n, 8), to=(b, n, 8))
        flat = s.add("relu.default", s.add("view.default", x, (b * n, 8), to=(b * n, 8)), to=(b * n, 8))
        wide = s.add("view.default", flat, (b, n * 8), to=(b, n * 8))
        apart = s.add("view.default", wide, (b, n, 2, 4), to=(b, n, 2, 4))
        turned = s.add("transpose.int", apart, 1, 2, to=(b, 2, n, 4))
        return [s.add("softmax.int", turned, -1, to=(b, 2, n, 4)), s.add("sum.dim_IntList", flat, (0,), False, to=(8,))]

    check(make, at((3, 12))[0], at((2, 2), (5, 3), (2, 40)))


# --- what is equal at hand only


def test_sizes_that_are_equal_at_hand_only() -> None:
    """Nothing is merged, split, or stored by one loop because 8 is 8."""

    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        b, n = z["B"], z["S"]
        x, y = s.input(b, n, 8), s.input(n, b)
        a = s.add("sum.dim_IntList", s.add("exp.default", x, to=(b, n, 8)), (2,), False, to=(b, n))
        t = s.add("sub.Tensor", s.add("t.default", y, to=(b, n)), a, to=(b, n))
        c = s.add("abs.default", y, to=(n, b))
        return [t, c, s.add("mean.dim", x, (1, 2), False, to=(b,)), s.add("amax.default", y, (0,), to=(b,))]

    check(make, at((8, 8))[0], at((2, 9), (9, 2), (8, 8), (3, 40)))


def test_strides_that_are_equal_at_hand_only() -> None:
    """[B, S, 1] and [S, B] at B = S = 1: the order of loops is the one of memory at all sizes."""

    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        shape = (z["B"], z["S"], 1)
        x = s.add("permute.default", s.input(*shape), (2, 1, 0), to=(1, z["S"], z["B"]))
        return [s.add("add.Scalar", x, 1.0, to=(1, z["S"], z["B"])), s.add("argmax.default", x, to=(), dtype=DType.I64)]

    check(make, at((1, 1))[0], at((2, 3), (30, 1), (1, 30), (17, 17)), low=1)


# --- reading elsewhere


def lookup(s: Sheet, z: Sizes) -> Sequence[Value]:
    x, index = s.input(z["S"], 12), s.input(z["B"], dtype=DType.I64)
    return [s.add("index.Tensor", x, (index,), to=(z["B"], 12))]


def test_an_index_is_held_against_the_size_of_the_run() -> None:
    made = lower(lookup, {"B": 4, "S": 30})
    for n in (2, 30, 31):
        sizes = {"B": 3, "S": n}
        x = torch.randn(n, 12)
        index = torch.tensor([0, n - 1, -n])
        assert torch.equal(made.run(sizes, [x, index])[0], x[index])
        for bad in (n, -n - 1):
            with pytest.raises(IndexError):
                made.run(sizes, [x, torch.tensor([0, 0, bad])])


def test_gathers() -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        b, n = z["B"], z["S"]
        x, index = s.input(b, n), s.input(b, n + 1, dtype=DType.I64)
        rows_ = s.add("embedding.default", s.input(n, 20), index, to=(b, n + 1, 20))
        picked = s.add("gather.default", x, 1, index, to=(b, n + 1))
        return [picked, rows_, s.add("index_select.default", x, 1, s.input(b, dtype=DType.I64), to=(b, b))]

    check(make, at((3, 12))[0], at((2, 2), (5, 3), (2, 40)))


def test_windows() -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        b, n = z["B"], z["S"]
        x = s.input(b, 3, 2 * n)
        largest = s.add("max_pool1d.default", x, (2,), (2,), (0,), (1,), False, to=(b, 3, n))
        mean = s.add("avg_pool1d.default", x, (3,), (1,), (1,), False, False, to=(b, 3, 2 * n))
        return [largest, mean]

    check(make, at((3, 12))[0], at((2, 2), (5, 3), (2, 40)))


def test_windows_that_fit_are_a_guard() -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        return [s.add("adaptive_avg_pool1d.default", s.input(2, 3, z["S"]), (4,), to=(2, 3, 4))]

    check(make, {"S": 12}, [{"S": 4}, {"S": 40}], outside=[{"S": 13}])
    check(make, {"S": 13}, [{"S": 6}, {"S": 41}], outside=[{"S": 12}], fused=False)


@pytest.mark.parametrize("kind", ["argmax.default", "argmin.default"])
def test_places_of_extremes(kind: str) -> None:
    def make(s: Sheet, z: Sizes) -> Sequence[Value]:
        x = s.input(z["B"], z["S"], dtype=DType.I32)  # of zeros and ones: the first of many equals
        return [s.add(kind, x, 1, to=(z["B"],), dtype=DType.I64)]

    check(make, at((4, 64))[0], ROWS, outside=at((2, 1 << 31)))


def test_rows_of_scratch() -> None:
    """A row that is read again is kept, however long, and only the way that runs has memory for it."""
    made = check(softmax, at((4, 64))[0], at((2, 40_000), (2, 200_000)))
    (one,) = made.emitted
    for sizes in at((1000, 2), (2, 200_000)):
        at_run = Evaluation(made.trace, sizes)
        assert all(at_run(k.scratch_nbytes) == 0 or at_run(k.items) for _, k in one.kernels)
        assert max(at_run(k.scratch_nbytes) for _, k in one.kernels) < 1 << 20


# --- what a plan is made of


def test_item_sizes_follow_the_run() -> None:
    """Blocks of rows and numbers of items are those of a nest of these sizes, or finer where threads may need them."""
    made = lower(softmax, {"B": 4, "S": 64})
    for sizes in at((2, 2), (64, 64), (5000, 64), (5000, 33), (8, 5000)):
        known = _items(lower(_known(softmax, sizes), {}), {})
        assert _items(made, sizes) == known, sizes


def _items(made: Lowered, sizes: Sizes) -> int:
    here = Evaluation(made.trace, sizes)
    return sum(here(kernel.items) for one in made.emitted for _, kernel in one.kernels)
