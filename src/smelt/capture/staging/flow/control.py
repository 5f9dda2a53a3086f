"""The runtime of a traced run: what converted code asks of Python, answered for values that depend on data.

Where no operand depends on data each method does what Python does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch

from smelt._torch.seen.shadow import is_shadow
from smelt.capture.convert.runtime import Get, Names, PlainRuntime, Set, Thunk, nothing
from smelt.capture.dynamic.values import is_sized
from smelt.capture.recording.recorder import slot_type
from smelt.capture.staging import calls
from smelt.capture.staging.fakes.symbols import StagedObject, is_staged, slot_of, wrap
from smelt.capture.staging.flow import choices, ordering
from smelt.capture.staging.flow.branches import branch, condition
from smelt.capture.staging.flow.iterables import (
    KnownRange,
    Once,
    StagedRange,
    StagedSequence,
    lists_in,
    lists_under,
    sequence_of,
)
from smelt.capture.staging.flow.loops import Loop, grown_over, run_loop
from smelt.capture.staging.flow.merge import Pending, Poison, check_identity
from smelt.capture.staging.flow.stops import EFFECT, Again
from smelt.capture.staging.objects.appending import Appending
from smelt.capture.staging.objects.classes import class_of
from smelt.capture.staging.objects.handlers import is_catchable
from smelt.capture.staging.objects.reachable import is_own_module
from smelt.capture.staging.records import Structured, size_of
from smelt.capture.staging.session import Session
from smelt.capture.staging.texts import formatted, is_said, text_of
from smelt.ir import ANY, BOOL, FLOAT, INT, ListType, TupleType, UnknownDim
from smelt.ir.python_operators import BY_SYMBOL, UNARY_BY_SYMBOL

SHORT = 8
"""Iterations below which a loop that Python knows all of is always unrolled."""
LONG = 64
"""Iterations up to which a loop that Python knows all of is unrolled: small bodies run faster so."""
LARGE = 96
"""Operators that the iterations of an unrolled loop come to at most: larger ones are one loop of the graph. Where
unrolled code is faster, a pass unrolls it again."""

_MOST_GROWING = 16
_PLAIN = PlainRuntime()
_CLASSES: dict[Any, type] = {INT: int, FLOAT: float, BOOL: bool}
_SEQUENCES = (list, tuple, torch.Size)
# Those that have an operator of the graph.
_PY = BY_SYMBOL.keys() - {"@"}


class StagingRuntime(PlainRuntime):
    """Answers for one session."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session

    # --- statements --------------------------------------------------------------------------------------------------

    def if_(self, at: int, test: Any, then: Thunk, orelse: Thunk, names: Names, get: Get, set: Set) -> None:
        slot = condition(self.session, test)
        if slot is None:
            _PLAIN.if_(at, test, then, orelse, names, get, set)
            return
        branch(self.session, _key(at, names), slot, then, orelse, names, get, set)

    def while_(self, at: int, test: Any, body: Callable[..., None], names: Names, get: Get, set: Set) -> None:
        session, key = self.session, _key(at, names)
        peeled, turns, trace = session.peeled.get(key, 0), 0, session.size_trace
        is_unrolled = ("unrolled", key) in session.whole
        is_whole = key in session.whole and not is_unrolled
        while True:
            records = session.recorder.records
            mark, answers = len(records), dict(session.regions[-1].answers)
            known = session.recorder.marked()
            before, snapshot = get(), session.snapshot()
            start = trace.mark() if trace is not None and is_whole else None
            asked = 0 if trace is None else len(trace.guards)
            value = test()
            slot = condition(session, value)
            if slot is None and not value:
                return
            is_of_sizes = slot is None and trace is not None and len(trace.guards) > asked
            if is_of_sizes and turns and not is_whole and not is_unrolled:
                # How often it turns follows from a free size or number: one loop for all of them.
                raise Again(whole=key)
            if peeled > 0 or (slot is None and not is_whole):
                if slot is not None and not session.fork(slot):
                    return
                peeled, turns = peeled - 1, turns + 1
                body()
                continue
            if turns and key not in session.whole and key not in session.peeled:
                # It came to depend on data on the way: a loop of the graph from its first turn.
                raise Again(whole=key)
            if session.recorder.records is not records:
                session.cannot(
                    "the condition of a loop converts a value to bool in Python",
                    "it is evaluated again in every iteration",
                )
            # As if the test had not been asked: nothing may stand for what it recorded.
            del records[mark:]
            session.recorder.back(known)
            session.regions[-1].answers = answers
            snapshot.restore()
            set(before)
            if is_of_sizes and trace is not None:
                trace.back(start)
                session.rolled.add(key)
            if ("test", key) in session.whole:
                self._testing(key, test, body, names, get, set)
            else:
                run_loop(lambda: Loop(session, key, names, get, set, lambda: _plain_bool(session, test()), body, None))
            if is_of_sizes and _loses_sizes(session, before, get()):
                raise Again(whole=("unrolled", key))
            return

    def _testing(self, key: object, test: Any, body: Callable[..., None], names: Names, get: Get, set: Set) -> None:
        """A loop whose test binds variables: the answer is one more variable, made at the end of each turn."""
        state: list[Any] = [_plain_bool(self.session, test())]

        def turn() -> None:
            body()
            state[0] = _plain_bool(self.session, test())

        def get_all() -> tuple[object, ...]:
            return (*get(), state[0])

        def set_all(values: tuple[Any, ...]) -> None:
            set(values[:-1])
            state[0] = values[-1]

        every = (*names, "__smelt_more")
        run_loop(lambda: Loop(self.session, key, every, get_all, set_all, lambda: state[0], turn, None))

    def for_(
        self,
        at: int,
        iterable: Any,
        body: Callable[..., None],
        names: Names,
        get: Get,
        set: Set,
        more: Thunk | None,
        anew: Names = (),
    ) -> None:
        session, key = self.session, _key(at, names)
        _use(session, iterable)
        if type(iterable) is list:
            iterable = grown_over(session, key, iterable, names, get, set, body)
        sequence = sequence_of(session, iterable)
        if sequence is None and self._is_rolled(key, iterable, more):
            sequence = KnownRange(iterable)
        elif sequence is not None and session.size_trace is not None:
            if ("unrolled", key) in session.whole:
                length = sequence.known_length()
                if length is not None:
                    # What has just fixed it lets Python go over a tensor itself, as another way's run will.
                    is_pythons = sequence_of(session, iterable) is None
                    iterable, sequence = iterable if is_pythons else map(sequence.item, range(length)), None
            else:
                session.rolled.add(key)
        if sequence is None:
            self._unrolled(key, iterable, body, names, get, set, more, anew)
            return
        for number in range(session.peeled.get(key, 0)):
            if not isinstance(sequence, KnownRange):
                length = sequence.length()
                longer = session.emit("py.gt", length, number) if is_staged(length) else length > number
                if not (session.fork(slot_of(longer)) if is_staged(longer) else longer):
                    return
            body(sequence.item(number))
            go = True if more is None else more()
            slot = condition(session, go)
            if not (bool(go) if slot is None else session.fork(slot)):
                return
        start = session.peeled.get(key, 0)
        is_live = ("live", key) in session.whole
        if not is_live:
            body = self._kept_as_long(key, sequence, body)
        if more is None and not is_live:
            bounds = sequence.bounds() if not start else (start, sequence.length(), 1)
            item = sequence.item_at if not start else sequence.item
            turns = len(sequence.numbers) - start if isinstance(sequence, KnownRange) else None
            loop = run_loop(lambda: Loop(session, key, names, get, set, None, lambda i: body(item(i)), bounds, turns))
            if isinstance(iterable, Once):
                iterable.is_spent = True
            if turns is not None and (not loop.is_known_after or not self._is_worth_it(key, loop)):
                # What Python computes on the way would depend on data; or little would be gained.
                raise Again(whole=("unrolled", key))
            return
        go_on = more if more is not None else lambda: True
        self._with_breaks(key, sequence, start, body, names, get, set, go_on, is_live)

    def _is_worth_it(self, key: object, loop: Loop) -> bool:
        """Whether one body is less than the iterations would be, one after the other: these may have been alike."""
        unrolled = self.session.unrolled.get(key, loop.size * (loop.turns or 0))
        return 2 * loop.size <= unrolled

    def _kept_as_long(
        self, key: object, sequence: StagedSequence, body: Callable[[object], None]
    ) -> Callable[[object], None]:
        """A turn of a loop over lists that keep their lengths. Raises: Again where it makes one longer or shorter:
        Python asks for the length before each turn."""
        session = self.session
        lists = lists_in(sequence)

        def turn(item: object) -> None:
            before, resized = [one.slot for one in lists], session.resized
            body(item)
            if session.resized != resized and any(one.slot is not old for one, old in zip(lists, before, strict=True)):
                raise Again(whole=("live", key))

        return turn if lists else body

    def _is_rolled(self, key: object, iterable: object, more: object) -> bool:
        """Whether a loop that Python knows all of is one loop of the graph: a long one, or one that data may end."""
        session = self.session
        if type(iterable) is not range or not session.whole.isdisjoint((("unrolled", key), ("growing", key))):
            return False
        rolled = key in session.whole or (more is None and len(iterable) > LONG)
        if rolled:
            session.rolled.add(key)
        return rolled and len(iterable) > session.peeled.get(key, 0)

    def _with_breaks(
        self, key: Any, sequence: StagedSequence, start: int, body: Callable[..., None], names: Names, get: Get,
        set: Set, more: Thunk, is_live: bool,
    ) -> None:  # fmt: skip
        """A loop that may end early: a `while` with a place more for the index, and one for whether to go on.

        is_live: what it goes over becomes longer or shorter in it.
        """
        state: list[Any] = [start, True]
        at_start = None if is_live else sequence.length()

        def test() -> Any:
            length = sequence.length() if at_start is None else at_start
            return self.and_(0, lambda: self.session.binary("py.lt", state[0], length), lambda: state[1])

        def turn() -> None:
            body(sequence.item(state[0]))
            state[0] = state[0] + 1
            state[1] = _plain_bool(self.session, more())

        def get_all() -> tuple[object, ...]:
            return (*get(), *state)

        def set_all(values: tuple[Any, ...]) -> None:
            set(values[:-2])
            state[:] = values[-2:]

        every = (*names, "__smelt_index", "__smelt_more")
        before = get()
        run_loop(lambda: Loop(self.session, key, every, get_all, set_all, test, turn, None))
        if isinstance(sequence, KnownRange):
            self._must_not_grow(key, sequence.length(), before, get())

    def _must_not_grow(self, key: object, turns: int, before: Any, after: Any) -> None:
        """Where a short loop that data may end makes tensors of known sizes ones of unknown sizes, each number of its
        turns is a way of its own: there all sizes are known. Raises: Again.
        """
        session = self.session
        if turns <= _MOST_GROWING and ("level", key) not in session.whole:
            for old, new in zip(before, after, strict=True):
                if not _all_known(session, new) and _all_known(session, old):
                    raise Again(whole=("growing", key))

    def _unrolled(
        self,
        key: object,
        iterable: object,
        body: Callable[..., None],
        names: Names,
        get: Get,
        set: Set,
        more: Thunk | None,
        anew: Names,
    ) -> None:
        """A loop over what Python knows; once it may have ended early, each further turn stands under an `if`."""
        session = self.session
        may_roll = type(iterable) is range and len(iterable) >= SHORT
        may_roll = may_roll and session.whole.isdisjoint((key, ("unrolled", key), ("growing", key)))
        session.gone_over.append((key if type(iterable) is list else None, lists_under(iterable)))
        try:
            self._turns(key, iterable, body, names, get, set, more, anew, may_roll)
        finally:
            session.gone_over.pop()

    def _turns(
        self,
        key: Any,
        iterable: Any,
        body: Callable[..., None],
        names: Names,
        get: Get,
        set: Set,
        more: Thunk | None,
        anew: Names,
        may_roll: bool,
    ) -> None:
        session = self.session
        iterator = iter(iterable)
        is_short = may_roll and len(iterable) <= SHORT
        for number, item in enumerate(iterator):
            records, mark = session.recorder.records, len(session.recorder.records)
            body(item)
            if may_roll and not is_short and any(isinstance(r, Structured) for r in records[mark:]):
                raise Again(whole=key)
            if more is None:
                if may_roll and number == 1:  # the first one often differs
                    self._must_be_small(key, size_of(records[mark:]) * len(iterable))
                continue
            go = more()
            slot = condition(session, go)
            if slot is None:
                if not go:
                    return
                continue
            if may_roll and not is_short:
                raise Again(whole=key)
            if ("growing", key) in session.whole:
                if not session.fork(slot):
                    return
                continue
            rest = list(iterator)
            lengths = [len(one) for one in session.gone_over[-1][1]]
            self._rest(key, rest, body, names, get, set, more, slot, anew)
            if lengths != [len(one) for one in session.gone_over[-1][1]]:
                session.cannot("a list changes its length in a loop over it that data may end")
            return

    def _must_be_small(self, key: object, operators: int) -> None:
        """Raises: Again where a loop's iterations are many operators, one after the other."""
        if operators > LARGE:
            self.session.unrolled[key] = operators
            raise Again(whole=key)

    def _rest(
        self,
        key: Any,
        rest: list[Any],
        body: Callable[..., None],
        names: Names,
        get: Get,
        set: Set,
        more: Thunk,
        slot: Any,
        anew: Names,
    ) -> None:
        if not rest:
            return
        session = self.session

        def turn() -> None:
            body(rest[0])

        before = get()
        branch(session, (*key, "turn", len(rest)), slot, turn, nothing, names, get, set, anew)
        self._must_not_grow(key, len(rest), before, get())
        go = more()
        following = condition(session, go)
        if following is None:
            if go:
                for item in rest[1:]:
                    body(item)
                    if not more():
                        return
            return
        self._rest(key, rest[1:], body, names, get, set, more, following, anew)

    def assert_(self, at: int, test: Any, message: Any) -> None:
        session = self.session
        slot = condition(session, test)
        if slot is None:
            try:
                _PLAIN.assert_(at, test, message)
            except AssertionError as error:
                self._raised(error)
                raise
            return

        def fails() -> None:
            raise self._raised(AssertionError() if message is None else AssertionError(message()))

        if message is None and not is_catchable(session):
            session.statement("py.assert", test)
            return
        branch(session, _key(at, ("assert",)), slot, nothing, fails, (), tuple, lambda values: None)

    def raise_(self, at: int, exc: Any, cause: Any) -> None:
        # What comes up while they are made is another error.
        raised, of = None if exc is None else exc(), None if cause is None else cause()
        try:
            _PLAIN.raise_(at, exc and (lambda: raised), cause and (lambda: of))
        except Exception as error:
            self._raised(error)
            raise

    def _raised(self, error: Exception) -> Exception:
        self.session.raised.append(error)
        return error

    # --- expressions -------------------------------------------------------------------------------------------------

    def ifexp(self, at: int, test: Any, then: Any, orelse: Any) -> object:
        slot = condition(self.session, test)
        if slot is None:
            return then() if test else orelse()
        return self._choose(at, slot, then, orelse, then)

    def _choose(
        self, at: int, slot: Any, then: Callable[[], object], orelse: Callable[[], object], part: Any
    ) -> object:
        """What one of two expressions gives. part: one of them, or what is asked, as the program has it: on one line
        there may be several."""
        held: list[Any] = [None]

        def first() -> None:
            held[0] = then()

        def second() -> None:
            held[0] = orelse()

        def get() -> tuple[Any, ...]:
            return (held[0],)

        def set_(values: tuple[object, ...]) -> None:
            held[0] = values[0]

        branch(self.session, _key(at, ("choose", *_columns(part.__code__))), slot, first, second, ("value",), get, set_)
        return held[0]

    def and_(self, at: int, *thunks: Any) -> object:
        value = thunks[0]()
        if len(thunks) == 1:
            return value
        slot = condition(self.session, value)
        if slot is None:
            return self.and_(at, *thunks[1:]) if value else value
        return self._choose(at, slot, lambda: self.and_(at, *thunks[1:]), lambda: _known(value, False), thunks[0])

    def or_(self, at: int, *thunks: Any) -> object:
        value = thunks[0]()
        if len(thunks) == 1:
            return value
        slot = condition(self.session, value)
        if slot is None:
            return value if value else self.or_(at, *thunks[1:])
        return self._choose(at, slot, lambda: _known(value, True), lambda: self.or_(at, *thunks[1:]), thunks[0])

    def not_(self, at: int, value: object) -> Any:
        slot = condition(self.session, value)
        return (not value) if slot is None else self.session.emit("py.not_", _staged(self.session, value))

    def truth(self, at: int, value: object) -> object:
        return bool(value) if condition(self.session, value) is None else _staged(self.session, value)

    def compare(self, at: int, left: Any, *rest: Any) -> Any:
        op, thunk = rest[0]
        right = thunk()
        value = self._compare(op, left, right)
        if len(rest) == 1:
            return value
        slot = condition(self.session, value)
        if slot is None:
            return self.compare(at, right, *rest[1:]) if value else value
        return self._choose(at, slot, lambda: self.compare(at, right, *rest[1:]), lambda: _known(value, False), thunk)

    def _compare(self, op: str, left: object, right: object) -> object:
        _use(self.session, left, right)
        if op in ("in", "not in"):
            found = self.contains(0, left, right)
            return found if op == "in" else self.not_(0, found)
        if op in ("is", "is not"):
            ordering.check_change(self.session, left)
            ordering.check_change(self.session, right)
            if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left is not right:
                check_identity(self.session, left, right)
            if left is not right and _are_numbers(left, right) and (is_sized(left) or is_sized(right)):
                self.session.cannot("the program reads the identity of a dynamic number", "compare with `==`")
        if op in ("is", "is not") and (is_staged(left) or is_staged(right)):
            found = self._identical(left, right)
            return found if op == "is" else self.not_(0, found)
        for one, other in ((left, right), (right, left)):
            if op in ("==", "!=") and isinstance(one, StagedRange) and one.known_length() is None:
                found = one.equals(other)
                return found if op == "==" else self.not_(0, found)
        if op in _PY and (is_staged(left) or is_staged(right)):
            found = self.session.binary(f"py.{BY_SYMBOL[op].name}", left, right)
            if found is not NotImplemented:
                return found
        if op in ("==", "!=") and _are_alike(left, right) and (self._is_data(left) or self._is_data(right)):
            found = self._equal_items(left, right)
            return found if op == "==" else self.not_(0, found)
        return compared(op, left, right)

    def _equal_items(self, left: Any, right: Any) -> object:
        """Whether two sequences of one length are equal, as one question instead of one for each of Python's."""

        def equal(a: object, b: object) -> object:
            return True if a is b else self.truth(0, self._compare("==", a, b))

        pairs = [pair for pair in zip(left, right, strict=True) if any(map(self._is_data, pair)) or pair[0] != pair[1]]
        return self.and_(0, *(lambda a=a, b=b: equal(a, b) for a, b in pairs))

    def _identical(self, left: object, right: object) -> object:
        if left is right:
            return True
        for one, other in ((left, right), (right, left)):
            type_ = slot_of(one).type if is_staged(one) else None
            if other is None and type_ is not None:
                return self.session.emit("py.is_none", one) if type_ == ANY else False
            if isinstance(other, bool) and not is_staged(other) and type_ == BOOL:
                return self.session.emit("py.eq", one, other)
            if type_ in (INT, FLOAT, BOOL) and not is_staged(other) and type(other) is not _CLASSES[type_]:
                return False
        return self.session.cannot("the program reads the identity of a number that depends on data")

    def contains(self, at: int, item: Any, c: Any) -> object:
        session = self.session
        _use(session, item, c)
        if isinstance(c, torch.Tensor) and session.recorder.slot_of(c).family.tainted:
            return session.item((item == c).any())
        if isinstance(c, StagedRange) and c.known_length() is None:
            c = c.listed()
        if isinstance(item, StagedRange) and item.known_length() is None:
            item = item.itself()
        if is_staged(item) and type(c) in (list, tuple):
            if any(one is item or (is_staged(one) and slot_of(one) is slot_of(item)) for one in c):
                return True  # whatever it is equal to, as a NaN is to nothing
            if c and slot_of(item).type == FLOAT and all(map(_is_number, c)):
                # Not by the operator of lists: which numbers are one object is lost in a graph.
                found = [session.emit("py.eq", item, one) for one in c]
                return functools.reduce(functools.partial(self.binop, at, "|"), found)
        if is_staged(c) or (is_staged(item) and type(c) in (list, tuple, dict)):
            return session.emit("py.in_", item, c)
        if is_staged(item) and type(c) in (set, frozenset) and all(type(one) in (bool, int, str) for one in c):
            return session.emit("py.in_", item, sorted(c, key=repr))
        return item in c

    def call(self, at: int, fn: Any, args: Any, kwargs: Any) -> Any:
        _use_in_call(self.session, *args, *kwargs.values())
        return calls.call(self.session, self, fn, args, kwargs)

    def called_here(self, at: int, fn: object) -> object:
        return calls.called_here(self.session, fn)

    def getattr_(self, at: int, o: object, name: str) -> object:
        if type(o) is Appending and name == "append":
            o = o.items
        _use(self.session, o)
        if isinstance(o, StagedObject):
            return calls.method(self.session, o, name)
        if name == "__class__" and isinstance(o, torch.Tensor):
            return class_of(self.session, o)
        return getattr(o, name)

    def setattr_(self, at: int, o: object, name: str, v: object) -> None:
        _use(self.session, o)
        ordering.check_change(self.session, o)
        _check_library(self.session, o, f"`{name}` of a module")
        setattr(o, name, v)

    def getitem(self, at: int, o: Any, k: Any) -> Any:
        session = self.session
        _use(session, o, k)
        if isinstance(o, StagedRange):
            return o[k]
        if not isinstance(o, torch.Tensor) and (is_staged(k) or self._is_data_of_tensor(k)):
            if choices.is_list_of_code(o):
                return choices.at_number(session, self, o, self._whole(k), self._raised)
            if is_staged(k) and choices.is_table_of_code(o):
                return choices.at_key(session, o, k, self._raised)
            if type(o) in (list, tuple):
                return session.getitem(session.container(o), session.item(k) if isinstance(k, torch.Tensor) else k)
            if is_staged(k) and type(o) is dict:
                return session.getitem(session.container(o), k)
        if isinstance(k, slice) and type(o) in (list, tuple) and any(map(is_staged, (k.start, k.stop, k.step))):
            return session.getitem(session.container(o), k)
        return o[k]

    def _is_data_of_tensor(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and bool(self.session.recorder.slot_of(value).family.tainted)

    def _whole(self, value: object) -> object:
        """A number by which a list may be asked, staged. Raises: CannotStage for one that is none."""
        number = self.session.item(value) if isinstance(value, torch.Tensor) else value
        if slot_of(number).type not in (INT, BOOL):
            self.session.cannot(f"a list of modules or functions is read by a traced {slot_of(number).type}")
        return number

    def setitem(self, at: int, o: Any, k: Any, v: Any) -> None:
        _use(self.session, o, k, v)
        if isinstance(o, StagedObject):
            self.session.check_change(o)
            o.slot = slot_of(self.session.emit("py.setitem", o, k, v))
            return
        ordering.check_change(self.session, o)
        if o is sys.modules:
            _check_library(self.session, sys, "a module")
        o[k] = v

    def held(self, at: int, value: object) -> Any:
        _use(self.session, value)  # on some paths there may be none, and eager raises
        return value

    def delitem(self, at: int, o: object, k: object) -> None:
        ordering.check_change(self.session, o)
        super().delitem(at, o, k)

    def binop(self, at: int, op: str, a: object, b: object) -> Any:
        _use(self.session, a, b)
        if op in _PY and (is_staged(a) or is_staged(b)):
            found = self.session.binary(f"py.{BY_SYMBOL[op].name}", a, b)
            if found is not NotImplemented:
                return found
        if op == "*" and (type(a) is str or type(b) is str) and is_said(self.session, [a, b]):
            return self.session.emit("py.mul", a, b)
        if op == "%" and type(a) is str:
            found = formatted(self.session, "str.__mod__", a, b)
            if found is not NotImplemented:
                return found
        return _PLAIN.binop(at, op, a, b)

    def inplace(self, at: int, op: str, a: object, b: object) -> object:
        _use(self.session, a, b)
        ordering.check_change(self.session, a)
        if op == "+" and isinstance(a, StagedObject) and isinstance(slot_of(a).type, ListType):
            self.session.check_change(a)
            calls.extend(self.session, a, b)
            return a
        if op in _PY and not isinstance(a, torch.Tensor) and (is_staged(a) or is_staged(b)):
            if isinstance(a, (list, dict)):
                self.session.cannot("a list is extended by a traced one in place")
            return self.binop(at, op, a, b)
        return _PLAIN.inplace(at, op, a, b)

    def unop(self, at: int, op: str, a: object) -> object:
        _use(self.session, a)
        return self.session.emit(f"py.{UNARY_BY_SYMBOL[op].name}", a) if is_staged(a) else _PLAIN.unop(at, op, a)

    def fstring(self, at: int, parts: Any) -> object:
        return self.session.emit("py.join", *parts) if any(map(is_staged, parts)) else "".join(parts)

    def format_value(self, at: int, v: object, conversion: str | None, spec: object) -> object:
        _use(self.session, v, spec)
        is_said_here = self._is_data(v) or is_said(self.session, v)
        has_own = not is_said_here and getattr(type(v), "__format__", None) is object.__format__
        is_text = conversion in ("r", "s") or (conversion is None and type(spec) is str and not spec)
        if is_text and (has_own or (is_said_here and type(v) in _SEQUENCES)):
            v, conversion = text_of(self.session, self, v, "repr" if conversion == "r" else "str"), None
            is_said_here = is_staged(v)
            if is_said_here and type(spec) is str and not spec:
                return v
        if not (is_said_here or is_staged(spec)):
            return _PLAIN.format_value(at, v, conversion, spec)
        return self.session.emit("py.format", v, spec, *(() if conversion is None else (conversion,)))

    def _is_data(self, value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return self._is_data_of_tensor(value)
        if type(value) in _SEQUENCES:
            return any(map(self._is_data, value))
        if isinstance(value, StagedRange):
            return value.known_length() is None
        return is_staged(value) or (type(value) is dict and any(map(self._is_data, value.values())))

    def iterate(self, at: int, iterable: Any) -> Iterable[object]:
        _use(self.session, iterable)
        if isinstance(iterable, StagedObject):
            return calls.unpacked(self.session, iterable)
        if isinstance(iterable, StagedSequence):
            self.session.cannot("a traced range or list was unpacked")
        return iterable

    def matched(self, at: int, subject: object, longest: int | None) -> object:
        """A staged list as one of Python's, on a path for each length that it may have."""
        session = self.session
        _use(session, subject)
        if not isinstance(subject, StagedObject) or str(slot_of(subject).type) in ("str", "device", "dtype"):
            return subject
        kind = slot_of(subject).type
        if isinstance(kind, TupleType):
            return tuple(calls.unpacked(session, subject))
        if not isinstance(kind, ListType) or longest is None:
            session.cannot(f"a traced {kind} is matched against a pattern that takes any number of its items")
            return None
        length = session.emit("py.len", subject)
        for size in range(longest + 1):
            if session.fork(slot_of(session.emit("py.eq", length, size))):
                return [session.emit("py.getitem", subject, i) for i in range(size)]
        return [None] * (longest + 1)  # more than the pattern takes, whatever they are


def _key(at: int, names: Iterable[str]) -> tuple[object, ...]:
    """The place of a statement in the user's file."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__", "").startswith("smelt.capture") and frame.f_back is not None:
        frame = frame.f_back
    return (frame.f_code.co_filename, at, tuple(names))


@functools.lru_cache(maxsize=4096)
def _columns(code: Any) -> tuple[str, str]:
    """Where on its lines a part of an expression begins and ends."""
    places = [(line, begin, end) for line, _, begin, end in code.co_positions() if line and end]
    return (str(min(places)[1:]), str(max(places)[1:])) if places else ("", "")


def _check_library(session: Session, owner: object, what: str) -> None:
    """A name of a library's module is about to be set: nothing puts it back between ways. Raises: CannotStage."""
    if type(owner) is ModuleType and not session.is_on_all_paths and not is_own_module(owner):
        session.cannot(f"{what} is set on one path only", EFFECT)


def _use(session: Session, *values: object) -> None:
    for value in values:
        if isinstance(value, Poison):
            session.unmerge(value.why)
        if isinstance(value, Pending):
            session.cannot("a function returns a value on some paths only")
        if isinstance(value, Appending):
            value.refuse()


def _use_in_call(session: Session, *values: Any) -> None:
    """The same for arguments: a list or tuple that stands there holds what was loaded for it."""
    for value in values:
        _use(session, value, *(value if type(value) in _SEQUENCES else ()))


def _are_alike(left: Any, right: Any) -> bool:
    """Whether Python compares two values item by item."""
    if type(left) not in _SEQUENCES or type(right) not in _SEQUENCES or len(left) != len(right):
        return False
    return isinstance(left, list) == isinstance(right, list)


def _are_numbers(*values: object) -> bool:
    return all(is_sized(value) or type(value) in (int, float) for value in values)


def _is_number(value: object) -> bool:
    if is_staged(value):
        return slot_of(value).type in (INT, FLOAT, BOOL)
    return type(value) in (int, float, bool)


def _staged(session: Session, value: object) -> object:
    """The truth of a tensor or of a traced value as a traced bool."""
    slot = condition(session, value)
    return session.emit("py.bool", value) if isinstance(value, torch.Tensor) else wrap(slot)  # type: ignore[arg-type]


def _known(value: object, answer: bool) -> object:
    """What a value is where its truth is known: a bool is that."""
    return answer if is_staged(value) and slot_of(value).type == BOOL else value


def _loses_sizes(session: Session, before: Any, after: Any) -> bool:
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


def _plain_bool(session: Session, value: object) -> object:
    return bool(value) if condition(session, value) is None else _staged(session, value)


__all__ = ["StagedRange", "StagingRuntime"]


def compared(op: str, left: object, right: object) -> Any:
    """`left op right` by Python, which asks the operand of a subclass first: a shadow is of one, its tensor is not."""
    if type(left) is torch.Tensor and is_shadow(right) and op in _PY:
        found = getattr(torch.Tensor, BY_SYMBOL[op].method)(left, right)
        if found is not NotImplemented:
            return found
    return _PLAIN.compare(0, left, (op, lambda: right))
