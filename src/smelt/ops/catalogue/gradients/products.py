"""Gradients of products: products of transposed operands, with all dimensions of rows as one.

%y = aten.linear.default(%x, %w, %b)    ==>    %dx = aten.mm.default(%g, %w)
                                               %dw = aten.mm.default(aten.transpose.int(%g, 0, 1), %x)
                                               %db = aten.sum.dim_IntList(%g, [0])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.ir import Value
from smelt.ops.catalogue.gradients.parts import (
    has_ranks,
    has_sizes,
    of_ranks,
    rank_of,
    reshaped_like,
    sizes_of,
    times,
    turned,
)
from smelt.ops.record import Call, Emitter, Gradient, Parts, tensor_type


def _mm(b: Emitter, left: Value, right: Value) -> Value:
    return b.call("aten.mm.default", left, right)


def _bmm(b: Emitter, left: Value, right: Value) -> Value:
    return b.call("aten.bmm.default", left, right)


def _rows(b: Emitter, x: Value) -> Value:
    """A matrix of all rows: f[..., k] -> f[n, k]."""
    if rank_of(x) == 2:
        return x
    if rank_of(x) == 1:
        return b.call("aten.unsqueeze.default", x, 0)
    return b.call("aten.flatten.using_ints", x, 0, rank_of(x) - 2)


def _column(b: Emitter, x: Value) -> Value:
    return b.call("aten.unsqueeze.default", x, rank_of(x))


# --- matrices


def _of_linear(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    (grad,) = grads
    x, weight = call["input"], call["weight"]
    if grad is None or not has_ranks(call, grad) or rank_of(weight) != 2:
        return None
    made: list[Value] = []

    def rows() -> Value:
        if not made:
            made.append(_rows(b, grad))
        return made[0]

    return {
        "input": lambda: reshaped_like(b, _mm(b, rows(), weight), x),
        "weight": lambda: _mm(b, turned(b, rows()), _rows(b, x)),
        "bias": lambda: b.call("aten.sum.dim_IntList", rows(), (0,)),
    }


def _left(b: Emitter, call: Call, grad: Value) -> Value:
    return _mm(b, grad, turned(b, call["mat2"]))


def _right(b: Emitter, call: Call, grad: Value) -> Value:
    return _mm(b, turned(b, call["self"]), grad)


def _added(b: Emitter, call: Call, grad: Value) -> Value:
    return times(b, grad, call["beta"])


def _of_addmm(left: str, right: str, op: str) -> Gradient:
    def of_left(b: Emitter, call: Call, grad: Value) -> Value:
        return times(b, b.call(op, grad, turned(b, call[right])), call["alpha"])

    def of_right(b: Emitter, call: Call, grad: Value) -> Value:
        return times(b, b.call(op, turned(b, call[left]), grad), call["alpha"])

    return of_ranks(**{"self": _added, left: of_left, right: of_right})


def _outer(b: Emitter, left: Value, right: Value) -> Value:
    return b.call("aten.mul.Tensor", _column(b, left), right)


def _mv(b: Emitter, matrix: Value, vector: Value) -> Value:
    return b.call("aten.mv.default", matrix, vector)


# --- matmul: ranks of all kinds


def _of_matmul(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    (grad,) = grads
    left, right = call["self"], call["other"]
    if grad is None or not has_ranks(call, grad):
        return None
    return {"self": lambda: _of_left(b, left, right, grad), "other": lambda: _of_right(b, left, right, grad)}


def _of_left(b: Emitter, left: Value, right: Value, grad: Value) -> Value:
    match rank_of(left), rank_of(right):
        case 1, 1:
            return b.call("aten.mul.Tensor", grad, right)
        case _, 1:
            return _outer(b, grad, right)
        case 1, 2:
            return _mv(b, right, grad)
        case 1, _:
            return b.call("aten.squeeze.dim", _matmul(b, right, _column(b, grad)), -1)
        case 2, 2:
            return _mm(b, grad, turned(b, right))
        case _, 2:
            return reshaped_like(b, _mm(b, _rows(b, grad), turned(b, right)), left)
        case _:
            return _matmul(b, grad, turned(b, right))


def _of_right(b: Emitter, left: Value, right: Value, grad: Value) -> Value:
    match rank_of(left), rank_of(right):
        case 1, 1:
            return b.call("aten.mul.Tensor", grad, left)
        case 1, 2:
            return _outer(b, left, grad)
        case 1, _:
            return b.call("aten.mul.Tensor", _column(b, left), b.call("aten.unsqueeze.default", grad, -2))
        case 2, 1:
            return _mv(b, turned(b, left), grad)
        case _, 1:
            return _mv(b, turned(b, _rows(b, left)), b.call("aten.flatten.using_ints", grad))
        case 2, 2:
            return _mm(b, turned(b, left), grad)
        case _, 2:
            return _mm(b, turned(b, _rows(b, left)), _rows(b, grad))
        case _:
            return _matmul(b, turned(b, left), grad)


def _matmul(b: Emitter, left: Value, right: Value) -> Value:
    return b.call("aten.matmul.default", left, right)


# --- convolutions


def _of_convolution(n: int, *, is_transposed: bool = False) -> Gradient:
    """Of a convolution over n dimensions: torch's own for the image and for the weight, each by itself."""

    def gradient(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
        (grad,) = grads
        if grad is None or not has_sizes(call, grad) or isinstance(call["padding"], str):
            return None
        is_single = rank_of(call["input"]) == n + 1
        image, g = (b.call("aten.unsqueeze.default", v, 0) if is_single else v for v in (call["input"], grad))
        how = (
            *(_per_axis(call[name], n) for name in ("stride", "padding", "dilation")),
            is_transposed,
            _per_axis(call["output_padding"], n) if is_transposed else (0,) * n,
            call["groups"],
        )

        def part(which: int) -> Value:
            mask = tuple(i == which for i in range(3))
            made = b.calls("aten.convolution_backward.default", g, image, call["weight"], None, *how, mask)[which]
            return b.call("aten.squeeze.dim", made, 0) if is_single and which == 0 else made

        over = (0, *range(2, n + 2))
        return {
            "input": lambda: part(0),
            "weight": lambda: part(1),
            "bias": lambda: b.call("aten.sum.dim_IntList", g, over),
        }

    return gradient


def _per_axis(given: Any, n: int) -> tuple[int, ...]:
    return tuple(given) * n if len(given) == 1 else tuple(given)


def _of_convolution_backward(
    b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]
) -> Parts | None:
    """Of the gradient of an image, or of a weight: each is a product of two of the three."""
    if not has_sizes(call, *grads) or sum(grad is not None for grad in grads) != 1 or grads[2] is not None:
        return None
    which = 0 if grads[0] is not None else 1
    c = grads[which]
    assert c is not None
    g, image, weight = call["grad_output"], call["input"], call["weight"]
    how = tuple(call[n] for n in ("stride", "padding", "dilation", "transposed", "output_padding", "groups"))

    def again(image: Value, weight: Value) -> Value:
        return b.call("aten.convolution.default", image, weight, None, *how)

    def part(which: int, image: Value, weight: Value) -> Value:
        mask = tuple(i == which for i in range(3))
        return b.calls("aten.convolution_backward.default", g, image, weight, None, *how, mask)[which]

    if which == 0:
        return {"grad_output": lambda: again(c, weight), "weight": lambda: part(1, c, weight)}
    return {"grad_output": lambda: again(image, c), "input": lambda: part(0, image, c)}


