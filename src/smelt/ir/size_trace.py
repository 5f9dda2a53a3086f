"""The trace of one computation on sizes: what its atoms mean, between what bounds they lie, which comparisons it took.

A comparison that the ranges do not decide becomes a *guard*, or, under `blind`, a *decision*; both have a text that
does not depend on the sizes at hand, so that two computations at different sizes can be compared. Guards narrow the
ranges of what follows. A trace belongs to one thread. When it has ended, its sizes are numbers only within
`evaluating`.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from smelt.diag.records import record
from smelt.ir import size_terms as terms
from smelt.ir.size_terms import Poly

INFINITY = math.inf
_MOST_LIMITS = 100  # polynomials that one question about bounds goes on to
Bounds: TypeAlias = tuple[float, float]
"""The least and the greatest value, both within; int where finite, for sizes."""
FloatExpr: TypeAlias = "tuple[Any, ...]"
"""("size", Poly) | ("float", number) | ("atom", index) | (operator, FloatExpr, FloatExpr)."""


class _Local(threading.local):
    """What sizes of a trace that has ended are, while something computes with them."""

    at: Callable[[Any], Any] | None = None
    trace: Trace | None = None


_local = _Local()


class SizeLeak(Exception):
    """Something asked for the number behind a size that is known at run time only."""


class UndecidedError(Exception):
    """A comparison has no answer that holds at all sizes, and none may be assumed."""


@record
class Range:
    """What a symbol may be: low to high, both within; no bound above where `high` is None."""

    low: int = 2
    high: int | None = None

    @property
    def bounds(self) -> Bounds:
        return self.low, INFINITY if self.high is None else self.high


@record
class Guard:
    """A comparison that must come out again: `poly` against 0, or one expression of floats against another.

    relation: <= == != of sizes (all comparisons of integers are one of these); < <= == of floats, by `outcome`.
    """

    relation: Literal["<=", "==", "!=", "<"]
    poly: Poly
    floats: tuple[FloatExpr, FloatExpr] | None
    outcome: bool
    text: str
    where: str

    def __str__(self) -> str:
        return self.text


@record
class Symbol:
    """A size, or a float, that comes with the inputs."""

    name: str
    is_float: bool = False


@record
class Division:
    """left // right or left % right."""

    operator: Literal["//", "%"]
    left: Poly
    right: Poly


@record
class Rounded:
    """A float made an integer."""

    function: Literal["floor", "ceil", "round", "trunc"]
    of: FloatExpr


@record
class Late:
    """Number `leaf` of the result of late call `call`."""

    call: int
    leaf: int


Atom: TypeAlias = Symbol | Division | Rounded | Late


@record
class LateCall:
    """A pure function that is called again for each tuple of sizes: `function(*numbers)` with `operands` evaluated.

    leaves: the numbers that it gives at the sizes at hand.
    """

    function: Callable[..., tuple[int | float, ...]]
    operands: tuple[Poly | FloatExpr, ...]
    are_float: tuple[bool, ...]
    leaves: tuple[int | float, ...]
    name: str


