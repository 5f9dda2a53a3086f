"""Golden graphs: what stands before and after a pass, in one file.

The second line of a case is `passes: a, b`, the source a graph (`tests/golden/text.py` has the format); what comes out
is a graph, or the first line of the error. `pytest tests/passes --bless` writes it; then read the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from smelt.diag import SmeltError
from smelt.ir import parse, verify
from smelt.passes.base import Pass
from smelt.passes.cse import cse
from smelt.passes.dce import dce
from smelt.passes.elide_copies import elide_copies
from smelt.passes.fold import fold
from smelt.passes.inline import inline
from smelt.passes.layers.decompose import decompose
from smelt.passes.loops.unroll import unroll
from smelt.passes.manager import run_passes
from smelt.passes.mutation.functionalize import functionalize
from smelt.passes.peephole import RULES, peephole
from smelt.passes.pool import pool
from smelt.rewrite import Rewriter, apply_rules
from tests.golden.text import Case, check, read

FOLDER = Path(__file__).parent / "golden"
PASSES: dict[str, Pass] = {
    p.name: p for p in (inline, functionalize, decompose, fold, pool, cse, dce, peephole, elide_copies, unroll)
}


def names(case: Case) -> list[str]:
    return [name.strip() for name in case.how.removeprefix("passes:").split(",")]


def outcome(case: Case) -> str:
    try:
        graph = parse(case.before)
        verify(graph)
        run_passes(graph, [PASSES[name] for name in names(case)])
    except SmeltError as error:
        return str(error).splitlines()[0]
    return str(graph)


FILES = sorted(p for p in FOLDER.glob("*.txt") if not p.name.startswith("patterns_"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden(path: Path, request: pytest.FixtureRequest) -> None:
    cases = read(path)
    assert cases, f"{path.name} holds no case"
    for case in cases:
        check(path, case, outcome, request.config.getoption("--bless"))


def test_every_rule_fires() -> None:
    fired = {
        name
        for path in FILES
        for case in read(path)
        if "peephole" in names(case)
        for name in apply_rules(Rewriter(parse(case.before)), RULES)
    }
    assert fired == {rule.name for rule in RULES}
