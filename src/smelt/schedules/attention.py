"""Attention in any spelling, as a pattern: `softmax(q @ k^T * scale + mask) @ v`.

A walk from each softmax (or what stands for one: `e / e.sum()`) to the products on both sides tells how it is spelled
(scaled by a product or a quotient, a mask added, taken away or filled in, cast, seen in other sizes, dropout); the
pattern is then written down as a graph and searched like any other. Invariant: the walk only suggests; what takes a
step is what the search finds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch

from smelt.diag.records import record
from smelt.ir import Graph, Node, TensorType, Value, parse
from smelt.ops.convert import dtype_to_torch
from smelt.ops.evaluate import constant
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.passes.attentions.attention_walk import (
    BADDBMM,
    CASTS,
    MASKING,
    PRODUCTS,
    SCALING,
    Step,
    Steps,
    climb,
    name_of,
    rank_of,
    softmax_of,
    steps_of,
)
from smelt.schedules.attend import FILLS, layout_of
from smelt.scheduling import Match
from smelt.scheduling.finding.forms import is_idle

_EINSUM = "aten.einsum.default"
_VIEWS = where(Trait.TO_SIZES)
MASKS = ("mask", "mask2")
_MASKING = ("add", "sub", *FILLS)
_MOST_SIZES = 5
_ROWS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "mul": ("aten.mul.Tensor({x}, %by)", "%by: float"),
    "div": ("aten.div.Tensor({x}, %by)", "%by: float"),
    "mul_by": ("aten.mul.Tensor({x}, %factor)", "%factor: tensor[?]"),
    "div_by": ("aten.div.Tensor({x}, %factor)", "%factor: tensor[?]"),
    "add": ("aten.add.Tensor({x}, {mask})", "{mask}: tensor[?]"),
    "sub": ("aten.sub.Tensor({x}, {mask})", "{mask}: tensor[?]"),
    "masked_fill": ("aten.masked_fill.Scalar({x}, {mask}, %fill)", "{mask}: tensor[?], %fill: float"),
    "masked_fill_by": ("aten.masked_fill.Tensor({x}, {mask}, %filler)", "{mask}: tensor[?], %filler: tensor[?]"),
    "where": ("aten.where.ScalarOther({mask}, {x}, %fill)", "{mask}: tensor[?], %fill: float"),
    "where_by": ("aten.where.self({mask}, {x}, %filler)", "{mask}: tensor[?], %filler: tensor[?]"),
    "where_not": ("aten.where.ScalarSelf({mask}, %fill, {x})", "{mask}: tensor[?], %fill: float"),
    "where_not_by": ("aten.where.self({mask}, %filler, {x})", "{mask}: tensor[?], %filler: tensor[?]"),
    "dropout": ("aten.dropout.default({x}, %p, %train)", "%p: float, %train: bool"),
    "cast": ('smelt_pattern.optional.default(["to", "_to_copy", "type_as", "float"], {x})', ""),
    "view": ('smelt_pattern.one_of.default(["view", "reshape", "_unsafe_view"], [{x}])', ""),
})  # fmt: skip
"""A token's node in the pattern, and what it leaves free."""
_SUMS = ("%t: tensor[?] = aten.sum.dim_IntList(%e, [-1], True)", "{y}: tensor[?] = aten.div.Tensor(%e, %t)")
_SOFT: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "softmax": ("{y}: tensor[?] = aten.softmax.int({x}, -1{dtype})",),
    "log": ("%l: tensor[?] = aten.log_softmax.int({x}, -1{dtype})", "{y}: tensor[?] = aten.exp.default(%l)"),
    "amax": (
        "%m: tensor[?] = aten.amax.default({x}, [-1], True)",
        '%n: tensor[?] = smelt_pattern.optional.default(["detach"], %m)',
        "%d: tensor[?] = aten.sub.Tensor({x}, %n)", "%e: tensor[?] = aten.exp.default(%d)", *_SUMS,
    ),
    "max": (
        "%m: tensor[?], %i: tensor[?] = aten.max.dim({x}, -1, True)",
        '%n: tensor[?] = smelt_pattern.optional.default(["detach"], %m)',
        "%d: tensor[?] = aten.sub.Tensor({x}, %n)", "%e: tensor[?] = aten.exp.default(%d)", *_SUMS,
    ),
})  # fmt: skip
"""A softmax as it may be written."""


