"""Rows of training steps: what they say, and that what is compared is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from smelt.bench.harvest import harvest, total_flops
from smelt.bench.measure import Plan
from smelt.bench.models import Model
from smelt.bench.rows import Row
from smelt.bench.suite import Suite, run
from smelt.bench.systems import Context
from smelt.bench.training import training_systems
from smelt.bench.training_models import TRAINING_MODELS, Gradients
from smelt.cli import app

PLAN = Plan(repeats=3, sample_ms=0.05, budget_s=2.0, cpu_time=True)


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Conv2d(2, 4, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.map(x)).square().mean()


TINY = Model("tiny", "", lambda: (Gradients(Loss()), (torch.randn(3, 2, 6, 6),)), trains=True)


def rows_of(model: Model, *names: str) -> dict[str, Row]:
    chosen = tuple(s for s in training_systems() if s.name in names)
    with torch.random.fork_rng():
        (rows,) = run(Suite((model,), chosen, threads=1, plan=PLAN, one_thread=False))
    return {row.system: row for row in rows}


def test_rows_of_training_have_gradients_memory_and_losses() -> None:
    rows = rows_of(TINY, "eager", "eager-fused", "smelt")
    for name in ("eager", "eager-fused", "smelt"):
        row = rows[name]
        assert row.error is None
        assert row.median_ms is not None
        assert row.rms_ratio is not None
        assert row.rms_ratio <= 1.5
        assert row.loss_gap is not None
        assert row.loss_gap < 1e-5
        assert len(row.settings["losses"]) == 10
    assert (rows["eager"].max_abs_err or 0) < 1e-6
    # Autograd keeps relu's result, for relu and for the square: one memory. The input is the caller's.
    assert rows["eager"].saved_mb == pytest.approx(3 * 4 * 4 * 4 * 4 / 1e6)
    assert rows["eager"].settings["fused"] is False
    assert rows["eager-fused"].settings["fused"] is True


def test_products_of_a_gradient_are_counted() -> None:
    target, args = TINY.build()
    forward = 2 * 3 * 4 * 4 * 4 * 2 * 9
    assert total_flops(harvest(target.loss, args)) == forward  # type: ignore[attr-defined]
    assert total_flops(harvest(target, args)) == 2 * forward  # the input needs none


def test_a_step_begins_again_and_moves_on(tmp_path: Path) -> None:
    target, args = TINY.build()
    (eager, *_) = training_systems()
    ready = eager.prepare(target, args, Context(1, "f32", tmp_path))
    want = target(*args)
    for _ in range(2):
        for got, expected in zip(ready.outputs(None), want, strict=True):
            torch.testing.assert_close(got, expected)
    assert ready.facts is not None
    losses: list[Any] = ready.facts()["losses"]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]


def test_the_command_times_training_steps(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    chosen = ("--models", "mlp_step", "--peers", "eager-fused", "--threads", "1", "--cpu-time")
    result = CliRunner().invoke(app, ["bench", "--train", "--quick", *chosen, "--json", str(file)])
    assert result.exit_code == 0, result.output
    rows = {row["system"]: row for row in json.loads(file.read_text())}
    assert rows["eager-fused"]["ratio_to_eager"] > 0
    assert rows["eager-fused"]["saved_mb"] == rows["eager"]["saved_mb"] > 0
    assert rows["eager"]["settings"]["timing"]["cpu_time"] is True
    wrong = CliRunner().invoke(app, ["bench", "--train", "--models", "bert"])
    assert wrong.exit_code == 2
    assert all(m.name in wrong.output for m in TRAINING_MODELS)
    assert CliRunner().invoke(app, ["bench", "--cpu-time", "--threads", "2"]).exit_code == 2
