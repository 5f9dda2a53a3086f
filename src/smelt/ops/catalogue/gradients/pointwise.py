"""Gradients of operators that compute element by element. At ties, bounds and zeros they are those of torch.

Source of the formulas: the derivatives that torch's own package names (`torchgen/packaged/autograd/derivatives.yaml`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from smelt.ops.catalogue.gradients.terms import Term, of_call, of_one, where
from smelt.ops.record import Call, Gradient

_Parts = dict[str, Callable[[], Term]]


def _add(g: Term, call: Call, y: Term) -> _Parts:
    alpha = call.get("alpha", 1)
    return {"self": lambda: g, "other": lambda: g if alpha == 1 else g * alpha}


def _sub(g: Term, call: Call, y: Term) -> _Parts:
    alpha = call.get("alpha", 1)
    return {"self": lambda: g, "other": lambda: -g if alpha == 1 else g * -alpha}


def _mul(g: Term, call: Call, y: Term) -> _Parts:
    return {"self": lambda: g * call["other"], "other": lambda: g * call["self"]}


def _div(g: Term, call: Call, y: Term) -> _Parts:
    return {
        "self": lambda: g / call["other"],
        "other": lambda: -g * ((call["self"] / call["other"]) / call["other"]),
    }


GRADIENTS: Mapping[str, Gradient] = {
    "aten.exp.default": of_one(lambda g, x, y: g * y),
    "aten.sin.default": of_one(lambda g, x, y: g * x.op("cos.default")),
    "aten.cos.default": of_one(lambda g, x, y: g * -x.op("sin.default")),
    "aten.tanh.default": of_one(lambda g, x, y: g * (1 - y * y)),
    "aten.sigmoid.default": of_one(lambda g, x, y: g * (1 - y) * y),
    "aten.relu.default": of_one(lambda g, x, y: where(y <= 0, 0, g)),  # of NaN it is g
    "aten.log.default": of_one(lambda g, x, y: g / x),
    "aten.neg.default": of_one(lambda g, x, y: -g),
    "aten.sqrt.default": of_one(lambda g, x, y: g / (2 * y)),
    "aten.add.Tensor": of_call(_add),
    "aten.sub.Tensor": of_call(_sub),
    "aten.mul.Tensor": of_call(_mul),
    "aten.div.Tensor": of_call(_div),
}
