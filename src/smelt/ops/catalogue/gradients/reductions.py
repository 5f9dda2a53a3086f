"""Gradients of reductions, softmax, scans and sorts.

Source of the formulas: the derivatives that torch's own package names (`torchgen/packaged/autograd/derivatives.yaml`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import inf, nan, prod

from smelt.ir import Value
from smelt.ops.catalogue.gradients.dims import dims_of, divided, kept, mean, spread
from smelt.ops.catalogue.gradients.terms import Number, Operands, Term, of_call, where
from smelt.ops.record import Call, Emitter, Gradient, Parts, tensor_type

_Parts = dict[str, Callable[[], Term]]
_OfDims = Callable[[Term, Term, Operands, tuple[int, ...]], Term]
"""The gradient of `self`: from the result's, which broadcasts to it, the operand, the call, and what it reduces."""


def _reduced(rule: _OfDims, *, exact: bool = False, is_static: bool = False) -> Gradient:
    """Of a reduction of `self` along `dim`, or of all of it. is_static: the rule counts elements."""

    def gradient(g: Term, call: Operands) -> _Parts | None:
        x = call.raw("self") if exact else call["self"]
        rank = x.type.rank
        if rank is None or not _has_numbers(call) or (is_static and not x.type.is_static):
            return None
        dims = dims_of(call.get("dim"), rank)
        return {"self": lambda: rule(kept(g, dims, call.get("keepdim", False)), x, call, dims)}

    return of_call(gradient, exact=exact)


def _has_numbers(call: Operands) -> bool:
    return not any(isinstance(call.get(name), Value) for name in ("correction", "ord", "p"))


def _result(call: Operands, dims: tuple[int, ...]) -> Term:
    return kept(call.result, dims, call.get("keepdim", False))


# --- sums, extremes


def _sum(g: Term, x: Term, call: Operands, dims: tuple[int, ...]) -> Term:
    return spread(g, x)


def _mean(g: Term, x: Term, call: Operands, dims: tuple[int, ...]) -> Term:
    return spread(divided(g, x, dims), x)


def _nansum(g: Term, x: Term, call: Operands, dims: tuple[int, ...]) -> Term:
    return g * x.equals(x)


def _prod(g: Term, x: Term, call: Operands, dims: tuple[int, ...]) -> Term:
    """Each element's factor is the product of the others, of which any may be 0."""
    if not dims:
        return g
    flat = x.op("reshape.default", (-1,)) if len(dims) > 1 else x
    (dim,) = (0,) if len(dims) > 1 else dims
    size, after = flat.type.sizes[dim], (1,) * (len(flat.type.sizes) - 1 - dim)
    order = Term(x.b, x.b.call("aten.arange.default", size))
    own = order.op("reshape.default", (size, 1, *after)).equals(order.op("reshape.default", (size, *after)))
    others = where(own, 1, flat.op("unsqueeze.default", dim)).op("prod.dim_int", dim + 1)
    return g * (others if flat is x else others.op("reshape.default", x.type.sizes))


_FEW = 32
"""Of more factors the products of all but one would take more memory than they are worth."""
_of_few = _reduced(_prod, is_static=True)


