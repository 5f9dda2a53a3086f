"""Compiled objects under torch's modes and transforms, in the background, and as `explain` shows them."""

from __future__ import annotations

import json
import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import smelt
from smelt.diag import SmeltWarning
from smelt.inspect.page.html import model_of
from smelt.inspect.report import KEYS
from tests.promises.models import RULE, Block, assert_agrees, block, entry_of, images


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * FACTOR


FACTOR = 3.0


# --- gradients


def test_gradients_flow_without_a_warning() -> None:
    made = block()
    x = made.inputs["x"]
    compiled = smelt.compile(made.model, options=RULE)
    assert_agrees(compiled(x), made.model(x))
    with torch.enable_grad():
        with warnings.catch_warnings():
            warnings.simplefilter("error", SmeltWarning)
            for _ in range(3):
                compiled.zero_grad(set_to_none=True)
                out = compiled(x)
                out.square().sum().backward()
        found = {n: p.grad.clone() for n, p in made.model.named_parameters() if p.grad is not None}
        made.model.zero_grad(set_to_none=True)
        made.model(x).square().sum().backward()
    assert found.keys() == {n for n, _ in made.model.named_parameters()}
    for name, parameter in made.model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-5)
    for _ in range(2):
        assert_agrees(compiled(x), made.model(x))
    entry_of(compiled)


def test_without_anything_to_differentiate_grad_mode_is_compiled() -> None:
    model = Block().eval().requires_grad_(False)
    compiled, x = smelt.compile(model, options=RULE), torch.randn(2, 4, 32)
    with torch.enable_grad():
        for _ in range(3):
            found = compiled(x)
            assert_agrees(found, model(x))
            assert not found.requires_grad
        entry_of(compiled)


def test_inference_mode() -> None:
    made = block()
    x = made.inputs["x"]
    compiled = smelt.compile(made.model, options=RULE)
    want = made.model(x)
    for _ in range(3):
        with torch.inference_mode():
            found = compiled(x)
            assert found.is_inference() == made.model(x).is_inference()
            assert_agrees(found, want)
        outside = compiled(x)
        assert not outside.is_inference()
        assert_agrees(outside, want)
    assert compiled.stats().fallbacks == {}


# --- modes and transforms


@pytest.mark.parametrize("sample", [block, images])
def test_autocast(sample: Any) -> None:
    made = sample()
    x = made.inputs["x"]
    compiled = smelt.compile(made.model, options=RULE)
    plain = made.model(x)
    exact = sample().model.double()(x.double())
    for _ in range(3):
        assert_agrees(compiled(x), plain)
        with torch.autocast("cpu", torch.bfloat16):
            found, want = compiled(x), made.model(x)
        assert found.dtype == want.dtype and found.stride() == want.stride()
        ours, eagers = ((t.double() - exact).square().mean().sqrt() for t in (found, want))
        assert (plain - exact).abs().max() * 10 < ours < 1.5 * eagers
    assert compiled.stats().fallbacks == {} and len(compiled.stats().rows) == 2


def test_autocast_inside_the_program() -> None:
    linear = nn.Linear(16, 16)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            low = linear(x)
        return low, linear(x)

    x = torch.randn(4, 16)
    compiled = smelt.compile(f, options=RULE)
    for _ in range(3):
        assert_agrees(compiled(x), f(x))
    assert [t.dtype for t in compiled(x)] == [torch.bfloat16, torch.float32]
    assert "autocast(bf16)" in str(entry_of(compiled).graph)


