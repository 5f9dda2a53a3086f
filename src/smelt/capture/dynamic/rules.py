"""Results of the most frequent operators on fake tensors of symbolic sizes, without torch's kernels for these.

Those kernels take milliseconds for an operator that is decomposed (a linear layer, a norm) and ask for more than is
needed. A rule says nothing (None) wherever it is not plain what eager gives; torch's kernel runs then.

Invariant: a rule asks nothing of the trace that leaves a guard, but what the operator itself demands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs
from smelt._torch.seen.staged_fakes import FakeTensors
from smelt._torch.state import is_any_autocast
from smelt.capture.dynamic.arithmetic import at_hand, is_symbolic
from smelt.capture.dynamic.nodes import node_of
from smelt.capture.dynamic.values import sized
from smelt.ops.record import Trait
from smelt.ops.sets import where

Rule = Callable[[FakeTensors, OpArgs, OpKwargs], Any]


def _number(size: object) -> Any:
    node = None if type(size) is int else node_of(size)
    return size if node is None else node.number


def _numbers(sizes: Sequence[object]) -> list[Any]:
    return [_number(size) for size in sizes]


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal at all sizes; leaves no guard."""
    a, b = _resolved(a), _resolved(b)
    if is_symbolic(a) and is_symbolic(b):
        return bool(a.poly == b.poly)
    return type(a) is type(b) and bool(a == b)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is row-major and has elements at all sizes.

    Strides over one element may be numbers, those that row-major order gives now: guards hold them where they matter.
    """
    sizes = _numbers(tensor.shape)
    steps = _steps(sizes)
    return steps is not None and all(
        same(step, plain) or (type(size) is type(step) is int and size == 1 and at_hand(plain) == step)
        for size, step, plain in zip(sizes, _numbers(tensor.stride()), steps, strict=True)
    )


def _steps(sizes: Sequence[Any]) -> list[Any] | None:
    """Row-major strides; None where a size may be 0."""
    found: list[Any] = []
    step: object = 1
    for size in reversed(sizes):
        found.append(step)
        if (size.trace.bounds(size.poly)[0] if is_symbolic(size) else size) < 1:
            return None
        step = step * size
    found.reverse()
    return found


def _row_major(tensor: torch.Tensor, *, but_for_ones: bool = False) -> list[Any] | None:
    """The sizes of a tensor that lies row-major at all sizes, None for others.

    but_for_ones: whatever the steps over one element are; what keeps the layout of its operand keeps those, too.
    """
    sizes = _numbers(tensor.shape)
    steps = _steps(sizes)
    if steps is None:
        return None
    for size, step, plain in zip(sizes, _numbers(tensor.stride()), steps, strict=True):
        if not same(step, plain) and not (but_for_ones and type(size) is int and size == 1):
            return None
    return sizes


def _make(fakes: FakeTensors, like: torch.Tensor, sizes: Sequence[object], dtype: torch.dtype | None = None) -> Any:
    steps = _steps(sizes)
    return None if steps is None else _laid(fakes, dtype or like.dtype, sizes, steps, like.device)


def _laid(
    fakes: FakeTensors, dtype: torch.dtype, sizes: Sequence[object], steps: Sequence[object], device: torch.device
) -> object:
    shown, strides = _shown(sizes, steps)
    return fakes.direct(dtype, shown, strides, device)


def _shown(sizes: Sequence[Any], steps: Sequence[object]) -> list[list[Any]]:
    """The numbers as torch takes them."""
    traces = [size.trace for size in sizes if is_symbolic(size)]
    return [[sized(traces[0], n) if traces else n for n in numbers] for numbers in (sizes, steps)]


def _needs_grad(args: Sequence[object]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)


def _linear(fakes: FakeTensors, args: OpArgs, kwargs: OpKwargs) -> object:
    x, weight, *bias = args
    sizes = _row_major(x, but_for_ones=True)
    if sizes is None or weight.dim() != 2 or len(sizes) < 2 or x.dtype != weight.dtype:
        return None
    if any(b is not None and (b.dim() != 1 or b.dtype != x.dtype) for b in bias):
        return None
    rows, columns = _numbers(weight.shape)
    if not same(sizes[-1], columns) or not all(b is None or same(_number(b.shape[0]), rows) for b in bias):
        return None
    return _make(fakes, x, [*sizes[:-1], rows])


def _layer_norm(fakes: FakeTensors, args: OpArgs, kwargs: OpKwargs) -> object:
    x, shape, *rest = args
    sizes = _row_major(x)
    if sizes is None or not x.is_floating_point() or len(shape) > len(sizes) or not shape:
        return None
    tail = sizes[len(sizes) - len(shape) :]
    for given in (_numbers(shape), *[_numbers(w.shape) for w in rest if isinstance(w, torch.Tensor)]):
        if len(given) != len(tail) or not all(map(same, given, tail)):
            return None
    if any(isinstance(w, torch.Tensor) and w.dtype != x.dtype for w in rest):
        return None
    return _make(fakes, x, sizes)


def _conv(fakes: FakeTensors, args: OpArgs, kwargs: OpKwargs) -> object:
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
    return _make(fakes, x, [sizes[0], kernel[0], *found])


# Operators whose kernels without data take one step after the other.
_LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
PACKED_LAYERS = frozenset(f"aten.{name}.data" for name in _LAYERS)
TURNS = frozenset(f"aten.{name}.input" for name in _LAYERS) | PACKED_LAYERS


def _recurrent(fakes: FakeTensors, args: OpArgs, kwargs: OpKwargs) -> object:
    """Of a sequence, its lengths and batch of any size; torch's kernels take one step after the other."""
    if kwargs or len(args) != 9:
        return None
    x, state, params, _, layers, dropout, train, both_ways, batch_first = args
    states = list(state) if isinstance(state, (list, tuple)) else [state]
    tensors = [x, *states, *params]
    if (train and dropout) or x.dim() != 3 or any(t.dim() != 3 for t in states) or _needs_grad(tensors):
        return None
    if not x.is_floating_point() or any(t.dtype != x.dtype for t in tensors):
        return None
    sizes, ways = _known(x.shape), 2 if both_ways else 1
    batch, length = (sizes[0], sizes[1]) if batch_first else (sizes[1], sizes[0])
    shapes = [_known(t.shape) for t in states]
    if len(params) % (layers * ways) or not same(sizes[2], _number(params[0].shape[1])):
        return None
    if not all(same(s[0], layers * ways) and same(s[1], batch) and type(s[2]) is int for s in shapes):
        return None
    if type(length) is int and length < 1:
        return None
    width = ways * shapes[0][2]
    found = [_lying(fakes, x, [length, batch, width]), *(_lying(fakes, x, shape) for shape in shapes)]
    if any(t is None for t in found):
        return None
    if batch_first:
        found[0] = _lying(fakes, x, [batch, length, width], [width, batch * width, 1])
    return tuple(found)


