"""Gradients that a CPU scatters, as sums of what each element gets: no two points write to one element.

    max_pool2d_backward(g)[y, z] = sum over the windows above (y, z) of g there, where the window's maximum is (y, z)
    embedding_backward(g)[r, c]  = sum over the positions p of g[p, c], where the index at p is r

And the pooling that says where its maxima are. A GPU computes these as nests; a CPU has kernels that write in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from smelt.codegen.fusion.index import Idx, Unfusible, linear
from smelt.codegen.fusion.pull import FAR, Pull, Rule
from smelt.codegen.fusion.rules.pointwise import result_dtype
from smelt.codegen.fusion.rules.products import Steps, covering, element_where, summed_over
from smelt.codegen.fusion.rules.promote import is_float, math_dtype
from smelt.codegen.fusion.rules.views import sizes_of
from smelt.codegen.fusion.rules.windows import Window
from smelt.codegen.kernels.nest import Const, Expr
from smelt.ir import DType, Node


def maximum_with_position(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    """The largest element of each window, and where it is in its image: the first of equal ones, the last NaN."""
    out = result_dtype(node)
    if not is_float(out):
        raise Unfusible(f"{node.op} of {out}")
    m, t = math_dtype(out), DType.I64
    window = Window(p, node, idx, 2)
    x = window.element(m, -math.inf)
    largest = p.reduce("max", m, x)
    if k == 0:
        return p.cast(largest, out)
    at = p.position(linear(window.at, window.image))
    none, first = Const(-FAR, t), p.op("sub", t, Const(-1, t), at)
    is_largest: Expr = p.op("eq", DType.BOOL, x, largest)
    inside = window.inside
    if not isinstance(inside, bool):
        is_largest = p.op("and", DType.BOOL, inside, is_largest)
    nan = p.op("select", t, p.op("isnan", DType.BOOL, x), at, none)
    number = p.op("select", t, is_largest, first, none)
    found = p.reduce("max", t, p.op("select", t, p.op("isnan", DType.BOOL, largest), nan, number))
    is_first = p.op("lt", DType.BOOL, found, Const(0, t))
    return p.op("select", t, is_first, p.op("sub", t, Const(-1, t), found), found)


def gradient_of_maximum(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    if not is_float(out):
        raise Unfusible(f"{node.op} of {out}")
    given, indices = call["grad_output"], call["indices"]
    m = math_dtype(out)
    steps = Steps.of(call, 2, call["kernel_size"])
    tap = summed_over(p, idx, steps.taps)
    inside, at = covering(p, steps, sizes_of(given)[-2:], idx[-2:], tap)
    own = p.position(linear(idx[-2:], sizes_of(node.result)[-2:]))
    index = element_where(p, inside, indices, (*idx[:-2], *at))
    is_own: Expr = p.op("eq", DType.BOOL, index, own)
    if not isinstance(inside, bool):
        is_own = p.op("and", DType.BOOL, inside, is_own)
    g = p.cast(element_where(p, inside, given, (*idx[:-2], *at)), m)
    return p.cast(p.reduce("sum", m, p.op("select", m, is_own, g, p.const(0, m))), out)


def gradient_of_table(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    if not is_float(out) or call["scale_grad_by_freq"]:
        raise Unfusible(f"{node.op} of {out}, or by frequency")
    m = math_dtype(out)
    indices = call["indices"]
    sizes = sizes_of(indices)
    if 0 in (*sizes, *sizes_of(node.result)):
        raise Unfusible("there are no elements")
    where = summed_over(p, idx, sizes)
    row = p.position(idx[0])
    is_own: Expr = p.op("eq", DType.BOOL, p.cast(p.element(indices, where), DType.I64), row)
    padding = call["padding_idx"]
    if isinstance(padding, int) and padding >= 0:
        is_own = p.op("and", DType.BOOL, is_own, p.op("ne", DType.BOOL, row, Const(padding, DType.I64)))
    g = p.cast(p.element(call["grad_output"], (*where, idx[-1])), m)
    return p.cast(p.reduce("sum", m, p.op("select", m, is_own, g, p.const(0, m))), out)


GATHERED_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "aten.max_pool2d_with_indices.default": maximum_with_position,
        "aten.max_pool2d_with_indices_backward.default": gradient_of_maximum,
        "aten.embedding_dense_backward.default": gradient_of_table,
    }
)
"""Operators that only a GPU computes as nests."""
