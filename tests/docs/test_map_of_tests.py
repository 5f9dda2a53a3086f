"""What `tests/README.md` says of the tests: every folder of the sources has folders of tests; what collects garbage."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SOURCES = TESTS.parent / "src" / "smelt"


def _folders(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.is_dir() and any(path.glob("*.py"))}


def test_every_folder_has_its_place() -> None:
    text = (TESTS / "README.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    sources, tests = (" ".join(row[i] for row in rows) for i in (0, 1))
    named = {name for name in _folders(SOURCES) if f"`{name}`" in sources or f"`{name}/" in sources}
    assert named == _folders(SOURCES)
    # Not a test of this machine's kernels: another instruction set's.
    assert {name for name in _folders(TESTS) if f"`{name}`" in tests} == _folders(TESTS) - {"emulated"}


def _collecting(text: str) -> Iterator[str]:
    """The tests of a module that look through all objects for garbage without saying of which heap."""
    for test in ast.walk(ast.parse(text)):
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
            calls = [node for node in ast.walk(test) if isinstance(node, ast.Call) and not node.args]
            given = [argument.arg for argument in test.args.args] + [ast.unparse(one) for one in test.decorator_list]
            collects = any(ast.unparse(call.func) == "gc.collect" for call in calls)
            if collects and not any("young_heap" in one or "whole_heap" in one for one in given):
                yield test.name


def test_what_collects_garbage_looks_at_what_it_made() -> None:
    own = "import gc\n\ndef test_x(young_heap):\n    gc.collect()\n\ndef test_y():\n    gc.collect(0)\n"
    assert not [*_collecting(own)] and [*_collecting(own.replace("young_heap", ""))] == ["test_x"]
    texts = {path: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    found = [(path, name) for path, text in texts.items() if "gc.collect()" in text for name in _collecting(text)]
    assert found == []
