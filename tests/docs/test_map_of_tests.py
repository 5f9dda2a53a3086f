"""`tests/README.md` maps every folder of the sources to folders of tests that exist."""

from __future__ import annotations

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