@record
class Spelling:
    """How one attention is written, from the first product to the second.

    product, last: their operators, with equation and mix where these are `einsum`. soft: a key of what stands for the
    softmax. is_turned: k is the first operand; mixes_turned: v is.
    """

    product: str
    equation: str
    is_turned: bool
    transposed: bool
    before: tuple[str, ...]
    soft: str
    dtype: str
    after: tuple[str, ...]
    last: str
    mix: str
    mixes_turned: bool

    @property
    def pattern(self) -> Graph:
        """The pattern: what is free are q, k (or its transpose), v, the mask, and all numbers."""
        rows, free, n = list[str](), ["%q: tensor[?]", "%k: tensor[?]", "%v: tensor[?]"], 0
        key, names = "%k", iter(MASKS)
        if self.transposed:
            rows.append("%kt: tensor[?] = aten.transpose.int(%k, -2, -1)")
            key = "%kt"
        if self.product == BADDBMM:
            free += ["%start: tensor[?]", "%beta: float", "%alpha: float"]
            rows.append(f"%x0: tensor[?] = {BADDBMM}(%start, %q, {key}, beta=%beta, alpha=%alpha)")
        else:
            rows.append("%x0: tensor[?] = " + _product(self.product, self.equation, "%q", key, self.is_turned))
        for token in (*self.before, "", *self.after):
            x, y = f"%x{n}", f"%x{n + 1}"
            if not token:
                rows += [row.format(x=x, y=y, dtype=self.dtype) for row in _SOFT[self.soft]]
            elif token.startswith("split"):
                sizes = [f"%s{i}" for i in range(int(token[5:]))]
                free += [f"{size}: int" for size in sizes]
                rows.append(f"{y}: tensor[?] = aten.view.default({x}, [{', '.join(sizes)}])")
            else:
                row, given = _ROWS[token]
                mask = f"%{next(names)}" if token in _MASKING else ""
                free += [given.format(mask=mask)] if given else []
                rows.append(f"{y}: tensor[?] = {row.format(x=x, mask=mask)}")
            n += 1
        rows.append("%y: tensor[?] = " + _product(self.last, self.mix, f"%x{n}", "%v", self.mixes_turned))
        body = "\n".join(f"  {row}" for row in rows)
        return parse(f"graph attention({', '.join(free)}) -> tensor[?] {{\n{body}\n  return %y\n}}")

    @property
    def arguments(self) -> dict[str, bool | str]:
        """What `attend` must know of the spelling beside what the pattern captures."""
        told: dict[str, bool | str] = {
            "divide": "div" in self.before or "div_by" in self.before,
            "masks": " ".join(token for token in self.before if token in _MASKING),
            "transposed": not self.transposed and self.product != _EINSUM,
            "scores": _in_order(self.equation, self.is_turned),
            "mix": _in_order(self.mix, self.mixes_turned),
            "folded": "view" in (*self.before, *self.after),
        }
        return {name: value for name, value in told.items() if value}


