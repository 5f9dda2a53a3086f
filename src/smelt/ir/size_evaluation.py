"""What a trace's expressions are at other sizes: the plain meaning, against which generated code is tested."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from smelt.ir.python_operators import FUNCTIONS
from smelt.ir.size_numbers import Size, SizeFloat
from smelt.ir.size_terms import Poly
from smelt.ir.size_trace import Division, FloatExpr, Guard, Late, Rounded, Symbol, Trace

_ROUNDINGS: dict[str, Callable[[float], int]] = {
    "floor": math.floor, "ceil": math.ceil, "round": round, "trunc": math.trunc,
}  # fmt: skip


class Evaluation:
    """A trace at given sizes: call it with a size, a float, or a tuple, list or dataclass of them."""

    def __init__(self, trace: Trace, symbols: Mapping[str, int | float]) -> None:
        self._trace, self._symbols = trace, symbols
        self._atoms: dict[int, Any] = {}
        self._calls: dict[int, tuple[Any, ...]] = {}

    def __call__(self, x: Any) -> Any:
        if type(x) is Size:
            return self.poly(x.poly)
        if type(x) is SizeFloat:
            return self.float(x.expr)
        return self._rebuilt(x, {})

    def _rebuilt(self, x: Any, made: dict[int, tuple[Any, Any]]) -> Any:
        """A structure with numbers in the place of sizes; what is one object in it stays one."""
        kind = type(x)
        if kind is Size or kind is SizeFloat:
            return self(x)
        if kind is not tuple and kind is not list and (not is_dataclass(x) or kind is type):
            return x
        if id(x) in made:
            return made[id(x)][1]
        if kind is tuple or kind is list:
            items = [self._rebuilt(y, made) for y in x]
            new = kind(items) if any(a is not b for a, b in zip(items, x, strict=True)) else x
        else:
            changed = {}
            for field in fields(x):
                old = getattr(x, field.name)
                found = self._rebuilt(old, made)
                if found is not old:
                    changed[field.name] = found
            new = replace(x, **changed) if changed else x
        # The old one is kept, so that its id stays its own.
        made[id(x)] = x, new
        return new

    def holds(self, guard: Guard) -> bool:
        """Whether a comparison comes out as it did."""
        if guard.floats is not None:
            left, right = map(self.float, guard.floats)
            return FUNCTIONS[guard.relation](left, right) is guard.outcome
        return FUNCTIONS[guard.relation](self.poly(guard.poly), 0)

    def poly(self, p: Poly) -> int:
        """A polynomial."""
        total = 0
        for monomial, coefficient in p:
            for index in monomial:
                coefficient *= self._atom(index)
            total += coefficient
        return total

    def float(self, e: FloatExpr) -> Any:
        """An expression of floats."""
        match e:
            case ("size", p):
                return self.poly(p)
            case ("float", number):
                return number
            case ("atom", index):
                return self._atom(index)
            case (symbol, left, right):
                return FUNCTIONS[symbol](self.float(left), self.float(right))
        raise AssertionError(e)

    def _atom(self, index: int) -> Any:
        if index not in self._atoms:
            self._atoms[index] = self._new_atom(index)
        return self._atoms[index]

    def _new_atom(self, index: int) -> Any:
        match self._trace.atoms[index]:
            case Symbol(name=name):
                return self._symbols[name]
            case Division(operator=symbol, left=left, right=right):
                a, b = self.poly(left), self.poly(right)
                return a // b if symbol == "//" else a % b
            case Rounded(function=function, of=of):
                return _ROUNDINGS[function](self.float(of))
            case Late(call=call, leaf=leaf):
                return self._call(call)[leaf]

    def _call(self, index: int) -> tuple[Any, ...]:
        if index not in self._calls:
            call = self._trace.calls[index]
            kinds = zip(call.operands, call.are_float, strict=True)
            numbers = [self.float(e) if is_float else self.poly(e) for e, is_float in kinds]
            self._calls[index] = call.function(*numbers)
        return self._calls[index]
