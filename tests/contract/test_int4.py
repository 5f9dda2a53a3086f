"""Products with weights in 4 bits: those of the floats that the bits stand for, few rows or many."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from smelt.codegen.contract.epilogue import plain
from smelt.codegen.contract.narrow.int4_forms import Int4Form
from smelt.codegen.contract.narrow.int4_packing import is_packed_natively, nibble_panels_source, nibble_words
from smelt.codegen.contract.narrow.planning import plan_int4
from smelt.codegen.llvm.isa import AVX2, AVX512, NEON, Isa
from smelt.codegen.llvm.objects import compile_kernels
from smelt.ir import DType
from smelt.ops.own import narrow_linear
from tests.contract.harness import isas, normal, rms, run_items

FAST = [isa for isa in isas() if isa.name != "baseline"]


def product(isa: Isa, x: torch.Tensor, w: torch.Tensor, group: int, parts: int = 1) -> torch.Tensor:
    """x f32[m, k] times w f32[n, k] in 4 bits, transposed."""
    (m, k), n = x.shape, w.shape[0]
    form, out = Int4Form(n, k, group), torch.full((m, n), 7.0)
    plan = plan_int4(isa, form, m, x.stride(0), plain(DType.F32))
    ranges = list(pairwise([plan.items * i // parts for i in range(parts + 1)]))[::-1]
    run_items(plan.source, isa, (x, form.packed(w), out), plan.words, plan.scratch_nbytes, ranges)
    return out


def test_bits_come_back() -> None:
    """Panels hold what the operator says, beyond the last column nothing."""
    for n, k, group in ((1, 32, 32), (16, 64, 32), (50, 256, 64), (33, 384, 128)):
        w = normal(n, k)
        w[0, :32] = 0
        form = Int4Form(n, k, group)
        assert torch.equal(form.matrix(form.packed(w)), narrow_linear.as_int4(w, group))


@pytest.mark.parametrize("isa", FAST, ids=lambda isa: isa.name)
def test_panels_of_the_kernel_are_those_of_torch_to_the_bit(isa: Isa) -> None:
    """Remainders of columns, rows apart, groups of zeros, of one sign, of tiny numbers and with infinity; NaN stays."""
    for n, k, group in ((1, 32, 32), (16, 64, 32), (50, 256, 64), (33, 384, 128), (15, 48, 16)):
        w = normal(n, k + 3)[:, :k]
        w[0, :group], w[n // 2, -group:] = 0, 2.5
        w[n // 3, -group:] *= 1e-42
        w[-1, 1] = torch.inf
        form, parts = Int4Form(n, k, group), 1 + n % 2
        made = torch.full((form.nbytes,), 77, dtype=torch.uint8)
        ranges = list(pairwise([form.panels * i // parts for i in range(parts + 1)]))[::-1]
        words = nibble_words(form, w.stride(0))
        run_items(nibble_panels_source(group), isa, (w, made), words, 0, ranges)
        assert torch.equal(made, form.packed(w)), (n, k, group)
        w[n // 2, 0] = torch.nan
        run_items(nibble_panels_source(group), isa, (w, made), words, 0, ranges)
        found, expected = form.matrix(made), form.matrix(form.packed(w))
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert is_packed_natively(Int4Form(8, 48, 48)) and not is_packed_natively(Int4Form(8, 48, 24))


@pytest.mark.parametrize("isa", FAST, ids=lambda isa: isa.name)
def test_products_are_those_of_the_floats(isa: Isa) -> None:
    """Any number of rows, remainders of columns, rows apart; the error is that of floats up to 1.5 greater."""
    for m, n, k in ((1, 16, 32), (2, 50, 96), (3, 33, 256), (4, 17, 128), (5, 40, 64), (30, 100, 416), (9, 7, 256)):
        x, w = normal(m, k + 3)[:, :k], normal(n, k, seed=1)
        for size in {group if k % group == 0 else 32 for group in (32, 64, 128)}:
            exact = x.double() @ narrow_linear.as_int4(w, size).double().t()
            for parts in (1, 2):
                error = rms(product(isa, x, w, size, parts), exact)
                assert error < 2e-6 * k**0.5, (m, n, k, size, error)


def test_error_is_that_of_four_bits() -> None:
    """A step is an eighth of the greatest magnitude of 32."""
    w = normal(200, 512)
    assert 0.05 < rms(narrow_linear.as_int4(w, 32), w) < 0.11
    assert rms(narrow_linear.as_int4(w, 128), w) < 0.13


@pytest.mark.parametrize("isa", [AVX2, AVX512, NEON], ids=lambda isa: isa.name)
def test_kernels_are_built_for_other_machines(isa: Isa) -> None:
    """Few rows and many."""
    for m in (1, 30):
        source = plan_int4(isa, Int4Form(100, 96, 32), m, 96, plain(DType.F32)).source
        assert compile_kernels([source], isa)[source.symbol].object
