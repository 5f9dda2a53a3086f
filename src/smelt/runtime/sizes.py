"""A plan for many sizes: what differs between them is a word, computed from the sizes of a call.

    Launch(kernel, (0, 3), words=(Word(0), 768, Word(1)), items=Word(2), ...)         words(4, 64) = (256, 16, 8)

Invariants: `holds(sizes)` is asked before anything is computed for a tuple of sizes, and no word is used for sizes
other than those it was computed for: a plan, once filled, is never changed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias

import torch

from smelt.runtime.executable import Executable
from smelt.runtime.plan import Plan

Sizes: TypeAlias = tuple[int, ...]

KEPT = 8
"""Tuples of sizes whose filled plans, with their arenas, are kept; the least recently used one goes."""


@dataclass(frozen=True, slots=True)
class Word:
    """Number `index` of those that are computed from sizes."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class SizedFunction:
    """A function of a plan that needs to know the sizes: `at(sizes)` is the function for these."""

    at: Callable[[Sizes], Callable[..., Any]]


@dataclass(frozen=True, slots=True, eq=False)
class SizedPlan:
    """A plan with words, and how they follow from the inputs.

    names: the symbols, in the order in which sizes stand in a tuple. sources: for each, the input, and the dimension of
    a tensor (None: the input is the number). words: their numbers. holds: whether the plan is right for these sizes.
    """

    names: tuple[str, ...]
    sources: tuple[tuple[int, int | None], ...]
    template: Plan
    words: Callable[..., tuple[int | float, ...]]
    holds: Callable[..., bool]

    def sizes_of(self, inputs: Sequence[Any]) -> Sizes:
        """The sizes of a call."""
        return tuple([inputs[i] if dim is None else inputs[i].shape[dim] for i, dim in self.sources])

    def at(self, sizes: Sizes) -> Plan:
        """The plan for these sizes."""
        plan, words = self.template, self.words(*sizes)
        return replace(
            plan,
            instructions=filled(plan.instructions, words, sizes),
            arena=filled(plan.arena, words, sizes),
            arena_nbytes=filled(plan.arena_nbytes, words, sizes),
        )


def filled(x: Any, words: Sequence[int | float], sizes: Sizes) -> Any:
    """An instruction, or anything made of such data, with numbers in the place of words."""
    kind = type(x)
    if kind is Word:
        return words[x.index]
    if kind is tuple:
        items = [filled(item, words, sizes) for item in x]
        return tuple(items) if any(new is not old for new, old in zip(items, x, strict=True)) else x
    if kind is SizedFunction:
        return x.at(sizes)
    if is_dataclass(kind) and not isinstance(x, torch.Tensor):
        changed = {}
        for field in fields(x):
            old = getattr(x, field.name)
            new = filled(old, words, sizes)
            if new is not old:
                changed[field.name] = new
        return replace(x, **changed) if changed else x
    return x


class SizedExecutable:
    """A plan for many sizes, ready to run: one executable for each tuple of sizes that calls come with.

    `call(*inputs)` is that of an `Executable`; the inputs must lie as planned, at some sizes.
    """

    def __init__(self, plan: SizedPlan, machine_code: bytes | None, kept: int = KEPT) -> None:
        self.plan, self._machine_code, self._kept = plan, machine_code, kept
        self._ready: OrderedDict[Sizes, Executable] = OrderedDict()
        self._lock = threading.Lock()

    def takes(self, inputs: Sequence[Any]) -> bool:
        """Whether the plan is right for the sizes of these inputs."""
        sizes = self.plan.sizes_of(inputs)
        return sizes in self._ready or self.plan.holds(*sizes)

    def call(self, *inputs: Any) -> list[torch.Tensor]:
        """The plan's outputs. Raises: as of any executable; ValueError for sizes that the plan is not for."""
        return self.at(self.plan.sizes_of(inputs)).call(*inputs)

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The same as `call(*inputs)`."""
        return self.call(*inputs)

    def at(self, sizes: Sizes) -> Executable:
        """What runs for these sizes, made now if it is not there. Raises: ValueError."""
        with self._lock:
            found = self._ready.get(sizes)
            if found is not None:
                self._ready.move_to_end(sizes)
                return found
        if not self.plan.holds(*sizes):
            raise ValueError(f"the plan is not for {dict(zip(self.plan.names, sizes, strict=True))}")
        made = Executable(self.plan.at(sizes), self._machine_code)
        with self._lock:
            # Another thread may have been faster; then its one stays, so that runs are counted in one place.
            found = self._ready.setdefault(sizes, made)
            if len(self._ready) > self._kept:
                self._ready.popitem(last=False)
            return found
