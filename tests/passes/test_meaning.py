"""Every pass keeps the meaning of random programs bit for bit: outputs, inputs, draws, and what shares memory."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from smelt.analysis import alias_analysis
from smelt.ir import Value, parse, values_in, verify
from smelt.passes.base import Pass, PassContext
from smelt.passes.cse import cse
from smelt.passes.dce import dce
from smelt.passes.elide_copies import elide_copies
from smelt.passes.fold import fold
from smelt.passes.inline import inline
from smelt.passes.layers.decompose import decompose
from smelt.passes.manager import compare, observe
from smelt.passes.mutation.functionalize import functionalize
from smelt.passes.peephole import peephole
from smelt.passes.pool import pool


def _load(name: str) -> object:
    """A neighbour of this file; test folders are no packages."""
    spec = importlib.util.spec_from_file_location(f"tests_passes_{name}", Path(__file__).parent / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


programs = _load("programs").programs  # type: ignore[attr-defined]

ALONE = (inline, functionalize, decompose, fold, pool, cse, dce, peephole, elide_copies)
PIPELINE = (inline, functionalize, dce, decompose, fold, pool, peephole, elide_copies, cse, dce)
SETTINGS = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def check(program: object, passes: tuple[Pass, ...]) -> None:
    graph, inputs = program.graph, program.inputs  # type: ignore[attr-defined]
    verify(graph)
    try:
        expected = observe(graph, inputs)
    except RuntimeError:
        # Eager itself refuses this program.
        assume(False)
    current = graph.clone()
    for one in passes:
        one.run(current, PassContext())
        verify(current)
        found = observe(current, inputs)
        told = f"after {one.name}:\n{graph}\n{current}"
        assert not compare(found, expected), f"{compare(found, expected)} {told}"
        assert found.sharing == expected.sharing, f"{found.sharing} for {expected.sharing} {told}"
        assert parse(str(current), current.constants) == current


@pytest.mark.spread(2)
@pytest.mark.parametrize("one", ALONE, ids=lambda p: p.name)
def test_each_pass_keeps_the_meaning(one: Pass) -> None:
    @SETTINGS
    @given(programs())
    def run(program: object) -> None:
        check(program, (one,))

    run()


@SETTINGS
@given(programs())
def test_the_pipeline_keeps_the_meaning(program: object) -> None:
    check(program, PIPELINE)


@SETTINGS
@given(programs(), st.data())
def test_aliases_are_never_missed(program: object, data: st.DataObject) -> None:
    graph, inputs = program.graph, program.inputs  # type: ignore[attr-defined]
    try:
        found = observe(graph, inputs)
    except RuntimeError:
        assume(False)
    aliases = alias_analysis(graph)
    items: list[Value] = [v for arg in graph.outputs for v in values_in(arg)] + graph.inputs
    for a, b in found.sharing:
        assert aliases.may_share(items[a], items[b]), str(graph)
