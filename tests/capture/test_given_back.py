"""Arguments that do not come apart (sets, frozen sets, objects without attributes) and are returned, or put elsewhere:
each call's own, not those of the call that was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

pytestmark = pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")


class Box:
    """May be given attributes later."""


class Slots:
    __slots__ = ("held",)


def itself(x: Tensor, s: Any) -> Any:
    return x * 2 + 1, s


def twice(x: Tensor, s: Any) -> Any:
    return x * 2 + 1, (s, [s]), {"k": s}


def in_an_arm(x: Tensor, s: Any) -> Any:
    if x.sum() > 0:
        return x * 2 + 1, s
    return x, s


def between(x: Tensor, s: Any) -> Any:
    y = x * 2 + 1
    print(end="")
    z = y * y - x
    return z + y, s


def put_in_a_list(x: Tensor, s: Any, held: list[Any]) -> Any:
    held.append(s)
    return x * 2 + 1


def put_on_an_object(x: Tensor, s: Any, held: Any) -> Any:
    held.kept = s
    return x * 2 + 1


def out_of_a_list(x: Tensor, items: list[Any]) -> Any:
    return x * 2 + 1, items[0]


KINDS: tuple[Callable[[], Any], ...] = (lambda: {1, "q"}, lambda: frozenset((1, 2)), Box, lambda: bytearray(b"ab"))
IDS = ("set", "frozenset", "object", "bytearray")


@pytest.mark.spread(10)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", KINDS, ids=IDS)
@pytest.mark.parametrize("program", [itself, twice, in_an_arm, between], ids=lambda program: program.__name__)
def test_returned(program: Callable[..., Any], kind: Callable[[], Any], dynamic: bool | None) -> None:
    compiled = smelt.compile(program, dynamic=dynamic)
    with torch.no_grad():
        for n in (2, 2, 3, 4):
            given = kind()
            found = torch.utils._pytree.tree_leaves(compiled(torch.ones(n), given))
            torch.testing.assert_close(found[0], program(torch.ones(n), given)[0])
            assert len(found) > 1 and all(one is given for one in found[1:])


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_put_elsewhere(kind: Callable[[], Any]) -> None:
    in_lists, on_objects = smelt.compile(put_in_a_list), smelt.compile(put_on_an_object)
    with torch.no_grad():
        for _ in range(4):
            given, items, holder = kind(), [], Box()
            in_lists(torch.ones(2), given, items)
            on_objects(torch.ones(2), given, holder)
            assert items[0] is given and holder.kept is given


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_out_of_a_list(kind: Callable[[], Any]) -> None:
    compiled = smelt.compile(out_of_a_list)
    with torch.no_grad():
        for _ in range(4):
            items = [kind()]
            assert compiled(torch.ones(2), items)[1] is items[0]


def test_what_is_put_on_one_stays_there() -> None:
    compiled = smelt.compile(between)
    with torch.no_grad():
        for number in range(4):
            box = Box()
            _, found = compiled(torch.ones(2), box)
            found.number = number
            assert vars(box) == {"number": number}


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_traced(kind: Callable[[], Any]) -> None:
    given = kind()
    traced = smelt.trace(itself, (torch.ones(2), given))
    assert traced(torch.ones(2), given)[1] is given
    other = kind()
    try:
        _, found = traced(torch.ones(2), other)
    except smelt.SmeltError:  # another object than at capture
        return
    assert found is other
