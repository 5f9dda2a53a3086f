"""Which sizes and numbers of a call's arguments are symbols in its capture, and what the capture found out of them.

{("args[0]", 0): Free("B"), ("kwargs['n']", None): Free()}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from smelt.diag import Span
from smelt.diag.records import distinct_record, record
from smelt.ir.size_trace import Range

Spot: TypeAlias = tuple[str, int | None]
"""The place of an argument as a `Signature` spells it, and the dimension (None: the argument is a number)."""


@record
class Free:
    """A size or number that is a symbol. Equal names are one symbol; without a name it gets one.

    low, high: what it may be, both included. Left out, sizes start at 2, and numbers may be anything.
    hint: what a size of 1 is taken for in the staged run. only: what a size is taken for there, and is no symbol then.
    """

    name: str | None = None
    low: int | None = None
    high: int | None = None
    hint: int | None = None
    only: int | None = None


Spec: TypeAlias = Mapping[Spot, Free]


@record
class Origin:
    """Where a symbol's value is read: a dimension of a graph input, or (dim None) the input itself.

    hint: the value in the staged run. range: None for a float.
    """

    input: int
    dim: int | None
    hint: int | float
    range: Range | None


@distinct_record
class SizeGuard:
    """A condition on the symbols that held at capture, and must hold for the graph to be used.

    text: over the symbols. outcome: whether it is true or false where the graph holds. check: whether it comes out so
    for values of the symbols by name. use: for what Python asked, where it asked for the number itself.
    """

    text: str
    span: Span | None
    outcome: bool
    check: Callable[[Mapping[str, int | float]], bool]
    use: str = ""

    def __str__(self) -> str:
        return self.text if self.outcome else f"not ({self.text})"


@distinct_record
class SizeFacts:
    """The symbols of a graph, and the guards on them, in the order in which the program came to them.

    fixed: symbols that the guards pin to one value; the graph has the number in their place.
    equal: symbols that the guards make equal to another expression, whose text stands in the graph.
    wide: symbols from 1 on of a graph that was captured for larger ones, and shown to be the same there.
    reads_strides: whether Python may have asked a tensor for its strides.
    """

    symbols: Mapping[str, Origin]
    guards: tuple[SizeGuard, ...]
    fixed: Mapping[str, int | float]
    equal: Mapping[str, str]
    wide: frozenset[str] = frozenset()
    reads_strides: bool = True

    def holds(self, values: Mapping[str, int | float]) -> bool:
        """Whether the graph may be used for these values: within all ranges and guards."""
        for name, origin in self.symbols.items():
            found = origin.range
            low, high = (0.0, 0.0) if found is None else found.bounds
            if found is not None and not low <= values[name] <= high:
                return False
        return all(guard.check(values) for guard in self.guards)
