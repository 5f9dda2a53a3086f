"""What is fused behind a product: operators as eager's, special numbers, operands that are the product's own input."""

from __future__ import annotations

import pytest
import torch

from smelt.codegen.contract.epilogue import bound
from smelt.codegen.kernels.nest import ACC, Const, Expr, Index, Load, Op, Position, Ref
from smelt.codegen.llvm.isa import Isa
from smelt.ir import DType
from tests.contract.harness import DTYPES, isas, lying, normal, product

F32, BF16 = DType.F32, DType.BF16
BIAS, RESIDUAL = Load(0, Index(0, (0, 1)), F32), Load(1, Index(0, (70, 1)), F32)


def op(name: str, *args: Expr, dtype: DType = F32) -> Op:
    return Op(name, args, dtype)


SUM = op("add", Ref(ACC, F32), BIAS)


@pytest.mark.spread(10)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("m", [1, 3, 14])
@pytest.mark.parametrize(
    ("name", "expr", "eager"),
    [
        ("bias", SUM, lambda y, r: y),
        ("gelu", op("gelu", SUM), lambda y, r: torch.nn.functional.gelu(y)),
        ("silu", op("silu", SUM), lambda y, r: torch.nn.functional.silu(y)),
        ("relu", op("max", SUM, Const(0.0, F32)), lambda y, r: torch.relu(y)),
        ("residual", op("add", RESIDUAL, SUM), lambda y, r: r + y),
        ("gate", op("mul", op("silu", SUM), RESIDUAL), lambda y, r: torch.nn.functional.silu(y) * r),
    ],
)
def test_pointwise(isa: Isa, m: int, name: str, expr: Expr, eager: object) -> None:
    x, w, bias, residual = normal(m, 33), normal(70, 33, seed=1), normal(70, seed=2), normal(m, 70, seed=3)
    x[0, 0] = torch.nan
    if name != "gelu":  # Eager's vector code gives NaN for gelu(inf), its scalar code inf.
        x[m - 1, 1] = torch.inf
    made = bound(expr, F32, [F32, F32])
    assert made is not None
    out = torch.empty(m, 70)
    product(isa, "packed", x, w, out, bound=made, operands=(bias, residual))
    expected = eager(x @ w.t() + bias, residual)  # type: ignore[operator]
    torch.testing.assert_close(out, expected, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("m", [1, 9])
def test_the_residual_may_be_the_input(isa: Isa, m: int) -> None:
    x, w = normal(m, 70), normal(70, 70, seed=1)
    made = bound(op("add", Ref(ACC, F32), Load(0, Index(0, (70, 1)), F32)), F32, [F32])
    assert made is not None
    out = torch.empty(m, 70)
    product(isa, "packed", x, w, out, bound=made, operands=(x,))
    torch.testing.assert_close(out, x + x @ w.t(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
def test_batches_have_their_own_operands(isa: Isa) -> None:
    x, w = normal(2, 3, 5, 20), normal(2, 3, 18, 20, seed=1)
    added = normal(2, 1, 5, 18, seed=2)
    made = bound(op("add", Ref(ACC, F32), Load(0, Index(0, (90, 0, 18, 1)), F32)), F32, [F32])
    assert made is not None
    out = torch.empty(2, 3, 5, 18)
    product(isa, "columns", x, w, out, bound=made, operands=(added,))
    torch.testing.assert_close(out, x @ w.mT + added, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", [i for i in isas() if i.has_bf16], ids=lambda isa: isa.name)
def test_bf16_rounds_after_every_operator(isa: Isa) -> None:
    x, w = normal(10, 40, dtype=torch.bfloat16), normal(70, 40, seed=1, dtype=torch.bfloat16)
    residual = normal(10, 70, seed=2, dtype=torch.bfloat16)
    rounded = op("cast", Ref(ACC, F32), dtype=BF16)
    made = bound(op("add", op("gelu", rounded, dtype=BF16), Load(0, Index(0, (70, 1)), BF16), dtype=BF16), BF16, [BF16])
    assert made is not None
    out = torch.empty(10, 70, dtype=torch.bfloat16)
    product(isa, "packed", x, w, out, bound=made, operands=(residual,))
    expected = torch.nn.functional.gelu((x.float() @ w.float().t()).bfloat16()) + residual
    assert float((out.float() - expected.float()).abs().max()) <= 2**-6
    assert DTYPES[out.dtype] is BF16


def test_equal_computations_are_equal_kernels() -> None:
    wide = bound(op("add", SUM, Load(1, Index(5, (900, 1)), F32)), F32, [F32, F32])
    narrow = bound(op("add", SUM, Load(1, Index(0, (70, 1)), F32)), F32, [F32, F32])
    assert wide is not None and narrow is not None
    assert wide.epilogue == narrow.epilogue and wide.words != narrow.words


@pytest.mark.parametrize(
    "expr", [Load(0, Index(0, (1, 70)), F32), op("cast", Position(1)), op("add", SUM, Position(0))]
)
def test_what_no_epilogue_can_hold(expr: Expr) -> None:
    assert bound(expr, F32, [F32]) is None


def test_layouts_of_the_harness() -> None:
    w = normal(4, 3)
    assert lying(w, "rows").stride() == (1, 4) and torch.equal(lying(w, "rows"), w)
