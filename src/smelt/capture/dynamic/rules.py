"""Results of the most frequent operators on shadows of symbolic sizes, without torch's kernels for these.

Those kernels take milliseconds for an operator that is decomposed (a linear layer, a norm) and ask for more than is
needed. A rule says nothing (None) wherever it is not plain what eager gives; torch's kernel runs then.

Invariant: a rule asks nothing of the trace that leaves a guard, but what the operator itself demands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt._torch.shadow import Shadows
from smelt.capture.dynamic.arithmetic import is_symbolic
from smelt.capture.dynamic.nodes import node_of
from smelt.capture.dynamic.values import sized

Rule = Callable[[Shadows, Sequence[Any], dict[str, Any]], Any]


def _number(size: Any) -> Any:
    node = None if type(size) is int else node_of(size)
    return size if node is None else node.number


def _numbers(sizes: Sequence[Any]) -> list[Any]:
    return [_number(size) for size in sizes]


def _same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal at all sizes."""
    if is_symbolic(a) and is_symbolic(b):
        return bool(a.trace.resolved(a.poly) == b.trace.resolved(b.poly))
    return type(a) is type(b) and bool(a == b)


def _steps(sizes: Sequence[Any]) -> list[Any] | None:
    """Row-major strides; None where a size may be 0."""
    found: list[Any] = []
    step: Any = 1
    for size in reversed(sizes):
        found.append(step)
        if (size.trace.bounds(size.poly)[0] if is_symbolic(size) else size) < 1:
            return None
        step = step * size
    found.reverse()
    return found


def _row_major(tensor: torch.Tensor) -> list[Any] | None:
    """The sizes of a tensor that lies row-major at all sizes, None for others."""
    sizes = _numbers(tensor.shape)
    steps = _steps(sizes)
    if steps is None or not all(_same(a, b) for a, b in zip(_numbers(tensor.stride()), steps, strict=True)):
        return None
    return sizes


def _make(shadows: Shadows, like: torch.Tensor, sizes: Sequence[Any], dtype: torch.dtype | None = None) -> Any:
    steps = _steps(sizes)
    traces = [size.trace for size in sizes if is_symbolic(size)]
    if steps is None or not traces:
        return None
    shown = [[sized(traces[0], n) for n in numbers] for numbers in (sizes, steps)]
    return shadows.direct(dtype or like.dtype, shown[0], shown[1], like.device)


def _needs_grad(args: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)


