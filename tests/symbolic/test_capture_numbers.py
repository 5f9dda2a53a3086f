"""Numbers as inputs: what Python computes of ints and floats is computed by the graph, with Python's own results."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.symbolic.capture_harness import compare, holds, symbolic

X = torch.arange(6.0).reshape(2, 3)
FLOATS = (0.5, -1.25, 3.0, -0.0, 1e-300, 1e300, math.inf, -math.inf, math.nan)
INTS = (3, -4, 0, 1, 7, 2**40, -(2**40))

OF_FLOATS: dict[str, Any] = {
    "plus": lambda x, a: (x * a, a + 1, 1 - a, a * a, -a),
    "quotient": lambda x, a: (x / 2, a / 3, 1 / a if a != 0 else 0.0),
    "floor": lambda x, a: (x, a // 0.3, a % 0.3),
    "rounded": lambda x, a: (x, round(a, 1), abs(a)),
    "whole": lambda x, a: (x, int(a) if abs(a) < 1e9 else 0, round(a) if abs(a) < 1e9 else 0),
    "power": lambda x, a: (x, a**2, 2.0**a if abs(a) < 100 else a),
    "root": lambda x, a: (x, math.sqrt(a) if a >= 0 else a),
    "branch": lambda x, a: x if a < 0.25 else x * a,
    "mixed": lambda x, a: (x * (a * x.shape[0] + 1), a - x.shape[1]),
    "shifted": lambda x, a: torch.clamp(x, min=a),
    "full": lambda x, a: torch.full((2,), a),
}
OF_INTS: dict[str, Any] = {
    "plus": lambda x, n: (x * n, n + 1, 1 - n, n * n, -n, ~n),
    "quotients": lambda x, n: (x, n // 3, n % 3, n / 4, divmod(n, -5)),
    "bits": lambda x, n: (x, n & 7, n | 8, n ^ 5, n >> 1),
    "shift": lambda x, n: (x, n << 2),
    "power": lambda x, n: (x, n**2, n**3 - n),
    "exponent": lambda x, n: (x, 2 ** (n % 5)),
    "extremes": lambda x, n: (x, max(n, 2), min(n, -1), abs(n)),
    "branch": lambda x, n: x if n >= 0 else x * n,
    "chain": lambda x, n: x + 1 if 0 <= n < 5 else x,
    "truth": lambda x, n: x if n else x + 1,
    "negative": lambda x, n: x[:, n % 3 - 3 :],
    "rolled": lambda x, n: x.roll(n % 2, 1),
    "float": lambda x, n: (x * float(n), n * 0.5, n == 3.0),
}


@pytest.mark.parametrize("name", OF_FLOATS)
@pytest.mark.parametrize("first", (0.5, -1.25))
def test_floats(name: str, first: float) -> None:
    program = OF_FLOATS[name]
    found = symbolic(program, (X, first))
    assert holds(found, (X, first))
    compare(program, found, (X, first))
    for value in FLOATS:
        if holds(found, (X, value)):
            compare(program, found, (X, value))


@pytest.mark.parametrize("name", OF_INTS)
@pytest.mark.parametrize("first", (3, -4))
def test_ints(name: str, first: int) -> None:
    program = OF_INTS[name]
    found = symbolic(program, (X, first))
    assert holds(found, (X, first))
    compare(program, found, (X, first))
    for value in INTS:
        if holds(found, (X, value)):
            compare(program, found, (X, value))


def test_what_needs_no_guard_has_none() -> None:
    for name in ("plus", "quotients"):
        found = symbolic(OF_INTS[name], (X, 3))
        assert not found.sizes.guards, name  # type: ignore[union-attr]
