"""Run a program once, natively, and keep what it did as a graph.

    captured = capture(model, (x,), {"mask": m})
    captured.result        the program's own answer
    captured.graph         whole operators as they were called, in-place ones and views included
    captured.error         why the graph must not be used, or None

Invariant: the program runs exactly once and as if nobody watched: its result, its exceptions, its effects on buffers,
random state and modes are those of an eager call, whether or not the capture succeeds.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt._torch.seen.dispatch import Level, Record, is_recording, levels, recording
from smelt._torch.seen.record_modes import caller_modes
from smelt._torch.seen.record_patches import past_overrides
from smelt.capture.dynamic.spec import Spec
from smelt.capture.reads.reads_arguments import ArgumentHeap
from smelt.capture.reads.saved_memory import keeper
from smelt.capture.recording.build import GraphBuilder
from smelt.capture.recording.detector import detecting
from smelt.capture.recording.gradients import begins_bare, check_gradients_left
from smelt.capture.recording.history import Histories, begun_inside, check_classes
from smelt.capture.recording.inferred import kinds_of
from smelt.capture.recording.noting import call_notes
from smelt.capture.recording.recorder import Recorder
from smelt.capture.recording.results import OWN, Result, holds_its_own
from smelt.capture.recording.scopes import Scope, tracking
from smelt.capture.recording.tensor_slots import Slot
from smelt.capture.recording.written import Written
from smelt.capture.recording.zeros import check_results
from smelt.capture.result import Captured, State, input_names, name_of, returned_objects
from smelt.capture.staging.stage import stage
from smelt.capture.structure.entangled_memory import entangled
from smelt.capture.structure.puts import After, NotPut, Puts
from smelt.capture.structure.roots import Roots, reachable, without_gradients
from smelt.capture.structure.signature import Arguments, Signature, flatten_arguments
from smelt.capture.structure.state import Place
from smelt.capture.structure.tree import Flattener, Tree, hidden_tensors, is_inert, is_iterator, is_lazy
from smelt.diag import CaptureError, InternalError
from smelt.diag.events import put_aside


def capture(
    fn: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    name: str | None = None,
    level: Level | None = None,
    target: Callable[..., object] | None = None,
    keep_written: bool = False,
    specialize: bool = False,
    reruns: bool = False,
    dynamic: Spec | None = None,
    changed: Callable[[], ArgumentHeap | None] = lambda: None,
    raised: Callable[[bool], None] = lambda wrote: None,
    state: Sequence[Place] = (),
) -> Captured:
    """Call `fn(*args, **kwargs)` once and record it. Whatever the program raises is raised unchanged.

    target: the program that `fn` stands for, where `fn` wraps it; names and state are the target's.
    specialize: let Python read what depends on data; where it can be compared, the graph expects it (`expect`) where
        it was read, and holds for runs in which nothing else is found there.
    reruns: whoever calls the graph runs the program natively where it raises, for that may be caught.
    dynamic: the sizes and numbers of the arguments that are symbols: the graph is then the one of a staged run (see
        `staging.stage`), with `sizes`. Where there is none, the graph is the ordinary one, `sizes` is None, and
        `warnings` says why.
    keep_written: keep what state held before it was written, in `Captured.written`.
    level: force one of `smelt._torch.seen.dispatch.levels()`; the best by default.
    raised: called where the program raises, with whether it may have written to tensors from outside by then.
    changed: tells, after the run, which objects of the arguments it changed; the graph then has what is put there.
    state: the places whose contents are among the arguments, under `STATE`; `fn` takes that keyword.
    Raises: CaptureError (S0104) where this thread is being recorded already; other capture errors are in the result.
    """
    if is_recording():
        raise CaptureError(
            "a capture was started inside another one",
            why="one run can be recorded once",
            fix="call the inner function itself: it becomes part of the outer capture",
            code="S0104",
        )
    given = dict(kwargs or {})
    chosen = level or levels()[0]
    caller = caller_modes()
    program = fn if target is None else target
    title = name or name_of(program)
    try:
        arguments = flatten_arguments(args, given)
    except CaptureError as error:
        return Captured(title, fn(*args, **given), None, None, State(), error, (), (), chosen, caller, Roots({}, {}))
    opaque = arguments.outside()
    with put_aside():
        roots = reachable(program, opaque)
    scope = Scope(roots.modules, call_notes())
    recorder = Recorder(roots, scope, at_entry=chosen == "entry", specialize=specialize, reruns=reruns)
    for tensor in arguments.tensors:
        recorder.add_input(tensor)
    written = Written(roots)
    record = written.watching(recorder.record) if keep_written else recorder.record
    kept = keeper()
    if kept is not None:
        record = kept.around(record)
    histories = Histories([*arguments.tensors, *(entry.tensor for entry in roots.entries.values())])
    try:
        result = _run(fn, args, given, recorder, record, roots, chosen)
    except Exception:
        raised(recorder.may_have_written)
        raise
    with past_overrides():  # nor does what is asked of its results reach a subclass's own code
        heap = changed()
        not_kept = recorder.keep(heap.filled, reachable(program, opaque)) if heap is not None and heap.filled else ""
        tree, outputs, tensors, puts, not_put = _take_apart(result, arguments, recorder, heap)
        odd = begun_inside(tensors, recorder, caller)
        if odd is not None:
            recorder.fail(odd.what, odd.why, odd.fix, "S0104", odd.site)
        has_history = histories.matter and histories.have_grown(tensors, recorder.spent)
        check_classes(tensors, recorder)
        check_gradients_left(recorder, heap)
        arguments = arguments.opened(heap)
        graph, signature = None, None
        if recorder.error is None and tree is not None:
            signature = Signature(arguments.args, arguments.kwargs, tree, arguments.paths, puts)
            try:
                names = input_names(program, arguments.paths, state)
                with put_aside():
                    graph = GraphBuilder(title, recorder, caller).build(names, outputs)
            except CaptureError as error:
                recorder.error = error
        try:
            used = State.of(recorder.states)
        except InternalError as error:
            recorder.error, graph, used = error, None, State()
        shared = frozenset() if graph is None else entangled(graph, arguments.tensors, used.lookup)
        native = Captured(
            title, result, graph, signature, used, recorder.error,
            tuple(recorder.conversions), (), chosen, caller, without_gradients(roots), written.before, shared,
            returned_objects(tensors, arguments.tensors, used), None,
            kinds=kinds_of(tensors, caller), own_backward=recorder.own_backward, flags=recorder.flags, reruns=reruns,
            catches=recorder.has_caught,
            own_line=None if recorder.own_site is None else recorder.own_site.span, recomputed=recorder.recomputed(),
            asks_modes=graph is not None and any(node.mode.startswith("inference") for node in graph.walk()),
            has_history=has_history,
            spent=frozenset(i for i, tensor in enumerate(tensors) if recorder.spent.has(tensor)),
            begins_bare=begins_bare(recorder, heap),
            **_of_heap(heap, not_put or not_kept),
        )  # fmt: skip
    return native if dynamic is None else _with_symbols(native, fn, args, given, target, dynamic, state)


def _with_symbols(
    native: Captured, fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object],
    target: Callable[..., object] | None, dynamic: Spec, state: Sequence[Place],
) -> Captured:  # fmt: skip
    staged = stage(fn, args, kwargs, target=target, name=native.name, native=native, dynamic=dynamic, state=state)
    if staged.error is not None:
        return replace(native, warnings=(str(staged.error),))
    return replace(staged, result=native.result, written=native.written)


def _run(
    fn: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    recorder: Recorder,
    record: Record,
    roots: Roots,
    level: Level,
) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracking(recorder.scope, roots.module_list))
        stack.enter_context(detecting(recorder, level))
        stack.enter_context(recording(record, level))
        recorder.base_frame = sys._getframe()
        try:
            return fn(*args, **kwargs)
        finally:
            recorder.base_frame = None


def _of_heap(heap: ArgumentHeap | None, not_put: str) -> dict[str, Any]:
    if heap is None:
        return {}
    opened = heap.places if heap.opened else frozenset()
    outer = tuple(outer.place for outer in heap.outer)
    return {"opened": opened, "not_put": not_put, "known": frozenset(heap.known), "outer": outer}


def _take_apart(
    result: object, arguments: Arguments, recorder: Recorder, heap: ArgumentHeap | None = None
) -> tuple[Tree | None, list[Slot], list[torch.Tensor], Puts | None, str]:
    """The structure of the result, the slots of its tensors, and these tensors; what is put in the arguments' objects,
    whose tensors then follow those of the result, or why it cannot be."""

    was_there = None if heap is None else heap.was_there

    def check(value: object, path: str) -> None:
        if is_lazy(value) or (is_iterator(value) and not (was_there is not None and was_there(value))):
            recorder.fail(
                f"{path} is a {type(value).__qualname__}",
                "it runs only when it is read, after the program returned",
                "return a list",
                "S0104",
            )
        elif recorder.lent and not is_inert(value):
            recorder.fail(
                f"{path} is a {type(value).__qualname__}, and the program passed a tensor's memory to NumPy",
                "it may be that memory, which is another one at each call",
                "return tensors",
                "S0104",
            )
        elif was_there is not None and holds_its_own(value, was_there):
            recorder.fail(
                f"{path} is a {type(value).__qualname__} that holds what may change",
                OWN,
                "return what it holds in a list, a tuple, a dict or an object's attributes",
                "S0104",
            )
        elif not isinstance(value, torch.Tensor):
            for tensor in hidden_tensors(value):
                if id(tensor) not in recorder.roots.entries:
                    recorder.fail(
                        f"{path} is a {type(value).__qualname__} that holds tensors",
                        "they have no fixed access path in it, and every later call would use this call's tensors",
                        "return them in a list, a tuple, a dict or an object's attributes",
                        "S0104",
                    )

    recorder.lent.check_unwritten(recorder)
    flattener: Flattener = (found := Result(check, arguments.containers, was_there))
    puts, not_put = None, ""
    if heap is not None and (heap.is_live or heap.outer):
        after = After(heap, check, arguments.containers)
        try:
            tree, puts = after.flatten(result, "result"), after.puts()
            flattener = after
        except NotPut as stop:
            not_put = str(stop)
    if puts is None:
        tree = found.result(result)
    if recorder.check_nested(flattener.tensors):
        return None, [], [], None, not_put
    check_results(flattener.tensors, recorder.fail)
    slots = [recorder.slot_of(tensor) for tensor in flattener.tensors]
    for slot in slots:
        if slot.kind == "unknown":
            recorder.unknown(slot)
    return tree, slots, flattener.tensors, puts, not_put
