"""What a program holds for, as assertions at the head of its `torch.fx` graph: calls of torch and `operator` alone.

    input_0.shape == (3, 4), input_0.dtype == torch.float32, input_0.is_contiguous()
    input_1.shape[0] >= 2, input_1.shape[0] % 8 == 0        # of a program of free sizes

Invariant: none asks Python for the truth or the class of a value. torch.fx traces a module again to unpickle it, and
values are proxies then; a check that Python answered would be lost, or would fail.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import reduce
from typing import Any

import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

from smelt._torch.library.fx import assert_that
from smelt.diag import InternalError
from smelt.ir import BOOL, COMPLEX, FLOAT, INT, DType, TensorType, Type
from smelt.ir.dims import Dim, Sym, SymExpr, UnknownDim, is_static
from smelt.ops.convert import dtype_to_torch
from smelt.runtime.guarding.guard_sizes import LIMIT, SizeCheck, parsed

_BINARY: Mapping[type[ast.operator], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_COMPARED: Mapping[type[ast.cmpop], Callable[..., Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_FOLDED: Mapping[str, Callable[..., Any]] = {"max": torch.sym_max, "min": torch.sym_min}
_KINDS: Mapping[Type, tuple[str, Any]] = {
    BOOL: ("dtype", torch.bool),
    INT: ("dtype", torch.int64),
    FLOAT: ("dtype.is_floating_point", True),
    COMPLEX: ("dtype.is_complex", True),
}
"""Of a bool tensor times a number of a type: which attribute is what. torch's promotion tells the types apart."""


