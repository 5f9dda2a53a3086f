"""What a program is pickled and deep-copied as: its source, and its captures without the tensors they were made with.

Invariant: state is found again by its place in the copied source, so that the copy uses its own parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from smelt.capture import Captured, State, StateTensor
from smelt.capture.roots import Roots, reachable


@dataclass(frozen=True, slots=True)
class SavedCapture:
    """One capture, ready to be pickled.

    flags: the `training` flags it holds for. keys: kind and path of each state tensor. loose: the tensors among them
    that the source does not reach by itself (they came with an argument).
    """

    flags: tuple[bool, ...]
    captured: Captured
    keys: tuple[tuple[str, str], ...]
    loose: Mapping[tuple[str, str], torch.Tensor]


def save(source: Callable[..., Any], captures: Mapping[tuple[bool, ...], Captured]) -> tuple[SavedCapture, ...]:
    """The captures of a program as data."""
    places = _places(source)
    return tuple(
        SavedCapture(
            flags,
            replace(captured, result=None, state=State(), roots=Roots({}, {}), written={}),
            tuple(captured.state.entries),
            {key: e.tensor for key, e in captured.state.entries.items() if key[1] not in places},
        )
        for flags, captured in captures.items()
    )


def load(source: Callable[..., Any], saved: tuple[SavedCapture, ...]) -> dict[tuple[bool, ...], Captured]:
    """The captures over the state of a (copied) source. Raises: KeyError where the source lacks a place."""
    places = _places(source)
    return {item.flags: replace(item.captured, state=_state(item, places)) for item in saved}


def _state(item: SavedCapture, places: Mapping[str, StateTensor]) -> State:
    entries: dict[tuple[str, str], StateTensor] = {}
    for kind, path in item.keys:
        loose = item.loose.get((kind, path))
        found = places[path] if loose is None else StateTensor(kind, path, loose, {"tensor": loose}, "tensor")
        entries[kind, path] = replace(found, kind=kind, path=path)
    return State(entries)


def _places(source: Callable[..., Any]) -> dict[str, StateTensor]:
    found: dict[str, StateTensor] = {}
    for entry in reachable(source):
        for path in (entry.path, *entry.aliases):
            found.setdefault(path, entry)
    return found
