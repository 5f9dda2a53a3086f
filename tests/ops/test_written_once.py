"""What is known of an operator stands in its record, and few tables outside the catalogue name operators."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from smelt.codegen.kernels.operations import KERNEL_OPS, OPS
from smelt.ops.catalogue import CATALOGUE
from smelt.ops.record import Trait
from smelt.ops.sets import bases_where, where

SOURCES = Path(__file__).resolve().parents[2] / "src" / "smelt"
NAMES = {record.name for record in CATALOGUE}
BASES = {name.split(".")[1] for name in NAMES}


def _operators(value: ast.expr) -> set[str]:
    """The operators that the texts of an expression name, with or without namespace and overload."""
    texts = (n.value for n in ast.walk(value) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    words = {word for text in texts if not text.endswith(".") for word in text.split()}  # no sentences
    return {w for w in words if w in NAMES or f"aten.{w}" in NAMES or w.removeprefix("aten.").split(".")[0] in BASES}


def _tables() -> list[str]:
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        if "catalogue" in path.parts:
            continue
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
            if isinstance(statement, ast.Assign) and "__doc__" in ast.unparse(statement.targets[0]):
                continue  # prose
            if value is not None and len(_operators(value)) >= 5:
                found.append(f"{path.relative_to(SOURCES)}:{statement.lineno}")
    return found


def test_few_tables_outside_the_catalogue_name_operators() -> None:
    """Rules of one backend by operator, names of Python's, libm's and TorchScript's functions, what a file may ask a
    reader without the catalogue to run; no facts of operators.
    """
    tables = _tables()
    assert len(tables) <= 31, "a fact of operators belongs in their records:\n" + "\n".join(tables)


@pytest.mark.spread(2)
@pytest.mark.parametrize(("name", "most"), [("silu", 7), ("cumsum", 8), ("index_select", 5)])
def test_an_operator_stands_in_few_files(name: str, most: int) -> None:
    word = re.compile(rf"\b{name}\b")
    files = [p for p in SOURCES.rglob("*.py") if word.search(p.read_text(encoding="utf-8"))]
    assert len(files) <= most, files


def test_every_trait_is_some_operators() -> None:
    for trait in Trait:
        assert where(trait), trait
        assert bases_where(trait) == {name.split(".")[1] for name in where(trait)}


def test_views_are_marked_as_such() -> None:
    """A trait that says that memory is shared stands only where the record says so, too."""
    alias = {record.name: record.alias for record in CATALOGUE}
    for trait in (Trait.WHOLE_VIEW, Trait.RETURNS_ITSELF, Trait.STRIDED_PART, Trait.PERMUTES, Trait.AT_START):
        for name in where(trait):
            assert alias[name] in ("view", "maybe"), (trait, name)


def test_kernel_operations_are_complete() -> None:
    assert len(OPS) == len(KERNEL_OPS)
    for op in KERNEL_OPS:
        assert op.cost >= 1.0 and op.arity in (1, 2, 3), op.name
        assert callable(op.meaning), op.name
        assert op.operands or op.name == "lgamma", op.name
