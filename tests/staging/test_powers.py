"""Powers of numbers that depend on data: floats where the base was none below zero, complex numbers as in eager."""

from __future__ import annotations

import pytest
import torch

import smelt


def root(x, t):
    return x * float(t) ** 0.5, t.item() ** -0.25


def power(x, t):
    return x * abs(t.item()) ** x.shape[0] ** 0.5, pow(float(t), 1.5), float(t) ** 2


def on_one_path(x, t):
    return (x / t.item() ** 0.3,) if x.sum() > 0 else (x,)


def outcome(f, *args):
    try:
        return [repr(part) for part in f(*args)]
    except (ZeroDivisionError, OverflowError) as error:
        return repr(error)


@pytest.mark.parametrize("f", [root, power, on_one_path])
def test_powers_of_floats(f):
    compiled, x = smelt.compile(f), torch.arange(6.0)
    positive = (2.0, 0.5, 3.0, 1e300, float("inf"), 7.0, float("nan"))
    for number in positive:
        t = torch.tensor(number, dtype=torch.float64)
        assert outcome(compiled, x, t) == outcome(f, x, t)
    assert compiled.stats().builds == 1
    for number in (-2.0, 0.0, -3.0, -0.0, float("-inf"), 4.0):
        t = torch.tensor(number, dtype=torch.float64)
        assert outcome(compiled, x, t) == outcome(f, x, t)
