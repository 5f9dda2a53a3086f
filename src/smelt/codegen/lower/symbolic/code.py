"""Expressions of a trace as generated Python: one function that computes all words of a plan from its sizes.

Every atom and every polynomial is computed once. A late function is called with its structures written out:

    def words(B, S):
        p0 = B*S
        r1 = F1(C2(m=p0, n=768), 4)            # a late function, a dataclass
        q3 = (p0 + 15)//16
        return (p0, r1, q3)

    def holds(B, S):
        if not 2 <= B <= 64: return False
        p0 = B*S
        if not p0 - 8192 <= 0: return False
        return True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.ir import size_terms as terms
from smelt.ir.size_calls import Applied, Group, Hole, Plain
from smelt.ir.size_terms import Poly
from smelt.ir.size_trace import INFINITY, Bounds, Division, FloatExpr, Guard, Late, Rounded, Symbol, Trace
from smelt.ir.sizes import Size, SizeFloat, SizeLeak

_ROUNDINGS = {"floor": math.floor, "ceil": math.ceil, "round": round, "trunc": math.trunc}


class _Code:
    """Lines of one function, with what has a name already."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self._atoms: dict[int, str] = {}
        self._polys: dict[Poly, str] = {}
        self._calls: dict[int, list[str]] = {}
        self._floats: dict[FloatExpr, str] = {}
        self._held: dict[int, str] = {}
        # Names of late results by the least that they may be.
        self.results: dict[float, list[str]] = {}

    def text(self, x: Any) -> str:
        """The expression of a number."""
        if type(x) is Size:
            return self.poly(x.poly)
        if type(x) is SizeFloat:
            return self.float(x.expr)
        return repr(x)

    def poly(self, p: Poly) -> str:
        """The name, or the number, of a polynomial."""
        if terms.is_constant(p):
            return str(terms.constant_of(p))
        known = self._polys.get(p)
        if known is None:
            summands = []
            for monomial, coefficient in p:
                factors = [self.atom(i) for i in monomial]
                summands.append("*".join((str(coefficient), *factors) if coefficient != 1 or not factors else factors))
            text = " + ".join(summands)
            known = self._polys[p] = text if text.isidentifier() else self._named("p", text)
        return known

    def atom(self, index: int) -> str:
        """The name of an atom."""
        known = self._atoms.get(index)
        if known is None:
            known = self._atoms[index] = self._new_atom(index)
        return known

    def _new_atom(self, index: int) -> str:
        match self.trace.atoms[index]:
            case Symbol(name=name):
                return name
            case Division(operator=operator, left=left, right=right):
                return self._named("q", f"({self.poly(left)}){operator}({self.poly(right)})")
            case Rounded(function=function, of=of):
                return self._named("i", f"{self.held(_ROUNDINGS[function])}({self.float(of)})")
            case Late(call=call, leaf=leaf):
                return self.call(call)[leaf]

    def float(self, e: FloatExpr) -> str:
        """The name of an expression of floats."""
        match e:
            case ("size", p):
                return self.poly(p)
            case ("float", number):
                return repr(number) if number == number and abs(number) != INFINITY else self.held(number)
            case ("atom", index):
                return self.atom(index)
        known = self._floats.get(e)
        if known is None:
            operator, left, right = e
            known = self._floats[e] = self._named("f", f"({self.float(left)}) {operator} ({self.float(right)})")
        return known

    def call(self, index: int) -> list[str]:
        """The names of a late call's results."""
        known = self._calls.get(index)
        if known is None:
            call = self.trace.calls[index]
            operands = [
                self.float(e) if is_float else self.poly(e)
                for e, is_float in zip(call.operands, call.are_float, strict=True)
            ]
            applied = call.function
            if isinstance(applied, Applied):
                args, kwargs = applied.template
                holes = iter(operands)
                passed = [self._filled(a, holes) for a in args]
                named = zip(kwargs.like, [self._filled(a, holes) for a in kwargs.parts], strict=True)
                passed += [f"{key}={text}" for key, text in named]
                made = self._named("r", f"{self.held(applied.function)}({', '.join(passed)})")
                known = self._taken(applied.result, made, applied.is_float)
                self.results.setdefault(applied.low, []).extend(
                    name for name, leaf in zip(known, call.leaves, strict=True) if type(leaf) is int
                )
            else:
                made = self._named("r", f"{self.held(applied)}({', '.join(operands)})")
                known = [f"{made}[{i}]" for i in range(len(call.leaves))]
            self._calls[index] = known
        return known

    def _filled(self, template: Any, holes: Any) -> str:
        """A structure written out."""
        match template:
            case Hole():
                return next(holes)
            case tuple():
                return "(" + "".join(f"{self._filled(part, holes)}, " for part in template) + ")"
            case Plain(value=value):
                return self.held(value)
            case Group(like=like, parts=parts) if like is list:
                return "[" + ", ".join(self._filled(part, holes) for part in parts) + "]"
            case Group(like=tuple() as keys, parts=parts):
                pairs = zip(keys, parts, strict=True)
                return "{" + ", ".join(f"{self.held(k)}: {self._filled(part, holes)}" for k, part in pairs) + "}"
            case Group(like=like, parts=parts):
                return f"{self.held(like)}({', '.join(f'{name}={self._filled(part, holes)}' for name, part in parts)})"
            case int() | None:
                return repr(template)
        return self.held(template)

    def _taken(self, template: Any, path: str, is_float: bool) -> list[str]:
        """The numbers of a result."""
        match template:
            case Hole():
                return [self._named("n", f"float({path})") if is_float else path]
            case tuple():
                return [n for i, part in enumerate(template) for n in self._taken(part, f"{path}[{i}]", is_float)]
            case Group(like=like, parts=parts) if like is list:
                return [n for i, part in enumerate(parts) for n in self._taken(part, f"{path}[{i}]", is_float)]
            case Group(parts=parts):
                return [n for name, part in parts for n in self._taken(part, f"{path}.{name}", is_float)]
        return []

    def held(self, constant: Any) -> str:
        """The name of an object of the function's globals."""
        key = id(constant)
        if key not in self._held:
            name = self._held[key] = f"C{len(self._held)}"
            self.constants[name] = constant
        return self._held[key]

    def _named(self, kind: str, text: str) -> str:
        name = f"{kind}{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name


