"""What a report says of sizes and numbers: which are free, in what range, and which could not be, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from smelt.compiler import SizedUnit, Unit
from smelt.inspect.report import Row


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
            at = next(
                (g.span for g in unit.facts.guards if g.span is not None and g.text.startswith(f"{name} ==")), None
            )
            note = f"must be {unit.facts.fixed[name]}" + (f", because of {at}" if at is not None else "")
        elif name in unit.facts.equal:
            note = f"is {unit.facts.equal[name]}"
        rows.append(
            {"entry": entry, "symbol": name, "stands for": place, "range": _range(origin.range),
             "at capture": origin.hint, "note": note}
        )  # fmt: skip
    return rows


def _range(range_: object) -> str:
    low, high = getattr(range_, "low", None), getattr(range_, "high", None)
    if low is None and high is None:
        return "any"
    return f"{'' if low is None else low}..{'' if high is None else high}"
