"""What a run leaves in the objects of its arguments, as part of the structure of its outputs: to be put there again.

A captured program that assigns `cache.keys = torch.cat(...)` or appends to a list of the caller's has, beside its
result, *puts*: for each object that changed what is stored in it and what is deleted. Their tensors and numbers are
outputs of the graph like those of the result: what is stored and returned is one object, and what is only moved is the
very tensor that came in.

Invariant: nothing is put before all is computed, so a call that fails leaves its arguments alone; what is put is what
the run left, whichever way it was assigned. Objects that the run made are made anew, each once, without their
constructors.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt._torch.seen.labels import attribute_label, key_labels
from smelt.capture.reads.reads_arguments import ArgumentHeap, Held, is_same, is_transparent, slots_of
from smelt.capture.reads.reads_values import instance_dict, is_plain_builtin, kind_of
from smelt.capture.structure.places_source import Put, Source, Step
from smelt.capture.structure.state import Place
from smelt.capture.structure.tree import (
    ConstantLeaf,
    Flattener,
    Made,
    SameObject,
    Tree,
    has_parts,
    hidden_tensors,
    is_called_only,
    is_lazy,
)


class NotPut(Exception):
    """What a run left cannot be put back; the text says what it is."""


@dataclass(frozen=True, eq=False)
class Puts:
    """All of them, and the ways from `(args, kwargs)` to the objects that they and the result name."""

    puts: tuple[Put, ...]
    ways: Mapping[str, tuple[Step, ...]]
    _made: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)

    def deliver(
        self, result: Tree, outputs: Sequence[object], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        """The program's result from its outputs, after all is put."""
        code = self._made.get(id(result))
        if code is None:
            code = self._made[id(result)] = Source(self.puts, self.ways, result).function()
        return code(outputs, args, kwargs)

    def __reduce__(self) -> tuple[object, ...]:
        return (Puts, (self.puts, self.ways))

    def trees(self) -> Iterator[tuple[str, Tree]]:
        """The structure of all that is put, with a name for each part."""
        for put in self.puts:
            is_sequence = put.kind in ("list", "deque", "append", "extend")
            labels = [f"[{i}]" for i in range(len(put.items))] if is_sequence else _labels(put.kind, put.keys)
            for label, tree in zip(labels, put.items, strict=True):
                yield put.place + label, tree


