"""Sizes and Python's numbers as terms: equal ones are equal however the program spelled them.

`x.size(0)`, `x.shape[0]` and `b, s = x.shape` are one term; where sizes are known they are numbers. A term is a nested
tuple: ("is", literal), ("var", value), ("size", tensor, i), ("sizes", tensor, start, stop) for a part of unknown
length, ("dim", size), ("seq", item, …) and ("op", name, term, …).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from smelt.ir import Arg, Node, TensorType, UnknownDim, Value
from smelt.ir.type_order import may_hold_tensor
from smelt.scheduling.finding.forms import is_arithmetic

Term: TypeAlias = tuple[Any, ...]
_FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "py.add": lambda a, b: a + b,
    "py.sub": lambda a, b: a - b,
    "py.mul": lambda a, b: a * b,
    "py.floordiv": lambda a, b: a // b,
    "py.mod": lambda a, b: a % b,
    "py.truediv": lambda a, b: a / b,
    "py.pow": lambda a, b: a**b,
}
_SWAPS = frozenset({"py.add", "py.mul"})
# Larger powers are not worth their digits.
_MOST_BITS = 64


def literal(value: Any) -> Term:
    """The term of a literal; its type belongs to it, since 1, 1.0 and True are equal in Python."""
    return ("is", type(value).__name__, value if value == value else "nan", str(value))


def number(term: Term) -> Any:
    """The Python value of a literal's term, else None."""
    return term[2] if term[0] == "is" else None


def sequence(items: list[Term]) -> Term:
    """A list or tuple; parts that are sequences of known items stand as these."""
    return ("seq", *items)


def size(tensor: Value, index: int) -> Term:
    """One size of a tensor: a number where it is known."""
    shape = tensor.type.shape if isinstance(tensor.type, TensorType) else None
    if shape is not None and -len(shape) <= index < len(shape):
        found = shape[index]
        if type(found) is int:
            return literal(found)
        if not isinstance(found, UnknownDim):
            return ("dim", found)
        index %= len(shape)
    return ("size", tensor, index)


def sizes(tensor: Value, start: int | None, stop: int | None) -> list[Term]:
    """The sizes of a tensor from start to stop, one by one where the rank is known."""
    shape = tensor.type.shape if isinstance(tensor.type, TensorType) else None
    if shape is None:
        return [("sizes", tensor, start, stop)]
    return [size(tensor, i) for i in range(len(shape))[start:stop]]


def operation(name: str, items: list[Term]) -> Term:
    """An operation on terms, folded where all that it looks at is known."""
    known = _of_containers(name, items)
    if known is not None:
        return known
    values = [number(item) for item in items]
    fold = _FOLDS.get(name)
    if fold is not None and len(values) == 2 and all(type(v) in (int, float) for v in values):
        small = name != "py.pow" or (abs(values[0]) < 2**_MOST_BITS and abs(values[1]) <= _MOST_BITS)
        try:
            if small:
                return literal(fold(*values))
        except (ArithmeticError, ValueError):
            pass
    if name in _SWAPS:
        items = sorted(items, key=repr)
    return ("op", name, *items)


class Terms:
    """The terms of a graph's values, computed in program order."""

    def __init__(self, nodes: list[Node]) -> None:
        self._known: dict[Value, Term] = {}
        for node in nodes:
            if is_arithmetic(node):
                for result in node.results:
                    self._known[result] = self._result(node, result)

    def of(self, arg: Arg) -> Term:
        """The term of an argument."""
        if isinstance(arg, Value):
            return self._known.get(arg, ("var", arg))
        if isinstance(arg, tuple):
            return sequence([self.of(item) for item in arg])
        return literal(arg)

    def _result(self, node: Node, result: Value) -> Term:
        args, op = node.args, node.op
        if node.regions:
            return ("var", result)
        if op == "aten.sym_size.default" and isinstance(args[0], Value):
            return sequence(sizes(args[0], None, None))
        if op == "aten.sym_size.int" and isinstance(args[0], Value) and type(args[1]) is int:
            return size(args[0], args[1])
        items = [self.of(arg) for arg in args]
        if op == "unpack" and items[0][0] == "seq" and not _has_open_part(items[0]):
            return _at(items[0], node.results.index(result)) or ("var", result)
        if node.kwargs or len(node.results) != 1:
            return ("var", result)
        return operation(op, items)


