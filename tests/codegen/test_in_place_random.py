"""Random programs of in-place updates over a few tensors and views of them, natively and in Python, against eager."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

import smelt
from smelt.diag import Options
from smelt.ir import Graph
from smelt.runtime.plan import Bump
from tests.codegen.harness import call, executables, lowered

Tensors = list[torch.Tensor]
_SHAPES = ((4, 6), (4, 6), (4, 6), (6,))


def _inputs(seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator) for shape in _SHAPES]
    if seed % 3 == 0:
        made[1] = torch.randn(6, 4, generator=generator).t()
    if seed % 5 == 0:
        made[2] = torch.randn(4, 12, generator=generator)[:, ::2]
    return made


class _Choices:
    """Numbers that were drawn before, so that a program draws none."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = iter(numbers)

    def randint(self, low: int, high: int) -> int:
        return low + next(self._numbers) % (high - low + 1)

    def choice(self, items: Tensors) -> torch.Tensor:
        return items[self.randint(0, len(items) - 1)]


def program(seed: int) -> Callable[..., Tensors]:
    """A function of four tensors that updates some of them, and returns a few values."""

    numbers = random.Random(seed).choices(range(840), k=200)

    def f(*given: torch.Tensor) -> Tensors:
        rng = _Choices(numbers)
        tensors, made = list(given), [given[0] * 2]
        for _ in range(rng.randint(2, 7)):
            _step(rng, tensors, made)
        return made[rng.randint(0, len(made) - 1) :][:2]

    return f


def _view(rng: _Choices, x: torch.Tensor) -> torch.Tensor:
    match rng.randint(0, 7):
        case 0 if x.dim() > 1:
            return x[rng.randint(0, x.shape[0] - 1)]
        case 1:
            return x[rng.randint(0, 1) : rng.randint(2, 4)]
        case 2 if x.dim() > 1:
            return x[:, rng.randint(0, 5)]
        case 3 if x.dim() > 1:
            return x[1][2:5]
        case 4 if x.dim() > 1:
            return x.t()[1:, :2]
        case _:
            return x


def _value(rng: _Choices, tensors: Tensors, made: Tensors, like: torch.Tensor) -> torch.Tensor:
    """Something that is broadcast to a tensor's shape: of that tensor, of others, of parts, of sums."""
    found = rng.choice([*tensors, *made])
    match rng.randint(0, 5):
        case 0:
            found = found.sum()
        case 1:
            found = found.clone()[0]
        case 2:
            found = found.sin().mul(0.5)
        case 3 if found.dim() > 1:
            found = found.mean(0)
        case 4:
            found = _view(rng, found)
        case _:
            pass
    if found.dim() <= like.dim() and all(
        a in (1, b) for a, b in zip(found.shape[::-1], like.shape[::-1], strict=False)
    ):
        return found
    return found.flatten()[:1].sum()


def _step(rng: _Choices, tensors: Tensors, made: Tensors) -> None:
    target = _view(rng, rng.choice(tensors))
    match rng.randint(0, 12):
        case 0 | 1:
            target.mul_(0.5).add_(_value(rng, tensors, made, target))
        case 2:
            target.copy_(_value(rng, tensors, made, target))
        case 3:
            made.append(_value(rng, tensors, made, target) + target)
        case 4:
            a, b = tensors[0], tensors[1]
            old = a.clone()
            a.copy_(b * 1.5)
            b.copy_(old * 0.5)
        case 5:
            target[0] = _value(rng, tensors, made, target[0])
        case 6:
            target.lerp_(torch.zeros_like(target) + _value(rng, tensors, made, target), 0.25)
        case 7:
            made.append(target.clone())
        case 8:
            m, v, p = tensors[0], tensors[1], tensors[2]
            m.lerp_(made[0], 0.1) if made[0].shape == m.shape else m.mul_(0.9)
            v.mul_(0.9).addcmul_(m, m, value=0.1)
            p.addcdiv_(m, v.abs().sqrt().add_(1e-3), value=-0.1)
        case 9:
            target.index_copy_(0, torch.zeros(1, dtype=torch.long), torch.zeros_like(target[:1]) + target.sum())
        case 10:
            target[torch.tensor([target.shape[0] - 1, 0])] = _value(rng, tensors, made, target[0])
        case 11:
            tensors[2].select(1, 1)[torch.tensor(2)] = _value(rng, tensors, made, tensors[2][0, 0])
        case _:
            target.add_(target.clone().flip(0))


def check(seed: int) -> int:
    """Results and inputs of a program are eager's; how many tensors it wrote in place."""
    f = program(seed)
    try:
        f(*_inputs(seed))
    except RuntimeError:
        return 0  # torch refuses operands that overlap
    graph = smelt.trace(f, tuple(_inputs(seed)), check=False).graph_for(*_inputs(seed))
    assert isinstance(graph, Graph)
    try:
        plan = lowered(graph, {}, Options(deterministic=True))
    except smelt.SmeltError as error:
        # A copy between parts that overlap: what eager sees of it depends on its order.
        assert error.code == "S0303"
        return 0
    for executable in executables(plan.plan):
        ours, theirs = _inputs(seed), _inputs(seed)
        for _ in range(2):
            before = [t._version for t in ours], [t._version for t in theirs]
            expected = f(*theirs)
            found = call(plan, executable, ours, {})
            for a, b in zip([*found, *ours], [*expected, *theirs], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, equal_nan=True)
            written = [t._version - n for t, n in zip(ours, before[0], strict=True)]
            by_eager = [t._version > n for t, n in zip(theirs, before[1], strict=True)]
            assert all(n in (0, 1) for n in written)
            assert all(seen for seen, n in zip(by_eager, written, strict=True) if n)
    return sum(isinstance(i, Bump) for i in plan.plan.instructions)


def test_updates_and_views_are_as_in_eager() -> None:
    in_place = sum(check(seed) for seed in range(24))
    assert in_place > 12


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(100, 500, 50))
def test_more_updates_and_views_are_as_in_eager(start: int) -> None:
    for seed in range(start, start + 50):
        check(seed)
