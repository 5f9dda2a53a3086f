"""What a program is pickled and deep-copied as: its source, and its captures without the tensors they were made with.

Invariant: state is found again by its place in the copied source, so that the copy uses its own parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import torch

from smelt.capture import Captured, Conversion, State, StateTensor
from smelt.capture.structure.roots import Roots, reachable
from smelt.compiler.sizes.size_texts import as_data
from smelt.diag.records import record


@record
class SavedCapture:
    """One capture, ready to be pickled.

    key: what the program keeps it under. keys: kind and path of each state tensor. loose: the tensors among them
    that the source does not reach by itself (they came with an argument).
    """

    key: Hashable
    captured: Captured
    keys: tuple[tuple[str, str], ...]
    loose: Mapping[tuple[str, str], torch.Tensor]


def save(source: Callable[..., Any], captures: Mapping[Any, Captured]) -> tuple[SavedCapture, ...]:
    """The captures of a program as data."""
    places = _places(source)
    return tuple(
        SavedCapture(
            key,
            replace(
                captured,
                result=None,
                state=State(),
                roots=Roots({}, {}),
                written={},
                outer=(),
                conversions=_apart(captured),
                sizes=None if captured.sizes is None else as_data(captured.sizes),
            ),
            tuple(captured.state.entries),
            {place: e.tensor for place, e in captured.state.entries.items() if place[1] not in places},
        )
        for key, captured in captures.items()
    )


def _apart(captured: Captured) -> tuple[Conversion, ...]:
    """The conversions without code objects, which cannot be pickled; the graph's nodes know the lines."""
    return tuple(conversion._replace(site=None, askers=()) for conversion in captured.conversions)


def load(source: Callable[..., Any], saved: tuple[SavedCapture, ...]) -> dict[Any, Captured]:
    """The captures over the state of a (copied) source. Raises: KeyError where the source lacks a place."""
    places = _places(source)
    return {item.key: replace(item.captured, state=_state(item, places)) for item in saved}


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
