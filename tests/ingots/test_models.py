"""Whole models, saved and loaded in a process that has neither their source nor `transformers`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.bench.models import MODELS
from tests.ingots.test_saved import agree, elsewhere
from tests.zoo.build import build, model_types

pytestmark = pytest.mark.nightly

_ARCHITECTURES, _AT_ONCE = 60, 10


def _sample() -> list[str]:
    pytest.importorskip("transformers")
    names = model_types()
    random.Random(5).shuffle(names)
    return names


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_models_of_the_benchmark(model: Any, tmp_path: Path) -> None:
    for needed in model.needs:
        pytest.importorskip(needed)
    target, args = model.build()
    with torch.no_grad():
        program = smelt.trace(target, args)
        program.save(tmp_path / "m.ingot")
        (is_native, why_not, results) = elsewhere(tmp_path, {"m": (tmp_path / "m.ingot", [(args, {})])})["m"]
        assert is_native, why_not
        _alike(results[0], program(*args))


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")  # of paths that a trace holds for
def test_architectures(tmp_path: Path) -> None:
    """Some architectures fail in eager with the inputs that the rules make: those are no samples."""
    names = iter(_sample())
    for _ in range(_ARCHITECTURES // _AT_ONCE):
        saved: dict[str, Any] = {}
        wanted: dict[str, Any] = {}
        for name in names:
            sample = _runs(name)
            if sample is None:
                continue
            with torch.no_grad():
                program = smelt.trace(sample.model, (), dict(sample.inputs))
                path = tmp_path / f"{name}.ingot"
                program.save(path)
                torch.manual_seed(3)
                wanted[name] = program(**sample.inputs)
            saved[name] = path, [((), dict(sample.inputs))]
            if len(saved) == _AT_ONCE:
                break
        for name, (_, _, results) in elsewhere(tmp_path, saved).items():
            _alike(results[0], wanted[name])


def _runs(name: str) -> Any:
    try:
        sample = build(name)
        with torch.no_grad():
            sample.model(**sample.inputs)
    except Exception:
        return None
    return sample


def _alike(found: Any, wanted: Any) -> None:
    """Tensors of both in order: the classes of results are not at hand in the other process."""
    one, other = leaves(found), leaves(wanted)
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        agree(a, b)


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [leaf for item in vars(value).values() for leaf in leaves(item)] if hasattr(value, "__dict__") else []
