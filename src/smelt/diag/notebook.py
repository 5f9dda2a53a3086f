"""What a notebook shows of an object: its own text, as it is, in a box that scrolls.

Invariant: the plain text of a notebook's cell (`text/plain`) is what `repr` says, so that one line stays one line.
"""

from __future__ import annotations

import html

_STYLE = "max-height:28em;overflow:auto;font-size:12px;line-height:1.35;white-space:pre;padding:.6em"


def text_box(title: str, text: str) -> str:
    """A text under its title as HTML that needs nothing else; unfolded by a click where it is long."""
    shown = f'<pre style="{_STYLE}">{html.escape(text)}</pre>'
    is_short = text.count("\n") < 40
    return f"<details{' open' if is_short else ''}><summary>{html.escape(title)}</summary>{shown}</details>"
