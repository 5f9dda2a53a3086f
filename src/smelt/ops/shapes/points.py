"""Sizes that the symbols of a trace may have: what a call is tried with to see how its results follow from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from smelt.ir import ListType, TensorType, TupleType, Type
from smelt.ir import size_terms as terms
from smelt.ir.size_trace import INFINITY, Symbol, Trace
from smelt.ir.sizes import Evaluation, Size, current_trace

# Sizes that tell symbols apart: each symbol takes every so many-th.
_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)
_FEW = (3, 2, 5, 4, 7, 6)
# Where guards allow none of these (`n <= 10`), such as these are tried, and multiples of those at hand (`s % 8 == 0`).
_SMALL = (2, 5, 3, 7, 4, 9, 6, 8)
_TIMES = (2, 3, 5, 4, 7, 6, 9, 8)
_ENOUGH = 3  # points besides the sizes at hand


def points(trace: Trace, sizes: Sequence[int] = (), ties: Mapping[str, str] = MappingProxyType({})) -> list[Evaluation]:
    """The sizes at hand, then others within the ranges at which all guards hold, the last one small.

    sizes: none of these may be negative, which no guard need say (`4 - n` of `x[n:]`). ties: symbols that are to be
    equal to another one.
    """

    def tied(chosen: dict[str, int]) -> dict[str, int]:
        return {name: chosen[ties.get(name, name)] for name in chosen}

    def holds(point: Evaluation) -> bool:
        return all(map(point.holds, trace.guards)) and all(point(size) >= 0 for size in sizes)

    names = [name for name, size in trace.symbols.items() if type(size) is Size]
    floats = {name: x.value for name, x in trace.symbols.items() if name not in names}
    at_hand = {name: trace.symbols[name].value for name in names}
    found = [Evaluation(trace, {**at_hand, **floats})]
    known = {tuple(at_hand.values())}
    for chosen in map(tied, _choices(trace, at_hand)):
        point = Evaluation(trace, {**chosen, **floats})
        if tuple(chosen.values()) not in known and holds(point):
            known.add(tuple(chosen.values()))
            found.append(point)
            if len(found) > _ENOUGH:
                break
    small = {name: _within(trace, name, _FEW[i % len(_FEW)]) for i, name in enumerate(names)}
    _equalize(trace, small)
    small = tied(small)
    point = Evaluation(trace, {**small, **floats})
    if tuple(small.values()) not in known and holds(point):
        found.append(point)
    return found


def type_at(type_: Type, at: Evaluation) -> Type:
    """A type with integers in place of the sizes of a trace."""
    match type_:
        case TensorType():
            shape = None if type_.shape is None else tuple(map(at, type_.shape))
            if shape is None or not all(type(n) is int for n in shape):
                return type_
            strides = None if type_.strides is None else tuple(map(at, type_.strides))
            return TensorType.of(type_.dtype, shape, strides, type_.device, type_.layout)
        case TupleType(elements=elements):
            return TupleType(tuple(type_at(t, at) for t in elements))
        case ListType(element=element):
            return ListType(type_at(element, at))
    return type_


def at_points(types: Sequence[Type]) -> Iterator[list[Type]]:
    """Types with integers in place of sizes: for each of some sizes that these may have; once where all are static."""
    trace = current_trace()
    if trace is None or not any(map(_has_sizes, types)):
        yield list(types)
        return
    for at in points(trace):
        yield [type_at(type_, at) for type_ in types]


def _has_sizes(type_: Type) -> bool:
    return isinstance(type_, TensorType) and any(
        type(d) is Size for d in (*(type_.shape or ()), *(type_.strides or ()))
    )


def _choices(trace: Trace, at_hand: dict[str, int]) -> Iterator[dict[str, int]]:
    wanted: tuple[Callable[[str, int], int], ...] = (
        lambda name, turn: _PRIMES[turn],
        lambda name, turn: _SMALL[turn],
        lambda name, turn: at_hand[name] * _TIMES[turn],
    )
    for want in wanted:
        for step in range(1, 9):  # all the ways there are to go through eight of these
            chosen = {
                name: _within(trace, name, want(name, (i + step * (1 + i % 3)) % 8)) for i, name in enumerate(at_hand)
            }
            _equalize(trace, chosen)
            yield chosen


def _within(trace: Trace, name: str, wanted: int) -> int:
    """A number that the symbol may be, the wanted one if possible."""
    size = trace.symbols[name]
    low, high = trace.bounds(size.poly)
    if wanted < low:
        wanted += int(low)
    if high < INFINITY and wanted > high:
        # A number that is the size of nothing has no bound below: those that are sizes are tried.
        start = max(int(low), min(_FEW[1], int(high)))
        wanted = start + wanted % (int(high) - start + 1)
    return wanted


def _equalize(trace: Trace, chosen: dict[str, int]) -> None:
    """Let the equations among the guards hold, where one symbol of each follows from the others."""
    for guard in trace.guards:
        if guard.relation != "==":
            continue
        for monomial, coefficient in reversed(guard.poly):
            meaning = trace.atoms[monomial[0]] if len(monomial) == 1 else None
            if isinstance(meaning, Symbol) and abs(coefficient) == 1 and _stands_once(guard.poly, monomial[0]):
                rest = Evaluation(trace, chosen).poly(terms.add(guard.poly, ((monomial, coefficient),), -1))
                chosen[meaning.name] = -rest * coefficient
                break


def _stands_once(poly: terms.Poly, index: int) -> bool:
    return sum(index in monomial for monomial, _ in poly) == 1
