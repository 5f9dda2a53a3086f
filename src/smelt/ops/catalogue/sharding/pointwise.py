"""Element by element: every dimension of the result is a label, and operands that are broadcast there have none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from smelt.ir import Arg, Node
from smelt.ops.catalogue.sharding.terms import is_known, results, tensors
from smelt.ops.ranks.placements import Correspondence, Dim, Dims, Rule
from smelt.ops.registry import tags_of

_ALSO: Final = frozenset((
    "aten.alias.default", "aten.clone.default", "aten.contiguous.default", "aten.detach.default", "aten.to.dtype",
    "aten.to.dtype_layout", "aten.to.device", "aten._to_copy.default", "aten.type_as.default", "aten.to.other",
    "aten.lift_fresh_copy.default", "aten.zeros_like.default", "aten.ones_like.default", "aten.full_like.default",
    "aten.empty_like.default", "aten.masked_fill.Scalar", "aten.masked_fill.Tensor", "aten.glu_jvp.default",
    "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar", "aten.where.self", "aten.copy.default",
    "aten.fill.Scalar", "aten.fill.Tensor", "aten.float_power.Tensor_Scalar", "aten.gelu.default",
    "aten.feature_dropout.default", "aten.bernoulli.p", "aten.nan_to_num.default", "aten.square.default",
    "aten.detach_copy.default", "aten.positive.default", "aten.negative.default", "aten.divide.Tensor",
    "aten.multiply.Tensor", "aten.subtract.Tensor", "aten.true_divide.Tensor", "aten.relu6.default",
    "aten.floor_divide.default", "aten.floor_divide.Scalar", "aten.rsub.Scalar", "aten.rsub.Tensor",
    "aten.softplus.default", "aten.selu.default", "aten.celu.default", "aten.min.other", "aten.max.other",
    "aten.isnan.default", "aten.isfinite.default", "aten.isinf.default", "aten.__and__.Tensor", "aten.__or__.Tensor",
    "aten.bitwise_not.default", "aten.logical_not.default", "aten.hardswish.default", "aten.hardsigmoid.default",
    "aten.hardtanh.default", "aten.clip.default", "aten.clamp.default", "aten.clamp.Tensor", "aten.dropout.default",
    "aten.absolute.default", "aten.greater.Tensor", "aten.greater_equal.Tensor", "aten.less.Tensor",
    "aten.less_equal.Tensor", "aten.not_equal.Tensor", "aten.arctan.default", "aten.arccos.default",
    "aten.arcsin.default", "aten.fix.default", "aten.special_expit.default", "aten.special_erf.default",
    "aten.log_sigmoid.default", "aten.divide.Tensor_mode", "aten.__and__.Scalar", "aten.__or__.Scalar",
    "aten.lift_fresh.default", "aten.broadcast_tensors.default", "aten.real.default", "aten.imag.default",
    "aten.greater.Scalar", "aten.less.Scalar", "aten.not_equal.Scalar",
))  # fmt: skip

_FIRST, _SECOND, _BOTH = frozenset((0,)), frozenset((1,)), frozenset((0, 1))
_LINEAR: Final[Mapping[str, tuple[frozenset[int], ...]]] = MappingProxyType({
    "aten.add.Tensor": (_BOTH,), "aten.sub.Tensor": (_BOTH,), "aten.mul.Tensor": (_FIRST, _SECOND),
    "aten.mul.Scalar": (_FIRST,), "aten.div.Tensor": (_FIRST,), "aten.div.Scalar": (_FIRST,),
    "aten.neg.default": (_FIRST,), "aten.clone.default": (_FIRST,), "aten.alias.default": (_FIRST,),
    "aten.contiguous.default": (_FIRST,),
})  # fmt: skip


def is_by_elements(op: str) -> bool:
    """Whether an operator goes element by element."""
    return op in _ALSO or "pointwise" in tags_of(op)


def by_elements(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """Labels by the result's dimensions, counted from the back."""
    if not is_known(node):
        return None
    made = results(node)
    sizes = made[0].sizes
    if any(t.sizes != sizes for t in made):
        return None
    operands = tuple(_aligned(t.sizes, sizes) for t in tensors(node))
    whole = tuple(Dim(f"d{i}") for i in range(len(sizes)))
    return Correspondence(operands, tuple(whole for _ in made), linear=_linear(node))


def _linear(node: Node) -> tuple[frozenset[int], ...]:
    found = _LINEAR.get(node.op, ())
    if len(tensors(node)) == 1 and node.op in ("aten.add.Tensor", "aten.sub.Tensor"):
        return ()
    return found


def _aligned(sizes: tuple[int, ...], whole: tuple[int, ...]) -> Dims:
    shift = len(whole) - len(sizes)
    return tuple(Dim(f"d{i + shift}") if size == whole[i + shift] else None for i, size in enumerate(sizes))


RULES: Mapping[str, Rule] = MappingProxyType({})
