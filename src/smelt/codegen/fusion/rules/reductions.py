"""Many elements to one: sums, means, extremes, norms, variances, and scans along a dimension.

Accumulators are torch's: f32 for the half types, i64 for integers, f64 inside variances and running sums of floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.codegen.fusion.index import Idx, Ix, Unfusible
from smelt.codegen.fusion.pull import Pull, Rule
from smelt.codegen.fusion.rules.pointwise import result_dtype
from smelt.codegen.fusion.rules.promote import is_float, math_dtype
from smelt.codegen.fusion.rules.views import sizes_of
from smelt.codegen.kernels.nest import Expr, ReduceKind, ScanKind
from smelt.ir import DType, Node
from smelt.ir.sizes import is_one, size_max


def reduced_dims(call: Mapping[str, Any], rank: int) -> tuple[int, ...]:
    """The dimensions that a call reduces, ascending; none named means all."""
    given = call.get("dim")
    if given is None or given == ():
        return tuple(range(rank))
    dims = (given,) if isinstance(given, int) else given
    return tuple(sorted({d % max(rank, 1) for d in dims})) if rank else ()


def spread(idx: Idx, rank: int, dims: Sequence[int], keepdim: bool) -> list[Ix | None]:
    """A result's index laid over the operand's dimensions, None where they are reduced."""
    if keepdim:
        return [None if d in dims else idx[d] for d in range(rank)]
    parts = iter(idx)
    return [None if d in dims else next(parts) for d in range(rank)]


def _operand(p: Pull, node: Node, idx: Idx, name: str = "self") -> tuple[Expr, int]:
    """The operand's element under a result's index, along the reduced dimensions, and how many those are."""
    call = p.call(node)
    sizes = sizes_of(call[name])
    dims = reduced_dims(call, len(sizes))
    whole = p.along(spread(idx, len(sizes), dims, bool(call.get("keepdim", False))), sizes)
    return p.element(call[name], whole), math.prod(sizes[d] for d in dims)


def summed(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    x, _ = _operand(p, node, idx)
    return _total(p, x, result_dtype(node))


def _total(p: Pull, x: Expr, out: DType) -> Expr:
    m = math_dtype(out)
    return p.cast(p.reduce("sum", m, p.cast(p.cast(x, out) if not _widens(x.dtype, out) else x, m)), out)


def _widens(narrow: DType, out: DType) -> bool:
    return math_dtype(narrow) is math_dtype(out)


def _mean_of_floats(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    x, count = _operand(p, node, idx)
    out = result_dtype(node)
    m = math_dtype(out)
    total = p.reduce("sum", m, p.cast(x, m))
    return p.cast(p.op("div", m, total, p.const(count, m)), out)


def multiplied(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    x, _ = _operand(p, node, idx)
    out = result_dtype(node)
    if out is DType.F16:
        raise Unfusible("eager rounds to f16 after each factor, and may reach infinity in between")
    m = math_dtype(out)
    return p.cast(p.reduce("prod", m, p.cast(p.cast(x, out), m)), out)


def extreme_of(kind: ReduceKind) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        x, _ = _operand(p, node, idx)
        return extreme(p, kind, x)

    return rule


def extreme(p: Pull, kind: ReduceKind, x: Expr) -> Expr:
    """The largest or smallest of the inner loops' elements; of bools whether any or all are set."""
    if x.dtype is DType.BOOL:
        return p.reduce("any" if kind == "max" else "all", DType.BOOL, x)
    m = math_dtype(x.dtype)
    return p.cast(p.reduce(kind, m, p.cast(x, m)), x.dtype)


def position_of(kind: ReduceKind) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        x, _ = _operand(p, node, idx)
        return _extreme_at(p, kind, x)

    return rule


def _extreme_at(p: Pull, kind: ReduceKind, x: Expr) -> Expr:
    if x.dtype is DType.BOOL:
        x = p.cast(x, DType.U8)
    return p.reduce(kind, math_dtype(x.dtype), p.cast(x, math_dtype(x.dtype)))


def extreme_with_position(kind: ReduceKind, at: ReduceKind) -> Rule:
    """max.dim and min.dim: the element and its position.

    Beside its position it is that very element, at no cost; alone it may be the other zero of two (decision 0004).
    """
    element: ReduceKind = "argmax_element" if at == "argmax" else "argmin_element"

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        x, _ = _operand(p, node, idx)
        if k == 1:
            return _extreme_at(p, at, x)
        is_beside = bool(node.results[1].users) and x.dtype is not DType.BOOL
        return p.cast(_extreme_at(p, element, x), x.dtype) if is_beside else extreme(p, kind, x)

    return rule


def truth(kind: ReduceKind) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        x, _ = _operand(p, node, idx)
        out = result_dtype(node)
        return p.cast(p.reduce(kind, DType.BOOL, p.cast(x, DType.BOOL)), out)

    return rule


