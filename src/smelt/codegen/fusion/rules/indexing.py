"""Gathering, joining, padding, turning: elements of the result are elements of operands elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smelt.codegen.fusion.index import ZERO, Idx, Ix, Unfusible, bounds, broadcast, divided
from smelt.codegen.fusion.pull import Pull, at_run_time
from smelt.codegen.fusion.rules.pointwise import result_dtype
from smelt.codegen.fusion.rules.views import sizes_of, slice_range
from smelt.codegen.kernels.nest import Const, Expr
from smelt.codegen.kernels.sizes import at_most
from smelt.ir import DType, Node, TensorType, Value
from smelt.ir.sizes import equals, is_one


def _position(p: Pull, index: Any, idx: Idx, size: int, *, wraps: bool) -> Ix:
    """The position that an index tensor holds at a place."""
    assert isinstance(index, Value) and isinstance(index.type, TensorType)
    if index.type.dtype not in (DType.I64, DType.I32):
        raise Unfusible(f"its index is {index.type.dtype}")
    return p.place(p.operand(index, idx, DType.I64), size, wraps)


def _replaced(idx: Idx, dim: int, ix: Ix) -> Idx:
    return (*idx[:dim], ix, *idx[dim + 1 :])


def gather(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call = p.call(node)
    sizes = sizes_of(call["self"])
    if not sizes:
        return p.element(call["self"], ())
    dim = call["dim"] % len(sizes)
    return p.element(call["self"], _replaced(idx, dim, _position(p, call["index"], idx, sizes[dim], wraps=False)))


def select_by_index(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call = p.call(node)
    sizes = sizes_of(call["self"])
    if not sizes or len(sizes_of(call["index"])) != 1:
        raise Unfusible("an index into a 0-d tensor")
    dim = call["dim"] % len(sizes)
    at = _position(p, call["index"], (idx[dim],), sizes[dim], wraps=False)
    return p.element(call["self"], _replaced(idx, dim, at))


def rows_of_table(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call = p.call(node)
    rows, _ = sizes_of(call["weight"])
    at = _position(p, call["indices"], idx[:-1], rows, wraps=False)
    return p.element(call["weight"], (at, idx[-1]))


def index_by_tensors(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    """x[i, :, j]: index tensors broadcast together, in the place of the first, or in front where a gap parts them."""
    call = p.call(node)
    x, indices = call["self"], call["indices"]
    sizes = sizes_of(x)
    given = [d for d, index in enumerate(indices) if index is not None]
    if not given or any(isinstance(indices[d], Value) and _is_mask(indices[d]) for d in given):
        raise Unfusible("it is indexed by a mask")
    rank = max(len(sizes_of(indices[d])) for d in given)
    together = given == list(range(given[0], given[-1] + 1))
    front = given[0] if together else 0
    over, rest = idx[front : front + rank], iter((*idx[:front], *idx[front + rank :]))
    at: list[Ix] = []
    for d in range(len(sizes)):
        if d in given:
            index = indices[d]
            at.append(_position(p, index, broadcast(over, sizes_of(index)), sizes[d], wraps=True))
        else:
            at.append(next(rest))
    return p.element(x, tuple(at))


def _is_mask(index: Value) -> bool:
    return isinstance(index.type, TensorType) and index.type.dtype in (DType.BOOL, DType.U8)


def _tensors(call: Mapping[str, Any]) -> Sequence[Value]:
    tensors = call["tensors"]
    if not isinstance(tensors, tuple):
        raise Unfusible("its operands are a list made elsewhere")
    return tensors


def concatenate(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    parts = [t for t in _tensors(call) if sizes_of(t) != (0,) or len(idx) == 1]
    dim = call["dim"] % max(len(idx), 1)
    starts: list[tuple[Value, int, int]] = []
    at = 0
    for part in parts:
        size = sizes_of(part)[dim]
        if not equals(size, 0):
            starts.append((part, at, size))
        at += size
    return _one_of(p, starts, idx, dim, out)


def _one_of(p: Pull, parts: Sequence[tuple[Value, int, int]], idx: Idx, dim: int, out: DType) -> Expr:
    """The element of the part that the index falls into; halves of the parts are told apart first."""
    if len(parts) == 1:
        part, start, _ = parts[0]
        return p.operand(part, _replaced(idx, dim, idx[dim].scaled(1, -start)), out)
    half = len(parts) // 2
    before = p.between(idx[dim], parts[0][1], parts[half][1])
    return p.choose(
        before,
        lambda: _one_of(p, parts[:half], idx, dim, out),
        lambda: _one_of(p, parts[half:], idx, dim, out),
    )


def stacked(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    tensors = _tensors(call)
    dim = call["dim"] % len(idx)
    rest = (*idx[:dim], *idx[dim + 1 :])

    def one_of(first: int, last: int) -> Expr:
        if last - first == 1:
            return p.operand(tensors[first], rest, out)
        half = (first + last) // 2
        return p.choose(p.between(idx[dim], first, half), lambda: one_of(first, half), lambda: one_of(half, last))

    return one_of(0, len(tensors))


def padded(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    mode = call.get("mode", "constant")
    x, pad = call["self"], call["pad"]
    sizes = sizes_of(x)
    if mode == "circular" and not all(at_most(0, n) for n in pad):
        raise Unfusible("what it wraps round is less than the tensor")
    before = [0] * len(sizes)
    for i in range(len(pad) // 2):
        before[len(sizes) - 1 - i] = pad[2 * i]
    at = tuple(ix.scaled(1, -b) for ix, b in zip(idx, before, strict=True))
    if mode == "constant":
        value = call.get("value")
        inside: Expr | bool = True
        for ix, size in zip(at, sizes, strict=True):
            inside = p.both(inside, p.between(ix, 0, size))
        return p.choose(inside, lambda: p.element(x, at), lambda: p.const(0 if value is None else value, out))
    return p.element(x, tuple(_edge(p, mode, ix, size) for ix, size in zip(at, sizes, strict=True)))


def _edge(p: Pull, mode: str, ix: Ix, size: int) -> Ix:
    """The index that a padded one stands for: mirrored, at the edge, or from the other side."""
    low, high = bounds(ix, p.sizes)
    if at_most(0, low) and at_most(high + 1, size):
        return ix
    t = DType.I64
    at = p.position(ix)
    last = Const(size - 1, t)
    match mode:
        case "reflect":
            at = p.op("abs", t, at)
            at = p.op("sub", t, last, p.op("abs", t, p.op("sub", t, last, at)))
        case "replicate":
            at = p.op("min", t, p.op("max", t, at, Const(0, t)), last)
        case "circular":
            up, down = p.op("add", t, at, Const(size, t)), p.op("sub", t, at, Const(size, t))
            at = p.op("select", t, p.op("lt", DType.BOOL, at, Const(0, t)), up, at) if not at_most(0, low) else at
            at = p.op("select", t, p.op("gt", DType.BOOL, at, last), down, at) if not at_most(high + 1, size) else at
        case _:
            raise Unfusible(f"it pads by {mode}")
    return at_run_time(at, size)


def flipped(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call = p.call(node)
    sizes = sizes_of(call["self"])
    dims = {d % len(sizes) for d in call["dims"]} if sizes else set()
    at = tuple(ix.scaled(-1, sizes[d] - 1) if d in dims else ix for d, ix in enumerate(idx))
    return p.element(call["self"], at)


def rolled(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call = p.call(node)
    sizes = sizes_of(call["self"])
    if not call["dims"] or not sizes:
        raise Unfusible("it rolls the flat tensor")
    steps = [(d % len(sizes), shift % sizes[d]) for d, shift in zip(call["dims"], call["shifts"], strict=True)]
    return _steps_rolled(p, call["self"], sizes, idx, steps)


def _steps_rolled(p: Pull, x: Value, sizes: Sequence[int], idx: Idx, steps: Sequence[tuple[int, int]]) -> Expr:
    if not steps:
        return p.element(x, idx)
    (dim, shift), rest = steps[0], steps[1:]
    ix = idx[dim]
    return p.choose(
        p.between(ix, 0, shift),
        lambda: _steps_rolled(p, x, sizes, _replaced(idx, dim, ix.scaled(1, sizes[dim] - shift)), rest),
        lambda: _steps_rolled(p, x, sizes, _replaced(idx, dim, ix.scaled(1, -shift)), rest),
    )


def repeated(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call = p.call(node)
    sizes = sizes_of(call["self"])
    tail = idx[len(idx) - len(sizes) :] if sizes else ()
    at = tuple(divided(ix, size, p.sizes)[1] for ix, size in zip(tail, sizes, strict=True))
    return p.element(call["self"], tuple(ZERO if is_one(s) else ix for ix, s in zip(at, sizes, strict=True)))


def interleaved(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call = p.call(node)
    sizes, dim = sizes_of(call["self"]), call["dim"]
    if dim is None or not sizes or not isinstance(call["repeats"], int):
        raise Unfusible("it repeats the flat tensor")
    dim %= len(sizes)
    return p.element(call["self"], _replaced(idx, dim, divided(idx[dim], call["repeats"], p.sizes)[0]))


def slice_scattered(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    sizes = sizes_of(call["self"])
    dim = call["dim"] % len(sizes)
    start, end, step = slice_range(call, sizes[dim])
    if step != 1:
        raise Unfusible("its slice has gaps")
    at = _replaced(idx, dim, idx[dim].scaled(1, -start))
    return p.written(
        p.between(idx[dim], start, end),
        lambda: p.operand(call["src"], at, out),
        lambda: p.operand(call["self"], idx, out),
    )


def select_scattered(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    sizes = sizes_of(call["self"])
    dim = call["dim"] % len(sizes)
    at = call["index"] % sizes[dim]
    return p.written(
        p.between(idx[dim], at, at + 1),
        lambda: p.operand(call["src"], (*idx[:dim], *idx[dim + 1 :]), out),
        lambda: p.operand(call["self"], idx, out),
    )


def diagonal_scattered(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    rank, offset = len(idx), call["offset"]
    a, b = call["dim1"] % rank, call["dim2"] % rank
    way = idx[b].plus(idx[a].scaled(-1))
    rest = tuple(ix for d, ix in enumerate(idx) if d not in (a, b))
    along = idx[a].scaled(1, min(offset, 0)) if offset <= 0 else idx[a]
    return p.written(
        p.between(way, offset, offset + 1),
        lambda: p.operand(call["src"], (*rest, along), out),
        lambda: p.operand(call["self"], idx, out),
    )


def pixel_shuffled(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call = p.call(node)
    factor = call["upscale_factor"]
    *batch, c, h, w = idx
    row, i = divided(h, factor, p.sizes)
    column, j = divided(w, factor, p.sizes)
    channel = c.scaled(factor * factor).plus(i.scaled(factor)).plus(j)
    return p.element(call["self"], (*batch, channel, row, column))


def gated(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    sizes = sizes_of(call["self"])
    dim = call["dim"] % len(sizes)
    m = DType.F32 if out.is_half else out
    a = p.cast(p.element(call["self"], idx), m)
    b = p.cast(p.element(call["self"], _replaced(idx, dim, idx[dim].scaled(1, sizes[dim] // 2))), m)
    return p.cast(p.op("mul", m, a, p.op("sigmoid", m, b)), out)
