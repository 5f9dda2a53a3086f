"""A captured program whose results have gradients: its graph is one node of autograd (`compiler.training.trainable`).

Invariant: what has no gradient here, or would have another history than eager gives it, is left to eager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from smelt._torch.autocast import no_autocast
from smelt.analysis import alias_analysis
from smelt.analysis.gradients import gradient_flow
from smelt.autodiff import base_of, detach_islands, extract, hidden_write, is_view_of, overwritten, state_as_inputs
from smelt.capture import Captured
from smelt.capture.structure.signature import Signature
from smelt.capture.structure.tree import TensorLeaf
from smelt.codegen.lower.symbolic import specialize
from smelt.compiler.object.compiled_types import ANOMALIES, LeftAlone, NeedsGradients
from smelt.compiler.object.entry_code import Extract, extractor
from smelt.compiler.paths import is_path
from smelt.compiler.sizes.sized_unit import SizedUnit, Sizes
from smelt.compiler.training.histories import requires_gradients
from smelt.compiler.training.trainable import Trainable
from smelt.compiler.unit import Unit, machine_code
from smelt.diag import Options, SmeltError
from smelt.diag.idle_memory import give_back_code, give_back_freed_memory
from smelt.ir import STATE_OPS, Graph, Node, TensorType, Value, values_in
from smelt.ops.effects import declared_writes
from smelt.ops.evaluate import evaluate, no_state
from smelt.passes.base import PassContext
from smelt.passes.layers.explicit_casts import explicit_casts
from smelt.passes.manager import run_passes

_SETTLED = 2
"""What the first step ran once, as an optimizer that makes its state, is over by then."""


@dataclass(frozen=True)
class Views:
    """Results that share memory with an input that has a history, or with one another. They are made of that by torch's
    operators, behind the node, so that autograd knows them as views: a write to one has a meaning for the others.

    numbers: which results. bases: results, by number, that they are views of; hidden: those of these that the program
    does not give itself, and that stand behind its results. graph: takes its inputs and the bases.
    """

    numbers: tuple[int, ...]
    bases: tuple[int, ...]
    hidden: tuple[Value, ...]
    graph: Graph

    def put(self, inputs: Sequence[Any], outputs: list[Any]) -> None:
        """Put them among the results, and take away what stands behind these."""
        made = evaluate(self.graph, [*inputs, *(outputs[base] for base in self.bases)])
        for number, view in zip(self.numbers, made, strict=True):
            outputs[number] = view
        del outputs[len(outputs) - len(self.hidden) :]


def views_of(graph: Graph, sources: Collection[Value], apart: Collection[int]) -> Views | None:
    """The results that are views of sources, or of what others are views of; None where there are none.

    apart: results that are taken care of.
    """
    numbers, sharing = list[int](), dict[Value, list[int]]()
    for i, arg in enumerate(graph.outputs):
        base = base_of(arg)
        if i in apart or base is None:
            continue
        if is_view_of(graph, arg, sources):
            numbers.append(i)
        elif base.node is not None:
            sharing.setdefault(base, []).append(i)
    bases, hidden = dict[Value, int](), list[Value]()
    for base, members in sharing.items():
        if len(members) < 2:
            continue
        first = next((i for i in members if graph.outputs[i] is base), None)
        if first is None:
            hidden.append(base)
        bases[base] = len(graph.outputs) + len(hidden) - 1 if first is None else first
        numbers += [i for i in members if i != first]
    if not numbers:
        return None
    wanted = [graph.outputs[i] for i in numbers]
    made = extract(graph, f"{graph.name}_views", [*graph.inputs, *bases], wanted, ())
    return Views(tuple(numbers), tuple(bases.values()), tuple(hidden), made)


@dataclass
class TrainingUnit(Unit):
    """`run` gives results with a history. state_places: kind and path of what it reads besides its arguments. requires:
    which of its inputs, state behind arguments, need gradients.

    views: the results that are views of inputs with a history, or of one another.
    """

    state_places: tuple[tuple[str, str], ...] = ()
    requires: tuple[bool, ...] = ()
    views: Views | None = field(default=None, repr=False)
    trainable: Trainable | None = field(default=None, repr=False)
    _extract: Extract | None = field(default=None, repr=False)
    _state: tuple[torch.Tensor, ...] = field(default=(), repr=False)
    _calls: int = field(default=0, repr=False)

    @property
    def has_gradients(self) -> bool:
        """That of the node of autograd."""
        return True

    def build(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Make the plans for inputs that require gradients as these do. Raises: NeedsGradients where there are none."""
        self._build(lambda: tuple(map(requires_gradients, self._inputs(args, kwargs))))

    def build_like(self, other: Sequence[bool]) -> None:
        """The same for inputs of which these require gradients."""
        self._build(lambda: tuple(other))

    @property
    def halves(self) -> dict[str, Unit]:
        """The forward and the backward half, each with its graph and plan, for reports; nothing before `build`."""
        if self.trainable is None:
            return {}
        halves = {"forward": self.trainable.forward, "backward": self.trainable.backward}
        return {
            name: Unit(
                self.captured, self.options, no_state, half.graph, [*half.passes], optimized=half.optimized,
                lowered=half.lowered, _executable=half.executable,
            )
            for name, half in halves.items()
        }  # fmt: skip

    @property
    def nbytes(self) -> int:
        """What the plans of both halves hold."""
        return 0 if self.trainable is None else self.trainable.nbytes

    def _build(self, requires: Callable[[], tuple[bool, ...]]) -> None:
        start = perf_counter()
        with no_autocast():  # as each node says for itself
            self._build_halves(requires)
        self.stages_ms["forward and backward"] = round((perf_counter() - start) * 1000, 3)

    def _build_halves(self, found: Callable[[], tuple[bool, ...]]) -> None:
        graph, self.state_places = state_as_inputs(self._with_casts())
        self.requires = requires = found()
        # What goes out as it came in has the history that it has.
        apart = set(self.captured.returned)
        sources = {v for v, is_wanted in zip(graph.inputs, requires, strict=True) if is_wanted}
        self.views = views_of(graph, sources, apart)
        more: tuple[Value, ...] = ()
        if self.views is not None:
            apart.update(self.views.numbers)
            more = self.views.hidden
        graph.body.set_yields((*(None if i in apart else a for i, a in enumerate(graph.outputs)), *more))
        try:
            self.trainable = Trainable(
                graph, requires, self.options, machine_code(self.options), recomputed=self.captured.recomputed,
                unseen=self._unseen(graph),
            )  # fmt: skip
        except SmeltError as error:
            raise NeedsGradients(error.what, error.where) from error

    def _unseen(self, graph: Graph) -> set[str]:
        """The inputs, state behind arguments, that a call writes to without telling autograd, as batch norm does."""
        targets = {v.name for node in graph.body if node.op == "write" for v in values_in(node.args[0])}
        if not targets:
            return targets
        raw = self.captured.graph
        assert raw is not None
        told = alias_analysis(raw).of_all(v for node in raw.walk() for v in declared_writes(node))
        names = {v.name for v in told}
        places = {(v.node.op, str(v.node.args[0])) for v in told if v.node is not None and v.node.op in STATE_OPS}
        state = [v.name for v in graph.inputs[len(graph.inputs) - len(self.state_places) :]]
        names |= {name for name, place in zip(state, self.state_places, strict=True) if place in places}
        return targets - names

    def _with_casts(self) -> Graph:
        """The graph with the casts of autocast spelled out. Raises: NeedsGradients where that cannot be."""
        if not any("autocast" in node.mode for node in self.graph.walk()):
            return self.graph
        graph = self.graph.clone()
        detach_islands(graph)
        run_passes(graph, (explicit_casts,), PassContext(), check=self.options.verify)
        if any("autocast" in node.mode for node in graph.walk()):
            raise NeedsGradients("autocast casts for an operator that is not known here")
        return graph

    def _inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        if self._extract is None:
            self._extract = extractor(self.signature, args, kwargs)
            self._state = tuple(self.lookup(*place) for place in self.state_places)
        return [*self._extract(args, kwargs), *self._state]

    def prepare(self) -> None:
        """Nothing is left to do."""

    def finish(self) -> None:
        """Nothing is left to do."""

    def refresh(self) -> None:
        """Parameters are inputs here, so nothing was made of them."""

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The program's answer for arguments that fit. Raises: LeftAlone where autograd is to see each operator."""
        assert self.trainable is not None
        if torch.is_anomaly_enabled():
            raise LeftAlone(ANOMALIES)
        inputs = self._inputs(args, kwargs)
        self._calls += 1
        if self._calls == _SETTLED:
            give_back_freed_memory()
            give_back_code()
        outputs = self.trainable(inputs)
        if self.views is not None:
            self.views.put(inputs, outputs)
        for number, source in self.captured.returned.items():
            outputs[number] = inputs[source] if isinstance(source, int) else self.lookup(*source)
        match self.signature:
            case Signature(result=TensorLeaf(index=index), puts=None):
                return outputs[index]
        return self.signature.rebuild(outputs, args, kwargs)


