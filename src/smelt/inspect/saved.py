"""What the forward half of a program that is trained keeps for its backward half, and why it is not computed again."""

from __future__ import annotations

from collections.abc import Iterable

from smelt.analysis.liveness import nbytes
from smelt.autodiff.cut import is_cheap
from smelt.compiler import Unit
from smelt.compiler.training.training import TrainingUnit
from smelt.inspect.page.model import Saved
from smelt.inspect.shown import Row
from smelt.ir import Value


def saved_values(unit: TrainingUnit) -> list[Saved]:
    """What is kept, inputs first: those are there all the same."""
    trained = unit.trainable
    if trained is None:
        return []
    forward, found = trained.halves.forward, trained.halves
    names = [f"%{value.name}" for value in forward.inputs]
    # State stands behind the arguments.
    names[len(names) - len(unit.state_places) :] = [path for _, path in unit.state_places]
    rows = [
        Saved(
            names[number], str(forward.inputs[number].type), 0, "an input or a parameter, which is there all the same"
        )
        for number in found.kept
    ]
    for name, value in zip(found.saved, forward.outputs[found.count :], strict=True):
        if isinstance(value, Value):
            rows.append(Saved(f"%{name}", str(value.type), nbytes(value), _why(value)))
    return rows


def _why(value: Value) -> str:
    node = value.node
    if node is None:
        return "an input of the graph"
    where = f" ({node.span})" if node.span is not None else ""
    if is_cheap(node):
        return f"{node.op}{where} could run again, but retaining what it reads takes more bytes"
    return f"running {node.op}{where} again costs more than retaining its result"


def saved_rows(units: Iterable[tuple[int, Unit]]) -> list[Row]:
    """One row for each value that is kept, of the entries that are trained."""
    return [
        {"entry": entry, "value": saved.name, "type": saved.type, "bytes": saved.nbytes, "why": saved.why}
        for entry, unit in units
        if isinstance(unit, TrainingUnit)
        for saved in saved_values(unit)
    ]
