"""A spread of architectures, tiny and random: traced and compiled, each equal to eager; their graphs are text."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.capture import tensors_of
from smelt.compiler.agreement import disagreement
from tests.zoo.build import SPREAD, Sample, build

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)


def sample(name: str) -> Sample:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers, while it builds the model
        return build(name)


def assert_agrees(expected: list[torch.Tensor], answer: Any) -> None:
    assert disagreement(expected, tensors_of(answer)) is None


@pytest.mark.parametrize("name", SPREAD)
def test_traced_and_compiled_equal_eager(name: str) -> None:
    model, inputs = (made := sample(name)).model, made.inputs
    expected = tensors_of(model(**inputs))
    assert expected

    program = smelt.trace(model, (), inputs)
    assert_agrees(expected, program(**inputs))
    assert program.native_failure is None
    assert program.unit.executable is not None and program.unit.executable.is_native

    compiled = smelt.compile(model, options={"measure": False})
    for _ in range(3):
        assert_agrees(expected, compiled(**inputs))
    stats = compiled.stats()
    assert stats.fallbacks == {} and stats.builds == 1 and [row.hits for row in stats.rows] == [2]
    entry: Any = stats.rows[0].entry
    assert entry.executable.is_native and entry.executable.stats.runs == 2


_CHILD = """
import pickle, sys
import smelt
texts = pickle.load(open(sys.argv[1], "rb"))
graphs = [smelt.parse(text) for text in texts]
assert [str(graph) for graph in graphs] == texts
pickle.dump(graphs, open(sys.argv[2], "wb"))
"""


def test_every_graph_is_text_that_parses_back_in_a_fresh_process(tmp_path: Path) -> None:
    graphs = []
    for name in SPREAD:
        made = sample(name)
        made.model(**made.inputs)  # a first call may change the model: one chooses its kind of attention by the length
        graphs.append(smelt.trace(made.model, (), made.inputs, check=False).graph)
    texts, parsed = tmp_path / "texts", tmp_path / "graphs"
    texts.write_bytes(pickle.dumps([str(graph) for graph in graphs]))
    subprocess.run([sys.executable, "-c", _CHILD, str(texts), str(parsed)], check=True, timeout=120)
    for name, graph, again in zip(SPREAD, graphs, pickle.loads(parsed.read_bytes()), strict=True):
        assert again == graph, name
