"""Views as index maps: the element of a view is an element of its operand at another index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from smelt.codegen.fusion.index import ZERO, Idx, Unfusible, broadcast, reshaped
from smelt.codegen.fusion.pull import Pull, Rule
from smelt.codegen.kernels.nest import Expr
from smelt.ir import INT, DType, Node, TensorType, Value
from smelt.ir.sizes import ceil_div, is_one, size_max, size_min
from smelt.ops.record import Trait
from smelt.ops.sets import where

View = Callable[[Pull, dict[str, Any], tuple[int, ...], Idx], Idx]
"""The operand's index for the result's: (pull, arguments, operand's sizes, index)."""


def sizes_of(value: Any) -> tuple[int, ...]:
    """The sizes of a tensor argument."""
    assert isinstance(value, Value) and isinstance(value.type, TensorType)
    return value.type.sizes


def view_at(at: View) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        call = p.call(node)
        return p.element(call["self"], at(p, call, sizes_of(call["self"]), idx))

    return rule


def regrouped(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    source = p.call(node)["self"]
    return p.element(source, reshaped(idx, sizes_of(node.result), sizes_of(source), p.sizes))


def permuted(p: Pull, call: dict[str, Any], sizes: tuple[int, ...], idx: Idx) -> Idx:
    rank = len(sizes)
    found = [ZERO] * rank
    for at, dim in enumerate(call["dims"]):
        found[dim % rank] = idx[at]
    return tuple(found)


def transposed(p: Pull, call: dict[str, Any], sizes: tuple[int, ...], idx: Idx) -> Idx:
    if not sizes:
        return idx
    a, b = call["dim0"] % len(sizes), call["dim1"] % len(sizes)
    found = list(idx)
    found[a], found[b] = found[b], found[a]
    return tuple(found)


def turned(p: Pull, call: dict[str, Any], sizes: tuple[int, ...], idx: Idx) -> Idx:
    return idx[::-1]


def matrix_turned(p: Pull, call: dict[str, Any], sizes: tuple[int, ...], idx: Idx) -> Idx:
    return (*idx[:-2], *idx[:-3:-1])


def expanded(p: Pull, call: dict[str, Any], sizes: tuple[int, ...], idx: Idx) -> Idx:
    return broadcast(idx, sizes)


def _without(idx: Idx, dim: int) -> Idx:
    return (*idx[:dim], *idx[dim + 1 :])


def unsqueezed(p: Pull, call: dict[str, Any], sizes: tuple[int, ...], idx: Idx) -> Idx:
    return _without(idx, call["dim"] % (len(sizes) + 1))


def squeezed(p: Pull, call: dict[str, Any], sizes: tuple[int, ...], idx: Idx) -> Idx:
    rank = len(sizes)
    given = call.get("dim")
    dims = range(rank) if given is None else [given] if isinstance(given, int) else given
    gone = {d % rank for d in dims if rank and is_one(sizes[d % rank])}
    parts = iter(idx)
    return tuple(ZERO if d in gone else next(parts) for d in range(rank))


def slice_range(call: Mapping[str, Any], size: int) -> tuple[int, int, int]:
    """(start, end, step) of a slice as torch clips them."""
    start, end = (call["start"] or 0), call["end"]
    end = size if end is None else end
    start, end = (v + size if v < 0 else v for v in (start, end))
    start = size_min(size_max(start, 0), size)
    return start, size_min(size_max(end, start), size), call["step"]


def slice_of(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call = p.call(node)
    return p.element(call["self"], _sliced(p, call, sizes_of(call["self"]), sizes_of(node.result), idx))


def _sliced(p: Pull, call: dict[str, Any], sizes: tuple[int, ...], left: tuple[int, ...], idx: Idx) -> Idx:
    dim, start = call["dim"] % len(sizes), call["start"]
    if isinstance(start, Value) and isinstance(call["end"], Value) and call["step"] == 1:
        first = p.place(_start(p, start, call["end"], left[dim]), sizes[dim] - left[dim] + 1)
        return tuple(ix.plus(first) if d == dim else ix for d, ix in enumerate(idx))
    if isinstance(start, Value) or isinstance(call["end"], Value):
        raise Unfusible("it begins or ends at a number of the run, and is of a known size")
    start, _, step = slice_range(call, sizes[dim])
    return tuple(ix.scaled(step, start) if d == dim else ix for d, ix in enumerate(idx))


def _start(p: Pull, start: Value, end: Value, length: int) -> Expr:
    """Where a cut of this length begins; nowhere if it has another one, which the kernel refuses."""
    if start.type != INT or end.type != INT:
        raise Unfusible("its ends are no integers")
    first, last = p.number(start), p.number(end)
    found = p.op("sub", DType.I64, last, first)
    fits = p.op("eq", DType.BOOL, found, p.const(length, DType.I64))
    return p.op("select", DType.I64, fits, first, p.const(-1, DType.I64))


def narrowed(p: Pull, call: dict[str, Any], sizes: tuple[int, ...], idx: Idx) -> Idx:
    dim, start = call["dim"] % len(sizes), call["start"]
    if not isinstance(start, int):
        raise Unfusible("its start is a tensor")
    start = start + sizes[dim] if start < 0 else start
    return tuple(ix.scaled(1, start) if d == dim else ix for d, ix in enumerate(idx))


def selected(p: Pull, call: dict[str, Any], sizes: tuple[int, ...], idx: Idx) -> Idx:
    dim = call["dim"] % len(sizes)
    at = call["index"]
    if isinstance(at, Value) and at.type == INT:
        return (*idx[:dim], p.place(p.number(at), sizes[dim], True), *idx[dim:])
    if not isinstance(at, int):
        raise Unfusible("its index is a tensor")
    return (*idx[:dim], ZERO.scaled(1, at + sizes[dim] if at < 0 else at), *idx[dim:])


def diagonal(p: Pull, call: dict[str, Any], sizes: tuple[int, ...], idx: Idx) -> Idx:
    rank, offset = len(sizes), call["offset"]
    a, b = call["dim1"] % rank, call["dim2"] % rank
    along = idx[-1]
    parts = iter(idx[:-1])
    at = {a: along.scaled(1, max(-offset, 0)), b: along.scaled(1, max(offset, 0))}
    return tuple(at[d] if d in at else next(parts) for d in range(rank))


def unfolded(p: Pull, call: dict[str, Any], sizes: tuple[int, ...], idx: Idx) -> Idx:
    if not sizes:
        raise Unfusible("it unfolds a 0-d tensor")
    dim = call["dimension"] % len(sizes)
    window = idx[-1]
    return tuple(ix.scaled(call["step"]).plus(window) if d == dim else ix for d, ix in enumerate(idx[:-1]))


def idle(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    """Dropout outside training."""
    call = p.call(node)
    if call["train"] is not False:
        raise Unfusible("it draws random numbers")
    return p.element(call["input"], idx)


def unpacked(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    """An element of a list of views: split, chunk, unbind."""
    (packed,) = node.operands()
    maker = packed.node
    if maker is None or maker.op not in VIEW_LISTS:
        raise Unfusible("its list is made elsewhere")
    call = p.call(maker)
    source = call["self"]
    return p.element(source, _in_part(call, sizes_of(source), idx, k))


def _in_part(call: Mapping[str, Any], sizes: tuple[int, ...], idx: Idx, k: int) -> Idx:
    """Where an element of part `k` stands in what is split."""
    dim = call["dim"] % len(sizes)
    if "chunks" in call:
        start = k * ceil_div(sizes[dim], call["chunks"])
    elif (lengths := call.get("split_sizes", call.get("split_size"))) is not None:
        start = sum(lengths[:k]) if isinstance(lengths, tuple) else k * lengths
    else:  # unbind
        return (*idx[:dim], ZERO.scaled(1, k), *idx[dim:])
    return tuple(ix.scaled(1, start) if d == dim else ix for d, ix in enumerate(idx))


VIEW_LISTS = where(Trait.LIST_OF_VIEWS)
"""Operators that give a list of views of their operand, of which a nest takes one apart."""