def variance(is_root: bool) -> Rule:
    """Two passes in f64: the mean, then the squares about it."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        call, out = p.call(node), result_dtype(node, k)
        x, count = _operand(p, node, idx)
        if not is_float(x.dtype):
            raise Unfusible(f"{node.op} of {x.dtype}")
        m = DType.F64
        x = p.cast(x, m)
        mean = p.op("div", m, p.reduce("sum", m, x), p.const(count, m))
        correction = call.get("correction", 1)
        if "unbiased" in call:
            correction = 1 if call["unbiased"] else 0
        rest = size_max(count - (1 if correction is None else correction), 0)
        d = p.op("sub", m, x, mean)
        found = p.op("div", m, p.reduce("sum", m, p.op("mul", m, d, d)), p.const(rest, m))
        return p.cast(p.op("sqrt", m, found) if is_root else found, out)

    return rule


def logsumexp(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    x, _ = _operand(p, node, idx)
    out = result_dtype(node)
    m = math_dtype(out)
    x = p.cast(x, m)
    largest = p.reduce("max", m, x)
    # Where all are infinite, their difference would be NaN.
    endless = p.op("isinf", DType.BOOL, largest)
    shift = p.op("select", m, endless, p.const(0.0, m), largest)
    total = p.reduce("sum", m, p.op("exp", m, p.op("sub", m, x, shift)))
    return p.cast(p.op("add", m, p.op("log", m, total), shift), out)


def vector_norm(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    out = result_dtype(node)
    x, _ = _operand(p, node, idx)
    if not is_float(x.dtype):
        raise Unfusible(f"{node.op} of {x.dtype}")
    m = math_dtype(out)
    x = p.op("abs", m, p.cast(x, m))
    order = float(p.call(node)["ord"])
    match order:
        case 2.0:
            found = p.op("sqrt", m, p.reduce("sum", m, p.op("mul", m, x, x)))
        case 1.0:
            found = p.reduce("sum", m, x)
        case math.inf:
            found = p.reduce("max", m, x)
        case _ if order == -math.inf:
            found = p.reduce("min", m, x)
        case 0.0:
            found = p.reduce("sum", m, p.cast(p.op("ne", DType.BOOL, x, p.const(0.0, m)), m))
        case _:
            power = p.op("pow", m, x, p.const(order, m))
            found = p.op("pow", m, p.reduce("sum", m, power), p.const(1.0 / order, m))
    return p.cast(found, out)


def count_nonzero(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    x, _ = _operand(p, node, idx)
    return p.reduce("sum", DType.I64, p.cast(p.cast(x, DType.BOOL), DType.I64))


def row(p: Pull, idx: Idx, dim: int, sizes: Sequence[int]) -> None:
    """Make one dimension of an index the inner loop."""
    if sizes:
        p.rows(idx, (dim % len(sizes),), sizes)


def scan(kind: ScanKind) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        call, out = p.call(node), result_dtype(node)
        row(p, idx, call["dim"], sizes_of(call["self"]))
        accumulator = DType.F64 if out is DType.F32 else math_dtype(out)
        x = p.cast(p.cast(p.element(call["self"], idx), out), accumulator)
        return p.cast(x if _is_alone(call) else p.scan(kind, accumulator, x), out)

    return rule


def cumulative_extreme(kind: ScanKind) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        if k == 1:
            raise Unfusible("positions of running extremes")
        call, out = p.call(node), result_dtype(node)
        if out is DType.BOOL:
            raise Unfusible("a running extreme of bools")
        row(p, idx, call["dim"], sizes_of(call["self"]))
        m = math_dtype(out)
        x = p.cast(p.element(call["self"], idx), m)
        return p.cast(x if _is_alone(call) else p.scan(kind, m, x), out)

    return rule


def _is_alone(call: dict[str, Any]) -> bool:
    """Whether each element has none before it: what a sum below it runs over is no row of its own."""
    sizes = sizes_of(call["self"])
    return not sizes or is_one(sizes[call["dim"] % len(sizes)])


def softmax(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    return _normalised(p, node, idx, lambda m, shifted, power, total: p.op("div", m, power, total))


def log_softmax(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    def log(m: DType, shifted: Expr, power: Expr, total: Expr) -> Expr:
        return p.op("sub", m, shifted, p.op("log", m, total))

    return _normalised(p, node, idx, log)


def _normalised(p: Pull, node: Node, idx: Idx, last: Callable[[DType, Expr, Expr, Expr], Expr]) -> Expr:
    """exp(x - max) over its sum along a dimension."""
    call, out = p.call(node), result_dtype(node)
    if not is_float(out):
        raise Unfusible(f"{node.op} of {out}")
    row(p, idx, call["dim"], sizes_of(call["self"]))
    m = math_dtype(out)
    x = p.cast(p.operand(call["self"], idx, out), m)
    shifted = p.op("sub", m, x, p.reduce("max", m, x))
    power = p.op("exp", m, shifted)
    return p.cast(last(m, shifted, power, p.reduce("sum", m, power)), out)


def mean_of(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    if not is_float(result_dtype(node)):
        raise Unfusible("a mean of integers")
    return _mean_of_floats(p, node, idx, k)
