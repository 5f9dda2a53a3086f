"""Products as sums over inner loops: matrices, and convolutions with both their gradients.

    linear(x, w, b)[i, j] = sum over k of x[i, k] * w[j, k], plus b[j]
    conv2d(x, w)[n, c, y, z] = sum over (d, u, v) of x[n, d, y + u, z + v] * w[c, d, u, v], where that is in the image

Sums are those of torch's kernels: f32 for f16 and bf16, rounded once behind what the operator itself adds. A CPU has
kernels of its own for them; a GPU computes them as nests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from smelt.codegen.fusion.index import ZERO, Idx, Ix, Unfusible, broadcast, divided
from smelt.codegen.fusion.pull import Pull, Rule, at_run_time
from smelt.codegen.fusion.rules.pointwise import result_dtype
from smelt.codegen.fusion.rules.promote import is_float, math_dtype
from smelt.codegen.fusion.rules.views import sizes_of
from smelt.codegen.fusion.rules.windows import each
from smelt.codegen.kernels.nest import Const, Expr, Load
from smelt.diag.records import record
from smelt.ir import DType, Node, TensorType
from smelt.ops.record import Product
from smelt.ops.sets import PRODUCTS


def _accumulated(node: Node, k: int = 0) -> tuple[DType, DType]:
    """The dtypes of a result and of its sums."""
    out = result_dtype(node, k)
    if not is_float(out) or "autocast" in node.mode:
        raise Unfusible(f"{node.op} of {out}")
    return out, math_dtype(out)


def summed_over(p: Pull, idx: Idx, sizes: Sequence[int]) -> Idx:
    """The indices that a sum runs over, which nothing of its result runs with."""
    inner = p.window(sizes)
    if p.loops_at(idx).intersection(p.inner or ()):
        raise Unfusible("its sums run with its reader's row")
    return inner


def _sum(p: Pull, m: DType, x: Expr, y: Expr) -> Expr:
    return p.reduce("sum", m, p.op("mul", m, p.cast(x, m), p.cast(y, m)))


# --- matrices


def _product(product: Product, is_turned: bool) -> Rule:
    """is_turned: the right factor has the result's columns first."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        call = p.call(node)
        out, m = _accumulated(node)
        left, right = call[product.left], call[product.right]
        a, b = sizes_of(left), sizes_of(right)
        if 0 in (*a, *b):
            raise Unfusible("there are no elements")
        (depth,) = summed_over(p, idx, a[-1:])
        row, column = (idx[-1 - (len(b) > 1)],) if len(a) > 1 else (), idx[-1:] if len(b) > 1 else ()
        batch = idx[: len(idx) - len(row) - len(column)]
        if is_turned:
            # All dimensions of a linear's operand but the last are rows.
            x, y = (*idx[:-1], depth), (*column, depth)
        else:
            x = (*broadcast(batch, a[:-2]), *row, depth)
            y = (*broadcast(batch, b[:-2]), depth, *column)
        total = _sum(p, m, p.element(left, x), p.element(right, y))
        return p.cast(_added(p, m, total, call, product, idx), out)

    return rule


def _added(p: Pull, m: DType, total: Expr, call: Mapping[str, Any], product: Product, idx: Idx) -> Expr:
    added = call.get(product.added) if product.added else None
    beta, alpha = call.get("beta", 1), call.get("alpha", 1)
    if alpha != 1:
        total = p.op("mul", m, total, p.const(alpha, m))
    if added is None or beta == 0:
        return total
    more = p.operand(added, idx, m)
    return p.op("add", m, total, more if beta == 1 else p.op("mul", m, more, p.const(beta, m)))


# --- convolutions


@record
class Steps:
    """How windows of a number of taps step over an image."""

    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @staticmethod
    def of(call: Mapping[str, Any], rank: int, taps: Any) -> Steps:
        """Those that a call's arguments say, each a number or one for each dimension."""
        kernel = each(taps, rank)
        return Steps(
            kernel, each(call["stride"] or kernel, rank), each(call["padding"], rank), each(call["dilation"], rank)
        )


class _Convolution:
    """Sizes of a convolution: of its image, kernel and result, and how windows step over the image.

    A transposed one makes the image of its result, with the same kernel: what it is given lies where the result does.
    """

    def __init__(self, p: Pull, call: Mapping[str, Any], image: Any, windows: tuple[int, ...]) -> None:
        self.p = p
        self.x, self.w = image, call["weight"]
        self.image = sizes_of(image) if not isinstance(image, tuple) else image
        self.weight, self.result = sizes_of(self.w), windows
        rank = len(self.weight) - 2
        if len(self.image) != rank + 2:
            raise Unfusible("its image is a single one")
        if isinstance(call["padding"], str) or 0 in (*self.image, *self.weight, *windows):
            raise Unfusible("its padding is named, or there are no elements")
        self.steps = Steps.of(call, rank, self.weight[2:])
        self.groups = int(call["groups"])
        self.inputs, self.outputs = self.weight[1], self.weight[0] // self.groups

    def windows(self, idx: Idx, m: DType) -> Expr:
        """An element of the result: the sum over the window of the image."""
        p = self.p
        channel, *tap = summed_over(p, idx, (self.inputs, *self.steps.taps))
        group, _ = divided(idx[1], self.outputs, p.sizes) if self.groups > 1 else (ZERO, ZERO)
        x = self.pixel(idx[:1], group.scaled(self.inputs).plus(channel), idx[2:], tuple(tap))
        return _sum(p, m, x, p.element(self.w, (idx[1], channel, *tap)))

    def pixels(self, given: Any, idx: Idx, m: DType) -> Expr:
        """An element of the image: the sum over the windows that it is under, of what is given for each."""
        p = self.p
        group, channel = divided(idx[1], self.inputs, p.sizes) if self.groups > 1 else (ZERO, idx[1])
        made, *tap = summed_over(p, idx, (self.outputs, *self.steps.taps))
        inside, at = covering(p, self.steps, self.result[2:], idx[2:], tuple(tap))
        made = group.scaled(self.outputs).plus(made)
        y = element_where(p, inside, given, (idx[0], made, *at))
        return _sum(p, m, y, p.element(self.w, (made, channel, *tap)))

    def pixel(self, image: Idx, channel: Ix, out: Idx, tap: Idx) -> Expr:
        """An element of the image under a window; 0 outside of it."""
        p = self.p
        steps = zip(out, tap, self.steps.stride, self.steps.padding, self.steps.dilation, strict=True)
        at = tuple(o.scaled(s, -pad).plus(t.scaled(d)) for o, t, s, pad, d in steps)
        inside: Expr | bool = True
        for ix, size in zip(at, self.image[2:], strict=True):
            inside = p.both(inside, p.between(ix, 0, size))
        return element_where(p, inside, self.x, (*image, channel, *at))


