"""Products with weights in 4 bits: those of the floats that the bits stand for, few rows or many."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from smelt.codegen.contract.epilogue import plain
from smelt.codegen.contract.narrow.int4_forms import Int4Form
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
