"""Paths of modules with wildcards: which modules of a state they name."""

from __future__ import annotations

import fnmatch

from smelt.scheduling.state import State


def paths_of(state: State, path: str) -> list[str]:
    """The paths of a state's modules that a path with wildcards names, each module once."""
    found = {id(state.modules[name]): name for name in reversed(state.modules) if fits(name, path)}
    return list(reversed(found.values()))


def fits(name: str, wanted: str) -> bool:
    """Whether a path is one with wildcards, each for one part; the whole, which has none, fits its own name alone."""
    if not name:
        return not wanted
    parts, patterns = name.split("."), wanted.split(".")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))
