"""A plan for many sizes: what differs between them is a word, computed from the sizes of a call.

    Launch(kernel, (0, 3), words=(Word 0, 768, Word 1), items=Word 2, ...)         words(4, 64) = (256, 16, 8)

Invariants: `holds(sizes)` is asked before anything is computed for a tuple of sizes, and no word is used for sizes
other than those it was computed for: a plan, once filled, is never changed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch

from smelt._torch.seen import handles
from smelt.diag.records import distinct_record
from smelt.runtime.check import check_plan
from smelt.runtime.encoding.encode import encode
from smelt.runtime.encoding.encoded import CannotShare
from smelt.runtime.encoding.sized_encode import SizedEncoding
from smelt.runtime.executable import Executable
from smelt.runtime.machine.heap import keep_freed_memory
from smelt.runtime.machine.native import NativeEntry, native_entry
from smelt.runtime.plan import Plan, Word
from smelt.runtime.runner import NativeRunner, is_quick

Sizes: TypeAlias = tuple[int, ...]
Held: TypeAlias = "Callable[[Sizes], tuple[tuple[int, torch.Tensor], ...]]"
"""Tensors that a plan holds for some sizes, with their slots."""

KEPT = 32
"""Tuples of sizes for which what runs is kept; the least recently used one goes."""
KEPT_NBYTES = 1 << 28
"""So many bytes of arenas at most, but for the one that is used."""


@distinct_record
class SizedFunction:
    """A function of a plan that needs to know the sizes: `at(sizes)` is the function for these."""

    at: Callable[[Sizes], Callable[..., Any]]


@distinct_record
class SizedPlan:
    """A plan with words, and how they follow from the inputs.

    names: the symbols, in the order in which sizes stand in a tuple. sources: for each, the input, and the dimension of
    a tensor (None: the input is the number). words: their numbers. holds: whether the plan is right for these sizes.
    can_share: whether records may be those of one encoding at these sizes. more: what is held for these sizes alone,
    made anew when asked for.
    """

    names: tuple[str, ...]
    sources: tuple[tuple[int, int | None], ...]
    template: Plan
    words: Callable[..., tuple[int | float, ...]]
    holds: Callable[..., bool]
    can_share: Callable[..., bool] = lambda *sizes: True
    more: Held = lambda sizes: ()

    def sizes_of(self, inputs: Sequence[Any]) -> Sizes:
        """The sizes of a call."""
        return tuple([inputs[i] if dim is None else inputs[i].shape[dim] for i, dim in self.sources])

    def at(self, sizes: Sizes, more: tuple[tuple[int, torch.Tensor], ...] | None = None) -> Plan:
        """The plan for these sizes. more: what it holds for them, where that is there already."""
        plan, words = self.template, self.words(*sizes)
        return replace(
            plan,
            held=(*plan.held, *(self.more(sizes) if more is None else more)),
            instructions=filled(plan.instructions, words, sizes),
            arena=filled(plan.arena, words, sizes),
            arena_nbytes=filled(plan.arena_nbytes, words, sizes),
        )


_NAMES: dict[type, tuple[str, ...] | None] = {}


def field_names(kind: type) -> tuple[str, ...] | None:
    """The fields that a dataclass is made of; None for any other type."""
    if kind not in _NAMES:
        _NAMES[kind] = tuple(field.name for field in fields(kind) if field.init) if is_dataclass(kind) else None
    return _NAMES[kind]


def filled(x: Any, words: Sequence[int | float], sizes: Sizes) -> Any:
    """An instruction, or anything made of such data, with numbers in the place of words."""
    kind = type(x)
    if kind is Word:
        return x.value(words)
    if kind is tuple:
        items = [filled(item, words, sizes) for item in x]
        return tuple(items) if any(new is not old for new, old in zip(items, x, strict=True)) else x
    if kind is SizedFunction:
        return x.at(sizes)
    names = field_names(kind)
    if names is not None:
        changed = {}
        for name in names:
            old = getattr(x, name)
            new = filled(old, words, sizes)
            if new is not old:
                changed[name] = new
        return replace(x, **changed) if changed else x
    return x


def words_in(x: Any) -> set[int]:
    """The numbers of the words in anything made of a plan's data."""
    kind = type(x)
    if kind is Word:
        return {index for index, _ in x.terms}
    parts = x if kind is tuple else [getattr(x, name) for name in field_names(kind) or ()]
    return set().union(*map(words_in, parts))


