"""A staging run leaves tensors what they are for torch: no sequences, whatever answers for their items meanwhile."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

import smelt
from smelt._torch.sequence_slots import has_items_by_number
from smelt.capture.staging.fakes.patches import answering


def by_sum(x: torch.Tensor) -> torch.Tensor:
    return x[0] * 3 if x.sum() > 0 else x[1]


class Named(torch.Tensor):
    """A subclass that gives its items as its parent does."""


class Listed(torch.Tensor):
    """A subclass with items of its own: a sequence before and after."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key)


def is_sequence(value: Any) -> bool:
    return bool(ctypes.pythonapi.PySequence_Check(ctypes.py_object(value)))


@pytest.mark.parametrize("door", [smelt.compile, lambda f: smelt.trace(f, (torch.ones(2, 3),)), smelt.script])
def test_tensors_are_no_sequences_afterwards(door: Any) -> None:
    zero = torch.tensor(1.0)
    before = {kind: has_items_by_number(kind) for kind in (torch.Tensor, torch.nn.Parameter, Named, Listed)}
    assert list(before.values()) == [False, False, False, True]
    made = door(by_sum)
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        assert torch.equal(made(x), by_sum(x))
    assert {kind: has_items_by_number(kind) for kind in before} == before
    assert not is_sequence(zero) and not is_sequence(torch.nn.Parameter(zero))
    assert is_sequence(zero.as_subclass(Listed))
    assert torch.tensor([zero, 2.0]).tolist() == [1.0, 2.0]
    frozen = torch.nn.Parameter(zero, requires_grad=False)
    assert torch.as_tensor([frozen, zero]).tolist() == [1.0, 1.0]
    assert torch.zeros(3)[torch.tensor(1)] == 0 and zero.as_subclass(Named)[None].shape == (1,)


def test_tensors_are_no_sequences_while_they_answer() -> None:
    zero = torch.tensor(1.0)
    with answering():

        class Made(torch.Tensor):
            pass

        assert not is_sequence(zero) and torch.tensor([zero, 2.0]).tolist() == [1.0, 2.0]
        assert torch.ones(2, 3)[1].tolist() == [1.0] * 3
    assert not has_items_by_number(Made) and not is_sequence(zero)
