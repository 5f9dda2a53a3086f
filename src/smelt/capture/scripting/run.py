"""Script a program: run its source on what its parameters may be, and keep what it does as one graph.

    scripted = script_graph(fn, {"x": ...})
    scripted.graph      with `if`, `for` and `while`; nothing of the program has run

Invariant: no operator computes on data, and the run leaves nothing: containers, attributes and modes are afterwards
what they were.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import thread_time
from types import FunctionType, MethodType
from typing import Any

import torch

from smelt._torch.seen import staged_fakes
from smelt._torch.seen.dispatch import recording
from smelt._torch.seen.light_fake import unmarked
from smelt._torch.seen.record_modes import caller_modes
from smelt.capture.convert import CannotConvert, convert
from smelt.capture.convert.runtime import installed
from smelt.capture.recording.build import GraphBuilder
from smelt.capture.recording.detector import detecting
from smelt.capture.recording.history import begun_inside
from smelt.capture.recording.inferred import WHY as WHY_KINDS
from smelt.capture.recording.inferred import MixedKinds, kinds_on_all_ways
from smelt.capture.recording.results import Result
from smelt.capture.recording.scopes import Scope
from smelt.capture.recording.spans import Site
from smelt.capture.recording.tensor_slots import Slot
from smelt.capture.result import Captured, State, name_of, returned_objects
from smelt.capture.scripting import builtins, calls
from smelt.capture.scripting.domain import DEEP, Assume, Open
from smelt.capture.scripting.functions import Functions, is_converted
from smelt.capture.scripting.moving import HELD_VALUES, WHOLE_VALUES
from smelt.capture.scripting.parameters import Parameters, parameters_of
from smelt.capture.scripting.returning import AsReturned
from smelt.capture.scripting.runtime import OpenRuntime
from smelt.capture.scripting.values.tensors import answering_open
from smelt.capture.scripting.values.variables import outer_variable
from smelt.capture.staging import current
from smelt.capture.staging.builder import StagedBuilder
from smelt.capture.staging.fakes.patches import answering
from smelt.capture.staging.flow.assumptions import Assumptions
from smelt.capture.staging.flow.branches import check_genuine, record_raise
from smelt.capture.staging.flow.growing import Grows
from smelt.capture.staging.flow.paths import Outcome
from smelt.capture.staging.flow.stops import (
    EFFECT,
    MEMBERS,
    NO_FORM,
    OUTSIDE_OF_PYTHON,
    TAKEN_APART,
    Again,
    CannotMerge,
    CannotStage,
    letting_go,
)
from smelt.capture.staging.objects.heap import Change, Snapshot
from smelt.capture.staging.objects.outside import nothing_outside
from smelt.capture.staging.records import Structured
from smelt.capture.staging.returned import as_key, check_effect, check_result, check_structure, stand_in
from smelt.capture.staging.session import Budget, Session
from smelt.capture.staging.stage import _everything_kept
from smelt.capture.structure.entangled_memory import entangled
from smelt.capture.structure.roots import reachable
from smelt.capture.structure.signature import Signature, flatten_arguments
from smelt.diag import CaptureError, InternalError, Span, limits
from smelt.ir import Type

_MOST_RUNS, _MOST_ASKED = 64, 6
# What all runs of a program may take together: operators and ways, and seconds of the thread's own time.
_STEPS, _SECONDS = limits.SCRIPT_STEPS, limits.SCRIPT_SECONDS


@dataclass
class Learned:
    """What earlier runs taught.

    budget: what is left of that of all runs. joined: calls at whose end paths meet, found by runs for whatever
    parameters. types: of parameters that have none of their own. fixed: of which kinds the defaults are that parameters
    keep. present: optional ones that are given all the same.
    """

    budget: Budget
    joined: set[object]
    assumed: Assumptions = field(default_factory=Assumptions)
    types: dict[str, Type] = field(default_factory=dict)
    fixed: tuple[type, ...] = ()
    present: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scripted:
    """A scripted program.

    raises: what every run ends with, where no path returns; reached: after how many operators; changes_state: whether
    such a run changes what later ones begin with, so that this is said of the state as it stands.
    """

    captured: Captured
    parameters: Parameters
    raises: str = ""
    raised_at: Span | None = None
    reached: int = 0
    changes_state: bool = False


_FUNCTORCH = f"{Path(torch.__file__).parent / '_functorch'}/"
_ADDING = frozenset(("append", "appendleft", "extend", "insert", "add", "update", "setdefault"))
_FIX_OF_TYPES = "keep structure and types the same on all paths, or use smelt.compile"
_FIX = f"annotate the parameters, {_FIX_OF_TYPES}"
_FIX_OF_SOURCE = "define it in a file, a notebook cell or a REPL; smelt.trace and smelt.compile need no source"
_FIXES = {
    "it is a generator": "collect what it yields in a list and return that",
    "it is a coroutine": "script a plain function, and await around it",
    "it is an asynchronous generator": "script a plain function, and await around it",
    EFFECT: "return it, or use smelt.compile, after whose calls it is there as in eager",
    OUTSIDE_OF_PYTHON: "do it outside of the function, or use smelt.compile, which has that line run in Python",
    HELD_VALUES: "assign the changed one (d[k] = d[k] + [x]), or use smelt.compile",
    WHOLE_VALUES: "annotate, keep its number (i == 0), or use smelt.compile",
    MEMBERS: "keep them in a list, or in a tensor with torch.unique; give sizes as numbers (smelt.f32[2, 3]), or use "
    "smelt.compile",
    TAKEN_APART: "take its numbers by list(range(...)), or go over it in a for; or use smelt.compile",
    DEEP: "write it as a loop, or use smelt.compile, which goes as deep as each call does",
    NO_FORM: "write it with torch's operators, or use smelt.compile, which runs in Python what has no other form",
}
"""What to do, by why something is refused."""


def script_graph(
    fn: Callable[..., object], examples: Sequence[tuple[tuple[object, ...], Mapping[str, object]]] = ()
) -> Scripted:
    """The graph of a function or module, from its source. Raises: CaptureError."""
    function, _ = entry_of(fn)
    if not staged_fakes.available():
        raise CaptureError("this torch cannot script", why="a private name that it takes is missing", code="S0104")
    try:
        convert(function)
    except CannotConvert as refused:
        raise CaptureError(
            f"{name_of(fn)} cannot be scripted", refused.span, why=refused.reason,
            fix=_FIXES.get(refused.reason, _FIX_OF_SOURCE), code="S0109",
        ) from None  # fmt: skip
    refusals: list[CaptureError] = []
    budget = Budget(_STEPS, thread_time() + _SECONDS)
    joined: set[object] = set()
    with _everything_kept(), unmarked():
        for fixed in _FIXED:
            if refusals and not _has_defaults(function, fixed):
                continue
            try:
                return _with_what_is_asked_for(fn, examples, Learned(budget, joined, fixed=fixed))
            except CaptureError as error:
                if error.code != "S0109":
                    raise refusals[0] if refusals else error from None
                refusals.append(error)
    raise _for_typed(refusals[0]) if examples or _is_annotated(function) else refusals[0]


def _is_annotated(function: FunctionType) -> bool:
    """Whether every parameter has an annotation, or a default that tells."""
    own = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    return all(p.annotation is not p.empty or (p.default is not p.empty and p.default is not None) for p in own)


def _for_typed(error: CaptureError) -> CaptureError:
    """An error with what is left to do where all parameters have types."""
    if error.fix != _FIX:
        return error
    return CaptureError(error.what, error.where, why=error.why, fix=_FIX_OF_TYPES, code=error.code)


# Kinds of defaults that parameters keep, where a graph for any argument cannot be.
_FIXED: tuple[tuple[type, ...], ...] = ((), (bool, type(None), str), (object,))


def _has_defaults(function: Any, kinds: tuple[type, ...]) -> bool:
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return any(isinstance(value, kinds) for value in defaults)


def _with_what_is_asked_for(
    fn: object, examples: Sequence[tuple[tuple[object, ...], Mapping[str, object]]], learned: Learned
) -> Scripted:
    """The graph; where it ends in an error, with optional parameters that get it further ("give input_ids or ...")."""
    first = found = _scripted(fn, examples, learned)
    refused: dict[str, CaptureError | None] = {}
    for _ in range(_MOST_ASKED):
        asked = next((n for n in _asked_for(found) if n not in learned.present and n not in refused), None)
        if not found.raises or asked is None:
            break
        more = Learned(learned.budget, learned.joined, fixed=learned.fixed, present=(*learned.present, asked))
        try:
            further = _scripted(fn, examples, more)
        except CaptureError as error:
            refused[asked] = error
            continue
        if further.raises and further.reached <= found.reached:
            refused[asked] = None
        else:
            found, learned = further, more
    stopped = next((error for error in refused.values() if error is not None), None)
    if found.raises and stopped is not None:
        raise stopped
    return first if found.raises else found


def _asked_for(found: Scripted) -> list[str]:
    """Optional parameters that an error may be about: those that it names, those of such names, all others."""
    words = set(re.findall(r"\w+", found.raises))
    names = [n for n in found.parameters.kept if found.parameters.may_be_given(n)]
    named = [n for n in names if n in words]
    alike = [n for n in names if n not in named and any(n.endswith(f"_{word}") for word in words)]
    return list(dict.fromkeys((*named, *alike, *names)))


def _scripted(
    fn: object, examples: Sequence[tuple[tuple[object, ...], Mapping[str, object]]], learned: Learned
) -> Scripted:
    for _ in range(_MOST_RUNS):
        try:
            return _Run(fn, examples, learned).learning()
        except Assume as assume:
            if assume.name in learned.types:
                raise _error(
                    f"parameter {assume.name} is used as things of several types", "annotate it", None
                ) from None
            learned.types[assume.name] = assume.type
        except Again as again:
            learned.assumed |= again.more
            learned.joined |= again.more.joined
    raise _error("scripting came to no end", f"it was started {_MOST_RUNS} times", None)


def entry_of(fn: Callable[..., object]) -> tuple[FunctionType, object]:
    """The Python function that a program starts with, and what it is bound to. Raises: CaptureError (S0106)."""
    target: object = fn
    if isinstance(fn, torch.nn.Module):
        target = fn.forward
    owner = target.__self__ if isinstance(target, MethodType) else None
    function = target.__func__ if isinstance(target, MethodType) else target
    if not isinstance(function, FunctionType) and not isinstance(function, type):
        called = inspect.getattr_static(type(function), "__call__", None)
        if isinstance(called, FunctionType):
            return called, function
    if not isinstance(function, FunctionType):
        raise CaptureError(
            f"{fn!r} cannot be scripted", why="it is no Python function, method or module",
            fix="give a function or an nn.Module", code="S0106",
        )  # fmt: skip
    return function, owner


class _Run:
    def __init__(self, fn: Any, examples: Any, learned: Learned) -> None:
        self.fn, self.learned = fn, learned
        self.error: Exception | None = None
        self.came_up: Span | None = None
        self.gets_through = self.changes_state = False
        self.caller = caller_modes()
        function, _ = entry_of(fn)
        self.parameters: Parameters = parameters_of(
            fn, function, examples, learned.types, learned.fixed, learned.present
        )
        self.roots = reachable(fn, self.parameters.named_constants)
        self.domain = domain = Open(builtins.list_of, builtins.text_of, Functions())
        assumed = replace(learned.assumed, joined=frozenset(learned.joined))
        self.session = Session(domain, lambda code: False, self.roots, Scope(self.roots.modules), assumed)
        self.session.stages_growth, self.session.budget = True, learned.budget

    def learning(self) -> Scripted:
        """As `run`, which teaches something however it ends."""
        try:
            return self.run()
        finally:
            self.learned.assumed = self.session.assumed
            self.learned.joined |= self.session.assumed.joined

    def run(self) -> Scripted:
        session, domain = self.session, self.domain
        session.heap.roots = [self.fn, *self.parameters.constants]
        before = current.enter(session)
        snapshot = Snapshot(session.heap.roots, hidden=True)
        session.heap.snapshots.append(snapshot)
        domain.iterators = snapshot.iterators
        try:
            with contextlib.ExitStack() as stack:
                recorder = session.recorder
                stack.enter_context(detecting(recorder, "entry"))
                stack.enter_context(answering())
                stack.enter_context(answering_open())
                runtime = OpenRuntime(domain)
                stack.enter_context(installed(runtime))
                self.parameters.declare(domain)
                stack.enter_context(recording(recorder.record, "entry"))
                stack.enter_context(nothing_outside())
                stack.enter_context(letting_go())
                records, outcome = session.paths.trace(lambda: self._program(runtime, snapshot))
            recorder.records = records
            if session.stopped is not None:
                raise session.stopped
            return self._scripted(outcome, snapshot)
        except CannotStage as stop:
            raise self._failure(stop) from domain.internal
        except Grows as grows:
            kind = type(grows.grown).__name__
            raise _error(
                f"how a {kind} changes is not known until run time", f"it is stored where no traced {kind} can stand",
                grows.site,
            ) from None  # fmt: skip
        finally:
            current.enter(before)
            snapshot.restore()

    def _program(self, runtime: OpenRuntime, snapshot: Snapshot) -> Outcome:
        session, domain = self.session, self.domain
        session.base_frame = sys._getframe()
        try:
            args, kwargs = self.parameters.make(domain)
            if session.paths.first is None:
                session.paths.first = len(session.paths.regions[-1].taken)
            # What it sets of context variables is set in a context of its own.
            result = copy_context().run(calls.call, domain, runtime, 0, self.fn, args, kwargs)
            self.gets_through = True
            changes = snapshot.changes()
            return Outcome(AsReturned(domain, changes.values()).of(result), changes)
        except Exception as error:
            try:
                check_genuine(session, error)
            except CannotStage as stop:
                # The program's frames have ended: where it was, the error tells.
                self.came_up = _line_of(error) if stop.__cause__ is error else None
                raise
            self.changes_state = self.changes_state or bool(snapshot.changes())
            self._check_types(error)
            self.error = error
            record_raise(session, error)
            return Outcome(is_raised=True)
        finally:
            session.base_frame = None
            snapshot.restore()

    def _check_types(self, error: Exception) -> None:
        """Raises: CaptureError where every run ends with this error, for the types alone."""
        # The way on which every argument is given, and of its last type, is explored last.
        if self.gets_through or len(self.session.paths.regions) > 1 or any(self.session.paths.regions[-1].taken):
            return
        if self.changes_state:
            return  # a later run may take another way
        found = next((r for r in self.domain.refusals if r.error is error), None)
        if found is None:
            return
        where = [f"{type_} comes from {span}" for type_, span in found.operands if span is not None]
        raise CaptureError(
            f"{found.name} refuses {', '.join(t for t, _ in found.operands)}: {error}",
            found.site.span if found.site is not None else None,
            why="; ".join(where) or "no run can avoid it",
            fix="correct the types; no run of this program can get past this line",
            code="S0110",
        )

    def _scripted(self, outcome: Outcome, snapshot: Snapshot) -> Scripted:
        session, recorder = self.session, self.session.recorder
        arguments = flatten_arguments(*self.parameters.stand_ins())
        raises, span = "", None
        result = outcome.value
        if outcome.is_raised:
            result = None
            error = self.error
            raises = "" if error is None else f"{type(error).__name__}: {_words_of(error)}"
            span = _line_of(error)
        for change in outcome.writes.values():
            self._check_effect(change)
        stand_ins: dict[int, Slot] = {}
        check = check_result(self.roots, snapshot.reached)
        flattener = Result(check, {}, snapshot.reached, lambda value: stand_in(value, stand_ins, session))
        flattener.key = as_key
        tree = flattener.result(result)
        check_structure(tree)
        slots = [stand_ins.get(id(t)) or recorder.slot_of(t) for t in flattener.tensors]
        for slot in slots:
            if slot.kind == "unknown":
                recorder.unknown(slot)
        odd = begun_inside(flattener.tensors, recorder, self.caller)
        if odd is not None:
            recorder.fail(odd.what, odd.why, odd.fix, "S0104", odd.site)
        if recorder.error is not None:
            raise recorder.error
        signature = Signature(arguments.args, arguments.kwargs, tree, arguments.paths)
        # Without regions, the graph is laid out as that of a recorded run.
        is_plain = not session.paths.aliases and not any(isinstance(r, Structured) for r in recorder.records)
        builder = GraphBuilder if is_plain else StagedBuilder
        graph = builder(name_of(self.fn), recorder, self.caller).build(self.parameters.names, slots)
        try:
            kinds = kinds_on_all_ways(graph, flattener.tensors, self.caller)
        except MixedKinds as mixed:
            raise CannotStage(str(mixed), WHY_KINDS, None) from None
        state = State.of(recorder.states)
        captured = Captured(
            graph.name, None, graph, signature, state, None, (), (), "entry", self.caller, self.roots, {},
            entangled(graph, arguments.tensors, state.lookup), returned_objects(flattener.tensors, (), state),
            kinds=kinds,
            own_backward=recorder.own_backward,
        )  # fmt: skip
        reached = sum(1 for _ in graph.walk())
        return Scripted(captured, self.parameters, raises, span, reached, self.changes_state)

    def _check_effect(self, change: Change) -> None:
        """Raises: CaptureError where it keeps what depends on data, at the line that writes it."""
        try:
            check_effect(change, self.roots)
        except CannotStage as stop:
            functions = [entry_of(self.fn)[0], *(known[0] for known in self.domain.functions.copies.values())]
            what, line = outer_variable(functions, change) or (stop.what, _line_that_writes(self.fn, change.key))
            raise replace(_error(what, stop.why, None), where=line or self.parameters.span) from None

    def _failure(self, stop: CannotStage) -> Exception:
        session, domain = self.session, self.domain
        transforms = _transforms_in(stop)
        if transforms and domain.internal is None:
            # What came up is of torch's own code, and says nothing to who called it.
            return self._placed(_of_transform(transforms, stop))
        if session.recorder.error is not None:
            return self._placed(session.recorder.error)
        if domain.internal is not None:
            site = stop.site
            return InternalError(stop.what, site.span if site else None, why=stop.why, fix="report it with the program")
        if isinstance(stop, CannotMerge) and stop.site is not None:
            where = stop.site.span
            arms = domain.arms.get((where.file, where.line))
            if arms is not None:
                first, second = (f"{where.file}:{line}" for line in arms)
                return _error(stop.what, f"one path comes by {first}, the other by {second}; {stop.why}", stop.site)
        return self._placed(_error(stop.what, stop.why, stop.site))

    def _placed(self, error: Any) -> Any:
        """The error at a line of the program."""
        if self.came_up is not None:
            return replace(error, where=self.came_up)
        # What is found when the run has ended has no place of its own, or its caller's: the program's first line.
        is_placed = error.where is not None and not _runs_now(error.where)
        return error if is_placed else replace(error, where=self.parameters.span)


def _runs_now(where: Span) -> bool:
    """Whether a place is of a function that runs still: whoever asked for the script."""
    frame = sys._getframe(1)
    while frame is not None:
        if (frame.f_code.co_filename, frame.f_code.co_qualname) == (where.file, where.function):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _transforms_in(stop: CannotStage) -> list[str]:
    """The transforms of `torch.func` that run where a run stops, the outermost first."""
    found: list[str] = []
    for frame, _ in traceback.walk_tb(stop.__traceback__):
        code = frame.f_code
        name = code.co_qualname.partition(".")[0]
        if code.co_filename.startswith(_FUNCTORCH) and hasattr(torch.func, name) and name not in found:
            found.append(name)
    return found


def _of_transform(names: Sequence[str], stop: CannotStage) -> CaptureError:
    what = f"torch.func.{names[0]} runs a function as scripting does not follow it"
    if names == ["vmap"]:
        why = f"it reads the sizes of its arguments, which are not known until run time ({stop.what})"
        fix = "give the parameters their sizes (x: smelt.f32[6, 3]), or use smelt.compile, which records a run"
    else:
        why = f"{names[-1]} takes gradients of its arguments, and scripting passes it proxies ({stop.what})"
        fix = "use smelt.compile or smelt.trace, which record a run with real tensors"
    return CaptureError(what, stop.site.span if stop.site is not None else None, why=why, fix=fix, code="S0109")


def _words_of(error: Exception) -> str:
    """What an error says, where its text does not depend on data."""
    try:
        return str(error)
    except CannotStage:
        return "its text is not known until run time"


def _line_of(error: Exception | None) -> Span | None:
    """The user's line that an error came up at."""
    found, trace = None, None if error is None else error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_converted(code.co_filename) and trace.tb_lineno:
            found = Span(code.co_filename, trace.tb_lineno, code.co_qualname)
        trace = trace.tb_next
    return found


def _line_that_writes(fn: Any, key: object) -> Span | None:
    """The first line of the program's own function that assigns to an attribute or item of this name; else the one that
    adds to something, where there is no other that does.
    """
    function, _ = entry_of(fn)
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return None
    assigning: list[ast.expr] = []
    adding: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            if node.attr == key if isinstance(node, ast.Attribute) else _is(node.slice, key):
                assigning.append(node)
        elif isinstance(node, ast.Call) and _adds(node):
            adding.append(node)
    if not assigning and len(adding) != 1:
        return None
    code = function.__code__
    return Span(code.co_filename, first + (assigning or adding)[0].lineno - 1, code.co_qualname)


def _adds(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in _ADDING


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is type(value) and bool(node.value == value)


def _error(what: str, why: str, site: Site | None) -> CaptureError:
    return CaptureError(
        what,
        site.span if site is not None else None,
        why=why,
        fix=_FIXES.get(why, _FIX),
        code="S0109",
    )
