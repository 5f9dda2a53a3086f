"""Every rule over the catalogue's samples: one nest per call, beside eager."""

from __future__ import annotations

import pytest

from smelt.codegen.fusion.index import Unfusible
from smelt.codegen.fusion.rules.rules import RULES
from smelt.ops.catalogue import CATALOGUE
from smelt.ops.evaluate import evaluate
from smelt.ops.record import OpRecord
from tests.fusion.exact import difference
from tests.fusion.harness import roots_of, run_nest, sample_graph

# Calls of the samples for which there is no nest, by what stands in the message.
_REFUSALS = (
    "there are no elements", "of bool", "its divisor", "does not fit", "split into indices", "are split where",
    "its slice has gaps", "a range of floats", "its windows differ in size", "it is averaged", "no integer",
    "rolls the flat", "draws random",
)  # fmt: skip


@pytest.mark.spread(6)
@pytest.mark.parametrize("record", [r for r in CATALOGUE if r.name in RULES], ids=lambda r: r.name)
def test_samples_equal_eager(record: OpRecord) -> None:
    for sample in record.samples():
        graph, tensors = sample_graph(record.name, sample)
        try:
            run = run_nest(graph, tensors)
        except Unfusible as error:
            assert any(text in str(error) for text in _REFUSALS), error
            continue
        assert run.code == 0
        outputs = dict(zip(graph.outputs, evaluate(graph, tensors), strict=True))
        for root, found in zip(roots_of(graph), run.results, strict=True):
            # An expanded result has no strides of its own to be stored with.
            assert difference(record.name, outputs[root], found) is None, (sample.args, sample.kwargs)
