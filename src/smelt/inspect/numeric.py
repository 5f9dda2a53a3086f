"""Passes run one by one on a call's values: how far each moves the outputs, and the first value that it makes wrong.

Invariant: the reference evaluator runs the graph before and after each pass, on copies; graph and arguments stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from smelt.diag.records import record
from smelt.inspect.compare import first_difference
from smelt.inspect.places import short_places
from smelt.ir import Graph, Node, verify
from smelt.ops.evaluate import Lookup, no_state
from smelt.passes.base import Pass, PassContext
from smelt.passes.manager import Observation, observe

_ROUNDING = 1e-4  # of the largest value of a tensor: what another order of operations explains


@record
class Checked:
    """What a pass did to values. largest: the largest difference of an output, relative to its largest value.

    first: the first value that differs by more than rounding explains, in the order in which the graph computes them,
    with the node and the line it came from; "" where none does.
    """

    name: str
    largest: float
    first: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data that `json.dumps` takes."""
        return asdict(self)


def check_passes(
    graph: Graph, passes: Sequence[Pass], inputs: Sequence[Any], lookup: Lookup = no_state
) -> list[Checked]:
    """Each pass that changed any value, in order; one that fails is the last, with what it raised."""
    return list(_each(graph.clone(), passes, inputs, lookup))


def _each(graph: Graph, passes: Sequence[Pass], inputs: Sequence[Any], lookup: Lookup) -> Iterator[Checked]:
    context = PassContext(lookup)
    before, values = _run(graph, inputs, lookup)
    for one in passes:
        try:
            if not one.run(graph, context):
                continue
            verify(graph)
            after, now = _run(graph, inputs, lookup)
        except Exception as error:  # whatever a defect of a pass leads to
            yield Checked(one.name, float("inf"), f"{type(error).__name__}: {error}")
            return
        pairs = list(_outputs(before, after))
        largest = max((_largest(a, b) for _, a, b in pairs), default=0.0)
        wrong = next(filter(None, (first_difference(a, b, name, _ROUNDING) for name, a, b in pairs)), "")
        if wrong:
            wrong = _first_value(graph, values, now) or wrong
        if largest or wrong:
            yield Checked(one.name, largest, wrong)
        before, values = after, now


def _run(graph: Graph, inputs: Sequence[Any], lookup: Lookup) -> tuple[Observation, dict[str, Any]]:
    """What a run leaves, and the values of its nodes by name, of loops those of the last iteration."""
    values: dict[str, Any] = {}

    def note(node: Node, results: Sequence[Any]) -> None:
        values.update(zip((result.name for result in node.results), results, strict=False))

    return observe(graph, inputs, lookup, watch=note), values


def _outputs(before: Observation, after: Observation) -> Iterator[tuple[str, Any, Any]]:
    for what, left, right in (
        ("output", before.outputs, after.outputs),
        ("argument", before.inputs, after.inputs),
    ):
        for number, (a, b) in enumerate(zip(left, right, strict=False)):
            yield f"{what} {number}", a, b
    for key in sorted(before.state.keys() & after.state.keys()):
        yield key[1], before.state[key], after.state[key]


def _largest(a: Any, b: Any) -> float:
    """The largest difference of two tensors, relative to the largest value; 0.0 of all else, and of what has no sum."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return 0.0
    if a.shape != b.shape or not a.numel() or torch.equal(a, b):
        return 0.0
    x, y = a.detach().double(), b.detach().double()
    gap = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, (x - y).abs())
    return float(gap.max() / x.abs().nan_to_num(0, 0, 0).max().clamp(min=1e-30))


def _first_value(graph: Graph, before: dict[str, Any], now: dict[str, Any]) -> str:
    """The first node that gives another value under the name that it had before, or a new one that no old one gave."""
    for node in graph.walk():
        for result in node.results:
            if result.name in before and result.name in now:
                told = first_difference(before[result.name], now[result.name], f"%{result.name}", _ROUNDING)
                if told:
                    where = f" at {short_places(str(node.span))}" if node.span is not None else ""
                    return f"{told} ({node.op}{where})"
    return ""
