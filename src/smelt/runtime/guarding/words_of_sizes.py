"""Checks of free sizes and numbers as words that native code walks: expressions over registers.

    sizes.bind("B", 5); sizes.check("B % 8 == 0", True)     ==>     COMPUTE MOD 9 5 8;  COMPARE equal 9 0

Invariant: the words hold only if the check does in Python. What has no such words raises, and the check is left to
Python; what overflows at a call is a miss, and Python asks again.
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Callable, Sequence

from smelt.runtime.encoding.entry_table import Compute, Guard
from smelt.runtime.guarding.guard_sizes import LIMIT, parsed


class CannotWrite(Exception):
    """A check that has no native form."""


_BINARY: dict[type[ast.operator], Compute] = {
    ast.Add: Compute.ADD,
    ast.Sub: Compute.SUB,
    ast.Mult: Compute.MUL,
    ast.FloorDiv: Compute.FLOORDIV,
    ast.Mod: Compute.MOD,
}
_LESS, _EQUAL, _GREATER, _NAN = 1, 2, 4, 8
_OUTCOMES: dict[type[ast.cmpop], int] = {
    ast.Lt: _LESS,
    ast.LtE: _LESS | _EQUAL,
    ast.Eq: _EQUAL,
    ast.NotEq: _LESS | _GREATER | _NAN,
    ast.GtE: _GREATER | _EQUAL,
    ast.Gt: _GREATER,
}
_MIRRORED = {_LESS: _GREATER, _GREATER: _LESS}


class SizeWords:
    """emit: writes a guard; take: gives the first of so many new registers. names: the registers of bound names."""

    def __init__(self, emit: Callable[..., None], take: Callable[[int], int]) -> None:
        self._emit, self._take = emit, take
        self.names: dict[str, int] = {}
        self._floats: set[str] = set()
        self._known: dict[str, int] = {}

    def bind(self, name: str, register: int, *, is_float: bool = False) -> bool:
        """Let a name be what a register holds; False if it is bound already."""
        if name in self.names:
            return False
        self.names[name] = register
        if is_float:
            self._floats.add(name)
        return True

    def equals(self, register: int, text: str) -> None:
        """The register holds this number. Raises: CannotWrite."""
        self._emit(Guard.COMPARE, _EQUAL, register, *self._operand(parsed(text)))

    def check(self, text: str, outcome: bool) -> None:
        """The comparison comes out so. Raises: CannotWrite."""
        self._condition(parsed(text), outcome)

    def spanned(self, sizes: Sequence[int], strides: Sequence[int] | None, itemsize: int) -> int:
        """A register with the bytes that a tensor spans; strides None: row-major."""
        found = self._constant(itemsize)
        if strides is None:
            for size in sizes:
                found = self._computed(Compute.MUL, found, (0, size))
            return found
        last = self._constant(1)
        for size, stride in zip(sizes, strides, strict=True):
            steps = self._computed(Compute.MUL, self._computed(Compute.SUB, size, (1, 1)), (0, stride))
            last = self._computed(Compute.ADD, last, (0, steps))
            # Nothing where a size is 0.
            found = self._computed(Compute.MUL, found, (0, self._computed(Compute.MIN, size, (1, 1))))
        return self._computed(Compute.MUL, found, (0, last))

    # --- conditions

    def _condition(self, tree: ast.expr, outcome: bool) -> None:
        match tree:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._condition(operand, not outcome)
            case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) == outcome:
                for value in values:
                    self._condition(value, outcome)
            case ast.Compare(left=left, ops=ops, comparators=rights) if outcome or len(ops) == 1:
                for comparison, a, b in zip(ops, [left, *rights], rights, strict=False):
                    self._comparison(comparison, a, b, outcome)
            case ast.BoolOp() | ast.Compare():
                raise CannotWrite
            case _:
                self._comparison(ast.NotEq(), tree, ast.Constant(0), outcome)

    def _comparison(self, op: ast.cmpop, left: ast.expr, right: ast.expr, outcome: bool) -> None:
        outcomes = _OUTCOMES.get(type(op))
        if outcomes is None:
            raise CannotWrite
        if not outcome:
            outcomes ^= _LESS | _EQUAL | _GREATER | _NAN
        if _number(left) is not None and _number(right) is None:
            left, right = right, left
            outcomes = sum(_MIRRORED.get(bit, bit) for bit in (1, 2, 4, 8) if outcomes & bit)
        if self._is_float(left) or self._is_float(right):
            is_constant, register = self._float(left)
            if is_constant:
                raise CannotWrite
            self._emit(Guard.COMPARE_FLOAT, outcomes, register, *self._float(right))
        else:
            self._emit(Guard.COMPARE, outcomes, self._register(left), *self._operand(right))

    def _is_float(self, tree: ast.expr) -> bool:
        return any(
            (isinstance(node, ast.Name) and node.id in self._floats)
            or (isinstance(node, ast.Constant) and isinstance(node.value, float))
            for node in ast.walk(tree)
        )

    def _float(self, tree: ast.expr) -> tuple[int, int]:
        """A float's name, or a number that is one exactly: whether it is a constant, and the register or its bits."""
        number = _number(tree)
        if number is not None:
            if float(number) != number:
                raise CannotWrite
            return 1, int(struct.unpack("<q", struct.pack("<d", number))[0])
        if isinstance(tree, ast.Name) and tree.id in self._floats:
            return 0, self.names[tree.id]
        raise CannotWrite

    # --- integers

    def _operand(self, tree: ast.expr) -> tuple[int, int]:
        """Whether it is a constant, and the constant or its register."""
        constant = _integer(tree)
        return (0, self._register(tree)) if constant is None else (1, constant)

    def _register(self, tree: ast.expr) -> int:
        text = ast.unparse(tree)
        if text not in self._known:
            self._known[text] = self._evaluated(tree)
        return self._known[text]

    def _evaluated(self, tree: ast.expr) -> int:
        constant = _integer(tree)
        if constant is not None:
            return self._constant(constant)
        match tree:
            case ast.Name(id=name) if name in self.names and name not in self._floats:
                return self.names[name]
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._register(operand)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._negated(self._register(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._computed(_BINARY[type(op)], self._register(left), self._operand(right))
            case ast.Call(func=ast.Name(id="max" | "min" as name), args=[first, *rest], keywords=[]) if rest:
                found = self._register(first)
                for each in rest:
                    found = self._computed(Compute.MAX if name == "max" else Compute.MIN, found, self._operand(each))
                return found
            case ast.Call(func=ast.Name(id="abs"), args=[operand], keywords=[]):
                number = self._register(operand)
                return self._computed(Compute.MAX, number, (0, self._negated(number)))
            case ast.Call(func=ast.Name(id="ceil_div"), args=[a, b], keywords=[]):
                floor = self._computed(Compute.FLOORDIV, self._negated(self._register(a)), self._operand(b))
                return self._negated(floor)
        raise CannotWrite

    def _negated(self, register: int) -> int:
        return self._computed(Compute.SUB, self._constant(0), (0, register))

    def _constant(self, value: int) -> int:
        text = str(value)
        if text not in self._known:
            self._known[text] = self._take(1)
            self._emit(Guard.SET, self._known[text], value)
        return self._known[text]

    def _computed(self, operation: Compute, a: int, b: tuple[int, int]) -> int:
        if operation in (Compute.FLOORDIV, Compute.MOD) and b[0] and b[1] < 1:
            raise CannotWrite
        to = self._take(1)
        self._emit(Guard.COMPUTE, operation, to, a, *b)
        return to


def _number(tree: ast.expr) -> int | float | None:
    """A literal number."""
    match tree:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    return None


def _integer(tree: ast.expr) -> int | None:
    """A literal integer of 64 bits."""
    value = _number(tree)
    return value if isinstance(value, int) and -LIMIT <= value < LIMIT else None
