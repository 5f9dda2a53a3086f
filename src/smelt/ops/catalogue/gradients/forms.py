"""The form of an operator in a graph that is differentiated: the same numbers, by operators that have gradients.

    %1 = aten.dropout.default(%x, 0.1, True)    ==>    %1 = aten.bernoulli.p(%memory, 0.9)
                                                       %2 = aten.div.Tensor(aten._to_copy.default(%1, dtype=f32), 0.9)
                                                       %3 = aten.mul.Tensor(%x, %2)

Invariant: a form draws from the generator exactly what the operator draws, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from smelt.ir import Arg, DType, TensorType, Value
from smelt.ops.catalogue.gradients.attention import attention_form, flash_backward_form
from smelt.ops.catalogue.gradients.parts import rank_of, sizes_of
from smelt.ops.record import Call, Emitter, Lowering, tensor_type
from smelt.ops.shapes.results import broadcast

# The negative end of SELU, to which alpha dropout sets what it drops. Source: arXiv:1706.02515.
_ALPHA = 1.7580993408473766


def _draws(call: Call) -> bool | None:
    """Whether a dropout draws from the generator; None where only the run tells."""
    p, train = call["p"], call["train"]
    if not isinstance(p, int | float) or not isinstance(train, bool):
        return None
    kind = tensor_type(call["input"])
    return train and 0 < p < 1 and not (kind.is_static and kind.numel == 0)


def _without_draw(b: Emitter, call: Call) -> Arg:
    is_zeroed = call["train"] and call["p"] == 1
    return b.call("aten.mul.Tensor", call["input"], 0.0) if is_zeroed else call["input"]


def _kept(b: Emitter, x: Value, like: Value, p: float) -> Value:
    """1 for what is kept and 0 for what is dropped, drawn in the order in which elements of `like` lie in memory."""
    order = _order(tensor_type(like))
    if order is None:
        drawn = b.call("aten.bernoulli.p", like, 1 - p)
    else:
        drawn = b.call("aten.bernoulli.p", b.call("aten.permute.default", like, order), 1 - p)
        drawn = b.call("aten.permute.default", drawn, tuple(order.index(d) for d in range(len(order))))
    return b.call("aten._to_copy.default", drawn, dtype=tensor_type(x).dtype)


def _order(kind: TensorType) -> tuple[int, ...] | None:
    """A tensor's dimensions, the one with the longest steps first; None where it is row-major."""
    if kind.strides is None or not kind.is_static:
        return None
    return tuple(sorted(range(len(kind.sizes)), key=lambda d: (-kind.steps[d], -kind.sizes[d])))


def _elements(b: Emitter, call: Call) -> Value | None:
    """Memory for a draw for each element, laid as the operand."""
    made = b.call("aten.empty_like.default", call["input"], dtype=DType.BOOL)
    kind = tensor_type(made)
    return made if kind.is_static or kind.strides is None else None


def _features(b: Emitter, call: Call) -> Value | None:
    """Memory for a draw for each channel of each sample."""
    x = call["input"]
    if not tensor_type(x).is_static or rank_of(x) < 2:
        return None
    sizes = (*sizes_of(x)[:2], *(1,) * (rank_of(x) - 2))
    return b.call("aten.empty.memory_format", sizes, dtype=DType.BOOL)


def _dropout(is_by_feature: bool) -> Lowering:
    def form(b: Emitter, call: Call) -> Arg | None:
        draws, x, p = _draws(call), call["input"], call["p"]
        if not draws:
            return None if draws is None else _without_draw(b, call)
        like = _features(b, call) if is_by_feature else _elements(b, call)
        if like is None:
            return None
        return b.call("aten.mul.Tensor", x, b.call("aten.div.Tensor", _kept(b, x, like, p), 1 - p))

    return form


def _alpha_dropout(is_by_feature: bool) -> Lowering:
    def form(b: Emitter, call: Call) -> Arg | None:
        draws, x, p = _draws(call), call["input"], call["p"]
        if not draws:
            return None if draws is None else _without_draw(b, call)
        like = _features(b, call) if is_by_feature else _elements(b, call)
        if like is None:
            return None
        kept = _kept(b, x, like, p)
        scale = 1 / sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
        shift = b.call("aten.mul.Tensor", b.call("aten.add.Tensor", kept, -1), _ALPHA * scale)
        shift = b.call("aten.add.Tensor", shift, _ALPHA * scale * p)
        product = b.call("aten.mul.Tensor", x, b.call("aten.mul.Tensor", kept, scale))
        return b.call("aten.add.Tensor", product, shift)

    return form


def _max_pool(b: Emitter, call: Call) -> Arg:
    """With the places of the maxima, which the gradient needs."""
    names = ("self", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
    return b.calls("aten.max_pool2d_with_indices.default", *(call[n] for n in names))[0]


def _cosine_similarity(b: Emitter, call: Call) -> Arg | None:
    """A norm below eps is raised to it where autograd does not look: its gradient is that of the norm."""
    x, y, dim, eps = (call[n] for n in ("x1", "x2", "dim", "eps"))
    kinds = tuple(tensor_type(t) for t in (x, y))
    if kinds[0].dtype is not kinds[1].dtype or kinds[0].dtype.kind != "float":
        return None
    if kinds[0].shape != kinds[1].shape:
        sizes = broadcast(kinds[0].sizes, kinds[1].sizes) if all(k.is_static for k in kinds) else None
        if sizes is None:
            return None
        x, y = (b.call("aten.expand.default", t, sizes) for t in (x, y))

    def unit(t: Value) -> Value:
        norm = b.call("aten.linalg_vector_norm.default", t, 2, (dim,), True)
        raised = b.call("aten.clamp_min.default", b.call("aten.rsub.Scalar", norm, eps), 0)
        length = b.call("aten.add.Tensor", norm, b.call("aten.detach.default", raised))
        return b.call("aten.div.Tensor", t, length)

    return b.call("aten.sum.dim_IntList", b.call("aten.mul.Tensor", unit(x), unit(y)), (dim,))


FORMS: Mapping[str, Lowering] = {
    "aten.dropout.default": _dropout(is_by_feature=False),
    "aten.feature_dropout.default": _dropout(is_by_feature=True),
    "aten.alpha_dropout.default": _alpha_dropout(is_by_feature=False),
    "aten.feature_alpha_dropout.default": _alpha_dropout(is_by_feature=True),
    "aten.max_pool2d.default": _max_pool,
    "aten.cosine_similarity.default": _cosine_similarity,
    "aten.scaled_dot_product_attention.default": attention_form,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": flash_backward_form,
}
"""By operator; one that gives None leaves the call unchanged."""
