"""A page as one HTML file: its data, its scripts and its styles, from the files beside this one.

Invariant: the file asks for nothing: it has a policy that forbids every request, and what comes from the program stands
in it as data only, never as markup.
"""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from smelt.inspect.page.model import Page

_SCRIPTS = (
    "vendor.js", "model.js", "layout.js", "graph.js", "panes.js", "passes.js", "charts.js", "app.js",
)  # fmt: skip
"""In the order in which they run: each but the first adds to `window.smelt`."""
_STYLES = ("page.css",)
_PLAIN_CHARACTERS = 256 << 10
"""Data longer than this are packed."""
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_DATA = re.compile(r'<script id="data" type="application/(json|zlib)">(.*?)</script>', re.DOTALL)


def page_html(page: Page) -> str:
    """The file. Without JavaScript it shows the report's text."""
    title = html.escape(f"Smelt: {page.name}")
    verdict = "".join(f"<p>{html.escape(line)}</p>" for line in page.verdict)
    scripts = "".join(f"<script>{_asset(name)}</script>\n" for name in _SCRIPTS)
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{''.join(map(_asset, _STYLES))}</style></head>\n<body>"
        f"<header id=head><h1>{html.escape(page.name)}</h1><div id=verdict>{verdict}</div></header>\n"
        f"{_asset('body.html')}\n<noscript><pre>{html.escape(page.text)}</pre></noscript>\n"
        f"{_data(page)}\n{scripts}</body></html>"
    )


def model_of(text: str) -> dict[str, Any]:
    """The data in a page's file. Raises: ValueError if it is no such file."""
    found = _DATA.search(text)
    if found is None:
        raise ValueError("this is not a page that Smelt wrote")
    data = found[2] if found[1] == "json" else zlib.decompress(base64.b64decode(found[2])).decode()
    model: dict[str, Any] = json.loads(data)
    return model


def _data(page: Page) -> str:
    text = json.dumps(page.to_dict(), separators=(",", ":"), ensure_ascii=True)
    if len(text) > _PLAIN_CHARACTERS:
        packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
        return f'<script id="data" type="application/zlib">{packed}</script>'
    text = text.replace("<", r"\u003c")  # no text of the program can end the element
    return f'<script id="data" type="application/json">{text}</script>'


@cache
def _asset(name: str) -> str:
    return (files("smelt.inspect.page") / "assets" / name).read_text(encoding="utf-8")


def scripts() -> Sequence[str]:
    """The names of the scripts of a page, in order."""
    return _SCRIPTS