def _linear(shadows: Shadows, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x, weight, *bias = args
    sizes = _row_major(x)
    if sizes is None or weight.dim() != 2 or len(sizes) < 2 or x.dtype != weight.dtype:
        return None
    if any(b is not None and (b.dim() != 1 or b.dtype != x.dtype) for b in bias):
        return None
    rows, columns = _numbers(weight.shape)
    if not _same(sizes[-1], columns) or not all(b is None or _same(_number(b.shape[0]), rows) for b in bias):
        return None
    return _make(shadows, x, [*sizes[:-1], rows])


def _layer_norm(shadows: Shadows, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x, shape, *rest = args
    sizes = _row_major(x)
    if sizes is None or not x.is_floating_point() or len(shape) > len(sizes) or not shape:
        return None
    tail = sizes[len(sizes) - len(shape) :]
    for given in (_numbers(shape), *[_numbers(w.shape) for w in rest if isinstance(w, torch.Tensor)]):
        if len(given) != len(tail) or not all(map(_same, given, tail)):
            return None
    if any(isinstance(w, torch.Tensor) and w.dtype != x.dtype for w in rest):
        return None
    return _make(shadows, x, sizes)


def _conv(shadows: Shadows, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    x, weight, *rest = args
    sizes, kernel = _row_major(x), _numbers(weight.shape)
    axes = x.dim() - 2
    if sizes is None or kwargs or axes < 1 or weight.dim() != x.dim() or not all(type(k) is int for k in kernel):
        return None
    if not weight.is_contiguous() or weight.dtype != x.dtype or (rest and rest[0] is not None and rest[0].dim() != 1):
        return None
    given: list[Any] = [*rest[1:], *[(1,), (0,), (1,), 1][len(rest[1:]) :]] if rest else [(1,), (0,), (1,), 1]
    if any(isinstance(g, str) for g in given):
        return None
    stride, padding, dilation = (_numbers(g) * (axes if len(g) == 1 else 1) for g in given[:3])
    if sizes[1] != kernel[1] * given[3]:
        return None
    found = []
    for size, k, s, p, d in zip(sizes[2:], kernel[2:], stride, padding, dilation, strict=True):
        span = size + 2 * p - d * (k - 1) - 1
        if span < 0:
            return None
        found.append(span // s + 1)
    return _make(shadows, x, [sizes[0], kernel[0], *found])


def _same_layout(shadows: Shadows, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Of one floating-point operand, element by element or along a dimension."""
    x = args[0]
    sizes = _row_major(x) if x.is_floating_point() else None
    more = (*args[1:], *kwargs.values())
    if sizes is None or any(isinstance(v, (torch.Tensor, torch.dtype)) for v in more):
        return None
    return _make(shadows, x, sizes)


def _binary(shadows: Shadows, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Of two floating-point operands of one type, or of one and a number."""
    x, y = args
    sizes = _row_major(x) if x.is_floating_point() else None
    if sizes is None or kwargs:
        return None
    if not isinstance(y, torch.Tensor):
        is_real = isinstance(y, (int, float)) or node_of(y) is not None
        return _make(shadows, x, sizes) if is_real else None
    others = _row_major(y) if y.dtype == x.dtype and y.dim() else None
    if others is None:
        return None
    if len(others) > len(sizes):
        sizes, others = others, sizes
    for mine, theirs in zip(sizes[len(sizes) - len(others) :], others, strict=True):
        if not _same(mine, theirs) and not (type(theirs) is int and theirs == 1):
            return None
    return _make(shadows, x, sizes)


def _view(shadows: Shadows, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """To sizes of which at most one is left to be found, where the numbers of elements are plainly the same."""
    x, shape = args
    sizes = _row_major(x)
    if sizes is None or x.dim() == 0:
        return None
    wanted = _numbers(shape)
    open_ = [i for i, size in enumerate(wanted) if type(size) is int and size == -1]
    if len(open_) > 1 or any(type(size) is int and size < 1 for size in wanted if size != -1 or not open_):
        return None
    total: Any = 1
    for size in sizes:
        total = total * size
    known: Any = 1
    for i, size in enumerate(wanted):
        if i not in open_:
            known = known * size
    if open_:
        if is_symbolic(known) and not is_symbolic(total):
            return None
        rest = total // known
        if not _same(_resolved(rest * known), _resolved(total)):
            return None
        wanted[open_[0]] = rest
    elif not _same(_resolved(total), _resolved(known)):
        return None
    return _make(shadows, x, wanted)


def _resolved(number: Any) -> Any:
    return number.trace.number(number.trace.resolved(number.poly)) if is_symbolic(number) else number


_UNARY = (
    "gelu", "relu", "tanh", "sigmoid", "silu", "exp", "neg", "abs", "sqrt", "rsqrt", "sin", "cos", "erf", "log",
    "leaky_relu", "elu", "softplus", "hardtanh", "square",
)  # fmt: skip
_RULES: dict[str, Rule] = {
    "aten.linear.default": _linear,
    "aten.layer_norm.default": _layer_norm,
    **{f"aten.{name}.Tensor": _binary for name in ("add", "sub", "mul", "div")},
    **{f"aten.conv{n}d.default": _conv for n in (1, 2, 3)},
    "aten.softmax.int": _same_layout,
    "aten.log_softmax.int": _same_layout,
    "aten.view.default": _view,
    "aten.reshape.default": _view,
    **{f"aten.{name}.default": _same_layout for name in _UNARY},
}


def has_rule(name: str) -> bool:
    """Whether there may be a rule for an operator."""
    return name in _RULES


def by_rule(shadows: Shadows, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of an operator on shadows where there is a rule for it, and it says something; else None."""
    rule = _RULES.get(name)
    if rule is None or _needs_grad(args) or not isinstance(args[0], torch.Tensor):
        return None
    if all(type(size) is int for size in args[0].shape):
        return None
    return rule(shadows, args, kwargs)
