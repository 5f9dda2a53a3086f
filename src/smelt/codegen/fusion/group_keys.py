"""Groups of nodes as keys: equal for groups that differ in nothing but which values they compute, and of which.

    %3 = mul %1, %2; %4 = add %3, %1        %7 = mul %5, %6; %8 = add %7, %5        ==>        one form

A model has the same operators on the same types in each of its layers, an optimizer in each of its parameters. Values
are numbered in order of appearance, those of views between a group's nodes included.

Invariant: all that a rule of a nest sees of a node and of its operands is part of the form, unless it is said not to be
`exact`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smelt.codegen.fusion.rules.promote import NUMBER_TYPES
from smelt.ir import Node, TensorType, Value
from smelt.ops.meta import call_key
from smelt.ops.python.python_numbers import FITS

if TYPE_CHECKING:
    from smelt.codegen.fusion.groups import Facts


@dataclass(frozen=True, slots=True)
class Form:
    """The key of a group, and the number of each of its values.

    exact: whether its nest follows from the key and from where its operands lie. Of what makes a number of the run, the
    key has what a rule looks at: the dtype whose range it is known to be in.
    """

    key: Hashable
    numbers: Mapping[Value, int] = field(compare=False)
    exact: bool = field(compare=False)


class Forms:
    """The forms of one graph's groups."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._calls: dict[Node, tuple[int, list[Value]]] = {}
        self._numbers: dict[Value, int] = {}
        self._ids: dict[Hashable, int] = {}

    def of(self, nodes: Sequence[Node], roots: Sequence[Value]) -> Form:
        """The form of a group of nodes (in program order) that stores these values."""
        facts = self._facts
        numbers: dict[Value, int] = {}
        inside = {r for node in nodes for r in node.results}
        parts: list[Hashable] = []
        exact = True

        def number(value: Value) -> int:
            nonlocal exact
            found = numbers.get(value)
            if found is None:
                found = numbers[value] = len(numbers)
                if value in facts.through and facts.source(value) in inside:
                    assert value.node is not None
                    add(value.node)
                elif value in facts.numbers:
                    parts.append(self._number(value))
                elif value not in inside and value.type in NUMBER_TYPES:
                    parts.append(self._range(value))
                elif value not in inside and not isinstance(value.type, TensorType):
                    exact = False
            return found

        def add(node: Node) -> None:
            call, values = self._call(node)
            parts.append((call, *map(number, values), *map(number, node.results)))

        for node in nodes:
            add(node)
        return Form((tuple(parts), tuple(map(number, roots))), numbers, exact)

    def _call(self, node: Node) -> tuple[int, list[Value]]:
        """What a node does as a number, equal for equal calls, and its operands."""
        found = self._calls.get(node)
        if found is None:
            key, values = call_key(node.args, node.kwargs)
            results = tuple((r.type, bool(r.users)) for r in node.results)
            found = self._calls[node] = self._id((node.op, node.mode, key, results)), values
        return found

    def _number(self, value: Value) -> int:
        """A number that stands in the graph, as one that is below 0."""
        found = self._numbers.get(value)
        if found is None:
            node = value.node
            key = None if node is None else (node.op, repr(node.args), repr(node.kwargs))
            found = self._numbers[value] = -1 - self._id(("number", value.type, key))
        return found

    def _range(self, value: Value) -> int:
        """What is known of a number of the run, as one that is below 0."""
        found = self._numbers.get(value)
        if found is None:
            node = value.node
            dtype = node.args[1] if node is not None and node.op == FITS else None
            found = self._numbers[value] = -1 - self._id(("range", value.type, dtype))
        return found

    def _id(self, key: Hashable) -> int:
        return self._ids.setdefault(key, len(self._ids))
