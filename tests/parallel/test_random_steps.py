"""Random steps on random meshes: ranks do what the module does, or the steps that do not fit are refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from tests.parallel.random_steps import run

_DAILY = (2, 8, 16)
"""A pipeline beside a divided batch; an interleaved one; checkpoints, a divided tensor and divided state."""
_FOUND = (160, 161, 178)
"""What once failed: no group of channels on a rank, unequal shares along two axes, a batch along two."""


@pytest.fixture(autouse=True)
def quiet_and_on_one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("seed", _DAILY)
def test_random_steps(seed: int) -> None:
    run(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("first", [*_FOUND, *range(1000, 1400, 20)])
def test_many_random_steps(first: int) -> None:
    found = [run(seed) for seed in range(first, first + (20 if first >= 1000 else 1))]
    assert any(one.is_proven for one in found)
