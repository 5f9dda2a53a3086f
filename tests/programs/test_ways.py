"""Random whole programs, called with other strides, shared memory, dtypes and modes, while their state changes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from tests.programs.generate import generate
from tests.programs.judge import OPTIONS, ORDERS, OWN, judge


@pytest.mark.spread(6)
@pytest.mark.parametrize("seed", range(3000, 3012))
def test_random_programs_called_otherwise(seed: int, tmp_path: Path) -> None:
    path = tmp_path / f"program_{seed}.py"
    path.write_text(generate(seed, 4).text)
    verdict = judge(path, ("compile",), (OPTIONS, OWN)[seed % 2], ORDERS[seed // 2 % 2 :][:1], vary=seed)
    assert not verdict.difference, f"{verdict.difference}\n{path.read_text()}"


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_many_random_programs_called_otherwise(part: int, tmp_path: Path) -> None:
    for seed in range(3_000_000 + 100 * part, 3_000_100 + 100 * part):
        path = tmp_path / f"program_{seed}.py"
        path.write_text(generate(seed).text)
        verdict = judge(path, ("compile",), (OPTIONS, OWN)[seed % 2], vary=seed)
        assert not verdict.difference, f"{verdict.difference}\n{path.read_text()}"


@pytest.mark.parametrize("options", [OPTIONS, OWN])
def test_inference_tensors_are_written_where_eager_writes_them(options: dict[str, Any]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x[0] += 1
        return x * 2

    def told(run: Any, mode: Any, of_inference: bool) -> list[str]:
        with torch.inference_mode(of_inference):
            x = torch.ones(3)
        with mode():
            try:
                return [str(run(x)), str(x)]
            except RuntimeError as error:
                return [str(error), str(x)]

    compiled = smelt.compile(program, options=options)
    ways = [*itertools.product((torch.no_grad, torch.inference_mode, torch.enable_grad), (False, True))]
    for mode, of_inference in (*ways, *ways[::-1], *ways):
        assert told(compiled, mode, of_inference) == told(program, mode, of_inference)
    # Half of the calls with gradients raise: after a few in a row, some of the next ones are not recorded.
    assert compiled.stats().fallbacks.keys() <= {"the last recorded run of it raised"}
