"""The forward of a module of which graph steps were taken: captures the module's own forward, takes the steps on it.

Invariant: an answer is that of the steps on the very call: what was captured for another call serves it only where its
guards hold. Copies and pickles go with their module and start without captures.
"""

from __future__ import annotations

import inspect
import threading
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt._torch.seen.staged_fakes import is_fake
from smelt._torch.state import foreign_context
from smelt.capture import is_capturing
from smelt.capture.structure.signature import Signature, tensors_of
from smelt.diag import ScheduleError, SmeltWarning, limits, user_level
from smelt.diag.records import distinct_record
from smelt.ops.convert import type_of
from smelt.runtime.guarding.guards import GuardSet
from smelt.scheduling.comparing.compare_runs import in_region
from smelt.scheduling.graphs.editing import GraphStep, edit
from smelt.scheduling.graphs.running import Forward, function_of
from smelt.scheduling.graphs.scope_capture import RanAsIs, ScopeCapture, capture_scope, capture_within
from smelt.scheduling.modules.islands import in_islands, unmarked
from smelt.scheduling.modules.module_steps_forward import surroundings

ENTRY_LIMIT = limits.SCHEDULED_ENTRIES
# Captures, after which calls that none of them serves are left to the original, if that is the same.
STORM_LIMIT = limits.SCHEDULED_CAPTURES


