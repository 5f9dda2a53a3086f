"""What a native run read from outside itself, what it changed there, and what it did that a replay would not.

    with record_reads({"self": model}, args, kwargs) as log:
        result = model(*args, **kwargs)
    log.reads       -> facts that must still hold for the run to go the same way
    log.mutations   -> attributes, containers, globals, cells that the run left changed
    log.heap        -> the objects of its arguments, and what it changed in them that can be put back at each call
    log.effects     -> clocks, random numbers, files, ... with the user's file and line

Invariant: only the calling thread is recorded; every patch is undone when the block ends, however it ends. Discovery is
lazy: a class is watched from the moment one of its instances is first reached, which is before its first read. Objects
made during the run are not watched: what they hold follows from the other reads.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FrameType
from typing import Any

from torch.utils.hooks import RemovableHandle

from smelt._torch.state import torch_state
from smelt.capture.reads.filled_caches import KEEPS_PROPERTY
from smelt.capture.reads.reads_arguments import ArgumentHeap
from smelt.capture.reads.reads_effects import (
    DRAWS,
    ENVIRONMENT,
    HOOKS_CODE,
    IMPORT_CODE,
    LEVEL_CODES,
    PRINTS,
    SHOWS_WARNING,
    STATIC_CODE,
    SUSPECT_NAMES,
    WARNS,
    Callers,
    asked_setting,
    builtin_effect,
    code_effect,
    file_kind,
    is_by_recorder,
    is_registered,
    note_callers,
    shows_warning,
    user_site,
)
from smelt.capture.reads.reads_facts import Read, Site
from smelt.capture.reads.reads_library import (
    enter_context_variable,
    enter_environment,
    enter_import,
    enter_logger,
    enter_static,
)
from smelt.capture.reads.reads_outer import State
from smelt.capture.reads.reads_roots import Roots
from smelt.capture.staging.objects.classes import asks_classes
from smelt.capture.staging.objects.outside import refuse_outside
from smelt.capture.structure.state import Place
from smelt.diag import InternalError, Span
from smelt.diag.events import RECORDING, Returns, profiled
from smelt.diag.records import record
from smelt.ops.python.python_draws import draw_name, python_states

_PYTHONS = "random"
_WORD_NBYTES = 4  # of the Mersenne twister


@record
class Effect:
    """Something the run did outside the graph, e.g. `what` = "prints"; `name` is the function it called.

    generator: "random" or "numpy.random" where it drew numbers from a global generator, as a graph can.
    """

    what: str
    name: str
    span: Span | None
    generator: str = ""


@record
class Mutation:
    """A place outside the program that held `before` and, after the run, holds `after`."""

    name: str
    before: Any
    after: Any
    span: Span | None


@dataclass(slots=True)
class ReadLog:
    """The findings of one recorded run; empty until the `record_reads` block ends.

    heap: the objects of the arguments, of which some may be known by structure alone; put_back: what the run changed in
    them and a call can change again: none of `mutations` then. state: the places of all `mutations`, where they could
    be state of the program. asked: by line, what the program itself asked of torch's settings. warned: whether it gave
    warnings. has_done_nothing: of a run that raised, whether it left nothing of Python's changed.
    warnings. asks_memory: whether it has code that asks tensors whose memory they lie in, and where.
    """

    reads: list[Read] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)
    drawers: list[CodeType] = field(default_factory=list)  # functions that drew from a global generator
    class_askers: list[CodeType] = field(default_factory=list)  # those that may have asked what class a thing is of
    rangers: list[CodeType] = field(default_factory=list)  # those that name `range`: they may have a loop over one
    callers: Callers = field(default_factory=dict)  # who called each function of the user's first
    heap: ArgumentHeap | None = None
    put_back: list[Mutation] = field(default_factory=list)
    state: State | None = None
    asked: dict[Span | None, str] = field(default_factory=dict)
    warned: bool = False
    has_done_nothing: bool = False
    asks_memory: bool = False

    @property
    def is_replayable(self) -> bool:
        """Whether a replay of the graph alone does all that the run did."""
        return not self.effects and not self.mutations

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """The arguments' objects as they were before the run, for the time of the block."""
        with self.heap.as_before() if self.heap is not None else contextlib.nullcontext():
            yield

    def keep_mutations(self) -> None:
        """What the run changed in its arguments is not put back after all."""
        self.mutations.extend(self.put_back)
        self.put_back.clear()

    @property
    def where(self) -> Span | None:
        """The line of that effect or mutation, where there is one."""
        found: list[Effect | Mutation] = [*self.effects, *self.mutations]
        return found[0].span if found else None

    def why_not(self) -> str:
        """A sentence on the first effect or mutation; empty if there is none."""
        return next(iter(self.reasons()), "")

    def _is_told_by_attribute(self, mutation: Mutation) -> bool:
        """Whether an attribute that is changed tells of the change of the dictionary that holds it."""
        owner, _, name = mutation.name.rpartition(".")
        of_owner = (m.name.rpartition(".") for m in self.mutations)
        return name == "__dict__" and any(o == owner and n != name for o, _, n in of_owner)

    def reasons(self) -> dict[str, Span | None]:
        """A sentence on each effect and each mutation, with its line."""
        found: list[tuple[str, Span | None]] = [(f"it {e.what} ({e.name})", e.span) for e in self.effects]
        found += [(f"it changes {m.name}", m.span) for m in self.mutations if not self._is_told_by_attribute(m)]
        return {what + (f" at {span}" if span else ""): span for what, span in found}


