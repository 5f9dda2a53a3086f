"""Values that may be None (`d.get(k)`, a variable that a loop has yet to fill): used like what they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from tests.script.checking import agrees


def kept(state: dict[str, smelt.f32[3]], xs: list[smelt.f32[3]]) -> Any:
    for x in xs:
        old = state.get("m")
        state["m"] = x if old is None else old + x
    return state


def with_default(state: dict[str, smelt.f32[3]], xs: list[smelt.f32[3]]) -> Any:
    for x in xs:
        state["m"] = state.get("m", 0) + x
    return state


def in_place(state: dict[str, smelt.f32[3]]) -> Any:
    old = state.get("m")
    if old is not None:
        old.add_(1)
    return state


def through_a_view(state: dict[str, smelt.f32[3]]) -> Any:
    old = state.get("m")
    if old is None:
        return torch.zeros(3)
    old.view(3, 1).mul_(2)
    return old + state["m"].sum()


def on_either_way(state: dict[str, smelt.f32[3]], x: smelt.f32[3]) -> Any:
    old = state.get("m")
    if old is not None:
        old[0] = 5
        y = old
    else:
        y = x
    return state, y * 2


def chosen(state: dict[str, smelt.f32[3]], x: smelt.f32[3], flag: bool) -> Any:
    y = state.get("m") if flag else x
    if y is None:
        return x * 3
    return y.relu() + y.shape[0]


def of_unknown_kind(state: dict[str, Tensor]) -> Any:
    old = state.get("m")
    if old is not None:
        old.add_(1)
    return state


def a_number(state: dict[str, int], x: smelt.f32[3]) -> Any:
    n = state.get("k")
    if n is None:
        return x
    return x * (n.bit_length() + n + 1)


def a_text(state: dict[str, str], x: smelt.f32[3]) -> Any:
    word = state.get("k")
    if word is None:
        return x, "none"
    return x, word.upper() + "!"


def a_list(state: dict[str, list[int]], x: smelt.f32[3]) -> Any:
    items = state.get("k")
    if items is None:
        return x
    total = 0
    for v in items:
        total += v
    return x * (total + len(items) + items[0]) + (2 in items)


def two(state: dict[str, smelt.f32[3]]) -> Any:
    a, b = state.get("m"), state.get("n")
    if a is None or b is None:
        return torch.zeros(3)
    return a.relu() + b[0] * a.shape[0] + a[b > 0].sum()


def a_pair(x: smelt.f32[3]) -> Any:
    best = None
    for i in range(x.shape[0]):
        v = x[i]
        if best is None or v > best[0]:
            best = (v, i)
    if best is None:
        return x.sum(), -1
    value, at = best
    return value * 2, at


def a_pair_or_none(xs: list[smelt.f32[3]], flag: bool) -> Any:
    found = None
    if flag:
        found = (xs[0], len(xs))
    return found


def a_number_for_torch(state: dict[str, int], key: str, x: smelt.f32[3]) -> Any:
    n = state.get(key)
    if n is None:
        raise KeyError(key)
    return x.roll(n), x[:n], torch.zeros(n), x.clamp(max=n), divmod(n, 2)


def a_list_for_torch(state: dict[str, list[smelt.f32[3]]], key: str) -> Any:
    rows = state.get(key)
    if not rows:
        return torch.zeros(3)
    return torch.stack(rows).sum(0) + torch.cat(rows)[0]


def by_its_truth(state: dict[str, list[int]], key: str) -> Any:
    items = state.get(key)
    if items:
        return max(items)
    return -1


def by_a_function(state: dict[str, list[int]], key: str) -> Any:
    items = state.get(key)
    if items is not None:
        return sum(map(abs, items)) + sum([v * 2 for v in items]) + min(items, default=0)
    return -1


def doubled(value: Any) -> Any:
    return value * 2 if value is not None else 0


def in_a_function(state: dict[str, smelt.f32[3]], key: str) -> Any:
    v = state.get(key)
    if v is None:
        return torch.zeros(3)
    return doubled(v)


def one() -> Tensor:
    return torch.ones(3)


CASES: list[tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]] = [
    (kept, [({"m": one()}, [one(), one()]), ({}, [one(), one()]), ({}, [])]),
    (with_default, [({"m": one()}, [one(), one()]), ({}, [one(), one()])]),
    (in_place, [({"m": one()},), ({},)]),
    (through_a_view, [({"m": one()},), ({},)]),
    (on_either_way, [({"m": one()}, one() * 3), ({}, one() * 3)]),
    (chosen, [({"m": -one()}, one(), f) for f in (True, False)] + [({}, one(), f) for f in (True, False)]),
    (of_unknown_kind, [({"m": one()},), ({},)]),
    (a_number, [({"k": 5}, one()), ({}, one())]),
    (a_text, [({"k": "x"}, one()), ({}, one())]),
    (a_list, [({"k": [1, 2]}, one()), ({}, one())]),
    (two, [({"m": one(), "n": one() - 2},), ({"m": one()},), ({},)]),
    (a_pair, [(torch.tensor(v),) for v in ([1.0, 3.0, 2.0], [2.0, 1.0, 0.0])]),
    (a_number_for_torch, [({"k": 2}, "k", torch.arange(3.0)), ({}, "k", one())]),
    (a_list_for_torch, [({"k": [one(), one()]}, "k"), ({"k": []}, "k"), ({}, "k")]),
    (by_its_truth, [({"k": [1, 5]}, "k"), ({"k": []}, "k"), ({}, "k")]),
    (by_a_function, [({"k": [1, -5]}, "k"), ({"k": []}, "k"), ({}, "k")]),
    (in_a_function, [({"k": one()}, "k"), ({}, "k")]),
    (a_pair_or_none, [([one(), one()], True), ([one()], False)]),
]


@pytest.mark.spread(6)
@pytest.mark.parametrize(("program", "calls"), CASES, ids=lambda v: v.__name__ if callable(v) else "")
def test_as_eager(program: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> None:
    agrees(program, *calls)


def used_as_if_it_were_there(state: dict[str, smelt.f32[3]]) -> Any:
    return state.get("m").relu()  # type: ignore[union-attr]


def test_what_is_none_after_all_raises_as_in_eager() -> None:
    agrees(used_as_if_it_were_there, ({"m": one()},), ({},))


def test_types_stay_known() -> None:
    """A dictionary of f32[3] is one of f32[3] after a loop that fills it."""
    assert str(smelt.script(kept).graph).startswith(
        "graph kept(%state: dict[str, f32[3]], %xs: list[f32[3]]) -> dict[str, f32[3]] {"
    )
