"""Branches whose condition depends on data: both arms run on fake tensors, and what they leave is merged or forked."""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import Any

import torch

from smelt.capture.convert.runtime import Variables
from smelt.capture.recording.spans import Site, is_users
from smelt.capture.recording.tensor_slots import Slot, slot_type
from smelt.capture.staging.fakes.symbols import ScalarSlot, is_staged, slot_of, wrap
from smelt.capture.staging.flow.growing import Grows, container_type, stage_container
from smelt.capture.staging.flow.merge import Poison, resolved
from smelt.capture.staging.flow.ordering import check_unchanged
from smelt.capture.staging.flow.paths import Outcome
from smelt.capture.staging.flow.stops import ACTS, CannotGrow, CannotMerge, CannotStage
from smelt.capture.staging.objects.handlers import is_catchable
from smelt.capture.staging.objects.heap import Change
from smelt.capture.staging.session import Session
from smelt.ir import BOOL


def condition(session: Session, test: object) -> Slot | None:
    """The slot of a condition that depends on data, None for one that Python answers."""
    if isinstance(test, Poison):
        session.unmerge(test.why)
    if isinstance(test, torch.Tensor):
        slot = session.recorder.slot_of(test)
        if not slot.family.tainted or session.reading.knows(slot):
            return None
        type_ = slot_type(slot)
        if type_.is_static and type_.numel != 1:
            what = "more than one value" if type_.numel else "no values"
            error = RuntimeError(f"Boolean value of Tensor with {what} is ambiguous")
            session.note_refused(error)
            raise error
        if not type_.is_static:
            return slot_of(session.emit("py.bool", test))
        return slot
    if is_staged(test):
        slot = slot_of(test)
        return slot if slot.type == BOOL else slot_of(session.emit("py.bool", test))
    return None


def traced_truth(session: Session, value: object) -> object:
    """The truth of a tensor or of a traced value, which depends on data, as a traced bool."""
    if isinstance(value, torch.Tensor):
        condition(session, value)  # which raises where torch would
        return session.emit("py.bool", value)
    slot = condition(session, value)
    assert isinstance(slot, ScalarSlot)
    return wrap(slot)


def cells_of(*functions: object) -> list[object]:
    """The closure cells of the converter's own functions: their variables are told by name."""
    found: list[Any] = []
    stack = list(functions)
    seen: set[int] = set()
    while stack:
        function = stack.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        for cell in getattr(function, "__closure__", None) or ():
            found.append(cell)
            try:
                held = cell.cell_contents
            except ValueError:
                continue
            if isinstance(held, tuple):
                found.extend(item for item in held if isinstance(item, CellType))
            elif str(getattr(held, "__module__", "")).startswith("smelt.capture"):
                stack.append(held)
    return found


def branch(
    session: Session,
    key: object,
    slot: Slot,
    then: Callable[[], Any],
    orelse: Callable[[], Any],
    variables: Variables,
    anew: Sequence[str] = (),
) -> None:
    """An `if` statement. Both arms end with what their variables and the containers they changed hold.

    anew: variables that the program probably binds before it reads them again.
    """
    site = session.site()
    known = session.paths.known(slot)
    if known is None and session.paths.is_on_all and (key, True) in session.assumed.arms:
        known = session.paths.expect(slot, False)
    elif known is None and session.paths.is_on_all and (key, False) in session.assumed.arms:
        known = session.paths.expect(slot, True)
    elif known is None:
        known = session.domain.as_native(slot)
    while known is None and key not in session.assumed.forked:
        before = session.paths.taken()
        try:
            outcome = _merged(session, key, slot, (then, orelse), variables, site, anew)
        except CannotGrow as grows:
            type_ = container_type(session, [grows.container, *grows.contents]) if session.stages_growth else None
            if type_ is not None and _is_carried(session, grows.container):
                raise Grows(grows.container, type_, site) from None
            if not _staged_before(session, key, grows.container, type_, (then, orelse), variables, site):
                session.will_fork(key, grew=True)
                session.paths.not_again(before)
        except Grows as grows:
            is_older = session.heap.is_older(grows.grown) or _is_carried(session, grows.grown)
            if is_older or not _staged_before(session, key, grows.grown, grows.type, (then, orelse), variables, site):
                raise
        except CannotMerge:
            session.will_fork(key)
            session.paths.not_again(before)
        else:
            if outcome.is_raised:
                session.end()
            apply(outcome, variables.set)
            return
    if known is None and key in session.assumed.grew:
        session.paths.check_turns(site)
    answer = session.paths.fork(slot, site)
    variables.set(resolved(variables.get(), slot, answer, session.paths.negations))
    if answer:
        then()
    else:
        orelse()


def _is_carried(session: Session, container: object) -> bool:
    """Whether the loop that is being staged had a list before its first turn, so that it is staged before that."""
    return bool(session.loops) and session.loops[-1].carries(container)


