"""Products by own kernels against float64: sizes with every remainder, strides, dtypes, instruction sets, splits."""

from __future__ import annotations

import pytest
import torch

from smelt.codegen.contract import planning
from smelt.codegen.contract.dots import HEIGHTS
from smelt.codegen.contract.gemm import Right
from smelt.codegen.contract.packing import Packing, TilePacking, packing_source, tile_packing_source
from smelt.codegen.contract.planning import lines_asked
from smelt.codegen.contract.tile import TURN
from smelt.codegen.contract.tiling import LINE_NBYTES, tiling_for
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.lower.products.packed_weight import packed_by_torch, tiles_by_torch, tiles_in_rows, unpacked
from tests.contract.harness import DTYPES, isas, lying, normal, product, rms, run_items
from tests.kernels.edge import before_the_edge

RIGHTS: tuple[Right, ...] = ("packed", "rows", "columns")
# What one multiply-add may be off, relative to the sum of magnitudes.
BOUND = {torch.float32: 1e-6, torch.float64: 2e-15, torch.bfloat16: 8e-3}
SIZES = ((1, 1), (5, 3), (16, 16), (17, 33), (33, 64), (64, 65), (65, 192), (100, 193), (129, 400), (47, 7))


def assert_close(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> None:
    exact = x.double() @ w.double().mT
    scale = x.double().abs() @ w.double().abs().mT + 1e-300
    assert float(((out.double() - exact).abs() / scale).max()) < BOUND[x.dtype]


@pytest.mark.spread(14)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("right", RIGHTS)
def test_every_remainder(isa: Isa, dtype: torch.dtype, right: Right) -> None:
    if tiling_for(isa, DTYPES[dtype]) is None:
        assert dtype is torch.bfloat16
        return
    for m in (*range(1, 21), 127):
        for n, k in SIZES:
            x, w = normal(m, k, dtype=dtype), lying(normal(n, k, seed=1, dtype=dtype), right)
            wide = torch.full((m, n + 3), 7.0, dtype=dtype)
            out = wide[:, :n]
            product(isa, right, x, w, out)
            assert_close(out, x, w)
            assert bool((wide[:, n:] == 7).all()), "columns beyond the result were written"


@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_matrix_from_memory_gives_the_sums_of_one_that_is_near(
    isa: Isa, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same dot products, whether an item's columns are read as streams or one after the other."""
    if tiling_for(isa, DTYPES[dtype]) is None:
        assert dtype is torch.bfloat16
        return
    for m in (*HEIGHTS, 3, 7):
        for n in (1, 2, 16, 31, 47, 48, 49, 100):
            x, w = normal(m, 70, dtype=dtype), normal(n, 70, seed=1, dtype=dtype)
            found = []
            for near in (True, False):
                monkeypatch.setattr(planning, "is_near", lambda nbytes, near=near: near)
                out = torch.full((m, n), 7.0, dtype=dtype)
                product(isa, "columns", x, w, out, parts=2)
                found.append(out)
            assert torch.equal(*found)
            assert_close(found[0], x, w)


@pytest.mark.spread(2)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("right", RIGHTS)
def test_tiles_for_what_is_left_over_are_there_where_something_may_be(
    isa: Isa, dtype: torch.dtype, right: Right
) -> None:
    tiling = tiling_for(isa, DTYPES[dtype])
    assert tiling is not None
    found = {}
    for m, n in ((4 * tiling.rows, 2 * tiling.panel), (64 * tiling.rows, tiling.panel), (41, 2 * tiling.panel),
                 (4 * tiling.rows, tiling.panel + 1), (33, tiling.panel + 1),
                 (4 * tiling.rows, tiling.lanes)):  # fmt: skip
        x, w = normal(m, 70, dtype=dtype), lying(normal(n, 70, seed=1, dtype=dtype), right)
        wide = torch.full((m, n + 3), 7.0, dtype=dtype)
        again = torch.empty(m, n, dtype=dtype)
        text = product(isa, right, x, w, wide[:, :n]).source.text
        assert_close(wide[:, :n], x, w)
        assert bool((wide[:, n:] == 7).all()), "columns beyond the result were written"
        product(isa, right, x, w, again, parts=3)
        assert torch.equal(again, wide[:, :n])
        found[m, n] = text.count("define internal void @tile.")
    whole, longer, rows, columns, both, few = found.values()
    assert whole == longer == few == 1
    assert rows == len(tiling.heights) and columns == 2 and both > max(rows, columns)


@pytest.mark.spread(2)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("right", RIGHTS)
def test_every_remainder_of_tiles(isa: Isa, dtype: torch.dtype, right: Right) -> None:
    for m in (9, 13, 40, 127, 301):
        for n, k in ((33, 64), (65, 193), (47, 7)):
            x, w = normal(k, m, dtype=dtype).t(), lying(normal(n, k, seed=1, dtype=dtype), right)
            wide = torch.full((m, n + 3), 7.0, dtype=dtype)
            out, again = wide[:, :n], torch.empty(m, n, dtype=dtype)
            product(isa, right, x, w, out, tiled=True)
            assert_close(out, x, w)
            assert bool((wide[:, n:] == 7).all()), "columns beyond the result were written"
            product(isa, right, x, w, again, tiled=True, parts=3)
            assert torch.equal(again, out)


@pytest.mark.spread(10)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 768, 768), (4, 300, 768), (40, 200, 768), (12, 96, 3072), (40, 96, 3072)]
)
def test_error_is_within_that_of_eager(isa: Isa, right: Right, m: int, n: int, k: int) -> None:
    x, w = normal(m, k), lying(normal(n, k, seed=1), right)
    out = torch.empty(m, n)
    product(isa, right, x, w, out)
    exact = x.double() @ w.double().t()
    assert rms(out, exact) <= 1.5 * rms(x @ w.t(), exact)


