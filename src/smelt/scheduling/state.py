"""The state of a schedule: the module tree as the steps made it, and the steps.

Invariant: a state never changes. A step makes a new one, which knows the one before it; trees of two states share
tensors, never modules, and no state shares a module with the user's model, but for the first one, which is that model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import torch

from smelt.compiler.object.interrupts import SignalsWait
from smelt.diag import ScheduleError
from smelt.diag.collector import full_collections_later
from smelt.scheduling.comparing.observing import ObservedRun
from smelt.scheduling.finding.match import Match
from smelt.scheduling.finding.target import Target
from smelt.scheduling.graphs.captures import captures_of
from smelt.scheduling.graphs.scope_graphs import ScopeGraph, paths_with_steps, scope_graphs
from smelt.scheduling.modules import copying
from smelt.scheduling.steps import Step


class State:
    """What a schedule is after some steps.

    tree: the model as it is then, over the tensors of the user's model. steps: those that led here. notes: what was
    done where, `(path, text)`, in order. before: the state that the last step was taken in. copies: what became of the
    modules of earlier trees and of the user's model, by id. reports: what steps measured. examples: a call's arguments.
    run: the one that was searched, until a step was taken.
    """

    def __init__(
        self,
        tree: torch.nn.Module,
        examples: tuple[Any, ...] | None,
        *,
        steps: tuple[Step, ...] = (),
        notes: tuple[tuple[str, str], ...] = (),
        before: State | None = None,
        copies: Mapping[int, torch.nn.Module] | None = None,
        scopes: Mapping[str, ScopeGraph] | None = None,
        reports: tuple[str, ...] = (),
    ) -> None:
        self.tree, self.examples = tree, examples
        self.steps, self.notes, self.reports, self.before = steps, notes, reports, before
        self.copies = dict(copies or {})
        # Filled as they are asked for: what is in it follows from the tree.
        self.scopes = dict(scopes or {})
        self.modules = dict(tree.named_modules(remove_duplicate=False))
        self.run: ObservedRun | None = None
        # A module that stands in several places has its nodes under the first of its names.
        self.first_names = {id(module): name for name, module in tree.named_modules()}

    @cached_property
    def captured(self) -> tuple[list[Target], list[str]]:
        """The graphs to be searched, and notes on where they end. Raises: ScheduleError (S0605)."""
        targets: list[Target] = []
        try:
            with SignalsWait(), full_collections_later():
                targets, notes, self.run = captures_of(self.tree, self.examples)
        except ScheduleError as error:
            if not self.scheduled:
                raise
            notes = [error.why]  # where steps are taken, graphs are known all the same
        return [*targets, *(self.scope(path).target for path in self.scheduled)], notes

    @cached_property
    def scheduled(self) -> tuple[str, ...]:
        """The modules to whose graphs steps were applied."""
        return paths_with_steps(self.tree)

    def is_hidden(self, match: Match) -> bool:
        """Whether a match lies in code that a step made, and is found in that module's own graph instead."""
        if match.target.root is not None or not self.scheduled:
            return False
        return all(match.target.path_of(node) in self.scheduled for node in match.nodes if node.op != "write")

    def scope(self, path: str) -> ScopeGraph:
        """The graph of a module's forward, with the steps taken on it. Raises: ScheduleError (S0605, S0613)."""
        if path not in self.scopes:
            self.prepare([path])
        return self.scopes[path]

    def prepare(self, paths: Iterable[str]) -> None:
        """Make the graphs of several modules' forwards, in one run of the model."""
        wanted = [path for path in paths if path not in self.scopes]
        if wanted:
            self.scopes.update(scope_graphs(self.tree, self.examples, wanted, self.run))

    def build(self, *, share: bool = False) -> torch.nn.Module:
        """A module of the tree's class and keys; with tensors of its own, or with the very tensors of the model."""
        return copying.shadow(self.tree)[0] if share else copying.build(self.tree)
