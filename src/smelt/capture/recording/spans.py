"""Where in the user's program an operator was called: the innermost frame that is not torch's, Smelt's or Python's."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from smelt.capture.reads.reads_effects import PROGRAM_DIRS
from smelt.diag import Span


def _inside(path: Path) -> str:
    return f"{path.resolve()}/"


_TORCH = _inside(Path(torch.__file__).parent)
_SMELT = _inside(Path(__file__).parents[2])
_STDLIB = _inside(Path(sysconfig.get_path("stdlib")))
_INSTALLED = ("site-packages", "dist-packages")


class Site(NamedTuple):
    """A place in running code, kept as (code, instruction) because the line takes longer to find than to remember.

    caller: where the code is an installed library's, the innermost place of the user's own program above it.
    """

    code: CodeType
    instruction: int
    caller: Site | None = None

    @property
    def span(self) -> Span:
        """The line and qualified name of the place."""
        line = self.code.co_firstlineno
        for start, end, number in self.code.co_lines():
            if start <= self.instruction < end and number is not None:
                line = number
        caller = None if self.caller is None else self.caller.span
        return Span(self.code.co_filename, line, self.code.co_qualname, caller)

    @property
    def is_subscript(self) -> bool:
        """Whether `x[...]` stands there, rather than a call."""
        places = tuple(self.code.co_positions())
        _, line, _, column = places[self.instruction // 2] if self.instruction >= 0 else (None,) * 4
        if line is None or column is None:
            return False
        text = linecache.getline(self.code.co_filename, line).encode()
        return text[column - 1 : column] == b"]"


class Spans:
    """The spans of sites, each found once.

    By identity of the code, which the site holds: its hash and its equality go through all its instructions.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, ...], tuple[Span, Site]] = {}

    def of(self, site: Site) -> Span:
        """The line and qualified name of a place."""
        caller = site.caller
        above = (0, 0) if caller is None else (id(caller.code), caller.instruction)
        key = (id(site.code), site.instruction, *above)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = site.span, site
        return found[0]


def is_users(filename: str) -> bool:
    """Whether a source file is the user's (or a library's), not torch's, Smelt's or the standard library's."""
    if filename.startswith(PROGRAM_DIRS):
        return True
    if filename.startswith((_TORCH, _SMELT)) or filename.startswith("<frozen"):
        return False
    if filename.startswith(_STDLIB):
        return any(f"/{name}/" in filename for name in _INSTALLED)
    return True


def is_installed(filename: str) -> bool:
    """Whether a source file is that of an installed library."""
    return any(f"/{name}/" in filename for name in _INSTALLED)


def is_smelts(filename: str) -> bool:
    """Whether a source file is Smelt's own."""
    return filename.startswith(_SMELT) and not filename.startswith(PROGRAM_DIRS)


class SiteFinder:
    """Finds sites; remembers which code objects are the user's, for one recording."""

    def __init__(self) -> None:
        # By identity, since the hash of a code object goes through all its instructions; held, so that it stays.
        self._known: dict[int, tuple[bool, bool, CodeType]] = {}

    def __call__(self, depth: int = 1) -> Site | None:
        """The innermost user's site above the caller's `depth`-th frame, None where there is none."""
        frame: FrameType | None = sys._getframe(depth)
        library: FrameType | None = None
        known = self._known
        while frame is not None:
            code = frame.f_code
            place = id(code)
            if place not in known:
                users = is_users(code.co_filename)
                known[place] = users, users and is_installed(code.co_filename), code
            users, installed, _ = known[place]
            if users and not installed:
                own = Site(code, frame.f_lasti)
                return own if library is None else Site(library.f_code, library.f_lasti, own)
            if installed and library is None:
                library = frame
            frame = frame.f_back
        return None if library is None else Site(library.f_code, library.f_lasti)


def running_codes(most: int) -> tuple[CodeType, ...]:
    """What runs here, the innermost first: the code of so many functions, Smelt's own aside."""
    found: list[CodeType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < most:
        if not is_smelts(frame.f_code.co_filename):
            found.append(frame.f_code)
        frame = frame.f_back
    return tuple(found)
