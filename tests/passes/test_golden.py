"""Golden graphs: what stands before and after a pass, in one file.

A file holds cases; a case is a line `# name`, a line `passes: a, b`, a graph, a line `==>`, and the graph that comes
out (or the first line of the error). `pytest tests/passes --bless` writes the second half; then read the diff.
"""

from __future__ import annotations

from dataclasses import dataclass
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

FOLDER = Path(__file__).parent / "golden"
PASSES: dict[str, Pass] = {
    p.name: p for p in (inline, functionalize, decompose, fold, pool, cse, dce, peephole, elide_copies, unroll)
}


@dataclass(frozen=True)
class Case:
    name: str
    passes: tuple[str, ...]
    before: str
    after: str


def read(path: Path) -> list[Case]:
    cases = []
    for block in ("\n" + path.read_text(encoding="utf-8")).split("\n# ")[1:]:
        name, passes, body = block.split("\n", 2)
        before, _, after = body.partition("==>")
        names = tuple(n.strip() for n in passes.removeprefix("passes:").split(","))
        cases.append(Case(name, names, before.strip(), after.strip()))
    return cases


def write(path: Path, cases: list[Case]) -> None:
    blocks = [f"# {c.name}\npasses: {', '.join(c.passes)}\n{c.before}\n==>\n{c.after}\n" for c in cases]
    path.write_text("\n".join(blocks), encoding="utf-8")


def outcome(case: Case) -> str:
    try:
        graph = parse(case.before)
        verify(graph)
        run_passes(graph, [PASSES[n] for n in case.passes])
    except SmeltError as error:
        return str(error).splitlines()[0]
    return str(graph)


FILES = sorted(p for p in FOLDER.glob("*.txt") if not p.name.startswith("patterns_"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden(path: Path, request: pytest.FixtureRequest) -> None:
    cases = read(path)
    assert cases, f"{path.name} holds no case"
    found = [Case(c.name, c.passes, c.before, outcome(c)) for c in cases]
    if request.config.getoption("--bless", default=False):
        write(path, found)
        return
    for expected, got in zip(cases, found, strict=True):
        assert got.after == expected.after, f"{path.name}: {got.name}\n{got.after}"


def test_every_rule_fires() -> None:
    fired = {
        name
        for path in FILES
        for case in read(path)
        if "peephole" in case.passes
        for name in apply_rules(Rewriter(parse(case.before)), RULES)
    }
    assert fired == {rule.name for rule in RULES}