def words_function(trace: Trace, numbers: Sequence[Any]) -> Callable[..., tuple[Any, ...]]:
    """The function (symbols, in order) -> these numbers. It raises SizeLeak where a late function gives no word."""
    code = _Code(trace)
    texts = [code.text(x) for x in numbers]
    for low, names in code.results.items():
        if low > -INFINITY:
            code.lines.append(f"if min(({', '.join(dict.fromkeys(names))},)) < {int(low)}: raise SizeLeak")
    code.lines.append(f"return ({''.join(f'{text}, ' for text in texts)})")
    return _compiled(trace, code, "words")


def guards_function(trace: Trace, guards: Sequence[Guard], ranges: Mapping[str, Bounds]) -> Callable[..., bool]:
    """The function (symbols, in order) -> whether they are in range and all guards hold."""
    code = _Code(trace)
    for name, (low, high) in ranges.items():
        if low > -INFINITY:
            code.lines.append(f"if {name} < {low}: return False")
        if high < INFINITY:
            code.lines.append(f"if {name} > {high}: return False")
    for guard in guards:
        if guard.floats is None:
            question = f"{code.poly(guard.poly)} {guard.relation} 0"
        else:
            left, right = map(code.float, guard.floats)
            question = f"{left} {guard.relation} {right}"
        code.lines.append(f"if {'not ' if guard.outcome else ''}{question}: return False")
    code.lines.append("return True")
    return _compiled(trace, code, "holds")


def _compiled(trace: Trace, code: _Code, name: str) -> Callable[..., Any]:
    source = f"def {name}({', '.join(trace.symbols)}):\n" + "".join(f"    {line}\n" for line in code.lines)
    scope: dict[str, Any] = {**code.constants, "SizeLeak": SizeLeak, "min": min}
    exec(compile(source, f"<{name} of a plan's sizes>", "exec"), scope)
    return scope[name]