def _packed(fakes: FakeTensors, args: OpArgs, kwargs: OpKwargs) -> object:
    """Of packed sequences: how many rows there are depends on data, and so does what torch's kernels take apart."""
    if kwargs or len(args) != 9:
        return None
    x, _, state, params, _, _, _, _, both_ways = args
    states = list(state) if isinstance(state, (list, tuple)) else [state]
    if x.dim() != 2 or any(t.dim() != 3 for t in states) or _needs_grad([x, *states, *params]):
        return None
    width = (2 if both_ways else 1) * states[0].shape[2]
    return (x.new_empty((x.shape[0], width)), *(t.new_empty(t.shape) for t in states))


def _known(sizes: Sequence[object]) -> list[Any]:
    return [_resolved(size) for size in _numbers(sizes)]


def _lying(fakes: FakeTensors, like: torch.Tensor, sizes: list[object], steps: list[object] | None = None) -> object:
    """A fake tensor of these sizes, row-major unless steps are given; None where one may be 0."""
    plain = _steps(sizes)
    return None if plain is None else _laid(fakes, like.dtype, sizes, steps or plain, like.device)


def _truth(fakes: FakeTensors, args: OpArgs, kwargs: dict[str, object]) -> object:
    """Of all elements: torch's own gives a Python object, which takes no symbols."""
    return _laid(fakes, torch.bool, [], [], args[0].device)


