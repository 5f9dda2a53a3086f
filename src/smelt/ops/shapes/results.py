"""The sizes of results that are no views, in plain Python, for the operators whose sizes ask something of each other.

Comparisons here are the ones that eager makes: that sizes broadcast, that products fit. None where a call is not told.
The rest of a result (its dtype, how it lies) is told by `whole`, or found by trying: see `symbolic`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

from smelt.ir.sizes import agree, is_unknown
from smelt.ops.registry import tags_of
from smelt.ops.shapes.views import Call, resolved

Sizes: TypeAlias = tuple[int, ...]
Rule: TypeAlias = Callable[[Call], "list[Sizes] | None"]


def broadcast(*shapes: Sequence[int]) -> Sizes | None:
    """What sizes broadcast to; None where they do not."""
    rank = max(map(len, shapes), default=0)
    found: list[int] = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            joint = _joint(found[i], size)
            if joint is None:
                return None
            found[i] = joint
    return tuple(found)


def _joint(a: int, b: int) -> int | None:
    """The size of two that broadcast. A plain number is kept for one that is only known to be equal."""
    if type(b) is int and b == 1:
        return a
    if type(a) is int and a == 1:
        return b
    if is_unknown(a) or is_unknown(b):
        return b if is_unknown(a) else a
    if a == b:
        return a if type(a) is int else b
    if a == 1:
        return b
    return a if b == 1 else None


def sizes_of(arg: Any) -> Sizes | None:
    """The sizes of an argument: of a tensor, and () of a number."""
    type_ = getattr(arg, "type", None)
    if type_ is not None:
        return getattr(type_, "shape", None)
    return () if isinstance(arg, (bool, int, float, complex)) else None


def _pointwise(call: Call) -> list[Sizes] | None:
    shapes = [sizes_of(arg) for arg in call.values() if hasattr(arg, "type")]
    known = [shape for shape in shapes if shape is not None]
    made = broadcast(*known) if known and len(known) == len(shapes) else None
    return None if made is None else [made]


def _linear(call: Call) -> list[Sizes] | None:
    x, weight = sizes_of(call["input"]), sizes_of(call["weight"])
    if not x or not weight or not agree(x[-1], weight[-1]):
        return None
    return [(*x[:-1], *weight[:-1])]


def _matmul(call: Call) -> list[Sizes] | None:
    left, right = (
        sizes_of(call["self"]),
        sizes_of(call.get("other", call.get("mat2", call.get("vec", call.get("tensor"))))),
    )
    if not left or not right or not agree(left[-1], right[-2 if len(right) > 1 else 0]):
        return None
    lead = broadcast(left[:-2], right[:-2])
    return None if lead is None else [(*lead, *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))]


def _product(first: str, second: str) -> Rule:
    def rule(call: Call) -> list[Sizes] | None:
        made = _matmul({"self": call[first], "other": call[second]})
        added = sizes_of(call["self"])
        # What is added broadcasts to the product, and makes it no larger.
        whole = None if made is None or added is None else broadcast(made[0], added)
        return None if made is None or whole is None or len(whole) != len(made[0]) else made

    return rule


def _bmm(call: Call) -> list[Sizes] | None:
    left, right = sizes_of(call["self"]), sizes_of(call["mat2"])
    if left is None or right is None or not agree(left[0], right[0]):
        return None
    return _matmul(call)


def _dim(given: int, rank: int) -> int | None:
    """A dimension as a number from 0 on; None where it is not there."""
    return given % rank if -rank <= given < rank else None


def _cat(call: Call) -> list[Sizes] | None:
    shapes = [sizes_of(t) for t in call["tensors"]]
    # An empty vector is left out, whatever the others are.
    kept = [s for s in shapes if s is not None and not (len(s) == 1 and type(s[0]) is int and s[0] == 0)]
    if None in shapes or not kept:
        return None
    first, *others = kept
    dim = _dim(call["dim"], len(first))
    if dim is None:
        return None
    total = first[dim]
    for shape in others:
        if len(shape) != len(first) or any(
            d != dim and not agree(a, b) for d, (a, b) in enumerate(zip(first, shape, strict=True))
        ):
            return None
        total = total + shape[dim]
        first = tuple(b if is_unknown(a) else a for a, b in zip(first, shape, strict=True))
    return [(*first[:dim], total, *first[dim + 1 :])]


def _stack(call: Call) -> list[Sizes] | None:
    shapes = [sizes_of(t) for t in call["tensors"]]
    first = shapes[0]
    if first is None or not all(_agree(shape, first) for shape in shapes[1:]):
        return None
    dim = _dim(call["dim"], len(first) + 1)
    if dim is None:
        return None
    return [(*first[:dim], len(shapes), *first[dim:])]


def _windows(size: int, width: int, step: int, pad: int, gap: int, *, ceil: bool = False) -> int | None:
    """How many windows there are along a dimension; None where not even one fits."""
    span = size + 2 * pad - gap * (width - 1) - 1
    if not is_unknown(span) and span < 0:
        return None
    if not ceil:
        return span // step + 1
    count = -(-span // step) + 1
    # The last one starts inside the image, or in what is padded before it.
    return count - 1 if (count - 1) * step >= size + pad else count


def _per_axis(given: Any, n: int) -> tuple[int, ...]:
    return tuple(given) * n if len(given) == 1 else tuple(given)


def _convolution(call: Call) -> list[Sizes] | None:
    image, weight = sizes_of(call["input"]), sizes_of(call["weight"])
    if image is None or weight is None:
        return None
    n = len(weight) - 2
    lead = image[: len(image) - n - 1]
    if not agree(image[-n - 1], weight[1] * call["groups"]):
        return None
    padding = call["padding"]
    steps, gaps = _per_axis(call["stride"], n), _per_axis(call["dilation"], n)
    if padding == "same":
        return [(*lead, weight[0], *image[-n:])]
    pads = (0,) * n if padding == "valid" else _per_axis(padding, n)
    axes = zip(image[-n:], weight[2:], steps, pads, gaps, strict=True)
    found = [_windows(*axis) for axis in axes]
    return None if None in found else [(*lead, weight[0], *(n for n in found if n is not None))]


def _transposed(call: Call) -> list[Sizes] | None:
    image, weight = sizes_of(call["input"]), sizes_of(call["weight"])
    if image is None or weight is None:
        return None
    n = len(weight) - 2
    lists = (_per_axis(call[name], n) for name in ("stride", "padding", "output_padding", "dilation"))
    axes = zip(image[-n:], weight[2:], *lists, strict=True)
    sizes = ((size - 1) * step - 2 * pad + gap * (width - 1) + more + 1 for size, width, step, pad, more, gap in axes)
    return [(*image[: len(image) - n - 1], weight[1] * call["groups"], *sizes)]


def _pool(n: int, results: int = 1) -> Rule:
    def rule(call: Call) -> list[Sizes] | None:
        image = sizes_of(call["self"])
        if image is None:
            return None
        widths = _per_axis(call["kernel_size"], n)
        steps = _per_axis(call["stride"] or widths, n)
        pads, gaps = _per_axis(call["padding"], n), _per_axis(call.get("dilation", (1,)), n)
        axes = zip(image[-n:], widths, steps, pads, gaps, strict=True)
        found = [_windows(*axis, ceil=call["ceil_mode"]) for axis in axes]
        if None in found or any(2 * pad > width for pad, width in zip(pads, widths, strict=True)):
            return None
        return [(*image[:-n], *(n for n in found if n is not None))] * results

    return rule


def _adaptive(n: int) -> Rule:
    def rule(call: Call) -> list[Sizes] | None:
        image = sizes_of(call["self"])
        if image is None:
            return None
        wanted = zip(_per_axis(call["output_size"], n), image[-n:], strict=True)
        return [(*image[:-n], *(size if out is None else out for out, size in wanted))]

    return rule


def _repeat(call: Call) -> list[Sizes] | None:
    sizes, times = sizes_of(call["self"]), call["repeats"]
    if sizes is None or len(times) < len(sizes) or any(t < 0 for t in times):
        return None
    own = (*(1,) * (len(times) - len(sizes)), *sizes)
    return [tuple(n * t for n, t in zip(own, times, strict=True))]


def _arange(call: Call) -> list[Sizes] | None:
    start, end, step = call.get("start", 0), call["end"], call.get("step", 1)
    if not all(isinstance(n, int) for n in (start, end, step)) or step == 0:
        return None
    length = -((start - end) // step)
    return [(length if length > 0 else 0,)]


def _creation(call: Call) -> list[Sizes] | None:
    sizes = call["size"]
    return [tuple(sizes)] if all(isinstance(n, int) for n in sizes) else None


def _pad(call: Call) -> list[Sizes] | None:
    sizes, pads = sizes_of(call["self"]), call["pad"]
    if sizes is None:
        return None
    found = list(sizes)
    for i in range(len(pads) // 2):
        found[-1 - i] = found[-1 - i] + pads[2 * i] + pads[2 * i + 1]
    return None if call.get("mode", "constant") == "constant" and any(n < 0 for n in found) else [tuple(found)]


def _reshaped(call: Call) -> list[Sizes] | None:
    """Of a reshape that copies."""
    sizes = sizes_of(call["self"])
    wanted = call.get("shape") or sizes_of(call.get("other"))
    if sizes is None or wanted is None:
        return None
    made = resolved(wanted, prod(sizes))
    return None if made is None else [made]


def _flattened(call: Call) -> list[Sizes] | None:
    sizes = sizes_of(call["self"])
    if not sizes:
        return None
    start, end = (_dim(call[name], len(sizes)) for name in ("start_dim", "end_dim"))
    if start is None or end is None or start > end:
        return None
    return [(*sizes[:start], prod(sizes[start : end + 1]), *sizes[end + 1 :])]


def _agree(sizes: Sizes | None, others: Sizes) -> bool:
    return sizes is not None and len(sizes) == len(others) and all(map(agree, sizes, others))


def _along(call: Call) -> list[Sizes] | None:
    sizes = sizes_of(call["self"])
    return None if sizes is None or _dim(call["dim"], max(len(sizes), 1)) is None else [sizes]


def _layer_norm(call: Call) -> list[Sizes] | None:
    """Of the whole tail of sizes that is normalised; what scales it has that tail's sizes."""
    sizes, tail = sizes_of(call["input"]), tuple(call["normalized_shape"])
    scales = [sizes_of(call[name]) for name in ("weight", "bias") if call.get(name) is not None]
    if sizes is None or not tail or not all(_agree(s, tail) for s in (sizes[len(sizes) - len(tail) :], *scales)):
        return None
    return [(*sizes[: len(sizes) - len(tail)], *tail)]


