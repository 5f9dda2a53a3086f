"""Compiled programs over many sizes and numbers in random order, beside eager."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch

import smelt
from tests.symbolic.programs import PROGRAMS, Program, check


@pytest.mark.spread(28)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_like_eager(program: Program, dynamic: Any) -> None:
    r = random.Random(program.name)
    torch.manual_seed(r.getrandbits(31))
    eager = program.make()
    compiled = smelt.compile(program.make(), dynamic=dynamic)
    calls = [program.call(r) for _ in range(8)]
    with warnings.catch_warnings():
        # A program that is left to eager in the end is told so; it is right all the same.
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for _ in range(2):
            for call in calls:
                check(compiled, eager, call)
            r.shuffle(calls)
