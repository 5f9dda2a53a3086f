"""The symbols of a captured graph as its passes see them, and what becomes of what these came to rely on.

Invariant: a graph that a pass made for some sizes runs at no others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from smelt.capture import Captured
from smelt.capture.dynamic.spec import SizeFacts, SizeGuard
from smelt.compiler.sizes.sized_names import is_plain, names_in_types
from smelt.ir.sizes import Range
from smelt.passes.sized import Sizes


def symbols_of(facts: SizeFacts, names: Collection[str], at: Mapping[str, int] | None = None) -> Sizes:
    """These symbols, with nothing relied on. at: the sizes to take them for, in place of those of the capture."""
    known = {name: origin for name, origin in facts.symbols.items() if name in names}
    return Sizes(
        {name: (origin.hint if at is None else at[name], origin.range or Range()) for name, origin in known.items()},
        {name: (origin.input, origin.dim) for name, origin in known.items()},
    )


def symbols_in(captured: Captured) -> Sizes | None:
    """The symbols in the types of the captured graph, as they are to be functional; None where there are none."""
    if captured.sizes is None or captured.graph is None:
        return None
    names = names_in_types(captured.graph)
    if not names:
        return None
    found = symbols_of(captured.sizes, names)
    if not is_plain(captured.graph):
        return found
    # Nothing is rewritten that way, and that types are as they stand was shown where sizes are 1.
    at_two = {name: (hint, _from_two(known)) for name, (hint, known) in found.symbols.items()}
    wide = captured.sizes.wide
    return replace(found, symbols={n: at_two[n] if n in wide else known for n, known in found.symbols.items()})


def _from_two(known: Range) -> Range:
    return Range(max(known.low, 2), known.high)


def with_conditions(captured: Captured, symbols: Sizes | None) -> Captured:
    """The same with what passes relied on among the guards that the program itself left."""
    if captured.sizes is None or symbols is None or not symbols.conditions:
        return captured
    known = {guard.text for guard in captured.sizes.guards if guard.outcome}
    more = (
        SizeGuard(found.text, found.span, found.outcome, found.check)
        for found in symbols.conditions
        if found.text not in known
    )
    return replace(captured, sizes=replace(captured.sizes, guards=(*captured.sizes.guards, *more)))
