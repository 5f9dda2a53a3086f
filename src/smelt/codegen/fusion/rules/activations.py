"""Activations by torch's own formulas, in f32 for the half types."""

from __future__ import annotations

import torch

from smelt.codegen.fusion.index import Idx, Unfusible
from smelt.codegen.fusion.pull import Pull
from smelt.codegen.fusion.rules.pointwise import clamped, formula, result_dtype, unary
from smelt.codegen.fusion.rules.promote import is_float, math_dtype
from smelt.codegen.kernels.nest import Const, Expr, Op
from smelt.codegen.kernels.operations import INTEGERS
from smelt.ir import DType, Node

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def relu(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    out = result_dtype(node)
    if not is_float(out) and out not in INTEGERS:
        raise Unfusible(f"{node.op} of {out}")
    m = math_dtype(out)
    x = p.cast(p.operand(p.call(node)["self"], idx, out), m)
    return p.cast(clamped(p, m, x, p.const(0, m), None), out)


def relu6(p: Pull, m: DType, x: Expr) -> Expr:
    return clamped(p, m, x, p.const(0.0, m), p.const(6.0, m))


def _sixth(p: Pull, m: DType, x: Expr) -> Expr:
    return clamped(p, m, p.op("add", m, x, p.const(3.0, m)), p.const(0.0, m), p.const(6.0, m))


def hardswish(p: Pull, m: DType, x: Expr) -> Expr:
    return p.op("div", m, p.op("mul", m, x, _sixth(p, m, x)), p.const(6.0, m))


def hardsigmoid(p: Pull, m: DType, x: Expr) -> Expr:
    return p.op("div", m, _sixth(p, m, x), p.const(6.0, m))


def log_sigmoid(p: Pull, m: DType, x: Expr) -> Expr:
    low = p.op("select", m, p.op("gt", DType.BOOL, x, p.const(0.0, m)), p.const(0.0, m), x)
    power = p.op("exp", m, p.op("neg", m, p.op("abs", m, x)))
    return p.op("sub", m, low, p.op("log1p", m, power))


def leaky_relu(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    m = math_dtype(out)
    x = p.cast(p.operand(call["self"], idx, out), m)
    scaled = p.op("mul", m, x, p.cast(p.const(call["negative_slope"], out if out is m else m), m))
    return p.cast(p.op("select", m, p.op("gt", DType.BOOL, x, p.const(0.0, m)), x, scaled), out)


def _exponential(p: Pull, out: DType, x: Expr, alpha: float, scale: float, input_scale: float) -> Expr:
    m = math_dtype(out)
    below = p.op("mul", m, p.op("expm1", m, _times(p, m, x, input_scale)), p.const(alpha * scale, m))
    above = _times(p, m, x, scale)
    return p.cast(p.op("select", m, p.op("lt", DType.BOOL, x, p.const(0.0, m)), below, above), out)


def _times(p: Pull, m: DType, x: Expr, factor: float) -> Expr:
    return x if factor == 1 else p.op("mul", m, x, p.const(factor, m))


def elu(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    x = p.cast(p.operand(call["self"], idx, out), math_dtype(out))
    return _exponential(p, out, x, call["alpha"], call["scale"], call["input_scale"])


def selu(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    out = result_dtype(node)
    x = p.cast(p.operand(p.call(node)["self"], idx, out), math_dtype(out))
    return _exponential(p, out, x, _SELU_ALPHA, _SELU_SCALE, 1)


def celu(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    x = p.cast(p.operand(call["self"], idx, out), math_dtype(out))
    return _exponential(p, out, x, call["alpha"], 1, 1.0 / call["alpha"])


def softplus(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    m = math_dtype(out)
    x = p.cast(p.operand(call["self"], idx, out), m)
    beta, threshold = float(call["beta"]), float(call["threshold"])
    if (beta, threshold) == (1.0, 20.0):
        return p.cast(p.op("softplus", m, x), out)
    scaled = _times(p, m, x, beta)
    soft = p.op("div", m, p.op("log1p", m, p.op("exp", m, scaled)), p.const(beta, m))
    return p.cast(p.op("select", m, p.op("gt", DType.BOOL, scaled, p.const(threshold, m)), x, soft), out)


def gelu(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    out = result_dtype(node)
    match p.call(node)["approximate"]:
        case "tanh":
            return unary("gelu_tanh")(p, node, idx, k)
        case "none" if out in (DType.F64, DType.F16) or not _has_onednns_gelu():
            return unary("gelu")(p, node, idx, k)
        case "none":
            return formula(_gelu_of_infinity)(p, node, idx, k)
    raise Unfusible("its approximation is unknown")


def _has_onednns_gelu() -> bool:
    """Whether eager takes oneDNN's vectors for it on this machine."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX512", "AMX")


def _gelu_of_infinity(p: Pull, m: DType, x: Expr) -> Expr:
    """Eager's vectors multiply infinity by zero within the error function: NaN."""
    return p.op("fma", m, x, p.const(0.0, m), p.op("gelu", m, x))


def without_vectors(expr: Expr) -> Expr | None:
    """What eager on a GPU computes, where its vectors on a CPU compute something else; None: the same."""
    match expr:
        case Op(op="fma", args=(_, Const(value=0.0), Op(op="gelu") as whole)):
            return whole
    return None
