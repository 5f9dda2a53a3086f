"""One encoding of a plan for many sizes: filled with the words of each tuple of sizes, without encoding anew.

Records, cells and handles are those of all sizes. A filled encoding is a copy with its own cells, and with its own code
where launches are cut into other numbers of chunks; Python steps and tensors of the arena are made when asked for.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from smelt.diag.records import distinct_record
from smelt.runtime.encoding.encoded import Encoded, Later
from smelt.runtime.encoding.table import Launched
from smelt.runtime.plan import ArenaTensor, Launch, Plan, PyCall, View, Word
from smelt.runtime.pool import Pool
from smelt.runtime.schedule import chunk_of, team_size
from smelt.runtime.steps import over, python_step

_SHORT_NS = 10_000.0
T = TypeVar("T")

Fill = Callable[[Any], Any]
"""An instruction, or another part of a plan, with numbers in the place of words."""


@distinct_record
class _At:
    """See `AtSizes`."""

    pool: Pool
    handled: Sequence[int]
    is_short: bool
    nbytes: int
    tensors: Sequence[ArenaTensor]
    fill: Fill

    def arena(self) -> tuple[torch.Tensor | None, Sequence[torch.Tensor]]:
        """Memory of the pool, and tensors that are made when one asks for them."""
        if not self.tensors:
            return None, ()
        memory = self.pool.take(self.nbytes)
        return memory, _Arena(memory, self.tensors, self.fill)


class _Arena(Sequence[torch.Tensor]):
    def __init__(self, memory: torch.Tensor, tensors: Sequence[ArenaTensor], fill: Fill) -> None:
        self._memory, self._tensors, self._fill = memory, tensors, fill
        self._made: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, index: Any) -> Any:
        made = self._made.get(index)
        if made is None:
            with torch.inference_mode(False), torch.no_grad():
                made = over(self._memory.untyped_storage(), self._fill(self._tensors[index]))
            self._made[index] = made
        return made


class _Steps(Sequence[PyCall]):
    def __init__(self, plan: Plan, owners: Sequence[int], fill: Fill) -> None:
        self._plan, self._owners, self._fill = plan, owners, fill
        self._made: dict[int, PyCall] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def __getitem__(self, index: Any) -> Any:
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = python_step(self._fill(self._plan.instructions[self._owners[index]]))
        return made


class _Views(Mapping[int, View]):
    def __init__(self, views: Mapping[int, View], fill: Fill) -> None:
        self._views, self._fill = views, fill

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Any:
        return iter(self._views)

    def __contains__(self, slot: object) -> bool:
        return slot in self._views

    def __getitem__(self, slot: int) -> View:
        return self._fill(self._views[slot])


class SizedEncoding:
    """An encoding with what waits for words, sorted by how it is filled."""

    def __init__(self, template: Plan, encoded: Encoded, is_quick: bool) -> None:
        assert encoded.later is not None
        self.template, self.encoded, self.pool = template, encoded, Pool()
        self._later: Later = encoded.later
        self._is_quick = is_quick
        self._plain: list[tuple[int, int]] = []
        self._sums: list[tuple[int, Word]] = []
        self._doubles: list[tuple[int, Word]] = []
        for cell, word in self._later.marks:
            if word.is_double:
                self._doubles.append((cell, word))
            elif len(word.terms) == 1 and word.terms[0][1] == 1 and not word.add:
                self._plain.append((cell, word.terms[0][0]))
            else:
                self._sums.append((cell, word))
        slots = {tensor.slot: i for i, tensor in enumerate(template.arena)}
        self._handled = tuple(slots[slot] for slot in self._later.arena_slots)
        launches = {
            index: (launch.items, launch.item_ns)
            for group in self._later.groups
            for _, index in group.launches
            if isinstance(launch := template.instructions[index], Launch)
        }
        # Layers that are alike have the same numbers: each is computed once.
        self._works, of_work = _distinct(launches.values())
        self._work_of = dict(zip(launches, of_work, strict=True))
        self._scratch, _ = _distinct(i.scratch_nbytes for i in template.instructions if isinstance(i, Launch))
        self._offsets, of_offset = _distinct(at for _, at in encoded.arena_addresses)
        self._in_arena = list(zip([cell for cell, _ in encoded.arena_addresses], of_offset, strict=True))

    def at(self, words: Sequence[int | float], fill: Fill) -> Encoded:
        """The encoding for sizes with these words. Raises: OverflowError for a word beyond 64 bits."""
        encoded = self.encoded
        cells = encoded.cells[:]
        for cell, index in self._plain:
            cells[cell] = words[index]  # type: ignore[assignment]
        for cell, word in self._sums:
            cells[cell] = word.value(words)  # type: ignore[assignment]
        for cell, word in self._doubles:
            cells[cell] = struct.unpack("<q", struct.pack("<d", word.value(words)))[0]
        code, work_ns = self._cut(cells, words)
        template = self.template
        offsets = [int(number(at, words)) for at in self._offsets]
        nbytes = number(template.arena_nbytes, words)
        sized = _At(self.pool, self._handled, self._is_quick and work_ns < _SHORT_NS, int(nbytes), template.arena, fill)
        scratch = max((number(nbytes, words) for nbytes in self._scratch), default=0)
        return replace(
            encoded,
            code=code,
            cells=cells,
            arena_addresses=tuple([(cell, offsets[at]) for cell, at in self._in_arena]),
            steps=_Steps(template, encoded.step_owners, fill),
            elided=_Views(encoded.elided, fill),
            scratch_nbytes=int(scratch),
            later=None,
            sized=sized,
        )

    @staticmethod
    def _work(items: float, item_ns: float, words: Sequence[int | float], limit: int) -> tuple[int, int, int, float]:
        """The items of a launch, those of a chunk, how many chunks, and their time in nanoseconds."""
        count, each_ns = int(number(items, words)), number(item_ns, words)
        chunk = chunk_of(count, each_ns, limit)
        return count, chunk, -(-count // chunk), count * each_ns

    def _cut(self, cells: array[int], words: Sequence[int | float]) -> tuple[Any, float]:
        """Chunks of all launches into their cells; the code with their numbers, and the work of all, in nanoseconds."""
        encoded, limit = self.encoded, self.encoded.team_limit
        changes: list[tuple[int, int]] = []
        groups: list[tuple[float, int]] = []
        all_ns = 0.0
        works = [self._work(items, item_ns, words, limit) for items, item_ns in self._works]
        items_at, chunk_at, first_at = int(Launched.ITEMS), int(Launched.CHUNK), int(Launched.FIRST_CHUNK)
        for group in self._later.groups:
            begin, group_ns = 0, 0.0
            for at, index in group.launches:
                items, chunk, chunks, work_ns = works[self._work_of[index]]
                if items < 0:
                    raise OverflowError(f"instruction {index} has {items} items")
                cells[at + items_at], cells[at + chunk_at], cells[at + first_at] = items, chunk, begin
                begin += chunks
                group_ns += work_ns
            changes.append((group.word, begin))
            groups.append((group_ns, begin))
            all_ns += group_ns
        for team in self._later.teams:
            shared = [groups[i] for i in team.groups if groups[i][1] > 1]
            changes.append((team.word, team_size(shared, limit)))
        code = encoded.code
        if any(code[word] != value for word, value in changes):
            code = type(code).from_buffer_copy(code)
            for word, value in changes:
                code[word] = value
        return code, all_ns


def _distinct(found: Iterable[T]) -> tuple[list[T], list[int]]:
    """What is found, each once, and for all that is found which of these it is."""
    known: dict[T, int] = {}
    which = [known.setdefault(x, len(known)) for x in found]
    return list(known), which


def number(x: float, words: Sequence[int | float]) -> int | float:
    """A number of a plan, given all words."""
    return x.value(words) if type(x) is Word else x