class Head:
    """Appends assertions on the inputs to one graph of `torch.fx`."""

    def __init__(self, fx: FxGraph) -> None:
        self.fx = fx
        self._names: dict[str, Any] = {}  # of symbols, what they are
        self._shapes: dict[FxNode, FxNode] = {}
        self._sizes: dict[tuple[FxNode, int], FxNode] = {}
        self._true: FxNode | None = None

    def tensor(self, node: FxNode, type_: TensorType, place: str, names: Mapping[int | None, str]) -> None:
        """Assert an input's dtype, layout and rank. names: of the symbols that are read here, by dimension."""
        what = f"{place} is {type_}"
        if type_.dtype is not DType.UNKNOWN:
            self._must(self._call(operator.eq, self._attribute(node, "dtype"), dtype_to_torch(type_.dtype)), what)
        if type_.shape is None:
            return
        layout = getattr(torch, type_.layout)
        self._must(self._call(operator.eq, self._attribute(node, "layout"), layout), f"{what}, {type_.layout}")
        if is_static(type_.shape):
            self._must(self._call(operator.eq, self._shape(node), tuple(type_.shape)), what)
            return
        self._must(self._call(operator.eq, self._attribute(node, "ndim"), len(type_.shape)), what)
        for dim, size in enumerate(type_.shape):
            if dim in names:
                self._names[names[dim]] = self._size(node, dim)
            elif isinstance(size, Sym) and size.name not in self._names:
                self._names[size.name] = self._size(node, dim)

    def extents(self, node: FxNode, type_: TensorType, place: str) -> None:
        """Assert an input's sizes and strides, as far as they are known; all symbols are read by now.

        Strides along sizes of 1 may be any.
        """
        if type_.shape is None:
            return
        what = f"{place} is {type_}"
        for dim, size in enumerate(() if is_static(type_.shape) else type_.shape):
            if _is_known(size) and (wanted := self._dim(size)) is not self._size(node, dim):
                self._must(self._call(operator.eq, self._size(node, dim), wanted), what)
        if type_.layout != "strided":
            return
        if type_.strides is None:
            self._must(self.fx.call_method("is_contiguous", (node,)), f"{what}, row by row in memory")
            return
        for dim, (size, stride) in enumerate(zip(type_.shape, type_.strides, strict=True)):
            if size != 1 and _is_known(stride):
                found = self.fx.call_method("stride", (node, dim))
                self._must(self._call(operator.eq, found, self._dim(stride)), f"{what}, with these strides")

    def number(self, node: Any, type_: Type, place: str, name: str | None = None) -> None:
        """Assert that an input is a number of one of Python's types; name: of the symbol that it is."""
        if name is not None:
            self._names[name] = node
        if type_ not in _KINDS:
            return
        if self._true is None:
            scalar = torch.ops.aten.scalar_tensor.default
            self._true = self.fx.call_function(scalar, (True,), {"dtype": torch.bool})
        path, wanted = _KINDS[type_]
        found: Any = self._call(torch.ops.aten.mul.Scalar, self._true, node)
        for part in path.split("."):
            found = self._attribute(found, part)
        self._must(self._call(operator.eq, found, wanted), f"{place} is of type {type_}")

    def fixed(self, node: FxNode, value: Any) -> None:
        """Assert that an argument is what it was at capture, type and all."""
        what = f"{value!r} is passed here"
        number = {bool: BOOL, int: INT, float: FLOAT, complex: COMPLEX}.get(type(value))
        if number is not None and not (number == INT and not -LIMIT <= value < LIMIT):
            self.number(node, number, f"as {value!r}, what is passed here")
        if isinstance(value, Enum) and isinstance(value, int | float | str):  # is equal to what it is made of
            self._must(self._call(operator.eq, self._attribute(node, "name"), value.name), what)
        self._must(same_number(self.fx, node, value), what)

    def check(self, check: SizeCheck) -> None:
        """Assert a condition on symbols that are bound. Raises: InternalError for a text that is no expression."""
        holds = self._truth(parsed(check.text))
        at = f" ({check.span})" if check.span else ""
        self._must(holds if check.outcome else self._call(operator.eq, holds, False), f"{check}{at}")

    def one(self, a: FxNode, b: FxNode, types: tuple[Type, Type], *, are_one: bool) -> None:
        """Assert that two inputs are one tensor, or that they are not, where their types leave that open."""
        if not _may_be_asked(*types):
            return
        what = f"{a.name} and {b.name} are {'one tensor' if are_one else 'two tensors, as it writes to one of them'}"
        self._must(self._call(operator.eq, self.fx.call_method("is_set_to", (a, b)), are_one), what)

    def _must(self, holds: Any, what: str) -> None:
        self.fx.call_function(assert_that, (holds, f"the graph holds only where {what}"))

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        if any(isinstance(arg, FxNode) for arg in args):
            return self.fx.call_function(function, args)
        return function(*args)

    def _attribute(self, node: Any, name: str) -> Any:
        return self._call(getattr, node, name)

    def _shape(self, node: FxNode) -> FxNode:
        if node not in self._shapes:
            self._shapes[node] = self._attribute(node, "shape")
        return self._shapes[node]

    def _size(self, node: FxNode, dim: int) -> FxNode:
        if (node, dim) not in self._sizes:
            self._sizes[node, dim] = self._call(operator.getitem, self._shape(node), dim)
        return self._sizes[node, dim]

    def _dim(self, dim: Dim) -> Any:
        """A size or stride that is known."""
        return dim if isinstance(dim, int) else self._value(parsed(str(dim)))

    def _value(self, tree: ast.expr) -> Any:
        match tree:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in self._names:
                return self._names[name]
            case ast.BinOp(left=left, op=op, right=right):
                return self._call(_BINARY[type(op)], self._value(left), self._value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._call(operator.neg, self._value(operand))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._call(operator.pos, self._value(operand))
            case ast.Call(func=ast.Name(id=("max" | "min") as name), args=args):
                return reduce(lambda a, b: self._call(_FOLDED[name], a, b), map(self._value, args))
            case ast.Call(func=ast.Name(id="abs"), args=[arg]):
                return self._call(operator.abs, self._value(arg))
            case ast.Call(func=ast.Name(id="round"), args=[arg]):
                found = self._value(arg)
                # As a method, since `round` asks for the class of what it is given.
                return self.fx.call_method("__round__", (found,)) if isinstance(found, FxNode) else round(found)
            case ast.Call(func=ast.Name(id="ceil_div"), args=[a, b]):
                negative = self._call(operator.neg, self._value(a))
                return self._call(operator.neg, self._call(operator.floordiv, negative, self._value(b)))
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self._truth(tree)
        raise InternalError(f"{ast.unparse(tree)!r} is no expression of the sizes at hand")

    def _truth(self, tree: ast.expr) -> Any:
        match tree:
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                terms = [self._value(term) for term in (left, *comparators)]
                pairs = zip(ops, terms, terms[1:], strict=False)
                return self._all([self._call(_COMPARED[type(op)], a, b) for op, a, b in pairs])
            case ast.BoolOp(op=ast.And(), values=values):
                return self._all([self._truth(value) for value in values])
            case ast.BoolOp(values=values):
                return reduce(lambda a, b: self._call(operator.or_, a, b), map(self._truth, values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._call(operator.eq, self._truth(operand), False)
        return self._call(operator.ne, self._value(tree), 0)

    def _all(self, tests: Sequence[Any]) -> Any:
        return reduce(lambda a, b: self._call(operator.and_, a, b), tests)


def _may_be_asked(a: Type, b: Type) -> bool:
    """Whether tensors of these types may be one, and torch can tell."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or (a.layout, b.layout) != ("strided", "strided"):
        return False
    if DType.UNKNOWN not in (a.dtype, b.dtype) and a.dtype is not b.dtype:
        return False
    if a.shape is None or b.shape is None:
        return True
    pairs = zip(a.shape, b.shape, strict=False)
    return len(a.shape) == len(b.shape) and all(m == n for m, n in pairs if isinstance(m, int) and isinstance(n, int))


def _is_known(dim: Dim) -> bool:
    match dim:
        case UnknownDim():
            return False
        case SymExpr(left=left, right=right):
            return _is_known(left) and _is_known(right)
    return True


def same_number(fx: FxGraph, found: Any, wanted: Any) -> FxNode:
    """Whether what is found is this value: nan where it is nan, of the same sign where it is 0."""
    call = fx.call_function
    if wanted != wanted:
        return call(operator.ne, (found, found))
    same = call(operator.eq, (found, wanted))
    if isinstance(wanted, float) and wanted == 0:
        sign = call(operator.eq, (call(math.copysign, (1.0, found)), math.copysign(1.0, wanted)))
        return call(operator.and_, (same, sign))
    return same


__all__ = ["Head", "same_number"]
