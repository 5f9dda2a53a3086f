"""What `make docs` adds to the pages in docs/: the code of the gallery is run, and what it prints stands below it; the
README, the architecture and the changelog are pages, too; the docstrings of the public names are the reference.

A hook of mkdocs: it runs in the environment that has Smelt.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

import smelt

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)#:\s]+)(#[^)]*)?\)")
_AROUND = {"index.md": "README.md", "ARCHITECTURE.md": "ARCHITECTURE.md", "CHANGELOG.md": "CHANGELOG.md"}
_MOST_LINES = 60  # of what a block prints


def on_config(config: Any) -> Any:
    """The decisions are listed by their own names, and so is every page that the menu does not name."""
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    others = pages - set(_named(config.nav))
    decisions = sorted(page for page in others if page.startswith("decisions/"))
    config.nav += [{"More": sorted(others.difference(decisions))}] if others.difference(decisions) else []
    config.nav.append({"Decisions": decisions})
    return config


def _named(nav: Any) -> Iterator[str]:
    """The pages of a menu."""
    if isinstance(nav, str):
        yield nav
    for item in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _named(item)


def on_files(files: Any, config: Any) -> Any:
    for name, source in _AROUND.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference.md", content=reference()))
    for picture in sorted((ROOT / "bench/results").rglob("*.png")):
        files.append(File.generated(config, picture.relative_to(ROOT).as_posix(), abs_src_path=str(picture)))
    return files


def on_page_markdown(text: str, page: Any, config: Any, files: Any) -> str:
    name = page.file.src_uri
    text = text.replace("<![", "<\u200b![")  # in a pattern: the parser of HTML ends at it
    text = _LINK.sub(lambda link: _led(link, name, files), text)
    return executed(text, name) if name.startswith("gallery/") else text


def _led(link: re.Match[str], page: str, files: Any) -> str:
    """A link to a page, from where the page is in the site; to another file of the repository, its name."""
    bang, label, target, anchor = link[1], link[2], link[3], link[4] or ""
    around = {source: name for name, source in _AROUND.items()}
    base = ROOT if page in _AROUND else (ROOT / "docs" / page).parent
    found = (base / target).resolve()
    inside = found.relative_to(ROOT).as_posix() if found.is_relative_to(ROOT) else ""
    inside = around.get(inside, inside.removeprefix("docs/"))
    if inside and files.get_file_from_path(inside) is not None:
        up = "../" * page.count("/")
        return f"{bang}[{label}]({up}{inside}{anchor})"
    return link[0] if bang or not found.exists() else f"{label} (`{found.relative_to(ROOT)}`)"


def executed(text: str, name: str) -> str:
    """A page with what each of its blocks of Python prints. Raises: PluginError if one fails."""
    names: dict[str, Any] = {"__name__": Path(name).stem}
    parts, end = [], 0
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in _BLOCK.finditer(text):
            # A file: what is compiled is read for its source.
            path = Path(folder) / f"{Path(name).stem}.{block.start()}.py"
            path.write_text("\n" * text[: block.start(1)].count("\n") + block[1], encoding="utf-8")
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
                    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
            except Exception as error:
                raise PluginError(f"{name}: {type(error).__name__}: {error}") from error
            parts += [text[end : block.end()], _shown(said.getvalue().replace(f"{folder}/", ""))]
            end = block.end()
    return "".join([*parts, text[end:]])


def _shown(said: str) -> str:
    lines = said.rstrip().splitlines()
    if not lines:
        return ""
    more = [f"... and {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
    return '\n\n```text title="prints"\n' + "\n".join([*lines[:_MOST_LINES], *more]) + "\n```"


def reference() -> str:
    """The public names with their signatures and docstrings."""
    parts = ["# Reference\n\nAll public names of `smelt`, from their docstrings.\n"]
    for name in sorted(smelt.__all__, key=str.lower):
        thing = getattr(smelt, name)
        parts.append(_entry(f"smelt.{name}", thing))
        if inspect.isclass(thing) and not issubclass(thing, BaseException):
            parts += [
                _entry(f"smelt.{name}.{method}", member, depth=3)
                for method, member in vars(thing).items()
                if not method.startswith("_") and inspect.getdoc(member) and (callable(member) or _is_property(member))
            ]
    return "\n".join(parts)


def _is_property(member: Any) -> bool:
    return isinstance(member, property | staticmethod | classmethod)


def _entry(name: str, thing: Any, depth: int = 2) -> str:
    try:
        signature = str(inspect.signature(thing)).replace("typing.", "").replace("torch._tensor.", "")
    except (TypeError, ValueError):
        signature = ""
    documented = inspect.getdoc(thing) if inspect.isroutine(thing) or inspect.isclass(thing) or depth > 2 else ""
    body = _as_text(documented or "")
    head = f"\n{'#' * depth} `{name.removeprefix('smelt.')}`\n"
    return f"{head}\n```python\n{name}{signature}\n```\n\n{body}\n" if signature else f"{head}\n{body}\n"


def _as_text(documented: str) -> str:
    """A docstring as Markdown: paragraphs as they are, `name:` of an argument in bold, examples as code."""
    found = []
    for paragraph in documented.split("\n\n"):
        if paragraph.startswith("    "):
            found.append(f"```text\n{inspect.cleandoc(paragraph)}\n```")
        else:
            joined = re.sub(r"\n\s+", " ", paragraph)
            found.append(re.sub(r"(?m)^([a-z_, ]+): ", r"**\1**: ", joined).replace("\n", "  \n"))
    return "\n\n".join(found).replace("<", "&lt;")
