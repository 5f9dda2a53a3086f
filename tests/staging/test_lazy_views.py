"""Conjugate and negative views, of which no type tells, where ways meet, loops turn and containers hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

Tensor = torch.Tensor
DATA = ([1.0, 2.0], [-1.0, -2.0], [3.0, 0.5], [0.25, -0.125], [-4.0, 2.0])


class Held:
    value: Tensor


def of_one_arm(x: Tensor) -> object:
    z = torch.complex(x, x + 1)
    if x.sum() > 0:
        z = z.conj()
    return z, z * 1, z.imag, z.imag + 0, z.is_conj(), z.imag.is_neg()


def of_both_arms(x: Tensor) -> object:
    z = torch.complex(x, x + 1)
    z = z.conj() if x.sum() > 0 else (z * 2).conj()
    return z, z.imag, z.is_conj(), z.resolve_conj().is_conj()


def of_the_arms_of_a_result(x: Tensor) -> object:
    z = torch.complex(x, x + 1)
    if x.sum() > 0:
        return z.conj()
    return z * 2


def negated_in_an_arm(x: Tensor) -> object:
    y = torch._neg_view(x * 2) if x.sum() > 0 else x
    return y, y.is_neg(), y + 1


def resolved_afterwards(x: Tensor) -> object:
    z = torch.complex(x, x + 1)
    z = z.conj() if x.sum() > 0 else z * 2
    return torch.view_as_real(z.resolve_conj())


def refused_where_it_is_conjugate(x: Tensor) -> object:
    z = torch.complex(x, x + 1)
    if x.sum() > 0:
        z = z.conj()
    try:
        return torch.view_as_real(z)
    except RuntimeError:
        return x * 7


def of_an_attribute(x: Tensor) -> object:
    held = Held()
    held.value = torch.complex(x, x + 1)
    if x.sum() > 0:
        held.value = held.value.conj()
    return held.value.imag, held.value.is_conj()


def of_each_turn(x: Tensor) -> object:
    z, turns = torch.complex(x, x + 1), 0
    while turns < x.abs().sum():
        z = z.conj()
        turns += 1
    return z, z * 1, z.is_conj()


def of_a_number_of_turns(x: Tensor) -> object:
    z = torch.complex(x, x + 1)
    for _ in range(int(x.abs().sum())):
        z = (z * 0.5).conj()
    return z.imag, z.is_conj()


def before_a_loop(x: Tensor) -> object:
    z, total = torch.complex(x, x + 1).conj(), x.sum()
    while total < 10:
        total = total + z.imag.abs().sum()
        z = z + 1
    return z, total


def of_a_growing_list(x: Tensor) -> object:
    z, made = torch.complex(x, x + 1), []
    for _ in range(int(x.abs().sum()) + 1):
        made.append(z.conj())
        z = z * 2
    return made[0].imag, made[0].is_conj(), torch.stack(made).imag


def of_a_list_by_place(x: Tensor) -> object:
    z = torch.complex(x, x + 1)
    chosen = [z, z.conj(), (z * 2).conj()][int(x.sum().abs()) % 3]
    return chosen.imag, chosen.is_conj(), chosen * 1


PROGRAMS: list[Callable[[Tensor], object]] = [
    of_one_arm, of_both_arms, of_the_arms_of_a_result, negated_in_an_arm, resolved_afterwards,
    refused_where_it_is_conjugate, of_an_attribute, of_each_turn, of_a_number_of_turns, before_a_loop,
    of_a_growing_list, of_a_list_by_place,
]  # fmt: skip


def told(value: Any) -> Any:
    """All that a program can see of a value."""
    if isinstance(value, Tensor):
        return value.tolist(), value.shape, value.stride(), value.is_conj(), value.is_neg()
    return [told(item) for item in value] if isinstance(value, (tuple, list)) else value


@pytest.mark.spread(6)
@pytest.mark.filterwarnings("ignore:.*cannot be lowered:smelt.diag.SmeltWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_is_what_it_is_in_eager(program: Callable[[Tensor], object]) -> None:
    compiled = smelt.compile(program, options={"measure": False})
    for number in (0, 1, 2, 0, 3, 4, 1, 0):
        x = torch.tensor(DATA[number])
        assert told(compiled(x)) == told(program(x)), number


@pytest.mark.parametrize("program", [resolved_afterwards, of_an_attribute], ids=lambda program: program.__name__)
def test_ways_that_meet_later_are_one_graph(program: Callable[[Tensor], object]) -> None:
    def values(x: Tensor) -> object:
        found = program(x)
        return [part + 0 if isinstance(part, Tensor) else part for part in found] if type(found) is tuple else found

    graph = smelt.trace(values, (torch.tensor(DATA[0]),), options={"measure": False})
    for number in (0, 1, 2):
        x = torch.tensor(DATA[number])
        assert told(graph(x)) == told(values(x)), number


def of_an_argument(z: Tensor) -> object:
    w = z.conj() if z.real.sum() > 0 else z
    return w.is_conj(), w.imag.is_neg(), w.imag + 0


def test_of_an_argument_it_is_traced_for_both_ways() -> None:
    x = torch.tensor([1.0, 2.0])
    z = torch.complex(x, x)
    program = smelt.trace(of_an_argument, (z,), options={"measure": False})
    for given in (z, -z, z * 2):
        assert told(program(given)) == told(of_an_argument(given))
