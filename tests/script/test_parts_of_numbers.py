"""What Python's numbers have besides operators: `n.real`, `n.denominator`, `n.conjugate()`, `int.bit_count(n)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from tests.script.checking import agrees


def of_ints(x: torch.Tensor, n: int) -> Any:
    parts = n.real, n.imag, n.numerator, n.denominator, n.conjugate(), n.as_integer_ratio(), n.bit_length()
    return x * n.real + n.imag, parts, int.bit_count(n), n.bit_count(), int.conjugate(n)


def of_floats(x: torch.Tensor, n: float) -> Any:
    ratio = n.as_integer_ratio()
    return x * n.real + n.imag, (n.real, n.imag, n.conjugate()), ratio[0] + ratio[1], n.hex(), float.is_integer(n)


def of_bools(x: torch.Tensor, n: bool) -> Any:
    parts = n.real, n.imag, n.numerator, n.denominator, n.conjugate(), n.as_integer_ratio(), n.bit_length()
    return x * n.real, parts, n.bit_count(), int.bit_length(n)


@pytest.mark.parametrize(
    ("f", "numbers"), [(of_ints, (3, 0, -8)), (of_floats, (3.5, -0.0, 1e300)), (of_bools, (True, False))]
)
def test_parts_of_numbers(f: Callable[..., Any], numbers: tuple[Any, ...]) -> None:
    agrees(f, *((torch.ones(2), n) for n in numbers))


def test_of_a_number_of_data() -> None:
    def f(x: torch.Tensor) -> Any:
        n, v = int(x.sum()), x.sum().item()
        return x * n.real if n.bit_length() > 2 else x + v.real + v.imag, n.numerator, int.bit_count(n)

    compiled = smelt.compile(f)
    for k in (1.0, 2.0, 3.0, 4.0, -3.0):
        x = torch.full((3,), k)
        got, want = compiled(x), f(x)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]


def test_parts_that_no_number_has() -> None:
    with pytest.warns(smelt.SmeltWarning, match="'float' object has no attribute 'numerator'"):
        agrees(lambda x, n=1.5: x * n.numerator, (torch.ones(2), 2.5), runs=False)