def element_where(p: Pull, inside: Expr | bool, value: Any, idx: Idx) -> Expr:
    """An element where a condition holds, else 0."""
    if not isinstance(inside, bool):
        with p.masked(inside):
            found = p.element(value, idx)
        # A masked load is 0 already.
        return found if isinstance(found, Load) else p.op("select", found.dtype, inside, found, p.const(0, found.dtype))
    return p.element(value, idx) if inside else p.const(0, value.type.dtype)


def convolution(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call = p.call(node)
    out, m = _accumulated(node)
    if call.get("transposed") or ("output_padding" in call and "transposed" not in call):
        conv = _Convolution(p, call, sizes_of(node.result), sizes_of(call["input"]))
        total = conv.pixels(call["input"], idx, m)
    else:
        total = _Convolution(p, call, call["input"], sizes_of(node.result)).windows(idx, m)
    if call["bias"] is not None:
        total = p.op("add", m, total, p.operand(call["bias"], (idx[1],), m))
    return p.cast(total, out)


def convolution_gradient(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    """Gradients of the image (result 0), of the weight (1) and of what is added to each channel (2).

    Of a transposed convolution what is given is the image, and the operand lies where windows do.
    """
    call = p.call(node)
    given, x = call["grad_output"], call["input"]
    out, m = _accumulated(node, k)
    image, windows = (given, x) if call["transposed"] else (x, given)
    conv = _Convolution(p, call, image, sizes_of(windows))
    if k == 2:
        batch, _, *spatial = sizes_of(given)
        n, *pixel = summed_over(p, idx, (batch, *spatial))
        return p.cast(p.reduce("sum", m, p.cast(p.element(given, (n, idx[0], *pixel)), m)), out)
    if k == 1:
        batch, _, *spatial = conv.result
        n, *pixel = summed_over(p, idx, (batch, *spatial))
        group = divided(idx[0], conv.outputs, p.sizes)[0] if conv.groups > 1 else ZERO
        under = conv.pixel((n,), group.scaled(conv.inputs).plus(idx[1]), tuple(pixel), idx[2:])
        return p.cast(_sum(p, m, p.element(windows, (n, idx[0], *pixel)), under), out)
    return p.cast(conv.windows(idx, m) if call["transposed"] else conv.pixels(given, idx, m), out)


def covering(p: Pull, steps: Steps, windows: Sequence[int], pixel: Idx, tap: Idx) -> tuple[Expr | bool, Idx]:
    """Which window a pixel is under at a tap, and whether there is one."""
    inside: Expr | bool = True
    found: list[Ix] = []
    axes = zip(pixel, tap, steps.stride, steps.padding, steps.dilation, windows, strict=True)
    for ix, t, stride, pad, dilation, size in axes:
        at = ix.plus(t.scaled(-dilation)).scaled(1, pad)
        if stride == 1:
            inside = p.both(inside, p.between(at, 0, size))
            found.append(at)
            continue
        inside = p.both(inside, p.between(at, 0, (size - 1) * stride + 1))
        whole, step = p.position(at), Const(stride, DType.I64)
        fits = p.op("eq", DType.BOOL, p.op("fmod", DType.I64, whole, step), Const(0, DType.I64))
        inside = p.both(inside, fits)
        found.append(at_run_time(p.op("idiv", DType.I64, whole, step), size) if size > 1 else ZERO)
    return inside, tuple(found)


PRODUCT_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {name: _product(product, is_turned=name.endswith("linear.default")) for name, product in PRODUCTS.items()}
    | {f"aten.conv{rank}d.default": convolution for rank in (1, 2, 3)}
    | {f"aten.conv_transpose{kind}": convolution for kind in ("1d.default", "2d.input", "3d.input")}
    | {"aten.convolution.default": convolution, "aten.convolution_backward.default": convolution_gradient}
)
"""Every operator that a nest computes as a sum of products."""


def is_product(node: Node) -> bool:
    """Whether a node is one of them, on tensors that kernels can reach."""
    types = [v.type for v in node.operands()]
    return node.op in PRODUCT_RULES and all(isinstance(t, TensorType) and t.is_static for t in types)
