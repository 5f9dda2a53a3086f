"""Elements of lists whose length depends on data share memory, or are one tensor, as in eager."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import Tensor

import smelt

X = torch.arange(12.0).reshape(3, 4)


def rows(x: Tensor, n: Tensor) -> list[Tensor]:
    y = x * 2
    return [y[i] for i in range(n.item())]


def iterated(x: Tensor, n: Tensor) -> list[Tensor]:
    x = x.clone()
    return [row for _, row in zip(range(n.item()), x, strict=False)]


def rows_of_a_constant(x: Tensor, n: Tensor) -> list[Tensor]:
    y, out = torch.zeros(3, 4), []
    for i in range(n.item()):
        out.append(y[i])
    return out


def kept_on_some_ways(x: Tensor, n: Tensor) -> list[Tensor]:
    h, out = x[0] * 2, []
    for _ in range(n.item()):
        out.append(h)
        if h.sum() < 30:
            h = h + x[1]
    return out


def exchanged(x: Tensor, n: Tensor) -> list[Tensor]:
    h, g, out = x[0] * 2, x[1] * 2, []
    for _ in range(n.item()):
        out.append(h)
        h, g = g, h
    return out


def carried(x: Tensor, n: Tensor) -> list[Tensor]:
    h, out = x[0] * 2, []
    for _ in range(n.item()):
        out.append(h)
        h = h + 1
    return out


def whole_and_part(x: Tensor, n: Tensor) -> list[Tensor]:
    out = []
    for i in range(n.item()):
        h = x[i] * 2
        out.append(h)
        out.append(h[:2])
    return out


def before_and_after(x: Tensor, n: Tensor) -> list[Tensor]:
    h, out = x[0] * 2, []
    for _ in range(n.item()):
        out.append(h)
        h = h + 1
        out.append(h)
    return out


PROGRAMS = [
    rows,
    iterated,
    rows_of_a_constant,
    kept_on_some_ways,
    exchanged,
    carried,
    whole_and_part,
    before_and_after,
]
WHOLE = (rows, carried, whole_and_part)


def seen(found: list[Tensor]) -> list[object]:
    """Values, and which of them lie in one memory, or are one object."""
    pairs = [
        (a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr(), a is b)
        for a, b in itertools.combinations(found, 2)
    ]
    return [[t.tolist() for t in found], [t.storage_offset() for t in found], pairs]


@pytest.mark.spread(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_compiled(program) -> None:
    compiled = smelt.compile(program)
    for n in (3, 1, 2, 3, 0, 2):
        assert seen(compiled(X, torch.tensor(n))) == seen(program(X, torch.tensor(n)))
    if program in WHOLE:
        (row,) = compiled.stats().rows
        assert row.entry is not None and not row.entry.why_paths


@pytest.mark.spread(3)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_scripted(program) -> None:
    scripted = smelt.script(program, example_inputs=(X, torch.tensor(2)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (3, 1, 2, 0):
            assert seen(scripted(X, torch.tensor(n))) == seen(program(X, torch.tensor(n)))
