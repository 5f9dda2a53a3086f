"""The numbers of a match: equations between the pattern's and the program's, with what they bind by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.ir import Arg, Node, TensorType, Value
from smelt.scheduling.finding.feasible import same_literal
from smelt.scheduling.finding.forms import TRANSPOSE, VIEW, counts_axes, key_of
from smelt.scheduling.finding.patterns import Pattern, is_number
from smelt.scheduling.finding.target import Target
from smelt.scheduling.finding.terms import Term, number, translate, view_sizes


class Numbers:
    """Whether equations hold, once all tensors of a match are known; `bound` has the pattern's free numbers."""

    def __init__(self, pattern: Pattern, target: Target, values: Mapping[Value, Arg]) -> None:
        self.pattern, self.target, self.values = pattern, target, dict(values)
        self.bound: dict[Value, Term] = {}

    def hold(self, equations: list[tuple[str, Node, Arg, Arg]]) -> bool:
        """Whether all hold together. An equation: the argument's name, the program's node, the two arguments."""
        # Free numbers that stand alone are bound first, so that those in expressions are known.
        for _, _, wanted, given in equations:
            if not self._bind(wanted, given):
                return False
        return all(self._holds(*equation) for equation in equations)

    def _bind(self, wanted: Arg, given: Arg) -> bool:
        if isinstance(wanted, Value) and wanted in self.pattern.inputs:
            term = self.target.terms.of(given)
            if not _kind_fits(str(wanted.type), term):
                return False
            return self.bound.setdefault(wanted, term) == term
        mine, other = self.pattern.terms.of(wanted), self.target.terms.of(given)
        pairs = [(mine, other)]
        if mine[0] == "seq" and other[0] == "seq" and len(mine) == len(other):
            pairs = list(zip(mine[1:], other[1:], strict=True))
            for a, b in pairs:
                if a[0] == "var" and a[1] in self.pattern.inputs and self.bound.setdefault(a[1], b) != b:
                    return False
        for a, b in pairs:
            # A tensor of which only sizes are used is the one whose sizes stand there.
            if a[0] == b[0] and a[0] in ("size", "sizes") and a[1] in self.pattern.inputs and a[2:] == b[2:]:
                self.values.setdefault(a[1], b[1])
        return True

    def _find(self, value: Value) -> Term | Value | None:
        if value in self.bound:
            return self.bound[value]
        found = self.values.get(self.pattern.resolve(value))
        return found if isinstance(found, Value) else None

    def _holds(self, name: str, place: Node, wanted: Arg, given: Arg) -> bool:
        mine = translate(self.pattern.terms.of(wanted), self._find)
        other = self.target.terms.of(given)
        if mine is None:
            return False
        if mine == other:
            return True
        if mine[0] == other[0] == "is":
            a, b = number(mine), number(other)
            if counts_axes(key_of(place), name):
                return _same_axes((a,), (b,), place)
            return same_literal(a, b, place)
        if counts_axes(key_of(place), name) and mine[0] == other[0] == "seq":
            return _same_axes(tuple(map(number, mine[1:])), tuple(map(number, other[1:])), place)
        if key_of(place) == VIEW and isinstance(place.args[0], Value):
            return view_sizes(mine, place.args[0]) == view_sizes(other, place.args[0])
        return False


def _same_axes(mine: tuple[Any, ...], other: tuple[Any, ...], place: Node) -> bool:
    """Whether axes are the same, counted from either end."""
    rank = _rank(place)
    if place.op == TRANSPOSE and all(type(axis) is int for axis in (*mine, *other)):
        mine, other = (tuple(sorted(axis % rank if rank else axis for axis in axes)) for axes in (mine, other))
    if rank is None or not all(type(axis) is int for axis in (*mine, *other)):
        return mine == other
    return [axis % rank for axis in mine] == [axis % rank for axis in other]


def _kind_fits(kind: str, term: Term) -> bool:
    """Whether a number fits a parameter's annotation; an int also stands where a float is asked for, as in Python."""
    if term[0] != "is":
        return True
    kinds = {"float": ("float", "int"), "complex": ("complex", "float", "int")}.get(kind, (kind,))
    return kind == "any" or term[1] in kinds


def _rank(place: Node) -> int | None:
    first = next((v for v in place.operands() if not is_number(v)), None)
    rank = first.type.rank if first is not None and isinstance(first.type, TensorType) else None
    return rank or None