class ExecutableAt(Executable):
    """What runs a plan for many sizes at some."""

    def __init__(self, exact: Callable[[], Plan], runner: NativeRunner) -> None:
        self._exact = exact
        self._runner = runner
        self.counts = runner.encoded.counts

    @cached_property
    def plan(self) -> Plan:  # type: ignore[override]
        """The plan for these sizes alone."""
        return self._exact()

    @cached_property
    def call(self) -> Callable[..., list[torch.Tensor]]:  # type: ignore[override]
        """As of any executable."""
        assert self._runner is not None
        return self._runner.builtin() or self._runner.run


class SizedExecutable:
    """A plan for many sizes, ready to run.

    `call(*inputs)` is that of an `Executable`; the inputs must lie as planned, at some sizes.
    """

    def __init__(self, plan: SizedPlan, machine_code: bytes | None, kept: int = KEPT) -> None:
        keep_freed_memory()
        self.plan, self._machine_code, self._kept = plan, machine_code, kept
        self._ready: OrderedDict[Sizes, Executable] = OrderedDict()
        self._nbytes: dict[Sizes, int] = {}
        self._lock = threading.Lock()
        self._encoding: SizedEncoding | None = None
        self._cannot_share = plan.template.profile or machine_code is None
        self._bridge = handles.bridge()
        self._entry: NativeEntry | None = None

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
        words = self.plan.words(*sizes)
        more = self.plan.more(sizes)
        nbytes = int(filled(self.plan.template.arena_nbytes, words, sizes)) + sum(t.nbytes for _, t in more)
        made = self._shared(sizes, words, more) or Executable(self.plan.at(sizes, more), self._machine_code)
        made.nbytes = nbytes
        with self._lock:
            # Another thread may have been faster; then its one stays, so that runs are counted in one place.
            found = self._ready.setdefault(sizes, made)
            self._nbytes[sizes] = nbytes
            while len(self._ready) > 1 and (
                len(self._ready) > self._kept or sum(self._nbytes.values()) > KEPT_NBYTES + nbytes
            ):
                self._nbytes.pop(self._ready.popitem(last=False)[0])
            return found

    def _shared(
        self, sizes: Sizes, words: Sequence[int | float], more: tuple[tuple[int, torch.Tensor], ...]
    ) -> Executable | None:
        """The encoding of all sizes, filled for these; None where each tuple needs its own."""
        if self._cannot_share or not self.plan.can_share(*sizes):
            return None
        template, bridge = self.plan.template, self._bridge
        if more:
            template = replace(template, held=(*template.held, *more))

        def fill(part: Any) -> Any:
            return filled(part, words, sizes)

        def exact() -> Plan:
            return self.plan.at(sizes, more)

        try:
            with self._lock:
                encoding = self._encoding = self._encoding or self._encoded(template, exact())
            if encoding is None or bridge is None or self._entry is None:
                return None
            encoded = encoding.at(words, fill)
            runner = NativeRunner(template, encoded, bridge, self._entry, exact)
        except CannotShare:
            self._cannot_share = True
            return None
        except handles.NoHandle:
            return None
        return ExecutableAt(exact, runner)

    def _encoded(self, template: Plan, now: Plan) -> SizedEncoding | None:
        bridge = self._bridge
        self._entry = (
            native_entry(self._machine_code) if self._machine_code is not None and bridge is not None else None
        )
        if bridge is None or self._entry is None:
            raise CannotShare("there is no native executor")
        check_plan(now)
        encoded = encode(template, now)
        if bridge.copies and (encoded.steps or any(t.layout != torch.strided for _, t in template.held)):
            raise CannotShare("handles here cannot carry this plan")
        return SizedEncoding(template, encoded, is_quick(template))