def _of_grouped(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    """Of rows in groups, each with its own matrix. torch's own gradient refuses one that is broadcast."""
    (grad,) = grads
    rows, weights, ends = call["self"], call["mat2"], call.get("offs")
    if grad is None or not isinstance(ends, Value) or not has_ranks(call, grad) or call.get("bias") is not None:
        return None
    if rank_of(rows) != 2 or rank_of(weights) != 3 or call.get("out_dtype") is not None:
        return None
    if not tensor_type(grad).is_static or sizes_of(grad)[1] * tensor_type(grad).dtype.itemsize % 16:
        return None  # torch takes no such rows
    name, dense = "aten._grouped_mm.default", b.call("aten.contiguous.default", grad)
    return {
        "self": lambda: b.call(name, dense, turned(b, weights), ends),
        "mat2": lambda: b.call(name, turned(b, rows), dense, ends),
    }


def _of_any_convolution(
    b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]
) -> Parts | None:
    gradient = _of_convolution(len(call["stride"]), is_transposed=call["transposed"])
    return gradient(b, call, results, grads) if rank_of(call["input"]) == len(call["stride"]) + 2 else None


GRADIENTS: Mapping[str, Gradient] = {
    "aten.linear.default": _of_linear,
    "aten.mm.default": of_ranks(self=_left, mat2=_right),
    "aten.bmm.default": of_ranks(
        self=lambda b, call, grad: _bmm(b, grad, turned(b, call["mat2"])),
        mat2=lambda b, call, grad: _bmm(b, turned(b, call["self"]), grad),
    ),
    "aten.addmm.default": _of_addmm("mat1", "mat2", "aten.mm.default"),
    "aten.baddbmm.default": _of_addmm("batch1", "batch2", "aten.bmm.default"),
    "aten.mv.default": of_ranks(
        self=lambda b, call, grad: _outer(b, grad, call["vec"]),
        vec=lambda b, call, grad: _mv(b, turned(b, call["self"]), grad),
    ),
    "aten.dot.default": of_ranks(
        self=lambda b, call, grad: times(b, call["tensor"], grad),
        tensor=lambda b, call, grad: times(b, call["self"], grad),
    ),
    "aten.outer.default": of_ranks(
        self=lambda b, call, grad: _mv(b, grad, call["vec2"]),
        vec2=lambda b, call, grad: _mv(b, turned(b, grad), call["self"]),
    ),
    "aten.matmul.default": _of_matmul,
    "aten._grouped_mm.default": _of_grouped,
    "aten.conv1d.default": _of_convolution(1),
    "aten.conv2d.default": _of_convolution(2),
    "aten.conv3d.default": _of_convolution(3),
    "aten.conv_transpose1d.default": _of_convolution(1, is_transposed=True),
    "aten.conv_transpose2d.input": _of_convolution(2, is_transposed=True),
    "aten.conv_transpose3d.input": _of_convolution(3, is_transposed=True),
    "aten.convolution.default": _of_any_convolution,
    "aten.convolution_backward.default": _of_convolution_backward,
}
"""Gradients of matrix products and convolutions; `einsum` takes those of the products that it consists of."""
