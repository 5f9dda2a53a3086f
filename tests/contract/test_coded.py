"""Coded weights: the bits come back whatever they are, and products with them are those of the weight itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import smelt
import smelt.codegen.contract.planning as planning
from smelt.codegen.contract.coding import COLUMNS, Coding, coding_source, coding_tiling
from smelt.codegen.contract.epilogue import plain
from smelt.codegen.contract.planning import is_worth_coding, plan_coded
from smelt.codegen.contract.problem import Problem
from smelt.codegen.llvm.isa import Isa, host_isa
from smelt.codegen.lower.products.coded_weight import coded_by_torch, decoded
from smelt.ir import DType
from tests.codegen.harness import call as run
from tests.codegen.harness import executables, lowered, rms_ratio
from tests.contract.harness import isas, lying, normal, rms, run_items

CODING = [isa for isa in isas() if coding_tiling(isa) is not None]


def coding_of(isa: Isa, n: int, k: int) -> Coding:
    tiling = coding_tiling(isa)
    assert tiling is not None
    return Coding(tiling, n, k)


def coded(isa: Isa, w: torch.Tensor) -> torch.Tensor:
    """The coding of w [n, k], over memory full of ones."""
    coding = coding_of(isa, *w.shape)
    along_columns = w.stride(1) == 1 and w.shape[0] > 1
    step = w.stride(0) if along_columns else w.stride(1)
    made = torch.full((coding.nbytes,), 255, dtype=torch.uint8)
    source = coding_source(coding.tiling, along_columns)
    run_items(source, isa, (w, made), coding.words(step, along_columns), 0, [(0, coding.panels)])
    return made


def product(isa: Isa, x: torch.Tensor, made: torch.Tensor, n: int, split: int = 1) -> torch.Tensor:
    """x @ the coded weight, its items in so many ranges, last first; what lies behind each row must stay."""
    m, k = x.shape
    coding = coding_of(isa, n, k)
    wide = torch.full((m, n + 3), 7.0)
    problem = Problem(m, n, k, x.stride(0), x.stride(1), coding.panel_nbytes // 4, coding.rows_at, n + 3, 0)
    plan = plan_coded(isa, problem, coding, plain(DType.F32))
    bounds = [plan.items * i // split for i in range(split + 1)]
    run_items(plan.source, isa, (x, made, wide), plan.words, plan.scratch_nbytes, list(pairwise(bounds))[::-1])
    assert bool((wide[:, n:] == 7).all()), "columns beyond the result were written"
    return wide[:, :n]


def contents(n: int, k: int) -> dict[str, torch.Tensor]:
    """Weights w[n, k] with no exceptional rows, with a few, with zeros, and with nothing but exceptions."""
    some, zeros = normal(n, k), normal(n, k)
    some[n // 2, k // 2], some[n // 3, k - 1], some[0, 0] = torch.inf, 1e-30, -1e-42
    zeros[:, ::3], zeros[-1] = 0.0, -0.0
    bits = torch.randint(-(2**31), 2**31 - 1, (n, k), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    tiny = normal(n, k) * 1e-38
    few = 1 + torch.rand(n, k, generator=torch.Generator().manual_seed(0))
    few[n // 2, ::40] = 1e-9
    return {"normal": normal(n, k) * 0.02, "some": some, "zeros": zeros, "bits": bits.view(torch.float32),
            "tiny": tiny, "few": few}  # fmt: skip


@pytest.mark.parametrize("isa", CODING, ids=lambda isa: isa.name)
@pytest.mark.parametrize("lies", ["rows", "columns"])
def test_bits_come_back(isa: Isa, lies: str) -> None:
    """Any bits (NaN payloads, signs of zero, subnormals), any remainder, both layouts."""
    for n, k in ((1, 1), (64, 64), (70, 33), (130, 201), (31, 500)):
        for name, w in contents(n, k).items():
            made = coded(isa, lying(w, "rows" if lies == "rows" else "columns"))
            found = decoded(made, coding_of(isa, n, k))
            assert torch.equal(found.view(torch.int32), w.view(torch.int32)), (n, k, name)
            slow = decoded(coded_by_torch(w, coding_of(isa, n, k)), coding_of(isa, n, k))
            assert torch.equal(slow.view(torch.int32), w.view(torch.int32)), (n, k, name)


@pytest.mark.parametrize("isa", CODING, ids=lambda isa: isa.name)
def test_how_much_is_coded(isa: Isa) -> None:
    """Of normal weights hardly any row is kept as it is; a panel without a common exponent is, as a whole."""

    def plain_rows(w: torch.Tensor) -> int:
        panel = coded(isa, w)[: coding_of(isa, *w.shape).panel_nbytes]
        count = int(panel[64:72].view(torch.int64))
        ends = panel[80 : 80 + 16 * count].view(torch.int64).view(-1, 2)
        return int((ends[:, 1] - ends[:, 0]).sum())

    weights = contents(COLUMNS, 800)
    assert plain_rows(weights["normal"]) <= 16
    assert plain_rows(weights["few"]) == 20
    assert plain_rows(weights["bits"]) == 800
    assert plain_rows(torch.zeros(COLUMNS, 800)) == 0
    assert coding_of(isa, COLUMNS, 800).read_nbytes < 0.9 * 4 * COLUMNS * 800


@pytest.mark.parametrize("isa", CODING, ids=lambda isa: isa.name)
@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_products(isa: Isa, m: int) -> None:
    """Every remainder, rows of any stride, and weights with exceptional rows, against float64."""
    for n, k in ((1, 1), (64, 32), (70, 33), (130, 201)):
        for name, w in contents(n, k).items():
            if name in ("some", "bits"):
                continue
            for x in (normal(m, k, seed=1), normal(k, m, seed=1).t(), normal(m, 2 * k, seed=1)[:, ::2]):
                exact = x.double() @ w.double().t()
                scale = x.double().abs() @ w.double().abs().t() + 1e-45
                error = ((product(isa, x, coded(isa, w), n) - exact).abs() / scale).max()
                assert error <= 2**-24 * (k // 32 + 34), (name, n, k, float(error))


@pytest.mark.parametrize("isa", CODING, ids=lambda isa: isa.name)
def test_infinities(isa: Isa) -> None:
    """Infinite and undefined elements on either side come out as from eager, in coded rows and in plain ones."""
    w = contents(70, 201)["some"]
    x = normal(2, 201, seed=1)
    x[0, 7], x[0, 200], x[1, 100] = torch.inf, 1.0, torch.nan
    for left in (x, x.flip(0), normal(2, 201, seed=1)):
        eager, found = left @ w.t(), product(isa, left, coded(isa, w), 70)
        assert torch.equal(found.isnan(), eager.isnan())
        assert torch.equal(found[eager.isinf()], eager[eager.isinf()])


@pytest.mark.parametrize("isa", CODING, ids=lambda isa: isa.name)
def test_error_and_splits(isa: Isa) -> None:
    """The error is eager's, and the bits do not depend on who computes which items."""
    for m, n, k in ((1, 768, 768), (2, 192, 3072), (4, 192, 768)):
        x, w = normal(m, k), normal(n, k, seed=1)
        made, exact = coded(isa, w), x.double() @ w.double().t()
        one = product(isa, x, made, n)
        assert rms(one, exact) <= 1.5 * rms(x @ w.t(), exact)
        for split in (2, 3, -(-n // COLUMNS)):
            assert torch.equal(product(isa, x, made, n, split), one)


def test_where_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows, a large weight, a program that no cache holds and that leaves room for a copy."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(planning, "last_cache_nbytes", lambda: 32 << 20)
    monkeypatch.setattr(planning, "memory_nbytes", lambda: 16 << 30)
    assert is_worth_coding(1, 768, 768, 500 << 20) and is_worth_coding(4, 768, 768, 64 << 20)
    for case in ((5, 768, 768, 500 << 20), (1, 448, 768, 500 << 20), (1, 768, 300, 500 << 20),
                 (1, 768, 768, 63 << 20), (1, 768, 768, 3 << 30)):  # fmt: skip
        assert not is_worth_coding(*case), case


LINEAR = """\
graph f(%x: f32[{rows}, 520], %r: f32[{rows}, 576]) -> f32[{rows}, 576] {{
  %w: f32[576, 520] = param("w")
  %b: f32[576] = param("b")
  %0: f32[{rows}, 576] = aten.linear.default(%x, %w, %b)
  %1: f32[{rows}, 576] = aten.relu.default(%0)
  %2: f32[{rows}, 576] = aten.add.Tensor(%1, %r)
  return %2
}}"""


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are coded however small the program."""
    monkeypatch.setattr(planning, "last_cache_nbytes", lambda: 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def is_coding() -> bool:
    isa = host_isa()
    return isa is not None and coding_tiling(isa) is not None


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("rows", [1, 3])
def test_in_a_program(rows: int) -> None:
    """Bias, activation and residual are fused behind it; in every rung."""
    state = {"w": normal(576, 520) / 23, "b": normal(576, seed=1)}
    x, r = normal(rows, 520, seed=2), normal(rows, 576, seed=3)
    eager = torch.nn.functional.linear(x, state["w"], state["b"]).relu() + r
    exact = (state["b"] + x.double() @ state["w"].double().t()).relu() + r
    plan = lowered(LINEAR.format(rows=rows), state)
    for executable in executables(plan.plan):
        for _ in range(2):
            (found,) = run(plan, executable, [x, r], state)
            assert found.shape == eager.shape and rms_ratio(found, eager, exact) <= 1.5
    assert [kernel.label for kernel in plan.report.kernels] == ["product compressed" if is_coding() else "product dots"]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "options", [{}, {"release_originals": True}, {"code_weights": False}, {"profile": True}], ids=str
)
def test_in_a_module(options: dict[str, bool]) -> None:
    """A weight that changes is coded anew, in place or replaced; what is released stays readable."""
    module = torch.nn.Sequential(torch.nn.Linear(520, 576), torch.nn.ReLU(), torch.nn.Linear(576, 520)).eval()
    wanted = torch.nn.Sequential(torch.nn.Linear(520, 576), torch.nn.ReLU(), torch.nn.Linear(576, 520)).eval()
    wanted.load_state_dict(module.state_dict())
    compiled = smelt.compile(module, options=options)
    with torch.no_grad():
        for step in range(3):
            for seed in (1, 2):
                x = normal(1, 520, seed=seed)
                torch.testing.assert_close(compiled(x), wanted(x), rtol=1e-5, atol=1e-5)
            for each in (module, wanted):
                if step == 0:
                    each[0].weight.mul_(-2)
                else:
                    each[2].weight = torch.nn.Parameter(each[2].weight.detach() * 0.5)
    if is_coding():
        labels = {row.get("computes") for row in smelt.explain(compiled).kernels}
        assert ("product compressed" in labels) == options.get("code_weights", True)
    torch.testing.assert_close(module.state_dict(), wanted.state_dict())
