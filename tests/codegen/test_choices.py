"""Which of several libraries computes a product: by measurement or by rule, one answer for each shape and dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from smelt._torch.library import mkldnn
from smelt.codegen.lower.products import linear
from smelt.codegen.lower.static import measure
from smelt.codegen.lower.static.measure import Timing, time_candidates
from smelt.diag import Options
from tests.codegen.harness import lowered


def test_the_fastest_comes_first_by_its_best_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0

    def taking(*latencies_ns: int) -> Callable[[], None]:
        left = [1_000_000, *latencies_ns]  # the first run warms up

        def run() -> None:
            nonlocal now
            now += left.pop(0) if len(left) > 1 else left[0]

        return run

    monkeypatch.setattr(measure, "perf_counter_ns", lambda: now)
    found = time_candidates({"even": taking(3000), "slow": taking(4000), "uneven": taking(9000, 2000, 8000)})
    assert found == (Timing("uneven", 2.0), Timing("even", 3.0), Timing("slow", 4.0))


def test_within_the_noise_the_rule_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "rule", lambda product, names: "plain")
    product: linear.Product = None  # type: ignore[assignment]  # only the rule asks it
    near, far = (Timing("onednn", 100.0), Timing("plain", 104.0)), (Timing("onednn", 100.0), Timing("plain", 110.0))
    assert linear._preferred(product, near) == "plain"
    assert linear._preferred(product, far) == "onednn"


def _product(k: int, dtype: str = "f32") -> str:
    return f"""\
graph f(%x: {dtype}[8, {k}]) -> {dtype}[8, 16] {{
  %w: {dtype}[16, {k}] = param("w")
  %0: {dtype}[8, 16] = aten.linear.default(%x, %w)
  return %0
}}"""


@pytest.mark.parametrize(("k", "is_candidate"), [(768, True), (769, False), (3072, False)])
def test_one_long_chain_is_no_candidate(monkeypatch: pytest.MonkeyPatch, k: int, is_candidate: bool) -> None:
    """oneDNN sums in one chain: beyond some terms its error is more than 1.5 times eager's."""
    monkeypatch.setenv("SMELT_ISA", "none")
    state = {"w": torch.ones(16, k)}
    (choice,) = lowered(_product(k), state, Options(deterministic=True)).report.choices
    names = {c.name for c in choice.candidates}
    assert "plain" in names and ("onednn" in names) == (is_candidate and mkldnn.has_linear())
    (fast,) = lowered(_product(k), state, Options(deterministic=True, numerics="fast")).report.choices
    assert ("onednn" in {c.name for c in fast.candidates}) == mkldnn.has_linear()


def test_eagers_library_leaves_no_choice() -> None:
    (choice,) = lowered(_product(64), {"w": torch.ones(16, 64)}, Options(numerics="eager-library")).report.choices
    assert [c.name for c in choice.candidates] == ["plain"]


def test_a_choice_is_one_dtypes() -> None:
    text = """\
graph f(%x: f32[8, 64], %y: bf16[8, 64], %z: f64[8, 64]) -> f32[8, 16], bf16[8, 16], f64[8, 16] {
  %u: f32[16, 64] = param("u")
  %v: bf16[16, 64] = param("v")
  %w: f64[16, 64] = param("w")
  %0: f32[8, 16] = aten.linear.default(%x, %u)
  %1: bf16[8, 16] = aten.linear.default(%y, %v)
  %2: f64[8, 16] = aten.linear.default(%z, %w)
  return %0, %1, %2
}"""
    state = {"u": torch.ones(16, 64), "v": torch.ones(16, 64).bfloat16(), "w": torch.ones(16, 64).double()}
    choices = lowered(text, state, Options(deterministic=True)).report.choices
    assert [(c.shape, c.nodes) for c in choices] == [(f"{d} 8x16x64", 1) for d in ("f32", "bf16", "f64")]
