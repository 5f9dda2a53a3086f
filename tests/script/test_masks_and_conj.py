"""Operators that torch's C++ leaves out or takes apart for the tensor at hand: `conj` of a real one, an index by a mask
without dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from tests.script.checking import agrees


def autocorrelation(x: Tensor) -> Any:
    a = torch.fft.rfft(x)
    return torch.fft.irfft(a * a.conj())


def power(z: Tensor) -> Any:
    return (z * z.conj()).real


def written_through(z: Tensor) -> Any:
    z.conj().mul_(1j)
    return z * 1


def as_function(x: Tensor) -> Any:
    return torch.conj(x) * 2, x.conj().real, torch.conj(x).sum(), x.conj(), x.conj().conj() + x.conj().T


def where_complex(x: Tensor) -> Any:
    if x.is_complex():
        x = x.conj()
    return x + 1


def a_row_written(x: Tensor) -> Any:
    y = x.conj()
    y[0] = 3
    return x * 1, y * 1


def of_parts(x: Tensor, y: Tensor) -> Any:
    return torch.polar(x, y).conj().imag


def each_turn(x: Tensor, n: int) -> Any:
    for _ in range(n):
        x = x.conj() * (1 + 1j)
    return x


_COMPLEX = torch.tensor([[1 + 2j, 3 - 1j], [2j, 1 + 0j]])
_REAL = torch.tensor([[1.0, 2], [3, 4]])
_INTS = torch.tensor([[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("fn", "calls"),
    [
        (autocorrelation, [(torch.tensor([1.0, 2, 4, 0]),)]),
        (power, [(_COMPLEX,)]),
        (written_through, [(_COMPLEX,)]),
        (as_function, [(_COMPLEX,), (_REAL,), (_INTS,)]),
        (where_complex, [(_COMPLEX,), (_REAL,), (_INTS,)]),
        (a_row_written, [(_COMPLEX,), (_REAL,), (_INTS,)]),
        (of_parts, [(_REAL, _REAL)]),
        (each_turn, [(_COMPLEX, n) for n in (0, 1, 3)]),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
@pytest.mark.filterwarnings("ignore:.*falls back to eager. an argument is complex")
def test_conj(fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> None:
    agrees(fn, *calls)


def all_or_nothing(x: smelt.f32[3, 2]) -> Any:
    return x[x.sum() > 0], x[:, x.sum() > 0]


def among_others(x: smelt.f32[3, 2]) -> Any:
    return x[x.sum() > 0, 1], x[1, x.sum() > 0], x[None, x.sum() > 0], x[x.sum() > 0, None, 0]


def beside_places(x: smelt.f32[3, 2], i: smelt.i64[None]) -> Any:
    return x[x.sum() > 0, i], x[i, x.sum() > 0]


def written(x: smelt.f32[3, 2]) -> Any:
    y = x.clone()
    y[x.sum() > 0] = 7
    y[:, x.sum() < 0] = 3
    y[x.sum() > 0] += 1
    return y


def a_byte(x: smelt.f32[3, 2], m: smelt.u8[()]) -> Any:
    return x[m]


def a_flag(x: Tensor, m: smelt.bool_[()]) -> Any:
    return x[m]


def of_any_kind(x: Tensor, i: Tensor) -> Any:
    return x[i]


def written_by_any_kind(x: Tensor, i: Tensor) -> Any:
    y = x * 1
    y[i] = 5
    return y


_ROWS = torch.arange(6.0).reshape(3, 2)
_EITHER = [(_ROWS,), (-_ROWS,)]
_FLAGS = [torch.tensor(True), torch.tensor(False)]
_BYTES = [torch.tensor(n, dtype=torch.uint8) for n in (1, 0)]
_INDICES = [torch.tensor(1), torch.tensor([1, 0]), torch.tensor([True, False, True])]


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("fn", "calls"),
    [
        (all_or_nothing, _EITHER),
        (among_others, _EITHER),
        (beside_places, [(_ROWS, torch.tensor([0, 1])), (-_ROWS, torch.tensor([1]))]),
        (written, _EITHER),
        (a_byte, [(_ROWS, m) for m in _BYTES]),
        (a_flag, [(rows, m) for rows in (_ROWS, torch.tensor(3.0)) for m in _FLAGS]),
        (of_any_kind, [(_ROWS, i) for i in (*_FLAGS, *_BYTES, *_INDICES)]),
        (written_by_any_kind, [(_ROWS, i) for i in (*_FLAGS, *_INDICES)]),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_mask_without_dimensions(fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> None:
    agrees(fn, *calls)
