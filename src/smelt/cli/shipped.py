"""Files that come along with Smelt beside its packages: the documents, the demo's corpus."""

from __future__ import annotations

import importlib.metadata
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from smelt.diag.packages import DISTRIBUTION

_SHARE = "share/smelt"
_REPOSITORY = Path(__file__).resolve().parents[3]


def shipped(name: str, in_repository: str) -> list[Path]:
    """Where a file or folder may be, likeliest first: in the repository, or under `share/smelt` of an installation."""
    places = [_REPOSITORY / in_repository] if (_REPOSITORY / "pyproject.toml").is_file() else []
    places += _installed(name)
    places.append(Path(sysconfig.get_path("data")) / _SHARE / name)
    return list(dict.fromkeys(places))


def _installed(name: str) -> Iterator[Path]:
    """The place that the distribution's own list of files tells: `--user` and `--target` have other roots."""
    try:
        files = importlib.metadata.files(DISTRIBUTION) or ()
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        _, found, rest = file.as_posix().partition(f"{_SHARE}/{name}")
        if found and (not rest or rest.startswith("/")):
            yield Path(str(file.locate())).parents[rest.count("/") - 1] if rest else Path(str(file.locate()))
            return
