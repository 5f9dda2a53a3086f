"""Places in files as a person reads them: from the current folder, or from the root of the packages that are installed.

Invariant: a shortened path still tells one file: what lies elsewhere keeps its whole path.
"""

from __future__ import annotations

import os
import re

_PACKAGES = re.compile(r"^.*/(?:site|dist)-packages/")
_STDLIB = re.compile(r"^.*/lib/python3\.\d+/(?!site-packages)")


def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package or to Python, not to the user's own program."""
    return file.startswith("<frozen") or bool(_PACKAGES.match(file) or _STDLIB.match(file))


def short_file(file: str) -> str:
    """A file from the current folder, or from the folder of packages that it is installed in."""
    here = os.path.join(os.getcwd(), "")
    if _PACKAGES.match(file):
        return _PACKAGES.sub("", file)
    if file.startswith(here):
        return file.removeprefix(here)
    return _STDLIB.sub("", file)


def short_places(where: str) -> str:
    """Places as reports list them (`file:line in function, ...`), short, the lines of a function together."""
    lines: dict[tuple[str, str], list[str]] = {}
    for place in where.split(", "):
        spot, _, function = place.partition(" in ")
        file, _, line = spot.rpartition(":")
        if not line.isdigit():
            return short_file(where)
        lines.setdefault((short_file(file), function), []).append(line)
    return "; ".join(
        f"{file}:{', '.join(found)}" + (f" in {function}" if function else "")
        for (file, function), found in lines.items()
    )


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_CODE = re.compile(r"<code object (\S+) at 0x[0-9a-f]+, file \"[^\"]*(?:\", line \d+>|$)")
_CUT_CODE = re.compile(r"<code object (\S+?)(?: at 0x[0-9a-f]*)?(?:, file[^>]*)?\.\.\.$")
_SAME = re.compile(r"was (.+), now \1(?=$|[ ;(])")
_HIDDEN = "__smelt_"


def is_hidden(text: str) -> bool:
    """Whether a text is about a name that only Smelt's own generated code has."""
    return _HIDDEN in text


def plain(text: str) -> str:
    """A text without addresses of objects; what then reads alike before and now is told apart in words."""
    if " at 0x" not in text and "<code object" not in text:
        return text
    text = _CUT_CODE.sub(r"code of \1", _CODE.sub(r"code of \1", text))
    return _SAME.sub(r"was \1, now another one", _ADDRESS.sub("", text))
