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


@pytest.mark.parametrize("program", [_added, _put, _rows])
@pytest.mark.parametrize("make", ["compile", "trace"])
def test_one_element_by_chance(program, make):
    w = torch.arange(6.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", smelt.SmeltWarning)
        made = smelt.compile(program) if make == "compile" else smelt.trace(program, (w, _MASKS[0]))
        for mask in _MASKS * 2:
            assert torch.equal(made(w, mask), program(w, mask))
