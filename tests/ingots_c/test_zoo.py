"""Architectures of `transformers` from C give Python's bits: with libc alone where all operators have own kernels, the
others linked to libtorch for what they lack.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.package.c.export import export
from smelt.runtime.ingot import structure
from smelt.runtime.ingot.natives import targets
from tests.ingots_c.client import Library
from tests.ingots_c.test_calls import alike

pytestmark = pytest.mark.nightly

_LEAST = 0.6


def outcome(name: str, folder: Path) -> str:
    """ "exported", or the operators that need torch; "" for an architecture that eager does not run, or that no ingot
    holds.
    """
    from tests.zoo.build import build

    try:
        sample = build(name)
        with torch.no_grad():
            sample.model(**sample.inputs)
            smelt.trace(sample.model, (), dict(sample.inputs)).save(folder / "m.ingot", targets=targets()[:1])
    except Exception:
        return ""
    try:
        exported = export(folder / "m.ingot", folder / "build")
    except smelt.PackageError as refused:
        found = re.search("need torch: forward: (.*)", str(refused))
        if found is None or "Python" in found[1]:
            return found[1] if found else str(refused)
        exported = export(folder / "m.ingot", folder / "linked", libtorch="torch")
    assert _is_pythons(smelt.load(folder / "m.ingot").entry("forward"), exported, dict(sample.inputs)), name
    return ", ".join(exported.needs.get("forward", ())) or "exported"


def _is_pythons(entry: Any, exported: Any, given: dict[str, Any]) -> bool:
    method = entry.method
    inputs = structure.flatten(method.args, method.kwargs, (), given, len(method.places))
    context = Library(exported).open(exported.weights).context(2)
    found = context.call("forward", *inputs)
    with torch.no_grad():
        wanted = [each for each in entry._outputs(inputs, {}) if isinstance(each, (torch.Tensor, int, float))]
    return alike(found, wanted)


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")  # of paths that a trace holds for
def test_architectures(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.zoo.build import SPREAD

    found = {}
    for name in SPREAD:
        folder = tmp_path / name
        folder.mkdir()
        found[name] = outcome(name, folder)
    tried = {name: what for name, what in found.items() if what}
    share = sum(what == "exported" for what in tried.values()) / len(tried)
    assert share >= _LEAST, (share, tried)
    assert all(what == "exported" or "aten." in what or "Python" in what for what in tried.values()), tried


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "opt", "t5"])
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_free_sizes(name: str, tmp_path: Path) -> None:
    """One function for all batches and lengths of a range."""
    pytest.importorskip("transformers")
    from tests.zoo.build import build

    sample = build(name)
    batch, tokens, written = (smelt.Dim(d, min=2, max=most) for d, most in (("b", 3), ("q", 20), ("r", 10)))
    dims = {key: {0: batch, 1: written if "decoder" in key else tokens} for key in sample.inputs}
    with torch.no_grad():
        smelt.trace(sample.model, (), dict(sample.inputs), dynamic_shapes=dims).save(
            tmp_path / "m.ingot", targets=targets()[:1]
        )
    exported = export(tmp_path / "m.ingot", tmp_path / "build")
    assert [str(each) for each in exported.signatures[0].free][:2] == ["b = 2..3", "q = 2..20"]
    entry = smelt.load(tmp_path / "m.ingot").entry("forward")
    method, context = entry.method, Library(exported).open(exported.weights).context(2)
    for rows, length in ((2, 2), (3, 20), (2, 13), (3, 5)):
        sizes = {key: (rows, min(length, 10) if "decoder" in key else length) for key in sample.inputs}
        given = {
            key: torch.ones(size, dtype=torch.int64) if "mask" in key else torch.randint(3, 20, size)
            for key, size in sizes.items()
        }
        inputs = structure.flatten(method.args, method.kwargs, (), given, len(method.places))
        values = entry._values(inputs)
        assert entry.native(tuple(values.values())) is not None
        with torch.no_grad():
            wanted = [each for each in entry._outputs(inputs, values) if isinstance(each, (torch.Tensor, int, float))]
        assert alike(context.call("forward", *inputs), wanted), (rows, length)
