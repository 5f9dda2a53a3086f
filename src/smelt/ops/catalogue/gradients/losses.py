"""Gradients of losses: by class, and by element.

Source of the formulas: the derivatives that torch's own package names (`torchgen/packaged/autograd/derivatives.yaml`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from smelt.diag import SmeltError
from smelt.ir import Value
from smelt.ops.catalogue.gradients.dims import divided
from smelt.ops.catalogue.gradients.terms import Operands, Term, of_call, where
from smelt.ops.record import Gradient

_Parts = dict[str, Callable[[], Term]]
_NONE, _MEAN = 0, 1

# --- by class


class _Classes:
    """Scores x[n, c, ...] or x[c] beside one class for each row: which element it is, and what it weighs.

    At a row that is ignored nothing is chosen.
    """

    def __init__(self, call: Operands) -> None:
        x, target = call["self"], call.raw("target")
        rank = x.type.rank
        self.dim = 0 if rank == 1 else 1
        self.size = _size(x, self.dim)
        index = target.op("unsqueeze.default", self.dim)
        classes = Term(call.b, call.b.call("aten.arange.default", self.size))
        after = rank - 1 - self.dim
        if after:
            classes = classes.op("reshape.default", (-1, *(1,) * after))
        self.valid = index.differs(call["ignore_index"])
        self.chosen = index.equals(classes).also(self.valid)
        self.weight = _column(call["weight"], after)
        self.dtype = x.type.dtype

    def weights(self) -> Term:
        """What each element weighs that its row chose; 0 elsewhere."""
        return self.chosen.to(self.dtype) if self.weight is None else self.weight.where(self.chosen)

    def scaled(self, g: Term, reduction: int) -> Term:
        """The gradient of each row's loss, 0 where it is ignored: their number may be 0."""
        if reduction == _NONE:
            g = g.op("unsqueeze.default", self.dim)
        elif reduction == _MEAN:
            g = g / (self.valid if self.weight is None else self.weights()).op("sum.default")
        return g.where(self.valid)


def _size(x: Term, dim: int) -> int | Value:
    shape = x.type.shape
    assert shape is not None
    size = shape[dim]
    return size if isinstance(size, int) else x.op("sym_size.int", dim).value


def _column(weight: Term | None, after: int) -> Term | None:
    return weight.op("reshape.default", (-1, *(1,) * after)) if weight is not None and after else weight


def _nll(g: Term, call: Operands) -> _Parts | None:
    if call["self"].type.rank is None:
        return None

    def of_self() -> Term:
        classes = _Classes(call)
        return -classes.scaled(g, call["reduction"]) * classes.weights()

    return {"self": of_self, "weight": _refused("nll_loss_nd", "weight")}


def _cross_entropy(g: Term, call: Operands) -> _Parts | None:
    """Scores' gradient: of -sum(q * log_softmax(x)) it is softmax(x) * sum(q) - q, q being what each class counts."""
    x, target = call["self"], call.raw("target")
    if x.type.rank is None or target.type.shape is None:
        return None
    if target.type.dtype.kind == "float":
        return _by_probabilities(g, call)
    smoothing = call["label_smoothing"]
    if isinstance(smoothing, Value) or (smoothing and (call["weight"] is not None or not x.type.is_static)):
        return None  # a smoothed loss has a gradient for its weights, too

    def of_self() -> Term:
        classes = _Classes(call)
        counts = classes.weights()
        p = x.op("softmax.int", classes.dim)
        if smoothing:
            counts = counts * (1 - smoothing) + smoothing / classes.size
        if classes.weight is not None:
            p = p * counts.sum((classes.dim,), True)
        return classes.scaled(g, call["reduction"]) * (p - counts)

    return {"self": of_self, "weight": _refused("cross_entropy_loss", "weight")}


def _by_probabilities(g: Term, call: Operands) -> _Parts | None:
    x, target, weight, smoothing = (call[name] for name in ("self", "target", "weight", "label_smoothing"))
    rank = x.type.rank
    dim = 0 if rank == 1 else 1
    size = x.type.shape[dim]
    if isinstance(smoothing, Value) or not isinstance(size, int):
        return None
    column = _column(weight, rank - 1 - dim)

    @cache
    def scale() -> Term:
        if call["reduction"] == _NONE:
            return g.op("unsqueeze.default", dim)
        return divided(g, x, [d for d in range(rank) if d != dim]) if call["reduction"] == _MEAN else g

    @cache
    def smoothed() -> Term:
        return target * (1 - smoothing) + smoothing / size if smoothing else target

    @cache
    def logs() -> Term:
        return x.op("log_softmax.int", dim)

    def of_self() -> Term:
        counts = smoothed() if column is None else smoothed() * column
        return scale() * (x.op("softmax.int", dim) * counts.sum((dim,), True) - counts)

    def of_target() -> Term:
        factor = logs() if column is None else logs() * column
        return -scale() * (factor * (1 - smoothing) if smoothing else factor)

    def of_weight() -> Term:
        found = -scale() * smoothed() * logs()
        return found.sum([d for d in range(rank) if d != dim])

    return {"self": of_self, "target": of_target, "weight": of_weight}


