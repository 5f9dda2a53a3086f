"""Random numbers of Python's and NumPy's global generator in compiled and traced programs: eager's, in its order."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from random import uniform
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smelt
from smelt.ops.evaluate import evaluate
from smelt.ops.python.python_draws import python_states

Program = Callable[[torch.Tensor], torch.Tensor]


def of_python(x: torch.Tensor) -> torch.Tensor:
    y = x * random.uniform(0.5, 1.5)
    if random.random() < 0.5:
        y = y + uniform(1, 2)
    return y * random.randint(1, 3) + random.gauss(mu=0, sigma=1.0) + random.getrandbits(4)


def of_numpy(x: torch.Tensor) -> torch.Tensor:
    if np.random.uniform(0, 1) < 0.5:
        return x * np.random.normal(scale=2.0, size=None)
    return x + np.random.randint(5) + np.random.rand()


def of_both_on_one_path(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return noisy(x) + torch.rand(4)
    return x


def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + random.random() * np.random.exponential()


def by_name(x: torch.Tensor) -> torch.Tensor:
    return x + uniform(1, 2)


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(int(x.abs().sum()) % 4):
        x = x + random.random()
    return x


def from_lists(x: torch.Tensor) -> torch.Tensor:
    i, j = random.sample(range(4), 2)
    return x[i] * random.choice([1.5, 2.5, 3.5]) + x[j] + sum(random.choices((1, 2, 3), k=2))


def of_parts(x: torch.Tensor) -> torch.Tensor:
    return random.choice([x.sin(), x.cos(), x * 2]) + 1


class Dropping(nn.Module):
    """Layers are dropped by chance in training; the number is drawn in any case."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            drawn = np.random.uniform(0, 1)
            if not (self.training and drawn < 0.5):
                x = layer(x)
        return x


PROGRAMS = (
    of_python, by_name, of_numpy, of_both_on_one_path, in_a_loop, from_lists, of_parts, Dropping(), Dropping().eval()
)  # fmt: skip
CALLS = [torch.linspace(-1, 2, 16).reshape(4, 4) * (-1) ** i * (1 + i / 7) for i in range(8)]


def run(program: Any) -> tuple[list[torch.Tensor], Any]:
    """The answers, and how the generators stand afterwards."""
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    with torch.no_grad():
        answers = [program(x) for x in CALLS]
    return answers, (*python_states(), torch.get_rng_state().tolist())


def same(program: Any, other: Any) -> None:
    expected, states = run(program)
    answers, after = run(other)
    torch.testing.assert_close(answers, expected)
    assert after == states


@pytest.mark.spread(6)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: getattr(p, "__name__", f"Dropping {p}"[:8]))
def test_one_graph_draws_what_eager_draws(program: Any) -> None:
    compiled = smelt.compile(program)
    same(program, compiled)
    stats = compiled.stats()
    assert stats.builds == 1 and not stats.fallbacks and stats.rows[0].entry is not None
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        before = python_states()
        traced = smelt.trace(program, (CALLS[0],))
        assert python_states() != before or program in (of_both_on_one_path, in_a_loop)
    same(program, traced)


def test_a_draw_is_counted_as_a_call_of_python() -> None:
    compiled = smelt.compile(of_numpy)
    run(compiled)
    assert "py.draw" in str(smelt.explain(compiled))
    graph = compiled.stats().rows[0].entry.graph  # type: ignore[union-attr]
    assert smelt.parse(str(graph)) == graph
    np.random.seed(1)
    expected = of_numpy(CALLS[0])
    np.random.seed(1)
    assert torch.equal(evaluate(graph, [CALLS[0]])[0], expected)
    with torch.no_grad():
        program = smelt.trace(of_numpy, (CALLS[0],))
    namespace: dict[str, Any] = {}
    exec(program.code, namespace)
    np.random.seed(1)
    assert torch.equal(namespace["forward"](None, CALLS[0])[0], expected)
    draws = smelt.trace(by_name, (CALLS[0],)).to_fx()
    random.seed(1)
    expected = by_name(CALLS[0])
    random.seed(1)
    assert torch.equal(draws(CALLS[0]), expected)


def several(x: torch.Tensor) -> torch.Tensor:
    return x + float(np.random.rand(3).sum())


def shuffled(x: torch.Tensor) -> torch.Tensor:
    order = [0, 1, 2]
    random.shuffle(order)
    return x * order[0]


def seeded(x: torch.Tensor) -> torch.Tensor:
    random.seed(5)
    return x * random.random()


OWN = random.Random(1)


def of_its_own(x: torch.Tensor) -> torch.Tensor:
    return x * OWN.random()


@pytest.mark.parametrize("program", [several, shuffled, seeded, of_its_own])
def test_what_no_graph_draws_runs_in_python(program: Program) -> None:
    OWN.seed(1)
    expected = run(program)
    OWN.seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        compiled = smelt.compile(program)
        answers = run(compiled)
    torch.testing.assert_close(answers[0], expected[0], rtol=0, atol=0)
    assert answers[1] == expected[1]
    assert any("draws random numbers" in reason for reason in compiled.stats().fallbacks)


def test_an_error_after_a_draw_leaves_the_generator_as_eager_does() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * random.random()
        if x.sum() > 100:
            raise ValueError("too much")
        return y

    compiled = smelt.compile(program)
    same(program, compiled)
    for f in (program, compiled):
        random.seed(4)
        with pytest.raises(ValueError, match="too much"), torch.no_grad():
            f(torch.full((4, 4), 50.0))
        assert random.random() == (random.seed(4), random.random(), random.random())[2]


class Gated(nn.Module):
    """Names a generator that it draws from in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.own = random.Random(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            x = x * random.uniform(0, 1) * self.own.random() * np.random.uniform()
        return x.sin() + 1


def test_to_name_a_generator_is_no_effect() -> None:
    model = Gated().eval()
    compiled = smelt.compile(model)
    same(model, compiled)
    assert compiled.stats().builds == 1 and not compiled.stats().fallbacks
