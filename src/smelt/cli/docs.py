"""`smelt docs`: the documents that come with Smelt, listed, searched, or one of them on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.table import Table

from smelt.cli.shipped import shipped
from smelt.diag import SmeltError
from smelt.diag.console import console, page_width

_WIDEST = 110  # characters of a line of prose


def docs(
    page: Annotated[
        str, typer.Argument(help="A page's name, as the list shows it; without one, the list.", show_default=False)
    ] = "",
    plain: Annotated[bool, typer.Option("--plain", help="The file's own text.")] = False,
    path: Annotated[bool, typer.Option("--path", help="Only where the file, or the folder, is.")] = False,
) -> None:
    """List the documents that come with Smelt, or show one.

    \b
    Examples:
      smelt docs
          all pages, with what each is about
      smelt docs sizes
          what Smelt does with sizes that change
      smelt docs tutorial --plain | less
          the file's own text
      smelt docs --path
          the folder with all of them
    """
    pages = find_pages()
    if not page:
        if path:
            typer.echo(pages["sizes"].parent)
        else:
            _list(pages)
        return
    found = _page(page, pages)
    if path:
        typer.echo(found)
    elif plain:
        typer.echo(found.read_text(encoding="utf-8"), nl=False)
    else:
        text = Markdown(found.read_text(encoding="utf-8"), hyperlinks=False)
        console(width=min(page_width(), _WIDEST)).print(text)


def find_pages() -> dict[str, Path]:
    """The pages by name: `sizes`, `decisions/0004-numerics`, `README`.

    Raises: SmeltError (S0501) if the documents are not there.
    """
    folders = shipped("docs", "docs")
    folder = next((one for one in folders if (one / "sizes.md").is_file()), None)
    if folder is None:
        raise SmeltError(
            "the documents are not there",
            why=f"they are looked for in {', '.join(map(str, folders))}",
            fix="install Smelt from its wheel, or use the repository",
            code="S0501",
        )
    # In the repository a few stand beside the folder.
    files = [*folder.parent.glob("[A-Z]*.md"), *folder.rglob("*.md")]
    pages = {
        str(file.relative_to(folder).with_suffix("")) if folder in file.parents else file.stem: file for file in files
    }
    return dict(sorted(pages.items(), key=lambda item: ("/" in item[0], item[0].lower())))


def _page(name: str, pages: dict[str, Path]) -> Path:
    """The page of this name, or of which it is the end or the number: `numerics` and `0004` are one.

    Raises: typer.BadParameter, which lists the pages.
    """
    wanted = name.removesuffix(".md").removeprefix("docs/").lower()
    alike = [key for key in pages if key.lower() == wanted]
    alike = alike or [key for key in pages if wanted in key.lower()]
    if len(alike) != 1:
        problem = f"{name!r} may be {', '.join(alike)}" if alike else f"there is no page {name!r}"
        raise typer.BadParameter(f"{problem}. The pages are {', '.join(pages)}", param_hint="PAGE")
    return pages[alike[0]]


def _list(pages: dict[str, Path]) -> None:
    out = Table("page", "about", box=None, pad_edge=False, show_header=False)
    for name, file in pages.items():
        with file.open(encoding="utf-8") as lines:
            title = next((line.lstrip("# ").strip() for line in lines if line.startswith("#")), "")
        out.add_row(name, title)
    console().print(out)
    typer.echo("\n`smelt docs PAGE` shows one of them")
