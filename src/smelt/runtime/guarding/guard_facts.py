"""Guards on the world outside the arguments: the facts that a recorded run read, and their compact test.

What kinds of facts there are, and what each means, is in `fact_kinds`.

Invariant: the compact test holds only if every fact does. Facts on dicts, classes included, become `Namespaces`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

import torch

from smelt._torch.exact import same, still
from smelt._torch.library.recurrent import MADE_ANEW
from smelt.diag import Span
from smelt.diag.records import record
from smelt.runtime.guarding.fact_kinds import CONTENT, ITEM, KINDS_BY_NAME, FactGroups, FactKind


@record
class FactTest:
    """A fact that can be asked again; `read` is what it was made of (a `ReadFact`).

    alike: how a value compares with the one that was seen. Where the run itself put an equal list, dict or set in the
    place of the one that it found, an equal one will do.
    """

    read: Any
    alike: Callable[[Any, Any], bool] = still

    @classmethod
    def of(cls, read: Any) -> FactTest:
        """The test of a fact, as it is after the run."""
        test = cls(read)
        return test if test.holds() else cls(read, same)

    @property
    def kind(self) -> str:
        return str(self.read.kind)

    @property
    def of_kind(self) -> FactKind:
        """The record of its kind."""
        return KINDS_BY_NAME[self.read.kind]

    @property
    def name(self) -> str:
        return str(self.read.name)

    @property
    def seen(self) -> Any:
        return self.read.value

    @property
    def span(self) -> Span | None:
        found: Span | None = self.read.span
        return found

    @property
    def is_internal(self) -> bool:
        """Whether it is on a wrapper of Smelt's own, which the program reads only while it is recorded, on a method of
        tensors that is as torch has it, or on what a class is."""
        return self.of_kind.is_internal(self.read)

    @property
    def is_made_anew(self) -> bool:
        """Whether a layer makes a list of its weights anew in this place, which nothing else has."""
        return self.read.kind == ITEM.name and self.read.key in MADE_ANEW

    def now(self) -> Any:
        """What its place holds at this moment."""
        return self.of_kind.now(self.read.owner, self.read.key)

    def holds(self) -> bool:
        """Whether its place still holds what was seen, exactly."""
        return self.of_kind.holds(self.read, self.alike)


class Facts:
    """All facts of a program, and their compact test: `namespaces`, `identities`, and the `single` others."""

    def __init__(self, reads: Iterable[Any]) -> None:
        known = [read for read in reads if read.kind in KINDS_BY_NAME]
        self.tensors = _tensors(known)
        self._test([FactTest.of(read) for read in known if not _is_constant(read)])

    def _test(self, tests: list[FactTest]) -> None:
        self.tests = tests
        groups = FactGroups()
        self.single = [test for test in self.tests if not test.of_kind.group(test.read, groups)]
        self.namespaces, self.identities = groups.made()

    def first_failed(self) -> int | None:
        """The position of the first fact that no longer holds."""
        for i, test in enumerate(self.tests):
            if not test.holds():
                return i
        return None

    def moved(self) -> Facts | None:
        """The facts of the lists that layers have made anew since, of the same members; None where these do not hold,
        or there is no such list.
        """
        new: dict[int, Any] = {}
        for test in self.tests:
            if not test.is_made_anew or test.holds():
                continue
            now, seen = test.now(), test.seen
            if type(now) is not list or type(seen) is not list or not same(now, seen):
                return None
            new[id(seen)] = now
        if not new:
            return None

        def moved(read: Any) -> Any:
            owner, value = new.get(id(read.owner), read.owner), new.get(id(read.value), read.value)
            is_moved = owner is not read.owner or value is not read.value
            return read._replace(owner=owner, value=value) if is_moved else read

        found = copy(self)
        found._test([FactTest(moved(test.read), test.alike) for test in self.tests])
        return found if found.first_failed() is None else None

    def tensor_names(self) -> dict[int, str]:
        """How the program reads its tensors, by their `id`: as in `model[0].weight`."""
        names: dict[int, str] = {}
        for test in self.tests:
            found = list(test.of_kind.tensors(test.seen))
            if any(isinstance(value, torch.Tensor) for value in found):
                for name, value in zip(test.of_kind.names(test.read), found, strict=False):
                    if isinstance(value, torch.Tensor):
                        names.setdefault(id(value), name)
        return names

    def emit(self, scope: dict[str, Any]) -> list[str]:
        """Lines of the check function; the names they use are put into `scope`."""
        lines: list[str] = []
        fail = "return failed(args, kwargs)"
        if self.namespaces.spaces:
            scope["namespaces_unchanged"] = self.namespaces.unchanged
            lines.append(f"if not namespaces_unchanged(): {fail}")
        if self.identities:
            scope["identities_unchanged"] = self.identities.unchanged
            lines.append(f"if not identities_unchanged(): {fail}")
        conditions = [self._condition(i, test, scope) for i, test in enumerate(self.single)]
        if conditions:
            lines.append(f"if not ({' and '.join(conditions)}): {fail}")
        return lines

    def _condition(self, i: int, test: FactTest, scope: dict[str, Any]) -> str:
        owner, value = f"o{i}", f"v{i}"
        scope[owner], scope[value] = test.read.owner, test.seen
        code = test.of_kind.code(test.read, owner, value, scope)
        if code is not None:
            return code
        scope[f"holds{i}"] = test.holds
        return f"holds{i}()"


def _is_constant(read: Any) -> bool:
    """Contents of immutable containers cannot change; their members have facts of their own."""
    return read.kind == CONTENT.name and isinstance(read.owner, (tuple, frozenset))


def _tensors(reads: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors that the program reads by itself, each once."""
    found: dict[int, torch.Tensor] = {}
    for read in reads:
        for value in KINDS_BY_NAME[read.kind].tensors(read.value):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type != "meta":
                found[id(value)] = value
    return list(found.values())
