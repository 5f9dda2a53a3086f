"""Models of the benchmark, from C: Python's bits, with libc alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.bench.models import MODELS
from smelt.package.c.export import export
from smelt.runtime.ingot import structure
from smelt.runtime.ingot.natives import targets
from tests.ingots_c.client import Library
from tests.ingots_c.test_calls import alike

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_models_of_the_benchmark(model: Any, tmp_path: Path) -> None:
    for needed in model.needs:
        pytest.importorskip(needed)
    target, args = model.build()
    with torch.no_grad():
        smelt.trace(target, args).save(tmp_path / "m.ingot", targets=targets()[:1])
        exported = export(tmp_path / "m.ingot", tmp_path / "build")
        entry = smelt.load(tmp_path / "m.ingot").entry("forward")
        inputs = structure.flatten(entry.method.args, entry.method.kwargs, args, {}, len(entry.method.places))
        found = Library(exported).open(exported.weights).context(2).call("forward", *inputs)
        wanted = [each for each in entry._outputs(inputs, {}) if isinstance(each, (torch.Tensor, int, float))]
        assert alike(found, wanted)
