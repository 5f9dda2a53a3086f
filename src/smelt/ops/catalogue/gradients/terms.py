"""Formulas of gradients, written as formulas: `g * (1 - y * y)` adds the nodes that compute it.

In bf16 and f16 a formula computes in f32 and is rounded once at the end, as torch's backward kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smelt.ir import Arg, DType, TensorType, Value
from smelt.ops.record import Call, Emitter, Gradient, Parts, tensor_type

Number = float | int
NARROW = frozenset((DType.BF16, DType.F16))


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A tensor in a formula. Operators broadcast and promote as torch's do."""

    b: Emitter
    value: Value

    @property
    def type(self) -> TensorType:
        """The tensor's type."""
        return tensor_type(self.value)

    def op(self, name: str, *args: Term | Arg, **kwargs: Term | Arg) -> Term:
        """An operator of aten on this tensor."""
        return Term(self.b, self.b.call(f"aten.{name}", self.value, *map(_arg, args), **_args(kwargs)))

    def to(self, dtype: DType) -> Term:
        """The same numbers in another dtype."""
        return self if self.type.dtype is dtype else self.op("_to_copy.default", dtype=dtype)

    def __add__(self, other: Term | Number) -> Term:
        return self.op("add.Tensor", other)

    def __radd__(self, other: Number) -> Term:
        return self.op("add.Tensor", other)

    def __sub__(self, other: Term | Number) -> Term:
        return self.op("sub.Tensor", other)

    def __rsub__(self, other: Number) -> Term:
        return self.op("rsub.Scalar", other)

    def __mul__(self, other: Term | Number) -> Term:
        return self.op("mul.Tensor", other)

    def __rmul__(self, other: Number) -> Term:
        return self.op("mul.Tensor", other)

    def __truediv__(self, other: Term | Number) -> Term:
        return self.op("div.Tensor", other)

    def __rtruediv__(self, other: Number) -> Term:
        return self.op("reciprocal.default") * other

    def __pow__(self, other: Term | Number) -> Term:
        return self.op("pow.Tensor_Tensor" if isinstance(other, Term) else "pow.Tensor_Scalar", other)

    def __neg__(self) -> Term:
        return self.op("neg.default")

    def __gt__(self, other: Term | Arg) -> Term:
        return self._compared("gt", other)

    def __ge__(self, other: Term | Arg) -> Term:
        return self._compared("ge", other)

    def __lt__(self, other: Term | Arg) -> Term:
        return self._compared("lt", other)

    def __le__(self, other: Term | Arg) -> Term:
        return self._compared("le", other)

    def equals(self, other: Term | Arg) -> Term:
        """Where the two are equal."""
        return self._compared("eq", other)

    def differs(self, other: Term | Arg) -> Term:
        """Where the two are not equal."""
        return self._compared("ne", other)

    def _compared(self, name: str, other: Term | Arg) -> Term:
        return self.op(f"{name}.{'Tensor' if isinstance(other, Term | Value) else 'Scalar'}", other)

    def also(self, other: Term) -> Term:
        """Logical and."""
        return self.op("logical_and.default", other)

    def either(self, other: Term) -> Term:
        """Logical or."""
        return self.op("logical_or.default", other)

    def where(self, condition: Term, other: Term | Number = 0) -> Term:
        """This tensor where the condition holds, the other elsewhere."""
        if isinstance(other, Term):
            return Term(self.b, self.b.call("aten.where.self", condition.value, self.value, other.value))
        return Term(self.b, self.b.call("aten.where.ScalarOther", condition.value, self.value, other))

    def zeros(self) -> Term:
        """Zeros of this type."""
        return self.op("zeros_like.default")

    def sum(self, dims: Sequence[int], keepdim: bool = False) -> Term:
        """The sum over dimensions; over none it is the tensor itself."""
        return self.op("sum.dim_IntList", tuple(dims), keepdim) if dims else self


def _arg(arg: Term | Arg) -> Arg:
    return arg.value if isinstance(arg, Term) else arg


def _args(kwargs: dict[str, Term | Arg]) -> dict[str, Arg]:
    return {name: _arg(arg) for name, arg in kwargs.items()}


def where(condition: Term, then: Term | Number, other: Term | Number) -> Term:
    """One of two, or of a number and a tensor."""
    if isinstance(then, Term):
        return then.where(condition, other)
    if not isinstance(other, Term):
        raise TypeError("one of the two must be a tensor")
    return Term(other.b, other.b.call("aten.where.ScalarSelf", condition.value, then, other.value))


def wide(b: Emitter, value: Value) -> Term:
    """A tensor as a formula takes it: in f32 where it is narrower."""
    found = Term(b, value)
    return found.to(DType.F32) if found.type.dtype in NARROW else found


def zeros_for(b: Emitter, result: Value, grad: Value | None) -> Value:
    """A result's gradient, zeros where it has none."""
    return b.call("aten.zeros_like.default", result) if grad is None else grad


# --- shapes of rules

OfOne = Callable[[Term, Term, Term], Term]
"""From the gradient, the operand and the result."""


def of_one(rule: OfOne) -> Gradient:
    """Of an operator on one tensor, `self`."""

    def gradient(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
        (grad,) = grads
        if grad is None:
            return {}
        return {"self": lambda: rule(wide(b, grad), wide(b, call["self"]), wide(b, results[0])).value}

    return gradient


OfCall = Callable[[Term, Call, Term], "dict[str, Callable[[], Term]] | None"]
"""From the gradient, the call, and the result: what writes each operand's gradient."""


def of_call(rule: OfCall) -> Gradient:
    """Of an operator with one result. Tensors of the call stand in it as terms, wide ones."""

    def gradient(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
        (grad,) = grads
        if grad is None:
            return {}
        found = rule(wide(b, grad), _terms(b, call), wide(b, results[0]))
        return None if found is None else {name: _value_of(make) for name, make in found.items()}

    return gradient


def _terms(b: Emitter, call: Call) -> Call:
    return _Lazy(b, call)


class _Lazy(dict[str, object]):
    """A call whose tensors become terms when they are asked for, so that what is not needed adds no node."""

    def __init__(self, b: Emitter, call: Call) -> None:
        super().__init__(call)
        self._b = b

    def __getitem__(self, name: str) -> object:
        found = super().__getitem__(name)
        if isinstance(found, Value) and isinstance(found.type, TensorType):
            return wide(self._b, found)
        return found


def _value_of(make: Callable[[], Term]) -> Callable[[], Arg]:
    return lambda: make().value
