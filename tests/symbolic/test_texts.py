"""Texts of free sizes and numbers: what is printed, returned and said by errors is what eager says, in one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


class Pair:
    def __init__(self, n: int) -> None:
        self.n = n

    def __repr__(self) -> str:
        return f"Pair({self.n}, {self.n + 1})"


class TooMany(Exception):
    def __str__(self) -> str:
        return f"{self.args[0]} are too many"


def printed(x, n):
    print(n, x.shape, tuple(x.shape), [x.shape], x.shape[0] * 2, sep=f"<{n}>")
    return x + n


def formatted(x, n):
    print(f"{n:>5}|{n!r:<4}|{n / 3:.3f}|{x.shape}|{tuple(x.shape)!r:>12}")
    print("%d rows of %s" % (n, x.shape), "%d x %d" % x.shape, "{:>4} {!r}".format(n, x.shape))  # noqa: UP031, UP032
    return x * n, str(n) + repr(x.shape), str(n).zfill(4)


def said(x, n):
    if n > 8:
        raise TooMany(n)
    if x.sum() > 1e6:
        raise ValueError(f"{Pair(n)} is too large for {x.shape}")
    return f"{Pair(n)} {Pair(n)!r:>20}", x * n


def repeated(x, n):
    line = "=" * n
    print(line, x.shape[0] * "-")
    return f"{line:>5}", x + len(line)


def looped(x, n):
    for i in range(n):
        print(f"turn {i} of {n}")
    return x + len("." + f"{n}")


def compared(x, n):
    return x * 2 if f"{n}" == "7" else x + 1


def in_lists(x, n):
    return str([Pair(n)]), x + n


def outcome(f: Callable[..., Any], capsys: Any, *args: Any) -> str:
    try:
        found = f(*args)
    except Exception as error:
        found = type(error), str(error)
    return repr(found) + capsys.readouterr().out


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("f", "most"), [(printed, 3), (formatted, 3), (said, 3), (repeated, 3), (looped, 3), (compared, 3), (in_lists, 9)]
)
def test_texts_are_eagers(f: Callable[..., Any], most: int, capsys: Any) -> None:
    compiled = smelt.compile(f)
    for rows, n in ((3, 2), (3, 5), (5, 6), (7, 7), (4, -3), (9, 12), (2, 0), (6, 1)):
        x = torch.arange(rows * 2.0).view(rows, 2)
        if f is said and n == 5:
            x = x + 1e7
        assert outcome(compiled, capsys, x, n) == outcome(f, capsys, x, n)
    assert compiled.stats().builds <= most


def test_texts_of_shapes_that_data_decide(capsys: Any) -> None:
    def kept(x, mask):
        y = x[mask]
        print(y.shape, [y.shape], f"{y.shape}")
        return y

    compiled = smelt.compile(kept)
    for rows in (4, 5, 6):
        x, mask = torch.randn(rows, 2), torch.arange(rows) % 2 == 0
        assert outcome(compiled, capsys, x, mask) == outcome(kept, capsys, x, mask)


def test_texts_of_named_sizes() -> None:
    def sized(x: smelt.f32["B", 4]):  # noqa: F821, UP037
        return f"{x.shape[0]:03d}x{x.shape[1]}", x * 2

    program = smelt.script(sized)
    for shape in ((3, 4), (5, 4), (7, 4)):
        assert program(torch.randn(shape))[0] == sized(torch.randn(shape))[0]


def test_distributions_of_any_size() -> None:
    def scored(x, y):
        return torch.distributions.Normal(x, y, validate_args=True).log_prob(x * 2)  # others turn it off

    compiled = smelt.compile(scored)
    for rows in (3, 5, 7, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x, x.exp()), scored(x, x.exp()))
    with pytest.raises(ValueError, match=r"Expected parameter scale \(Tensor of shape \(6, 4\)\)") as expected:
        scored(x[:6], -x[:6].exp())
    with pytest.raises(ValueError) as found:
        compiled(x[:6], -x[:6].exp())
    assert str(found.value) == str(expected.value)
    assert compiled.stats().builds == 2
    assert all(getattr(row.entry, "why_alone", "") == "" for row in compiled.stats().rows)
