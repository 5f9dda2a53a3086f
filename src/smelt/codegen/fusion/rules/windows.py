"""Pooling over windows and resampling to other sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from smelt.codegen.fusion.index import Idx, Ix, Unfusible, divided
from smelt.codegen.fusion.pull import FAR, Pull, Rule
from smelt.codegen.fusion.rules.pointwise import result_dtype
from smelt.codegen.fusion.rules.promote import is_float, math_dtype
from smelt.codegen.fusion.rules.views import sizes_of
from smelt.codegen.kernels.nest import Const, Expr
from smelt.ir import DType, Node
from smelt.ir.sizes import equals, is_one, is_whole


def each(given: Any, rank: int) -> tuple[int, ...]:
    """A number for each dimension, where one may be given for all."""
    numbers = (given,) if isinstance(given, int) else tuple(given)
    return numbers * rank if len(numbers) == 1 else numbers


def _is_larger(kernel: int, dilation: int, size: int) -> bool:
    """Whether a window is surely larger than the image."""
    return dilation == 1 and isinstance(size, int) and kernel > size


def _walked(kernel: int, dilation: int, size: int) -> int:
    """How many places a window's loop has in one dimension: those of the image where the window is larger."""
    return size if _is_larger(kernel, dilation, size) else kernel


class Window:
    """The window of a pool: kernel, stride, padding and dilation of the last dimensions, and x's element in it.

    A window that is larger than the image is walked by the image's places, as eager does: `AvgPool2d(1280)` of 7x7.
    """

    def __init__(self, p: Pull, node: Node, idx: Idx, rank: int) -> None:
        call = p.call(node)
        self.p, self.x = p, call["self"]
        self.sizes = sizes_of(self.x)
        if len(self.sizes) < rank + 1:
            raise Unfusible("its operand has too few dimensions")
        self.image = self.sizes[-rank:]
        self.kernel = each(call["kernel_size"], rank)
        self.stride = each(call["stride"] or self.kernel, rank)
        self.padding = each(call["padding"], rank)
        self.dilation = each(call.get("dilation", 1), rank)
        self.lead, self.out = idx[:-rank], idx[-rank:]
        inner = p.window(tuple(map(_walked, self.kernel, self.dilation, self.image)))
        at = list[Ix]()
        self.inside: Expr | bool = True
        for o, w, s, pad, d, n, size in zip(
            self.out, inner, self.stride, self.padding, self.dilation, self.kernel, self.image, strict=True
        ):
            if _is_larger(n, d, size):
                at.append(w)
                self.inside = p.both(self.inside, p.between(o.scaled(-s, pad).plus(w), 0, n))
            else:
                at.append(o.scaled(s, -pad).plus(w.scaled(d)))
                self.inside = p.both(self.inside, p.between(at[-1], 0, size))
        self.at: tuple[Ix, ...] = tuple(at)
        if p.loops_at(idx).intersection(p.inner or ()):
            raise Unfusible("its window runs with its reader's row")

    def element(self, m: DType, outside: float) -> Expr:
        """x where the window is inside the image, else a number."""
        return self.p.choose(
            self.inside,
            lambda: self.p.cast(self.p.element(self.x, (*self.lead, *self.at)), m),
            lambda: self.p.const(outside, m),
        )


def max_pool(rank: int) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        out = result_dtype(node)
        if not is_float(out) or k:
            raise Unfusible(f"{node.op} of {out}")
        m = math_dtype(out)
        return p.cast(p.reduce("max", m, Window(p, node, idx, rank).element(m, -math.inf)), out)

    return rule


def avg_pool(rank: int) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        call, out = p.call(node), result_dtype(node)
        if not is_float(out):
            raise Unfusible(f"{node.op} of {out}")
        m = math_dtype(out)
        window = Window(p, node, idx, rank)
        total = p.reduce("sum", m, window.element(m, 0.0))
        divisor = call.get("divisor_override")
        if divisor is not None:
            return p.cast(p.op("div", m, total, p.const(divisor, m)), out)
        counts = [
            _count(p, o, s, pad, n, size, include=call["count_include_pad"])
            for o, s, pad, n, size in zip(
                window.out, window.stride, window.padding, window.kernel, window.image, strict=True
            )
        ]
        found: Expr = Const(1, DType.I64)
        known = 1
        for count in counts:
            if isinstance(count, int):
                known *= count
            else:
                found = count if isinstance(found, Const) else p.op("mul", DType.I64, found, count)
        if isinstance(found, Const):
            return p.cast(p.op("div", m, total, p.const(known, m)), out)
        number = found if is_one(known) else p.op("mul", DType.I64, found, Const(known, DType.I64))
        return p.cast(p.op("div", m, total, p.cast(number, m)), out)

    return rule


def _count(p: Pull, o: Ix, step: int, pad: int, kernel: int, size: int, *, include: bool) -> Expr | int:
    """How many elements a window counts in one dimension, those of the padding too where they are included."""
    start = o.scaled(step, -pad)
    most = size + pad if include else size
    least = -pad if include else 0
    fits_low, fits_high = p.between(start, least, FAR), p.between(start, -FAR, most - kernel + 1)
    if fits_low is True and fits_high is True:
        return kernel
    t = DType.I64
    at = p.position(start)
    end = p.op("min", t, p.op("add", t, at, Const(kernel, t)), Const(most, t))
    return p.op("sub", t, end, p.op("max", t, at, Const(least, t)))


def adaptive_pool(rank: int) -> Rule:
    """Windows of equal size where the sizes divide, else none."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        call, out = p.call(node), result_dtype(node)
        sizes = sizes_of(call["self"])
        if not is_float(out) or k:
            raise Unfusible(f"{node.op} of {out}")
        wanted = sizes_of(node.result)[-rank:]
        image = sizes[-rank:]
        if any(n % o for n, o in zip(image, wanted, strict=True)):
            raise Unfusible("its windows differ in size")
        kernel = tuple(n // o for n, o in zip(image, wanted, strict=True))
        m = math_dtype(out)
        inner = p.window(kernel)
        if p.loops_at(idx).intersection(p.inner or ()):
            raise Unfusible("its window runs with its reader's row")
        at = tuple(o.scaled(s).plus(w) for o, s, w in zip(idx[-rank:], kernel, inner, strict=True))
        x = p.cast(p.element(call["self"], (*idx[:-rank], *at)), m)
        return p.cast(p.op("div", m, p.reduce("sum", m, x), p.const(math.prod(kernel), m)), out)

    return rule


def nearest(rank: int) -> Rule:
    """Nearest neighbour by whole factors."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        x = p.call(node)["self" if "self" in p.call(node) else "input"]
        sizes, wanted = sizes_of(x), sizes_of(node.result)
        at = list(idx)
        for d in range(len(sizes) - rank, len(sizes)):
            at[d] = _source(p, idx[d], sizes[d], wanted[d], p.call(node))
        return p.element(x, tuple(at))

    return rule


def _source(p: Pull, ix: Ix, size: int, wanted: int, call: Mapping[str, Any]) -> Ix:
    if equals(size, wanted):
        return ix
    if not is_whole(wanted, size) or not _is_whole(call, wanted // size):
        raise Unfusible("its factor is not whole")
    return divided(ix, wanted // size, p.sizes)[0]


def _is_whole(call: Mapping[str, Any], factor: int) -> bool:
    given: list[Any] = []
    for name in ("scale_factors", "scales", "scales_h", "scales_w", "scales_d"):
        value = call.get(name)
        given.extend(value if isinstance(value, tuple) else [value])
    return all(g is None or equals(g, factor) for g in given)