def spelling_of(node: Node) -> Spelling | str | None:
    """How the attention around what is, or stands for, a softmax is spelled; why it is none that can be taken.

    None where there is no attention.
    """
    soft = softmax_of(node)
    if not is_attention(node):
        return None
    if soft is None or soft.written == "_softmax":
        return "its softmax is not over the last axis, or in a form that is not known"
    if soft.written == "bare":
        return "exp without the maximum subtracted first overflows where the operator does not"
    down, up = _down(node), _up(soft.source)
    if down is None or up is None:
        return "its spelling is not known, or its inside is used elsewhere"
    product, before = up
    after, last, mixes_turned = down
    told = _seen(before, product)
    if told is None or ("view" in after and ("view" in told or last.op == _EINSUM)):
        return "the program views its scores in sizes that the pattern does not know"
    before = told
    first = _operands(product)
    equation = str(product.args[0]) if product.op == _EINSUM else ""
    mix = str(last.args[0]) if last.op == _EINSUM else ""
    v = _operands(last)[0 if mixes_turned else 1]
    is_turned = False
    if equation or mix:
        if any(token.startswith("split") for token in before):
            return "the program views its scores in sizes that the pattern does not know"
        ranks = [rank_of(value) for value in (*first, v)]
        if None in ranks:
            return "sizes are not known without example inputs"
        a, b, c = (rank or 0 for rank in ranks)
        if layout_of(equation, _in_order(mix, mixes_turned), (a, b, c)) is None:
            is_turned = bool(equation)
            turned = layout_of(_in_order(equation, True), _in_order(mix, mixes_turned), (b, a, c))
            if not equation or turned is None:
                return f"{equation or mix} is no product of attention"
    dtype = "" if soft.dtype is None else f", {soft.dtype}"
    transposed = product.op != _EINSUM and _is_transpose(first[1])
    return Spelling(
        product.op, equation, is_turned, transposed, before, soft.written, dtype, after, last.op, mix, mixes_turned
    )  # fmt: skip


def is_attention(softmax: Node) -> bool:
    """Whether something like attention is around a softmax: its result, perhaps cast or dropped out, is multiplied."""
    if softmax_of(softmax) is None and not softmax.op.startswith(("aten.softmax.", "aten._softmax.")):
        return False
    waiting, seen = [softmax], set[Node]()
    while waiting:
        node = waiting.pop()
        for user in node.results[0].users:
            if not isinstance(user, Node) or user in seen:
                continue
            seen.add(user)
            if user.op in (*PRODUCTS, _EINSUM):
                return True
            if name_of(user) in (*CASTS, "dropout", "view", "reshape", "expand"):
                waiting.append(user)
    return False


def why_not(match: Match) -> str:
    """Why one operator does not compute the same, or nothing."""
    q, k, v = (match.captures.get(name) for name in "qkv")
    types = [value.type for value in (q, k, v) if isinstance(value, Value)]
    tensors = [type_ for type_ in types if isinstance(type_, TensorType) and type_.shape is not None]
    if len(tensors) != 3:
        return "sizes are not known without example inputs"
    if len({type_.dtype for type_ in tensors}) != 1:
        return "q, k and v are of several dtypes"
    if any(name.startswith("s") and name[1:].isdigit() and type(size) is not int for name, size in match.bound.items()):
        return "the sizes of its scores are not known"
    told = (_why_not_fill(match, tensors[0]), _why_not_factor(match, tensors[0]), _why_not_masks(match))
    return next(filter(None, told), "")


def _why_not_fill(match: Match, q: TensorType) -> str:
    """A finite fill takes the place of the scores; as a mask it is added to them, and must swallow them whole."""
    fill = match.bound.get("fill")
    filler = match.bound.get("filler")
    if isinstance(filler, Value):
        fill = _number_of(filler, match.target.graph)
        if fill is None:
            return "the value of masked elements is not known"
    if isinstance(fill, int | float) and not fill <= least_fill(dtype_to_torch(q.dtype)):
        return f"its masked elements become {fill}, so that masked elements still count"
    return ""


def least_fill(dtype: torch.dtype) -> float:
    """A number to which scores may be added without a change, as far as they are such as a softmax tells apart.

    A mask that fills in this or less gives a probability of zero, and rows of equal ones where all is masked.
    """
    return -1e9 if torch.finfo(dtype).bits <= 32 else -1e18


