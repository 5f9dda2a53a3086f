"""Random whole programs, and those that once were wrong: saved, they give what they gave, in Python and from C."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.package.c.export import export
from smelt.runtime.ingot import structure
from smelt.runtime.ingot.entry_point import EntryPoint
from smelt.runtime.ingot.natives import targets
from tests.ingots.test_models import leaves
from tests.ingots.test_saved import elsewhere
from tests.ingots_c.client import Library
from tests.ingots_c.test_calls import alike
from tests.programs.run import KINDS
from tests.programs.subject import load

pytestmark = pytest.mark.nightly

FOUND = sorted((Path(__file__).parents[1] / "programs" / "found").glob("*.py"))
_CALLS, _AT_ONCE = 4, 20
_PLAIN = (torch.Tensor, int, float, bool, str, type(None))
_HAS_NUMBERS = (torch.Tensor, int, float)


def _saved(path: Path, file: Path) -> list[Any] | None:
    """Calls that native code of the saved program answers; None where there is no such program."""
    try:
        subject = load(path)
        program = smelt.trace(subject.fn, subject.args(0), subject.kwargs(0) or None)
        program.save(file, targets=targets()[:1])
    except Exception:  # the program's own, or why it is not one graph, or not saved
        return None
    calls: list[Any] = []
    loaded = smelt.load(file)
    if loaded.entry("forward").method.draws:
        return None  # its path may follow from what is drawn
    for number in range(_CALLS):
        again = load(path)
        call = again.args(number), again.kwargs(number) or {}
        if _is_plain(call) and _answers(loaded, call):
            calls.append(call)
        else:
            break
    return calls if calls and loaded.is_native else None


def _is_plain(value: Any) -> bool:
    """Whether all of it is known where the program's source is not."""
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    return all(map(_is_plain, value.values())) if type(value) is dict else isinstance(value, _PLAIN)


def _answers(loaded: Any, call: Any) -> bool:
    args, kwargs = copy.deepcopy(call)
    try:
        loaded(*args, **kwargs)
    except Exception:
        return False
    return loaded.entry("forward")._late is None  # nothing was computed by the graph's text


def _wanted(file: Path, path: Path, calls: Iterable[Any]) -> list[Any]:
    """What the program itself gives, before it was saved."""
    subject = load(path)
    program = smelt.trace(subject.fn, subject.args(0), subject.kwargs(0) or None)
    return [program(*args, **kwargs) for args, kwargs in copy.deepcopy(list(calls))]


def _check(found: Any, wanted: Any) -> None:
    """Equal up to rounding; the classes of results are not at hand in the other process."""
    for a, b in zip(leaves(found), leaves(wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-6, equal_nan=True)


def _check_c(file: Path, folder: Path, calls: Iterable[Any]) -> int:
    """How many calls from C gave Python's bits."""
    try:
        exported = export(file, folder)
    except smelt.PackageError:
        return 0
    entry: EntryPoint = smelt.load(file).entry("forward")
    method, context, compared = entry.method, Library(exported).open(exported.weights).context(), 0
    for args, kwargs in copy.deepcopy(list(calls)):
        inputs = structure.flatten(method.args, method.kwargs, args, kwargs, len(method.places))
        found = context.call("forward", *copy.deepcopy(inputs))
        wanted = [each for each in entry._outputs(inputs, {}) if isinstance(each, _HAS_NUMBERS)]
        assert alike(found, wanted)
        compared += 1
    return compared


def _compare(paths: list[Path], folder: Path) -> tuple[int, int]:
    """How many calls were compared in a fresh process, and from C."""
    saved: dict[str, tuple[Path, list[Any]]] = {}
    wanted: dict[str, Any] = {}
    from_c = 0
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for path in paths:
            file = folder / f"{path.stem}.ingot"
            calls = _saved(path, file)
            if calls is not None:
                saved[path.stem], wanted[path.stem] = (file, calls), _wanted(file, path, calls)
                from_c += _check_c(file, folder / path.stem, calls)
    for name, (is_native, why_not, results) in elsewhere(folder, saved).items():
        assert is_native, f"{name}: {why_not}"
        for found, own in zip(results, wanted[name], strict=True):
            _check(found, own)
    return sum(len(calls) for _, calls in saved.values()), from_c


@pytest.mark.parametrize("first", range(0, len(FOUND), _AT_ONCE))
def test_programs_that_once_were_wrong(first: int, tmp_path: Path) -> None:
    _compare(FOUND[first : first + _AT_ONCE], tmp_path)


@pytest.mark.parametrize("kind", ["generate", "wide", "broad"])
def test_random_programs(kind: str, tmp_path: Path) -> None:
    paths = []
    for seed in range(700, 700 + 2 * _AT_ONCE):
        paths.append(tmp_path / f"program_{seed}.py")
        paths[-1].write_text(KINDS[kind](seed, 4).text)
    compared, from_c = _compare(paths, tmp_path)
    assert compared >= 20 and from_c >= 10
