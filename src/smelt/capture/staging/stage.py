"""Run a program a second time on fake tensors, and keep what it decided from data as control flow of one graph.

    native = capture(fn, args, kwargs)
    staged = stage(fn, args, kwargs, target=None, name=None, native=native)
    staged.graph     with `if`, `for` and `while`, or None where `error` says why not

Invariant: the run leaves nothing: no tensor is written, no random number drawn, and containers, attributes, modes and
functions are afterwards what they were, also where it fails.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from math import inf
from time import thread_time
from typing import Any

import torch

from smelt._torch.exact import MISSING
from smelt._torch.seen import staged_fakes
from smelt._torch.seen.dispatch import recording
from smelt._torch.seen.leaves import GRAD_SLOT
from smelt._torch.seen.light_fake import unmarked
from smelt._torch.seen.record_modes import caller_modes
from smelt.capture.convert.runtime import installed
from smelt.capture.dynamic.inputs import Symbols, held_memory, make_symbols
from smelt.capture.dynamic.native_agreement import disagreement, is_straight, sizes_of_recorded
from smelt.capture.dynamic.spec import SizeFacts, Spec
from smelt.capture.dynamic.trace import CaptureTrace
from smelt.capture.reads.reads_arguments import ArgumentHeap, contents_of, put_contents
from smelt.capture.reads.reads_outer import Outer
from smelt.capture.recording.detector import detecting
from smelt.capture.recording.history import begun_inside
from smelt.capture.recording.inferred import WHY as WHY_KINDS
from smelt.capture.recording.inferred import MixedKinds, kinds_on_all_ways
from smelt.capture.recording.results import Result
from smelt.capture.recording.scopes import Scope, tracking
from smelt.capture.recording.spans import Site
from smelt.capture.recording.tensor_slots import Slot
from smelt.capture.result import Captured, State, input_names, name_of, returned_objects
from smelt.capture.staging import current
from smelt.capture.staging.builder import StagedBuilder
from smelt.capture.staging.draws import drawing
from smelt.capture.staging.fakes.patches import answering
from smelt.capture.staging.flow.assumptions import Assumptions, LoopKind
from smelt.capture.staging.flow.branches import check_genuine, record_raise
from smelt.capture.staging.flow.control import StagingRuntime
from smelt.capture.staging.flow.ordering import check_unchanged
from smelt.capture.staging.flow.paths import Outcome
from smelt.capture.staging.flow.stops import (
    Again,
    CannotGrow,
    CannotStage,
    Exhausted,
    Stop,
    letting_go,
)
from smelt.capture.staging.gradients import Gradients
from smelt.capture.staging.objects.appending import Appending, appending
from smelt.capture.staging.objects.functions import Functions
from smelt.capture.staging.objects.heap import Snapshot
from smelt.capture.staging.objects.unconverted_code import Watch
from smelt.capture.staging.recorded import Recorded
from smelt.capture.staging.returned import (
    as_key,
    check_effect,
    check_result,
    check_structure,
    depends_on_data,
    stand_in,
)
from smelt.capture.staging.session import Budget, Session
from smelt.capture.structure.entangled_memory import entangled
from smelt.capture.structure.puts import After, NotPut, Puts
from smelt.capture.structure.roots import Roots, reachable, without_gradients
from smelt.capture.structure.signature import Arguments, Signature, flatten_arguments
from smelt.capture.structure.state import Place, held_at, holding
from smelt.capture.structure.tree import Flattener, Tree
from smelt.diag import CaptureError, InternalError, SmeltError, limits
from smelt.ir import Graph
from smelt.ops.python.python_draws import Generators, python_states

WHY_DRAWS = "more than one number at a time, or by code that is not converted"
_MOST_RUNS = limits.STAGED_RUNS
# The budget of all runs: some steps, more for each operator of the native run; and several times what these take.
_STEPS, _STEPS_EACH = 6000, 24
_SECONDS, _SECONDS_EACH = limits.STAGING_SECONDS, 10e-3


@dataclass
class Learnt:
    """What one staging of a program finds out, with which the next one begins.

    exhausted: how many came to no end in their time; the next has a quarter of it, all further ones a sixteenth.
    most_s: the seconds that one may take at most.
    follows: where no graph holds all ways, one for the recorded way is made at once; else `asks_natively` says whether
    that may lead to one.
    """

    assumed: Assumptions = field(default_factory=Assumptions)
    exhausted: int = 0
    most_s: float = inf
    follows: bool = True
    asks_natively: bool = False


def stage(
    fn: Callable[..., Any],
    args: Sequence[object] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: Callable[..., Any] | None = None,
    name: str | None = None,
    native: Captured,
    dynamic: Spec | None = None,
    state: Sequence[Place] = (),
    learnt: Learnt | None = None,
) -> Captured:
    """The program as one graph, or a capture whose `error` says why it has none. Raises nothing of the program's.

    dynamic: the sizes and numbers of the arguments that are symbols; what was found out of them is in `sizes`.
    state: as `capture` takes it. learnt: of the same program, for other sizes; left as this staging leaves it.
    """
    program = fn if target is None else target
    run = _Run(fn, args, dict(kwargs or {}), program, name or name_of(program), native, dynamic, state)
    run.learnt = learnt or Learnt()
    if not staged_fakes.available():
        return run.failed(_error("this torch cannot run operators on fake tensors", "a private name is missing", None))
    try:
        arguments = flatten_arguments(args, run.kwargs)
        if native.opened:
            arguments = arguments.opened(ArgumentHeap(tuple(args), run.kwargs, native.opened))
    except CaptureError as error:
        return run.failed(error)
    with _everything_kept(), unmarked():
        return run.run(arguments)


def _nowhere() -> None:
    """No line asks once a run has ended."""


class _Run:
    def __init__(
        self, fn: Any, args: Sequence[Any], kwargs: dict[str, Any], program: Any, title: str, native: Captured,
        dynamic: Spec | None, state: Sequence[Place],
    ) -> None:  # fmt: skip
        self.dynamic, self.state = dynamic, state
        known = {place.spot for place in state}
        self.write_only = [place for place in native.outer if place.spot not in known] if native is not None else []
        self.fn, self.args, self.kwargs = fn, args, kwargs
        self.program, self.title, self.native = program, title, native
        self.roots = Roots({}, {})
        self.caller = caller_modes()
        self.snapshot: Snapshot
        self.learnt = Learnt()

    @property
    def _is_for_loops(self) -> bool:
        """Whether loops are all that staging is for: without one, the recorded graph is as good."""
        return bool(self.native.rangers) and not self.native.conversions

    def failed(self, error: SmeltError) -> Captured:
        """The capture that has no graph."""
        return Captured(
            self.title, None, None, None, State(), error, self.native.conversions, (), "entry", self.caller, self.roots
        )

    def run(self, arguments: Arguments) -> Captured:
        """Stage, starting again as often as something new is learnt."""
        self.roots = reachable(self.program, arguments.outside())
        functions = Functions(self.roots.functions)
        conversions = self.native.conversions
        asking = (found.site.code for found in conversions if found.site is not None)
        # What a function of a library asks it most likely uses, or hands to its caller.
        askers = (code for found in conversions for code in found.askers)
        class_askers = self.native.class_askers or ()
        for code in dict.fromkeys((*asking, *askers, *self.native.drawers, *class_askers, *self.native.rangers)):
            if functions.can(code) and not functions.has(code):
                functions.want(code)
        # On other ways than the recorded run's there may be more.
        is_known = self.native.class_askers is not None and not self.native.conversions
        self.is_watched = not is_known or not all(map(functions.has, class_askers))
        before = self.learnt
        for code in before.assumed.converted:
            functions.want(code)
        assumed = before.assumed
        unrolled: dict[object, int] = {}
        length = 0 if self.native.graph is None else sum(1 for _ in self.native.graph.walk())
        seconds = min(_SECONDS + _SECONDS_EACH * length, before.most_s) / 4 ** min(before.exhausted, 2)
        budget = Budget(_STEPS + _STEPS_EACH * length, thread_time() + seconds)
        for _ in range(_MOST_RUNS):
            scope = Scope(self.roots.modules)
            session = Session(Recorded(), functions.can, self.roots, scope, assumed, self.native)
            session.budget = budget
            session.write_only, session.stages_growth = self.write_only, assumed.grows
            session.unrolled = unrolled
            try:
                found = self._once(session, functions, arguments)
                if not self._is_other:  # of the program for another size: what holds of it need not hold of this one
                    before.assumed = replace(session.assumed, fixes_texts=False)
                return found
            except Again as again:
                more, assumed = again.more, session.assumed
                if self._is_for_loops and not _may_have_loops(assumed, more):
                    return self.failed(_error("a long loop stays unrolled, as recorded", "its iterations differ", None))
                if not more.forked.isdisjoint(assumed.forked):
                    return self.failed(_error("a branch cannot be merged", "it was forked, and met again", None))
                before.assumed = replace(before.assumed, trials=before.assumed.trials | more.trials)
                for code in more.converted:
                    functions.want(code)
                assumed |= more
                if more.grows:
                    assumed = assumed.without_forks_that_grow()
            except CannotStage as stop:
                assumed = session.assumed
                if self._is_for_loops:
                    return self.failed(_error(stop.what, stop.why, stop.site))
                if session.has_texts:
                    # Python itself may have to know a text, as the name of something.
                    assumed = replace(assumed, fixes_texts=True)
                    continue
                if assumed.grows:
                    assumed = replace(assumed.without_loops(), grows_not=True)
                    continue
                if (assumed.grew or isinstance(stop, CannotGrow)) and not assumed.grows_not:
                    # Ways that part at a container may have come to where none goes, or have to meet in a loop.
                    assumed = replace(assumed, grows=True).without_forks_that_grow()
                    continue
                if assumed.of_kind(LoopKind.COUNTED):
                    # A loop of which each number of turns is a way of its own need not be that.
                    assumed = assumed.without_counted_loops()
                    continue
                unrolled_now = frozenset((key, LoopKind.UNROLLED) for key in session.rolled)
                if not unrolled_now <= assumed.loops:
                    # A loop over what Python knows need not be one of the graph.
                    assumed |= Assumptions(loops=unrolled_now)
                    continue
                is_followed = session.asks_natively and not assumed.as_native and not isinstance(stop, Exhausted)
                before.asks_natively |= is_followed
                if is_followed and before.follows:
                    assumed = replace(
                        before.assumed,
                        as_native=True,
                        peeled=assumed.peeled,
                        converted=assumed.converted,
                        fixes_texts=assumed.fixes_texts,
                    )
                    continue
                before.exhausted += isinstance(stop, Exhausted)
                if session.recorder.error is not None:
                    return self.failed(session.recorder.error)
                return self.failed(_error(stop.what, stop.why, stop.site))
            except Exception as broken:
                site = session.recorder._find_site(1)
                error = InternalError(
                    f"staging failed: {type(broken).__name__}: {broken}",
                    site.span if site else None,
                    why="this is a defect of Smelt; the program itself is not at fault",
                    fix="report it with the program",
                )
                error.__cause__ = broken
                return self.failed(error)
        return self.failed(_error("staging came to no end", f"it was started {_MOST_RUNS} times", None))

    def _once(self, session: Session, functions: Functions, arguments: Arguments) -> Captured:
        recorder = session.recorder
        symbols = self._symbols(session, arguments)
        self.call = (self.args, self.kwargs) if symbols is None else (symbols.args, symbols.kwargs)
        for tensor in arguments.tensors if symbols is None else symbols.tensors:
            recorder.add_input(tensor)
        if symbols is not None:
            session.size_trace = symbols.trace
            recorder.inputs.extend(symbols.numbers)
        args, kwargs = self.call
        try:
            with holding(self.state, kwargs, lambda to, of: put_contents(to, contents_of(of))) as given:
                if symbols is not None:
                    symbols.rename_containers(kwargs, given)
                self.call = (args, given)
                self.heap = self._heap()
                with appending(outer.place for outer in (() if self.heap is None else self.heap.outer)):
                    return self._recorded(session, functions, arguments, symbols)
        finally:
            if symbols is not None:
                # A fake tensor holds its sizes, these the trace, where no collector sees it: the session would stay.
                symbols.trace.site = _nowhere

    def _recorded(
        self, session: Session, functions: Functions, arguments: Arguments, symbols: Symbols | None
    ) -> Captured:
        recorder = session.recorder
        session.heap.callers = {} if self.heap is None else self.heap.by_id
        session.heap.roots = [self.program, self.fn, *self.call]
        # Functions run other code in the run itself.
        self.snapshot = Snapshot(session.heap.roots, codes=False)
        session.heap.snapshots.append(self.snapshot)
        session.watch = watch = Watch(session, functions.can, functions.codes)
        before = current.enter(session)
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(functions.installed())
                stack.enter_context(tracking(recorder.scope, self.roots.module_list))
                stack.enter_context(detecting(recorder, "entry"))
                stack.enter_context(answering())
                stack.enter_context(drawing())
                # A program that asks whether it is traced would go another way than it goes.
                stack.enter_context(staged_fakes.unrecognized(lambda tensor: True))
                stack.enter_context(installed(StagingRuntime(session)))
                stack.enter_context(recording(recorder.record, "entry"))
                stack.enter_context(watch.ready(self.is_watched))
                stack.enter_context(letting_go())
                before_draws = python_states()
                records, outcome = session.paths.trace(lambda: self._program(session))
                if python_states() != before_draws:
                    raise CannotStage("random numbers are drawn by code that no graph can replay", WHY_DRAWS, None)
            recorder.records = records
            if session.stopped is not None:
                raise session.stopped
            return self._captured(session, outcome, arguments, symbols)
        finally:
            current.enter(before)
            self.snapshot.restore()

    def _symbols(self, session: Session, arguments: Arguments) -> Symbols | None:
        """The symbols of this run, None where there are to be none."""
        if self.dynamic is None:
            return None
        own = set(map(id, arguments.tensors)) if self.state else set()
        held = held_memory([entry.tensor for entry in self.roots.entries.values() if id(entry.tensor) not in own])
        trace = CaptureTrace(site=session.reading.asked_by)
        return make_symbols(self.dynamic, arguments, session.recorder.fakes, trace, held)

    @property
    def _is_other(self) -> bool:
        """Whether a size is taken for another than it is: the native run tells nothing then."""
        return any(free.only is not None for free in (self.dynamic or {}).values())

    def _facts(self, session: Session, symbols: Symbols, graph: Graph) -> SizeFacts:
        """What the run found out of its symbols.

        Raises: CannotStage where it went another way than the native run; Again where an operator gave something else.
        """
        native, facts = None if self._is_other else self.native.graph, symbols.facts()
        values: Mapping[str, int | float] | None = symbols.given
        if native is not None and self.native.is_elsewhere:
            values = sizes_of_recorded(self.native, facts, symbols.paths) if is_straight(graph) else None
            if values is None:
                raise CannotStage("the call that was recorded does not tell whether this is the program", "", None)
        other = None if native is None or values is None else disagreement(native, graph, values)
        if other is not None:
            if other.op and other.op not in session.assumed.trials:
                raise Again(Assumptions(trials=frozenset((other.op,))))
            raise CannotStage(
                f"with symbolic sizes the program took another path: {other.text}",
                "it tells a size that is a symbol from a plain int",
                None,
            )
        return facts

    def _program(self, session: Session) -> Outcome:
        session.base_frame = sys._getframe()
        try:
            args, kwargs = self.call
            session.heap.picked.clear()
            session.gradients.begin()
            # What it sets of context variables is set in a context of its own.
            result = copy_context().run(self.fn, *args, **kwargs)
            check_unchanged(session)
            session.gradients.check_left(session)
            changes = self.snapshot.changes()
            session.copies.check_left([result, *(change.new for change in changes.values())], self._was_there)
            return Outcome(result, changes)
        except Exception as error:
            check_genuine(session, error)
            record_raise(session, error)
            return Outcome(is_raised=True)
        finally:
            session.base_frame = None
            self.snapshot.restore()

    def _captured(self, session: Session, outcome: Outcome, arguments: Arguments, symbols: Symbols | None) -> Captured:
        recorder = session.recorder
        if outcome.is_raised:
            raise CannotStage("the program raises on every path", "there is nothing to return", None)
        puts_some = self.native.signature is not None and self.native.signature.puts is not None
        heap = self.heap if puts_some or self.state else None
        for change in outcome.writes.values():
            if heap is None or not heap.takes(change.container, change.key):
                arm = session.paths.arm_of(change) if depends_on_data(change.new, self.roots) else None
                if arm is not None and arm not in session.assumed.arms:
                    # The native run changed nothing there: the graph holds for what goes the other way, too.
                    raise Again(Assumptions(arms=frozenset((arm,))))
                check_effect(change, self.roots)
        stand_ins: dict[int, Slot] = {}
        given = arguments if symbols is None else symbols
        check = check_result(self.roots, self._was_there)
        flattener: Flattener
        puts = None
        if heap is None:
            flattener = found = Result(
                check, given.containers, self._was_there, lambda value: stand_in(value, stand_ins, session)
            )
            found.key = as_key
            tree = found.result(outcome.value)
        else:
            flattener = After(heap, check, given.containers, lambda value: stand_in(value, stand_ins, session))
            flattener.key = as_key
            tree, puts = self._left(heap, outcome, flattener, session.gradients)
        slots = [stand_ins.get(id(t)) or recorder.slot_of(t) for t in flattener.tensors]
        for slot in slots:
            if slot.kind == "unknown":
                recorder.unknown(slot)
        odd = begun_inside(flattener.tensors, recorder, self.caller)
        if odd is not None:
            raise CannotStage(odd.what, odd.why, odd.site)
        for name, part in (("result", tree), *(puts.trees() if puts is not None else ())):
            if part is not None:
                check_structure(part, name)
        if recorder.error is not None or tree is None:
            raise CannotStage("the result has no structure", "it holds what no graph returns", None)
        signature = Signature(arguments.args, arguments.kwargs, tree, arguments.paths, puts)
        if symbols is not None:
            signature = Signature(symbols.args_tree, symbols.kwargs_tree, tree, tuple(symbols.paths), puts)
        try:
            names = input_names(self.program, signature.inputs, self.state)
            graph = StagedBuilder(self.title, recorder, self.caller, symbols).build(names, slots)
            kinds = kinds_on_all_ways(graph, flattener.tensors, self.caller)
        except CaptureError as error:
            return self.failed(error)
        except MixedKinds as mixed:
            raise CannotStage(str(mixed), WHY_KINDS, None) from None
        facts = None if symbols is None else self._facts(session, symbols, graph)
        state = State.of(recorder.states)
        shared = entangled(graph, arguments.tensors, state.lookup)
        return Captured(
            self.title, None, graph, signature, state, None, self.native.conversions, (), "entry", self.caller,
            without_gradients(self.roots), {}, shared, returned_objects(flattener.tensors, given.tensors, state),
            facts, self.native.opened, outer=self.native.outer, kinds=kinds, own_backward=self.native.own_backward,
            own_line=self.native.own_line, recomputed=self.native.recomputed,
            spent=self.native.spent, begins_bare=self.native.begins_bare,
            reruns=session.has_caught, catches=session.has_caught, is_way=session.assumed.as_native,
            asks_modes=self.native.asks_modes,
        )  # fmt: skip

    def _was_there(self, value: object) -> bool:
        return self.snapshot.reached(value) or id(value) in self.native.known

    def _heap(self) -> ArgumentHeap | None:
        """What this run is to leave changed, before it does."""
        native = self.native
        if not native.opened and not native.outer and not self.state:
            return None
        heap = ArgumentHeap(tuple(self.call[0]), self.call[1], native.opened)
        places = {place.spot: place for place in (*native.outer, *self.state) if place.kind != "object"}
        heap.outer.extend(Outer(place, held_at(place), MISSING) for place in places.values())
        return heap

    def _left(self, heap: ArgumentHeap, outcome: Outcome, after: After, gradients: Gradients) -> tuple[Tree, Puts]:
        """The structure of the result, and of what all ways leave in the arguments' objects. Raises: CannotStage."""
        heap.known = {**dict.fromkeys(self.native.known), **heap.by_id}
        try:
            for change in outcome.writes.values():
                if heap.takes(change.container, change.key):
                    change.put(change.new)
            heap.close()
            left = [_after(outer, gradients) for outer in heap.outer]
            heap.outer = [outer for outer in left if outer is not None]
            if any(outer.after is MISSING for outer in heap.outer):
                raise CannotStage("an attribute is set on some paths only", "it would be deleted on others", None)
            return after.flatten(outcome.value, "result"), after.puts()
        except NotPut as stop:
            raise CannotStage(f"the program leaves {stop} in an argument", "it is not written back", None) from None


