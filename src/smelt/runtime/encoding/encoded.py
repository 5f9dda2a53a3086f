"""What `encode` makes of a plan: the executor's words and cells, and what ties both to the plan."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

import torch

from smelt.diag.records import record
from smelt.runtime.encoding.addresses import Symbol
from smelt.runtime.plan import Counts, PyCall, View, Word
from smelt.runtime.pool import Pool
from smelt.runtime.profile import Profile


@record
class Team:
    """Groups of launches, by number, that the threads of one region share; `word` of the code is their number."""

    word: int
    groups: tuple[int, ...]


@record
class Shared:
    """A group of launches; `word` of the code is the number of all their chunks. launches: descriptor, instruction."""

    word: int
    launches: tuple[tuple[int, int], ...]


@record
class Later:
    """What a plan for many sizes leaves open: cells that wait for words, and how launches are cut and shared.

    arena_slots: tensors of the arena whose handles something needs.
    """

    marks: tuple[tuple[int, Word], ...]
    groups: tuple[Shared, ...]
    teams: tuple[Team, ...]
    arena_slots: tuple[int, ...]


class AtSizes(Protocol):
    """What frames at given sizes are made of. handled: tensors of the arena, by number, that need handles. is_short: a
    run is over before another thread could make use of the GIL.
    """

    @property
    def pool(self) -> Pool: ...

    @property
    def handled(self) -> Sequence[int]: ...
    @property
    def is_short(self) -> bool: ...

    def arena(self) -> tuple[torch.Tensor | None, Sequence[torch.Tensor]]:
        """The arena's memory, and its tensors."""
        ...


class CannotShare(Exception):
    """A plan for many sizes needs records of its own for each."""


@record
class Encoded:
    """The result: `code` words, the frame's initial `cells`, and what ties both to the plan.

    `addresses` are (cell, cell whose address in the frame it holds). `cell_of` gives a slot's cell, inputs first and
    in order. `starts[i]` is the word where record i begins, `owners[i]` its instruction. `keep` holds what addresses
    in the template point to. `modes_are_native`, `escape_is_native`: whether the executor itself switches gradients
    and autocast off, and looks for outputs that share the arena's memory. `arena_addresses` are (cell, bytes from the
    arena's start). `elided` views have no handle. `scratch_nbytes` is what each of at most `team_limit` threads must
    lend to kernels. `profile` collects the times of a plan that asks for them. `step_owners` are the instructions of
    the steps. `later` is what waits for the words of a plan for many sizes, `sized` how frames are made of one that
    is filled. `relocations` are the cells that wait for addresses, where these are known later.
    """

    code: Any
    cells: array[int]
    addresses: tuple[tuple[int, int], ...]
    cell_of: tuple[int, ...]
    starts: tuple[int, ...]
    owners: tuple[int, ...]
    steps: Sequence[PyCall]
    step_is_launch: tuple[bool, ...]
    arena_cells: tuple[int, int]
    counts: Counts
    modes_are_native: bool
    escape_is_native: bool
    keep: tuple[Any, ...]
    arena_addresses: tuple[tuple[int, int], ...] = ()
    elided: Mapping[int, View] = field(default_factory=dict)
    scratch_nbytes: int = 0
    team_limit: int = 1
    profile: Profile | None = None
    step_owners: tuple[int, ...] = ()
    later: Later | None = None
    sized: AtSizes | None = None
    relocations: tuple[tuple[int, Symbol], ...] = ()
