"""The process that `smelt matrix` starts for one configuration of one program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from smelt.bench.fresh import answer
from smelt.bench.matrix.cases import CASES
from smelt.bench.matrix.cell import compile_again, measure
from smelt.bench.matrix.configurations import CONFIGURATIONS
from smelt.bench.matrix.program import Program, program_of
from smelt.bench.models import MODELS
from smelt.bench.training_models import TRAINING_MODELS
from smelt.cli.target import load_target

MODULE = "smelt.cli.matrix_cell"
_SEED = 11
BY_NAME = {model.name: model for model in (*CASES, *MODELS, *TRAINING_MODELS)}
"""Programs that have a name: the six use cases, then the benchmark's."""


def program(named: str, trains: bool) -> Program:
    """A use case or a model of the benchmark by its name, else what a factory makes. Raises: as `load_target`."""
    torch.manual_seed(_SEED)
    if named in BY_NAME:
        return program_of(BY_NAME[named])
    loaded = load_target(named)
    return Program(loaded.name, loaded.function, loaded.args, loaded.kwargs, trains)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    configuration = next(c for c in CONFIGURATIONS if c.name == request["configuration"])
    cache_dir, threads = Path(request["cache_dir"]), request["threads"]
    one = program(request["program"], request["trains"])
    if request["again"]:
        return compile_again(one, configuration, cache_dir, threads[0])
    return measure(one, configuration, cache_dir, threads, request["seconds"]).to_dict()


if __name__ == "__main__":
    answer(_answer)
