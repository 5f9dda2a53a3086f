"""`schedule`: a model seen as its modules and as one graph, to be searched.

Invariant: the model is read, never changed, and captured at the first search.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from smelt.diag import ScheduleError
from smelt.ir import Node, Value
from smelt.pattern import Where, fits_module, type_text
from smelt.scheduling.captures import captures_of
from smelt.scheduling.forms import STATE
from smelt.scheduling.match import Match, Matches, make_match, match_of
from smelt.scheduling.patterns import check_regex, read_pattern
from smelt.scheduling.search import Search
from smelt.scheduling.target import Call, Target, is_under, join


def schedule(model: torch.nn.Module, example_inputs: Any = None) -> Schedule:
    """A schedule of a model. The model is never touched.

    example_inputs: the arguments of a call (a tuple, or one tensor). With them sizes and types are known, and a copy of
        the model runs once, at the first search. Without, the model is captured from its source; it need not even run.
    """
    if not isinstance(model, torch.nn.Module):
        raise ScheduleError(
            f"{model!r} cannot be scheduled", why="it is no nn.Module", fix="give a module", code="S0605"
        )
    examples = None if example_inputs is None else _as_tuple(example_inputs)
    return Schedule(_Root(model, examples), "")


class _Root:
    """The model and its graphs, shared by the views of a schedule."""

    def __init__(self, model: torch.nn.Module, examples: tuple[Any, ...] | None) -> None:
        self.model, self.examples = model, examples
        self.modules = dict(model.named_modules(remove_duplicate=False))
        # A module that stands in several places has its nodes under the first of its names.
        self.first_names = {id(module): name for name, module in model.named_modules()}
        self._captured: tuple[list[Target], list[str]] | None = None

    @property
    def captured(self) -> tuple[list[Target], list[str]]:
        if self._captured is None:
            self._captured = captures_of(self.model, self.examples)
        return self._captured


class Schedule:
    """One module of the model, and what lies below it.

    s["encoder.layer.0"] is the module at a path below, s["encoder.layer.*.attention"] all that fit; iteration gives the
    modules right below. `path` is counted from the whole model.
    """

    def __init__(self, root: _Root, path: str) -> None:
        self._root = root
        self.path = path

    @property
    def module(self) -> torch.nn.Module:
        """The model's own module."""
        return self._root.modules[self.path]

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the capture ends before the program does, if it does: what lies behind cannot be found."""
        return tuple(self._root.captured[1])

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that belong to the module, in program order."""
        return tuple(
            node
            for target in self._root.captured[0]
            for node in target.nodes
            if is_under(target.path_of(node), self._root.first_names[id(self.module)])
        )

    def __getitem__(self, path: str) -> Any:
        full = join(self.path, path)
        if "*" in path:
            found = [name for name in self._root.modules if _fits(name, full)]
            if found:
                return Selection(Schedule(self._root, name) for name in found)
        elif full in self._root.modules:
            return Schedule(self._root, full)
        raise self._unknown(path)

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str):
            return False
        full = join(self.path, path)
        return any(_fits(name, full) for name in self._root.modules) if "*" in path else full in self._root.modules

    def __iter__(self) -> Iterator[Schedule]:
        return (Schedule(self._root, join(self.path, name)) for name, _ in self.module.named_children())

    def __len__(self) -> int:
        return sum(1 for _ in self.module.named_children())

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return "\n".join(self._rows(self.path.rpartition(".")[2] or type(self.module).__name__, ""))

    def __repr__(self) -> str:
        return f"<Schedule of {self.path or 'the whole'} ({type(self.module).__name__})>"

    def find(
        self,
        pattern: Any = None,
        *,
        where: Callable[[Any], bool] | None = None,
        escaping: bool = False,
    ) -> Matches:
        """All places of a pattern, in program order; overlapping ones too (`.disjoint()` chooses).

        pattern: a function of tensors, in torch and `smelt.pattern`; a module (its parameters are free) or a graph; a
            module's class, or a regex of its name or an end of its path: its calls; a predicate of `smelt.pattern`.
        where: a predicate on each match; without a pattern, on each node.
        escaping: also places of which inner values are used outside (`match.escaping`). What the pattern returns may
            always be.
        Raises: ScheduleError: S0602 where the pattern cannot be read, S0603 where there is nothing to look for, S0604
            where one place has too many readings, S0605 where nothing of the model can be captured.
        """
        if pattern is None and where is None:
            raise ScheduleError("find() looks for nothing", fix="give a pattern, or where=", code="S0603")
        if pattern is None or isinstance(pattern, Where):
            asked = pattern or where
            assert asked is not None
            found = self._nodes_where(asked)
            where = where if pattern is not None else None
        elif isinstance(pattern, str):
            check_regex(pattern)
            found = self._calls(pattern)
        elif isinstance(pattern, type) and issubclass(pattern, torch.nn.Module):
            found = self._calls(type_text(pattern))
        else:
            found = self._places(pattern, escaping)
        first = self._root.first_names[id(self.module)]
        inside = (match for match in found if is_under(match.path, first))
        return Matches(match for match in inside if where is None or where(match))

    def _places(self, given: Any, escaping: bool) -> Iterator[Match]:
        pattern = read_pattern(given)
        for target in self._root.captured[0]:
            known: dict[frozenset[Node], Match] = {}
            for found in Search(pattern, target, escaping=escaping).run():
                match = match_of(found, pattern, target, escaping=escaping)
                if match is not None:
                    known.setdefault(frozenset(match.nodes), match)
            yield from sorted(known.values(), key=lambda match: [target.position[node] for node in match.nodes])

    def _calls(self, which: str) -> Iterator[Match]:
        for target in self._root.captured[0]:
            for call in target.calls:
                if call.path and fits_module(which, call.path, target.module(call.path)):
                    yield _match_of_call(call, target)

    def _nodes_where(self, holds: Callable[[Node], bool]) -> Iterator[Match]:
        for target in self._root.captured[0]:
            for node in target.nodes:
                if node.op not in STATE and node.results and holds(node):
                    yield make_match([node], set(node.results), {}, target)

    def _unknown(self, path: str) -> ScheduleError:
        below = [name[len(self.path) :].lstrip(".") for name in self._root.modules if is_under(name, self.path)]
        near = difflib.get_close_matches(path, [name for name in below if name], n=3, cutoff=0.4)
        where = self.path or type(self.module).__name__
        children = ", ".join(name for name, _ in self.module.named_children()) or "none"
        return ScheduleError(
            f"{where} has no module {path!r}", why=f"it has {children}",
            fix=f"did you mean {' or '.join(map(repr, near))}?" if near else "print the schedule to see its modules",
            code="S0601",
        )  # fmt: skip

    def _rows(self, name: str, indent: str) -> Iterator[str]:
        yield f"{indent}{name}: {type(self.module).__name__}"
        for child in self:
            yield from child._rows(child.path.rpartition(".")[2], indent + "  ")


class Selection(tuple[Schedule, ...]):
    """Several modules of one model, in its order."""

    __slots__ = ()

    def find(self, pattern: Any = None, **options: Any) -> Matches:
        """What is found in each, each match once."""
        known: dict[tuple[Node, ...], Match] = {}
        for part in self:
            for match in part.find(pattern, **options):
                known.setdefault(match.nodes, match)
        return Matches(known.values())

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def _match_of_call(call: Call, target: Target) -> Match:
    outputs: set[Value] = set(call.outputs)
    found = make_match([*call.nodes, *call.writes], outputs, {}, target)
    return Match(found.nodes, tuple(call.inputs), found.outputs, found.captures, found.escaping, call.path, target)


def _fits(name: str, wanted: str) -> bool:
    """Whether a path is one with wildcards, each for one part."""
    parts, patterns = name.split("."), wanted.split(".")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _as_tuple(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, Sequence) else (given,)