class After(Flattener):
    """Takes apart what a run returns and leaves, where it leaves something.

    convert: a value as it is to be taken apart (a stand-in tensor for a number of the graph's).
    """

    def __init__(
        self,
        heap: ArgumentHeap,
        check: Callable[[object, str], None],
        same: Mapping[int, str],
        convert: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        super().__init__(check, same)
        self.heap, self.convert = heap, convert
        self.is_result = True
        self.named: dict[str, tuple[Step, ...]] = {}
        self._numbers: dict[int, int] = {}
        self._under_way: set[int] = set()
        self._keep: list[object] = []

    def flatten(self, value: Any, path: str) -> Tree:
        """The structure of a value; what the run made is marked. Raises: NotPut."""
        value = self.convert(value)
        if isinstance(value, torch.Tensor):
            return super().flatten(value, path)
        if type(value) is slice:
            return self.of_slice(value, path)
        place = self._place(value)
        if place is not None:
            return SameObject(place)
        if (kind_of(type(value)) == "atom" and not isinstance(value, BaseException)) or is_plain_builtin(value):
            return ConstantLeaf(value)
        if self.heap.was_there(value):
            return ConstantLeaf(value) if self.is_result else self._constant(value, path)
        if id(value) in self._numbers:
            if id(value) in self._under_way:
                raise NotPut(f"a {type(value).__qualname__} that contains itself")
            return Made(self._numbers[id(value)], None)
        is_plain = isinstance(value, (list, dict)) or type(value) in (tuple, deque) or hasattr(value, "_fields")
        is_plain = is_plain or (is_transparent(value) and kind_of(type(value)) == "instance")
        is_set = type(value) is set and self.is_result
        if not (is_plain or is_set) or isinstance(value, torch.nn.Module) or is_called_only(value):
            return super().flatten(value, path) if self.is_result else self._constant(value, path)
        number = self._numbers[id(value)] = len(self._numbers)
        self._keep.append(value)
        if is_set:
            self.check(value, path)
            return Made(number, self.of_set(value))
        self._under_way.add(id(value))
        try:
            return Made(number, self._container(value, path))
        finally:
            self._under_way.discard(id(value))

    def _place(self, value: object) -> str | None:
        number = self.heap.by_id.get(id(value))
        if number is not None and (self.heap.held[number].is_open or id(value) in self.same):
            held = self.heap.held[number]
            self.named[held.place] = self.heap.steps(held)
            return held.place
        # What does not come apart is no more than equal to what the run was given, as sets are.
        return self.same.get(id(value)) if self.is_result or not has_parts(value) else None

    def _constant(self, value: object, path: str) -> Tree:
        """An object that was there before, and is known by identity."""
        if not self.heap.was_there(value):
            raise NotPut(f"a {type(value).__qualname__} that the run made")
        if is_lazy(value):
            raise NotPut(f"a {type(value).__qualname__}")
        if isinstance(value, (set, frozenset, types.FunctionType)) and any(hidden_tensors(value)):
            raise NotPut(f"a {type(value).__qualname__} that holds tensors")
        return ConstantLeaf(value)

    def puts(self) -> Puts:
        """What the run left. Raises: NotPut."""
        self.is_result = False
        found = [put for held in self.heap.changed for put in self._puts(held)]
        for number, outer in enumerate(self.heap.outer):
            name, place = f"outside[{number}]", outer.place
            self.named[name] = _way_to(place)
            if place.is_appended and type(outer.after) is not tuple:
                found.append(Put(name, "extend", (self.flatten(outer.after, place.name),), (place.key,)))
                continue
            if place.is_appended:
                trees = tuple(self.flatten(item, f"{place.name}[{i}]") for i, item in enumerate(outer.items))
                found.append(Put(name, "append", trees, (place.key,)))
                continue
            found.append(Put(name, place.kind, (self.flatten(outer.after, place.name),), (place.key,)))
        return Puts(tuple(found), dict(self.named))

    def _puts(self, held: Held) -> Iterator[Put]:
        self.named[held.place] = self.heap.steps(held)
        before, after = held.before.items, held.after.items
        if isinstance(before, tuple) and isinstance(after, tuple):
            if isinstance(held.value, tuple):
                raise NotPut("a tuple that changes")
            is_same_now = len(before) == len(after) and all(map(is_same, before, after))
            if not is_same_now and type(held.value) is deque:
                trees = tuple(self.flatten(item, f"{held.place}[{i}]") for i, item in enumerate(after))
                yield Put(held.place, "deque", trees)
            elif not is_same_now:
                yield self._splice(held.place, before, after)
        elif isinstance(before, dict) and isinstance(after, dict):
            yield from self._entries(held.place, "dict", before, after)
        slots = {name for name, _ in slots_of(type(held.value))}
        for kind, wanted in (("attributes", False), ("slots", True)):
            pair = [
                {name: value for name, value in of.attributes.items() if (name in slots) is wanted}
                for of in (held.before, held.after)
            ]
            yield from self._entries(held.place, kind, *pair)

    def _splice(self, place: str, before: tuple[object, ...], after: tuple[object, ...]) -> Put:
        shortest = min(len(before), len(after))
        start = 0
        while start < shortest and before[start] is after[start]:
            start += 1
        end = 0
        while end < shortest - start and before[-1 - end] is after[-1 - end]:
            end += 1
        items = after[start : len(after) - end]
        trees = tuple(self.flatten(item, f"{place}[{start + i}]") for i, item in enumerate(items))
        return Put(place, "list", trees, start=start, stop=len(before) - end)

    def _entries(
        self, place: str, kind: str, before: Mapping[Any, object], after: Mapping[Any, object]
    ) -> Iterator[Put]:
        kept = [key for key in before if key in after]
        deleted = [key for key in before if key not in after]
        order = list(after)
        if kind != "slots" and order[: len(kept)] != kept:
            kept, deleted = [], list(before)
        held = set(kept)
        stored = [key for key in order if key not in held or not is_same(before[key], after[key])]
        if stored or deleted:
            trees = tuple(
                self.flatten(after[key], place + label)
                for key, label in zip(stored, _labels(kind, stored), strict=True)
            )
            yield Put(place, kind, trees, tuple(map(self.key, stored)), tuple(map(self.key, deleted)))


def _labels(kind: str, keys: Sequence[object]) -> list[str]:
    return key_labels(keys) if kind in ("dict", "entry") else [attribute_label(str(name)) for name in keys]


def _way_to(place: Place) -> tuple[Step, ...]:
    """The way to what holds a place; by its owner where there is one, which copies and pickles as itself."""
    own = None if place.owner is None else instance_dict(place.owner)
    if own is not None and place.space is own:
        return (("outside", place.owner), ("space", "__dict__"))
    if own is not None and place.space is own.get("_buffers"):
        return (("outside", place.owner), ("space", "_buffers"))
    return (("outside", place.space),)
