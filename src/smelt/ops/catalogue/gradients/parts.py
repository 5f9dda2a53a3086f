"""What the gradients of views, gathers, products and layers share: sizes, zeros, pieces side by side.

A rule that `of_ranks` makes fits all tensors of known ranks; one that `of_sizes` makes needs sizes that are numbers (as
symbols of a trace pass for numbers). For other calls there is no gradient, and torch's own is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from smelt.ir import Arg, DType, TensorType, TupleType, Value
from smelt.ir.sizes import equals
from smelt.ops.record import Call, Emitter, Gradient, Parts, tensor_type

Rule = Callable[[Emitter, Call, Value], "Value | tuple[Value | None, ...]"]
"""One operand's gradient, from the call and the gradient of its only result."""


def of_sizes(**rules: Rule) -> Gradient:
    """Of an operator with one result and a rule for each operand that has a gradient, where all sizes are numbers."""
    return _of(has_sizes, rules)


def of_ranks(**rules: Rule) -> Gradient:
    """The same where all ranks are known."""
    return _of(has_ranks, rules)


def _of(fits: Callable[..., bool], rules: Mapping[str, Rule]) -> Gradient:
    def gradient(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
        grad = grads[0]
        if grad is None or not fits(call, grad):
            return {} if grad is None else None
        return {name: _made(rule, b, call, grad) for name, rule in rules.items()}

    return gradient


def _made(rule: Rule, b: Emitter, call: Call, grad: Value) -> Callable[[], Arg]:
    return lambda: rule(b, call, grad)


def has_sizes(call: Call, *more: Arg) -> bool:
    """Whether the sizes of a call's tensors, and of some more, are numbers."""
    return all(t.is_static for t in tensors_in((*call.values(), *more)))


def has_ranks(call: Call, *more: Arg) -> bool:
    """Whether the ranks of a call's tensors, and of some more, are known."""
    return all(t.shape is not None for t in tensors_in((*call.values(), *more)))


def tensors_in(arg: Arg) -> tuple[TensorType, ...]:
    """The types of a tensor, or of a list of them."""
    if not isinstance(arg, Value):
        return tuple(t for item in arg for t in tensors_in(item)) if isinstance(arg, tuple) else ()
    types = arg.type.elements if isinstance(arg.type, TupleType) else (arg.type,)
    return tuple(t for t in types if isinstance(t, TensorType))


def same(b: Emitter, call: Call, grad: Value) -> Value:
    """The gradient unchanged: who takes it sums over what was broadcast, and casts."""
    return grad


def rank_of(x: Value) -> int:
    """The number of dimensions of a tensor that has a known one."""
    return len(tensor_type(x).shape or ())


def sizes_of(x: Value) -> tuple[int, ...]:
    """The sizes of a tensor."""
    return tensor_type(x).sizes


def in_dtype(b: Emitter, x: Value, dtype: DType) -> Value:
    """The same numbers in this dtype."""
    return x if tensor_type(x).dtype is dtype else b.call("aten._to_copy.default", x, dtype=dtype)


def reshaped(b: Emitter, x: Value, sizes: Sequence[int]) -> Value:
    """The same elements in other sizes."""
    return x if sizes_of(x) == tuple(sizes) else b.call("aten.reshape.default", x, tuple(sizes))


def reshaped_like(b: Emitter, x: Value, like: Value) -> Value:
    """The same elements in another tensor's sizes."""
    if tensor_type(x).shape == tensor_type(like).shape:
        return x
    if tensor_type(like).is_static:
        return b.call("aten.reshape.default", x, sizes_of(like))
    return b.call("aten.reshape_as.default", x, like)


def turned(b: Emitter, x: Value) -> Value:
    """A matrix, or each of a batch of them, transposed."""
    return b.call("aten.transpose.int", x, rank_of(x) - 2, rank_of(x) - 1)


def times(b: Emitter, x: Value, factor: Arg) -> Value:
    """A tensor times a tensor or number; no node for 1."""
    is_one = isinstance(factor, int | float) and factor == 1
    return x if is_one else b.call("aten.mul.Tensor", x, factor)


def zeros(b: Emitter, kind: TensorType, dtype: DType | None = None) -> Value:
    """Zeros in the sizes of a type, in its dtype or another."""
    return b.call("aten.zeros.default", kind.sizes, dtype=dtype or kind.dtype)


def zeros_beside(b: Emitter, x: Value, grad: Value) -> Value:
    """Zeros in a tensor's sizes and a gradient's dtype."""
    dtype = tensor_type(grad).dtype
    if tensor_type(x).is_static:
        return zeros(b, tensor_type(x), dtype)
    return b.call("aten.zeros_like.default", x, dtype=dtype)


def padded(b: Emitter, x: Value, dim: int, before: int, after: int) -> Value:
    """A tensor with zeros before and after it along a dimension."""
    if equals(before, 0) and equals(after, 0):
        return x
    rank = rank_of(x)
    return b.call("aten.constant_pad_nd.default", x, (0, 0) * (rank - 1 - dim % rank) + (before, after))


def joined(b: Emitter, pieces: Sequence[Value | None], kinds: Sequence[TensorType], dim: int, op: str) -> Value:
    """Pieces side by side (op: `cat` or `stack`), zeros where there is none. Raises: ValueError where there is none."""
    present = [i for i, piece in enumerate(pieces) if piece is not None]
    if not present:
        raise ValueError("no item has a gradient")
    first, last = present[0], present[-1] + 1
    inner = tuple(
        p if p is not None else zeros(b, k) for p, k in zip(pieces[first:last], kinds[first:last], strict=True)
    )
    if len(inner) > 1:
        made = b.call(f"aten.{op}.default", inner, dim)
    else:
        made = inner[0] if op == "cat" else b.call("aten.unsqueeze.default", inner[0], dim)
    return padded(b, made, dim, *(sum(_length(k, dim, op) for k in part) for part in (kinds[:first], kinds[last:])))


def _length(kind: TensorType, dim: int, op: str) -> int:
    return kind.sizes[dim] if op == "cat" else 1