def _number_of(value: Value, graph: Graph) -> float | None:
    node = value.node
    if node is None or not isinstance(value.type, TensorType) or value.type.shape is None:
        return None
    if math.prod(size if isinstance(size, int) else 2 for size in value.type.shape) != 1:
        return None
    if node.op == "aten.full.default":
        return float(node.args[1]) if isinstance(node.args[1], int | float) else None
    if node.op == "aten.scalar_tensor.default":
        return float(node.args[0]) if isinstance(node.args[0], int | float) else None
    if node.op == "const":
        return float(constant(graph, node))
    if name_of(node) in CASTS and isinstance(node.args[0], Value):
        return _number_of(node.args[0], graph)
    return None


def _why_not_factor(match: Match, q: TensorType) -> str:
    factor = match.bound.get("factor")
    if not isinstance(factor, Value):
        return ""
    type_ = factor.type
    if not isinstance(type_, TensorType) or not type_.is_static or not type_.dtype.is_floating:
        return "what its scores are scaled by is not known"
    is_one = type_.numel == 1
    by_head = type_.sizes[-2:] == (1, 1) and not any(n.op in (*_VIEWS, _EINSUM) for n in match.nodes)
    if not (is_one or by_head) or (type_.sizes and type_.dtype != q.dtype):
        return "its scores are scaled by a tensor of more than one number for a head"
    return ""


def _why_not_masks(match: Match) -> str:
    """Whether a mask, or a factor, makes the scores larger."""
    given = [match.bound.get(name) for name in (*MASKS, "factor")]
    beside = [value for value in (*given, match.bound.get("filler")) if isinstance(value, Value)]
    for node in match.nodes:
        operands = [value for value in node.operands() if value not in beside]
        if len(operands) == len(list(node.operands())) or node.op in PRODUCTS or len(operands) != 1:
            continue
        x, y = operands[0].type, node.results[0].type
        if not isinstance(x, TensorType) or not isinstance(y, TensorType) or None in (x.shape, y.shape):
            return "the sizes of its mask are not known"
        if x.shape != y.shape:
            return "its mask makes the scores larger"
    return ""


def _down(softmax: Node) -> tuple[tuple[str, ...], Node, bool] | None:
    """From a softmax to the product with v: what lies between, the product, and whether v stands first."""
    value, tokens = softmax.results[0], list[str]()
    while True:
        users = [user for user in value.users if isinstance(user, Node) and not is_idle(user)]
        if len(users) != 1 or not users[0].args:
            return None
        user = users[0]
        if user.op == _EINSUM:
            pair = _operands(user)
            return None if len(pair) != 2 or pair[0] is pair[1] else (tuple(tokens), user, pair[1] is value)
        if user.args[0] is not value:
            return None
        if user.op in PRODUCTS:
            return tuple(tokens), user, False
        step = next((step for step in steps_of(user) if step.source is value), None)
        token = None if step is None or step.kind not in ("same", "view", "dropout") else _token(step)
        if token is None or token in tokens:
            return None
        tokens.append(token)
        value = user.results[0]


def _up(value: Value) -> tuple[Node, tuple[str, ...]] | None:
    """From what a softmax is of to the product of q and k: the product, and what lies between, in program order. A view
    is told with how many axes it has.
    """
    found = climb(value, _fits, _is_first_product)
    if found is None:
        return None
    product, steps = found
    tokens = []
    for step in reversed(steps):
        rank = rank_of(step.node.results[0]) if step.kind == "view" else None
        tokens.append(f"{_token(step)}{'' if rank is None else rank}")
    return product, tuple(tokens)


def _is_first_product(node: Node, below: Steps) -> bool:
    if node.op == BADDBMM:
        return not any(step.kind in SCALING for step in below)
    return node.op in PRODUCTS or (node.op == _EINSUM and len(_operands(node)) == 2)


