"""What a run takes for given because an earlier run of the same program came to nothing without it.

    raise Again(loop_is(key))                    the run ends
    assumed = session.assumed | again.more       the next one begins with what this one found, and with that

Invariant: what is found is added to what was known; only who starts the runs takes something back.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import CodeType

from smelt.ir import Type

Key = object
"""The place of a branch, loop or call in the user's program."""


class LoopKind(enum.Enum):
    """What may be taken of a loop.

    WHOLE: it is one of the graph, though its first test depends on no data. UNROLLED: it is not, though it is long.
    COUNTED: each number of its iterations is a path of its own; UNCOUNTED: that led to nothing. LIVE: what it goes over
    becomes longer or shorter in it. TESTED: its test binds variables.
    """

    WHOLE = enum.auto()
    UNROLLED = enum.auto()
    COUNTED = enum.auto()
    UNCOUNTED = enum.auto()
    LIVE = enum.auto()
    TESTED = enum.auto()


@dataclass(frozen=True)
class Assumptions:
    """What runs of a program have found.

    forked: branches that must not be merged: their paths go on by themselves; grew: those of them in which a container
    grew. arms: branches of which no run takes one arm, which the graph expects, and which arm. peeled: loops whose
    first iterations differ from the others, and how many. loops: of what kind loops are. lists: loops over a list that
    grows in them, and the type that it has in the graph. grows: containers that grow on one path only are values of the
    graph; grows_not: that led to nothing. as_native: where data decide, the graph holds for the path that the recorded
    run took. counts: counters that held one number in the recorded run are one number, which the graph expects.
    converted: functions that run converted. trials: operators whose results are found by trying them on the CPU.
    fixes_texts: a size or number has one value where a text is made of it. joined: calls at whose end paths that part
    inside should meet again; unjoined: those at whose end they must not.
    """

    forked: frozenset[Key] = frozenset()
    grew: frozenset[Key] = frozenset()
    arms: frozenset[tuple[Key, bool]] = frozenset()
    peeled: Mapping[Key, int] = field(default_factory=dict)
    loops: frozenset[tuple[Key, LoopKind]] = frozenset()
    lists: Mapping[Key, Type] = field(default_factory=dict)
    grows: bool = False
    grows_not: bool = False
    as_native: bool = False
    counts: bool = False
    converted: frozenset[CodeType] = frozenset()
    trials: frozenset[str] = frozenset()
    fixes_texts: bool = False
    joined: frozenset[Key] = frozenset()
    unjoined: frozenset[Key] = frozenset()

    def __or__(self, more: Assumptions) -> Assumptions:
        """All that either says; iterations that are peeled come on top of each other."""
        counts = {key: self.peeled.get(key, 0) + count for key, count in more.peeled.items()}
        return Assumptions(
            self.forked | more.forked,
            self.grew | more.grew,
            self.arms | more.arms,
            {**self.peeled, **counts},
            self.loops | more.loops,
            {**self.lists, **more.lists},
            self.grows or more.grows,
            self.grows_not or more.grows_not,
            self.as_native or more.as_native,
            self.counts or more.counts,
            self.converted | more.converted,
            self.trials | more.trials,
            self.fixes_texts or more.fixes_texts,
            self.joined | more.joined,
            self.unjoined | more.unjoined,
        )

    def has(self, key: Key, *kinds: LoopKind) -> bool:
        """Whether a loop is of one of these kinds."""
        return any((key, kind) in self.loops for kind in kinds)

    def of_kind(self, kind: LoopKind) -> frozenset[Key]:
        """The loops of a kind."""
        return frozenset(key for key, found in self.loops if found is kind)

    def without_forks_that_grow(self) -> Assumptions:
        """The same where containers that grow are values of the graph, so that their paths need not part."""
        return replace(self, forked=self.forked - self.grew)

    def without_loops(self) -> Assumptions:
        """The same, with nothing known of loops, of arms that no run takes, and of containers that grow."""
        return replace(self, grows=False, grows_not=False, loops=frozenset(), lists={}, arms=frozenset())

    def without_counted_loops(self) -> Assumptions:
        """The same where no number of iterations is a path of its own."""
        other = {LoopKind.COUNTED: LoopKind.UNCOUNTED}
        return replace(self, loops=frozenset((key, other.get(kind, kind)) for key, kind in self.loops))


def forked(key: Key) -> Assumptions:
    """A branch must not be merged."""
    return Assumptions(forked=frozenset((key,)))


def peeled(key: Key) -> Assumptions:
    """One more iteration of a loop stands before it."""
    return Assumptions(peeled={key: 1})


def loop_is(key: Key, kind: LoopKind = LoopKind.WHOLE) -> Assumptions:
    """A loop is of a kind."""
    return Assumptions(loops=frozenset(((key, kind),)))


def converted(code: CodeType) -> Assumptions:
    """A function runs converted."""
    return Assumptions(converted=frozenset((code,)))
