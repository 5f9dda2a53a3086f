"""Loops over layers that data may leave: a graph grows with the layers, whatever the loop's variables hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt

torch.manual_seed(0)
LAYERS = nn.ModuleList([nn.Linear(3, 3) for _ in range(24)])
NAMES = [f"layer {i}" for i in range(24)]


def returned(x: Tensor, most: Tensor, layers: Any) -> Any:
    for layer, name in zip(layers, NAMES, strict=False):
        known = layer if name else None
        x = known(x)
        p = x.softmax(-1)
        if p.amax() > most:
            return p
    return x


def broken(x: Tensor, most: Tensor, layers: Any) -> Any:
    done = []
    for i, layer in enumerate(layers):
        kind = "even" if i % 2 == 0 else "odd"
        x = layer(x)
        p = x.softmax(-1)
        if p.amax() > most:
            break
        if kind == "odd":
            continue
        done.append(p)
    else:
        x = x + 1
    return x, i


def used_behind_the_loop(x: Tensor, most: Tensor, layers: Any) -> Any:
    for layer, name in zip(layers, NAMES, strict=False):  # noqa: B007
        x = layer(x)
        if x.softmax(-1).amax() > most:
            break
    return layer(x), name


def bound_before_the_loop(x: Tensor, most: Tensor, layers: Any) -> Any:
    last = None
    for last in layers:
        x = last(x)
        if x.softmax(-1).amax() > most:
            break
    return [last is layers[0], x]


def read_by_a_function(x: Tensor, most: Tensor, layers: Any) -> Any:
    def again(y: Tensor) -> Tensor:
        return layer(y)

    for layer in layers:  # noqa: B007
        x = again(x)
        if x.softmax(-1).amax() > most:
            break
    return again(x)


def read_where_it_is_not_bound(x: Tensor, most: Tensor, layers: Any) -> Any:
    for layer in layers:
        if x.sum() > 0:
            chosen = layer
        x = chosen(x)
        if x.softmax(-1).amax() > most:
            break
    return x


def within_a_loop(x: Tensor, most: Tensor, layers: Any) -> Any:
    for kind in ("a", "bc"):
        for layer in layers:
            x = layer(x) + len(kind)
            if x.softmax(-1).amax() > most:
                break
        if x.sum() > 5:
            return x
    return x - 1


PROGRAMS = (
    returned, broken, used_behind_the_loop, bound_before_the_loop, read_by_a_function, read_where_it_is_not_bound,
    within_a_loop,
)  # fmt: skip


def outcome(program: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, or raises, as what can be compared."""
    try:
        with torch.no_grad():
            found = program(*args)
    except UnboundLocalError as error:
        return str(error)
    parts = found if isinstance(found, (list, tuple)) else [found]
    return [part.detach() if isinstance(part, Tensor) else part for part in parts]


@pytest.mark.spread(6)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_in_eager(program: Callable[..., Any]) -> None:
    layers = LAYERS[:4]
    x = torch.tensor([1.0, -2.0, 0.5])
    for mosts in ((2.0, 0.1, 0.4, 0.45, 0.5, 0.6), (0.1, 0.5, 2.0, 0.42)):
        compiled = smelt.compile(program)
        for most in map(torch.tensor, mosts):
            for sign in (1, -1):
                got, want = (outcome(run, x * sign, most, layers) for run in (compiled, program))
                assert type(got) is type(want) and len(got) == len(want)
                for a, b in zip(got, want, strict=True):
                    assert torch.allclose(a, b, atol=1e-6) if isinstance(b, Tensor) else a == b


@pytest.mark.spread(2)
@pytest.mark.parametrize("program", [returned, broken], ids=lambda program: program.__name__)
def test_graphs_grow_with_the_layers(program: Callable[..., Any]) -> None:
    def nodes(count: int) -> int:
        compiled = smelt.compile(program)
        with torch.no_grad():
            compiled(torch.ones(3), torch.tensor(0.5), LAYERS[:count])
        (row,) = compiled.stats().rows
        assert row.entry is not None and row.entry.is_staged
        return sum(1 for _ in row.entry.graph.walk())

    # Each turn that forked doubled them.
    assert nodes(24) <= 5 * nodes(8)


class Notes:
    """A context that notes in a list that it was entered and left."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def __enter__(self) -> None:
        self.notes.append("in")

    def __exit__(self, *_: object) -> None:
        self.notes.append("out")


def the_list_noted_in(c: Tensor) -> list[str]:
    notes: list[str] = []
    if c.sum() > 1:
        with Notes(notes):
            notes.append("here")
            return notes
    return notes


def test_a_list_returned_and_written_by_one_way_only() -> None:
    cases = [torch.tensor([number]) for number in (0.0, 2.0, 0.0, 2.0)]
    for order in (cases, cases[::-1]):
        compiled = smelt.compile(the_list_noted_in)
        assert [compiled(c) for c in order] == [the_list_noted_in(c) for c in order]
