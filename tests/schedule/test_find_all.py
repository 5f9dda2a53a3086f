"""Finding is complete and sound: on small random programs, exactly the places that trying everything gives."""

import itertools
import random

import pytest

import smelt
from smelt.ir import Value
from smelt.scheduling.finding.match import match_of
from smelt.scheduling.finding.patterns import Pattern
from smelt.scheduling.finding.search import Search
from smelt.scheduling.finding.target import Target

_OPS = {"add.Tensor": 2, "sub.Tensor": 2, "sin.default": 1}
_EITHER_WAY = ("aten.add.Tensor",)


def _program(rng, inputs, count, outputs):
    """A random graph of that many nodes; what nobody uses is an output, and so are some others."""
    names = [f"x{i}" for i in range(inputs)]
    lines, used = [], set()
    for i in range(count):
        op = rng.choice(sorted(_OPS))
        args = [rng.choice(names[-5:]) for _ in range(_OPS[op])]
        used.update(args)
        lines.append(f"  %v{i}: f32[4] = aten.{op}({', '.join('%' + a for a in args)})")
        names.append(f"v{i}")
    left = [f"v{i}" for i in range(count) if f"v{i}" not in used or rng.random() < outputs]
    head = ", ".join(f"%x{i}: f32[4]" for i in range(inputs))
    types = ", ".join(["f32[4]"] * len(left))
    body = "\n".join(lines)
    return smelt.parse(f"graph g({head}) -> {types} {{\n{body}\n  return {', '.join('%' + v for v in left)}\n}}")


def _fits(pattern, nodes, places, orders):
    """The values of the pattern with each node at its place, its operands in the order; None if that fails."""
    bound = {}
    for node, place in zip(nodes, places, strict=True):
        if node.op != place.op:
            return None
        bound[node.result] = place.result
    for node, place, swap in zip(nodes, places, orders, strict=True):
        if swap and node.op not in _EITHER_WAY:
            return None
        given = place.args[::-1] if swap else place.args
        for mine, other in zip(node.args, given, strict=True):
            if bound.setdefault(mine, other) is not other:
                return None
    return bound


def _by_trying(pattern, graph, escaping):
    nodes, everything = list(pattern.walk()), list(graph.walk())
    returned = {value for value in pattern.outputs if isinstance(value, Value)}
    found = set()
    for places in itertools.permutations(everything, len(nodes)):
        if any(node.op != place.op for node, place in zip(nodes, places, strict=True)):
            continue
        for orders in itertools.product((False, True), repeat=len(nodes)):
            bound = _fits(pattern, nodes, places, orders)
            if bound is None:
                continue
            if any(bound[value].node in places for value in pattern.inputs if value in bound):
                continue  # what is free comes from outside
            outputs = {bound[value] for value in returned}
            inner = [place.result for place in places if place.result not in outputs]
            if escaping or all(user in places for value in inner for user in value.users):
                found.add(frozenset(places))
    return found


@pytest.mark.spread(8)
@pytest.mark.parametrize("escaping", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_what_is_found_is_what_trying_everything_gives(seed, escaping):
    rng = random.Random(seed)
    graph = _program(rng, 3, 8, 0.1)
    for _ in range(6):
        part = _program(rng, rng.randint(1, 3), rng.randint(1, 4), 0.2)
        pattern, target = Pattern(part), Target(graph, "", {})
        matches = [
            match_of(f, pattern, target, escaping=escaping) for f in Search(pattern, target, escaping=escaping).run()
        ]
        found = {frozenset(match.nodes) for match in matches if match is not None}
        assert found == _by_trying(part, graph, escaping), f"{part}\n{graph}"


def test_the_random_programs_hold_matches():
    """What is compared above is often not empty."""
    rng, some = random.Random(0), 0
    for _ in range(100):
        graph, part = _program(rng, 3, 8, 0.1), _program(rng, 2, 2, 0.2)
        some += bool(_by_trying(part, graph, False))
    assert some >= 20