def _refused(op: str, name: str) -> Callable[[], Term]:
    """Of an argument by which torch does not differentiate; asked only where that is needed."""

    def raising() -> Term:
        raise SmeltError(
            f"{op} has no gradient for its {name}",
            why="torch has none either",
            fix=f"detach the {name}",
            code="S0303",
        )

    return raising


# --- by element

_Slope = Callable[[Operands], "Mapping[str, Callable[[], Term]]"]
"""What the loss of each element changes by, for each operand."""


def _by_element(slopes: _Slope) -> Gradient:
    """Of a loss of `self` beside `target`, whose elements are given out, added up or averaged."""

    def rule(g: Term, call: Operands) -> _Parts | None:
        if any(call[name].type.rank is None for name in ("self", "target")):
            return None

        def scaled(slope: Callable[[], Term]) -> Callable[[], Term]:
            def made() -> Term:
                each = slope()
                if call["reduction"] == _MEAN:
                    return each * divided(g, each, range(each.type.rank or 0))
                return each * g

            return made

        return {name: scaled(slope) for name, slope in slopes(call).items()}

    return of_call(rule)


def _of_difference(slope: Callable[[Term, Operands], Term]) -> Gradient:
    """Of a loss of self - target."""

    def slopes(call: Operands) -> _Parts:
        found = cache(lambda: slope(call["self"] - call["target"], call))
        return {"self": found, "target": lambda: -found()}

    return _by_element(slopes)


def _smooth_l1(d: Term, call: Operands) -> Term:
    beta = call["beta"]
    return where(d.op("abs.default") < beta, d / beta, d.op("sign.default")) if beta else d.op("sign.default")


def _huber(d: Term, call: Operands) -> Term:
    delta = call["delta"]
    return where(d.op("abs.default") < delta, d, d.op("sign.default") * delta)


def _weighted(slope: Term, call: Operands) -> Term:
    return slope if call["weight"] is None else slope * call["weight"]


def _bce(call: Operands) -> _Parts:
    x, t = call["self"], call["target"]

    def of_self() -> Term:
        # At 0 and 1 finite, as torch has it.
        spread = (x * (1 - x)).op("clamp_min.default", 1e-12)
        return _weighted((x - t) / spread, call)

    return {
        "self": of_self,
        "target": lambda: _weighted((1 - x).op("log.default") - x.op("log.default"), call),
        "weight": _refused("binary_cross_entropy", "weight"),
    }


def _bce_with_logits(call: Operands) -> _Parts:
    x, t, positive = call["self"], call["target"], call["pos_weight"]

    def of_self() -> Term:
        p = x.op("sigmoid.default")
        if positive is None:
            return _weighted(p - t, call)
        weighed = positive * t
        return _weighted((weighed + 1 - t) * p - weighed, call)

    def of_target() -> Term:
        if positive is None:
            return _weighted(-x, call)
        below = (-x).op("log_sigmoid.default")
        return _weighted(below - positive * x.op("log_sigmoid.default"), call)

    name = "binary_cross_entropy_with_logits"
    refused: _Parts = {argument: _refused(name, argument) for argument in ("weight", "pos_weight")}
    return {"self": of_self, "target": of_target, **refused}


def _soft_margin(call: Operands) -> _Parts:
    x, t = call["self"], call["target"]
    return {"self": lambda: -t * (-t * x).op("sigmoid.default"), "target": _refused("soft_margin_loss", "target")}


def _kl_div(call: Operands) -> _Parts:
    """At a target of 0 the target's is NaN, as torch has it."""
    x, t = call["self"], call["target"]
    if call["log_target"]:
        p = cache(lambda: t.op("exp.default"))
        return {"self": lambda: -p(), "target": lambda: p() * (t - x + 1)}
    return {"self": lambda: -t, "target": lambda: where(t.equals(0), 0, t.op("log.default")) + t / t - x}


GRADIENTS: Mapping[str, Gradient] = {
    "aten.cross_entropy_loss.default": of_call(_cross_entropy),
    "aten.nll_loss_nd.default": of_call(_nll),
    "aten.mse_loss.default": _of_difference(lambda d, call: d * 2),
    "aten.l1_loss.default": _of_difference(lambda d, call: d.op("sign.default")),
    "aten.smooth_l1_loss.default": _of_difference(_smooth_l1),
    "aten.huber_loss.default": _of_difference(_huber),
    "aten.binary_cross_entropy.default": _by_element(_bce),
    "aten.binary_cross_entropy_with_logits.default": _by_element(_bce_with_logits),
    "aten.soft_margin_loss.default": _by_element(_soft_margin),
    "aten.kl_div.default": _by_element(_kl_div),
}
