"""Find softmax(scale * q @ k^T + masks) @ v, from its last product upwards.

Invariant: what is found has no use outside itself, stands in one region under one mode, and is deterministic; all
dtypes on the way are the operands' own (f32 besides, for the softmax of bf16).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isfinite

from smelt.ir import Arg, DType, Node, TensorType, Value
from smelt.ops.effects import effects
from smelt.ops.lowering import GraphEmitter
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.passes.base import call_of
from smelt.passes.matching import is_autocast, is_used_once, same_sizes, scalar_of, static_tensor

# A finite number that replaces scores is taken for a number added to them if it swallows any score below 1e13.
_SWALLOWS = -1e30
_SAME = where(Trait.SAME_VALUES)
_VIEWS = where(Trait.RESHAPES)
_DROPOUT = "aten.dropout.default"
_TRANSPOSES = where(Trait.PERMUTES) - {"aten.numpy_T.default"}  # which turns all dimensions
_PRODUCTS = ("aten.matmul.default", "aten.bmm.default", "aten.mm.default")


@dataclass(frozen=True, slots=True)
class Mask:
    """Added to the scores (fill None), or a bool that puts `fill` in their place where it is (not) set.

    scores: the type of the scores where the mask meets them.
    """

    value: Value
    scores: TensorType
    fill: float | None = None
    fills_where_set: bool = True


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class _Walk:
    """Where the search stands: the value to look at, and what was met so far."""

    at: Value
    scale: float = 1.0
    masks: tuple[Mask, ...] = ()


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
    softmax = probabilities.node
    if softmax is None or not belongs(probabilities):
        return None
    scores = _softmaxed(softmax)
    if scores is None or static_tensor(scores) is None:
        return None
    found = _scores(_Walk(scores), belongs)
    if found is None:
        return None
    walk, product = found
    return _finished(root, product, scores, right, walk)


def _finished(root: Node, product: Node, scores: Value, value: Value, walk: _Walk) -> Spelled | None:
    call = call_of(product)
    query = call.get("self") if product.op in _PRODUCTS else call["batch1"]
    key = call.get("other", call.get("mat2", call.get("batch2")))
    out = static_tensor(root.result)
    if not isinstance(query, Value) or not isinstance(key, Value) or out is None or product.mode != root.mode:
        return None
    types = [static_tensor(v) for v in (query, key, value)]
    if any(t is None or t.dtype is not out.dtype or len(t.sizes) < 2 for t in types):
        return None
    if not isfinite(walk.scale) or walk.scale <= 0:
        return None
    # Queries that were scaled stay so: scaled scores overflow where the scores of scaled queries do not.
    return Spelled(root, product, scores, query, key, value, walk.scale, walk.masks)


def _through(value: Value, belongs: Callable[[Value], bool]) -> Value:
    """Up through copies, casts, dropout that is off, and views that keep the last two dimensions."""
    while belongs(value):
        node = value.node
        assert node is not None
        source = next(node.operands(), None)
        if source is None or not _is_same(node, source):
            break
        value = source
    return value


def _is_same(node: Node, source: Value) -> bool:
    if len(node.results) != 1:
        return False
    before, after = static_tensor(source), static_tensor(node.result)
    if before is None or after is None:
        return False
    if node.op == _DROPOUT:
        return not effects(node).rng
    if node.op in _SAME:
        return same_sizes(before.sizes, after.sizes)
    return node.op in _VIEWS and len(before.sizes) >= 2 and same_sizes(before.sizes[-2:], after.sizes[-2:])


def _softmaxed(node: Node) -> Value | None:
    """What a softmax over the last dimension is taken of."""
    if node.op not in ("aten.softmax.int", "aten._softmax.default"):
        return None
    call = call_of(node)
    x, dim, type_ = call["self"], call["dim"], static_tensor(node.result)
    if not isinstance(x, Value) or type_ is None or len(type_.sizes) < 2 or dim not in (-1, len(type_.sizes) - 1):
        return None
    return x


def _scores(walk: _Walk, belongs: Callable[[Value], bool]) -> tuple[_Walk, Node] | None:
    """Up from a softmax's operand to the product of queries and keys, over masks and then a scale."""
    at = _through(walk.at, belongs)
    if not belongs(at):
        return None
    node = at.node
    assert node is not None
    if node.op in _PRODUCTS:
        return walk, node
    if node.op == "aten.baddbmm.default":
        return _product_and_mask(walk, node)
    for source, mask in _masked(node):
        if walk.scale == 1.0 and static_tensor(source) is not None and _keeps_sizes(source, at):
            found = _scores(replace(walk, at=source, masks=(*walk.masks, mask)), belongs)
            if found is not None:
                return found
    factor = _factor(node)
    if factor is not None and _keeps_sizes(factor[0], at):
        return _scores(replace(walk, at=factor[0], scale=walk.scale * factor[1]), belongs)
    return None


