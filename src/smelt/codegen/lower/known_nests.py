"""Nests of groups that differ in their values alone, built once.

    %p[i] = mul(%p, 0.9), for each of 200 parameters alike          ==>        one nest, with other names in it

Invariant: a nest is used again where building it would give it again. What is built asks where values lie, one after
another; a group whose form is the same, and whose values lie alike wherever it asked, gets what was built.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from smelt.codegen.fusion.build import Built
from smelt.codegen.fusion.chunks import Stage, may_refuse
from smelt.codegen.fusion.cost import NestCost, cost
from smelt.codegen.fusion.group_keys import Forms
from smelt.codegen.fusion.groups import Group
from smelt.codegen.fusion.pull import Memory, Where
from smelt.codegen.kernels.nest import Buffer, Nest
from smelt.codegen.llvm.nests.nest_ir import EmittedKernel
from smelt.diag.records import record
from smelt.ir import Value


@record
class Piece:
    """A kernel of a nest with the stage that it runs, what that costs, and whether it may refuse its data."""

    stage: Stage
    kernel: EmittedKernel
    cost: NestCost
    may_refuse: bool


@record
class Made:
    """A nest with its kernels; or, of roots that it should write to what is there, why it may not.

    cost: of the nest as one.
    """

    refused: Mapping[Value, str]
    built: Built | None = None
    parts: Sequence[Stage] = ()
    pieces: Sequence[Piece] = ()
    cost: NestCost | None = None

    @staticmethod
    def of(built: Built, parts: Sequence[Stage], emitted: Sequence[tuple[Stage, EmittedKernel]]) -> Made:
        """What was built."""
        pieces = [Piece(stage, kernel, cost(stage.nest), may_refuse(stage.nest)) for stage, kernel in emitted]
        return Made({}, built, parts, pieces, cost(built.nest))


Make: TypeAlias = Callable[[Where, Where], Made]
"""Builds a nest, told where loaded values lie, and stored ones."""


@record
class _Asked:
    """That building a nest asked where a value lies, loaded or stored, and was told: the number of its memory, by first
    mention, and how it lies in that."""

    is_stored: bool
    value: int
    memory: int
    geometry: Hashable


@record
class _Known:
    """A nest that was made. buffers: for each of its buffers, by which of the answers it is known and named."""

    asked: Sequence[_Asked]
    made: Made
    refused: Mapping[int, str]
    buffers: Sequence[int]


class KnownNests:
    """The nests of one lowering by the forms of their groups."""

    def __init__(self, forms: Forms) -> None:
        self._forms = forms
        self._known: dict[Hashable, list[_Known]] = {}

    def made(
        self, group: Group, sources: Mapping[Value, Value], extra: Hashable, where: Where, into: Where, make: Make
    ) -> Made:
        """What `make` gives for a group, of which roots with sources are written to what is there.

        extra: what else decides about what is built. Raises: as `make`.
        """
        form = self._forms.of(group.nodes, group.roots)
        if not form.exact or not all(source in form.numbers for source in sources.values()):
            return make(where, into)
        numbers = form.numbers
        key = (form.key, extra, tuple((numbers[root], numbers[source]) for root, source in sources.items()))
        for known in self._known.get(key, ()):
            again = _again(known, list(numbers), where, into)
            if again is not None:
                return again
        asking = _Asking(numbers)
        made = make(asking.noting(where, False), asking.noting(into, True))
        if asking.is_known:
            refused = {numbers[root]: why for root, why in made.refused.items()}
            known = _Known(tuple(asking.asked), made, refused, asking.named(made.built))
            self._known.setdefault(key, []).append(known)
        return made


class _Asking:
    """What a nest in the making asks."""

    def __init__(self, numbers: Mapping[Value, int]) -> None:
        self._numbers = numbers
        self._memories: dict[Hashable, int] = {}
        # In order, each once, with what was the answer.
        self.asked: dict[_Asked, Memory] = {}
        self.is_known = True

    def noting(self, where: Where, is_stored: bool) -> Where:
        """The same, and what it says is noted."""

        def answer(value: Value) -> Memory:
            memory = where(value)
            number = self._memories.setdefault(memory.key, len(self._memories))
            self.is_known &= value in self._numbers
            asked = _Asked(is_stored, self._numbers.get(value, -1), number, memory.geometry)
            self.asked.setdefault(asked, memory)
            return memory

        return answer

    def named(self, built: Built | None) -> list[int]:
        """For each buffer of what was built, by which of the answers it is known and named."""
        if built is None:
            return []
        answers = {(m.key, m.name): i for i, m in reversed(list(enumerate(self.asked.values())))}
        return [answers[key, buffer.name] for key, buffer in zip(built.keys, built.nest.buffers, strict=True)]


def _again(known: _Known, values: Sequence[Value], where: Where, into: Where) -> Made | None:
    """What is known, for these values in order of their numbers; None where they lie otherwise."""
    memories: dict[Hashable, int] = {}
    answers: list[Memory] = []
    for one in known.asked:
        memory = (into if one.is_stored else where)(values[one.value])
        if memories.setdefault(memory.key, len(memories)) != one.memory or memory.geometry != one.geometry:
            return None
        answers.append(memory)
    refused = {values[number]: why for number, why in known.refused.items()}
    built = known.made.built
    if built is None:
        return Made(refused)
    memory_of = [answers[i] for i in known.buffers]
    names = [memory.name for memory in memory_of]
    parts = {id(stage): _named(stage, names) for stage in known.made.parts}
    return Made(
        refused,
        Built(_with_names(built.nest, names), tuple(memory.key for memory in memory_of)),
        tuple(parts[id(stage)] for stage in known.made.parts),
        [replace(piece, stage=parts[id(piece.stage)]) for piece in known.made.pieces],
        known.made.cost,
    )


def _named(stage: Stage, names: Sequence[str]) -> Stage:
    """A stage whose buffers are named as those of the whole nest are now; memory for partial results keeps its name."""
    own = [buffer.name if n < 0 else names[n] for buffer, n in zip(stage.nest.buffers, stage.buffers, strict=True)]
    return replace(stage, nest=_with_names(stage.nest, own))


def _with_names(nest: Nest, names: Sequence[str]) -> Nest:
    buffers = tuple(Buffer(name, buffer.dtype) for name, buffer in zip(names, nest.buffers, strict=True))
    return replace(nest, buffers=buffers)
