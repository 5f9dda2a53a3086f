"""Products of bytes: exact sums on every instruction set, any remainder, epilogues behind them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from smelt.codegen.contract.epilogue import plain
from smelt.codegen.contract.narrow.int8 import byte_rows_source, row_words
from smelt.codegen.contract.narrow.int8_forms import Int8Form, RowForm
from smelt.codegen.contract.narrow.int8_packing import byte_panels_source, byte_words
from smelt.codegen.contract.narrow.planning import plan_int8
from smelt.codegen.contract.tiling import Tiling, byte_tiling
from smelt.codegen.llvm.isa import AVX2, AVX512, Isa
from smelt.codegen.llvm.objects import compile_kernels
from smelt.ir import DType
from smelt.ops.own import narrow_linear
from smelt.runtime.machine.isa import AVX512_VNNI
from tests.contract.harness import isas, normal, run_items

_HERE = isas()
# Where there are dot products of four bytes, those of pairs of words are what other CPUs run.
_WITHOUT = [AVX512] if any(isa.has_vnni for isa in _HERE) else []
BYTES = [isa for isa in (*_HERE, *_WITHOUT) if byte_tiling(isa) is not None]
# What four bytes at a time give, by operations that every CPU has.
QUADS = Tiling("quads", 8, 6, 2, (6, 4, 2, 1), fused=False)


def product(isa: Isa, tiling: Tiling, x: torch.Tensor, w: torch.Tensor, parts: int = 1) -> torch.Tensor:
    """x f32[m, k] times w f32[n, k], transposed, in bytes; the rows in bytes are those of torch."""
    (m, k), n = x.shape, w.shape[0]
    rows, form = RowForm(tiling, k), Int8Form(tiling, n, k)
    found = torch.full((m, rows.row_nbytes), 255, dtype=torch.uint8)
    words = row_words(k, x.stride(0), rows.row_nbytes)
    run_items(byte_rows_source(tiling), isa, (x, found), words, 0, [(m // 2, m), (0, m // 2)])
    expected = torch.empty_like(found)
    rows.write(x, expected)
    is_finite = x.isfinite().all(1)
    assert torch.equal(found[is_finite], expected[is_finite])
    out = torch.full((m, n), 7.0)
    plan = plan_int8(isa, form, m, rows.row_nelements, plain(DType.F32))
    bounds = [plan.items * i // parts for i in range(parts + 1)]
    ranges = list(pairwise(bounds))[::-1]
    run_items(plan.source, isa, (found, form.packed(w), out), plan.words, plan.scratch_nbytes, ranges)
    return out


@pytest.mark.parametrize("isa", BYTES, ids=lambda isa: f"{isa.name}{'-vnni' if isa.has_vnni else ''}")
def test_sums_are_those_of_the_operator_to_the_bit(isa: Isa) -> None:
    """Any remainder of rows, columns and terms; pairs of words and four bytes; a row beside which memory goes on."""
    for m, n, k in ((1, 1, 1), (2, 16, 32), (7, 33, 65), (13, 50, 200), (150, 17, 1100), (5, 96, 31)):
        wide, w = normal(m, k + 3) * 3, normal(n, k, seed=1)
        x = wide[:, :k]
        x[0] += 5
        x[m // 2, 0], w[n // 2] = -40, 0
        expected = narrow_linear.int8(x, w, None)
        for tiling in (byte_tiling(isa), QUADS):
            for parts in (1, 3):
                assert torch.equal(product(isa, tiling, x, w, parts), expected), (m, n, k, tiling.kind)


@pytest.mark.parametrize("isa", BYTES, ids=lambda isa: f"{isa.name}{'-vnni' if isa.has_vnni else ''}")
def test_special_values_and_extremes(isa: Isa) -> None:
    """A row with NaN or infinity is NaN and no other; extreme bytes do not overflow; tiny rows stay finite."""
    x, w = normal(6, 512), torch.where(normal(20, 512, seed=2) > 0, 1.0, -1.0)
    x[0, 5], x[1, 7], x[2], x[3] = torch.nan, -torch.inf, 3e38, 1e-40
    x[2, ::2] = -3e38
    for tiling in (byte_tiling(isa), QUADS):
        found, expected = product(isa, tiling, x, w), narrow_linear.int8(x, w, None)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.isnan().all(1), torch.tensor([True, True, False, False, False, False]))
        assert torch.equal(found[2:], expected[2:])


@pytest.mark.parametrize("isa", BYTES, ids=lambda isa: f"{isa.name}{'-vnni' if isa.has_vnni else ''}")
def test_panels_of_the_kernel_are_those_of_torch_to_the_bit(isa: Isa) -> None:
    """Any remainder of columns and terms, rows apart, ties, zeros, tiny numbers and infinity; NaN spoils its column."""
    for n, k in ((1, 1), (2, 31), (16, 32), (33, 65), (50, 200), (17, 1100), (7, 96)):
        w = normal(n, k + 5, seed=3)[:, :k]
        w[0] = 0
        w[n // 2, : k // 2] *= 1e-36
        w[-1] = torch.arange(k) % 5 - 1.5
        w[-1, 0] = 127
        w[n // 3, k // 3] = -torch.inf
        for tiling in (byte_tiling(isa), QUADS):
            assert tiling is not None
            form = Int8Form(tiling, n, k)
            assert torch.equal(panels(isa, form, w, parts=1 + n % 2), form.packed(w)), (n, k, tiling.kind)
            spoilt = w.clone()
            spoilt[n // 2, k // 2] = torch.nan
            found, expected = (form.matrix(made) for made in (panels(isa, form, spoilt), form.packed(spoilt)))
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def panels(isa: Isa, form: Int8Form, w: torch.Tensor, parts: int = 1) -> torch.Tensor:
    """The panels of w f32[n, k] by the kernel, its items in `parts` ranges, last first."""
    made = torch.full((form.nbytes,), 77, dtype=torch.uint8)
    ranges = list(pairwise([form.panels * i // parts for i in range(parts + 1)]))[::-1]
    run_items(byte_panels_source(form.tiling), isa, (w, made), byte_words(form, w.stride(0)), 0, ranges)
    return made


def test_error_is_that_of_eight_bits() -> None:
    """A step of a byte is a 255th of a row's range, and a 127th of a column's greatest magnitude."""
    x, w = normal(32, 768), normal(96, 768, seed=1)
    exact = x.double() @ w.double().t()
    error = (narrow_linear.int8(x, w, None) - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt()
    assert 0.002 < error < 0.012


@pytest.mark.parametrize("isa", [AVX2, AVX512, AVX512_VNNI], ids=lambda isa: isa.features or isa.name)
def test_kernels_are_built_for_other_machines(isa: Isa) -> None:
    """Also for CPUs with dot products of bytes, which this one need not have."""
    tiling = byte_tiling(isa)
    assert tiling is not None and (tiling.kind == "quads") == isa.has_vnni
    plan = plan_int8(isa, Int8Form(tiling, 100, 70), 30, RowForm(tiling, 70).row_nelements, plain(DType.F32))
    for source in (plan.source, byte_rows_source(tiling)):
        assert compile_kernels([source], isa)[source.symbol].object
    assert byte_tiling(replace(isa, name="baseline")) is None
