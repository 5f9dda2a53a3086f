"""A draft: the next state of a schedule while a primitive makes it.

Invariant: what is edited is a copy. Whatever goes wrong, the state that the draft was made of stays as it is; only
`finish` makes a state, after all is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from smelt.diag import ScheduleError
from smelt.diag.records import record
from smelt.scheduling.finding.selector import Selector
from smelt.scheduling.graphs.editing import GraphStep
from smelt.scheduling.graphs.scheduled import schedule_forward
from smelt.scheduling.graphs.scope_graphs import ScopeGraph, paths_with_steps
from smelt.scheduling.modules import copying
from smelt.scheduling.state import State
from smelt.scheduling.steps import Step


@record
class Selected:
    """What a primitive is applied to: a module's path, and what is selected inside it, if anything is."""

    path: str
    selector: Selector | None = None


class Withdrawn(Exception):
    """A primitive takes itself back: the step is legal, and does not pay. The text says why."""


class Draft:
    """A copy-on-write state for a primitive.

    Edit modules with plain Python on what `module` and `root` return (they are the draft's own, over the model's own
    tensors), or replace them with `put`.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._notes: list[tuple[str, str]] = []
        self._root: torch.nn.Module | None = None
        self._copies: Mapping[int, Any] = {}
        self._given: list[int] = []
        self._scopes: dict[str, ScopeGraph] = {}
        self._reports: list[str] = []

    @property
    def examples(self) -> tuple[Any, ...] | None:
        """The arguments of a call, if the schedule has example inputs."""
        return self._state.examples

    @property
    def state_before(self) -> State:
        """The state that the draft is made of."""
        return self._state

    @property
    def root(self) -> torch.nn.Module:
        """The whole model of the draft, copied at the first use."""
        if self._root is None:
            self._root, memo = copying.shadow(self._state.tree)
            modules = {id(module): memo[id(module)] for module in self._state.tree.modules()}
            earlier = {key: modules[id(module)] for key, module in self._state.copies.items() if id(module) in modules}
            self._copies = {**earlier, **modules}
        return self._root

    def has(self, path: str) -> bool:
        """Whether there is a module at a path."""
        return path in dict(self.root.named_modules(remove_duplicate=False))

    def module(self, path: str) -> torch.nn.Module:
        """The draft's own module at a path, to be edited. Raises: ScheduleError (S0601) where there is none."""
        try:
            return self.root.get_submodule(path)
        except AttributeError:
            raise ScheduleError(
                f"there is no module {path!r} any more", why="an earlier step replaced the module that contained it",
                fix="print the schedule to see its modules", code="S0601",
            ) from None  # fmt: skip

    def own(self, module: torch.nn.Module) -> torch.nn.Module:
        """A module of the user's, made part of the draft.

        It is a copy over the same tensors, in which the model's modules and those of earlier states are the draft's.
        If the same step assigns one under several names, each has tensors of its own.
        """
        known: dict[int, Any] = {**{id(part): part for part in self.root.modules()}, **self._copies}
        if id(module) not in self._given:
            self._given.append(id(module))
            return copying.shadow(module, known)[0]
        tensors = (*self._state.tree.parameters(), *self._state.tree.buffers())
        return copying.build(module, {**known, **{id(tensor): tensor for tensor in tensors}})

    def put(self, path: str, new: torch.nn.Module) -> None:
        """Replace a module by another one, under all of its names.

        The hooks of the old one become the new one's, and so does its `training` flag, for all below it that was not in
        the model before. new: `own` of the user's module.
        Raises: ScheduleError (S0601) where there is nothing at the path.
        """
        old = self.module(path)
        if new is old:
            return
        known = {id(part) for part in self.root.modules()}
        for part in new.modules():
            if id(part) not in known:
                part.training = old.training
        inside = any(part is old for part in new.modules())
        places = [
            (parent, name)
            for parent in self.root.modules()
            for name, child in parent._modules.items()
            if child is old
        ]  # fmt: skip
        _move_hooks(old, new, keep=not inside)
        if old is self._root:
            self._root = new
        for parent, name in places:
            parent._modules[name] = new

    def take_on_graph(self, path: str, step: GraphStep) -> ScopeGraph:
        """Apply a step to the graph of a module's forward, now and in each call of the built module.

        Raises: ScheduleError if it cannot be applied to the graph that earlier steps left.
        """
        module = self.module(path)
        before = self.scope(path)
        like = None if before.like is None else self._scopes.get(before.like.path)
        scope = self._scopes[path] = before.with_step(step, module, like)
        schedule_forward(module, step, path)
        return scope

    def scope(self, path: str) -> ScopeGraph:
        """The graph of a module's forward as this draft has it."""
        return self._scopes.get(path) or self._state.scope(path)

    @property
    def scheduled(self) -> tuple[str, ...]:
        """The modules to whose graphs steps were applied."""
        return paths_with_steps(self.root)

    def report(self, path: str, text: str) -> None:
        """Say what was measured at a path, for `s.reports`."""
        self._reports.append(f"{path or 'the whole'}: {text}")

    def note(self, path: str, text: str) -> None:
        """Say what was done at a path, for the printed tree."""
        self._notes.append((path, text))

    def finish(self, step: Step, *, on_graphs: bool) -> State:
        """The state that this draft has become by a step. on_graphs: no module of it was edited.

        Raises: ScheduleError (S0609) where an earlier step on a graph finds nothing any more.
        """
        before = self._state
        state = State(
            self.root,
            before.examples,
            steps=(*before.steps, step),
            notes=(*before.notes, *self._notes),
            before=before,
            copies=self._known_copies,
            reports=(*before.reports, *self._reports),
            scopes={**before.scopes, **self._scopes} if on_graphs else {},
        )
        before.run = None  # it holds what went through the model
        # A step may change the graphs around it: they are captured anew, and the steps on them taken again.
        around = self._around if on_graphs else paths_with_steps(self.root)
        for path in around:
            state.scopes.pop(path, None)
        try:
            state.prepare(around)
        except ScheduleError as error:
            if not on_graphs:
                raise
            raise ScheduleError(
                f"an earlier step does not fit any more: {error.what}", error.where,
                why=f"steps of inner modules are applied first, and then {error.why}",
                fix="apply this step first, or select in the module of the earlier one", code="S0609",
            ) from error  # fmt: skip
        return state

    @property
    def _around(self) -> tuple[str, ...]:
        """The modules with steps on their graphs that have, somewhere below, one on whose graph this step was taken."""
        taken = {id(self.module(path)) for path in self._scopes}
        return tuple(
            path
            for path in paths_with_steps(self.root)
            if any(id(part) in taken for part in self.module(path).modules() if part is not self.module(path))
        )

    @cached_property
    def _known_copies(self) -> dict[int, torch.nn.Module]:
        return {key: value for key, value in self._copies.items() if isinstance(value, torch.nn.Module)}


def _move_hooks(old: torch.nn.Module, new: torch.nn.Module, *, keep: bool) -> None:
    """Give a module's hooks to another; keep: the old one has them still (nothing of it is called any more)."""
    for name in copying.HOOKS:
        table = getattr(old, name, None)
        if table:
            getattr(new, name).update(table)
            if not keep:
                table.clear()
    if new._is_full_backward_hook is None:
        new._is_full_backward_hook = old._is_full_backward_hook
