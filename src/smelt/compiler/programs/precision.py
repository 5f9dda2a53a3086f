"""How far a program that computes in another precision is from the program as written, on the inputs of one call."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from smelt.diag.records import record
from smelt.ir import Graph
from smelt.ops.effects import effects


@record
class OutputError:
    """One floating output: root mean square and largest difference to the program as written, over the elements that
    are finite on both sides; `scale` is that output's own root mean square; `nonfinite` counts elements that are NaN
    or infinite on one side only.
    """

    output: int
    dtype: str
    rms: float
    largest: float
    scale: float
    nonfinite: int

    @property
    def relative(self) -> float | None:
        """rms / scale; None where the output is 0 throughout."""
        return self.rms / self.scale if self.scale else None


@record
class Precision:
    """The errors of a program's floating outputs, or why there are none."""

    errors: tuple[OutputError, ...] = ()
    why_not: str = ""


def why_not_repeatable(graph: Graph) -> str:
    """Why two runs of a graph cannot be compared; empty where they can."""
    for node in graph.walk():
        found = effects(node)
        if node.op == "write" or found.writes:
            return "the program writes to its inputs or its state"
        if not found.is_reproducible:
            return f"{node.op} gives another result at each call"
    return ""


def output_errors(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> tuple[OutputError, ...]:
    """The error of each floating output, in order."""
    pairs = enumerate(zip(expected, found, strict=True))
    return tuple(_error(i, a, b) for i, (a, b) in pairs if a.is_floating_point() and b.is_floating_point())


def _error(index: int, expected: torch.Tensor, found: torch.Tensor) -> OutputError:
    wide, other = expected.detach().double(), found.detach().double()
    finite = wide.isfinite() & other.isfinite()
    same = finite | (wide == other) | (wide.isnan() & other.isnan())
    difference, inside = (wide - other)[finite], wide[finite]
    return OutputError(
        index,
        str(expected.dtype).removeprefix("torch."),
        _rms(difference),
        difference.abs().max().item() if difference.numel() else 0.0,
        _rms(inside),
        int(same.numel() - same.sum().item()),
    )


def _rms(values: torch.Tensor) -> float:
    return math.sqrt(values.square().mean().item()) if values.numel() else 0.0
