"""From values to store to a nest: splits loops where needed, orders and merges them in the end.

What a nest costs, and whether there is one, is told by what was pulled (`pulled`); only what is emitted is made
canonical (`build`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType

from smelt.codegen.fusion.index import Idx, NeedSplit, Unfusible
from smelt.codegen.fusion.pull import Memory, Pull, Rule, Where
from smelt.codegen.fusion.rules.indexed_writes import Part, is_apart, part_of
from smelt.codegen.fusion.rules.promote import memory_type
from smelt.codegen.fusion.tidy import mapped_statement, tidy
from smelt.codegen.kernels.nest import Expr, Index, Nest, Position, Statement
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.diag.records import record
from smelt.ir import TensorType, Value
from smelt.ir.sizes import blind

_ATTEMPTS = 12


@record
class Built:
    """A nest, and the memory of each of its buffers by the key that `Where` gave it."""

    nest: Nest
    keys: tuple[Hashable, ...]


def build(
    roots: Sequence[Value],
    inside: frozenset[Value],
    rules: Mapping[str, Rule],
    where: Where,
    into: Where,
    sources: Mapping[Value, Value] = MappingProxyType({}),
) -> Built:
    """The nest that computes and stores `roots`, of the values `inside` them; all others are loaded.

    where, into: the memory of loaded, and of stored values. sources: what is stored for roots of which the rest is
    there already. Raises: Unfusible.
    """
    return tidied(pulled(roots, inside, rules, where, into, sources))


def tidied(built: Built) -> Built:
    """The same in canonical form."""
    return replace(built, nest=tidy(built.nest))


def pulled(
    roots: Sequence[Value],
    inside: frozenset[Value],
    rules: Mapping[str, Rule],
    where: Where,
    into: Where,
    sources: Mapping[Value, Value] = MappingProxyType({}),
) -> Built:
    """As `build`, but for the canonical form: statements as they were pulled, those that nobody needs among them."""
    for root in roots:
        if not isinstance(root.type, TensorType) or root.type.numel == 0:
            raise Unfusible("there are no elements")
    splits: dict[int, tuple[int, ...]] = {}
    for _ in range(_ATTEMPTS):
        pull = Pull(inside, rules, where, splits)
        try:
            return _attempt(pull, roots, into, sources)
        except NeedSplit as need:
            number, factors = pull.split(need)
            splits[number] = factors
    raise Unfusible("its loops would have to be split too often")


def _attempt(pull: Pull, roots: Sequence[Value], into: Where, sources: Mapping[Value, Value]) -> Built:
    stored = {root: sources.get(root, root) for root in roots}
    parts = {root: part for root, v in stored.items() if v in pull.inside and (part := _part(v)) is not None}
    sizes = {root: parts[root].sizes if root in parts else _type(stored[root]).sizes for root in roots}
    with blind():  # what cannot be told apart at all sizes has no common loops either
        ordered = sorted(roots, key=lambda r: -prod(sizes[r]))
    first = sizes[ordered[0]]
    idx: Idx = tuple(pull.dimension(size) for size in first)
    for root in ordered:
        at = idx if root is ordered[0] else pull.index_of_root(sizes[root], (first, idx))
        if root in parts:
            _store_part(pull, root, parts[root], at, into(root), alone=len(roots) == 1)
        else:
            pull.store(into(root), _type(root).dtype, at, pull.element(stored[root], at))
    return Built(_finished(pull), tuple(pull.buffers))


def _part(value: Value) -> Part | None:
    return None if value.node is None else part_of(value.node)


def _store_part(pull: Pull, root: Value, part: Part, idx: Idx, memory: Memory, *, alone: bool) -> None:
    """Write a part of a tensor where the whole of it lies. Raises: Unfusible where that may be read as written."""
    dtype = _type(root).dtype
    expr = pull.operand(part.source, idx, dtype)
    at = part.at(pull, idx)
    for value, read, key in pull.loads:
        is_base = value is part.base
        if (is_base or key == memory.key) and not (alone and is_base and is_apart(pull, at, read)):
            raise Unfusible("it reads what it writes to")
    pull.store(memory, dtype, at, pull.checked(expr))


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _finished(pull: Pull) -> Nest:
    """The nest of what was pulled, its loops outer first."""
    order = (*pull.outer, *(pull.inner or ()))
    to = {old: new for new, old in enumerate(order)}
    is_same = order == tuple(range(len(order)))

    def at(index: Index) -> Index:
        if is_same and len(index.strides) == len(order):
            return index
        strides = [0] * len(order)
        for old, stride in enumerate(index.strides):
            strides[to[old]] = stride
        return Index(index.offset, tuple(strides), index.gathers)

    def swap(expr: Expr) -> Expr | None:
        return Position(to[expr.loop]) if not is_same and isinstance(expr, Position) else None

    body: tuple[Statement, ...] = tuple(mapped_statement(s, swap, at) for s in pull.statements)
    outer = tuple(pull.sizes[loop] for loop in pull.outer)
    inner = tuple(pull.sizes[loop] for loop in pull.inner or ())
    return Nest(tuple(pull.kinds), outer, inner, body, pull.ordered)


def eager_memory(value: Value) -> Memory:
    """A value in a buffer of its own, in eager's layout: for trials and tests."""
    type_ = memory_type(value.type)
    assert type_ is not None
    return Memory(value, f"%{value.name}", Geometry.of(type_))
