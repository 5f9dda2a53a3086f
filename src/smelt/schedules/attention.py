"""Attention in any spelling, as a pattern: `softmax(q @ k^T * scale + mask) @ v`.

A walk from each softmax (or what stands for one: `e / e.sum()`) to the products on both sides tells how it is spelled
(scaled by a product or a quotient, a mask added, taken away or filled in, cast, seen in other sizes, dropout); the
pattern is then written down as a graph and searched like any other. Invariant: the walk only suggests; what takes a
step is what the search finds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from smelt.ir import Arg, Graph, Node, TensorType, Value, parse
from smelt.ops.convert import dtype_to_torch
from smelt.ops.evaluate import constant
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.schedules.attend import FILLS, layout_of
from smelt.scheduling import Match
from smelt.scheduling.finding.forms import is_idle

_MATMUL = ("aten.matmul.default", "aten.bmm.default")
_EINSUM, _BADDBMM = "aten.einsum.default", "aten.baddbmm.default"
_SOFTMAX = "aten.softmax.int"
_CASTS = ("to", "_to_copy", "type_as", "float")
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


@dataclass(frozen=True, slots=True)
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
        if self.product == _BADDBMM:
            free += ["%start: tensor[?]", "%beta: float", "%alpha: float"]
            rows.append(f"%x0: tensor[?] = {_BADDBMM}(%start, %q, {key}, beta=%beta, alpha=%alpha)")
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
    found = _soft_of(node)
    if not is_attention(node):
        return None
    if found is None:
        return "its softmax is not over the last axis, or in a form that is not known"
    soft, source, dtype = found
    if soft == "bare":
        return "exp without the maximum subtracted first overflows where the operator does not"
    down, up = _down(node), _up(source)
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
        ranks = [_rank(value) for value in (*first, v)]
        if None in ranks:
            return "sizes are not known without example inputs"
        a, b, c = (rank or 0 for rank in ranks)
        if layout_of(equation, _in_order(mix, mixes_turned), (a, b, c)) is None:
            is_turned = bool(equation)
            turned = layout_of(_in_order(equation, True), _in_order(mix, mixes_turned), (b, a, c))
            if not equation or turned is None:
                return f"{equation or mix} is no product of attention"
    transposed = product.op != _EINSUM and _is_transpose(first[1])
    return Spelling(
        product.op, equation, is_turned, transposed, before, soft, dtype, after, last.op, mix, mixes_turned
    )  # fmt: skip


def is_attention(softmax: Node) -> bool:
    """Whether something like attention is around a softmax: its result, perhaps cast or dropped out, is multiplied."""
    if _soft_of(softmax) is None and not softmax.op.startswith(("aten.softmax.", "aten._softmax.")):
        return False
    waiting, seen = [softmax], set[Node]()
    while waiting:
        node = waiting.pop()
        for user in node.results[0].users:
            if not isinstance(user, Node) or user in seen:
                continue
            seen.add(user)
            if user.op in (*_MATMUL, _EINSUM):
                return True
            if _name(user) in (*_CASTS, "dropout", "view", "reshape", "expand"):
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
    if _name(node) in _CASTS and isinstance(node.args[0], Value):
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
        if len(operands) == len(list(node.operands())) or node.op in _MATMUL or len(operands) != 1:
            continue
        x, y = operands[0].type, node.results[0].type
        if not isinstance(x, TensorType) or not isinstance(y, TensorType) or None in (x.shape, y.shape):
            return "the sizes of its mask are not known"
        if x.shape != y.shape:
            return "its mask makes the scores larger"
    return ""


def _soft_of(node: Node) -> tuple[str, Value, str] | None:
    """Of what stands for a softmax over the last axis: how it is written, what it is of, and the dtype it is in."""
    if node.op == _SOFTMAX or (node.op == "aten.exp.default" and _maker(node.args[0], "aten.log_softmax.int")):
        inner = node if node.op == _SOFTMAX else _maker(node.args[0], "aten.log_softmax.int")
        assert inner is not None
        source = inner.args[0]
        if not isinstance(source, Value) or not _is_last(inner.args[1], source):
            return None
        given = inner.args[2] if len(inner.args) > 2 else inner.kwargs.get("dtype")
        return "softmax" if inner is node else "log", source, "" if given is None else f", {given}"
    e = _maker(node.args[0], "aten.exp.default") if node.op == "aten.div.Tensor" else None
    total = _maker(node.args[1], "aten.sum.dim_IntList") if e is not None and len(node.args) == 2 else None
    if e is None or total is None or total.args[0] is not e.result or not _sums_last(total):
        return None
    less = _maker(e.args[0], "aten.sub.Tensor")
    if less is None or len(less.args) != 2:
        return ("bare", e.args[0], "") if isinstance(e.args[0], Value) else None
    source, most = less.args[0], _undetached(less.args[1])
    if not isinstance(source, Value) or most is None or most.args[0] is not source:
        return ("bare", source, "") if isinstance(source, Value) else None
    if most.op == "aten.amax.default" and _sums_last(most):
        return "amax", source, ""
    if most.op == "aten.max.dim" and _is_last(most.args[1], source) and most.args[2:] == (True,):
        return "max", source, ""
    return None


def _undetached(arg: object) -> Node | None:
    node = arg.node if isinstance(arg, Value) else None
    if node is not None and node.op == "aten.detach.default" and isinstance(node.args[0], Value):
        return node.args[0].node
    return node


def _maker(arg: object, op: str) -> Node | None:
    node = arg.node if isinstance(arg, Value) else None
    return node if node is not None and node.op == op else None


def _sums_last(node: Node) -> bool:
    """Whether a reduction is over the last axis, which it keeps."""
    axes, source = node.args[1], node.args[0]
    axis = axes[0] if isinstance(axes, tuple) and len(axes) == 1 else None
    keeps = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    return isinstance(source, Value) and _is_last(axis, source) and keeps is True and "dtype" not in node.kwargs


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
        if user.op in _MATMUL:
            return tuple(tokens), user, False
        if user.op == "aten.dropout.default" and "dropout" not in tokens:
            tokens.append("dropout")
        elif _name(user) in _CASTS and "cast" not in tokens:
            tokens.append("cast")
        elif user.op in _VIEWS and "view" not in tokens and _keeps_rows(user):
            tokens.append("view")
        else:
            return None
        value = user.results[0]


def _up(value: Value) -> tuple[Node, tuple[str, ...]] | None:
    """From what a softmax is of to the product of q and k: the product, and what lies between, in program order."""
    node = value.node
    if node is None:
        return None
    if node.op in (*_MATMUL, _BADDBMM) or (node.op == _EINSUM and len(_operands(node)) == 2):
        return node, ()
    name, args = _name(node), node.args
    if name in _CASTS and isinstance(args[0], Value):
        return _extended(args[0], "cast")
    if node.op in _VIEWS and isinstance(args[0], Value):
        rank = _rank(value)
        return _extended(args[0], f"view{rank}") if rank is not None and _keeps_rows(node) else None
    if node.op in ("aten.mul.Tensor", "aten.div.Tensor") and len(args) == 2 and isinstance(args[0], Value):
        if isinstance(args[1], int | float):
            return _extended(args[0], name)
        sides = args if name == "mul" else args[:1]
        return _first(sides, name + "_by")
    if node.op in ("aten.add.Tensor", "aten.sub.Tensor") and len(args) == 2 and isinstance(args[1], Value):
        sides = args if name == "add" else args[:1]
        return _first(sides, name)
    ways = (_first((args[place],), token) for op, token, place in _FILLED if op == node.op)
    return next(filter(None, ways), None)


def _first(sides: Sequence[Arg], token: str) -> tuple[Node, tuple[str, ...]] | None:
    """The way up from the first of these that leads to a product."""
    return next((found for side in sides if isinstance(side, Value) and (found := _extended(side, token))), None)


def _filled() -> Iterator[tuple[str, str, int]]:
    """Each operator that fills, with its token and the position of what it fills."""
    for token in FILLS:
        op, _, arguments = _ROWS[token][0].partition("(")
        yield op, token, arguments.removesuffix(")").split(", ").index("{x}")


_FILLED = tuple(_filled())


def _extended(value: Value, token: str) -> tuple[Node, tuple[str, ...]] | None:
    found = _up(value)
    if found is None:
        return None
    product, tokens = found
    masks = sum(other in _MASKING for other in tokens)
    fills = sum(other in FILLS for other in tokens)
    if token in _MASKING:
        fits = masks < len(MASKS) and not (fills and token in FILLS)
    elif token in ("mul", "div", "mul_by", "div_by"):
        # A mask scaled afterwards is another mask.
        fits = not masks and product.op != _BADDBMM and not any(t.startswith(("mul", "div")) for t in tokens)
    elif token.startswith("view"):
        fits = sum(t.startswith("view") for t in tokens) < 2
    else:
        fits = token not in tokens
    return (product, (*tokens, token)) if fits else None


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
    back = len(places) == 1 or int(tokens[last][4:]) == _rank(product.results[0])
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
    args = product.args[1:3] if product.op == _BADDBMM else product.args[:2]
    return tuple(arg for arg in args if isinstance(arg, Value))


def _rank(value: Value) -> int | None:
    type_ = value.type
    return len(type_.shape) if isinstance(type_, TensorType) and type_.shape is not None else None


def _keeps_rows(view: Node) -> bool:
    """Whether a view leaves the last two axes as they are."""
    source = view.args[0]
    before, after = (source.type if isinstance(source, Value) else None), view.results[0].type
    if not isinstance(before, TensorType) or not isinstance(after, TensorType):
        return False
    if not before.is_static or not after.is_static:
        return False
    return len(before.sizes) > 2 and len(after.sizes) > 2 and before.sizes[-2:] == after.sizes[-2:]


def _is_last(axis: object, of: Value) -> bool:
    rank = _rank(of)
    return axis == -1 or (rank is not None and axis == rank - 1)


def _is_transpose(arg: object) -> bool:
    node = arg.node if isinstance(arg, Value) else None
    if node is None or node.op != "aten.transpose.int" or sum(node.result.users.values()) != 1:
        return False
    type_ = node.result.type
    rank = len(type_.shape) if isinstance(type_, TensorType) and type_.shape is not None else 0
    axes = {axis + rank if isinstance(axis, int) and axis < 0 else axis for axis in node.args[1:3]}
    return rank >= 2 and axes == {rank - 1, rank - 2}


def _name(node: Node) -> str:
    parts = node.op.split(".")
    return parts[1] if len(parts) > 1 else node.op
