"""What a person sees of own kernels: rows, listings in three forms, measured times, the roofline."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import smelt
from smelt.codegen.llvm.isa import host_isa
from smelt.diag import SmeltError
from smelt.inspect.kernels import compiled_units, kernel_rows, launches, listing
from smelt.inspect.roofline import Ceilings, measure_ceilings, plot_roofline

pytestmark = pytest.mark.skipif(host_isa() is None, reason="no own kernels on this machine")


class Twice(nn.Module):
    """Two equal layers, so that one kernel is launched twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(96, 96), nn.Linear(96, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """f32[n, 96] -> f32[n, 96]."""
        return self.second(torch.relu(self.first(x)))


@pytest.fixture(scope="module")
def profiled() -> smelt.Compiled:
    compiled = smelt.compile(Twice().eval(), options={"profile": True})
    x = torch.randn(64, 96)
    with torch.no_grad():
        for _ in range(4):
            compiled(x)
    return compiled


def test_each_row_says_what_it_computes_and_how_fast(profiled: smelt.Compiled) -> None:
    rows = kernel_rows(compiled_units(profiled), Ceilings(gflops=100.0, gbps=10.0, threads=1))
    products = [row for row in rows if "aten.linear" in row["nodes"]]
    assert sum(row["launches"] for row in products) == 2
    for row in products:
        assert row["flops"] >= 2 * 64 * 96 * 96
        assert row["bytes"] >= 4 * (64 * 96 * 2 + 96 * 96)
        assert __file__ in row["where"]
        assert row["GFLOP/s"] == pytest.approx(row["flops"] / row["us"] / 1e3)
        assert row["GB/s"] == pytest.approx(row["bytes"] / row["us"] / 1e3)
        floor = max(row["bytes"] / 10.0, row["flops"] / 100.0) / 1e3
        assert row["of the roofline bound"] == pytest.approx(floor / row["us"])


def test_launches_stand_in_the_order_of_the_plan(profiled: smelt.Compiled) -> None:
    (unit,) = compiled_units(profiled)
    found = launches(unit)
    assert all(launched.measured is not None and launched.measured.calls == 3 for launched in found)
    scopes = [scope for launched in found for scope in launched.report.scopes]
    assert scopes.index("first") < scopes.index("second")


@pytest.mark.spread(3)
@pytest.mark.parametrize("form", ["loops", "llvm", "assembly"])
def test_a_listing_has_each_kernel_once_with_its_operators(profiled: smelt.Compiled, form: str) -> None:
    (unit,) = compiled_units(profiled)
    text = listing(unit, form)
    distinct = {launched.report.symbol for launched in launches(unit)}
    assert text.count("; kernel ") == len(distinct)
    assert "aten.linear.default" in text and "aten.relu.default" in text and "in first" in text
    if form != "loops":
        for symbol in distinct:
            assert symbol in text
    assert ("define i32 @" in text) == (form == "llvm")
    assert ("ret" in text) == (form != "loops")


def test_a_program_without_kernels_says_so() -> None:
    compiled = smelt.compile(lambda x: x.view(-1))
    compiled(torch.ones(2, 2))
    (unit,) = compiled_units(compiled)
    with pytest.raises(SmeltError, match="no kernel of its own"):
        listing(unit)


def test_explain_has_own_kernels_first(profiled: smelt.Compiled) -> None:
    report = smelt.explain(profiled)
    assert "kernel" in report.kernels[0] and report.kernels[0]["us"] > 0
    assert "GFLOP/s" in str(report)


def test_explain_says_why_nodes_were_fused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu()

    compiled = smelt.compile(f)
    compiled(torch.randn(64, 64))
    rows = [row for row in smelt.explain(compiled).kernels if "group" in row]
    assert rows and all(row["why"] for row in rows)
    fused = [row for row in rows if row["fused"]]
    assert fused and fused[0]["bytes as one"] < fused[0]["bytes apart"]


def test_the_roofline_is_drawn(profiled: smelt.Compiled, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = kernel_rows(compiled_units(profiled))
    target = tmp_path / "roofline.png"
    assert plot_roofline(rows, measure_ceilings(), target) == ""
    assert target.read_bytes().startswith(b"\x89PNG")


def test_without_times_there_is_no_roofline(tmp_path: Path) -> None:
    compiled = smelt.compile(Twice().eval())
    with torch.no_grad():
        compiled(torch.randn(64, 96))
    why = plot_roofline(kernel_rows(compiled_units(compiled)), Ceilings(1.0, 1.0, 1), tmp_path / "no.png")
    assert "profile" in why
    assert not (tmp_path / "no.png").exists()
