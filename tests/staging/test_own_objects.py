"""What a call makes is that call's: equal lists are two, and nothing that may change is handed out twice."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

Tensor = torch.Tensor


def appended(c: Tensor) -> object:
    seen = []
    for _ in range(int(c[0])):
        seen.append([1])
    return seen


def of_a_number(c: Tensor) -> object:
    seen, n = [], int(c[1])
    for _ in range(int(c[0])):
        seen.append([n])
    return seen


def in_an_arm(c: Tensor) -> object:
    n, seen = int(c[1]), []
    if c.sum() > 0:
        seen.append([n])
        seen.append([n])
    return seen


def dictionaries(c: Tensor) -> object:
    seen = []
    for _ in range(int(c[0])):
        seen.append({"a": 1})
    return seen


def within_tuples(c: Tensor) -> object:
    seen = []
    for i in range(int(c[0])):
        seen.append(([1], i))
    return [pair[0] for pair in seen]


@pytest.mark.parametrize("program", [appended, of_a_number, in_an_arm, dictionaries, within_tuples])
def test_equal_containers_are_two(program: Callable[[Tensor], Any]) -> None:
    compiled, c = smelt.compile(program, options={"adaptive": False}), torch.tensor([2.0, 1.0])
    for _ in range(3):
        found = compiled(c)
        assert found == program(c) and len(found) == 2
        assert found[0] is not found[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: contextvars.ContextVar("v", default=1), threading.Lock, threading.Event, queue.Queue, object,
        torch.Generator, contextvars.copy_context,
    ],
    ids=["ContextVar", "Lock", "Event", "Queue", "object", "Generator", "Context"],
)  # fmt: skip
def test_each_call_makes_its_own(make: Callable[[], object]) -> None:
    def program(x: Tensor) -> tuple[Tensor, object]:
        return x + 1, make()

    compiled = smelt.compile(program, options={"adaptive": False})
    with pytest.warns(smelt.SmeltWarning):
        found = [compiled(torch.ones(2))[1] for _ in range(4)]
    assert len({id(one) for one in found}) == 4


def test_a_method_of_what_may_be_anything_is_left_to_paths() -> None:
    """`sum` of a list that may be empty is a tensor or a number: no function of the graph is the method of both."""

    def program(x: Tensor, c: Tensor) -> Tensor:
        total = sum([row * 2 for row in x[: int(c[0])]])
        return x if total.sum() > 0 else -x

    compiled, x = smelt.compile(program, options={"adaptive": False}), torch.arange(6.0).view(3, 2)
    for n in (2.0, 3.0, 1.0, 2.0):
        c = torch.tensor([n])
        assert torch.equal(compiled(x - 3, c), program(x - 3, c))
