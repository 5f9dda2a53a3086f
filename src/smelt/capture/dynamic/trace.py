"""The trace of one staged run with symbols: comparisons keep the user's line, and equalities are used at once.

Invariant: an answer that is not the same at all sizes within the ranges leaves a guard.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from smelt.capture.dynamic.quotient_bounds import Computed, Example, Expr, decided_by_parts
from smelt.capture.staging.flow.stops import CannotStage
from smelt.ir import size_terms as terms
from smelt.ir.python_operators import FUNCTIONS
from smelt.ir.size_numbers import Size, SizeFloat
from smelt.ir.size_terms import Poly
from smelt.ir.size_trace import Atom, Bounds, Division, FloatExpr, Guard, Rounded, Symbol, Trace
from smelt.ops.python.python_ops import python_op

Number = Any
"""Size | SizeFloat | int | float | bool."""
_MOST_WEIGHT = 4000  # symbols and constants in all that a call must be asked


@dataclass(slots=True)
class CaptureTrace(Trace):
    """A trace that knows who asked. site: finds the line of the user's that asks now. use: for what Python asks for a
    number now, in words. sites, uses: of each guard.
    """

    site: Callable[[], Any] = lambda: None
    sites: list[Any] = field(default_factory=list)
    use: str = ""
    uses: list[str] = field(default_factory=list)
    known: dict[int, Poly] = field(default_factory=dict)
    known_floats: dict[int, float] = field(default_factory=dict)
    _decided: dict[tuple[str, Poly], bool | None] = field(default_factory=dict)
    examples: set[int] = field(default_factory=set)
    _answers: dict[tuple[str, Poly], bool] = field(default_factory=dict)
    _resolved: dict[Poly, Poly] = field(default_factory=dict)
    _weights: list[int] = field(default_factory=list)
    _asked: int = 0

    # --- atoms -------------------------------------------------------------------------------------------------------

    def atom(self, meaning: Atom, value: int | float, bounds: Bounds) -> int:
        index = super(CaptureTrace, self).atom(meaning, value, bounds)
        if index == len(self._weights):
            self._weights.append(self._weight_of(meaning))
            self._check_weight(self._weights[index])
        return index

    def _weight_of(self, meaning: object) -> int:
        """How many symbols the text of an atom has: numbers that a loop makes of each other may double it each turn."""
        match meaning:
            case Division(left=left, right=right):
                return self.weight(left) + self.weight(right)
            case Rounded(of=of):
                return self._tree_weight(of)
            case Computed(operands=operands, are_float=are_float):
                return sum(
                    self._tree_weight(e) if is_float else self.weight(e)
                    for e, is_float in zip(operands, are_float, strict=True)
                )
        return 1

    def weight(self, p: Poly) -> int:
        """The size of a polynomial's text: how many symbols and constants are in it."""
        return sum(1 + sum(self._weights[index] for index in monomial) for monomial, _ in p)

    def _tree_weight(self, e: FloatExpr) -> int:
        match e:
            case ("size", p):
                return self.weight(p)
            case ("float", _):
                return 1
            case ("atom", index):
                return self._weights[index]
        return sum(map(self._tree_weight, e[1:]))

    def _check_weight(self, weight: int) -> None:
        if weight > _MOST_WEIGHT:
            raise CannotStage(
                "the conditions on the program's sizes and numbers are too long to be checked at each call",
                "a loop goes on as a number says that it computes",
                self.site(),
            )

    @contextlib.contextmanager
    def using(self, use: str) -> Iterator[None]:
        """Guards that are left meanwhile are for this use."""
        before, self.use = self.use, use
        try:
            yield
        finally:
            self.use = before

    # --- comparisons -------------------------------------------------------------------------------------------------

    def compare(self, operator: Literal["<", "<=", "=="], difference: Poly, value: int) -> bool:
        p = self.resolved(difference)
        if self.examples and self.has_example(p):
            decided = self.decide(operator, p)
            return FUNCTIONS[operator](value, 0) if decided is None else decided
        key = (operator, p)
        answer = self._answers.get(key)
        if answer is not None:
            return answer
        before = len(self.guards)
        answer = super(CaptureTrace, self).compare(operator, p, value)
        if len(self.guards) > before:
            self.sites.append(self.site())
            self.uses.append(self.use)
            self._note_asked(self.guards[-1])
            self._tighten()
            self._answers.clear()
            self._decided.clear()
            if operator == "==" and answer:
                self._learn(p)
        self._answers[key] = answer
        return answer

    def decide(self, operator: Literal["<", "<=", "=="], p: Poly) -> bool | None:
        p = self.resolved(p)
        key = (operator, p)
        if key not in self._decided:
            found = super(CaptureTrace, self).decide(operator, p)
            self._decided[key] = decided_by_parts(self, operator, p) if found is None else found
        return self._decided[key]

    def compare_floats(
        self, operator: Literal["<", "<=", "=="], left: FloatExpr, right: FloatExpr, outcome: bool
    ) -> bool:
        if self.examples and (self._tree_has_example(left) or self._tree_has_example(right)):
            return outcome
        before = len(self.guards)
        found = super(CaptureTrace, self).compare_floats(operator, left, right, outcome)
        if len(self.guards) > before:
            self.sites.append(self.site())
            self.uses.append(self.use)
            self._note_asked(self.guards[-1])
        return found

    def _note_asked(self, guard: Guard) -> None:
        self._asked += self._guard_weight(guard)
        self._check_weight(self._asked)

    def _guard_weight(self, guard: Guard) -> int:
        return self.weight(guard.poly) if guard.floats is None else sum(map(self._tree_weight, guard.floats))

    def fix_float(self, number: SizeFloat) -> float:
        """The float at hand, which it must be from now on.

        Raises: CannotStage for a zero and for NaN, which no comparison tells from what equals it, or tells at all.
        """
        if self.examples and self._tree_has_example(number.expr):
            return number.value
        if number.value == 0 or number.value != number.value:
            raise CannotStage(
                f"{self.float_text(number.expr)} is {number.value} in the graph", "its sign shows", self.site()
            )
        self.compare_floats("==", number.expr, ("float", number.value), True)
        if number.expr[0] == "atom":
            self.known_floats[number.expr[1]] = number.value
        return number.value

    # --- examples ----------------------------------------------------------------------------------------------------

    def example(self, value: int) -> Size:
        """A size that data decide, as it might be: what is asked of it is answered by it, and leaves no guard."""
        index = self.atom(cast(Atom, Example(len(self.atoms))), value, (0, float("inf")))
        self.examples.add(index)
        return Size(self, terms.atom(index), value)

    def has_example(self, p: Poly) -> bool:
        """Whether a polynomial speaks of a size that data decide."""
        return any(index in self.examples or self._is_of_example(index) for index in terms.atoms_of(p))

    def _is_of_example(self, index: int) -> bool:
        match cast(Any, self.atoms[index]):
            case Division(left=left, right=right):
                return self.has_example(left) or self.has_example(right)
            case Rounded(of=of):
                return self._tree_has_example(of)
            case Computed(operands=operands, are_float=are_float):
                return any(
                    self._tree_has_example(e) if is_float else self.has_example(e)
                    for e, is_float in zip(operands, are_float, strict=True)
                )
        return False

    def _tree_has_example(self, e: FloatExpr) -> bool:
        match e:
            case ("size", p):
                return self.has_example(p)
            case ("float", _):
                return False
            case ("atom", index):
                return index in self.examples or self._is_of_example(index)
        return any(map(self._tree_has_example, e[1:]))

    def mark(self) -> Any:
        """What `back` takes."""
        learnt: list[Any] = [self._forms, self._unequal, self._taken, self.known, self.known_floats]
        return len(self.guards), list(self.ranges), [x.copy() for x in learnt]

    def fixed_since(self, mark: Any, until: Any = None) -> int:
        """How many symbols have got one value since a mark (until another)."""
        known = self.known if until is None else until[2][3]
        return sum(terms.is_constant(p) for index, p in known.items() if index not in mark[2][3])

    def back(self, mark: Any) -> None:
        """Forget all guards and atoms since a mark, and what followed from them; nobody may hold such an atom."""
        count, ranges, learnt = mark
        del self.guards[count:], self.sites[count:], self.uses[count:]
        self._asked = sum(map(self._guard_weight, self.guards))
        for meaning in self.atoms[len(ranges) :]:
            del self._ids[meaning]
        del self.atoms[len(ranges) :], self.values[len(ranges) :], self._weights[len(ranges) :]
        self.ranges[:] = ranges
        self.examples = {index for index in self.examples if index < len(ranges)}
        self._texts.clear()
        # Copies again: a mark may be gone back to twice.
        self._forms, self._unequal, self._taken, self.known, self.known_floats = [x.copy() for x in learnt]
        self._answers.clear()
        self._decided.clear()
        self._resolved.clear()
        self._bounds.clear()

    def _tighten(self) -> None:
        """Let a new guard narrow the ranges of what is made of what it speaks of."""
        for form, value in self._unequal:
            if len(form) == 1 and form[0][1] == 1 and len(form[0][0]) == 1:
                index = form[0][0][0]
                low, high = self.ranges[index]
                self.ranges[index] = (low + (low == value), high - (high == value))
        for index, atom in enumerate(self.atoms):
            if isinstance(atom, Division) and atom.operator == "//" and terms.is_constant(atom.right):
                by, (low, high) = terms.constant_of(atom.right), self.bounds(atom.left)
                if by > 0:
                    a, b = self.ranges[index]
                    self.ranges[index] = max(a, low // by), min(b, high // by)

    # --- equalities --------------------------------------------------------------------------------------------------

    def _learn(self, p: Poly) -> None:
        """Note what p == 0 says of a symbol: the one that came last follows from the others."""
        counts: dict[int, int] = {}
        for monomial, _ in p:
            for index in monomial:
                counts[index] = counts.get(index, 0) + 1
        for monomial, coefficient in sorted(p, reverse=True):
            if len(monomial) != 1 or abs(coefficient) != 1 or counts[monomial[0]] != 1:
                continue
            index = monomial[0]
            if not isinstance(self.atoms[index], Symbol) and len(p) > 2:
                continue
            rest = tuple(t for t in p if t[0] != monomial)
            found = terms.scale(rest, -coefficient)
            if index in terms.atoms_of(self.resolved(found)) or self._uses(found, index):
                continue
            self.known[index] = found
            self._resolved.clear()
            if len(found) == 1 and found[0][1] == 1 and len(found[0][0]) == 1:
                other = found[0][0][0]
                (a, b), (c, d) = self.ranges[index], self.ranges[other]
                self.ranges[other] = max(a, c), min(b, d)
            return

    def _uses(self, p: Poly, index: int) -> bool:
        """Whether an atom stands in a polynomial, also inside of other atoms."""
        return any(i == index or self._is_inside(i, index) for i in terms.atoms_of(p))

    def _is_inside(self, of: int, index: int) -> bool:
        atom = self.atoms[of]
        if isinstance(atom, Division):
            return self._uses(atom.left, index) or self._uses(atom.right, index)
        # What computes with floats is not taken apart.
        return not isinstance(atom, Symbol)

    def resolved(self, p: Poly) -> Poly:
        """A polynomial with what is known of its symbols put in."""
        if not self.known:
            return p
        found = self._resolved.get(p)
        if found is None:
            found = ()
            for monomial, coefficient in p:
                product = terms.constant(coefficient)
                for index in monomial:
                    product = terms.multiply(product, self._resolved_atom(index))
                found = terms.add(found, product)
            self._resolved[p] = found
        return found

    def _resolved_atom(self, index: int) -> Poly:
        known = self.known.get(index)
        if known is not None:
            return self.resolved(known)
        atom = cast(Any, self.atoms[index])
        if isinstance(atom, Division):
            left, right = self.resolved(atom.left), self.resolved(atom.right)
            if left != atom.left or right != atom.right:
                run = operator.floordiv if atom.operator == "//" else operator.mod
                return self.poly_of(run(self.number(left), self.number(right)))
        if isinstance(atom, Computed) and not any(atom.are_float):
            operands = tuple(map(self.resolved, atom.operands))
            if operands != atom.operands:
                made = self.computed(atom.op, tuple(map(self.number, operands)), atom.literals)
                return self.poly_of(made)
        return terms.atom(index)

    # --- numbers -----------------------------------------------------------------------------------------------------

    def number(self, p: Poly) -> Number:
        """The number that a polynomial is."""
        if terms.is_constant(p):
            return terms.constant_of(p)
        return Size(self, p, self.at_hand(p))

    def poly_of(self, number: Number) -> Poly:
        """The polynomial of an integer."""
        return number.poly if type(number) is Size else terms.constant(int(number))

    def symbol(self, name: str, value: int | float, bounds: Bounds) -> Number:
        """A new symbol."""
        is_float = isinstance(value, float)
        index = self.atom(Symbol(name, is_float), value, bounds)
        made = (
            SizeFloat(self, ("atom", index), value, bounds) if is_float else Size(self, terms.atom(index), int(value))
        )
        self.symbols[name] = made
        return made

    def computed(self, op: str, operands: tuple[Number, ...], literals: tuple[object, ...] = ()) -> Number:
        """The result of an operator of Python's as a number of its own. It must not be complex."""
        run = python_op(op)
        assert run is not None
        value = run.run(*literals, *[n.value if type(n) in (Size, SizeFloat) else n for n in operands])
        are_float = tuple(type(n) in (SizeFloat, float) for n in operands)
        meaning = Computed(op, tuple(self.expr(n) for n in operands), are_float, literals)
        bounds = self._bounds_of(op, operands)
        index = self.atom(cast(Atom, meaning), value, bounds)
        if type(value) is float:
            return SizeFloat(self, ("atom", index), value, bounds)
        return Size(self, terms.atom(index), int(value))

    def _bounds_of(self, op: str, operands: tuple[Number, ...]) -> Bounds:
        if op in ("py.min", "py.max") and not any(type(n) in (SizeFloat, float) for n in operands):
            ends = [self.bounds(self.poly_of(n)) for n in operands]
            pick = min if op == "py.min" else max
            return pick(low for low, _ in ends), pick(high for _, high in ends)
        return float("-inf"), float("inf")

    def expr(self, number: Number) -> Expr:
        """The expression of a number: a polynomial of an int, a tree of a float."""
        if type(number) is SizeFloat:
            return number.expr
        return ("float", number) if type(number) is float else self.poly_of(number)

    # --- text and evaluation -----------------------------------------------------------------------------------------

    def atom_text(self, index: int) -> str:
        atom = cast(Any, self.atoms[index])
        if isinstance(atom, Division):
            # A product may stand before the sign, not after it: (a*b // c) is (a*b) // c, (a // b*c) is (a // b)*c.
            parts = [
                text if (len(p) <= 1 if side == 0 else _is_factor(p)) else f"({text})"
                for side, p in enumerate((atom.left, atom.right))
                for text in [self.text(p)]
            ]
            return f"({parts[0]} {atom.operator} {parts[1]})"
        if isinstance(atom, Example):
            return f"_{atom.number}"
        if not isinstance(atom, Computed):
            return super(CaptureTrace, self).atom_text(index)
        parts = [*map(str, atom.literals)] + [
            self.float_text(e) if is_float else self.text(e)
            for e, is_float in zip(atom.operands, atom.are_float, strict=True)
        ]
        return f"{atom.op.removeprefix('py.')}({', '.join(parts)})"

    def evaluate(self, p: Poly, symbols: Mapping[str, int | float]) -> int:
        """The value of a polynomial at other values of the symbols."""
        total = 0
        for monomial, coefficient in p:
            for index in monomial:
                coefficient *= int(self.evaluate_atom(index, symbols))
            total += coefficient
        return total

    def evaluate_atom(self, index: int, symbols: Mapping[str, int | float]) -> Any:
        """The value of an atom at other values of the symbols."""
        atom = cast(Any, self.atoms[index])
        match atom:
            case Symbol(name=name):
                return symbols[name]
            case Division(operator=sign, left=left, right=right):
                a, b = self.evaluate(left, symbols), self.evaluate(right, symbols)
                return a // b if sign == "//" else a % b
            case Rounded(function=function, of=of):
                return _ROUND[function](self.evaluate_float(of, symbols))
            case Computed(op=op, operands=operands, are_float=are_float, literals=literals):
                run = python_op(op)
                assert run is not None
                values = [
                    self.evaluate_float(e, symbols) if is_float else self.evaluate(e, symbols)
                    for e, is_float in zip(operands, are_float, strict=True)
                ]
                return run.run(*literals, *values)
        raise AssertionError(atom)

    def evaluate_float(self, e: FloatExpr, symbols: Mapping[str, int | float]) -> Any:
        """The value of a tree at other values of the symbols."""
        match e:
            case ("size", p):
                return self.evaluate(p, symbols)
            case ("float", number):
                return number
            case ("atom", index):
                return self.evaluate_atom(index, symbols)
            case (sign, left, right):
                return FUNCTIONS[sign](self.evaluate_float(left, symbols), self.evaluate_float(right, symbols))
        raise AssertionError(e)


_ROUND: dict[str, Callable[[Any], int]] = {
    "floor": lambda x: x.__floor__(), "ceil": lambda x: x.__ceil__(), "round": round, "trunc": int,
}  # fmt: skip


def _is_factor(p: Poly) -> bool:
    """Whether the text of a polynomial is one name, number, call or bracket."""
    return (terms.is_constant(p) and terms.constant_of(p) >= 0) or (len(p) == 1 and p[0][1] == 1 and len(p[0][0]) == 1)
