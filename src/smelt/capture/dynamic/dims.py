"""From expressions to the graph: sizes in types, and the nodes that compute a number where one is an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from smelt.capture.dynamic.arithmetic import is_symbolic
from smelt.capture.dynamic.nodes import node_of
from smelt.capture.dynamic.quotient_bounds import Computed
from smelt.capture.dynamic.trace import CaptureTrace, Number
from smelt.ir import FLOAT, INT, UNKNOWN_DIM, Dim, Sym, SymExpr, TensorType, Type, Value, contiguous_strides
from smelt.ir import size_terms as terms
from smelt.ir.python_operators import BY_SYMBOL
from smelt.ir.size_numbers import Size, SizeFloat
from smelt.ir.size_terms import Poly
from smelt.ir.size_trace import Division, FloatExpr, Rounded, Symbol
from smelt.ops.python.python_ops import infer_python, python_op

_SIGNS: dict[str, object] = {"py.min": "min", "py.max": "max"}


def dim_of(size: Any) -> Dim:
    """A size of torch's in a type."""
    node = None if type(size) is int else node_of(size)
    if node is None:
        return int(size)
    number: Any = node.number
    return dim_of_poly(node.trace, number.poly) if is_symbolic(number) else int(number)


def dim_of_poly(trace: CaptureTrace, p: Poly) -> Dim:
    """A polynomial as a size in a type; `_` where no expression of sizes says it."""
    p = trace.resolved(p)
    if terms.is_constant(p):
        return terms.constant_of(p)
    total: Dim | None = None
    # Positive summands first, the constant at the end.
    for monomial, coefficient in sorted(p, key=lambda t: (t[1] < 0, not t[0], -len(t[0]), t[0])):
        product: Dim | None = None
        for index in monomial:
            factor = _atom_dim(trace, index)
            if factor == UNKNOWN_DIM:
                return UNKNOWN_DIM
            product = factor if product is None else SymExpr("*", product, factor)
        number = abs(coefficient) if total is not None else coefficient
        if product is None:
            product = number
        elif number != 1:
            product = SymExpr("*", number, product)
        if total is None:
            total = product
        else:
            total = SymExpr("-" if coefficient < 0 else "+", total, product)
    assert total is not None
    return total


def _atom_dim(trace: CaptureTrace, index: int) -> Dim:
    atom = cast(Any, trace.atoms[index])
    match atom:
        case Symbol(name=name):
            return Sym(name)
        case Division(operator=sign, left=left, right=right):
            return _joined(sign, [dim_of_poly(trace, left), dim_of_poly(trace, right)])
        case Computed(op="py.min" | "py.max", operands=operands, are_float=are_float) if not any(are_float):
            return _joined(_SIGNS[atom.op], [dim_of_poly(trace, p) for p in operands])
    return UNKNOWN_DIM


def _joined(sign: Any, parts: list[Dim]) -> Dim:
    total = parts[0]
    for part in parts[1:]:
        total = SymExpr(sign, total, part)
    return UNKNOWN_DIM if UNKNOWN_DIM in parts else total


def sized_type(dtype: Any, shape: Any, strides: Any, device: str) -> TensorType:
    """The type of a tensor some of whose sizes are symbols."""
    sizes = tuple(map(dim_of, shape))
    steps: tuple[Dim, ...] | None = tuple(map(dim_of, strides))
    if steps == row_major(shape, sizes) or _is_dense_now(sizes, steps):
        steps = None
    return TensorType(dtype, sizes, steps, device)


