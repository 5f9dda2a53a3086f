"""Branches and loops of one rank's share of a program: their regions, and what they hand on.

    before:  %y = if %t { yield f(%x) } else { yield g(%x) }        %x: S(0)
    after:   %y = if %t { yield f(%x) } else { yield g(%x) }        %y: S(0), as both arms end so; the whole otherwise

Read `write_control`. A loop's values are carried as they first come, if each iteration ends so, and whole otherwise.
Invariant: what is handed on is without gaps in memory, in the order of its type, in all regions of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from smelt.ir import Arg, Builder, Node, Region, TensorType, Type, Value, map_values
from smelt.ops.catalogue.sharding.terms import laid_out, without_gaps
from smelt.ops.lowering import GraphEmitter
from smelt.ops.ranks.placements import WHOLE, Placement, Replicate, Shard


class Writer(Protocol):
    """What writes straight code, and knows the placements of values so far."""

    builder: Builder
    emitter: GraphEmitter

    def body(self, region: Region) -> None: ...
    def placement(self, value: Value) -> Placement: ...
    def arg(self, arg: Arg, at: Placement) -> Arg: ...
    def whole_arg(self, value: Value) -> Arg: ...
    def put(self, value: Value, made: Value, at: Placement) -> None: ...
    def know(self, value: Value, made: Value, at: Placement) -> None: ...
    def local_type(self, type_: Type, at: Placement) -> Type: ...


def write_control(by: Writer, node: Node) -> None:
    """Write an `if`, `for` or `while` of the program, and note the placements of its results."""
    count = 0 if node.op == "if" else len(node.results)
    firsts = node.args[len(node.args) - count :]
    lead = node.args[: len(node.args) - count]
    guess: list[Placement] = [_carried(by, arg) for arg in firsts] if count else [WHOLE] * len(node.results)
    settled: set[int] = set()
    while True:
        made = _attempt(by, node, lead, firsts, guess)
        ends = _regions(by, node, made, guess)
        found = [_joined(i, at, ends[i], settled) for i, at in enumerate(guess)]
        if found == guess:
            break
        assert made.parent is not None
        for region in made.regions:
            region.set_yields(())
        _discard(made)
        guess = found
    for result, value, at in zip(node.results, made.results, guess, strict=True):
        if isinstance(result.type, TensorType):
            by.put(result, value, at)
        else:
            by.know(result, value, WHOLE)


def _joined(number: int, at: Placement, ends: Sequence[Placement], settled: set[int]) -> Placement:
    """In which placement a result is handed on. ends: in which the regions come to it; settled: those, by number,
    that have been tried in another one."""
    if all(end == at for end in ends) or number in settled:
        return at
    one = ends[0]
    if isinstance(at, Replicate) and isinstance(one, Shard) and all(end == one for end in ends):
        return one
    settled.add(number)
    return WHOLE


def _carried(by: Writer, arg: Arg) -> Placement:
    at = by.placement(arg) if isinstance(arg, Value) else WHOLE
    return at if isinstance(at, Shard) else WHOLE


def _attempt(by: Writer, node: Node, lead: Sequence[Arg], firsts: Sequence[Arg], guess: Sequence[Placement]) -> Node:
    args = [map_values(a, by.whole_arg) for a in lead]
    types = [_carried_type(by, r.type, at) for r, at in zip(node.results, guess, strict=True)]
    if firsts:
        args += [_fitted(by, arg, at, to) for arg, at, to in zip(firsts, guess, types, strict=True)]
    return named_as(by.builder.add(node.op, args, types, node.kwargs), node)


def _carried_type(by: Writer, type_: Type, at: Placement) -> Type:
    """The type of what branches and loops hand on: without gaps in memory."""
    local = by.local_type(type_, at)
    is_whole = isinstance(local, TensorType) and local.is_static
    return without_gaps(local) if is_whole and isinstance(local, TensorType) else local


def _fitted(by: Writer, arg: Arg, at: Placement, type_: Type | None) -> Arg:
    """An argument in a placement, in the memory order of a type."""
    made = by.arg(arg, at)
    is_other = isinstance(made, Value) and isinstance(type_, TensorType) and made.type != type_
    if is_other and isinstance(made, Value) and isinstance(type_, TensorType) and type_.is_static:
        same = isinstance(made.type, TensorType) and made.type.shape == type_.shape
        return laid_out(by.emitter, made, type_) if same else made
    return made


def _regions(by: Writer, node: Node, made: Node, guess: Sequence[Placement]) -> list[list[Placement]]:
    """Write the regions; in which placements they come to each result."""
    ends: list[list[Placement]] = [[] for _ in guess]
    for region in node.regions:
        inner = by.builder.add_region(made)
        with by.builder.inside(inner):
            _params(by, region, inner, guess if node.op != "if" else ())
            by.body(region)
            if node.op == "while" and region is node.regions[0]:
                inner.set_yields(tuple(by.arg(arg, WHOLE) for arg in region.yields))
                continue
            for end, arg in zip(ends, region.yields, strict=True):
                end.append(by.placement(arg) if isinstance(arg, Value) else WHOLE)
            given = zip(region.yields, guess, (r.type for r in made.results), strict=True)
            inner.set_yields(tuple(_fitted(by, arg, at, to) for arg, at, to in given))
    return ends


def _params(by: Writer, region: Region, inner: Region, guess: Sequence[Placement]) -> None:
    lead = len(region.params) - len(guess)
    for i, param in enumerate(region.params):
        at = guess[i - lead] if i >= lead else WHOLE
        made = by.builder.add_param(inner, "", _carried_type(by, param.type, at))
        made.name = param.name
        by.know(param, made, at)


def named_as(made: Node, node: Node) -> Node:
    """A node with its results named as those of the program's."""
    for new, old in zip(made.results, node.results, strict=True):
        new.name = old.name
    return made


def _discard(node: Node) -> None:
    for region in node.regions:
        for inner in list(reversed(list(region))):
            _discard(inner)
    node.drop_arguments()
    if node.parent is not None:
        node.parent.remove(node)
