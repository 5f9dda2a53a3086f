"""The words of the glossary's last table, "Words that we do not use", occur in no page, message or public docstring.

The table is the data: its first column names the words, its last one has the pattern that finds them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import smelt
import smelt.cli
import smelt.pattern
from smelt import scheduling

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "smelt"
GLOSSARY = ROOT / "docs" / "glossary.md"
TABLE = "## Words that we do not use"
_ROW = re.compile(r"^\| (?P<word>.+?) \| (?P<better>.+?) \| (?P<pattern>`.+`|–) \|$", re.MULTILINE)
_LLVM = re.compile(r"%\w|\b(?:icmp|getelementptr|inttoptr)\b")


@cache
def rows() -> dict[str, tuple[str, re.Pattern[str] | None]]:
    """word -> (what the field calls it, the pattern that finds it; None for a name of the code)."""
    _, _, table = GLOSSARY.read_text(encoding="utf-8").partition(TABLE)
    found = {}
    for row in _ROW.finditer(table):
        text = row["pattern"].strip("`").replace(r"\|", "|")
        found[row["word"]] = (row["better"], None if text == "–" else re.compile(text, re.IGNORECASE))
    return found


@cache
def _any() -> re.Pattern[str]:
    """Finds in one search whether there is one at all."""
    return re.compile("|".join(f"(?:{p.pattern})" for _, p in rows().values() if p is not None), re.IGNORECASE)


def has_unwanted(text: str) -> bool:
    """Whether there is a use of an unwanted word."""
    return _any().search(" ".join(text.split())) is not None


def unwanted(text: str) -> list[str]:
    """Each use of an unwanted word, and what the field calls it."""
    if not has_unwanted(text):
        return []
    text = " ".join(text.split())
    return [
        f"{text[max(0, m.start() - 40) : m.end() + 20]!r}: {word} -> {better}"
        for word, (better, pattern) in rows().items()
        if pattern is not None
        for m in pattern.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page; of the glossary what stands before the table of unwanted words."""
    text = page.read_text(encoding="utf-8")
    return text.partition(TABLE)[0] if page == GLOSSARY else text


def _text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_code(text: str) -> bool:
    """LLVM text, or Python: several lines, a call or a type."""
    if _LLVM.search(text):
        return True
    try:
        ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return False
    return any(sign in text for sign in "\n([|")


def messages(source: str, is_looked_at: Callable[[str], bool] = bool) -> Iterator[tuple[int, str]]:
    """Each string of a module that may be a sentence, with its line: neither a docstring nor code."""
    nodes = list(ast.walk(ast.parse(source)))
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        text = _text_of(node)
        if text is None or id(node) in inner or " " not in text or not re.search("[A-Za-z]", text):
            continue
        if is_looked_at(text) and not _is_code(text):
            yield getattr(node, "lineno", 0), text


def public_docstrings() -> dict[str, str]:
    """What `help` shows of the interface, and `--help` of the commands."""
    found: dict[str, str] = {}

    def add(name: str, thing: object) -> None:
        home = getattr(thing, "__module__", None) or getattr(thing, "__name__", "")
        if str(home).startswith("smelt") and getattr(thing, "__doc__", None):
            found[name] = str(thing.__doc__)
        if inspect.isclass(thing) or (inspect.ismodule(thing) and str(home).startswith("smelt.schedules")):
            for member in sorted(set(dir(thing)) - set(dir(object))):
                if not member.startswith("_"):
                    value = inspect.getattr_static(thing, member)
                    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                    if inspect.isfunction(value):
                        add(f"{name}.{member}", value)

    for name in smelt.__all__:
        add(f"smelt.{name}", getattr(smelt, name))
    for name in scheduling.__all__:
        add(f"smelt.scheduling.{name}", getattr(scheduling, name))
    for name, thing in vars(smelt.pattern).items():
        if not name.startswith("_"):
            add(f"smelt.pattern.{name}", thing)
    for module in pkgutil.iter_modules(smelt.cli.__path__, "smelt.cli."):
        for name, thing in inspect.getmembers(importlib.import_module(module.name), inspect.isfunction):
            if thing.__module__ == module.name and not name.startswith("_"):
                add(f"{module.name}.{name}", thing)
    return found


def test_the_table_has_a_pattern_for_each_word_of_prose() -> None:
    assert len(rows()) >= 50
    assert sum(pattern is not None for _, pattern in rows().values()) >= 40


PAGES = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages(page: Path) -> None:
    assert unwanted(prose(page)) == []


def test_messages() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {use}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in messages(path.read_text(encoding="utf-8"), has_unwanted)
        for use in unwanted(text)
    ]
    assert found == []


def test_public_docstrings() -> None:
    texts = public_docstrings()
    assert {
        "smelt.compile",
        "smelt.scheduling.Schedule.tile",
        "smelt.schedules.inference",
        "smelt.cli.run.run",
    } <= texts.keys()
    assert [f"{name}: {use}" for name, text in texts.items() for use in unwanted(text)] == []


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("The graph holds for one way only.", 1),
        ("Each turn of a loop runs on shadows.", 2),
        ("What stands for a tensor is a value of the graph.", 2),
        ("The program asks a question about data, and only a run knows the answer.", 4),
        ("It runs in pieces around the cut, or as it is.", 3),
        ("What a call leaves in its arguments is put back.", 2),
        ("How the tensors lie is told by the very strides.", 3),
        ("Mended: coded weights are kept.", 3),
        ("It took three steps; a step was taken at each place.", 3),
        ("A tensor is as long as it can get, with a count.", 2),
    ],
)
def test_a_sentence_of_the_dialect_is_found(sentence: str, words: int) -> None:
    assert len(unwanted(sentence)) >= words


@pytest.mark.parametrize(
    "sentence",
    [
        "The graph records one control-flow path; an in-place write returns a new value.",
        "In place of a copy, each iteration of the loop runs on fake tensors; another layer, another layout.",
        "`torch.cond` falls back to eager, and both branches always return a tensor of the same memory layout.",
        "A cache miss costs more than a kernel; a partition is compiled again after a guard failure.",
    ],
)
def test_plain_english_is_not(sentence: str) -> None:
    assert unwanted(sentence) == []


def test_messages_are_found_in_code() -> None:
    source = '''
def f(x):
    """A docstring of the way it is."""
    raise ValueError(f"the {x} lies "
                     "in pieces")
    emit("%turn = phi i64 [0, %way]")
'''
    assert [text for _, text in messages(source)] == ["the {} lies in pieces"]


def test_the_readme_is_short_and_shows_the_tiers() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert all(tier in text for tier in ("MERGED GRAPH", "RECORDED PATHS", "PARTITIONS", "EAGER"))


def test_each_decision_has_a_number_of_its_own() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    numbers = [page.name[:4] for page in pages]
    assert len(numbers) >= 40 and len(set(numbers)) == len(numbers)
    assert all(page.read_text(encoding="utf-8").startswith(f"# {page.name[:4]}: ") for page in pages)


def test_the_architecture_is_read_in_ten_minutes() -> None:
    assert 1500 < len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split()) <= 2500


def test_no_python_lies_beside_the_packages() -> None:
    """What someone tried out is not part of the project: code has a folder that says what it is for."""
    assert not list(ROOT.glob("*.py"))


def test_a_folder_holds_at_most_twenty_modules() -> None:
    modules = Counter(path.parent for path in (ROOT / "src/smelt").rglob("*.py") if path.name != "__init__.py")
    assert [(str(folder), count) for folder, count in modules.items() if count > 20] == []