def _of_prod(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    kind = tensor_type(call["self"])
    if not kind.is_static:
        return None
    count = prod(kind.sizes[dim] for dim in dims_of(call.get("dim"), len(kind.sizes)))
    return _of_few(b, call, results, grads) if count <= _FEW else None


def _even(g: Term, x: Term, call: Operands, dims: tuple[int, ...]) -> Term:
    """All that are the extreme share; where it is NaN, none is equal to it, and each gets NaN."""
    mask = x.equals(_result(call, dims))
    return g * mask / mask.sum(dims, True)


def _even_of_all(g: Term, x: Term, call: Operands, dims: tuple[int, ...]) -> Term:
    """The same of all elements, where NaNs share."""
    mask = x.equals(call.result)
    if x.type.dtype.kind == "float":
        mask = mask.either(x.op("isnan.default"))
    return (g / mask.sum(dims)).where(mask)


def _chosen(g: Term, call: Operands) -> _Parts | None:
    """Of one element along `dim`, which the second result names."""
    x, rank = call.raw("self"), call.raw("self").type.rank
    if rank is None:
        return None
    if rank == 0:
        return {"self": lambda: g}
    (dim,) = dims_of(call["dim"], rank)

    def of_self() -> Term:
        size = x.type.shape[dim]
        index, grad = (kept(t, (dim,), call["keepdim"]) for t in (Term(call.b, call.results[1]), g))
        positions = Term(call.b, call.b.call("aten.arange.default", size))
        if dim < rank - 1:
            positions = positions.op("reshape.default", (size, *(1,) * (rank - 1 - dim)))
        return grad.where(positions.equals(index))

    def scattered() -> Term:
        index, grad = (
            t if call["keepdim"] else t.op("unsqueeze.default", dim) for t in (Term(call.b, call.results[1]), g)
        )
        return _scattered(grad, x, dim, index)

    return {"self": of_self if isinstance(x.type.shape[dim], int) else scattered}


def _scattered(g: Term, x: Term, dim: int, index: Term) -> Term:
    zeros = x.op("zeros_like.default", dtype=g.type.dtype)
    return zeros.op("scatter.src", dim, index, g)


def _sorted(g: Term, call: Operands) -> _Parts:
    index = Term(call.b, call.results[1])
    return {"self": lambda: _scattered(g, call.raw("self"), call["dim"], index)}


def running_count(b: Emitter, mask: Value) -> Value:
    """How many are true up to each place of a row of bools: bool[n] -> i64[n]."""
    return b.call("aten.cumsum.default", mask, 0)


def _running(g: Term, call: Operands) -> _Parts:
    """Of an extreme so far, which the second result names; one may be named many times."""
    x, index = call.raw("self"), Term(call.b, call.results[1])
    zeros = x.op("zeros_like.default", dtype=g.type.dtype)
    return {"self": lambda: zeros.op("scatter_add.default", call["dim"], index, g)}


# --- moments and norms


def _correction(call: Operands) -> Number:
    if "unbiased" in call.call:
        return int(call["unbiased"])
    found: Number | None = call["correction"]
    return 1 if found is None else found


def _var(g: Term, x: Term, call: Operands, dims: tuple[int, ...]) -> Term:
    """With no degree of freedom it is infinite, or NaN at the mean. torch counts one element where `dim` is empty."""
    centre, is_whole = mean(x, dims), call.get("dim") is None or not x.type.rank
    counted = dims if is_whole or call["dim"] else ()
    free = prod([x.type.sizes[dim] for dim in counted]) - _correction(call)
    if free <= 0 and is_whole:
        return g * where(x.equals(centre), nan, x.op("full_like.default", inf))
    return g * (2 / free if free else inf) * (x - centre)


def _std(g: Term, x: Term, call: Operands, dims: tuple[int, ...]) -> Term:
    y = _result(call, dims)
    return _var(where(y.equals(0), 0, g / (y * 2)), x, call, dims)


def _logsumexp(g: Term, x: Term, call: Operands, dims: tuple[int, ...]) -> Term:
    return g * (x - _result(call, dims)).op("exp.default")


def _order(call: Operands | Call) -> Number:
    """Which norm it is. The older operators call it `p`."""
    found: Number | None = call["ord"] if "ord" in _named(call) else call["p"]
    return 2 if found is None else found


def _named(call: Operands | Call) -> Call:
    return call.call if isinstance(call, Operands) else call


def _norm(g: Term, x: Term, call: Operands, dims: tuple[int, ...]) -> Term:
    order, norm = _order(call), _result(call, dims)
    if order == 1:
        return g * x.op("sign.default")
    if order == 2:
        return g * where(norm.equals(0), 0, x / norm)
    size = x.op("abs.default")
    if order in (inf, -inf):
        ties = size.equals(norm).either(x.op("isnan.default").also(norm.op("isnan.default")))
        return x.op("sign.default") * ties * (g / ties.sum(dims, True))
    if order < 1:
        power = x.op("sign.default") * size ** (order - 1)
        return where(x.equals(0), 0, power) * g * norm ** (1 - order)
    power = x.op("sign.default") * size ** (order - 1) if order < 2 else x * size ** (order - 2)
    return power * where(norm.equals(0), 0, g / norm ** (order - 1))


_of_order = _reduced(_norm)


def _of_norm(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    """A count of elements has no gradient."""
    return {} if _order(call) == 0 else _of_order(b, call, results, grads)


def _dist(g: Term, call: Operands) -> _Parts | None:
    """Of a norm of self - other."""
    difference = call["self"] - call["other"]
    rank = difference.type.rank
    if rank is None or not _has_numbers(call) or _order(call) == 0:
        return None
    found = cache(lambda: _norm(g, difference, call, tuple(range(rank))))
    return {"self": found, "other": lambda: -found()}


def _both(first: Gradient, second: Gradient) -> Gradient:
    """Of an operator with two results, each of which has a gradient of its own."""

    def gradient(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
        found = [rule(b, call, results[i:], grads[i:]) for i, rule in enumerate((first, second))]
        makes = [parts["self"] for parts in found if parts]
        if None in found:
            return None
        if len(makes) < 2:
            return {"self": makes[0]} if makes else {}
        return {"self": lambda: b.call("aten.add.Tensor", *(make() for make in makes))}

    return gradient


# --- softmax and scans


def _softmax(g: Term, call: Operands) -> _Parts:
    y = call.result
    return {"self": lambda: (g - (g * y).sum((call["dim"],), True)) * y}


def _log_softmax(g: Term, call: Operands) -> _Parts:
    return {"self": lambda: g - call.result.op("exp.default") * g.sum((call["dim"],), True)}


def _cumsum(g: Term, call: Operands) -> _Parts:
    def of_self() -> Term:
        if g.type.rank == 0:
            return g
        dim = call["dim"]
        return g.op("flip.default", (dim,)).op("cumsum.default", dim).op("flip.default", (dim,))

    return {"self": of_self}


_CHOSEN = ("max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode.default", "kthvalue.default")

GRADIENTS: Mapping[str, Gradient] = {
    "aten.sum.default": _reduced(_sum, exact=True),
    "aten.sum.dim_IntList": _reduced(_sum, exact=True),
    "aten.mean.default": _reduced(_mean, exact=True),
    "aten.mean.dim": _reduced(_mean, exact=True),
    "aten.amax.default": _reduced(_even, exact=True),
    "aten.amin.default": _reduced(_even, exact=True),
    **{f"aten.{name}.default": _reduced(_even_of_all, exact=True) for name in ("max", "min", "median", "nanmedian")},
    "aten.aminmax.default": _both(_reduced(_even, exact=True), _reduced(_even, exact=True)),
    "aten.nansum.default": _reduced(_nansum),
    "aten.prod.default": _of_prod,
    "aten.prod.dim_int": _of_prod,
    **{f"aten.{name}": of_call(_chosen, exact=True) for name in _CHOSEN},
    **{f"aten.{name}": of_call(_sorted, exact=True) for name in ("sort.default", "sort.stable", "topk.default")},
    **{f"aten.var.{form}": _reduced(_var, is_static=True) for form in ("default", "dim", "correction")},
    **{f"aten.std.{form}": _reduced(_std, is_static=True) for form in ("default", "dim", "correction")},
    "aten.logsumexp.default": _reduced(_logsumexp),
    **{
        f"aten.{form}": _both(_reduced(rule, is_static=True), _reduced(_mean))
        for name, rule in (("var_mean", _var), ("std_mean", _std))
        for form in (f"{name}.default", f"{name}.dim", f"{name}.correction")
    },
    "aten.linalg_vector_norm.default": _of_norm,
    **{f"aten.norm.{form}": _of_norm for form in ("Scalar", "ScalarOpt_dim")},
    "aten.dist.default": of_call(_dist),
    **{f"aten.{name}": of_call(_softmax) for name in ("softmax.int", "_softmax.default", "_safe_softmax.default")},
    **{f"aten.{name}": of_call(_log_softmax) for name in ("log_softmax.int", "_log_softmax.default")},
    "aten.cumsum.default": of_call(_cumsum),
    **{f"aten.{name}.default": of_call(_running, exact=True) for name in ("cummax", "cummin")},
}