SOFTMAX = ("softmax.int", "log_softmax.int")
_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        f"aten.{name}": rule
        for names, rule in (
            (("linear.default",), _linear),
            (("matmul.default", "mm.default", "mv.default", "dot.default"), _matmul),
            (("bmm.default",), _bmm),
            (("addmm.default",), _product("mat1", "mat2")),
            (("baddbmm.default",), _product("batch1", "batch2")),
            (("cat.default",), _cat),
            (("stack.default",), _stack),
            ((f"conv{n}d.{form}" for n in (1, 2, 3) for form in ("default", "padding")), _convolution),
            (("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input"), _transposed),
            (("max_pool1d.default", "avg_pool1d.default"), _pool(1)),
            (("max_pool2d.default", "avg_pool2d.default"), _pool(2)),
            (("max_pool2d_with_indices.default",), _pool(2, 2)),
            (("adaptive_avg_pool1d.default",), _adaptive(1)),
            (("adaptive_avg_pool2d.default",), _adaptive(2)),
            (("repeat.default",), _repeat),
            (("arange.default", "arange.start", "arange.start_step"), _arange),
            (
                ("zeros.default", "ones.default", "full.default", "empty.memory_format", "rand.default",
                 "randn.default", "new_zeros.default", "new_ones.default", "new_full.default", "new_empty.default",
                 "empty_strided.default", "new_empty_strided.default"),
                _creation,
            ),
            (("pad.default", "constant_pad_nd.default"), _pad),
            (("reshape.default", "reshape_as.default"), _reshaped),
            (("flatten.using_ints",), _flattened),
            (SOFTMAX, _along),
            (("layer_norm.default", "rms_norm.default"), _layer_norm),
        )
        for name in names
    }
)  # fmt: skip


def result_sizes(op: str, call: Call) -> list[Sizes] | None:
    """The sizes of each result of a call that is no view; None where no rule tells them.

    call: the arguments by name, defaults filled in; a tensor among them has its type as `type`.
    """
    rule = _RULES.get(op)
    if rule is None and "pointwise" in tags_of(op):
        rule = _pointwise
    return None if rule is None else rule(call)
