"""What converted code calls: the protocol, and the runtime that does exactly what Python does.

A runtime belongs to a thread. Where none is installed, `current()` is the plain one, so that converted code which
another thread happens to enter means there what it meant before.

`at` is the line of the operation in the user's file. Thunks take no argument and are called at most as often as Python
would evaluate what they hold. `names` are the variables that a statement may rebind or delete, `get()` is the tuple of
their values with `UNDEF` where one is unbound, `set(values)` binds (or unbinds) all of them. Names that begin with
`HIDDEN` are the converter's own: flags that stand for `break`, `continue` and `return`, and the value to be returned.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

from smelt.ir.python_operators import BINARY, FUNCTIONS, UNARY

HIDDEN: Final = "__smelt_"
"""What the converter's own names begin with."""


class Undefined:
    """The type of `UNDEF`, which stands for the value of a variable that has none."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNDEF"


UNDEF: Final = Undefined()

Thunk = Callable[[], Any]
Get = Callable[[], tuple[Any, ...]]
Set = Callable[[tuple[Any, ...]], None]
Names = tuple[str, ...]


class Variables(NamedTuple):
    """The variables that a statement may rebind or delete."""

    names: Names
    get: Get
    set: Set


def no_variables() -> Variables:
    """Those of a statement that binds none."""
    return Variables((), tuple, lambda values: None)


Args = tuple[Any, ...]
"""What a call of the program's gives by position, of whatever kind: the callee knows."""
Kwargs = dict[str, Any]
"""What a call of the program's gives by name."""


def nothing() -> None:
    """The arm of a branch that has no statements; compare by identity."""


class Runtime(Protocol):
    """What a runtime must answer. Operators are Python's spellings: `+`, `//`, `not in`, `is`; unary `-`, `+`, `~`."""

    def if_(self, at: int, test: object, then: Thunk, orelse: Thunk, names: Names, get: Get, set: Set) -> None: ...
    def while_(self, at: int, test: Thunk, body: Thunk, names: Names, get: Get, set: Set) -> None: ...
    def for_(
        self,
        at: int,
        iterable: object,
        body: Callable[[object], None],
        names: Names,
        get: Get,
        set: Set,
        more: Thunk | None,
        anew: Names = (),
    ) -> None:
        """`more`, where there is one, is asked after each item whether to go on. `anew`: variables that each turn binds
        before it reads them."""

    def ifexp(self, at: int, test: object, then: Thunk, orelse: Thunk) -> object: ...
    def and_(self, at: int, *thunks: Thunk) -> object: ...
    def or_(self, at: int, *thunks: Thunk) -> object: ...
    def not_(self, at: int, value: object) -> Any: ...
    def truth(self, at: int, value: object) -> object:
        """The bool of an operand of `and` or `or` whose result is only tested; so Python asks it once, too."""

    def compare(self, at: int, left: object, *rest: tuple[str, Thunk]) -> Any: ...
    def assert_(self, at: int, test: object, message: Thunk | None) -> None: ...
    def raise_(self, at: int, exc: Thunk | None, cause: Thunk | None) -> None:
        """`exc` is None where the statement re-raises what is being handled."""

    def call(self, at: int, fn: object, args: tuple[object, ...], kwargs: dict[str, object]) -> Any: ...
    def called_here(self, at: int, fn: object) -> object:
        """What is called in the place of a function that looks at the frame it is called in."""

    def getitem(self, at: int, o: object, k: object) -> Any: ...
    def setitem(self, at: int, o: object, k: object, v: object) -> None: ...
    def delitem(self, at: int, o: object, k: object) -> None: ...
    def held(self, at: int, value: object) -> Any:
        """What a variable holds, which must hold something (`return x`, `y = x`, `del x`)."""

    def getattr_(self, at: int, o: object, name: str) -> object: ...
    def setattr_(self, at: int, o: object, name: str, v: object) -> None: ...
    def binop(self, at: int, op: str, a: object, b: object) -> Any: ...
    def inplace(self, at: int, op: str, a: object, b: object) -> object:
        """The value that `a op= b` binds; `op` is spelled without `=`."""

    def unop(self, at: int, op: str, a: object) -> object: ...
    def contains(self, at: int, item: object, c: object) -> object: ...
    def fstring(self, at: int, parts: tuple[object, ...]) -> object: ...
    def format_value(self, at: int, v: object, conversion: str | None, spec: object) -> object:
        """`conversion` is "s", "r", "a" or None; `spec` is a string (or what `fstring` made), empty where none is."""

    def iterate(self, at: int, iterable: object) -> Iterable[object]:
        """What Python itself is to iterate: the right side of an unpacking, the source of a generator expression."""

    def starred(self, at: int, rest: list[object]) -> object:
        """What a starred target of an unpacking holds, from what Python gave it."""

    def display(self, at: int, is_list: bool, *parts: Iterable[object]) -> object:
        """A tuple or list of the items of all parts (`(*a, b)`)."""

    def matched(self, at: int, subject: object, longest: int | None) -> object:
        """What Python itself is to match against a pattern that takes it apart, into so many items at most."""


