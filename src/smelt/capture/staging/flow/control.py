"""The runtime of a traced run: what converted code asks of Python, answered for values that depend on data.

Where no operand depends on data each method does what Python does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Protocol

import torch

from smelt._torch.seen.staged_fakes import is_fake
from smelt.capture.convert.runtime import (
    Get,
    Names,
    PlainRuntime,
    Runtime,
    Set,
    Thunk,
    Variables,
    no_variables,
    nothing,
)
from smelt.capture.dynamic.values import is_sized
from smelt.capture.staging import calls
from smelt.capture.staging.fakes.symbols import StagedObject, is_staged, slot_of
from smelt.capture.staging.flow import choices, ordering
from smelt.capture.staging.flow.branches import branch, condition, traced_truth
from smelt.capture.staging.flow.iterables import (
    StagedRange,
    StagedSequence,
)
from smelt.capture.staging.flow.loop_statements import LoopStatement, Turn, stage_for, stage_while
from smelt.capture.staging.flow.merge import Pending, Poison, check_identity
from smelt.capture.staging.flow.stops import EFFECT
from smelt.capture.staging.objects.appending import Appending
from smelt.capture.staging.objects.classes import class_of
from smelt.capture.staging.objects.handlers import is_catchable
from smelt.capture.staging.objects.reachable import is_own_module
from smelt.capture.staging.session import Session
from smelt.capture.staging.texts import formatted, is_said, text_of
from smelt.ir import ANY, BOOL, FLOAT, INT, ListType, TupleType
from smelt.ir.python_operators import BY_SYMBOL, UNARY_BY_SYMBOL

_PLAIN = PlainRuntime()
_CLASSES: dict[object, type] = {INT: int, FLOAT: float, BOOL: bool}
_SEQUENCES = (list, tuple, torch.Size)
# Those that have an operator of the graph.
_PY = BY_SYMBOL.keys() - {"@"}


class Comparing(Runtime, Protocol):
    """A runtime that answers one comparison of a chain at a time, too."""

    def compare_two(self, op: str, left: object, right: object) -> object: ...


class StagingRuntime:
    """Answers for one session. whole: what converted code asks, and so each part of an answer; this one by default."""

    __slots__ = ("session", "whole")

    def __init__(self, session: Session, whole: Comparing | None = None) -> None:
        self.session = session
        self.whole: Comparing = whole or self

    # --- statements --------------------------------------------------------------------------------------------------

    def if_(self, at: int, test: Any, then: Thunk, orelse: Thunk, names: Names, get: Get, set: Set) -> None:
        slot = condition(self.session, test)
        if slot is None:
            _PLAIN.if_(at, test, then, orelse, names, get, set)
            return
        branch(self.session, _key(at, names), slot, then, orelse, Variables(names, get, set))

    def while_(self, at: int, test: Thunk, body: Turn, names: Names, get: Get, set: Set) -> None:
        stage_while(self.session, LoopStatement(_key(at, names), body, Variables(names, get, set)), test)

    def for_(
        self, at: int, iterable: object, body: Turn, names: Names, get: Get, set: Set, more: Thunk | None,
        anew: Names = (),
    ) -> None:  # fmt: skip
        use(self.session, iterable)
        loop = LoopStatement(_key(at, names), body, Variables(names, get, set), more, anew)
        stage_for(self.session, self.whole, loop, iterable)

    def assert_(self, at: int, test: Any, message: Any) -> None:
        session = self.session
        slot = condition(session, test)
        if slot is None:
            try:
                _PLAIN.assert_(at, test, message)
            except AssertionError as error:
                self.session.raising(error)
                raise
            return

        def fails() -> None:
            raise self.session.raising(AssertionError() if message is None else AssertionError(message()))

        if message is None and not is_catchable(session):
            session.statement("py.assert", test)
            return
        branch(session, _key(at, ("assert",)), slot, nothing, fails, no_variables())

    def raise_(self, at: int, exc: Any, cause: Any) -> None:
        # What comes up while they are made is another error.
        raised, of = None if exc is None else exc(), None if cause is None else cause()
        try:
            _PLAIN.raise_(at, exc and (lambda: raised), cause and (lambda: of))
        except Exception as error:
            self.session.raising(error)
            raise

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
        held: list[object] = [None]

        def first() -> None:
            held[0] = then()

        def second() -> None:
            held[0] = orelse()

        def get() -> tuple[Any, ...]:
            return (held[0],)

        def set_(values: tuple[object, ...]) -> None:
            held[0] = values[0]

        key = _key(at, ("choose", *_columns(part.__code__)))
        branch(self.session, key, slot, first, second, Variables(("value",), get, set_))
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
        return (not value) if slot is None else self.session.emit("py.not_", traced_truth(self.session, value))

    def truth(self, at: int, value: object) -> object:
        return bool(value) if condition(self.session, value) is None else traced_truth(self.session, value)

    def compare(self, at: int, left: Any, *rest: Any) -> Any:
        op, thunk = rest[0]
        right = thunk()
        value = self.whole.compare_two(op, left, right)
        if len(rest) == 1:
            return value
        slot = condition(self.session, value)
        if slot is None:
            return self.compare(at, right, *rest[1:]) if value else value
        return self._choose(at, slot, lambda: self.compare(at, right, *rest[1:]), lambda: _known(value, False), thunk)

    def compare_two(self, op: str, left: object, right: object) -> object:
        use(self.session, left, right)
        if op in ("in", "not in"):
            found = self.whole.contains(0, left, right)
            return found if op == "in" else self.whole.not_(0, found)
        if op in ("is", "is not"):
            ordering.check_change(self.session, left)
            ordering.check_change(self.session, right)
            if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left is not right:
                check_identity(self.session, left, right)
            if left is not right and _are_numbers(left, right) and (is_sized(left) or is_sized(right)):
                self.session.cannot("the program reads the identity of a dynamic number", "compare with `==`")
        if op in ("is", "is not") and (is_staged(left) or is_staged(right)):
            found = self._identical(left, right)
            return found if op == "is" else self.whole.not_(0, found)
        for one, other in ((left, right), (right, left)):
            if op in ("==", "!=") and isinstance(one, StagedRange) and one.known_length() is None:
                found = one.equals(other)
                return found if op == "==" else self.whole.not_(0, found)
        if op in _PY and (is_staged(left) or is_staged(right)):
            found = self.session.binary(f"py.{BY_SYMBOL[op].name}", left, right)
            if found is not NotImplemented:
                return found
        if op in ("==", "!=") and _are_alike(left, right) and (self._is_data(left) or self._is_data(right)):
            found = self._equal_items(left, right)
            return found if op == "==" else self.whole.not_(0, found)
        return compared(op, left, right)

    def _equal_items(self, left: Any, right: Any) -> object:
        """Whether two sequences of one length are equal, as one question instead of one for each of Python's."""

        def equal(a: object, b: object) -> object:
            return True if a is b else self.truth(0, self.whole.compare_two("==", a, b))

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
        use(session, item, c)
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
                return functools.reduce(functools.partial(self.whole.binop, at, "|"), found)
        if is_staged(c) or (is_staged(item) and type(c) in (list, tuple, dict)):
            return session.emit("py.in_", item, c)
        if is_staged(item) and type(c) in (set, frozenset) and all(type(one) in (bool, int, str) for one in c):
            return session.emit("py.in_", item, sorted(c, key=repr))
        return item in c

    def call(self, at: int, fn: Any, args: Any, kwargs: Any) -> Any:
        use_in_call(self.session, *args, *kwargs.values())
        return calls.call(self.session, self.whole, fn, args, kwargs)

    def called_here(self, at: int, fn: object) -> object:
        return calls.called_here(self.session, fn)

    def getattr_(self, at: int, o: object, name: str) -> object:
        if type(o) is Appending and name == "append":
            o = o.items
        use(self.session, o)
        if isinstance(o, StagedObject):
            return calls.method(self.session, o, name)
        if name == "__class__" and isinstance(o, torch.Tensor):
            return class_of(self.session, o)
        return getattr(o, name)

    def setattr_(self, at: int, o: object, name: str, v: object) -> None:
        use(self.session, o)
        ordering.check_change(self.session, o)
        _check_library(self.session, o, f"`{name}` of a module")
        setattr(o, name, v)

    def getitem(self, at: int, o: Any, k: Any) -> Any:
        session = self.session
        use(session, o, k)
        if isinstance(o, StagedRange):
            return o[k]
        if not isinstance(o, torch.Tensor) and (is_staged(k) or self._is_data_of_tensor(k)):
            if choices.is_list_of_code(o):
                return choices.at_number(session, self.whole, o, self._whole(k), self.session.raising)
            if is_staged(k) and choices.is_table_of_code(o):
                return choices.at_key(session, o, k, self.session.raising)
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
        use(self.session, o, k, v)
        if isinstance(o, StagedObject):
            self.session.domain.check_change(o)
            o.slot = slot_of(self.session.emit("py.setitem", o, k, v))
            return
        ordering.check_change(self.session, o)
        if o is sys.modules:
            _check_library(self.session, sys, "a module")
        o[k] = v

    def held(self, at: int, value: object) -> Any:
        use(self.session, value)  # on some paths there may be none, and eager raises
        return value

    def delitem(self, at: int, o: object, k: object) -> None:
        ordering.check_change(self.session, o)
        _PLAIN.delitem(at, o, k)

    def binop(self, at: int, op: str, a: object, b: object) -> Any:
        use(self.session, a, b)
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
        use(self.session, a, b)
        ordering.check_change(self.session, a)
        if op == "+" and isinstance(a, StagedObject) and isinstance(slot_of(a).type, ListType):
            self.session.domain.check_change(a)
            calls.extend(self.session, a, b)
            return a
        if op in _PY and not isinstance(a, torch.Tensor) and (is_staged(a) or is_staged(b)):
            if isinstance(a, (list, dict)):
                self.session.cannot("a list is extended by a traced one in place")
            return self.whole.binop(at, op, a, b)
        return _PLAIN.inplace(at, op, a, b)

    def unop(self, at: int, op: str, a: object) -> object:
        use(self.session, a)
        return self.session.emit(f"py.{UNARY_BY_SYMBOL[op].name}", a) if is_staged(a) else _PLAIN.unop(at, op, a)

    def fstring(self, at: int, parts: Any) -> object:
        return self.session.emit("py.join", *parts) if any(map(is_staged, parts)) else "".join(parts)

    def format_value(self, at: int, v: object, conversion: str | None, spec: object) -> object:
        use(self.session, v, spec)
        is_said_here = self._is_data(v) or is_said(self.session, v)
        has_own = not is_said_here and getattr(type(v), "__format__", None) is object.__format__
        is_text = conversion in ("r", "s") or (conversion is None and type(spec) is str and not spec)
        if is_text and (has_own or (is_said_here and type(v) in _SEQUENCES)):
            v, conversion = text_of(self.session, self.whole, v, "repr" if conversion == "r" else "str"), None
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
        use(self.session, iterable)
        if isinstance(iterable, StagedObject):
            return calls.unpacked(self.session, iterable)
        if isinstance(iterable, StagedSequence):
            self.session.cannot("a traced range or list was unpacked")
        return iterable

    def starred(self, at: int, rest: list[object]) -> object:
        return rest

    def display(self, at: int, is_list: bool, *parts: Iterable[object]) -> object:
        return _PLAIN.display(at, is_list, *parts)

    def matched(self, at: int, subject: object, longest: int | None) -> object:
        """A staged list as one of Python's, on a path for each length that it may have."""
        session = self.session
        use(session, subject)
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
            if session.paths.fork(slot_of(session.emit("py.eq", length, size))):
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
    if type(owner) is ModuleType and not session.paths.is_on_all and not is_own_module(owner):
        session.cannot(f"{what} is set on one path only", EFFECT)


def use(session: Session, *values: object) -> None:
    """The program uses values. Raises: Again, CannotStage where one has none on some paths."""
    for value in values:
        if isinstance(value, Poison):
            session.unmerge(value.why)
        if isinstance(value, Pending):
            session.cannot("a function returns a value on some paths only")
        if isinstance(value, Appending):
            value.refuse()


def use_in_call(session: Session, *values: Any) -> None:
    """The same for arguments: a list or tuple that stands there holds what was loaded for it."""
    for value in values:
        use(session, value, *(value if type(value) in _SEQUENCES else ()))


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


def _known(value: object, answer: bool) -> object:
    """What a value is where its truth is known: a bool is that."""
    return answer if is_staged(value) and slot_of(value).type == BOOL else value


__all__ = ["StagedRange", "StagingRuntime"]


def compared(op: str, left: object, right: object) -> Any:
    """`left op right` by Python, which asks the operand of a subclass first: a fake tensor is one of those."""
    if type(left) is torch.Tensor and is_fake(right) and op in _PY:
        found = getattr(torch.Tensor, BY_SYMBOL[op].method)(left, right)
        if found is not NotImplemented:
            return found
    return _PLAIN.compare(0, left, (op, lambda: right))
