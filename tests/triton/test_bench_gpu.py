"""`smelt bench --device cuda`, kernels' times and the device's ceilings, on a driver whose times are scripted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner

import smelt
from smelt.bench import on_gpu
from smelt.bench.models import Built, Model
from smelt.bench.on_gpu import dry_run, run
from smelt.cli.app import app
from smelt.inspect.gpu import gpu_listing
from smelt.inspect.kernels import compiled_units, kernel_rows
from smelt.inspect.roofline import measure_gpu_ceilings
from tests.triton.fake_cuda import fake_gpu
from tests.triton.fake_driver import FakeDriver


@pytest.fixture
def gpu() -> Iterator[FakeDriver]:
    with fake_gpu() as driver:
        yield driver


class Small(nn.Module):
    """A product and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.softmax(self.fc(x), -1)
        return y * 2.0 if int((y > 0).sum()) * 3 > 0 else y


def _small() -> Built:
    return Small(), (torch.randn(4, 16),)


MODEL = Model("small", "a small one", _small)


def test_rows_of_a_model(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two microseconds a launch, five for each operator of torch's.
    gpu.cost = lambda name: 2.0
    gpu.of_torch = lambda: 5.0 * len(gpu.device.ran)  # type: ignore[attr-defined]
    monkeypatch.setattr(on_gpu, "_MOST_CALLS", 3)
    monkeypatch.setitem(on_gpu.MODES, "inductor", "no such mode")
    ((ceilings, rows),) = run([MODEL], ("smelt", "inductor"), torch.float32, rounds=2)
    eager, ours, inductor = rows
    assert [row.system for row in rows] == ["eager", "smelt", "inductor"]
    assert eager.ms and ours.ms and eager.ratio == 1.0 and ours.ratio == pytest.approx(eager.ms / ours.ms)
    assert ours.kernels and ours.kernels >= 3 and ours.error is not None and ours.error < 1e-5
    # A product of whole numbers is Python's: its operand is read where it stands.
    assert len(ours.waits) == 1 and "test_bench_gpu.py" in ours.waits[0]
    assert inductor.ms is None and "no such mode" in inductor.note
    assert ours.bound_ms == pytest.approx((16 * 24 + 24) * 4 / ceilings.gbps / 1e6)
    assert gpu.events == {}


def test_times_of_kernels(gpu: FakeDriver) -> None:
    gpu.cost = lambda name: 7.0 if "dot" in name else 3.0
    program = smelt.compile(lambda x, w: torch.softmax(F.linear(x, w), -1), fullgraph=True, options={"profile": True})
    x, w = torch.randn(32, 64).cuda(), torch.randn(48, 64).cuda()
    program(x, w)
    rows = kernel_rows(compiled_units(program), measure_gpu_ceilings())
    assert sorted(row["us"] for row in rows) == [3.0, 7.0]
    product = next(row for row in rows if row["us"] == 7.0)
    assert product["bytes"] == (32 * 64 + 48 * 64 + 32 * 48) * 4 and product["flops"] >= 2 * 32 * 64 * 48
    assert product["GB/s"] == pytest.approx(product["bytes"] / 7.0 / 1e3) and product["of the roofline bound"] > 0
    report = smelt.explain(program)
    assert any(row.get("us") == 7.0 for row in report.kernels)
    before = len(gpu.calls)
    kernel_rows(compiled_units(program))
    assert "record" not in gpu.calls[before:]  # measured once
    plain = smelt.compile(lambda x: x.exp(), fullgraph=True)
    plain(x)
    assert "us" not in kernel_rows(compiled_units(plain))[0] and "record" not in gpu.calls[before:]


def test_ceilings(gpu: FakeDriver) -> None:
    gpu.of_torch = lambda: 4.0 * sum(name in ("copy_", "mm") for name in gpu.device.ran)  # type: ignore[attr-defined]
    found = measure_gpu_ceilings()
    assert found.threads == 132 and found.gflops == pytest.approx(2 * 8**3 / 4.0 / 1e3)


def test_without_a_gpu(tmp_path: Path) -> None:
    (row,) = dry_run([Model("flat", "all of it in kernels", lambda: (Flat(), (torch.randn(4, 16),)))], torch.bfloat16)
    assert row.kernels == 2 and row.note == "all of it has kernels" and row.ms is None
    runner = CliRunner()
    file = tmp_path / "rows.json"
    done = runner.invoke(app, ["bench", "--device", "cuda", "--dry-run", "--models", "lerp200", "--json", str(file)])
    assert done.exit_code == 0 and "compiled for sm_90" in done.output
    assert json.loads(file.read_text())[0]["model"] == "lerp200"
    for arguments in (["--device", "cuda"], ["--device", "tpu"], ["--dry-run"], ["--device", "cuda", "--peers", "jit"]):
        refused = runner.invoke(app, ["bench", "--models", "lerp200", *arguments])
        assert refused.exit_code == 2, refused.output


class Flat(nn.Module):
    """No branch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.fc(x), -1)


def test_machine_instructions() -> None:
    x = torch.randn(64, 128)
    graph = smelt.trace(lambda x: torch.softmax(x, -1), (x,)).graph_for(x)
    text = gpu_listing(graph, "sass", 90)
    assert "LDG" in text and "STG" in text and "MUFU.EX2" in text