def _may_have_loops(assumed: Assumptions, more: Assumptions) -> bool:
    """Whether some loop may still be one of the graph, where more is known of one: that it is, or is not."""
    if not (more.loops or more.lists or more.arms or more.grows):
        return True
    known = assumed | more
    unrolled = known.of_kind(LoopKind.UNROLLED)
    return bool(known.lists or known.arms or known.of_kind(LoopKind.WHOLE) - unrolled)


def _after(outer: Outer, gradients: Gradients) -> Outer | None:
    """A place with what all ways leave there; None where they leave what was there."""
    place = outer.place
    held = gradients.of(place.space, place.read) if place.key is GRAD_SLOT else place.read()
    if not outer.place.is_appended:
        return replace(outer, after=held) if held is not outer.before else None
    if type(held) is not Appending:
        raise CannotStage(f"{outer.place.name} is not only appended to", "its items are no argument", None)
    if type(held.items) is not list:
        return replace(outer, after=held.items)
    return replace(outer, after=(*outer.before, *held.items)) if held.items else None


def _error(what: str, why: str, site: Site | None) -> CaptureError:
    return CaptureError(
        what,
        site.span if site is not None else None,
        why=why,
        fix="stay in tensors (torch.where, masks), or let the program be captured path by path",
        code="S0101",
    )


@contextlib.contextmanager
def _everything_kept() -> Iterator[None]:
    """Random state and modes of the thread are put back afterwards."""
    generators = Generators()
    was_grad = torch.is_grad_enabled()
    dtype = torch.get_default_dtype()
    try:
        yield
    finally:
        generators.restore()
        torch.set_grad_enabled(was_grad)
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)


__all__ = ["Stop", "stage"]