@dataclass(slots=True)
class Trace:
    """See the module's head. `replay`: decisions of an earlier trace, taken instead of the sizes at hand.

    unknown: atoms of which nobody will know more than their ranges: what an operator demands of them is taken to hold.
    """

    replay: Mapping[str, Any] | None = None
    atoms: list[Atom] = field(default_factory=list)
    values: list[int | float] = field(default_factory=list)
    ranges: list[Bounds] = field(default_factory=list)
    calls: list[LateCall] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    decisions: dict[str, Any] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    symbols: dict[str, Any] = field(default_factory=dict)
    is_open: bool = True
    blind_depth: int = 0
    is_fixed: bool = False
    unknown: set[int] = field(default_factory=set)
    call_ids: dict[Any, int] = field(default_factory=dict)
    _ids: dict[Any, int] = field(default_factory=dict)
    _texts: dict[Any, str] = field(default_factory=dict)
    _forms: dict[Poly, Bounds] = field(default_factory=dict)
    _bounds: dict[Poly, Bounds] = field(default_factory=dict)
    _unequal: set[tuple[Poly, int]] = field(default_factory=set)
    _taken: set[Any] = field(default_factory=set)
    _has_limits: set[int] = field(default_factory=set)
    _followed: int = 0

    # --- atoms ----------------------------------------------------------------------------------------------------

    def atom(self, meaning: Atom, value: int | float, bounds: Bounds) -> int:
        """The number of an atom, made where it is new."""
        index = self._ids.get(meaning)
        if index is None:
            index = self._ids[meaning] = len(self.atoms)
            self.atoms.append(meaning)
            self.values.append(value)
            self.ranges.append(bounds)
            match meaning:
                case Division(operator="//", right=right) if terms.is_constant(right) and terms.constant_of(right) > 0:
                    self._has_limits.add(index)
                case Late(call=call) if self._extreme(self.calls[call]) is not None:
                    self._has_limits.add(index)
        return index

    # --- ranges ---------------------------------------------------------------------------------------------------

    def bounds(self, p: Poly) -> Bounds:
        """Between which numbers a polynomial lies, by the ranges of its atoms and the guards so far."""
        if terms.is_constant(p):
            return terms.constant_of(p), terms.constant_of(p)
        form, g, c = terms.primitive(p)
        try:
            known = self._bounds.get(form)
            if known is None:
                # Guards narrow them, and nothing else changes them.
                known = self._bounds[form] = self._new_bounds(form)
            low, high = known if g > 0 else known[::-1]
            return _times(g, low) + c, _times(g, high) + c
        except OverflowError:  # an infinity met an integer that is no float
            return -INFINITY, INFINITY

    def _new_bounds(self, p: Poly) -> Bounds:
        low, high = self._interval(p, self.ranges)
        if len(p) > 1:
            starts = [self.ranges[i][0] for i in terms.atoms_of(p)]
            if all(s != -INFINITY for s in starts):
                shifted = self._shifted(p)
                counted: dict[int, Bounds] = {i: (0, self.ranges[i][1] - self.ranges[i][0]) for i in terms.atoms_of(p)}
                a, b = self._interval(shifted, counted)
                low, high = max(low, a), min(high, b)
        known = self._forms.get(p)
        if known is not None:
            low, high = max(low, known[0]), min(high, known[1])
        if self._has_limits and self._followed < _MOST_LIMITS and any(i in self._has_limits for i in terms.atoms_of(p)):
            # What limits it may have limits in turn, two ways each.
            is_first, self._followed = not self._followed, self._followed + 1
            try:
                low, high = max(low, -self._above(terms.scale(p, -1))), min(high, self._above(p))
            finally:
                if is_first:
                    self._followed = 0
        return low, high

    def _above(self, p: Poly) -> float:
        """A number that a polynomial never exceeds, as its last quotient, minimum or maximum has limits by others."""
        linear = [(m[0], c) for m, c in p if len(m) == 1 and m[0] in self._has_limits]
        if not linear:
            return INFINITY
        index, coefficient = max(linear)  # what limits an atom was there before it
        rest = terms.add(p, (((index,), coefficient),), -1)
        best = INFINITY
        for times, limit in self._limits(index, is_upper=coefficient > 0):
            _, high = self.bounds(terms.add(terms.scale(rest, times), terms.scale(limit, coefficient)))
            best = min(best, high if high == INFINITY else high // times)
        return best

    def _limits(self, index: int, *, is_upper: bool) -> list[tuple[int, Poly]]:
        """(n, p) where n times the atom is at most p, or at least."""
        match self.atoms[index]:
            case Division(operator="//", left=left, right=right):
                by = terms.constant_of(right)
                return [(by, left if is_upper else terms.add(left, terms.constant(1 - by)))]
            case Late(call=call):
                name, operands = self._extreme(self.calls[call]) or ("", [])
                return [(1, p) for p in operands] if name == ("min" if is_upper else "max") else []
        return []

    def _extreme(self, call: LateCall) -> tuple[str, list[Poly]] | None:
        """min or max, and of what; None for any other call."""
        function = getattr(call.function, "function", None)
        if function not in (min, max) or any(call.are_float):
            return None
        constants = [terms.constant(x) for x in call.function.template[0] if type(x) is int]  # type: ignore[attr-defined]
        return function.__name__, [*call.operands, *constants]

    def _interval(self, p: Poly, ranges: list[Bounds] | Mapping[int, Bounds]) -> Bounds:
        low: float = 0
        high: float = 0
        for monomial, coefficient in p:
            a: float = 1
            b: float = 1
            for index in monomial:
                c, d = ranges[index]
                if a >= 0 and c >= 0:
                    a, b = _times(a, c), _times(b, d)
                else:
                    ends = (_times(a, c), _times(a, d), _times(b, c), _times(b, d))
                    a, b = min(ends), max(ends)
            if coefficient < 0:
                a, b = b, a
            low, high = low + _times(coefficient, a), high + _times(coefficient, b)
        return low, high

    def _shifted(self, p: Poly) -> Poly:
        """The polynomial over atoms counted from their least values, so that B*S - B is seen to be positive."""
        total: Poly = ()
        for monomial, coefficient in p:
            product = terms.constant(coefficient)
            for index in monomial:
                start = int(self.ranges[index][0])
                product = terms.multiply(product, terms.add(terms.atom(index), terms.constant(start)))
            total = terms.add(total, product)
        return total

    # --- comparisons ----------------------------------------------------------------------------------------------

    def at_hand(self, p: Poly) -> int:
        """What a polynomial is at the sizes at hand."""
        total = 0
        for monomial, coefficient in p:
            for index in monomial:
                coefficient *= int(self.values[index])
            total += coefficient
        return total

    def compare(self, operator: Literal["<", "<=", "=="], difference: Poly, value: int) -> bool:
        """Whether `difference` compares so to 0; `value` is what it is now."""
        decided = self.decide(operator, difference)
        if decided is not None:
            return decided
        self._check_free(operator)
        outcome = value < 0 if operator == "<" else value <= 0 if operator == "<=" else value == 0
        if self.blind_depth:
            return bool(self.decision(f"{self.text(difference)} {operator} 0", outcome))
        if operator == "==":
            self._guard("==" if outcome else "!=", difference)
        else:
            if operator == "<":
                difference = terms.add(difference, terms.constant(1))
            if not outcome:
                difference = terms.add(terms.constant(1), difference, -1)
            self._guard("<=", difference)
        return outcome

    @contextmanager
    def without_guards(self) -> Iterator[None]:
        """Comparisons in the block that the ranges do not decide raise UndecidedError, and leave no guard."""
        before, self.is_fixed = self.is_fixed, True
        try:
            yield
        finally:
            self.is_fixed = before

    def _check_free(self, operator: str) -> None:
        if self.is_fixed:
            raise UndecidedError(operator)

    def decide(self, operator: Literal["<", "<=", "=="], p: Poly) -> bool | None:
        """How `p` compares to 0 at all sizes in range; None where that differs."""
        if terms.is_constant(p):
            c = terms.constant_of(p)
            return c < 0 if operator == "<" else c <= 0 if operator == "<=" else c == 0
        low, high = self.bounds(p)
        if operator == "<":
            return True if high < 0 else False if low >= 0 else None
        if operator == "<=":
            return True if high <= 0 else False if low > 0 else None
        if low > 0 or high < 0:
            return False
        form, g, c = terms.primitive(p)
        if c % g or (form, -c // g) in self._unequal:
            return False
        return True if low == high == 0 else None

    def _guard(self, relation: Literal["<=", "==", "!="], p: Poly) -> None:
        self._bounds.clear()
        form, g, c = terms.primitive(p)
        low, high = self._forms.get(form, (-INFINITY, INFINITY))
        if relation == "<=":  # g * form + c <= 0
            if g > 0:
                high = min(high, -c // g)
            else:
                low = max(low, -(c // g))  # form >= c / -g, rounded up
        elif relation == "==":
            low = high = -c // g
        if relation == "!=":
            self._unequal.add((form, -c // g))
        else:
            self._forms[form] = low, high
            if len(form) == 1 and form[0][1] == 1 and len(form[0][0]) == 1:
                index = form[0][0][0]
                a, b = self.ranges[index]
                self.ranges[index] = max(a, low), min(b, high)
        # The normal form: no common factor, one reading for each inequality.
        if relation == "<=":
            p = terms.add(form, terms.constant(-int(high)), 1) if g > 0 else _at_least(form, int(low))
        else:
            p = terms.add(form, terms.constant(-(-c // g)))
        text = f"{self.text(p)} {relation} 0"
        if text not in self._taken:
            self._taken.add(text)
            self.guards.append(Guard(relation, p, None, True, text, place()))

    def compare_floats(
        self, operator: Literal["<", "<=", "=="], left: FloatExpr, right: FloatExpr, outcome: bool
    ) -> bool:
        """The same for floats, which have no normal form."""
        self._check_free(operator)
        text = f"{self.float_text(left)} {operator} {self.float_text(right)}"
        if self.blind_depth:
            return bool(self.decision(text, outcome))
        if text not in self._taken:
            self._taken.add(text)
            shown = text if outcome else f"not {text}"
            self.guards.append(Guard(operator, (), (left, right), outcome, shown, place()))
        return outcome

    def decision(self, key: str, outcome: Any) -> Any:
        """A choice of which every outcome is right: the first trace's where this one replays it."""
        if self.replay is not None and key in self.replay:
            outcome = self.replay[key]
        return self.decisions.setdefault(key, outcome)

    def ended_number(self, size: Any) -> Any:
        """What a size of a trace that has ended is, within `evaluating`. Raises: SizeLeak elsewhere."""
        if _local.trace is not self or _local.at is None:
            raise self.leak(f"{size}, of a trace that has ended")
        return _local.at(size)

    def leak(self, what: str) -> SizeLeak:
        """The error for a size whose number something wants; it is kept, too, should somebody catch it."""
        where = place()
        self.leaks.append(f"{what} at {where}")
        return SizeLeak(f"{what}, dynamic, is read as a number at {where}")

    # --- text -----------------------------------------------------------------------------------------------------

    def text(self, p: Poly) -> str:
        """A polynomial in words, the same in every trace of the same computation."""
        known = self._texts.get(p)
        if known is None:
            parts = sorted((-len(m), "*".join(sorted(map(self.atom_text, m))), c) for m, c in p)
            text = ""
            for _, m, c in parts:
                amount = m if m and abs(c) == 1 else f"{abs(c)}*{m}" if m else str(abs(c))
                text += f" {'-' if c < 0 else '+'} {amount}"
            known = self._texts[p] = (f"-{text[3:]}" if text[:2] == " -" else text[3:]) or "0"
        return known

    def atom_text(self, index: int) -> str:
        """An atom in words."""
        match self.atoms[index]:
            case Symbol(name=name):
                return name
            case Division(operator=operator, left=left, right=right):
                return f"(({self.text(left)}) {operator} ({self.text(right)}))"
            case Rounded(function=function, of=of):
                return f"{function}({self.float_text(of)})"
            case Late(call=call, leaf=leaf):
                extreme = self._extreme(self.calls[call])
                if extreme is not None:
                    return f"{extreme[0]}({', '.join(map(self.text, extreme[1]))})"
                return f"{self.call_text(call)}[{leaf}]"

    def call_text(self, index: int) -> str:
        """A late call in words."""
        known = self._texts.get(index)
        if known is None:
            call = self.calls[index]
            parts = [
                self.float_text(e) if is_float else self.text(e)
                for e, is_float in zip(call.operands, call.are_float, strict=True)
            ]
            known = self._texts[index] = f"{call.name}({', '.join(parts)})"
        return known

    def float_text(self, e: FloatExpr) -> str:
        """An expression of floats in words."""
        match e:
            case ("size", p):
                return f"({self.text(p)})"
            case ("float", number):
                return repr(number)
            case ("atom", index):
                return self.atom_text(index)
            case (operator, left, right):
                return f"({self.float_text(left)} {operator} {self.float_text(right)})"
        raise AssertionError(e)


@contextmanager
def evaluating(trace: Trace, at: Callable[[Any], Any]) -> Iterator[None]:
    """In this thread, sizes of a trace that has ended are the numbers that `at` gives for them."""
    before = _local.trace, _local.at
    _local.trace, _local.at = trace, at
    try:
        yield
    finally:
        _local.trace, _local.at = before


def _at_least(form: Poly, low: int) -> Poly:
    return terms.add(terms.constant(low), form, -1)


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def place() -> str:
    """The line of this package that asked, outside of the modules about sizes, and who called it."""
    frame = sys._getframe(1)
    found: list[str] = []
    while frame is not None and len(found) < 2:
        name = frame.f_code.co_filename
        if "/ir/size" not in name and ("/smelt/" in name or not found):
            found.append(f"{name.rsplit('/smelt/', 1)[-1]}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found)
