"""Gradients of normalisations.

Moments are computed again from the operand, so that nothing but it is saved and one kernel goes over its rows; those of
batch norm, which go over all of it, are what the operator itself gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from smelt.ir import DType, Value
from smelt.ops.catalogue.gradients.dims import divided, mean
from smelt.ops.catalogue.gradients.terms import Operands, Term, of_call, wide
from smelt.ops.record import Call, Emitter, Gradient, Parts

_Parts = dict[str, Callable[[], Term]]


class _Rows:
    """An operand normalised over dimensions: (x - centre) * scale. centre: None for 0."""

    def __init__(self, x: Term, dims: Sequence[int], centre: Term | None, scale: Term) -> None:
        self.x = x
        self.dims = tuple(dims)
        self.centre = centre
        self.scale = scale
        self.unit = (x if centre is None else x - centre) * scale

    def back(self, g: Term) -> Term:
        """The operand's gradient from the normalised one's."""
        inner = g - self.unit * mean(g * self.unit, self.dims)
        if self.centre is not None:
            inner = inner - mean(g, self.dims)
        return inner * self.scale


def _rows(x: Term, dims: Sequence[int], eps: float, *, centred: bool = True) -> _Rows:
    centre = mean(x, dims) if centred else None
    rest = x if centre is None else x - centre
    return _Rows(x, dims, centre, (mean(rest * rest, dims) + eps).op("rsqrt.default"))


def _layer_norm(g: Term, call: Operands) -> _Parts:
    dims = tuple(range(-len(call["normalized_shape"]), 0))
    return _affine(g, call, cache(lambda: _rows(call["input"], dims, call["eps"])))


def _rms_norm(g: Term, call: Operands) -> _Parts:
    dims, eps = tuple(range(-len(call["normalized_shape"]), 0)), call["eps"]

    def rows() -> _Rows:
        x = call["input"]
        own = 2**-52 if x.type.dtype is DType.F64 else 2**-23
        return _rows(x, dims, own if eps is None else eps, centred=False)

    return _affine(g, call, cache(rows))


def _affine(g: Term, call: Operands, rows: Callable[[], _Rows]) -> _Parts:
    """Of rows times a weight plus a bias, both of which broadcast to them."""
    weight = call["weight"]
    parts: _Parts = {
        "input": lambda: rows().back(g if weight is None else g * weight),
        "weight": lambda: g * rows().unit,
    }
    return {**parts, "bias": lambda: g} if "bias" in call.call else parts


# --- by channel: x[n, c, ...]


def _by_channel(
    g: Term, call: Operands, rows: Callable[[], _Rows], *, is_constant: bool = False, of_batch: bool = False
) -> _Parts:
    """Of rows times a weight plus a bias for each channel. is_constant: the moments do not depend on the operand;
    of_batch: they are those of a whole channel, so that the sums of the operand's gradient are those of the others.
    """
    rank = g.type.rank
    assert rank is not None
    others = (0, *range(2, rank))
    of_weight, of_bias = cache(lambda: (g * rows().unit).sum(others)), cache(lambda: g.sum(others))

    def of_input() -> Term:
        weight = call["weight"]
        if is_constant or not of_batch:
            scaled = g if weight is None else g * _column(weight, rank)
            return scaled * rows().scale if is_constant else rows().back(scaled)
        centre, slope = (_column(divided(total(), rows().x, others), rank) for total in (of_bias, of_weight))
        scale = rows().scale if weight is None else rows().scale * _column(weight, rank)
        return (g - centre - rows().unit * slope) * scale

    return {"input": of_input, "weight": of_weight, "bias": of_bias}


def _column(x: Term, rank: int) -> Term:
    """One number for each channel, as it broadcasts to the operand."""
    return x.op("reshape.default", (-1, *(1,) * (rank - 2))) if rank > 2 else x


def _by_running(call: Operands, rank: int) -> Callable[[], _Rows]:
    """Normalised by moments that are given."""

    def rows() -> _Rows:
        centre, variance = call["running_mean"], call["running_var"]
        scale = (variance + call["eps"]).op("rsqrt.default")
        return _Rows(call["input"], (), _column(centre, rank), _column(scale, rank))

    return cache(rows)


def _instance_norm(g: Term, call: Operands) -> _Parts | None:
    rank = g.type.rank
    if rank is None:
        return None
    if not call["use_input_stats"]:
        return _by_channel(g, call, _by_running(call, rank), is_constant=True)
    return _by_channel(g, call, cache(lambda: _rows(call["input"], range(2, rank), call["eps"])))


def _batch_norm(g: Term, call: Operands) -> _Parts | None:
    rank = g.type.rank
    if rank is None:
        return None
    if call["training"] is False:
        return _by_channel(g, call, _by_running(call, rank), is_constant=True)
    others = (0, *range(2, rank))
    return _by_channel(g, call, cache(lambda: _rows(call["input"], others, call["eps"])), of_batch=True)


def _native_batch_norm(
    b: Emitter, given: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]
) -> Parts | None:
    """The same where the operator gives its moments, mean and 1 / deviation, which have gradients of their own."""
    call = Operands(b, given, results)
    rank = call.raw("input").type.rank
    if rank is None or (given["training"] is False and any(g is not None for g in grads[1:3])):
        return None
    others = (0, *range(2, rank))
    centre, scale = (_column(wide(b, r), rank) for r in results[1:3])

    if given["training"] is False:
        rows = _by_running(call, rank)
    else:
        rows = cache(lambda: _Rows(call["input"], others, centre, scale))
    parts: dict[str, list[Callable[[], Term]]] = {"input": [], "weight": [], "bias": []}
    if grads[0] is not None:
        is_constant = given["training"] is False
        found = _by_channel(wide(b, grads[0]), call, rows, is_constant=is_constant, of_batch=not is_constant)
        for name, make in found.items():
            parts[name].append(make)

    def moment(grad: Value, factor: Callable[[], Term]) -> Callable[[], Term]:
        return lambda: _column(divided(wide(b, grad), call["input"], others), rank) * factor()

    if grads[1] is not None:
        parts["input"].append(moment(grads[1], lambda: call["input"].op("ones_like.default")))
    if grads[2] is not None:
        parts["input"].append(moment(grads[2], lambda: -(rows().unit * (scale * scale))))
    return {name: _total(makes) for name, makes in parts.items() if makes}


def _total(makes: Sequence[Callable[[], Term]]) -> Callable[[], Value]:
    def made() -> Value:
        first, *more = (make() for make in makes)
        for one in more:
            first = first + one
        return first.value

    return made


def _group_norm(g: Term, call: Operands) -> _Parts | None:
    x = call["input"]
    if not x.type.is_static:
        return None
    sizes, groups = x.type.sizes, call["num_groups" if "num_groups" in call.call else "group"]
    split = (sizes[0], groups, sizes[1] // groups, *sizes[2:])
    others = (0, *range(2, len(sizes)))

    @cache
    def rows() -> _Rows:
        return _rows(x.op("reshape.default", split), range(2, len(split)), call["eps"])

    def of_input() -> Term:
        scaled = g if call["weight"] is None else g * _column(call["weight"], len(sizes))
        return rows().back(scaled.op("reshape.default", split)).op("reshape.default", sizes)

    return {
        "input": of_input,
        "weight": lambda: (g * rows().unit.op("reshape.default", sizes)).sum(others),
        "bias": lambda: g.sum(others),
    }


def _native_group_norm(
    b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]
) -> Parts | None:
    """The same where its moments have no gradients."""
    return _of_groups(b, call, results, grads) if grads[1:] == (None, None) else None


_of_groups = of_call(_group_norm)

GRADIENTS: Mapping[str, Gradient] = {
    "aten.layer_norm.default": of_call(_layer_norm),
    "aten.native_layer_norm.default": of_call(_layer_norm),  # torch has none of its moments
    "aten.rms_norm.default": of_call(_rms_norm),
    "aten.group_norm.default": _of_groups,
    "aten.native_group_norm.default": _native_group_norm,
    "aten.instance_norm.default": of_call(_instance_norm),
    "aten.batch_norm.default": of_call(_batch_norm),
    "aten._native_batch_norm_legit_functional.default": _native_batch_norm,
}
