"""`for` and `while` of the program: which of their iterations Python runs one after the other, and which are one loop.

Read `stage_while` and `stage_for`; `loops` stages the one loop of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from smelt.capture.convert.runtime import Names, Runtime, Thunk, Variables, nothing
from smelt.capture.recording.tensor_slots import Slot, slot_type
from smelt.capture.staging.fakes.symbols import StagedObject, is_staged, slot_of
from smelt.capture.staging.flow.assumptions import LoopKind, loop_is
from smelt.capture.staging.flow.branches import branch, condition, traced_truth
from smelt.capture.staging.flow.iterables import (
    KnownRange,
    Once,
    StagedSequence,
    lists_in,
    lists_under,
    sequence_of,
)
from smelt.capture.staging.flow.loops import Loop, grown_over, run_loop
from smelt.capture.staging.flow.stops import Again
from smelt.capture.staging.records import Structured, size_of
from smelt.capture.staging.session import Session
from smelt.ir import UnknownDim

SHORT = 8
"""Iterations below which a loop that Python knows all of is always unrolled."""
LONG = 64
"""Iterations up to which a loop that Python knows all of is unrolled: small bodies run faster so."""
LARGE = 96
"""Operators that the iterations of an unrolled loop come to at most: larger ones are one loop of the graph. Where
unrolled code is faster, a pass unrolls it again."""

_MOST_GROWING = 16

Turn = Callable[..., None]
"""One iteration of a loop: of a `for` with the item, of a `while` with nothing."""


class LoopStatement(NamedTuple):
    """A loop of the program's, and the variables that it may rebind.

    key: its place in the user's file. more: asked after each iteration whether to go on; None where it always does.
    anew: the variables that each iteration binds before it reads them.
    """

    key: tuple[object, ...]
    body: Turn
    variables: Variables
    more: Thunk | None = None
    anew: Names = ()


def stage_while(session: Session, loop: LoopStatement, test: Thunk) -> None:
    """A `while`: one loop of the graph as soon as its test depends on data."""
    key, trace = loop.key, session.size_trace
    peeled, turns = session.assumed.peeled.get(key, 0), 0
    is_unrolled = session.assumed.has(key, LoopKind.UNROLLED)
    is_whole = session.assumed.has(key, LoopKind.WHOLE) and not is_unrolled
    while True:
        records = session.recorder.records
        mark, answers = len(records), dict(session.paths.regions[-1].answers)
        known = session.recorder.marked()
        before, snapshot = loop.variables.get(), session.heap.snapshot()
        start = trace.mark() if trace is not None and is_whole else None
        asked = 0 if trace is None else len(trace.guards)
        value = test()
        slot = condition(session, value)
        if slot is None and not value:
            return
        is_of_sizes = slot is None and trace is not None and len(trace.guards) > asked
        if is_of_sizes and turns and not is_whole and not is_unrolled:
            # How often it turns follows from a free size or number: one loop for all of them.
            raise Again(loop_is(key))
        if peeled > 0 or (slot is None and not is_whole):
            if slot is not None and not session.paths.fork(slot):
                return
            peeled, turns = peeled - 1, turns + 1
            loop.body()
            continue
        if turns and not session.assumed.has(key, LoopKind.WHOLE) and key not in session.assumed.peeled:
            # It came to depend on data on the way: a loop of the graph from its first turn.
            raise Again(loop_is(key))
        if session.recorder.records is not records:
            session.cannot(
                "the condition of a loop converts a value to bool in Python",
                "it is evaluated again in every iteration",
            )
        # As if the test had not been asked: nothing may stand for what it recorded.
        del records[mark:]
        session.recorder.back(known)
        session.paths.regions[-1].answers = answers
        snapshot.restore()
        loop.variables.set(before)
        if is_of_sizes and trace is not None:
            trace.back(start)
            session.rolled.add(key)
        if session.assumed.has(key, LoopKind.TESTED):
            _testing(session, loop, test)
        else:
            _one_loop(session, loop, lambda: _truth(session, test()))
        if is_of_sizes and _loses_sizes(session, before, loop.variables.get()):
            raise Again(loop_is(key, LoopKind.UNROLLED))
        return


def _one_loop(session: Session, loop: LoopStatement, test: Thunk) -> None:
    """A loop of the graph that goes on as long as a test holds."""
    run_loop(lambda: Loop(session, loop.key, loop.variables, test, loop.body, None))


def _testing(session: Session, loop: LoopStatement, test: Thunk) -> None:
    """A loop whose test binds variables: the answer is one more variable, made at the end of each turn."""
    # What is added lies in cells of these functions alone, as the program's variables do in theirs: told by the cells.
    state: list[Any] = [_truth(session, test())]
    body, (names, get, set_) = loop.body, loop.variables

    def turn() -> None:
        body()
        state[0] = _truth(session, test())

    def get_all() -> tuple[object, ...]:
        return (*get(), *state)

    def set_all(values: tuple[object, ...]) -> None:
        set_(values[:-1])
        state[:] = values[-1:]

    wider = Variables((*names, "__smelt_more"), get_all, set_all)
    _one_loop(session, loop._replace(body=turn, variables=wider), lambda: state[0])


def stage_for(session: Session, runtime: Runtime, loop: LoopStatement, iterable: Any) -> None:
    """A `for`: one loop of the graph over what depends on data, and over what would be long one after the other."""
    key, more = loop.key, loop.more
    if type(iterable) is list:
        iterable = grown_over(session, key, iterable, loop.variables, loop.body)
    sequence = sequence_of(session, iterable)
    if sequence is None and _is_rolled(session, key, iterable, more):
        sequence = KnownRange(iterable)
    elif sequence is not None and session.size_trace is not None:
        if session.assumed.has(key, LoopKind.UNROLLED):
            length = sequence.known_length()
            if length is not None:
                # What has just fixed it lets Python go over a tensor itself, as another way's run will.
                is_pythons = sequence_of(session, iterable) is None
                iterable, sequence = iterable if is_pythons else map(sequence.item, range(length)), None
        else:
            session.rolled.add(key)
    if sequence is None:
        _unrolled(session, loop, iterable)
        return
    for number in range(session.assumed.peeled.get(key, 0)):
        if not isinstance(sequence, KnownRange):
            length = sequence.length()
            longer = session.emit("py.gt", length, number) if is_staged(length) else length > number
            if not (session.paths.fork(slot_of(longer)) if is_staged(longer) else longer):
                return
        loop.body(sequence.item(number))
        go = True if more is None else more()
        slot = condition(session, go)
        if not (bool(go) if slot is None else session.paths.fork(slot)):
            return
    start = session.assumed.peeled.get(key, 0)
    is_live = session.assumed.has(key, LoopKind.LIVE)
    body = loop.body if is_live else _kept_as_long(session, loop, sequence)
    if more is not None or is_live:
        _with_breaks(session, runtime, loop._replace(body=body), sequence, start)
        return
    bounds = sequence.bounds() if not start else (start, sequence.length(), 1)
    item = sequence.item_at if not start else sequence.item
    turns = len(sequence.numbers) - start if isinstance(sequence, KnownRange) else None
    staged = run_loop(lambda: Loop(session, key, loop.variables, None, lambda i: body(item(i)), bounds, turns))
    if isinstance(iterable, Once):
        iterable.is_spent = True
    if turns is not None and (not staged.is_known_after or not _is_worth_it(session, staged)):
        # What Python computes on the way would depend on data; or little would be gained.
        raise Again(loop_is(key, LoopKind.UNROLLED))


def _is_worth_it(session: Session, staged: Loop) -> bool:
    """Whether one body is less than the iterations would be, one after the other: these may have been alike."""
    unrolled = session.unrolled.get(staged.key, staged.size * (staged.turns or 0))
    return 2 * staged.size <= unrolled


def _kept_as_long(session: Session, loop: LoopStatement, sequence: StagedSequence) -> Turn:
    """A turn of a loop over lists that keep their lengths. Raises: Again where it makes one longer or shorter:
    Python asks for the length before each turn."""
    lists, body, key = lists_in(sequence), loop.body, loop.key

    def turn(item: object) -> None:
        before, resized = [one.slot for one in lists], session.resized
        body(item)
        if session.resized != resized and any(one.slot is not old for one, old in zip(lists, before, strict=True)):
            raise Again(loop_is(key, LoopKind.LIVE))

    return turn if lists else body


def _is_rolled(session: Session, key: object, iterable: object, more: Thunk | None) -> bool:
    """Whether a loop that Python knows all of is one loop of the graph: a long one, or one that data may end."""
    if type(iterable) is not range or session.assumed.has(key, LoopKind.UNROLLED, LoopKind.COUNTED):
        return False
    rolled = session.assumed.has(key, LoopKind.WHOLE)
    rolled = rolled or (more is None and (len(iterable) > LONG or _was_large(session, key, len(iterable))))
    if rolled:
        session.rolled.add(key)
    return rolled and len(iterable) > session.assumed.peeled.get(key, 0)


def _was_large(session: Session, key: Any, turns: int) -> bool:
    """Whether the recorded run shows a loop to be many operators: those below its line in its function that ran as
    often as it has iterations, or more often. What it calls elsewhere is not counted.
    """
    if turns < SHORT:
        return False
    if key not in session.unrolled:
        file, line = key[:2]
        below = [one for one in session.reading.times_of_lines if one[0].file == file and one[0].line > line]
        if not below:
            return False
        function = min(below, key=lambda one: one[0].line)[0].function
        found = sum(times for span, times in below if span.function == function and times >= turns)
        if found <= LARGE:
            return False
        session.unrolled[key] = found
    return session.unrolled[key] > LARGE


def _with_breaks(session: Session, runtime: Runtime, loop: LoopStatement, sequence: StagedSequence, start: int) -> None:
    """A loop that may end early: a `while` with a place more for the index, and one for whether to go on. What it goes
    over may become longer or shorter in it.
    """
    state: list[Any] = [start, True]
    body, (names, get, set_) = loop.body, loop.variables
    more = loop.more if loop.more is not None else lambda: True
    at_start = None if session.assumed.has(loop.key, LoopKind.LIVE) else sequence.length()

    def test() -> object:
        length = sequence.length() if at_start is None else at_start
        return runtime.and_(0, lambda: session.binary("py.lt", state[0], length), lambda: state[1])

    def turn() -> None:
        body(sequence.item(state[0]))
        state[0] = state[0] + 1
        state[1] = _truth(session, more())

    def get_all() -> tuple[object, ...]:
        return (*get(), *state)

    def set_all(values: tuple[object, ...]) -> None:
        set_(values[:-2])
        state[:] = values[-2:]

    before = get()
    wider = Variables((*names, "__smelt_index", "__smelt_more"), get_all, set_all)
    _one_loop(session, loop._replace(body=turn, variables=wider), test)
    if isinstance(sequence, KnownRange):
        _must_not_grow(session, loop, sequence.length(), before)


def _must_not_grow(session: Session, loop: LoopStatement, turns: int, before: tuple[object, ...]) -> None:
    """Where a short loop that data may end makes tensors of known sizes ones of unknown sizes, each number of its
    turns is a way of its own: there all sizes are known. before: what the variables held. Raises: Again.
    """
    if turns <= _MOST_GROWING and not session.assumed.has(loop.key, LoopKind.UNCOUNTED):
        for old, new in zip(before, loop.variables.get(), strict=True):
            if not _all_known(session, new) and _all_known(session, old):
                raise Again(loop_is(loop.key, LoopKind.COUNTED))


def _unrolled(session: Session, loop: LoopStatement, iterable: Iterable[object]) -> None:
    """A loop over what Python knows; once it may have ended early, each further turn stands under an `if`."""
    may_roll = type(iterable) is range and len(iterable) >= SHORT
    may_roll = may_roll and not session.assumed.has(loop.key, LoopKind.WHOLE, LoopKind.UNROLLED, LoopKind.COUNTED)
    session.heap.gone_over.append((loop.key if type(iterable) is list else None, lists_under(iterable)))
    try:
        _turns(session, loop, iterable, may_roll)
    finally:
        session.heap.gone_over.pop()


def _turns(session: Session, loop: LoopStatement, iterable: Any, may_roll: bool) -> None:
    iterator = iter(iterable)
    is_short = may_roll and len(iterable) <= SHORT
    for number, item in enumerate(iterator):
        records, mark = session.recorder.records, len(session.recorder.records)
        loop.body(item)
        if may_roll and not is_short and any(isinstance(r, Structured) for r in records[mark:]):
            raise Again(loop_is(loop.key))
        if loop.more is None:
            if may_roll and number == 1:  # the first one often differs
                _must_be_small(session, loop, size_of(records[mark:]) * len(iterable))
            continue
        go = loop.more()
        slot = condition(session, go)
        if slot is None:
            if not go:
                return
            continue
        if may_roll and not is_short:
            raise Again(loop_is(loop.key))
        if session.assumed.has(loop.key, LoopKind.COUNTED):
            if not session.paths.fork(slot):
                return
            continue
        rest = list(iterator)
        lengths = [len(one) for one in session.heap.gone_over[-1][1]]
        _rest(session, loop, loop.more, rest, slot)
        if lengths != [len(one) for one in session.heap.gone_over[-1][1]]:
            session.cannot("a list changes its length in a loop over it that data may end")
        return


def _must_be_small(session: Session, loop: LoopStatement, operators: int) -> None:
    """Raises: Again where a loop's iterations are many operators, one after the other."""
    if operators > LARGE:
        session.unrolled[loop.key] = operators
        raise Again(loop_is(loop.key))


