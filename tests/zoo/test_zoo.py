"""Architectures of `transformers`, tiny and random: whole and equal to eager, on other data and under other masks.

`known.json` has what is not so today, and why. It is held to both ways: what starts to work must leave it
(`python -m tests.zoo.table --only NAMES`, then `--known`).
"""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from tests.forked import smelt_forks
from tests.zoo.build import SPREAD, build, model_types
from tests.zoo.row import OWN, measure
from tests.zoo.table import KNOWN

pytest.importorskip("transformers")

_KNOWN: dict[str, dict[str, str]] = json.loads(KNOWN.read_text())
_SLOW = {
    "albert", "bamba", "bigbird_pegasus", "canine", "fsmt", "jetmoe", "led", "lfm2", "longt5", "marian", "phi",
    "prophetnet",
}  # fmt: skip
"""Each as long as many others; their kinds have others in the spread. `make nightly` has all of it, in all ways."""
# Each of the others is compiled; every sixth is traced, too, and every sixth called without a mask. All in all ways,
# and more of each kind than the spread has, take about ten minutes.
_DAILY = {
    name: ("compile", *{1: ("trace",), 4: ("plain",)}.get(i % 6, ()))
    for i, name in enumerate(SPREAD)
    if name not in _SLOW
}
_OTHERS = [name for name in model_types() if name not in SPREAD and name not in _KNOWN["not built"]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check(name: str, columns: tuple[str, ...] = OWN) -> None:
    row = measure(name, columns)
    assert row["built"], row
    for column in columns:
        cell: dict[str, Any] = row[column]
        assert not cell.get("differs"), (column, cell)  # a wrong answer is never known
        whole = cell["captured"] and cell["equal"]
        reason = _KNOWN.get(column, {}).get(name)
        if reason is None:
            assert whole, (column, cell)
        else:
            assert not whole, f"{name} is whole now in {column}: take it out of known.json"
        assert cell.get("native", True) and cell.get("native_failure") is None, (column, cell)


@pytest.mark.spread(17)
@pytest.mark.parametrize("name", _DAILY)
def test_whole_and_equal(name: str) -> None:
    check(name, _DAILY[name])


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*SPREAD, *_OTHERS])
def test_whole_and_equal_all(name: str) -> None:
    check(name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(_KNOWN["not built"]))
def test_what_cannot_be_built(name: str) -> None:
    row = measure(name, ())
    assert not row["built"], f"{name} builds now: measure it, then take it out of known.json"


def test_the_spread_is_a_spread() -> None:
    assert len(SPREAD) == len(set(SPREAD)) == 60
    assert set(SPREAD) <= set(model_types()) - set(_KNOWN["not built"])
    assert len(_OTHERS) + len(SPREAD) >= 299


_CHILD = """
import pickle
import smelt
texts = pickle.load(open("texts", "rb"))
graphs = [smelt.parse(text) for text in texts]
assert [str(graph) for graph in graphs] == texts
with open("graphs", "wb") as file:
    pickle.dump(graphs, file)
"""


def test_graphs_are_text_that_parses_back_in_a_fresh_process(tmp_path: Path) -> None:
    names, graphs = SPREAD[::12], []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of transformers, and for what holds for one way only
        for name in names:
            made = build(name)
            made.model(**made.inputs)  # a first call may change the model: one chooses its attention by the length
            graphs.append(smelt.trace(made.model, (), made.inputs, check=False).graph)
    texts, parsed = tmp_path / "texts", tmp_path / "graphs"
    texts.write_bytes(pickle.dumps([str(graph) for graph in graphs]))
    smelt_forks().run(_CHILD, tmp_path)
    for name, graph, again in zip(names, graphs, pickle.loads(parsed.read_bytes()), strict=True):
        assert again == graph, name
