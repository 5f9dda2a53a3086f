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


@pytest.mark.spread(5)
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


def test_a_plan_of_library_calls_alone_has_many_sizes() -> None:
    def program(x: torch.Tensor, s: torch.Tensor) -> None:
        s.neg_()

    compiled = smelt.compile(program, options=OPTIONS, dynamic=True)
    with torch.no_grad():
        for width in (12, 5, 1, 0):
            x, s = torch.rand(3, width).t(), torch.tensor(2.0)
            compiled(x, s)
            assert s == -2
    assert compiled.stats().fallbacks == {}


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_float_whose_text_is_asked_for_is_zero_with_its_sign(dynamic: bool | None) -> None:
    def program(x: torch.Tensor, n: float) -> tuple[torch.Tensor, str]:
        return x * n, f"{n:.1f}"

    compiled = smelt.compile(program, options=OPTIONS, dynamic=dynamic)
    x, nan = torch.ones(2), float("nan")
    for n in (1.0, 2.0, 0.0, -0.0, nan, 0.0, nan, -0.0):
        assert str(compiled(x, n)) == str(program(x, n))
    assert compiled.stats().fallbacks == {}
