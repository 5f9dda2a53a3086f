"""Groups of nodes as keys: equal for groups that differ in nothing but which values they compute, and of which.

    %3 = mul %1, %2; %4 = add %3, %1        %7 = mul %5, %6; %8 = add %7, %5        ==>        one form

A model has the same operators on the same types in each of its layers, an optimizer in each of its parameters. Values
are numbered in order of appearance, those of views between a group's nodes included.

Invariant: all that a rule of a nest sees of a node and of its operands is part of the form, unless it is said not to be
`exact`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from smelt.codegen.fusion.rules.promote import NUMBER_TYPES
from smelt.diag.records import record
from smelt.ir import Node, TensorType, Value
from smelt.ops.meta import call_key
from smelt.ops.python.python_numbers import FITS

if TYPE_CHECKING:
    from smelt.codegen.fusion.groups import Facts


@record
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
        found = _Numbering(self, self._facts, {r for node in nodes for r in node.results})
        for node in nodes:
            found.add(node)
        return Form((tuple(found.parts), tuple(map(found.number, roots))), found.numbers, found.exact)

    def call(self, node: Node) -> tuple[int, list[Value]]:
        """What a node does as a number, equal for equal calls, and its operands."""
        found = self._calls.get(node)
        if found is None:
            key, values = call_key(node.args, node.kwargs)
            results = tuple((r.type, bool(r.users)) for r in node.results)
            found = self._calls[node] = self._id((node.op, node.mode, key, results)), values
        return found

    def given(self, value: Value) -> int:
        """A number that stands in the graph, as one that is below 0."""
        found = self._numbers.get(value)
        if found is None:
            node = value.node
            key = None if node is None else (node.op, repr(node.args), repr(node.kwargs))
            found = self._numbers[value] = -1 - self._id(("number", value.type, key))
        return found

    def range(self, value: Value) -> int:
        """What is known of a number of the run, as one that is below 0."""
        found = self._numbers.get(value)
        if found is None:
            node = value.node
            dtype = node.args[1] if node is not None and node.op == FITS else None
            found = self._numbers[value] = -1 - self._id(("range", value.type, dtype))
        return found

    def _id(self, key: Hashable) -> int:
        return self._ids.setdefault(key, len(self._ids))


class _Numbering:
    """A form under construction. (Functions that call each other would be garbage that only a collection frees.)"""

    __slots__ = ("exact", "facts", "forms", "inside", "numbers", "parts")

    def __init__(self, forms: Forms, facts: Facts, inside: set[Value]) -> None:
        self.forms, self.facts, self.inside = forms, facts, inside
        self.numbers: dict[Value, int] = {}
        self.parts: list[Hashable] = []
        self.exact = True

    def number(self, value: Value) -> int:
        """The number of a value; one that was not met before is part of the form."""
        found = self.numbers.get(value)
        if found is None:
            facts = self.facts
            found = self.numbers[value] = len(self.numbers)
            if value in facts.through and facts.source(value) in self.inside:
                assert value.node is not None
                self.add(value.node)
            elif value in facts.numbers:
                self.parts.append(self.forms.given(value))
            elif value not in self.inside and value.type in NUMBER_TYPES:
                self.parts.append(self.forms.range(value))
            elif value not in self.inside and not isinstance(value.type, TensorType):
                self.exact = False
        return found

    def add(self, node: Node) -> None:
        """Take in a node, with what it computes of what."""
        call, values = self.forms.call(node)
        self.parts.append((call, *map(self.number, values), *map(self.number, node.results)))
