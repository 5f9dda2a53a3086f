"""What converted code calls beside its runtime: how variables are read and written, and in which order things happen.

Converted code reaches this module through a constant, so that neither the user's globals nor the function's closure
change. A variable is handed over as a lambda that reads it: the cell in that lambda's closure is the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import BuiltinMethodType, FunctionType, GeneratorType
from typing import Any, Final

from smelt.capture.convert.runtime import PLAIN, UNDEF, Get, Names, Runtime, Set, Thunk, current, nothing

__all__ = [
    "add_item",
    "arguments",
    "both",
    "chain",
    "choose",
    "consume",
    "current",
    "either",
    "function",
    "iterated",
    "load",
    "new_set",
    "nothing",
    "slice_",
    "source",
    "state",
    "store",
    "store_attribute",
    "store_item",
]

slice_: Final = slice
new_set: Final = set
State = tuple[Names, Get, Set]
_NO_CELLS: Final = ()


def state(read: FunctionType, global_names: Names = ()) -> State:
    """Names, get and set of the variables that `read` reads, and of the globals named."""
    cells = read.__closure__ or _NO_CELLS
    module = read.__globals__

    def get() -> tuple[Any, ...]:
        values = []
        for cell in cells:
            try:
                values.append(cell.cell_contents)
            except ValueError:
                values.append(UNDEF)
        return (*values, *(module.get(name, UNDEF) for name in global_names))

    def set(values: tuple[object, ...]) -> None:
        for cell, value in zip(cells, values, strict=False):
            if value is UNDEF:
                del cell.cell_contents
            else:
                cell.cell_contents = value
        for name, value in zip(global_names, values[len(cells) :], strict=True):
            if value is UNDEF:
                module.pop(name, None)
            else:
                module[name] = value

    return read.__code__.co_freevars + global_names, get, set


def load(read: FunctionType) -> object:
    """The value of a local variable that may have none; Python says it so where the variable is not a closure's."""
    assert read.__closure__ is not None
    try:
        return read.__closure__[0].cell_contents
    except ValueError:
        name = read.__code__.co_freevars[0]
    raise UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")


def store(value: object, read: FunctionType) -> object:
    """`(name := value)`."""
    if read.__closure__ is None:
        read.__globals__[read.__code__.co_names[0]] = value
    else:
        read.__closure__[0].cell_contents = value
    return value


def store_item(rt: Runtime, at: int, v: object, o: object, k: object) -> None:
    """`o[k] = v`, its parts evaluated in Python's order."""
    rt.setitem(at, o, k, v)


def store_attribute(rt: Runtime, at: int, v: object, o: object, name: str) -> None:
    """`o.name = v`, its parts evaluated in Python's order."""
    rt.setattr_(at, o, name, v)


def choose(rt: Runtime, at: int, test: object, then: Thunk, orelse: Thunk, held: State) -> object:
    """`then() if test else orelse()` where an arm rebinds variables: a statement with one variable more, the value."""
    result: object = UNDEF
    names, get, set = held

    def first() -> None:
        nonlocal result
        result = then()

    def second() -> None:
        nonlocal result
        result = orelse()

    def get_all() -> tuple[object, ...]:
        return (*get(), result)

    def set_all(values: tuple[object, ...]) -> None:
        nonlocal result
        set(values[:-1])
        result = values[-1]

    rt.if_(at, test, first, second, (*names, "__smelt_result"), get_all, set_all)
    return result


def both(rt: Runtime, at: int, held: State, *thunks: Thunk) -> Any:
    """`and` of operands that rebind variables."""
    value = thunks[0]()
    if len(thunks) == 1:
        return value
    return choose(rt, at, value, lambda: both(rt, at, held, *thunks[1:]), lambda: value, held)


def either(rt: Runtime, at: int, held: State, *thunks: Thunk) -> object:
    """`or` of operands that rebind variables."""
    value = thunks[0]()
    if len(thunks) == 1:
        return value
    return choose(rt, at, value, lambda: value, lambda: either(rt, at, held, *thunks[1:]), held)


def chain(rt: Runtime, at: int, held: State, left: object, *rest: tuple[str, Thunk]) -> object:
    """A chained comparison whose later operands rebind variables."""
    op, thunk = rest[0]
    right = thunk()
    value = rt.compare(at, left, (op, lambda: right))
    if len(rest) == 1:
        return value
    return choose(rt, at, value, lambda: chain(rt, at, held, right, *rest[1:]), lambda: value, held)


class arguments:
    """A call's arguments, gathered in Python's order where some are unpacked."""

    __slots__ = ("_args", "_fn", "_kwargs")

    def __init__(self, fn: Any) -> None:
        self._fn = fn
        self._args: list[object] = []
        self._kwargs: dict[str, object] = {}

    def plain(self, *values: object) -> arguments:
        self._args.extend(values)
        return self

    def star(self, values: Iterable[Any]) -> arguments:
        if not hasattr(type(values), "__iter__") and not hasattr(type(values), "__getitem__"):
            self._fn(*values)  # what Python says of it
        self._args.extend(values)
        return self

    def named(self, name: str, value: object) -> arguments:
        return self.mapping({name: value})

    def mapping(self, values: Any) -> arguments:
        if not hasattr(values, "keys"):
            self._fn(**values)
        for key in values.keys():  # noqa: SIM118 (what Python asks a mapping)
            if key in self._kwargs:
                self._fn(**self._kwargs, **{key: None})
            self._kwargs[key] = values[key]
        return self

    def call(self, rt: Runtime, at: int) -> Any:
        return rt.call(at, self._fn, tuple(self._args), self._kwargs)


def function(made: FunctionType, defaults: tuple[object, ...], named: dict[str, Any]) -> FunctionType:
    """A lambda with its defaults, which were evaluated where it stands."""
    made.__defaults__ = defaults or None
    made.__kwdefaults__ = named or None
    return made


def add_item(rt: Runtime, at: int, items: object, method: str, value: object) -> None:
    """One more item of a comprehension's list or set."""
    rt.call(at, rt.getattr_(at, items, method), (value,), {})


def source(rt: Runtime, at: int, iterable: object) -> object:
    """What a generator expression goes over; Python asks for the iterator where the expression stands."""
    return iter(rt.iterate(at, iterable))


def iterated(rt: Runtime, iterable: Any) -> object:
    """What a comprehension goes over; Python asks for the iterator where the comprehension stands."""
    return iter(iterable) if rt is PLAIN else iterable


_CONSUMERS: Final[dict[str, object]] = {
    f.__name__: f for f in (any, all, sum, min, max, list, tuple, sorted, dict, set)
}


def consume(
    rt: Runtime,
    at: int,
    fn: object,
    name: str,
    whole: Callable[[Any], Any],
    lazy: Callable[[object], GeneratorType[object, object, object]],
    iterable: object,
    args: tuple[object, ...],
    kwargs: dict[str, Any],
) -> object:
    """A generator expression as the first argument of a call of what is spelled `name`.

    `lazy` is the expression as Python has it. `whole` goes over all items as a loop of the runtime; it gives the answer
    of `any` or `all`, else a list. It is taken where `fn` is the builtin and the runtime is not the plain one.
    """
    if name == "join":
        known = isinstance(fn, BuiltinMethodType) and fn.__name__ == "join" and isinstance(fn.__self__, str)
    else:
        known = fn is _CONSUMERS[name]
    if not known or rt is PLAIN:
        return rt.call(at, fn, (lazy(source(rt, at, iterable)), *args), kwargs)
    if name in ("any", "all") and not args and not kwargs:
        return whole(iterable)
    return rt.call(at, fn, (whole(iterable), *args), kwargs)
