"""Writes to what a mask selects, recorded where it selects one element: graphs hold for any number of them."""

import warnings

import pytest
import torch

import smelt


def _added(w, mask):
    w = w.clone()
    w[mask] += 1
    return w


def _put(w, mask):
    out = torch.zeros_like(w)
    out[mask] = w[mask] * 2
    return out


def _rows(w, mask):
    table = w.reshape(3, 2).clone()
    table[mask[:3]] *= 3
    return table


_MASKS = [torch.tensor(bits, dtype=torch.bool) for bits in ([0, 1, 0, 0, 0, 0], [1, 1, 0, 1, 0, 1], [0] * 6, [1] * 6)]


@pytest.mark.spread(3)
@pytest.mark.parametrize("program", [_added, _put, _rows])
@pytest.mark.parametrize("make", ["compile", "trace"])
def test_one_element_by_chance(program, make):
    w = torch.arange(6.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", smelt.SmeltWarning)
        made = smelt.compile(program) if make == "compile" else smelt.trace(program, (w, _MASKS[0]))
        for mask in _MASKS * 2:
            assert torch.equal(made(w, mask), program(w, mask))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int64, torch.float32, torch.bfloat16])
def test_a_single_element_of_any_dtype(dtype):
    """Examples of numbers are larger than what one byte holds."""

    def cleared(x):
        x[x > 0] = 0
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error", smelt.SmeltWarning)
        made = smelt.trace(cleared, torch.ones((), dtype=dtype))
    for value in (0, 5, 100):
        x = torch.full((), value, dtype=dtype)
        assert torch.equal(made(x.clone()), cleared(x.clone()))


def _copied(x, mask):
    rows = torch.zeros(int(mask.sum()), 2)
    rows.copy_(x[mask])
    rows[:, 1] = 2.0
    x[mask] = rows
    return x


def _filled_in(x, mask):
    places = mask.nonzero()[:, 0]
    rows = torch.zeros(len(places), 2)
    rows[:] = x[places] * 2
    rows[:1] = 3.0
    x[places] = rows
    return rows


@pytest.mark.parametrize("program", [_copied, _filled_in])
def test_tensors_of_sizes_that_data_decide_are_written(program):
    with warnings.catch_warnings():
        warnings.simplefilter("error", smelt.SmeltWarning)
        made = smelt.compile(program)
        for mask in _MASKS * 2:
            x = torch.arange(12.0).view(6, 2)
            found, expected = x.clone(), x.clone()
            assert torch.equal(made(found, mask), program(expected, mask)) and torch.equal(found, expected)
    assert made.stats().builds == 1
