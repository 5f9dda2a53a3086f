"""What a report says of sizes and numbers: which are free, in what range, and which could not be, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from smelt.compiler import SizedUnit, Unit
from smelt.compiler.sizes.guard_forms import ANY
from smelt.compiler.sizes.size_texts import guard_that_fixes
from smelt.inspect.shown import Row
from smelt.ir.size_trace import Range


def symbol_rows(units: Iterable[tuple[int, Unit]], refused: Mapping[str, str]) -> list[Row]:
    """One row for each free size or number of each entry, then those that were to be free and are not."""
    rows = [row for entry, unit in units if isinstance(unit, SizedUnit) for row in _of_unit(entry, unit)]
    rows += [{"fixed": place, "why": why} for place, why in refused.items()]
    return rows


def _of_unit(entry: int, unit: SizedUnit) -> list[Row]:
    places = unit.signature.inputs
    rows: list[Row] = []
    for name, origin in unit.facts.symbols.items():
        place = places[origin.input] + ("" if origin.dim is None else f".shape[{origin.dim}]")
        note = ""
        if name in unit.facts.fixed:
            guard = guard_that_fixes(unit.facts, name)
            note = f"must be {unit.facts.fixed[name]}" + (f", because of {guard.span}" if guard and guard.span else "")
        elif name in unit.facts.equal:
            note = f"is {unit.facts.equal[name]}"
        rows.append(
            {"entry": entry, "symbol": name, "represents": place, "range": _range(origin.range),
             "at capture": origin.hint, "note": note}
        )  # fmt: skip
    return rows


def _range(range_: Range | None) -> str:
    if range_ is None or (range_.low <= ANY and range_.high is None):
        return "any"
    return f"{'' if range_.low <= ANY else range_.low}..{'' if range_.high is None else range_.high}"