class RecorderBusy(InternalError):
    """Another thread, or an enclosing call, is recording; only one run can be recorded at a time."""


# What Python asks of a tensor that a piece of a program would have made otherwise than the program does.
ASKING_MEMORY = frozenset(("_base", "_version", "_is_view", "storage_offset", "untyped_storage", "is_set_to"))


class _Recorder:
    """The profile hook and what it found."""

    def __init__(self, roots: Roots, boundary: FrameType | None) -> None:
        self.roots = roots
        self.boundary = boundary  # the frame whose block is recorded
        self.streams = (sys.stdout, sys.stderr)
        self.filters = warnings.filters
        self.codes: dict[int, CodeType] = {}
        self.effects: dict[tuple[str, object], Effect] = {}
        self.drawers: dict[CodeType, None] = {}
        self.class_askers: list[CodeType] = []
        self.rangers: list[CodeType] = []
        self.callers: Callers = {}
        self.asked: dict[Span | None, str] = {}
        self.warned = False
        self.returns = Returns()
        self.asks_memory = False
        self.hooks: list[tuple[RemovableHandle, Effect]] = []
        self.collector = {getattr(callback, "__code__", None) for callback in gc.callbacks} - {None}

    def profile(self, frame: FrameType, event: str, arg: Any) -> bool:
        """Called for each call in this thread; almost all leave at the first test. Whether this function, or builtin,
        is of no interest any more.
        """
        if event == "call":
            code = frame.f_code
            kept_by = self.roots.fills.cache_of(code)
            if kept_by is not None:
                self.returns.expect(frame, partial(self.roots.reach_result, *kept_by))
            gives = self.roots.annotations.expect(self.roots, code, frame, self.returns)
            if id(code) not in self.codes:
                self._on_code(code, frame)
            elif self.roots.counts_calls(code):
                self.roots.enter_again(frame)
            is_seen = id(code) in self.codes and not self.roots.counts_calls(code)
            return kept_by is None and not gives and is_seen
        if event != "c_call":
            return False
        if arg.__name__ not in SUSPECT_NAMES or type(arg.__self__) is dict:
            return True
        self._on_builtin(arg, frame)
        return False

    def _on_builtin(self, arg: Any, frame: FrameType) -> None:
        if type(arg.__self__) is ContextVar:
            enter_context_variable(self.roots, arg.__self__, frame)
            return
        if isinstance(arg.__self__, BaseException):
            self.roots.enter_note(arg.__self__, frame)
            return
        setting = asked_setting(arg, frame)
        if setting is not None:
            text, user = setting
            self.asked.setdefault(Site(user.f_code, user.f_lasti).span, text)
            return
        what = builtin_effect(arg)
        if what == WARNS:
            if is_by_recorder(frame) or self._is_aside(frame):
                return
            self.warned = True
            if file_kind(frame.f_code.co_filename) != "user" or self._is_unheard():
                return  # no effect: where the graph does not warn, its answers are right all the same
        if what == PRINTS and (sys.stdout, sys.stderr) != self.streams:
            what = "replaces the standard streams and prints"
        if what is not None and shows_warning(frame):
            what = SHOWS_WARNING
        if what is not None:
            self._on_effect(what, arg.__name__, frame, _PYTHONS if draw_name(arg) is not None else "")

    def _on_code(self, code: CodeType, frame: FrameType) -> None:
        if code is KEEPS_PROPERTY:
            place = user_site(frame)
            self.roots.fills.enter_property(frame, None if place is None else Site(*place))
            return
        if code is IMPORT_CODE:
            enter_import(self.roots, frame)
            return
        if code is HOOKS_CODE:
            if frame.f_back is not None and is_by_recorder(frame.f_back.f_back):
                return  # of ours, by which a rank's optimizer is saved
            place = user_site(frame)
            effect = Effect("registers a hook", code.co_qualname, None if place is None else Site(*place).span)
            self.hooks.append((frame.f_locals["self"], effect))
            return
        if code is STATIC_CODE:
            enter_static(self.roots, frame)
            return
        if code in LEVEL_CODES:
            enter_logger(self.roots, frame)
            return
        kind = file_kind(code.co_filename)
        if kind == "user":
            # Constructors that dataclasses and named tuples generate have no file of their own.
            is_reached = id(code) in self.roots.functions  # as the program itself is, made by `exec`
            generated_for_us = code.co_filename == "<string>" and not is_reached and is_by_recorder(frame.f_back)
            if not generated_for_us and not self._is_aside(frame):
                self.codes[id(code)] = code
                if asks_classes(frame):
                    self.class_askers.append(code)
                if "range" in code.co_names:
                    self.rangers.append(code)
                self.asks_memory = self.asks_memory or not ASKING_MEMORY.isdisjoint(code.co_names)
                note_callers(frame, self.boundary, self.callers)
                self.roots.enter_code(code, frame)
            return
        if kind in ("torch", "stdlib"):
            self.roots.enter_library_code(code, frame.f_globals)
        what = code_effect(code) if kind in ("stdlib", "torch") else None
        if what is not None and self._is_aside(frame.f_back):
            return
        if what == ENVIRONMENT and code.co_name == "__getitem__" and enter_environment(self.roots, frame):
            return
        if what is None:
            self.codes[id(code)] = code
        else:
            self._on_effect(what, code.co_qualname, frame.f_back, _drawn_from(frame) if what == DRAWS else "")

    def _is_unheard(self) -> bool:
        """Whether the program itself asked for no warnings of any kind here (`warnings.catch_warnings`)."""
        ignored = ("ignore", None, Warning, None, 0)
        return warnings.filters is not self.filters and tuple(warnings.filters[:1]) == (ignored,)

    def _is_aside(self, frame: FrameType | None) -> bool:
        """Whether this runs because the program imports something for the first time, or because the garbage
        collector happened to start and tells its callbacks: no part of what the program computes."""
        while frame is not None and frame is not self.boundary:
            if frame.f_code in self.collector or file_kind(frame.f_code.co_filename) == "import":
                return True
            frame = frame.f_back
        return False

    def _on_effect(self, what: str, name: str, frame: FrameType | None, generator: str = "") -> None:
        refuse_outside(what, name, frame)
        place = None if is_by_recorder(frame) or self._is_aside(frame) else user_site(frame, what)
        if place is not None and (what, place) not in self.effects:
            self.effects[what, place] = Effect(what, name, Site(*place).span, generator)
            if generator:
                self.drawers[place[0]] = None