def test_transforms_run_the_original() -> None:
    x = torch.randn(3, 5)
    compiled = smelt.compile(scaled, options=RULE)
    for used in (False, True):
        if used:
            compiled(x), compiled(x)
        assert torch.equal(torch.vmap(compiled)(x), scaled(x))
        assert torch.equal(torch.func.jvp(compiled, (x,), (x,))[1], torch.func.jvp(scaled, (x,), (x,))[1])
        with torch.enable_grad():
            grads = [torch.func.grad(lambda y, f=f: f(y).sum())(x) for f in (compiled, scaled)]
        assert torch.equal(*grads)
        ops = [str(n.target) for n in make_fx(compiled)(x).graph.nodes]
        assert ops == [str(n.target) for n in make_fx(scaled)(x).graph.nodes]
        with torch._subclasses.FakeTensorMode() as mode:
            assert compiled(mode.from_tensor(x)).shape == (3, 5)
        assert compiled(torch.empty(3, 5, device="meta")).is_meta
    assert compiled.stats().builds == 1


def test_jit_trace_runs_the_original() -> None:
    x = torch.randn(3, 5)
    compiled = smelt.compile(scaled, options=RULE)
    compiled(x), compiled(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(compiled, (x,))
    y = torch.randn(3, 5)
    assert torch.equal(traced(y), scaled(y)) and "aten::relu" in str(traced.inlined_graph)


def test_export_runs_the_original() -> None:
    class Outer(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + 1

    made = block()
    x = made.inputs["x"]
    compiled = smelt.compile(made.model, options=RULE)
    compiled(x), compiled(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(Outer(compiled), (x,), strict=False)
    assert_agrees(exported.module()(x), made.model(x) + 1)
    assert sum("linear" in str(n.target) for n in exported.graph.nodes) == 4


def test_the_default_dtype_is_guarded() -> None:
    compiled = smelt.compile(lambda x: x + torch.ones(3), options=RULE)
    x = torch.zeros(3)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            assert compiled(x).dtype == dtype
        finally:
            torch.set_default_dtype(torch.float32)


# --- when it is compiled


def test_warmup() -> None:
    made = block()
    x = made.inputs["x"]
    compiled = smelt.compile(made.model, options=RULE)
    with torch.enable_grad():
        assert_agrees(compiled.warmup(x), made.model(x).detach())
    assert compiled.stats().builds == 1
    assert_agrees(compiled(x), made.model(x))
    assert entry_of(compiled).executable.stats.runs == 1
    compiled.warmup(x=torch.randn(1, 3, 32))
    assert compiled.stats().builds == 2


def test_refresh_sees_writes_that_torch_does_not_count() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval()
    compiled, x = smelt.compile(model, options=RULE), torch.randn(128, 64)
    compiled(x), compiled(x)
    model[0].weight.data.mul_(2)
    compiled.refresh()
    for _ in range(2):
        assert_agrees(compiled(x), model(x))
    assert compiled.stats().fallbacks == {}


def test_in_the_background() -> None:
    made = block()
    x = made.inputs["x"]
    want = made.model(x)
    compiled = smelt.compile(made.model, background=True, options=RULE)
    assert_agrees(compiled(x), want)
    deadline = time.monotonic() + 60
    while not compiled.stats().rows[0].is_ready and time.monotonic() < deadline:
        assert_agrees(compiled(x), want)
        time.sleep(0.001)
    runs = entry_of(compiled).executable.stats.runs
    for _ in range(3):
        assert_agrees(compiled(x), want)
    assert entry_of(compiled).executable.stats.runs == runs + 3
    assert set(compiled.stats().fallbacks) <= {"still compiling in the background"}


def test_a_new_shape_is_a_new_entry() -> None:
    made = block()
    compiled = smelt.compile(made.model, options=RULE, dynamic=False)
    for _ in range(2):
        for shape in ((2, 8, 32), (1, 3, 32), (0, 4, 32), (2, 1, 32)):
            x = torch.randn(*shape)
            assert_agrees(compiled(x), made.model(x))
    stats = compiled.stats()
    assert stats.builds == 4 and stats.fallbacks == {} and all(row.hits == 1 for row in stats.rows)


def test_sizes_that_change_are_free() -> None:
    made = block()
    compiled = smelt.compile(made.model, options=RULE)
    for _ in range(2):
        for shape in ((2, 8, 32), (1, 3, 32), (0, 4, 32), (2, 1, 32), (5, 7, 32)):
            x = torch.randn(*shape)
            assert_agrees(compiled(x), made.model(x))
    stats = compiled.stats()
    assert stats.builds <= 4 and stats.fallbacks == {}


# --- explain


def test_explain_has_all_keys_for_both_kinds(tmp_path: Path) -> None:
    made = block()
    x = made.inputs["x"]
    compiled, program = smelt.compile(made.model, options=RULE), smelt.trace(made.model, x, options=RULE)
    for stage, thing in enumerate((compiled, program, compiled, program)):
        if stage > 1:
            thing(x), thing(x)
        report = smelt.explain(thing)
        data = report.to_dict()
        assert set(data) == {"name", "verdict", *KEYS}
        assert json.loads(json.dumps(data)) == data
        assert "Block" in str(report) and all(len(line) <= 130 for line in str(report).splitlines())
        page = report.to_html(tmp_path / f"report{stage}.html").read_text()
        assert model_of(page)["text"] == report.to_text(width=120)
    for thing in (compiled, program):
        data = smelt.explain(thing).to_dict()
        (graph,) = data["graphs"]
        assert smelt.parse(graph["captured"]) == program.graph
        assert smelt.parse(graph["optimized"]) == program.graph_for(x)
        assert graph["runs"] == "natively" and "kernel" in graph["nodes by how they run"]
        assert {row["pass"] for row in data["passes"]} >= {"functionalize", "cse", "dce", "order"}
        assert all(row["ms"] >= 0 for row in (*data["passes"], *data["timings"]))
        assert data["kernels"] and data["memory"] and data["timings"] and data["breaks"] == []
        model = model_of(smelt.explain(thing).to_html(tmp_path / "page.html").read_text())
        assert any("aten.linear.default(%" in node["text"] for node in model["codes"][0]["nodes"])
        assert any("models.py" in source["file"] for source in model["sources"])


def test_guards_carry_their_source_line() -> None:
    made = block()
    compiled = smelt.compile(made.model, options=RULE)
    compiled(made.inputs["x"])
    guards = smelt.explain(compiled).to_dict()["guards"]
    assert guards
    placed = [g for g in guards if "models.py:" in g["where"]]
    assert any("heads" in g["guard"] for g in placed), [g["guard"] for g in guards]
    with_norms = images()
    other = smelt.compile(with_norms.model, options=RULE)
    other(with_norms.inputs["x"])
    assert any("training" in g["guard"] for g in smelt.explain(other).to_dict()["guards"])

    other = smelt.compile(scaled, options=RULE)
    other(torch.randn(3))
    (factor,) = [g for g in smelt.explain(other).to_dict()["guards"] if "FACTOR" in g["guard"]]
    assert factor["value"] == "3.0" and f"{__file__}:" in factor["where"] and "scaled" in factor["where"]


def test_explain_tells_of_misses_and_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x = smelt.compile(scaled, options=RULE), torch.randn(3)
    compiled(x), compiled(x)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 4.0)
    assert torch.equal(compiled(x), torch.relu(x) * 4)
    with pytest.warns(SmeltWarning, match="sparse"):
        compiled(x.to(torch.complex64).real.to_sparse())
    data = smelt.explain(compiled).to_dict()
    (miss,) = data["recompiles"]
    assert "FACTOR" in miss["guard"] and "3.0" in miss["guard"] and "4.0" in miss["guard"]
    assert [f for f in data["fallbacks"] if "sparse" in f["reason"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        drawn = random.Random(0)
        refused = smelt.compile(lambda x: x * drawn.random(), options=RULE)
        refused(x), refused(x)
    report = smelt.explain(refused).to_dict()
    assert report["breaks"] and f"{__file__}:" in report["breaks"][0]["why"]
    assert report["fallbacks"][0]["times"] == 2