def _of_containers(name: str, items: list[Term]) -> Term | None:
    """What lists and tensors tell of themselves, as far as it is known."""
    if name in ("py.list", "py.tuple"):
        return sequence(items)
    if name == "py.concat" and all(item[0] == "seq" for item in items):
        return sequence([part for item in items for part in item[1:]])
    if name == "py.getitem":
        return _at(items[0], number(items[1]))
    if name == "py.slice":
        return _slice(items)
    if name == "py.len" and items[0][0] == "seq" and not _has_open_part(items[0]):
        return literal(len(items[0]) - 1)
    if name in ("aten.dim.default", "aten.sym_numel.default") and items[0][0] == "var":
        type_ = items[0][1].type
        if isinstance(type_, TensorType) and type_.rank is not None:
            if name == "aten.dim.default":
                return literal(type_.rank)
            if type_.is_static:
                return literal(type_.numel)
    return None


def translate(term: Term, find: Callable[[Value], Term | Value | None]) -> Term | None:
    """A pattern's term in the values of the program; None where a value is not known yet."""
    kind = term[0]
    if kind == "var":
        found = find(term[1])
        return ("var", found) if isinstance(found, Value) else found
    if kind in ("size", "sizes"):
        tensor = find(term[1])
        if not isinstance(tensor, Value):
            return None
        if kind == "size":
            return size(tensor, term[2])
        return sequence(sizes(tensor, term[2], term[3]))
    if kind in ("seq", "op"):
        done: list[Term] = []
        for item in term[1:] if kind == "seq" else term[2:]:
            made = translate(item, find)
            if made is None:
                return None
            # A part of a list that became known is spread out.
            done.extend(made[1:] if item[0] == "sizes" else [made])
        return sequence(done) if kind == "seq" else operation(term[1], done)
    return term


def view_sizes(term: Term, operand: Value) -> Term:
    """The sizes asked of `view`, a single -1 replaced where the number of elements is known."""
    type_ = operand.type
    if term[0] != "seq" or not isinstance(type_, TensorType) or not type_.is_static:
        return term
    values = [number(item) for item in term[1:]]
    if any(type(v) is not int for v in values) or values.count(-1) != 1:
        return term
    rest = -math.prod(values)
    if rest <= 0 or type_.numel % rest:
        return term
    return sequence([literal(type_.numel // rest if v == -1 else v) for v in values])


def _has_open_part(term: Term) -> bool:
    return any(item[0] == "sizes" for item in term[1:])


def _at(term: Term, index: Any) -> Term | None:
    if term[0] != "seq" or type(index) is not int:
        return None
    items = term[1:]
    if len(items) == 1 and items[0][0] == "sizes" and items[0][2:] == (None, None):
        return size(items[0][1], index)
    if _has_open_part(term) or not -len(items) <= index < len(items):
        return None
    found: Term = items[index]
    return found


def _slice(items: list[Term]) -> Term | None:
    whole, (start, stop, step) = items[0], [number(item) for item in items[1:4]]
    if whole[0] != "seq" or step not in (None, 1) or any(v is not None and type(v) is not int for v in (start, stop)):
        return None
    if any(item[0] != "is" for item in items[1:4]):
        return None
    parts = whole[1:]
    if len(parts) == 1 and parts[0][0] == "sizes" and parts[0][2:] == (None, None):
        return sequence(sizes(parts[0][1], start, stop))
    return None if _has_open_part(whole) else sequence(list(parts[start:stop]))


def holds_tensor(arg: Arg) -> bool:
    """Whether an argument holds a tensor of the pattern or program, nested ones counted."""
    if isinstance(arg, tuple):
        return any(map(holds_tensor, arg))
    return isinstance(arg, Value) and may_hold_tensor(arg.type)