def _rest(session: Session, loop: LoopStatement, more: Thunk, rest: Sequence[object], slot: Slot) -> None:
    """The turns over what is left, each under an `if` of whether the one before it ended the loop."""
    if not rest:
        return
    body = loop.body

    def turn() -> None:
        body(rest[0])

    before = loop.variables.get()
    key = (*loop.key, "turn", len(rest))
    branch(session, key, slot, turn, nothing, loop.variables, loop.anew)
    _must_not_grow(session, loop, len(rest), before)
    go = more()
    following = condition(session, go)
    if following is None:
        if go:
            for item in rest[1:]:
                body(item)
                if not more():
                    return
        return
    _rest(session, loop, more, rest[1:], following)


def _loses_sizes(session: Session, before: Iterable[object], after: Iterable[object]) -> bool:
    """Whether a loop leaves tensors of unknown sizes in variables that held others."""
    pairs = zip(before, after, strict=True)
    return any(_has_unknown(session, new) and not _has_unknown(session, old) for old, new in pairs)


def _has_unknown(session: Session, value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_has_unknown(session, item) for item in value)
    if not isinstance(value, torch.Tensor):
        return False
    type_ = slot_type(session.recorder.slot_of(value))
    return type_.shape is None or any(isinstance(dim, UnknownDim) for dim in (*type_.shape, *(type_.strides or ())))


def _all_known(session: Session, value: object) -> bool:
    """Whether the sizes of all tensors of a variable are known."""
    if isinstance(value, (tuple, list)):
        return all(_all_known(session, item) for item in value)
    if isinstance(value, StagedObject):
        return False
    return not isinstance(value, torch.Tensor) or slot_type(session.recorder.slot_of(value)).is_static


def _truth(session: Session, value: object) -> object:
    """The truth of what a test gives: a plain bool, or a traced one where it depends on data."""
    return bool(value) if condition(session, value) is None else traced_truth(session, value)


AS_PYTHON = (stage_for, stage_while, _unrolled, _turns)
"""What does for the program what Python does: what is raised there is the program's."""
