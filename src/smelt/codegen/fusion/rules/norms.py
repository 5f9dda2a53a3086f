"""Layer, RMS, group, instance and batch normalisation, as row kernels or with folded statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from smelt.codegen.fusion.index import Idx, Unfusible, reshaped
from smelt.codegen.fusion.pull import Pull
from smelt.codegen.fusion.rules.pointwise import result_dtype
from smelt.codegen.fusion.rules.promote import is_float, math_dtype
from smelt.codegen.fusion.rules.views import sizes_of
from smelt.codegen.kernels.nest import Expr
from smelt.ir import DType, Node
from smelt.ops.convert import dtype_to_torch


def _moments(p: Pull, m: DType, x: Expr, count: int) -> tuple[Expr, Expr, Expr]:
    """(mean, x - mean, variance about it) over the inner loops.

    A sum in one precision is some last places off, which shows where all of a row is nearly the same and the scale is
    large: what is left of the mean is taken from the differences, in the same pass as their squares.
    """
    n = p.const(count, m)
    near = p.op("div", m, p.reduce("sum", m, x), n)
    d = p.op("sub", m, x, near)
    off = p.op("div", m, p.reduce("sum", m, d), n)
    squares = p.op("div", m, p.reduce("sum", m, p.op("mul", m, d, d)), n)
    mean, part = p.op("add", m, near, off), p.op("mul", m, off, off)
    # Squares that overflow are infinite, and so may be the part: then the variance is infinite, too.
    variance = p.op("select", m, p.op("lt", DType.BOOL, part, squares), p.op("sub", m, squares, part), squares)
    return mean, p.op("sub", m, x, mean), variance


def _scale(p: Pull, m: DType, variance: Expr, eps: float) -> Expr:
    return p.op("rsqrt", m, p.op("add", m, variance, p.const(float(eps), m)))


def _affine(p: Pull, m: DType, y: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    if weight is not None:
        y = p.op("mul", m, y, weight)
    return y if bias is None else p.op("add", m, y, bias)


def _require_float(node: Node, dtype: DType) -> DType:
    if not is_float(dtype):
        raise Unfusible(f"{node.op} of {dtype}")
    return math_dtype(dtype)


def layer_norm(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    x, shape = call["input"], call["normalized_shape"]
    m = _require_float(node, out)
    sizes = sizes_of(x)
    if k == 0:
        at = idx
        p.rows(idx, range(len(sizes) - len(shape), len(sizes)), sizes)
    else:
        kept = len(sizes) - len(shape)
        at = p.along([*idx[:kept], *[None] * len(shape)], sizes)
    element = p.cast(p.element(x, at), m)
    mean, centred, variance = _moments(p, m, element, math.prod(shape))
    scale = _scale(p, m, variance, call["eps"])
    if k:
        return p.cast(mean if k == 1 else scale, result_dtype(node, k))
    tail = idx[len(sizes) - len(shape) :]
    weight, bias = (None if call[n] is None else p.operand(call[n], tail, m) for n in ("weight", "bias"))
    return p.cast(_affine(p, m, p.op("mul", m, centred, scale), weight, bias), out)


def rms_norm(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    x, shape = call["input"], call["normalized_shape"]
    m = _require_float(node, out)
    sizes = sizes_of(x)
    p.rows(idx, range(len(sizes) - len(shape), len(sizes)), sizes)
    element = p.cast(p.element(x, idx), m)
    squares = p.reduce("sum", m, p.op("mul", m, element, element))
    eps = call["eps"]
    if eps is None:
        eps = float(torch.finfo(dtype_to_torch(m)).eps)
    scale = _scale(p, m, p.op("div", m, squares, p.const(math.prod(shape), m)), eps)
    tail = idx[len(sizes) - len(shape) :]
    weight = None if call["weight"] is None else p.operand(call["weight"], tail, m)
    return p.cast(_affine(p, m, p.op("mul", m, element, scale), weight, None), out)


def _over_channels(p: Pull, node: Node, idx: Idx, x: object, groups: int) -> tuple[Expr, Idx, int]:
    """x[n, c, ...] seen as [n, groups, c / groups, ...], rows being what follows the groups."""
    sizes = sizes_of(x)
    split = (sizes[0], groups, sizes[1] // groups, *sizes[2:])
    at = reshaped(idx, sizes, split, p.sizes)
    p.rows(at, range(2, len(split)), split)
    return p.operand(x, idx, result_dtype(node)), at, math.prod(split[2:])


def group_norm(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    m = _require_float(node, out)
    if k:
        raise Unfusible("its moments are used")
    x = call["input"]
    element, _, count = _over_channels(p, node, idx, x, call["num_groups"])
    _, centred, variance = _moments(p, m, p.cast(element, m), count)
    y = p.op("mul", m, centred, _scale(p, m, variance, call["eps"]))
    return p.cast(_affine(p, m, y, *_by_channel(p, call, idx, m)), out)


def _by_channel(p: Pull, call: Mapping[str, object], idx: Idx, m: DType) -> tuple[Expr | None, Expr | None]:
    weight, bias = (None if call[n] is None else p.operand(call[n], (idx[1],), m) for n in ("weight", "bias"))
    return weight, bias


def instance_norm(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    m = _require_float(node, out)
    if not call["use_input_stats"] or call["running_mean"] is not None:
        raise Unfusible("it keeps running statistics")
    x = call["input"]
    sizes = sizes_of(x)
    p.rows(idx, range(2, len(sizes)), sizes)
    element = p.cast(p.element(x, idx), m)
    _, centred, variance = _moments(p, m, element, math.prod(sizes[2:]))
    y = p.op("mul", m, centred, _scale(p, m, variance, call["eps"]))
    return p.cast(_affine(p, m, y, *_by_channel(p, call, idx, m)), out)


def batch_norm(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    """With given statistics: x * alpha + beta, where alpha = weight / sqrt(var + eps), beta = bias - mean * alpha."""
    call, out = p.call(node), result_dtype(node)
    m = _require_float(node, out)
    if call.get("training") is not False or call["running_mean"] is None or k:
        raise Unfusible("it makes its statistics")
    if call["running_mean"].type.dtype is not call["input"].type.dtype:
        raise Unfusible("its statistics have another dtype")
    mean, variance = (p.operand(call[n], (idx[1],), m) for n in ("running_mean", "running_var"))
    weight, bias = _by_channel(p, call, idx, m)
    inverse = p.op("div", m, p.const(1.0, m), p.op("sqrt", m, p.op("add", m, variance, p.const(call["eps"], m))))
    alpha = inverse if weight is None else p.op("mul", m, inverse, weight)
    beta = p.op("fma", m, p.op("neg", m, mean), alpha, p.const(0.0, m) if bias is None else bias)
    x = p.cast(p.operand(call["input"], idx, out), m)
    return p.cast(p.op("fma", m, x, alpha, beta), out)
