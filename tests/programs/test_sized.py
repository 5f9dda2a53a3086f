"""Random whole programs, called with other sizes and numbers each time, behave as in eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.codegen.fusion.pull import Pull
from tests.programs.generate import generate
from tests.programs.judge import OPTIONS, ORDERS, OWN, judge
from tests.programs.sized import sized


@pytest.mark.parametrize("seed", range(2000, 2012))
def test_random_programs_of_many_sizes(seed: int, tmp_path: Path) -> None:
    path = tmp_path / f"program_{seed}.py"
    path.write_text(sized(generate(seed, 4).text, seed))
    way, options = ("compile", "dynamic")[seed % 2], (OPTIONS, OWN)[seed // 2 % 2]
    verdict = judge(path, (way,), options, ORDERS[seed % 4 // 2 :][:1])
    assert not verdict.difference, f"{verdict.difference}\n{path.read_text()}"
    assert not verdict.internal, f"{verdict.internal}\n{path.read_text()}"


def test_writes_to_parts_of_each_other_do_not_double_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled, element = 0, Pull._element

    def counted(self: Pull, *args: Any) -> Any:
        nonlocal pulled
        pulled += 1
        if pulled > 100_000:
            raise RuntimeError("too much is pulled")
        return element(self, *args)

    monkeypatch.setattr(Pull, "_element", counted)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 0
        for i in range(16):
            y[1:] += i
            y.clamp_(-9, 9)
        return y

    x = torch.arange(8.0) - 4
    compiled = smelt.compile(program)
    for _ in range(2):
        assert torch.equal(compiled(x), program(x))
    assert compiled.stats().fallbacks == {}
    assert 0 < pulled < 20_000
