"""Two ingots with all programs, of known and of free sizes, each exported once for this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.package.c.export import Exported, export
from smelt.runtime.ingot.natives import targets
from tests.ingots_c.client import Library, Model
from tests.ingots_c.programs import Calls, programs, ranged_programs

DRIVER = Path(__file__).with_name("driver.c")


@dataclass(frozen=True)
class Built:
    """The ingot, what was exported of it, and calls of each entry point."""

    ingot: Path
    exported: Exported
    calls: dict[str, Calls]

    def model(self, flags: int = 0) -> Model:
        return Library(self.exported).open(self.exported.weights, flags)

    def loaded(self) -> Any:
        return smelt.load(self.ingot)


def built_of(folder: Path, made_of: Mapping[str, tuple[Callable[[], Any], Calls]]) -> Built:
    """An ingot of these programs, exported."""
    made, calls = {}, {}
    with torch.no_grad():
        for name, (make, given) in made_of.items():
            made[name], calls[name] = make(), given
        smelt.save(made, folder / "all.ingot", targets=[targets()[0]])
    return Built(folder / "all.ingot", export(folder / "all.ingot", folder / "build"), calls)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    torch.manual_seed(5)
    return built_of(tmp_path_factory.mktemp("exported"), programs())


@pytest.fixture(scope="session")
def ranged(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Programs with free sizes."""
    torch.manual_seed(5)
    return built_of(tmp_path_factory.mktemp("ranged"), ranged_programs())


def driver(exported: Exported, compiler: Sequence[str], flags: Sequence[str]) -> Path:
    """The driver with the library."""
    folder = exported.library.parent
    program = folder / "driver"
    command = [*compiler, *flags, "-O1", "-Wall", "-Wextra", "-Werror", f"-I{folder}", str(DRIVER)]
    subprocess.run([*command, str(folder / "liball.a"), "-lpthread", "-lm", "-o", str(program)], check=True)
    return program
