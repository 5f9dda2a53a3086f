"""Plans with layers over few bits on disk: a fresh process reads them, and believes their error only where it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.codegen.llvm.isa import host_isa
from smelt.compiler import Unit, kept_plans
from smelt.compiler.programs import narrow_layers
from smelt.runtime.machine.cache import list_cache
from tests.forked import smelt_forks

pytestmark = pytest.mark.skipif(host_isa() is None, reason="own kernels are not built here")

PROGRAM = """
import json, sys, torch, smelt
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128)).eval()
x = torch.randn(8, 128)
compiled = smelt.compile(model, options={"cache_dir": sys.argv[1], "dtype": sys.argv[2], "max_error": 0.3})
with torch.no_grad():
    answers = [compiled(x), compiled(x)]
unit = compiled.stats().rows[0].entry
error = (answers[1] - model(x)).square().mean().sqrt().item()
print(json.dumps([unit.is_from_disk, len(unit.narrowed.chosen), unit.narrowed.reached, error, answers[1].tolist()]))
"""


@pytest.mark.parametrize("dtype", narrow_layers.NARROW)
def test_a_fresh_process_reads_them(dtype: str, plans_made_here: None, tmp_path: Path) -> None:
    def ran() -> list[Any]:
        told = smelt_forks().run(f"import sys; sys.argv[1:] = {[str(tmp_path), dtype]!r}\n{PROGRAM}")
        found: list[Any] = json.loads(told)
        return found

    first, second = ran(), ran()
    assert (first[0], second[0]) == (False, True)
    assert second[1] == first[1] == 2
    assert second[2] == pytest.approx(first[2], rel=0.05) and 0 < second[2] <= 0.3
    assert second[4] == first[4] and second[3] > 0


@pytest.fixture
def trials(plans_made_here: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The searches for layers that were made."""
    monkeypatch.setattr(kept_plans, "WORTH_MS", 0.0)
    found: list[Any] = []
    most = narrow_layers._Trial

    def noted(*args: Any) -> Any:
        found.append(args)
        return most(*args)

    monkeypatch.setattr(narrow_layers, "_Trial", noted)
    return found


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128)).eval()


def called(model: nn.Module, x: torch.Tensor, folder: Path, bound: float) -> Unit:
    compiled = smelt.compile(model, options={"cache_dir": str(folder), "dtype": "int8", "max_error": bound})
    with torch.no_grad():
        for _ in range(2):
            found = compiled(x)
        expected = model(x)
    entry = compiled.stats().rows[0].entry
    assert isinstance(entry, Unit)
    assert (found - expected).square().mean().sqrt() <= bound * expected.square().mean().sqrt()
    return entry


def test_other_weights_must_keep_the_bound(trials: list[Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 128)
    first = called(layers(), x, tmp_path, 0.02)
    assert not first.is_from_disk and first.why_not_kept == "" and len(trials) == 1
    assert called(layers(), x, tmp_path, 0.02).is_from_disk and len(trials) == 1
    # One input is a thousand times the others, so that few bits have nothing left for these: layers fall back.
    odd = layers()
    with torch.no_grad():
        odd[0].weight[:, 0] *= 1e-3
    x[:, 0] *= 1000
    entry = called(odd, x, tmp_path, 0.02)
    assert not entry.is_from_disk and len(trials) == 2 and len(entry.narrowed.chosen) < 2  # type: ignore[union-attr]


@pytest.mark.parametrize("content", [b"", b"{", b'{"chosen": [7], "count": 2, "layers": [], "reached": 0}'])
def test_a_broken_note_is_made_anew(content: bytes, trials: list[Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = layers(), torch.randn(8, 128)
    called(model, x, tmp_path, 0.05)
    notes = [file.path for file in list_cache(tmp_path) if file.kind == kept_plans.KIND]
    small = min(notes, key=lambda path: path.stat().st_size)
    small.write_bytes(content)
    assert not called(model, x, tmp_path, 0.05).is_from_disk and len(trials) == 2
    assert called(model, x, tmp_path, 0.05).is_from_disk and len(trials) == 2