@dataclass
class SizedTrainingUnit(SizedUnit):
    """The same with free sizes: recorded once, differentiated and lowered for each tuple of sizes."""

    requires: tuple[bool, ...] = ()

    @property
    def has_gradients(self) -> bool:
        """That of the nodes of autograd."""
        return True

    def build(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Make the plans for the recorded call's sizes. Raises: NeedsGradients where there are none."""
        self.why_alone = "gradients are made for each tuple of sizes"
        if not all(isinstance(value.type, TensorType) for value in self.graph.inputs):
            raise NeedsGradients("a number is free")
        _, places = state_as_inputs(self.graph)
        inputs = [*self.signature.flatten(args, kwargs), *(self.lookup(*place) for place in places)]
        self.requires = tuple(map(requires_gradients, inputs))
        self.finish()

    def _plan_alone(self, sizes: Sizes) -> Unit:
        graph = specialize(self.graph, dict(zip(self.names, sizes, strict=True)))
        plan = TrainingUnit(self.captured, self.options, self.lookup, graph)
        plan.build_like(self.requires)
        self.lowered_alone += 1
        return plan

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """As of any unit. Raises: LeftAlone where the original is to run."""
        try:
            return super().run(args, kwargs)
        except NeedsGradients as error:  # for these sizes alone
            raise LeftAlone(f"gradients are needed, and {error}") from error


def training_unit(
    captured: Captured, options: Options, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TrainingUnit | SizedTrainingUnit:
    """The unit of a capture whose results have histories. Raises: NeedsGradients where eager has to run."""
    if captured.own_backward:
        raise NeedsGradients(f"{captured.own_backward} has a backward in Python", captured.own_line)
    if captured.error is not None:
        raise NeedsGradients(captured.error.what, captured.error.where)
    if captured.graph is None or captured.signature is None:
        raise NeedsGradients("there is no graph of it")
    if is_path(captured.graph):
        raise NeedsGradients("its path depends on data")
    _check_writes(captured, args, kwargs)
    try:
        unit = (TrainingUnit if captured.sizes is None else SizedTrainingUnit).of(captured, options)
    except SmeltError as error:
        raise NeedsGradients(error.what, error.where) from error
    unit.build(args, kwargs)
    return unit


def _check_writes(captured: Captured, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises: NeedsGradients where a write in place has a meaning for autograd that no graph of values has."""
    assert captured.graph is not None and captured.signature is not None
    found = captured.signature.flatten(args, kwargs)
    given = {v for v, x in zip(captured.graph.inputs, found, strict=True) if requires_gradients(x)}

    def requires(value: Value) -> bool:
        if value.node is None:
            return value in given
        entry = captured.state.entries.get((value.node.op, str(value.node.args[0])))
        return entry is None or requires_gradients(entry.tensor)

    hidden, late = hidden_write(captured.graph, requires), overwritten(captured.graph, requires)
    if hidden is not None:
        raise NeedsGradients(f"{_shown(hidden)} writes where autograd does not look", hidden.span)
    if late is not None:
        # No line to split at: eager's error comes from what it saves, which pieces need not save.
        raise NeedsGradients(f"{_shown(late)} writes to what a gradient needs")
    if gradient_flow(captured.graph, requires, captured.caller.grad).leaves_some:
        raise NeedsGradients("it writes to what others see, and gives it gradients")


def _shown(node: Node) -> str:
    return f"{node.op} at {node.span}" if node.span else node.op
