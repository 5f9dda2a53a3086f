"""The real all-MiniLM-L6-v2: its captured graph, evaluated and compiled, answers as eager does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smelt
from smelt.cli.demos.demo_model import BatchShape, find_model, load_model, make_batches
from smelt.ops.evaluate import evaluate
from tests.promises.models import RULE, assert_agrees, entry_of, how_nodes_run

pytest.importorskip("transformers")

SENTENCES = [
    "A river carries warm water past the old mill.",
    "Warm water flows along the mill in a stream.",
    "The parliament votes on the budget tomorrow.",
    "Short.",
]


@pytest.fixture(scope="module")
def embedder() -> tuple[Any, list[Any]]:
    model, tokenizer = load_model(find_model())
    return model, make_batches(tokenizer, SENTENCES, BatchShape(rows=2, tokens=16))


def test_the_graph_is_the_program(embedder: tuple[Any, list[Any]]) -> None:
    model, batches = embedder
    first = (batches[0].ids, batches[0].mask)
    program = smelt.trace(model, first, check_inputs=[(b.ids, b.mask) for b in batches[1:]], options=RULE)
    graph = program.graph
    assert smelt.parse(str(graph)) == graph
    assert sum(node.op == "aten.linear.default" for node in graph.walk()) == 36
    for batch in batches:
        want = model(batch.ids, batch.mask)
        assert torch.equal(evaluate(graph, [batch.ids, batch.mask], program.unit.lookup)[0], want)
        assert torch.equal(program.code.run(batch.ids, batch.mask)[0], want)
        assert_agrees(program(batch.ids, batch.mask), want)


def test_compiled_it_answers_as_eager(embedder: tuple[Any, list[Any]]) -> None:
    model, batches = embedder
    compiled = smelt.compile(model)
    found = []
    for batch in batches * 2:
        want = model(batch.ids, batch.mask)
        found.append(compiled(batch.ids, batch.mask))
        assert_agrees(found[-1], want)
    assert compiled.stats().builds == 1 and compiled.stats().fallbacks == {}
    assert entry_of(compiled).executable.counts.python == 0 and "python" not in how_nodes_run(compiled)
    one, two = found[0]
    assert one @ two > 0.7 > one @ found[1][0]