@distinct_record
class _Entry:
    """One captured call with the steps taken, ready to run; of the captured run itself nothing is kept.

    sizes: of the call's tensors, which tell most other calls apart before guards are asked.
    """

    signature: Signature
    guards: GuardSet | None
    function: Forward
    state: Mapping[str, torch.Tensor]
    calls: Mapping[str, Callable[..., Any]]
    flags: tuple[bool, ...]
    facts: GuardSet | None
    sizes: tuple[torch.Size, ...]

    def holds(
        self, flags: tuple[bool, ...], sizes: tuple[torch.Size, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bool:
        """Whether this answers another call, too: of the program, and of what the steps' functions read."""
        if self.guards is None or sizes != self.sizes or flags != self.flags:
            return False
        if self.guards.check(args, kwargs) is not None:
            return False
        return self.facts is None or self.facts.check((), {}) is None

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        outputs = self.function(self.signature.flatten(args, kwargs), self.state, self.calls)
        return self.signature.rebuild(outputs, args, kwargs)


def _sizes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[torch.Size, ...]:
    return tuple(value.shape for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))


class _Held:
    """What was captured. recent: the last call within a recorded program, by the types of its tensors."""

    def __init__(self) -> None:
        self.entries: tuple[_Entry, ...] = ()
        self.recent: tuple[Any, _Entry] | None = None
        self.left_alone = False
        self.captures = 0
        self.lock = threading.Lock()

    def add(self, entry: _Entry) -> None:
        """Keep a capture for later calls, in the place of the oldest where there are too many."""
        with self.lock:
            self.entries = (entry, *self.entries[: ENTRY_LIMIT - 1])


class ScheduledForward:
    """Stands as `module.forward` (an attribute of the instance).

    path: of the module in the model. steps: in order. inner: what stood there before, where the instance had a forward
    of its own.
    """

    # What a program can reach is looked through at each capture: of this object, what steps brought along, but not the
    # graphs of patterns and of captures, which are large, and whose guards lead to all of the process.
    smelt_aside = frozenset(("steps", "_held"))

    def __init__(
        self, module: torch.nn.Module, path: str, steps: tuple[GraphStep, ...], inner: Callable[..., Any] | None = None
    ) -> None:
        self._start(module, path, steps, inner)

    def _start(
        self, module: torch.nn.Module, path: str, steps: tuple[GraphStep, ...], inner: Callable[..., Any] | None
    ) -> None:
        self.module, self.path, self.inner = module, path, inner
        self.brought = tuple(step.arguments for step in steps)
        self.steps, self._held = steps, _Held()

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.original

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.original)

    @property
    def original(self) -> Callable[..., Any]:
        """The module's own forward."""
        return self.inner if self.inner is not None else types.MethodType(type(self.module).forward, self.module)

    def with_step(self, step: GraphStep) -> ScheduledForward:
        """The same with one more step."""
        return ScheduledForward(self.module, self.path, (*self.steps, step), self.inner)

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, "path": self.path, "steps": self.steps, "inner": self.inner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._start(**state)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if is_capturing():
            return self._within(args, kwargs)
        flags, sizes = self._flags(), _sizes(args, kwargs)
        for entry in self._held.entries:
            if entry.holds(flags, sizes, args, kwargs):
                return entry.run(args, kwargs)
        foreign = None if in_region.get() else foreign_context()
        if foreign is not None:
            return self._unfit(ScheduleError(f"it is {foreign}", code="S0613"), args, kwargs)
        held = self._held
        held.captures += 1
        if held.captures > STORM_LIMIT and all(step.keeps_meaning for step in self.steps):
            many = ScheduleError(
                f"{STORM_LIMIT} different calls were captured already", code="S0613",
                fix="call it with fewer sizes (pad), or compile the whole: s.compile()",
            )  # fmt: skip
            return self._unfit(many, args, kwargs)
        try:
            entry = self._captured(args, kwargs, sizes)
        except RanAsIs as ran:
            self._check_unfit(ran)
            return ran.result
        except ScheduleError as error:
            return self._unfit(error, args, kwargs)
        if entry.guards is not None:
            self._held.add(entry)
        return entry.run(args, kwargs)

    def _within(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call while a program around it is recorded: the edited code becomes part of that program."""
        tensors = tensors_of((args, kwargs))
        key = tuple(map(type_of, tensors))
        if any(map(is_fake, tensors)):
            # The second run of a program whose first one was recorded right before.
            recent = self._held.recent
            if recent is None or recent[0] != key:
                return self._unfit(
                    ScheduleError("it is another call than the recorded one", code="S0613"), args, kwargs
                )
            return recent[1].run(args, kwargs)
        try:
            entry = capture_within(self.module, self.original, args, kwargs, self._entry)
        except ScheduleError as error:
            return self._unfit(error, args, kwargs)
        self._held.recent = (key, entry)
        return entry.run(args, kwargs)

    def _captured(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], sizes: tuple[torch.Size, ...]) -> _Entry:
        """The steps on this call. Raises: RanAsIs and ScheduleError as `capture_scope` and `edit`."""
        try:
            return self._entry(capture_scope(self.module, self.original, args, kwargs), sizes)
        except ScheduleError as error:
            if isinstance(error, RanAsIs) or not in_islands():
                raise
        # What a pattern looks for, or what is put there, may lie around a cast that is in no code of the user's.
        with unmarked():
            return self._entry(capture_scope(self.module, self.original, args, kwargs), sizes)

    def _entry(self, capture: ScopeCapture, sizes: tuple[torch.Size, ...] = ()) -> _Entry:
        edited = edit(capture.graph, self.module, self.steps, self.path, tensors=capture.state)
        state = capture.state | edited.state
        facts = GuardSet(edited.reads, (), {}, state=list(edited.state.values())) if edited.reads else None
        signature = capture.captured.signature
        assert signature is not None
        function = function_of(edited.graph)
        return _Entry(signature, capture.guards, function, state, edited.calls, self._flags(), facts, sizes)

    def _flags(self) -> tuple[bool, ...]:
        """Of modules that steps brought along nobody has recorded a read."""
        return tuple(module.training for module in self.module.modules())

    def _unfit(self, error: ScheduleError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The original's answer, where it may stand."""
        self._check_unfit(error)
        return self.original(*args, **kwargs)

    def _check_unfit(self, error: ScheduleError) -> None:
        """Warn where no step changes what is computed, and the original may stand.

        Raises: ScheduleError (S0613) elsewhere.
        """
        name = type(self.module).__name__
        changing = [step for step in self.steps if not step.keeps_meaning]
        if changing:
            raise ScheduleError(
                f"the steps of {name} do not fit this call: {error.what}", error.where or changing[0].where,
                why=error.why or f"{changing[0]} is part of what it computes",
                fix=error.fix or "call it as the schedule was made", code="S0613",
            ) from error  # fmt: skip
        if not self._held.left_alone:
            self._held.left_alone = True
            way = f" ({error.fix})" if error.fix else ""
            place = f" at {error.where}" if error.where is not None else ""
            text = f"{name} falls back to eager, without {self.steps[0]}: {error.what}{place}{way}"
            warnings.warn(text, SmeltWarning, stacklevel=user_level())


def scheduled_of(module: torch.nn.Module) -> ScheduledForward | None:
    """The scheduled forward of a module, if it has one."""
    around = surroundings(module)
    found = module.__dict__.get("forward") if around is None else around.inner
    return found if isinstance(found, ScheduledForward) else None


def schedule_forward(module: torch.nn.Module, step: GraphStep, path: str) -> None:
    """Give a module a scheduled forward with this step after those that it has."""
    around, now = surroundings(module), scheduled_of(module)
    if now is None:
        now = ScheduledForward(module, path, (), module.__dict__.get("forward") if around is None else around.inner)
    if around is None:
        module.__dict__["forward"] = now.with_step(step)
    else:
        around.inner = now.with_step(step)
