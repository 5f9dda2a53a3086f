"""Packages that a part of Smelt needs beyond its own dependencies: what is missing is named at once, with one command.

Invariant: Smelt's name among distributions stands here alone. `smelt` is another project's on the package index.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

DISTRIBUTION = "smelt-compiler"
VERSION = "0.1.0"


def missing(modules: Iterable[str]) -> list[str]:
    """Those of these top-level modules that are not installed."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def install_command(extra: str) -> str:
    """What installs the packages of an extra. Of an installed Smelt, however it came, pip adds only these."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def not_installed(modules: Iterable[str], extra: str) -> str:
    """What to say where some of `modules` are not installed, "" where all are."""
    absent = missing(modules)
    return f"not installed: {', '.join(absent)} ({install_command(extra)})" if absent else ""
