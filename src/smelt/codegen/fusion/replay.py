"""What a group computes, by the operators that eager runs: to raise eager's error, and where no kernel can be built.

Invariant: holds no graph, so a plan that keeps a replay keeps little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TypeAlias

import torch

from smelt.codegen.fusion.groups import Facts, Group
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.diag.records import record
from smelt.ir import Arg, Node, Value
from smelt.ir.nodes import fill_leaves
from smelt.ops.convert import to_torch
from smelt.ops.registry import overload


@record
class _At:
    """A value by its number."""

    number: int


@record
class _Step:
    op: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outs: tuple[int, ...]
    is_list: bool


@record
class Loaded:
    """A value that a group reads: the position of its buffer, and how it lies in there."""

    position: int
    geometry: Geometry


@record
class Number:
    """A number of the run: the position of its buffer."""

    position: int


@record
class Blank:
    """A tensor of which only the type matters: nothing is loaded from it."""

    geometry: Geometry
    dtype: torch.dtype

    @property
    def number(self) -> int | float:
        """The same where a number stands."""
        found: int | float = torch.zeros((), dtype=self.dtype).item()
        return found


Source: TypeAlias = Loaded | Number | Blank | torch.Tensor | int | float


def replay_of(
    group: Group,
    facts: Facts,
    loaded: Callable[[Value], Source],
    stored: Mapping[Value, Loaded],
) -> Replay:
    """The group's computation as a function of the tensors of its buffers, which writes those that it stores.

    loaded: where a value that the group does not compute lies, or the tensor itself.
    """
    found = _Steps(facts, facts.inside(group.nodes) - facts.numbers, loaded)
    for node in group.nodes:
        found.add(node)
    results = [(found.numbers[root], at) for root, at in stored.items()]
    return Replay(tuple(found.steps), tuple(found.sources.items()), tuple(results))


class _Steps:
    """A replay under construction. (Functions that call each other would be garbage that only a collection frees.)

    inside: values that the group computes. loaded: as of `replay_of`.
    """

    def __init__(self, facts: Facts, inside: Set[Value], loaded: Callable[[Value], Source]) -> None:
        self.facts, self.inside, self.loaded = facts, inside, loaded
        self.numbers: dict[Value, int] = {}
        self.steps: list[_Step] = []
        self.sources: dict[int, Source] = {}

    def number(self, value: Value) -> int:
        """The number of a value; what gives one that was not met before comes first."""
        found = self.numbers.get(value)
        if found is None:
            found = self.numbers[value] = len(self.numbers)
            node, facts = value.node, self.facts
            if value not in self.inside:
                if value in facts.through and facts.source(value) in self.inside | facts.numbers:
                    assert node is not None
                    self.add(node)
                else:
                    self.sources[found] = self.loaded(value)
            elif node is not None and value in facts.through:
                self.add(node)
        return self.numbers[value]

    def fill(self, arg: Arg) -> Any:
        """An argument with values as their numbers."""
        if isinstance(arg, Value):
            return _At(self.number(arg))
        return tuple(map(self.fill, arg)) if isinstance(arg, tuple) else to_torch(arg)

    def add(self, node: Node) -> None:
        """Take in a node as the next step."""
        args = tuple(map(self.fill, node.args))
        kwargs = tuple((k, self.fill(v)) for k, v in node.kwargs.items())
        outs = tuple(self.numbers.setdefault(r, len(self.numbers)) for r in node.results)
        op = _unpack if node.op == "unpack" else overload(node.op)
        self.steps.append(_Step(op, args, kwargs, outs, len(outs) > 1 or node.op == "unpack"))


def _unpack(parts: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    return parts


@record
class Replay:
    """The steps, what they start from, and what is stored; sizes in it may be known at run time only."""

    steps: tuple[_Step, ...]
    sources: tuple[tuple[int, Source], ...]
    results: tuple[tuple[int, Loaded], ...]

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Compute from the buffers' tensors and write the results."""
        known: dict[int, Any] = {number: _given(tensors, source) for number, source in self.sources}

        def leaf(arg: object) -> object:
            return known[arg.number] if isinstance(arg, _At) else arg

        for step in self.steps:
            made = step.op(*fill_leaves(step.args, leaf), **{k: fill_leaves(v, leaf) for k, v in step.kwargs})
            for number, result in zip(step.outs, made if step.is_list else (made,), strict=True):
                known[number] = result
        for number, at in self.results:
            _seen(tensors, at).copy_(known[number])


def _given(tensors: Sequence[torch.Tensor], source: Source) -> Any:
    match source:
        case Blank(geometry=geometry, dtype=dtype):
            return torch.empty_strided(geometry.sizes, geometry.strides, dtype=dtype).zero_()
        case Loaded():
            return _seen(tensors, source)
        case Number(position=position):
            return tensors[position].item()
    return source


def _seen(tensors: Sequence[torch.Tensor], at: Loaded) -> torch.Tensor:
    base, geometry = tensors[at.position], at.geometry
    return base.as_strided(geometry.sizes, geometry.strides, base.storage_offset() + geometry.offset)