def _merged(
    session: Session, key: object, slot: Slot, bodies: Sequence[Callable[[], object]], variables: Variables,
    site: Site | None, anew: Sequence[str],
) -> Outcome:  # fmt: skip
    """The outcome after either arm. Raises: CannotMerge."""
    before = variables.get()
    snapshot = session.heap.snapshot(own_cells(variables))
    session.heap.snapshots.append(snapshot)
    session.heap.befores.append((snapshot, before))
    why = ("fork", key)
    try:
        arms = []
        for body, answer in zip(bodies, (True, False), strict=True):
            start = resolved(before, slot, answer, session.paths.negations)
            run = arm(session, body, variables, before, snapshot, start)
            arms.append(session.paths.trace(run, variables.names, why, {slot: answer}))
        return session.paths.branch(slot, arms, site, why, variables.names, anew)
    finally:
        session.heap.snapshots.pop()
        session.heap.befores.pop()


def _staged_before(
    session: Session, key: object, grown: Any, type_: Any, bodies: Sequence[object], variables: Variables,
    site: Site | None,
) -> bool:  # fmt: skip
    """Stage a container that grows in an arm, before the branch; whether that may be."""
    if not session.stages_growth or type(grown) not in (list, dict) or type_ is None:
        return False
    snapshot = session.heap.whole_snapshot(own_cells(variables), bodies)
    if not snapshot.holds(grown) and not any(value is grown for value in variables.get()):
        return False
    stage_container(session, site, grown, type_, variables, snapshot)
    if isinstance(grown, dict):
        session.staged_at.append(key)
    return True


def own_cells(variables: Variables) -> list[object]:
    """The cells that they lie in."""
    return cells_of(variables.get, variables.set)


def arm(
    session: Session, body: Callable[[], Any], variables: Variables, before: Any, snapshot: Any, start: Any
) -> Callable[[], Outcome]:
    """One run of an arm: what it leaves, with everything put back."""
    get, set_ = variables.get, variables.set
    acted = False

    def run() -> Outcome:
        outcome = once()
        if acted:
            session.cannot(*ACTS)
        return outcome

    def once() -> Outcome:
        nonlocal acted
        session.recorder.depth += 1
        modes = session.recorder._modes_now()
        changes: dict[tuple[int, object], Change] | None = None
        try:
            set_(start)
            body()
            check_unchanged(session)
            if session.recorder._modes_now() != modes:
                session.cannot("a mode is switched on one path only")
            left = session.domain.left_by(get(), before)
            changes = snapshot.changes()
            return Outcome(left, changes)
        except CannotMerge:
            raise
        except Exception as error:
            return raised(session, error)
        finally:
            session.recorder.depth -= 1
            acted |= snapshot.restore(None if changes is None else changes.values())
            set_(before)

    return run


def apply(outcome: Outcome, set_: Callable[[tuple[object, ...]], None]) -> None:
    """Let the program go on with what a merged outcome left."""
    for change in outcome.writes.values():
        change.put(change.new)
    set_(outcome.value)


# --- exceptions ------------------------------------------------------------------------------------------------------


def raised(session: Session, error: Exception) -> Outcome:
    """The outcome of an arm that ends in an exception of the program's.

    Raises: CannotMerge where someone may catch it (the program then goes on from there, on a path of its own), or where
    it is not for sure the program's.
    """
    check_genuine(session, error)
    if is_catchable(session):
        raise CannotMerge("an exception is raised on one path only", "it may be caught", session.site())
    record_raise(session, error)
    return Outcome(is_raised=True)


def check_genuine(session: Session, error: Exception) -> None:
    """Raises: CannotStage for an error that eager might not meet; Again."""
    if isinstance(error, NameError):
        for loop in session.loops:
            loop.check_unset(error)
    # A variable without a value is so in eager too, on this path: merged ones hold a poison instead.
    if (
        isinstance(error, UnboundLocalError)
        or (isinstance(error, NameError) and is_raised_by_user(error, "LOAD_"))
        or (isinstance(error, ValueError) and is_raised_by_user(error, "UNPACK_"))
        or any(error is known for known in (*session.raised, *session.refused))
        or is_raised_by_user(error)
    ):
        return
    raise CannotStage(
        f"running on fake tensors failed: {type(error).__name__}: {error}",
        "it may be one of staging, not of the program",
        session.site(),
    ) from error


def record_raise(session: Session, error: Exception) -> None:
    """Record that an exception ends the run."""
    kind = type(error)
    kwargs = {}
    if error.__cause__ is not None:
        cause = type(error.__cause__)
        kwargs = {"cause": f"{cause.__module__}.{cause.__qualname__}", "cause_args": list(error.__cause__.args)}
    elif error.__suppress_context__:
        kwargs = {"cause": "None"}
    held = vars(error)
    args = map(session.domain.as_in_program, error.args)
    if held or isinstance(kind.__init__, FunctionType) or isinstance(kind.__new__, FunctionType):
        kwargs["fields"] = " ".join(held)
    session.raised_at = _raised_at(error)
    try:
        session.statement("py.raise", f"{kind.__module__}.{kind.__qualname__}", *args, *held.values(), **kwargs)
    finally:
        session.raised_at = None


def _raised_at(error: Exception) -> Site | None:
    """The innermost place of the user's that an error came through."""
    found, trace = None, error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename):
            found = Site(code, trace.tb_lasti)
        trace = trace.tb_next
    return found


def is_raised_by_user(error: Exception, by: str = "RAISE_VARARGS") -> bool:
    """Whether an error comes from an instruction of the program's own code, not from what that calls."""
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return is_users(code.co_filename) and dis.opname[code.co_code[trace.tb_lasti]].startswith(by)