_INPLACE: Mapping[str, Callable[[object, object], object]] = {o.symbol: o.in_place for o in BINARY}
_UNARY: Mapping[str, Callable[[object], object]] = {o.symbol: o.function for o in UNARY}
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    **FUNCTIONS,
    "is": operator.is_,
    "is not": operator.is_not,
    "in": lambda item, c: item in c,
    "not in": lambda item, c: item not in c,
}
_CONVERT: Mapping[str, Callable[[object], str]] = {"s": str, "r": repr, "a": ascii}


class PlainRuntime:
    """Python's own meaning."""

    __slots__ = ()

    def if_(self, at: int, test: object, then: Thunk, orelse: Thunk, names: Names, get: Get, set: Set) -> None:
        if test:
            then()
        else:
            orelse()

    def while_(self, at: int, test: Thunk, body: Thunk, names: Names, get: Get, set: Set) -> None:
        while test():
            body()

    def for_(
        self,
        at: int,
        iterable: Any,
        body: Callable[[object], None],
        names: Names,
        get: Get,
        set: Set,
        more: Thunk | None,
        anew: Names = (),
    ) -> None:
        for item in iterable:
            body(item)
            if more is not None and not more():
                break

    def ifexp(self, at: int, test: object, then: Thunk, orelse: Thunk) -> object:
        return then() if test else orelse()

    def and_(self, at: int, *thunks: Thunk) -> object:
        for thunk in thunks[:-1]:
            value = thunk()
            if not value:
                return value
        return thunks[-1]()

    def or_(self, at: int, *thunks: Thunk) -> object:
        for thunk in thunks[:-1]:
            value = thunk()
            if value:
                return value
        return thunks[-1]()

    def not_(self, at: int, value: object) -> Any:
        return not value

    def truth(self, at: int, value: object) -> object:
        return bool(value)

    def compare(self, at: int, left: object, *rest: tuple[str, Thunk]) -> Any:
        for op, thunk in rest[:-1]:
            right = thunk()
            value = _COMPARE[op](left, right)
            if not value:
                return value
            left = right
        op, thunk = rest[-1]
        return _COMPARE[op](left, thunk())

    def assert_(self, at: int, test: object, message: Thunk | None) -> None:
        if not test:
            raise AssertionError if message is None else AssertionError(message())

    def raise_(self, at: int, exc: Thunk | None, cause: Thunk | None) -> None:
        if exc is None:
            raise
        if cause is None:
            raise exc()
        raise exc() from cause()

    def call(self, at: int, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return fn(*args, **kwargs)

    def called_here(self, at: int, fn: object) -> object:
        return fn

    def getitem(self, at: int, o: Any, k: Any) -> Any:
        return o[k]

    def setitem(self, at: int, o: Any, k: Any, v: Any) -> None:
        o[k] = v

    def delitem(self, at: int, o: Any, k: Any) -> None:
        del o[k]

    def held(self, at: int, value: object) -> Any:
        return value

    def getattr_(self, at: int, o: object, name: str) -> object:
        return getattr(o, name)

    def setattr_(self, at: int, o: object, name: str, v: object) -> None:
        setattr(o, name, v)

    def binop(self, at: int, op: str, a: object, b: object) -> Any:
        return FUNCTIONS[op](a, b)

    def inplace(self, at: int, op: str, a: object, b: object) -> object:
        return _INPLACE[op](a, b)

    def unop(self, at: int, op: str, a: object) -> object:
        return _UNARY[op](a)

    def contains(self, at: int, item: Any, c: Any) -> object:
        return item in c

    def fstring(self, at: int, parts: tuple[Any, ...]) -> object:
        return "".join(parts)

    def format_value(self, at: int, v: Any, conversion: str | None, spec: Any) -> object:
        return format(v if conversion is None else _CONVERT[conversion](v), spec)

    def iterate(self, at: int, iterable: Any) -> Iterable[object]:
        return iterable

    def starred(self, at: int, rest: list[object]) -> object:
        return rest

    def display(self, at: int, is_list: bool, *parts: Iterable[object]) -> object:
        items: list[Any] = []
        for part in parts:
            items.extend(part)
        return items if is_list else tuple(items)

    def matched(self, at: int, subject: object, longest: int | None) -> object:
        return subject


PLAIN: Final = PlainRuntime()


class _Local(threading.local):
    runtime: Runtime = PLAIN


_local = _Local()


def current() -> Runtime:
    """This thread's runtime: the one installed last, or the plain one."""
    return _local.runtime


@contextmanager
def installed(runtime: Runtime) -> Iterator[Runtime]:
    """Makes `runtime` this thread's, for the time of the block."""
    before = _local.runtime
    _local.runtime = runtime
    try:
        yield runtime
    finally:
        _local.runtime = before
