"""Sizes that are known at run time only, as numbers that code computes with (docs/decisions/0010).

    with tracing({"B": (4, Range(2, 64)), "S": (128, Range())}) as trace:
        B, S = trace.symbols["B"], trace.symbols["S"]
        rows = B * S                 # ⟨B*S⟩, 512 at the sizes at hand
        if rows * 4 < 1 << 31: ...   # a guard, as the ranges leave it open: trace.guards
        if S > 1: ...                # no guard: S is at least 2
        range(rows)                  # SizeLeak: a number is asked for, and kept in trace.leaks
    at = Evaluation(trace, {"B": 7, "S": 33})
    at(rows), all(map(at.holds, trace.guards))       # 231, True

Code that lowers computes with them as with integers. Where a comparison need not be a guard it says so:

    @late                           # a pure function of numbers whose results are only words: asked again at each size
    def chunk_rows(m: int, panels: int) -> int: ...
    @blind                          # either outcome is right: the sizes at hand decide, and the choice is kept
    def is_few(rows: int) -> bool: ...
    with blind(): order = sorted(loops, key=extent)
    @chosen                         # the same for a function that needs plain numbers, and whose result holds none
    def best_tiling(m: int, n: int) -> Tiling: ...
    if is_one(size): ...            # True for 1; False for a size that may be another one: the general form
    size_min(rows, 64)              # one term, where min() would be a comparison

When the trace has ended its sizes are numbers in one place only, for code that keeps some and runs later:

    with evaluating(trace, at): torch.empty(rows)

Outside of a trace, and on plain integers, all of these do what plain Python does. Invariant: a plain number never
depends on the sizes at hand, but for what `value` gives (hints and reports) and what blind and chosen functions return.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, overload

from smelt.ir import size_terms as terms
from smelt.ir.size_calls import call_late, filled, stripped
from smelt.ir.size_evaluation import Evaluation
from smelt.ir.size_numbers import MARK, Size, SizeFloat
from smelt.ir.size_trace import INFINITY, Bounds, Guard, Range, SizeLeak, Symbol, Trace, UndecidedError, evaluating

__all__ = [
    "MARK", "Evaluation", "Guard", "Range", "Size", "SizeFloat", "SizeLeak", "Trace", "UndecidedError", "agree",
    "blind", "ceil_div", "chosen", "current_trace", "equals", "evaluating", "expression", "is_less", "is_one",
    "is_symbolic", "is_unknown", "is_whole", "late", "late_float", "size_max", "size_min", "to_words", "tracing",
    "value",
]  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")


class _Local(threading.local):
    trace: Trace | None = None


_local = _Local()


def current_trace() -> Trace | None:
    """The trace of this thread, if there is one."""
    return _local.trace


@contextmanager
def tracing(
    symbols: Mapping[str, tuple[int | float, Range]], replay: Mapping[str, Any] | None = None
) -> Iterator[Trace]:
    """A trace in which the named symbols have these values and ranges.

    replay: the decisions of an earlier trace of the same computation. Raises: ValueError for a value out of its range.
    """
    trace = Trace(replay)
    for name, (number, within) in symbols.items():
        if isinstance(number, float):
            index = trace.atom(Symbol(name, True), number, (-INFINITY, INFINITY))
            trace.symbols[name] = SizeFloat(trace, ("atom", index), number, (-INFINITY, INFINITY))
            continue
        low, high = within.bounds
        if not low <= number <= high:
            raise ValueError(f"{name} = {number} is not within {within}")
        trace.symbols[name] = Size(trace, terms.atom(trace.atom(Symbol(name), number, (low, high))), number)
    outer, _local.trace = _local.trace, trace
    try:
        yield trace
    finally:
        _local.trace = outer
        trace.is_open = False


# --- looking at sizes -------------------------------------------------------------------------------------------------


def value(x: Any) -> Any:
    """The number at hand: for reports and hints only, as nothing tells that it was taken."""
    return x.value if type(x) is Size or type(x) is SizeFloat else x


def is_symbolic(x: Any) -> bool:
    """Whether a number, or any in a tuple, list or dataclass, is known at run time only."""
    kind = type(x)
    if kind is int or kind is float:
        return False
    operands: list[Any] = []
    stripped(x, operands)
    return bool(operands)


def expression(x: Any) -> Any:
    """What can be a key: the same for two sizes exactly if they are one expression of one trace."""
    if type(x) is Size:
        return ("size", id(x.trace), x.poly)
    if type(x) is SizeFloat:
        return ("float", id(x.trace), x.expr)
    return tuple(map(expression, x)) if isinstance(x, tuple | list) else x


def is_one(size: int) -> bool:
    """size == 1, where False is right, if more general, for a size that may be another."""
    return _surely(size - 1) if type(size) is Size else size == 1


def equals(a: int, b: int) -> bool:
    """a == b, where False is right, if more general, for sizes that may differ."""
    return _surely(a - b) if type(a) is Size or type(b) is Size else a == b


def is_unknown(size: int) -> bool:
    """Whether a size is of a symbol that stands for a size of which nothing is known."""
    return type(size) is Size and not size.trace.unknown.isdisjoint(terms.atoms_of(size.poly))


def agree(a: int, b: int) -> bool:
    """a == b, where an operator demands it: of a size of which nothing is known it is taken to hold."""
    return is_unknown(a) or is_unknown(b) or a == b


def is_less(a: int, b: int) -> bool:
    """a < b, where False is right, if more general, for sizes of which some are not."""
    difference = a - b
    if type(difference) is not Size:
        return difference < 0
    return difference.trace.decide("<", difference.poly) is True


def is_whole(size: int, unit: int) -> bool:
    """Whether `unit` divides `size`, where False is right, if more general, for sizes of which some are no multiple."""
    return equals(size % unit, 0)


def _surely(difference: int) -> bool:
    """Whether a difference is 0 at all sizes."""
    if type(difference) is not Size:
        return difference == 0
    return difference.trace.decide("==", difference.poly) is True


# --- computing with them ----------------------------------------------------------------------------------------------


def size_min(*sizes: int) -> int:
    """min() of sizes, without a comparison that is a guard."""
    return _extreme(sizes, min, -1)


def size_max(*sizes: int) -> int:
    """max() of sizes, without a comparison that is a guard."""
    return _extreme(sizes, max, 1)


def _extreme(sizes: tuple[int, ...], pick: Callable[..., Any], sign: int) -> int:
    trace = next((size.trace for size in sizes if type(size) is Size), None)
    if trace is None:
        return pick(sizes)
    kept: list[int] = []
    for i, size in enumerate(sizes):
        # Left out where another one is at least as far out at all sizes; of equals the first stays.
        others = (o for j, o in enumerate(sizes) if j != i and _is_ahead(o, size, sign, j < i))
        if next(others, None) is None:
            kept.append(size)
    if len(kept) == 1:
        return kept[0]
    ends = [trace.bounds(s.poly) if type(s) is Size else (s, s) for s in kept]
    bounds: Bounds = (pick(low for low, _ in ends), pick(high for _, high in ends))
    return call_late(trace, pick, tuple(sorted(kept, key=repr)), bounds)


def _is_ahead(a: int, b: int, sign: int, is_first: bool) -> bool:
    difference = (a - b) * sign  # at least 0: a is at least as far out
    if type(difference) is not Size:
        return difference > 0 or (difference == 0 and is_first)
    if difference.trace.decide("<", difference.poly) is not False:
        return False
    return is_first or difference.trace.decide("<=", difference.poly) is not True


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def to_words(numbers: Iterable[int | float]) -> tuple[int, ...]:
    """Numbers as a kernel takes them: integers as they are, floats as the bits of a double."""
    return tuple(_bits(x) if isinstance(x, float) else x + 0 for x in numbers)


# --- functions of sizes -----------------------------------------------------------------------------------------------


@overload
def late(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def late(*, low: int | None = 0) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def late(function: Callable[..., Any] | None = None, /, *, low: int | None = 0) -> Any:
    """A pure function of numbers whose results are only words: each is one opaque term, asked for again at each size.

    Arguments: numbers, text, enums, types, and tuples, lists and dataclasses of these. Results: an integer, a float, or
    tuples and dataclasses of these; what else they hold must be the same at all sizes. low: no integer is less.
    """
    if function is None:
        return lambda function: _late(function, low, False)
    return _late(function, low, False)


def late_float(function: Callable[P, R]) -> Callable[P, R]:
    """The same where all results are floats, also those that happen to be integers."""
    return _late(function, None, True)


def _late(function: Callable[P, R], low: int | None, is_float: bool) -> Callable[P, R]:
    bounds: Bounds = (-INFINITY if low is None else low, INFINITY)

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        trace = _local.trace
        if trace is None:
            return function(*args, **kwargs)
        return call_late(trace, function, args, bounds, kwargs, is_float)

    return wrapper


@overload
def blind(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def blind() -> AbstractContextManager[None]: ...
def blind(function: Callable[..., Any] | None = None, /) -> Any:
    """Comparisons within need no guard, as either outcome is right: the sizes at hand decide, and what they decided is
    kept, to be replayed. Around a function, or in a `with`.
    """
    if function is None:
        return _blindly()

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _local.trace is None:
            return function(*args, **kwargs)
        with _blindly():
            return function(*args, **kwargs)

    return wrapper


@contextmanager
def _blindly() -> Iterator[None]:
    trace = _local.trace
    if trace is None:
        yield
        return
    trace.blind_depth += 1
    try:
        yield
    finally:
        trace.blind_depth -= 1


def chosen(function: Callable[P, R]) -> Callable[P, R]:
    """A function that is called with the sizes at hand as plain numbers: any result it may give is right at all sizes,
    and holds no size. What it gave is kept, to be replayed.
    """

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        trace = _local.trace
        operands: list[Any] = []
        template = None if trace is None else stripped((args, kwargs), operands)
        if trace is None or not operands:
            return function(*args, **kwargs)
        key = f"{function.__module__}.{function.__qualname__}{template}{operands}"
        if trace.replay is not None and key in trace.replay:
            return trace.decision(key, None)
        plain_args, plain_kwargs = filled(template, iter([value(x) for x in operands]))
        return trace.decision(key, function(*plain_args, **plain_kwargs))

    return wrapper


@late(low=None)
def _bits(number: float) -> int:
    return struct.unpack("q", struct.pack("d", number))[0]
