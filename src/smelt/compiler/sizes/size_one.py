"""Sizes of 1 among others: a capture for sizes from 2 on, shown to be that of the same program where they are 1.

    x.expand(B, S), softmax, ...: the graph for B, S >= 2       B = 1; S = 1; both: the same graphs there      B, S >= 1

Torch and programs treat sizes of 1 apart (they broadcast, they lie as one likes), so a graph for larger ones says
nothing of them. The program is run on fake tensors once more for each choice of sizes that are 1, all others free.

Invariant: a capture is widened only if each such run calls the same operators with the same arguments, gives tensors
of the same types, strides too (of inner values, where they lead to another element), and none that a caller sees shares
memory otherwise; the guards of all the runs are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import TypeAlias

from smelt.capture import Captured
from smelt.capture.dynamic.spec import Free, SizeFacts, SizeGuard, Spec, Spot
from smelt.capture.structure.tree import is_alike
from smelt.codegen.lower.symbolic import specialize
from smelt.compiler.sizes.sized_names import is_plain
from smelt.ir import Graph, TensorType, Type, Value, contiguous_strides, values_in
from smelt.ir.sizes import Range
from smelt.ops.effects import aliases

Again: TypeAlias = Callable[[Spec], Captured]
"""Captures the program for the same call with other sizes free."""

MOST = 2  # sizes that may be 1 independently of each other: three runs


def with_ones(captured: Captured, asked: Spec, again: Again) -> Captured | None:
    """The capture for sizes from 1 on where no bound was asked for; None where it does not hold there."""
    facts, signature = captured.sizes, captured.signature
    if facts is None or signature is None:
        return None
    spots = {(signature.inputs[o.input], o.dim): name for name, o in facts.symbols.items()}
    families = _families(facts, asked, spots)
    if families is None or len(families) > MOST:
        return None
    guards = list(facts.guards)
    for count in range(1, len(families) + 1):
        for chosen in combinations(families.values(), count):
            ones = {name for family in chosen for name in family}
            more = _guards_at(captured, again(_spec(asked, spots, ones)), ones)
            if more is None:
                return None
            known = {str(guard) for guard in guards}
            guards += [guard for guard in more if str(guard) not in known]
    widened = {name for family in families.values() for name in family}
    symbols = {
        name: replace(origin, range=Range(1, origin.range.high)) if name in widened and origin.range else origin
        for name, origin in facts.symbols.items()
    }
    facts = replace(facts, symbols=symbols, guards=tuple(guards), wide=frozenset(widened))
    return replace(captured, sizes=facts)


def _families(facts: SizeFacts, asked: Spec, spots: Mapping[Spot, str]) -> dict[str, list[str]] | None:
    """The symbols that may become 1, equal ones together; None where one is 1 already, or follows from others."""
    families: dict[str, list[str]] = {}
    numbers = {free.name for spot, free in asked.items() if spot[1] is None}  # a number that is one with a size
    for spot, name in spots.items():
        if spot[1] is None or asked[spot].low is not None or name in facts.fixed:
            continue
        if facts.symbols[name].hint == 1 or name in numbers:
            return None
        families.setdefault(facts.equal.get(name, name), []).append(name)
    return families if all(root in names for root, names in families.items()) else None


def _spec(asked: Spec, spots: Mapping[Spot, str], ones: Collection[str]) -> Spec:
    found: dict[Spot, Free] = {}
    for spot, free in asked.items():
        name = free.name or spots.get(spot)
        found[spot] = Free(only=1) if name in ones else replace(free, name=name)
    return found


def _guards_at(captured: Captured, other: Captured, ones: Collection[str]) -> tuple[SizeGuard, ...] | None:
    """The guards of a run with sizes of 1 if it is one of the captured program; None where it is another."""
    facts = captured.sizes
    assert facts is not None and captured.graph is not None and captured.signature is not None
    if other.error is not None or other.graph is None or other.signature is None or other.sizes is None:
        return None
    alike = (
        is_alike(captured.signature.result, other.signature.result),
        is_alike(captured.signature.puts, other.signature.puts),
        captured.signature.inputs == other.signature.inputs,
        captured.returned == other.returned,
        captured.entangled == other.entangled,
        captured.state.entries.keys() == other.state.entries.keys(),
        facts.fixed.items() >= other.sizes.fixed.items(),
        facts.equal.items() >= other.sizes.equal.items(),
    )
    hints = {name: origin.hint for name, origin in facts.symbols.items()}
    if not all(alike) or not all(guard.check(hints) for guard in other.sizes.guards):
        return None
    sizes = {name: int(origin.hint) for name, origin in facts.symbols.items() if origin.range is not None}
    try:
        for at in _points(sizes, ones):
            small = specialize(other.graph, at)
            if not _is_same(specialize(captured.graph, at), small):
                return None
        return other.sizes.guards if _share_alike(specialize(captured.graph, sizes), small) else None
    except ArithmeticError:
        # A size is computed that there is not at 1.
        return None


def _points(sizes: Mapping[str, int], ones: Collection[str]) -> Iterator[Mapping[str, int]]:
    """Sizes at which graphs are compared; where all are 1, there is one such point."""
    for times, plus in ((2, 3), (7, 1), (1, 0)) if sizes.keys() - set(ones) else ((1, 0),):
        yield {name: 1 if name in ones else times * size + plus for name, size in sizes.items()}


def _is_same(one: Graph, two: Graph) -> bool:
    """Whether graphs are equal but for names, and for steps over one element, which nobody sees of inner values."""
    for graph in (one, two):
        for number, value in enumerate(graph.values()):
            value.name = str(number)
    if one == two:
        return True
    if not (is_plain(one) and is_plain(two)) or list(map(str, _ends(one))) != list(map(str, _ends(two))):
        return False
    for graph in (one, two):
        for value in graph.values():
            value.type = _without_steps(value.type)
    return one == two


def _ends(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    for output in graph.outputs:
        yield from values_in(output)


def _without_steps(type_: Type) -> Type:
    """A type with the row-major steps where a dimension has one element."""
    if not isinstance(type_, TensorType) or not type_.is_static or type_.layout != "strided":
        return type_
    plain = contiguous_strides(type_.sizes)
    steps = [p if size == 1 else step for size, step, p in zip(type_.sizes, type_.steps, plain, strict=True)]
    return TensorType.of(type_.dtype, type_.sizes, steps, type_.device, type_.layout)


def _share_alike(large: Graph, small: Graph) -> bool:
    """Whether what operators give lies in the same operands' memory; where nothing is written, what is returned."""
    if is_plain(large) and is_plain(small):
        return _homes(large) == _homes(small)
    one, two = (
        [[[place[v] for v in group] for group in aliases(node)] for node in graph.walk()]
        for graph in (large, small)
        for place in [_places(graph)]
    )
    return one == two


def _places(graph: Graph) -> dict[Value, int]:
    return {value: number for number, value in enumerate(graph.values())}


def _homes(graph: Graph) -> list[set[int]]:
    """For each output the values whose memory it may lie in."""
    place = _places(graph)
    homes = {value: {number} for value, number in place.items()}
    for node in graph.walk():
        for result, shared in zip(node.results, aliases(node), strict=True):
            homes[result] = set().union(*(homes[value] for value in shared)) or homes[result]
    return [homes[value] for output in graph.outputs for value in values_in(output)]