def _fits(step: Step, below: Steps) -> bool:
    """Whether the pattern can have a step, beside those behind it."""
    token = _token(step)
    if token is None or step.kind == "dropout":
        return False
    if step.kind == "view":
        return rank_of(step.node.results[0]) is not None and sum(other.kind == "view" for other in below) < 2
    scaled = any(other.kind in SCALING for other in below)
    if step.kind in SCALING:
        return not scaled
    if step.kind in MASKING:
        # A mask scaled afterwards is another mask.
        masks = [other for other in below if other.kind in MASKING]
        return (
            not scaled and len(masks) < len(MASKS) and not (token in FILLS and any(_token(m) in FILLS for m in masks))
        )
    return all(other.kind != step.kind for other in below)


def _token(step: Step) -> str | None:
    """A step's name in the pattern; None for one that it cannot have."""
    node, kind = step.node, step.kind
    match kind:
        case "same":
            return "cast" if name_of(node) in CASTS else None
        case "view":
            return "view" if node.op in _VIEWS and _keeps_rows(node) else None
        case "dropout":
            return kind
        case "mul" | "div":
            if not node.op.endswith(".Tensor"):
                return None
            return kind if isinstance(step.by, int | float) else f"{kind}_by"
        case "add" | "sub":
            return kind if len(node.args) == 2 and isinstance(step.by, Value) else None
    return f"{kind}_by" if node.op.endswith((".Tensor", ".self")) else kind


def _seen(tokens: tuple[str, ...], product: Node) -> tuple[str, ...] | None:
    """The tokens with the first view as what splits the scores' batch, and the second as its reverse.

    None where a mask lies outside of the two, or the second leads elsewhere.
    """
    places = [i for i, token in enumerate(tokens) if token.startswith("view")]
    if not places:
        return tokens
    first, last = places[0], places[-1] if len(places) == 2 else len(tokens)
    rank = int(tokens[first][4:])
    inside = all(first < i < last for i, token in enumerate(tokens) if token in _MASKING)
    back = len(places) == 1 or int(tokens[last][4:]) == rank_of(product.results[0])
    if not inside or not back or rank > _MOST_SIZES:
        return None
    return tuple(f"split{rank}" if i == first else "view" if i == last else t for i, t in enumerate(tokens))


def _product(op: str, equation: str, x: str, y: str, is_turned: bool) -> str:
    first, second = (y, x) if is_turned else (x, y)
    return f'{op}("{equation}", [{first}, {second}])' if op == _EINSUM else f"{op}({first}, {second})"


def _in_order(equation: str, is_turned: bool) -> str:
    """The equation with q, or the scores, as the first operand."""
    if not equation or not is_turned:
        return equation
    left, _, out = equation.partition("->")
    first, _, second = left.partition(",")
    return f"{second},{first}->{out}"


def _operands(product: Node) -> tuple[Value, ...]:
    """The two factors of a product."""
    if product.op == _EINSUM:
        given = product.args[1]
        return tuple(v for v in given if isinstance(v, Value)) if isinstance(given, tuple) else ()
    args = product.args[1:3] if product.op == BADDBMM else product.args[:2]
    return tuple(arg for arg in args if isinstance(arg, Value))


def _keeps_rows(view: Node) -> bool:
    """Whether a view leaves the last two axes as they are."""
    source = view.args[0]
    before, after = (source.type if isinstance(source, Value) else None), view.results[0].type
    if not isinstance(before, TensorType) or not isinstance(after, TensorType):
        return False
    if not before.is_static or not after.is_static:
        return False
    return len(before.sizes) > 2 and len(after.sizes) > 2 and before.sizes[-2:] == after.sizes[-2:]


def _is_transpose(arg: object) -> bool:
    node = arg.node if isinstance(arg, Value) else None
    if node is None or node.op != "aten.transpose.int" or sum(node.result.users.values()) != 1:
        return False
    type_ = node.result.type
    rank = len(type_.shape) if isinstance(type_, TensorType) and type_.shape is not None else 0
    axes = {axis + rank if isinstance(axis, int) and axis < 0 else axis for axis in node.args[1:3]}
    return rank >= 2 and axes == {rank - 1, rank - 2}
