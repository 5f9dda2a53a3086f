"""Calls of a program whose state is one of its arguments: what its places hold is read, and given to it.

    c(x)    ==>    core(x, **{STATE: (self.n, self.ema)})       which is served like any call, natively where it can be

Invariant: what places hold is read right before the call and put by the compiled program; no other call of the same
compiled object comes between.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any, Final

from smelt.capture.structure.state import STATE, Place, reader
from smelt.runtime.guarding.guard_facts import FactTest

SLOT = "_smelt_dispatcher"
_WAIT_S: Final = 2.0  # for other calls, which may wait for this one


class Core:
    """What native code is called through: it finds the dispatcher, as in a compiled object."""

    __slots__ = (SLOT,)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        dispatcher = object.__getattribute__(self, SLOT)
        return dispatcher(args, kwargs)


class StateCalls:
    """The places of one program, and calls with what they hold."""

    __slots__ = ("_read", "places")

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = tuple(places)
        self._read = reader(places)

    @staticmethod
    def core(dispatcher: Any) -> Core:
        """A callable with the program's rows. It is made for one call: it keeps the dispatcher alive."""
        found = Core()
        object.__setattr__(found, SLOT, dispatcher)
        return found

    def run(self, dispatcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer, while no other call runs.

        Raises: StateGone where a place holds nothing; what the program raises.
        """
        try:
            kwargs[STATE] = self._read()
        except (LookupError, ValueError, AttributeError):
            raise StateGone from None
        return self.core(dispatcher)(*args, **kwargs)


class UnderWay:
    """The calls of one compiled object that are under way and hold no lock; true while there are any.

    A recorded run of which nobody knows what it changes is alone among them: attributes that are watched are read and
    written by Python, so that `self.n += 1` of another thread would lose what it does between its read and its write.
    """

    __slots__ = ("_calls", "_changed", "_recorder", "_with_state")

    def __init__(self, with_state: AbstractContextManager[Any]) -> None:
        self._with_state = with_state  # the lock of calls that read and put a state
        self._calls: dict[object, int] = {}  # their threads
        self._recorder = 0  # its thread
        self._changed = threading.Condition()

    def __bool__(self) -> bool:
        return bool(self._calls)

    def begin(self) -> object:
        """A call begins, where another thread records, after that; for how long is bounded. Returns what ends it."""
        this, thread = object(), threading.get_ident()
        # First the call, then the look: who begins to record looks the other way round.
        self._calls[this] = thread
        if self._recorder not in (0, thread):
            self._wait(this, thread)
        return this

    def _wait(self, this: object, thread: int) -> None:
        until = monotonic() + _WAIT_S
        while self._recorder not in (0, thread) and monotonic() < until:
            self.end(this)
            with self._changed:
                self._changed.wait_for(lambda: self._recorder in (0, thread), until - monotonic())
            self._resume(this, thread)

    def _resume(self, this: object, thread: int) -> None:
        """A call goes on that was not under way for a while. It waits for a call that began then and has a state, and
        which would undo between its read and its write what this one does.
        """
        with self._with_state:
            self._calls[this] = thread

    def end(self, call: object | None) -> None:
        """A call has ended."""
        self._calls.pop(call, None)
        if self._recorder:
            with self._changed:
                self._changed.notify_all()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The call that this thread has begun last does nothing in this block: it waits for who records, maybe.

        No lock may be held at the end of it, where the call waits for calls with a state and for who records.
        """
        thread = threading.get_ident()
        last = next((call for call, one in reversed(list(self._calls.items())) if one == thread), None)
        self.end(last)
        try:
            yield
        finally:
            if last is not None:
                self._resume(last, thread)
                if self._recorder not in (0, thread):
                    self._wait(last, thread)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No call of another thread is under way in this block, or has been for a bounded time."""
        thread = threading.get_ident()
        with self._changed:
            self._recorder = thread
            self._changed.wait_for(lambda: all(one == thread for one in list(self._calls.values())), _WAIT_S)
        try:
            yield
        finally:
            with self._changed:
                self._recorder = 0
                self._changed.notify_all()


class StateGone(Exception):
    """A place of the state holds nothing."""


def number_places(changed: FactTest) -> list[Place]:
    """Where a dictionary of the user's holds other floats than it did; nothing where more of it is different."""
    read, before = changed.read, changed.seen
    now = read.owner
    if read.holder is not now or type(now) is not dict or "__builtins__" in now:
        return []  # an attribute, whose owner looks it up, or a module's name
    if changed.kind == "item" and type(now) is dict and _is_other_float(before, now.get(read.key)):
        names = [read.key]
    elif changed.kind == "content" and type(now) is dict and type(before) is dict and list(now) == list(before):
        different = [key for key, value in before.items() if not _is_same(value, now[key])]
        names = different if all(_is_other_float(before[key], now[key]) for key in different) else []
    else:
        names = []
    return [Place("entry", now, name, f"{changed.name}[{name!r}]") for name in names if type(name) is str]


def _is_same(before: Any, now: Any) -> bool:
    """Whether an entry is what it was; tensors and arrays are not asked whether they are equal."""
    kind = type(before)
    return before is now or (kind is type(now) and kind in (bool, int, float, str) and bool(before == now))


def _is_other_float(before: Any, now: Any) -> bool:
    return type(before) is float and type(now) is float
