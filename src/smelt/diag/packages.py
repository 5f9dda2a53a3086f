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


def not_installed(requirements: Iterable[str], extra: str) -> str:
    """What to say where some of `requirements` are not installed, "" where all are.

    A requirement is a top-level module of an extra's package, or a package outside all extras with the version that
    fits, as in `zentorch==2.13.0.2`; any installed version of that will do.
    """
    absent = [one for one in requirements if missing([one.partition("==")[0]])]
    fitting = [one for one in absent if "==" in one]
    of_extra = [one for one in absent if "==" not in one]
    said = [f"{', '.join(of_extra)} ({install_command(extra)})"] if of_extra else []
    said += [f"{', '.join(fitting)} (pip install {' '.join(fitting)})"] if fitting else []
    return f"not installed: {', '.join(said)}" if said else ""
