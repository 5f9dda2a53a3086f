"""Texts of graphs with symbols, lowered once, and run at many sizes beside eager and float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.codegen.lower import lower
from smelt.codegen.lower.symbolic import specialize
from smelt.codegen.lower.symbolic.lowering import SymbolicLowered, lower_symbolic
from smelt.diag import Options
from smelt.ir import Graph, parse, verify
from smelt.ir.sizes import Range
from smelt.ops.evaluate import evaluate
from smelt.runtime.plan import Launch, Plan
from tests.codegen.harness import State, assert_same, call, executables, lookup_in, rms_ratio

Inputs = Callable[..., Sequence[torch.Tensor]]
OPTIONS = Options(deterministic=True)
LIBRARY = Options(deterministic=True, numerics="eager-library")


@dataclass(frozen=True)
class Program:
    """A graph's text whose inputs are made for sizes of its symbols, in their order."""

    text: str
    inputs: Inputs
    state: State
    options: Options = OPTIONS

    @property
    def graph(self) -> Graph:
        graph = parse(self.text)
        verify(graph)
        return graph

    def lowered(self, hints: Mapping[str, int], low: int = 2, high: int | None = None) -> SymbolicLowered:
        """The plan for all sizes from `low` on."""
        ranges = {name: Range(low, high) for name in hints}
        return lower_symbolic(self.graph, lookup_in(self.state), self.options, hints, ranges)

    def alone(self, sizes: Mapping[str, int]) -> Plan:
        """The plan for these sizes and no others."""
        return lower(specialize(self.graph, sizes), lookup_in(self.state), self.options).plan

    def check(self, made: SymbolicLowered, *sizes: int, ratio: float = 1.5) -> Plan:
        """At these sizes the plan, native and in Python, gives eager's layout and no more than its error."""
        assert made.plan.holds(*sizes)
        here = made.at(tuple(sizes))
        inputs = list(self.inputs(*sizes))
        known = lookup_in(self.state)
        eager = evaluate(self.graph, inputs, known)
        exact = _in_float64(self, inputs)
        for executable in executables(here.plan):
            found = call(here, executable, inputs, self.state)
            assert not executable.is_native or executable.counts.python == 0
            for a, b, c in zip(found, eager, exact, strict=True):
                assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
                assert torch.equal(a.isnan(), b.isnan())
                if a.is_floating_point():
                    assert rms_ratio(*(t.nan_to_num() for t in (a, b, c))) <= ratio
                else:
                    assert_same([a], [b], exact=True)
        return here.plan


def _in_float64(program: Program, inputs: Sequence[Any]) -> list[Any]:
    def wide(t: Any) -> Any:
        return t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t

    text = program.text.replace("bf16[", "f64[").replace("f32[", "f64[")
    state = {name: wide(t) for name, t in program.state.items()}
    return evaluate(parse(text), [wide(t) for t in inputs], lookup_in(state))


def launches(plan: Plan) -> list[Launch]:
    """The launches of a plan."""
    return [i for i in plan.instructions if isinstance(i, Launch)]


def kernels(plan: Plan) -> list[str]:
    """Labels of the launches."""
    return [launch.label for launch in launches(plan)]
