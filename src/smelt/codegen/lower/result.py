"""What `lower` returns: a plan and how the caller makes the program's outputs of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch

from smelt.codegen.lower.products.weight_packing import Fills
from smelt.codegen.lower.report import Report
from smelt.diag.records import record
from smelt.runtime.plan import Plan
from smelt.runtime.recipes import (
    Either,
    Fresh,
    Lookup,
    Mutation,
    Number,
    OfKind,
    OutputRecipe,
    Plain,
    Same,
    Spent,
    StateName,
    ViewOf,
    rebuilt,
    view_of,
)

__all__ = [
    "Either",
    "Fresh",
    "Lookup",
    "Lowered",
    "Mutation",
    "Number",
    "OfKind",
    "OutputRecipe",
    "Plain",
    "Same",
    "Spent",
    "StateName",
    "ViewOf",
    "view_of",
]


@record
class Layouts:
    """How tensors lie that go from one plan to another, which nobody else sees.

    free: outputs, by number, that may lie in any dense layout. given: inputs, by number, that lie so.
    """

    free: tuple[int, ...] = ()
    given: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


EAGER = Layouts()
"""All as in eager."""


@record
class Lowered:
    """An executable plan with what the caller must know about it.

    handles: state that the plan reads through the live tensor, so in-place updates are seen; guard its identity.
    constants: state whose values were baked in (packed, folded); guard identity, data pointer, version, checksum.
    outputs: one recipe for each output of the graph, in order.
    fills: what is left to do before the plan may run. how_made: for slots that the plan holds, how their tensors are
    made again; None where the plan is for these contents of the state alone. reported: the report, or what gets it.
    strides: how outputs lie that may lie in any layout, by number.
    """

    plan: Plan
    outputs: tuple[OutputRecipe, ...]
    mutations: tuple[Mutation, ...]
    handles: tuple[StateName, ...]
    constants: tuple[StateName, ...]
    reported: Report | Callable[[], Report]
    fills: Fills = field(default_factory=Fills, compare=False)
    how_made: Mapping[int, Callable[[], Any]] | None = field(default=None, compare=False, repr=False)
    strides: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def report(self) -> Report:
        """What the lowering did."""
        return self.reported if isinstance(self.reported, Report) else self.reported()

    @property
    def is_direct(self) -> bool:
        """Whether the plan's results are the outputs as they stand."""
        recipes = [Fresh(i) if slot not in self.plan.kinds else Number(i) for i, slot in enumerate(self.plan.outputs)]
        return self.outputs == tuple(recipes)

    def rebuild(self, results: Sequence[Any], inputs: Sequence[torch.Tensor], lookup: Lookup) -> list[Any]:
        """The graph's outputs from the plan's results, the call's inputs and the state."""
        return rebuilt(self.outputs, results, inputs, lookup)