def _filled(fakes: FakeTensors, args: OpArgs, kwargs: dict[str, object]) -> object:
    """Of a matrix of any sizes: torch's own asks for numbers. A write to all of it counts as this one does."""
    if args[0].dim() != 2:
        return None
    with fakes.running(), torch.no_grad():
        return args[0].zero_()


def _same_layout(fakes: FakeTensors, args: OpArgs, kwargs: OpKwargs) -> object:
    """Of one floating-point operand, element by element or along a dimension."""
    x = args[0]
    sizes = _row_major(x) if x.is_floating_point() else None
    more = (*args[1:], *kwargs.values())
    if sizes is None or any(isinstance(v, (torch.Tensor, torch.dtype)) for v in more):
        return None
    return _make(fakes, x, sizes)


def _binary(fakes: FakeTensors, args: OpArgs, kwargs: OpKwargs) -> object:
    """Of two floating-point operands of one type, or of one and a number."""
    x, y = args
    sizes = _row_major(x) if x.is_floating_point() else None
    if sizes is None or kwargs:
        return None
    if not isinstance(y, torch.Tensor):
        is_real = isinstance(y, (int, float)) or node_of(y) is not None
        return _make(fakes, x, sizes) if is_real else None
    others = _row_major(y) if y.dtype == x.dtype and y.dim() else None
    if others is None:
        return None
    if len(others) > len(sizes):
        sizes, others = others, sizes
    for mine, theirs in zip(sizes[len(sizes) - len(others) :], others, strict=True):
        if not same(mine, theirs) and not (type(theirs) is int and theirs == 1):
            return None
    return _make(fakes, x, sizes)


def _view(fakes: FakeTensors, args: OpArgs, kwargs: OpKwargs) -> object:
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
        if not same(_resolved(rest * known), _resolved(total)):
            return None
        wanted[open_[0]] = rest
    elif not same(_resolved(total), _resolved(known)):
        return None
    steps = _steps(wanted)
    return None if steps is None else fakes.view(x, *_shown(wanted, steps))


def _resolved(number: Any) -> object:
    return number.trace.number(number.trace.resolved(number.poly)) if is_symbolic(number) else number


_RULES: dict[str, Rule] = {
    "aten.linear.default": _linear,
    "aten.layer_norm.default": _layer_norm,
    **{f"aten.{name}.Tensor": _binary for name in ("add", "sub", "mul", "div")},
    **{f"aten.conv{n}d.default": _conv for n in (1, 2, 3)},
    **dict.fromkeys(TURNS, _recurrent),
    **dict.fromkeys(PACKED_LAYERS, _packed),
    **dict.fromkeys(("aten._is_all_true.default", "aten._is_any_true.default"), _truth),
    "aten.fill_diagonal_.default": _filled,
    "aten.softmax.int": _same_layout,
    "aten.log_softmax.int": _same_layout,
    "aten.view.default": _view,
    "aten.reshape.default": _view,
    **dict.fromkeys(where(Trait.LIKE_OPERAND), _same_layout),
}


def has_rule(name: str) -> bool:
    """Whether there may be a rule for an operator."""
    return name in _RULES


def by_rule(fakes: FakeTensors, name: str, args: Sequence[object], kwargs: dict[str, object]) -> object:
    """The result of an operator on fake tensors where there is a rule for it, and it says something; else None.

    Autocast chooses the dtypes below the operator's entry, where rules do not look.
    """
    rule = _RULES.get(name)
    if rule is None or is_any_autocast() or _needs_grad(args) or not isinstance(args[0], torch.Tensor):
        return None
    return rule(fakes, args, kwargs)
