"""Dictionaries that get entries where only a run knows which: in branches inside loops, in comprehensions with `if`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from tests.script.checking import agrees

ONES = torch.ones(3)


def without(d: dict[str, smelt.f32[3]], key: str) -> Any:
    return {k: v * 2 for k, v in d.items() if k != key}


def two_conditions(d: dict[str, int], key: str) -> Any:
    return {k: v for k, v in d.items() if v > 1 and k != key}, {v: k for k, v in d.items() if v}


def two_loops(xs: list[int]) -> Any:
    return {k: v for k in xs if k for v in xs if k < v}


def by_data(xs: list[smelt.f32[3]], least: smelt.f32[3]) -> Any:
    return {i: x for i, x in enumerate(xs) if x.sum() > least.sum()}


def both_arms(xs: list[int], n: int) -> Any:
    out = {}
    for v in xs:
        if v != n:
            out[v] = v * 2
        else:
            out[0] = 1
    return out


def in_each_turn(xs: list[int], n: int) -> Any:
    out = {0: 5}
    for a in range(n):
        inner = {}
        for v in xs:
            if v > a:
                inner[v] = a
            elif v == 1:
                out[v] = a
        out[a] = len(inner)
    return out


def in_a_branch(xs: list[int], n: int) -> Any:
    held = {"a": {}, "b": 1}
    if n > 2:
        for v in xs:
            if v > n:
                held["a"][v] = v
    return held["a"], held["b"]


def read_back(xs: list[int], n: int) -> Any:
    out: dict[int, int] = {}
    for v in xs:
        if v in out:
            out[v] = out[v] + 1
        elif v > n:
            out[v] = 1
    return out, sum(out.values())


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    ("program", "calls"),
    [
        (without, [({"a": ONES, "b": ONES}, "a"), ({}, "")]),
        (two_conditions, [({"a": 2, "b": 3, "c": 0}, "a"), ({}, "a")]),
        (two_loops, [([0, 1, 2, 3],), ([],)]),
        (by_data, [([ONES, ONES * 2], ONES), ([], ONES)]),
        (both_arms, [([1, 2], 1), ([], 2)]),
        (in_each_turn, [([1, 2, 3], 2), ([], 0), ([1], 4)]),
        (in_a_branch, [([1, 2, 5], 3), ([5], 0), ([], 9)]),
        (read_back, [([1, 2, 2, 1, 3, 2], 1), ([], 0)]),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_entries_of_a_run(program: Callable[..., Any], calls: list[tuple[Any, ...]]) -> None:
    agrees(program, *calls)