@contextmanager
def record_reads(
    roots: Mapping[str, object],
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    heap: ArgumentHeap | None = None,
    state: Sequence[Place] = (),
) -> Iterator[ReadLog]:
    """Record what the block reads, starting from `roots` (by readable name) and the call's arguments.

    heap: the objects of these arguments, where what the block changes in them is to be put back. state: places whose
    contents are among the arguments.

    The log is filled when the block ends normally; when it raises, the log stays empty but for `has_done_nothing`, and
    the error passes through.
    Raises: RecorderBusy if another recording is under way in this process.
    """
    if not RECORDING.acquire(blocking=False):
        raise RecorderBusy(
            "another run is being recorded",
            why="recording watches classes of the whole process",
            fix="call again when the other call has returned",
        )
    log = ReadLog()
    with ExitStack() as stack:
        stack.callback(RECORDING.release)
        found = Roots(state)
        stack.callback(found.patches.undo)
        recorder = _Recorder(found, _caller(sys._getframe()))
        for name, value in roots.items():
            found.add_root(value, name)
        found.add_arguments(args, dict(kwargs or {}), heap)
        settings, draws = torch_state(), python_states()
        try:
            with profiled(recorder.profile):
                yield log
        except Exception:
            # The error is the program's, whatever comes of the look at what it did.
            with contextlib.suppress(Exception):
                done = ReadLog()
                _end(done, recorder, found, settings, draws)
                # What it changed of its state is no mutation, and as little undone.
                changed = done.heap is not None and bool(done.heap.outer or done.heap.is_live)
                log.has_done_nothing = done.is_replayable and not (done.put_back or changed or state)
            raise
        _end(log, recorder, found, settings, draws)