def _keeps_sizes(source: Value, result: Value) -> bool:
    before, after = static_tensor(source), static_tensor(result)
    return before is not None and after is not None and same_sizes(before.sizes, after.sizes)


def _product_and_mask(walk: _Walk, node: Node) -> tuple[_Walk, Node] | None:
    """baddbmm: alpha scales the product, beta the mask that it is added to."""
    call = call_of(node)
    alpha, beta, mask = call["alpha"], call["beta"], call["self"]
    type_ = static_tensor(node.result)
    if not isinstance(alpha, (int, float)) or not isinstance(mask, Value) or type_ is None:
        return None
    scaled = replace(walk, scale=walk.scale * float(alpha))
    if beta == 0:
        return scaled, node
    if beta != 1 or walk.scale != 1.0:
        return None
    return replace(scaled, masks=(*walk.masks, Mask(mask, type_))), node


def _masked(node: Node) -> list[tuple[Value, Mask]]:
    """The ways in which a node may be scores with a mask: what is masked, and the mask."""
    call = call_of(node)
    type_ = static_tensor(node.result)
    if type_ is None:
        return []
    match node.op:
        case "aten.add.Tensor":
            pair = (call["self"], call["other"])
            orders = (pair, pair[::-1]) if call["alpha"] == 1 else ()
            return [(a, Mask(b, type_)) for a, b in orders if isinstance(a, Value) and isinstance(b, Value)]
        case "aten.masked_fill.Scalar" | "aten.masked_fill.Tensor":
            return _filled(call["self"], call["mask"], call["value"], type_, True)
        case "aten.where.self" | "aten.where.ScalarOther" | "aten.where.ScalarSelf":
            a, b = call["self"], call["other"]
            return _filled(a, call["condition"], b, type_, False) or _filled(b, call["condition"], a, type_, True)
    return []


def _filled(scores: Arg, mask: Arg, fill: Arg, kind: TensorType, fills_where_set: bool) -> list[tuple[Value, Mask]]:
    number, type_ = scalar_of(fill), static_tensor(mask)
    if number is None or type_ is None or type_.dtype is not DType.BOOL or not isinstance(scores, Value):
        return []
    assert isinstance(mask, Value)
    if not (number == -inf or number <= _SWALLOWS):
        return []
    return [(scores, Mask(mask, kind, number, fills_where_set))]


def _factor(node: Node) -> tuple[Value, float] | None:
    """What a node multiplies by a number above 0, and the number."""
    call = call_of(node)
    is_product = node.op in ("aten.mul.Tensor", "aten.mul.Scalar")
    if not is_product and node.op not in ("aten.div.Tensor", "aten.div.Scalar"):
        return None
    pairs = [(call["self"], call["other"])]
    if is_product:
        pairs.append((call["other"], call["self"]))
    for value, number in pairs:
        factor = scalar_of(number)
        if isinstance(value, Value) and factor is not None and factor > 0 and isfinite(factor):
            return value, factor if is_product else 1.0 / factor
    return None
