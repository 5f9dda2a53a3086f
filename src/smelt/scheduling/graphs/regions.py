"""A part of a graph taken out: a graph of its own, and functions that run it.

Invariant: a region's parameters and buffers are its inputs, after those that are computed; it holds no tensor but what
it is given, so it serves whatever weights the module has by then.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
import torch.utils.checkpoint

from smelt.capture import is_capturing
from smelt.codegen.kernels.nest import Nest
from smelt.compiler import Unit, compile
from smelt.diag.loops import LoopStep
from smelt.ir import Arg, Graph, Value, clone_node, map_values
from smelt.scheduling.finding.forms import STATE
from smelt.scheduling.graphs.editing import Editor, PartOfGraph
from smelt.scheduling.graphs.running import CALL, Forward, function_of, is_statistics, write_back, write_statistics


def graph_of(part: PartOfGraph, editor: Editor, name: str) -> tuple[Graph, list[Value]]:
    """The part as a graph, and the values that its inputs are: first those that are computed, then the state."""
    graph = Graph(name)
    operands = [*(v for v in part.inputs if not is_state(v)), *(v for v in part.inputs if is_state(v))]
    mapping: dict[Value, Arg] = {}
    for value in operands:
        param = mapping[value] = Value(value.name, value.type, graph.body)
        graph.body.params.append(param)
    for node in part.nodes:
        graph.body.insert(clone_node(node, mapping))
    graph.body.set_yields(tuple(map_values(value, lambda v: mapping.get(v, v)) for value in part.outputs))
    graph.constants.update(editor.graph.constants)
    return graph, operands


def is_state(value: Value) -> bool:
    """Whether a value is a parameter, a buffer or a tensor from outside."""
    return value.node is not None and value.node.op in STATE


class EagerRegion:
    """A region that runs operator by operator.

    graph: of the region. calls: what it calls of the graph that it was taken from. overwritten: the operands that are
    written to behind the call, or in it: buffers.
    """

    def __init__(
        self, graph: Graph, calls: Mapping[str, Callable[..., Any]], overwritten: frozenset[int] = frozenset()
    ) -> None:
        self.graph, self.overwritten = graph, overwritten
        names = {str(node.args[0]) for node in graph.walk() if node.op == CALL}
        self.calls = {name: calls[name] for name in names}
        self.forward: Forward = function_of(graph)

        place = {value: i for i, value in enumerate(graph.inputs)}
        self.written = {
            place[target]: write_statistics if is_statistics(node.args[1]) else write_back
            for node in graph.body
            if node.op == "write" and isinstance(target := node.args[0], Value)
        }

    @property
    def reads_nothing(self) -> bool:
        """Whether it is operators only, so that nothing besides its operands decides what it does."""
        return all(isinstance(part, EagerRegion) and part.reads_nothing for part in self.calls.values())

    def __call__(self, *operands: Any) -> list[Any]:
        return list(self.forward(self._kept(operands, but=self.written), {}, self.calls))

    def _kept(self, operands: Sequence[Any], but: Container[int] = ()) -> list[Any]:
        """The operands, with copies of what will be overwritten: autograd keeps what it was."""
        return [
            operand.clone() if i in self.overwritten and i not in but else operand for i, operand in enumerate(operands)
        ]


class CheckpointedRegion(EagerRegion):
    """A region that is computed again in backward: only its inputs are kept. What it writes is written once."""

    def __call__(self, *operands: Any) -> list[Any]:
        if not torch.is_grad_enabled() or is_capturing():
            return super().__call__(*operands)
        first: list[list[Any]] = []

        def run(*kept: Any) -> list[Any]:
            own = self._kept(kept)
            first.append(own[:0] if first else own)
            return list(self.forward(own, {}, self.calls))

        results: list[Any] = torch.utils.checkpoint.checkpoint(run, *self._kept(operands), use_reentrant=False)
        for i, write in self.written.items():
            write(operands[i], first[0][i])
        first[0].clear()
        return results


class NativeRegion(EagerRegion):
    """A region that runs as native kernels where no gradient is asked for, and operator by operator elsewhere.

    weights: how many of the last operands are state. loops: steps on the loops of its kernels.
    """

    def __init__(
        self, graph: Graph, calls: Mapping[str, Callable[..., Any]], weights: int, loops: Sequence[LoopStep] = ()
    ) -> None:
        super().__init__(graph, calls)
        self.weights, self.loops = weights, tuple(loops)
        self._programs: dict[tuple[int, ...], tuple[Any, Sequence[Any]]] = {}

    def __call__(self, *operands: Any) -> list[Any]:
        if is_capturing() or (torch.is_grad_enabled() and any(map(_requires_grad, operands))):
            return super().__call__(*operands)
        cut = len(operands) - self.weights
        given, state = operands[:cut], operands[cut:]
        key = tuple(map(id, state))
        found = self._programs.get(key)
        if found is None:
            # One set of weights at a time: others are there when the module was moved or its weights were replaced.
            self._programs = {key: (found := (compile(_WithState(self.run, state), options=self._options), state))}
        result: list[Any] = found[0](*given)
        return result

    @property
    def key(self) -> str | int:
        """What its code follows from, beside the operands' types; of one with constants or calls, itself."""
        return id(self) if self.calls or self.graph.constants else f"{self.weights} {self.graph}"

    @property
    def _options(self) -> dict[str, Any] | None:
        return {"loops": self.loops} if self.loops else None

    def with_loops(self, step: LoopStep) -> NativeRegion:
        """The same with one more step on the loops of its kernels."""
        return NativeRegion(self.graph, self.calls, self.weights, (*self.loops, step))

    def nests(self, operands: Sequence[Any]) -> tuple[Nest | None, ...]:
        """The loop nests that run for such operands, as steps on loops number them."""
        program = NativeRegion(self.graph, self.calls, self.weights)
        with torch.no_grad():
            program(*operands)
        ((compiled, _),) = program._programs.values()
        units = [row.entry for row in compiled.stats().rows if isinstance(row.entry, Unit)]
        return units[0].lowered.report.nests if units and units[0].lowered is not None else ()

    def run(self, *operands: Any) -> list[Any]:
        """Operator by operator."""
        return list(self.forward(operands, {}, self.calls))


class _WithState(torch.nn.Module):
    """A region over the state of one module, as a program: weights are packed as those of any module."""

    def __init__(self, run: Callable[..., Any], state: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.run = run
        for i, tensor in enumerate(state):
            if isinstance(tensor, torch.nn.Parameter):
                self.register_parameter(f"w{i}", tensor)
            else:
                self.register_buffer(f"w{i}", tensor)
        self.names = tuple(f"w{i}" for i in range(len(state)))

    def forward(self, *given: Any) -> Any:
        return self.run(*given, *[getattr(self, name) for name in self.names])


def _requires_grad(operand: Any) -> bool:
    return isinstance(operand, torch.Tensor) and operand.requires_grad