def _end(log: ReadLog, recorder: _Recorder, found: Roots, settings: object, draws: tuple[object, object]) -> None:
    """Fill the log after a run; settings, draws: torch's settings and the generators as they were before it."""
    found.follow_late()
    found.patches.undo()
    _fill(log, recorder, found)
    after = torch_state()
    if after != settings:
        log.mutations.append(Mutation("the thread's torch settings", settings, after, None))
    log.effects.extend(_unseen_draws(log, found, *draws))


def _unseen_draws(log: ReadLog, found: Roots, pythons: object, numpys: object) -> Iterator[Effect]:
    """Draws from the global generators that raised no profile event; what these stood at before the run."""
    after, now = python_states()
    if after != pythons and not any(effect.what == DRAWS for effect in log.effects):
        yield Effect(DRAWS, _PYTHONS, None)
    if now == numpys or (numpys is None and _is_unused(now)):
        return
    places: dict[tuple[str, Span | None], None] = {(label, site.span): None for label, site in found.numpys_draws}
    for label, span in places or {("numpy.random", None): None}:
        yield Effect(DRAWS, label, span, "numpy.random")


def _drawn_from(frame: FrameType) -> str:
    """Whether a function of `random` that runs draws from the global generator as a graph can: its module, or ""."""
    owner = frame.f_locals.get("self")
    return "" if draw_name(getattr(owner, frame.f_code.co_name, None)) is None else _PYTHONS


def _is_unused(state: Any) -> bool:
    """Whether NumPy's global generator is as importing its module leaves it: seeded by the system, nothing drawn.

    NumPy then sets the position to the last word but one, which no number of draws after it comes back to before a
    whole round. So it is when something imported the module during the run.
    """
    _, keys, position, has_gauss, _ = state
    return bool(position == len(keys) // _WORD_NBYTES - 1 and not has_gauss)


def _caller(frame: FrameType | None) -> FrameType | None:
    """The frame of the `with` statement, beyond this module and contextlib."""
    while frame is not None and frame.f_code.co_filename in (__file__, contextlib.__file__):
        frame = frame.f_back
    return frame


def _fill(log: ReadLog, recorder: _Recorder, found: Roots) -> None:
    facts, changes, put_back = found.finish()
    log.heap = found.heap
    log.reads.extend(facts)
    log.state = found.new_state
    log.callers.update(recorder.callers)
    log.class_askers.extend(recorder.class_askers)
    log.rangers.extend(recorder.rangers)
    log.asked.update(recorder.asked)
    log.warned = recorder.warned
    log.asks_memory = recorder.asks_memory
    log.drawers.extend({**recorder.drawers, **{site.code: None for _, site in found.numpys_draws}})
    log.effects.extend(recorder.effects.values())
    log.effects.extend(effect for handle, effect in recorder.hooks if is_registered(handle))
    log.effects.extend(Effect(what, name, site.span if site else None) for what, name, site in found.refusals)
    for kept, of in ((log.mutations, changes), (log.put_back, put_back)):
        kept.extend(Mutation(c.name, c.before, c.after, c.site.span if c.site else None) for c in of)
    found.let_go()