@pytest.mark.spread(2)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("m", [1, 2, 5, 31, 130, 260])
def test_any_split_gives_the_same_bits(isa: Isa, right: Right, m: int) -> None:
    x, w = normal(m, 210), lying(normal(150, 210, seed=1), right)
    one = torch.empty(m, 150)
    plan = product(isa, right, x, w, one)
    for parts in (2, 3, plan.items):
        many = torch.empty(m, 150)
        product(isa, right, x, w, many, parts=parts)
        assert torch.equal(one, many)


@pytest.mark.spread(2)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("m", [1, 3, 9])
def test_nothing_to_sum(isa: Isa, right: Right, m: int) -> None:
    out = torch.full((m, 20), torch.nan)
    product(isa, right, torch.empty(m, 0), lying(torch.empty(20, 0), right), out)
    assert bool((out == 0).all())


@pytest.mark.spread(3)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("m", [1, 2, 11])
def test_special_numbers_stay_in_their_rows_and_columns(isa: Isa, right: Right, m: int) -> None:
    x, w = normal(m, 37), normal(23, 37, seed=1)
    x[m - 1, 36] = torch.inf
    w[22, 0] = torch.nan
    w[3, :] = 0.0
    out = torch.empty(m, 23)
    product(isa, right, x, lying(w, right), out)
    expected = x @ w.t()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert torch.equal(out.isnan(), expected.isnan())


@pytest.mark.spread(2)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("right", ["packed", "rows"])
def test_left_matrix_of_any_strides(isa: Isa, right: Right) -> None:
    w = lying(normal(40, 50, seed=1), right)
    for m in (1, 2, 7, 30):
        for x in (normal(50, m).t(), normal(m, 100)[:, ::2], normal(m, 50)[:1].expand(m, 50), normal(m, 120)[:, 7:57]):
            out = torch.empty(m, 40)
            product(isa, right, x, w, out)
            assert_close(out, x, w)


@pytest.mark.spread(3)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("right", ["rows", "columns"])
@pytest.mark.parametrize("m", [1, 4, 20])
def test_batches_of_views(isa: Isa, right: Right, m: int) -> None:
    x = normal(2, m, 3, 24).transpose(1, 2)  # [2, 3, m, 24], as heads of a sequence
    w = normal(2, 3, 24, 18).mT if right == "rows" else normal(2, 18, 3, 24).transpose(1, 2)
    out = torch.empty(2, m, 3, 18).transpose(1, 2)
    product(isa, right, x, w, out)
    assert_close(out, x, w)
    product(isa, right, x, w[:1, :1].expand(2, 3, 18, 24), out)
    assert_close(out, x, w[:1, :1].expand(2, 3, 18, 24))


@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("along_columns", [True, False])
def test_packing(isa: Isa, dtype: torch.dtype, along_columns: bool) -> None:
    tiling = tiling_for(isa, DTYPES[dtype])
    if tiling is None:
        return
    for n, k in ((1, 1), (64, 64), (70, 33), (130, 201)):
        packing = Packing(tiling, n, k)
        w = lying(normal(n, k, dtype=dtype), "columns" if along_columns else "rows")
        step = w.stride(0) if along_columns else w.stride(1)
        made = torch.zeros(packing.nelements, dtype=dtype)
        words = packing.words(step, along_columns)
        run_items(packing_source(tiling, along_columns), isa, (w, made), words, 0, [(0, packing.panels)])
        assert torch.equal(unpacked(made, packing), w)
        assert torch.equal(unpacked(packed_by_torch(w, packing), packing), w)


@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_packing_of_tiles(isa: Isa, dtype: torch.dtype) -> None:
    tiling = tiling_for(isa, DTYPES[dtype])
    assert tiling is not None
    for m, k in ((1, 1), (48, 64), (70, 33), (131, 20)):
        packing = TilePacking(tiling, m, k)
        stored = before_the_edge(normal(k, m, dtype=dtype))
        made = before_the_edge(torch.zeros(packing.nelements, dtype=dtype))
        run_items(tile_packing_source(tiling), isa, (stored, made), packing.words(m), 0, [(0, packing.items)])
        assert torch.equal(tiles_in_rows(made, packing), stored.t())
        assert torch.equal(tiles_in_rows(tiles_by_torch(stored.t(), packing), packing), stored.t())


@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
def test_the_tiles_of_few_rows_ask_for_all_of_the_next_block(isa: Isa) -> None:
    tiling = tiling_for(isa, DTYPES[torch.float32])
    assert tiling is not None
    read = TURN * tiling.packed.row_nbytes
    for rows in range(1, 130):
        tiles, lines = -(-rows // tiling.rows), lines_asked(tiling, rows)
        assert tiles * lines * LINE_NBYTES >= read
        assert lines == 1 or tiles * (lines - 1) * LINE_NBYTES < read
    for rows in (tiling.rows - 1, tiling.rows + 1, 3 * tiling.rows, 30 * tiling.rows + 1):
        if rows > max(HEIGHTS):
            n = 2 * tiling.panel
            text = product(isa, "packed", normal(rows, 8), normal(n, 8), torch.empty(rows, n)).source.text
            tiles = text.split("define internal void @tile.")[1:]
            asked = [tile.split("\n}")[0].count("call void @llvm.prefetch") for tile in tiles]
            assert set(asked) == {lines_asked(tiling, rows) * tiling.vectors // tiling.packed.vectors}
