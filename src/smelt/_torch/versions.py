"""The releases of torch and of Python that Smelt is made for, and one notice where others run.

Nothing else is asked for a version: adapters look for names, and try what they find.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from typing import Final

import torch

from smelt.diag import SmeltWarning
from smelt.diag.frames import user_level

# From the first one on, before the second: as the package declares it.
TORCH: Final = ((2, 11), (2, 16))
PYTHON: Final = ((3, 11), (3, 15))

_lock = threading.Lock()
_noticed = False


def release_of(torch_version: str) -> tuple[int, int] | None:
    """The release that a version is of: (2, 14) of "2.14.1+cpu"; None where it names none."""
    found = re.match(r"(\d+)\.(\d+)", torch_version)
    return None if found is None else (int(found[1]), int(found[2]))


def outside(torch_version: str, python: tuple[int, int]) -> list[str]:
    """What of the two is outside of the range, in words."""
    said = []
    if not TORCH[0] <= (release_of(torch_version) or TORCH[0]) < TORCH[1]:
        said.append(f"torch {torch_version} (made for {_shown(TORCH)})")
    if not PYTHON[0] <= python < PYTHON[1]:
        said.append(f"Python {python[0]}.{python[1]} (made for {_shown(PYTHON)})")
    return said


def notice() -> None:
    """Warn, the first time in a process, of a torch or a Python that Smelt was not made for."""
    global _noticed
    with _lock:
        if _noticed:
            return
        _noticed = True
    said = outside(str(torch.__version__), sys.version_info[:2])
    if said:
        warnings.warn(
            f"Smelt runs on {' and '.join(said)}: private names that it does not find there have slower fallbacks, "
            f'and nobody has run its tests there; `pip install "torch>={_spelt(TORCH[0])},<{_spelt(TORCH[1])}"` in an '
            f"environment of Python {_shown(PYTHON)} has the supported versions",
            SmeltWarning,
            stacklevel=user_level(),
        )


def _spelt(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"


def _shown(span: tuple[tuple[int, int], tuple[int, int]]) -> str:
    (first, (major, after)) = span
    return f"{_spelt(first)} to {_spelt((major, after - 1))}"
