"""Find softmax(scale * q @ k^T + masks) @ v, from its last product upwards.

Invariant: what is found has no use outside itself, stands in one region under one mode, and is deterministic; all
dtypes on the way are the operands' own (f32 besides, for the softmax of bf16).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite

from smelt.diag.records import record
from smelt.ir import DType, Node, TensorType, Value
from smelt.ops.effects import effects
from smelt.ops.lowering import GraphEmitter
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.passes.attentions.attention_walk import (
    BADDBMM,
    MASKING,
    PRODUCTS,
    SCALING,
    Step,
    Steps,
    climb,
    softmax_of,
    steps_of,
)
from smelt.passes.base import call_of
from smelt.passes.matching import is_autocast, is_used_once, same_sizes, scalar_of, static_tensor

# A finite number that replaces scores is taken for a number added to them if it swallows any score below 1e13.
_SWALLOWS = -1e30
_SAME = where(Trait.SAME_VALUES)
_TRANSPOSES = where(Trait.PERMUTES) - {"aten.numpy_T.default"}  # which turns all dimensions
_PRODUCTS = (*PRODUCTS, "aten.mm.default")


@record
class Mask:
    """Added to the scores (fill None), or a bool that puts `fill` in their place where it is (not) set.

    scores: the type of the scores where the mask meets them.
    """

    value: Value
    scores: TensorType
    fill: float | None = None
    fills_where_set: bool = True


@record
class Spelled:
    """softmax(scale * query @ key_turned + masks, -1) @ value. first: the first node that reads an operand."""

    root: Node
    first: Node
    scores: Value
    query: Value
    key_turned: Value
    value: Value
    scale: float
    masks: tuple[Mask, ...]

    def key(self, emit: GraphEmitter) -> Value:
        """f32[..., keys, d]: what `key_turned` is the transposition of, or a view of it that is written."""
        node = self.key_turned.node
        if node is not None and node.op in _TRANSPOSES:
            source = next(node.operands())
            before, after = static_tensor(source), static_tensor(self.key_turned)
            if before is not None and after is not None and len(before.sizes) >= 2 and _turns(node):
                return source
        return emit.call("aten.transpose.int", self.key_turned, -2, -1)


def _turns(node: Node) -> bool:
    """Whether a node swaps the last two dimensions and nothing else."""
    call = call_of(node)
    type_ = static_tensor(node.result)
    rank = len(type_.sizes) if type_ is not None else 0
    match node.op:
        case "aten.mT.default" | "aten.t.default":
            return rank >= 2
        case "aten.permute.default":
            dims = call["dims"]
            assert isinstance(dims, tuple)
            order = [d % rank for d in dims if isinstance(d, int)]
            return order == [*range(rank - 2), rank - 1, rank - 2]
    dims = tuple(d for name, d in call.items() if name != "self")
    return sorted(d % rank for d in dims if isinstance(d, int)) == [rank - 2, rank - 1]


def find(root: Node) -> Spelled | None:
    """The attention that ends in a product, or None."""
    if root.op not in _PRODUCTS or is_autocast(root):
        return None
    call = call_of(root)
    left, right = call["self"], call.get("other", call.get("mat2"))
    out = static_tensor(root.result)
    if not isinstance(left, Value) or not isinstance(right, Value) or out is None:
        return None
    dtypes = {out.dtype, DType.F32} if out.dtype is DType.BF16 else {out.dtype}

    def belongs(value: Value) -> bool:
        node, type_ = value.node, static_tensor(value)
        return (
            node is not None and node.parent is root.parent and node.mode == root.mode and is_used_once(value)
            and type_ is not None and type_.dtype in dtypes
        )  # fmt: skip

    probabilities = _through(left, belongs)
    softmax = None if probabilities.node is None or not belongs(probabilities) else softmax_of(probabilities.node)
    if softmax is None or softmax.written not in ("softmax", "_softmax"):
        return None
    type_ = static_tensor(probabilities)
    if type_ is None or len(type_.sizes) < 2 or static_tensor(softmax.source) is None:
        return None

    def fits(step: Step, below: Steps) -> bool:
        result = step.node.results[0]
        if not belongs(result):
            return False
        if step.kind not in MASKING and step.kind not in SCALING:
            return _is_same(step)
        if not _keeps_sizes(step.source, result):
            return False
        # A mask that is scaled afterwards is another mask.
        return _factor(step) is not None if step.kind in SCALING else _mask(step) is not None and _scale(below) == 1.0

    def ends(node: Node, below: Steps) -> bool:
        if node.op not in (*_PRODUCTS, BADDBMM) or not belongs(node.result):
            return False
        return node.op in _PRODUCTS or _added(node, below) is not None

    found = climb(softmax.source, fits, ends)
    if found is None:
        return None
    product, steps = found
    return _finished(root, product, softmax.source, right, steps)


def _finished(root: Node, product: Node, scores: Value, value: Value, steps: Steps) -> Spelled | None:
    call = call_of(product)
    query = call.get("self") if product.op in _PRODUCTS else call["batch1"]
    key = call.get("other", call.get("mat2", call.get("batch2")))
    out = static_tensor(root.result)
    if not isinstance(query, Value) or not isinstance(key, Value) or out is None or product.mode != root.mode:
        return None
    types = [static_tensor(v) for v in (query, key, value)]
    if any(t is None or t.dtype is not out.dtype or len(t.sizes) < 2 for t in types):
        return None
    scale, masks = _scale(steps), [mask for step in steps if step.kind in MASKING and (mask := _mask(step)) is not None]
    if product.op == BADDBMM:
        added = _added(product, steps)
        assert added is not None
        scale *= added[0]
        masks += added[1]
    if not isfinite(scale) or scale <= 0:
        return None
    # Queries that were scaled stay so: scaled scores overflow where the scores of scaled queries do not.
    return Spelled(root, product, scores, query, key, value, scale, tuple(masks))


def _through(value: Value, belongs: Callable[[Value], bool]) -> Value:
    """Up through copies, casts, dropout that is off, and views that keep the last two dimensions."""
    while belongs(value):
        assert value.node is not None
        step = next(filter(_is_same, steps_of(value.node)), None)
        if step is None:
            break
        value = step.source
    return value


def _is_same(step: Step) -> bool:
    """Whether a step changes nothing but the dtype, and sizes before the last two."""
    node = step.node
    if len(node.results) != 1:
        return False
    before, after = static_tensor(step.source), static_tensor(node.result)
    if before is None or after is None:
        return False
    match step.kind:
        case "dropout":
            return not effects(node).rng
        case "same":
            return node.op in _SAME and same_sizes(before.sizes, after.sizes)
        case "view":
            return len(before.sizes) >= 2 and same_sizes(before.sizes[-2:], after.sizes[-2:])
    return False


def _keeps_sizes(source: Value, result: Value) -> bool:
    before, after = static_tensor(source), static_tensor(result)
    return before is not None and after is not None and same_sizes(before.sizes, after.sizes)


def _added(node: Node, below: Steps) -> tuple[float, list[Mask]] | None:
    """baddbmm: alpha scales the product, beta the mask that it is added to. The scale, and the mask if there is one."""
    call = call_of(node)
    alpha, beta, mask = call["alpha"], call["beta"], call["self"]
    type_ = static_tensor(node.result)
    if not isinstance(alpha, (int, float)) or not isinstance(mask, Value) or type_ is None:
        return None
    if beta == 0:
        return float(alpha), []
    return (float(alpha), [Mask(mask, type_)]) if beta == 1 and _scale(below) == 1.0 else None


def _mask(step: Step) -> Mask | None:
    """The mask of a step that masks exactly as one that is added does, or one that puts a number in the place."""
    type_ = static_tensor(step.node.result)
    if type_ is None:
        return None
    if step.kind == "add":
        return Mask(step.by, type_) if isinstance(step.by, Value) else None
    if step.kind == "sub":
        return None
    number, mask = scalar_of(step.fill), static_tensor(step.by)
    if number is None or mask is None or mask.dtype is not DType.BOOL:
        return None
    assert isinstance(step.by, Value)
    if not (number == -inf or number <= _SWALLOWS):
        return None
    return Mask(step.by, type_, number, step.kind != "where")


def _factor(step: Step) -> float | None:
    """The number above 0 that a step multiplies by."""
    factor = scalar_of(step.by)
    if factor is None or factor <= 0 or not isfinite(factor):
        return None
    return factor if step.kind == "mul" else 1.0 / factor


def _scale(steps: Steps) -> float:
    """What all factors of some steps come to."""
    scale = 1.0
    for step in steps:
        factor = _factor(step) if step.kind in SCALING else None
        scale *= 1.0 if factor is None else factor
    return scale
