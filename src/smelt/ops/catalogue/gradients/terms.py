"""Formulas of gradients, written as formulas: `g * (1 - y * y)` adds the nodes that compute it.

In bf16 and f16 a formula computes in f32 and is rounded once at the end, as torch's backward kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.diag.records import distinct_record
from smelt.ir import Arg, DType, TensorType, Value
from smelt.ops.record import Call, Emitter, Gradient, Parts, tensor_type

Number = float | int
NARROW = frozenset((DType.BF16, DType.F16))


@distinct_record
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
        return self.compared("gt", other)

    def __ge__(self, other: Term | Arg) -> Term:
        return self.compared("ge", other)

    def __lt__(self, other: Term | Arg) -> Term:
        return self.compared("lt", other)

    def __le__(self, other: Term | Arg) -> Term:
        return self.compared("le", other)

    def equals(self, other: Term | Arg) -> Term:
        """Where the two are equal."""
        return self.compared("eq", other)

    def differs(self, other: Term | Arg) -> Term:
        """Where the two are not equal."""
        return self.compared("ne", other)

    def compared(self, name: str, other: Term | Arg) -> Term:
        """A comparison by its name, with a tensor or a number."""
        return self.op(f"{name}.{'Tensor' if _is_tensor(other) else 'Scalar'}", other)

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


def _is_tensor(arg: Term | Arg) -> bool:
    return isinstance(arg, Term) or (isinstance(arg, Value) and isinstance(arg.type, TensorType))


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


def times(g: Term, factor: Any) -> Any:
    """A tensor times a number or a tensor: 0 for the number 0, itself for 1."""
    if type(factor) in (int, float) and factor in (0, 1):
        return g if factor else 0
    return g * factor


def wide(b: Emitter, value: Value) -> Term:
    """A tensor as a formula takes it: in f32 where it is narrower."""
    found = Term(b, value)
    return found.to(DType.F32) if found.type.dtype in NARROW else found


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


class Operands:
    """A call as a rule sees it: tensors as terms, in f32 where they are narrower, made when they are asked for."""

    def __init__(self, b: Emitter, call: Call, results: tuple[Value, ...]) -> None:
        self.b = b
        self.call = call
        self.results = results
        self._wide: dict[Value, Term] = {}

    def __getitem__(self, name: str) -> Any:
        found = self.call[name]
        return self._widened(found) if _is_tensor(found) else found

    def get(self, name: str, default: Any = None) -> Any:
        """The same, of an argument that only some overloads have."""
        return self[name] if name in self.call else default

    def raw(self, name: str) -> Any:
        """The same, a tensor in its own dtype."""
        found = self.call[name]
        return Term(self.b, found) if _is_tensor(found) else found

    @property
    def result(self) -> Term:
        """The first result."""
        return self._widened(self.results[0])

    def _widened(self, value: Value) -> Term:
        if value not in self._wide:
            self._wide[value] = wide(self.b, value)
        return self._wide[value]


OfCall = Callable[[Term, Operands], "Mapping[str, Callable[[], Term]] | None"]
"""From the first result's gradient and the call: what writes each operand's gradient. None: not for this call."""


def of_call(rule: OfCall, *, exact: bool = False) -> Gradient:
    """Of an operator of whose results only the first has a gradient.

    exact: the rule rounds nothing but its own results, so that it takes the gradient in its own dtype.
    """

    def gradient(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
        grad = grads[0]
        if grad is None:
            return {}
        found = rule(Term(b, grad) if exact else wide(b, grad), Operands(b, call, results))
        return None if found is None else {name: _value_of(make) for name, make in found.items()}

    return gradient


def _value_of(make: Callable[[], Term]) -> Callable[[], Arg]:
    return lambda: make().value