def row_major(shape: Any, sizes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Row-major strides of sizes."""
    if all(type(d) is int for d in sizes):
        return contiguous_strides(cast(tuple[int, ...], sizes))
    step: Any = 1
    found: list[Dim] = []
    for size in reversed(shape):
        found.append(dim_of(step))
        step = step * _at_least_one(size)
    return tuple(reversed(found))


def _at_least_one(size: Any) -> object:
    node = None if type(size) is int else node_of(size)
    if node is None:
        return max(int(size), 1)
    from torch import sym_max  # noqa: PLC0415

    return sym_max(size, 1)


def _is_dense_now(sizes: Any, steps: Any) -> bool:
    return all(type(d) is int for d in (*sizes, *steps)) and steps == contiguous_strides(sizes)


class Emitter:
    """Makes the nodes of numbers, each once in a region.

    add: makes a node of an operator, arguments and result types, and gives its value. source: a symbol's value.
    """

    def __init__(self, trace: CaptureTrace, add: Callable[[str, tuple[object, ...], list[Type]], Value],
                 source: Callable[[str], object]) -> None:  # fmt: skip
        self.trace, self.add, self.source = trace, add, source

    def number(self, number: Number, known: dict[object, object]) -> Any:
        """The value or literal of a number. known: what stands already, by expression; it takes in what is made."""
        if type(number) is Size:
            return self.poly(number.poly, known)
        if type(number) is SizeFloat:
            found = self.tree(number.expr, known)
            return float(found) if type(found) is int else found
        return number

    def poly(self, p: Poly, known: dict[object, object]) -> Any:
        """A polynomial."""
        p = self.trace.resolved(p)
        if terms.is_constant(p):
            return terms.constant_of(p)
        key = ("size", p)
        if key in known:
            return known[key]
        total: object = None
        for monomial, coefficient in sorted(p, key=lambda t: (t[1] < 0, not t[0], -len(t[0]), t[0])):
            product: object = None
            for index in monomial:
                factor = self.atom(index, known)
                product = factor if product is None else self._py("py.mul", (product, factor), known)
            number = abs(coefficient) if total is not None else coefficient
            if product is None:
                product = number
            elif number == -1:
                product = self._py("py.neg", (product,), known)
            elif number != 1:
                product = self._py("py.mul", (product, number), known)
            if total is None:
                total = product
            else:
                total = self._py("py.sub" if coefficient < 0 else "py.add", (total, product), known)
        known[key] = total
        return total

    def atom(self, index: int, known: dict[object, object]) -> object:
        """An atom."""
        key = ("atom", index)
        if key in known:
            return known[key]
        atom = cast(Any, self.trace.atoms[index])
        found: object
        match atom:
            case Symbol(name=name):
                if index in self.trace.known_floats:
                    return self.trace.known_floats[index]
                found = self.source(name)
            case Division(operator=sign, left=left, right=right):
                op = "py.floordiv" if sign == "//" else "py.mod"
                found = self._py(op, (self.poly(left, known), self.poly(right, known)), known)
            case Rounded(function="round", of=of):
                found = self._py("py.round", (self.tree(of, known),), known)
            case Rounded(function="trunc", of=of):
                found = self._py("py.int", (self.tree(of, known),), known)
            case Rounded(function=function, of=of):
                found = self._py("py.call", (f"math.{function}", self.tree(of, known)), known)
            case Computed(op=op, operands=operands, are_float=are_float, literals=literals):
                parts = [
                    self.tree(e, known) if is_float else self.poly(e, known)
                    for e, is_float in zip(operands, are_float, strict=True)
                ]
                found = self._py(op, (*literals, *parts), known)
            case _:
                raise AssertionError(atom)
        known[key] = found
        return found

    def tree(self, e: FloatExpr, known: dict[object, object]) -> Any:
        """A tree of floats."""
        match e:
            case ("size", p):
                return self.poly(p, known)
            case ("float", number):
                return number
            case ("atom", index):
                return self.atom(index, known)
            case (sign, left, right):
                return self._py(f"py.{BY_SYMBOL[sign].name}", (self.tree(left, known), self.tree(right, known)), known)
        raise AssertionError(e)

    def _py(self, op: str, args: tuple[Any, ...], known: dict[Any, Any]) -> object:
        if not any(isinstance(a, Value) for a in args):
            found = python_op(op)
            assert found is not None
            return found.run(*args)
        key = (op, *((id(a) if isinstance(a, Value) else (type(a), repr(a))) for a in args))
        if key not in known:
            known[key] = self.add(op, args, list(infer_python(op, args)))
        return known[key]


def number_type(number: Number) -> Type:
    """The type that a number has in the graph."""
    return FLOAT if type(number) in (SizeFloat, float) else INT
