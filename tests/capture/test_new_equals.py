"""A list or dict that a program puts in an equal one's place is another one: who holds the old one does not see it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import smelt

G: dict[str, Any] = {}
LISTS: list[Any] = []
SPACE = SimpleNamespace()
NAMED: list[int] = []


class Class:
    held: ClassVar[list[int]] = []


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log = []
        return x + 1


def entry(x: torch.Tensor) -> Any:
    G["items"] = []
    return x + 1


def entry_returned(x: torch.Tensor) -> Any:
    G["items"] = items = [1, {}]
    return x + 1, items


def entry_of_dicts(x: torch.Tensor) -> Any:
    G["items"] = {"k": []}
    return x + 1


def in_a_list(x: torch.Tensor) -> Any:
    LISTS[0] = []
    return x + 1


def anew_in_a_list(x: torch.Tensor) -> Any:
    LISTS.clear()
    LISTS.append([])
    return x + 1


def attribute(x: torch.Tensor) -> Any:
    SPACE.items = []
    return x + 1


def two_places(x: torch.Tensor) -> Any:
    SPACE.items = G["items"] = []
    return x + 1


def named(x: torch.Tensor) -> Any:
    global NAMED
    NAMED = []
    return x + 1


def of_a_class(x: torch.Tensor) -> Any:
    Class.held = []
    return x + 1


def on_one_way(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        G["items"] = []
    return x + 1


def _reset() -> None:
    global NAMED
    G.clear()
    G["items"], LISTS[:], NAMED, Class.held = [], [[], []], [], []
    SPACE.items = []


def _held() -> list[Any]:
    return [G["items"], LISTS, *LISTS, NAMED, Class.held, SPACE.items]


PROGRAMS = (
    entry, entry_returned, entry_of_dicts, in_a_list, anew_in_a_list, attribute, two_places, named, of_a_class,
    on_one_way,
)  # fmt: skip


def _run(program: Callable[..., Any]) -> list[Any]:
    """What was there before and after each call, by which is which, and all results."""
    _reset()
    kept = _held()
    found: list[Any] = []
    for number, value in enumerate((1.0, 2.0, -1.0, 3.0, -2.0, 4.0, 5.0)):
        result = program(torch.full((2,), value))
        kept += [*_held(), *(result[1:] if isinstance(result, tuple) else ())]
        found.append((str(result), [next(i for i, other in enumerate(kept) if other is one) for one in kept]))
        if number > 3:
            kept[0].append(number)  # the first list's: seen where it still is
        found.append(str(kept))
    return found


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("program", PROGRAMS)
def test_is_another_one(program: Callable[..., Any]) -> None:
    assert _run(smelt.compile(program)) == _run(program)


def test_of_a_module() -> None:
    module = Layer()
    compiled = smelt.compile(module)
    held = []
    for _ in range(5):
        held.append(module.log)
        compiled(torch.ones(2))
    assert len({id(one) for one in held}) == 5
