"""Random whole programs, and those that once were wrong, as ONNX models: calls give what the saved program gives."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.runtime.ingot import structure
from smelt.runtime.ingot.entry_point import EntryPoint
from tests.onnx.harness import Session, assert_alike, exported
from tests.programs.run import KINDS
from tests.programs.subject import load

pytestmark = pytest.mark.nightly

FOUND = sorted((Path(__file__).parents[1] / "programs" / "found").glob("*.py"))
_CALLS = 5


def _exported(path: Path, folder: Path) -> Any:
    """The model; None for a program that is not one graph, that no ingot holds, or that ONNX cannot say."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            subject = load(path)
            return exported(smelt.trace(subject.fn, subject.args(0), subject.kwargs(0) or None), folder)
        except smelt.SmeltError:
            return None
        except Exception:  # the program's own
            return None


def _entry(folder: Path) -> EntryPoint:
    return smelt.load(folder / "m.ingot", allow_native=False).entry("forward")


def _compare(path: Path, folder: Path) -> int:
    """How many calls were compared."""
    model = _exported(path, folder)
    if model is None:
        return 0
    session, method, compared = Session(model.path), _entry(folder).method, 0
    for number in range(_CALLS):
        subject = load(path)
        try:
            given = structure.flatten(
                method.args, method.kwargs, subject.args(number), subject.kwargs(number), len(method.places)
            )
            _entry(folder)._check(given, {})
        except smelt.CaptureError:
            continue  # arguments of another structure or type
        inputs = dict(zip(model.inputs, given, strict=False))  # behind them is state, as it was saved
        try:
            wanted = _entry(folder)._by_op([each.clone() for each in given], {})
        except Exception:
            with pytest.raises(Exception, match=r"\w"):
                session.run(inputs)
        else:
            found = session.run(inputs)
            values = [each for each in wanted if isinstance(each, (torch.Tensor, int, float, bool, list))]
            assert_alike(found[: len(values)], values)
        compared += 1
    return compared


def test_programs_that_once_were_wrong(tmp_path: Path) -> None:
    with torch.no_grad():
        assert sum(_compare(path, tmp_path) for path in FOUND) >= 50


@pytest.mark.parametrize("kind", ["generate", "wide", "broad"])
def test_random_programs(kind: str, tmp_path: Path) -> None:
    compared = 0
    with torch.no_grad():
        for seed in range(500, 540):
            path = tmp_path / f"program_{seed}.py"
            path.write_text(KINDS[kind](seed, 4).text)
            compared += _compare(path, tmp_path)
    assert compared >= 40
