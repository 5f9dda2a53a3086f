"""One ingot with all programs, exported once for this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.package.c.export import Exported, export
from smelt.runtime.ingot.natives import targets
from tests.ingots_c.client import Library, Model
from tests.ingots_c.programs import Calls, programs


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


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("exported")
    torch.manual_seed(5)
    made, calls = {}, {}
    with torch.no_grad():
        for name, (make, given) in programs().items():
            made[name], calls[name] = make(), given
        smelt.save(made, folder / "all.ingot", targets=[targets()[0]])
    return Built(folder / "all.ingot", export(folder / "all.ingot", folder / "build"), calls)
