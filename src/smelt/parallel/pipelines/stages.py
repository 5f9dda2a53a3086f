"""A pipeline on one rank: its stages' forward and backward, microbatch by microbatch, in the order that all agree on.

    out = module(x); loss(out).backward()     all forwards, then, on the way back, all backwards
    out = smelt.forward_backward(module, x)   1F1B: gradients are in .grad, and few microbatches on the way at once

Every rank is called with the whole batch (its share of it, if the batch is divided), and gets the program's outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.autodiff import Joint
from smelt.compiler.training.trainable import Native
from smelt.diag import Options, SmeltError
from smelt.ir import STATE_OPS, Graph, TensorType, Value
from smelt.ops.convert import dtype_to_torch
from smelt.ops.evaluate import evaluate
from smelt.ops.lowering import GraphEmitter
from smelt.ops.ranks import collectives as dist
from smelt.ops.ranks.collectives import Communicator, communicating, communicator, part_of, whole_of
from smelt.ops.ranks.placements import Partial, Shard
from smelt.parallel.dividing.parted import PartedProgram, flat
from smelt.parallel.native import native_of
from smelt.parallel.pipelines.order import Action, Timeline, timeline
from smelt.parallel.pipelines.pipeline import TIME, Pipelined, Stage
from smelt.passes.ranks.local import as_typed, localize
from smelt.passes.ranks.overlap import overlap
from smelt.rewrite import Rewriter


def localize_stage(graph: Graph) -> None:
    """As `localize`; sums over microbatches are what gradients are added up to from outside."""
    rewriter = Rewriter(graph)
    emitter = GraphEmitter(rewriter.builder, rewriter.adopt)
    for node in list(graph.walk()):
        if node.op == dist.ALL_REDUCE and node.args[-1] == TIME:
            with rewriter.builder.at(node):
                rewriter.replace_node(node, (as_typed(emitter, node),))
    localize(graph)


def _finish_stage(joint: Joint) -> None:
    localize_stage(joint.graph)
    overlap(joint.graph, joint.graph.inputs[joint.given :])


def enter_late(graph: Graph) -> list[tuple[str, str]]:
    """Take out of a stage's graph where work with a parameter begins to differ between ranks: paths and axes. Gradients
    are added up over these axes when all microbatches are through."""
    rewriter, found = Rewriter(graph), list[tuple[str, str]]()
    changed = True
    while changed:
        changed = False
        for node in list(graph.body):
            source = node.args[0] if node.op == dist.ENTER and node.args[1] != TIME else None
            if isinstance(source, Value) and source.node is not None and source.node.op == "param":
                found.append((str(source.node.args[0]), str(node.args[1])))
                rewriter.replace_node(node, (source,))
                changed = True
    return found


class _StageProgram(PartedProgram):
    finish = staticmethod(_finish_stage)

    def _check_results(self) -> None:
        """What other stages use may have a gradient on some paths only; results are checked of the whole program."""


@dataclass(slots=True)
class _Code:
    """One stage of this rank, compiled. slots: the number of each input that is a value, by name."""

    stage: Stage
    graph: Graph
    places: tuple[tuple[str, str], ...]
    unseen: tuple[str, ...]
    requires: tuple[bool, ...]
    program: _StageProgram | None
    inference: Native | None


@dataclass(slots=True)
class _Flight:
    """What is kept of a stage's microbatch between forward and backward."""

    saved: list[Any]
    outputs: list[Any]


@dataclass(slots=True)
class _Call:
    """One batch on its way. values: by stage's value and microbatch, what was made here or came. grads: the same."""

    inputs: Mapping[str, Any]
    given: list[list[Any]]
    values: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)
    grads: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)
    flights: dict[tuple[int, int], _Flight] = field(default_factory=dict)
    results: dict[tuple[int, int], Any] = field(default_factory=dict)
    sums: dict[str, torch.Tensor] = field(default_factory=dict)


class Pipe:
    """A pipeline's program on one rank of an axis."""

    def __init__(
        self, plan: Pipelined, names: Sequence[str], axis: str, ranks: int, rank: int, schedule: str,
        with_: Communicator | None, options: Options, trained: Mapping[str, bool],
    ) -> None:  # fmt: skip
        self.plan, self.names, self.axis, self.rank, self.ranks = plan, tuple(names), axis, rank, ranks
        self.with_, self.options, self.schedule = with_, options, schedule
        self.entered: dict[str, set[str]] = {}
        work = [stage.work for stage in plan.stages]
        self.training: Timeline = timeline(work, ranks, plan.microbatches, schedule)
        self.forwards: Timeline = timeline(work, ranks, plan.microbatches, "gpipe", training=False)
        self.all_then_all: Timeline = timeline(work, ranks, plan.microbatches, "gpipe")
        self.codes = {s.number: self._code(s, trained) for s in plan.stages if s.number % ranks == rank}
        self.owner = {i: s.number % ranks for s in plan.stages for i in s.results}

    @property
    def state(self) -> dict[str, str]:
        """The parameters, buffers and captured tensors that this rank has, by path; of which kind each is."""
        before = (n for g in self.plan.before.graphs for n in g.walk() if n.op in STATE_OPS)
        found = {str(n.args[0]): n.op for n in before}
        return found | {path: kind for code in self.codes.values() for kind, path in code.places}

    def _code(self, stage: Stage, trained: Mapping[str, bool]) -> _Code:
        whole = stage.graph.clone()
        for path, axis in enter_late(whole):
            self.entered.setdefault(axis, set()).add(path)
        graph, places, unseen = flat(whole)
        active = [kind == "value" and self.plan.crossings[name].is_active for kind, name in stage.inputs]
        requires = (*active, *(trained.get(path, False) and kind == "param" for kind, path in places))
        return _Code(stage, graph, places, unseen, requires, None, None)

    def _talking(self) -> AbstractContextManager[None]:
        return nullcontext() if self.with_ is None else communicating(self.with_)

    # --- a batch

    def begin(self, inputs: Sequence[Any], state: Mapping[str, Any]) -> _Call:
        """Take a batch: what microbatches have in common is computed, and random numbers are drawn."""
        with self._talking():  # sums over the ranks of a batch may be among it
            return self._begun(inputs, state)

    def _begun(self, inputs: Sequence[Any], state: Mapping[str, Any]) -> _Call:
        named = dict(zip(self.names, inputs, strict=True))
        plan, count = self.plan, self.plan.microbatches

        def lookup(kind: str, path: str) -> Any:
            return state[path]

        known: dict[str, Any] = {}
        totals: dict[str, Any] = {}

        def values(graph: Graph, source: str, m: int | None) -> Iterator[tuple[str, Any]]:
            """What is given from this source, by name. m: the microbatch of whose inputs; None for the whole batch."""
            own = [
                known.get(v.name) if v.name not in named else named[v.name] if m is None else
                self._part(named[v.name], v.name, m) for v in graph.inputs
            ]  # fmt: skip
            return zip([g.name for g in plan.given if g.source == source], evaluate(graph, own, lookup), strict=True)

        with self._talking():  # counts of targets are those of all ranks
            known.update(values(plan.before.program, "program", None))
            for m in range(count if any(one.source == "sum" for one in plan.given) else 0):
                for name, value in list(values(plan.before.sums, "sum", m)):
                    totals[name] = totals[name] + value if name in totals else value
            known.update(totals)
            known.update(values(plan.before.wholes, "whole", None))
        given: list[list[Any]] = []
        for one in plan.given:
            value = known[one.name]
            given.append([part_of(value, one.shard, m).contiguous() if one.shard else value for m in range(count)])
        return _Call(named, given)

    def of_microbatch(self, call: _Call, kind: str, name: str, microbatch: int) -> Any:
        """What of an input, or of a value that is computed before the stages, a microbatch uses."""
        if kind == "given":
            return call.given[int(name.removeprefix("given_"))][microbatch]
        return self._part(call.inputs[name], name, microbatch)

    def _part(self, value: Any, name: str, microbatch: int) -> Any:
        at = self.plan.inputs.get(name)
        return part_of(value, at, microbatch).contiguous() if isinstance(at, Shard) else value

    def run(self, call: _Call, actions: Sequence[Action], state: Mapping[str, Any], *, keeps: bool) -> None:
        """Do what the order says. keeps: forwards keep what backwards need."""
        with self._talking():
            for action in actions:
                if action.is_backward:
                    self._backward(call, self.codes[action.stage], action.microbatch)
                else:
                    self._forward(call, self.codes[action.stage], action.microbatch, state, keeps)

    def _forward(self, call: _Call, code: _Code, m: int, state: Mapping[str, Any], keeps: bool) -> None:
        inputs = [self._input(call, code, kind, name, m) for kind, name in code.stage.inputs]
        inputs += [state[path] for _, path in code.places]
        if keeps and any(code.requires):
            if code.program is None:
                _check_certain(self.plan, code.stage)
                code.program = _StageProgram(code.graph, code.requires, self.options, self.with_, code.unseen)
            bare = [x.detach() if isinstance(x, torch.Tensor) and x.requires_grad else x for x in inputs]
            outputs: list[Any] = [None] * code.program.halves.count
            _, saved = code.program.run_forward(bare, outputs, bare)
            call.flights[code.stage.number, m] = _Flight(saved, outputs)
        else:
            if code.inference is None:
                graph = code.graph.clone()
                localize_stage(graph)
                code.inference = native_of(graph, self.options)
            bare = [x.detach() if isinstance(x, torch.Tensor) and x.requires_grad else x for x in inputs]
            outputs = code.inference(bare)
        for name, value in zip(code.stage.outputs, outputs, strict=False):
            crossing = self.plan.crossings[name]
            for target in sorted({t % self.ranks for t in crossing.targets}):
                if target == self.rank:
                    call.values[name, m] = _as_typed(value, crossing.type)
                else:
                    communicator().send(value, target, self.axis, f"{name}/{m}")
        for number, place in code.stage.results.items():
            call.results[number, m] = outputs[place]

    def _input(self, call: _Call, code: _Code, kind: str, name: str, m: int) -> Any:
        if kind != "value":
            return self.of_microbatch(call, kind, name, m)
        key = name, m
        if key not in call.values:
            crossing = self.plan.crossings[name]
            like = torch.empty(crossing.type.sizes, dtype=dtype_to_torch(crossing.type.dtype))
            got = communicator().recv(like, crossing.source % self.ranks, self.axis, f"{name}/{m}")
            call.values[key] = _as_typed(got, crossing.type)
        return call.values[key]

    def _backward(self, call: _Call, code: _Code, m: int) -> None:
        number, program = code.stage.number, code.program
        flight = call.flights.pop((number, m), None)
        if flight is None or program is None:
            return
        grads = [self._grad_of(call, code, place, m) for place in program.differentiated]
        if any(g is not None for g in grads):
            found = program.run_backward(flight.saved, grads)
        else:
            found = [None] * sum(code.requires)
        wanted = [i for i, is_wanted in enumerate(code.requires) if is_wanted]
        for i, grad in zip(wanted, found, strict=True):
            if i < len(code.stage.inputs):
                self._hand_back(call, code.stage.inputs[i][1], m, grad, number)
            elif grad is not None:
                path = code.places[i - len(code.stage.inputs)][1]
                call.sums[path] = call.sums[path] + grad if path in call.sums else grad

    def _grad_of(self, call: _Call, code: _Code, place: int, m: int) -> torch.Tensor | None:
        """The gradient of an output: of what later stages used, and of the program's result."""
        total: torch.Tensor | None = None
        if place < len(code.stage.outputs):
            name = code.stage.outputs[place]
            crossing = self.plan.crossings[name]
            for target in crossing.targets if crossing.is_active else ():
                key = f"{name}/{m}/{target}"
                if target % self.ranks == self.rank:
                    grad = call.grads.pop((key, m), None)
                else:
                    like = torch.empty(crossing.type.sizes, dtype=dtype_to_torch(crossing.type.dtype))
                    grad = communicator().recv(like, target % self.ranks, self.axis, key)
                if grad is not None:
                    total = grad if total is None else total + grad
        for result, at in code.stage.results.items():
            if at == place and (f"result {result}", m) in call.grads:
                grad = call.grads.pop((f"result {result}", m))
                total = grad if total is None else total + grad
        return total

    def _hand_back(self, call: _Call, name: str, m: int, grad: torch.Tensor | None, stage: int) -> None:
        crossing = self.plan.crossings[name]
        if grad is None:
            grad = torch.zeros(crossing.type.sizes, dtype=dtype_to_torch(crossing.type.dtype))
        key, source = f"{name}/{m}/{stage}", crossing.source % self.ranks
        if source == self.rank:
            call.grads[key, m] = grad
        else:
            communicator().send(grad, source, self.axis, key)

    # --- its ends

    def outputs(self, call: _Call) -> list[Any]:
        """The program's results for the whole batch, on every rank."""
        found: list[Any] = []
        with self._talking():
            for number, at in enumerate(self.plan.outputs):
                owner = self.owner[number]
                made = [call.results.get((number, m)) for m in range(self.plan.microbatches)]
                if owner == self.rank and isinstance(made[0], torch.Tensor):
                    whole = whole_of(made, at) if isinstance(at, Shard) else made[0]
                    if isinstance(at, Partial):
                        whole = torch.stack(made).sum(0)
                else:
                    whole = self._empty(number, at)
                found.append(communicator().broadcast(whole, owner, self.axis) if self.ranks > 1 else whole)
        return found

    def _empty(self, number: int, at: Any) -> torch.Tensor:
        stage = next(s for s in self.plan.stages if number in s.results)
        value = stage.graph.outputs[stage.results[number]]
        assert isinstance(value, Value)
        type_: Any = value.type
        sizes = list(type_.sizes)
        if isinstance(at, Shard):
            sizes[at.dim] = at.total
        return torch.empty(sizes, dtype=dtype_to_torch(type_.dtype))

    def give_gradients(self, call: _Call, grads: Sequence[torch.Tensor | None]) -> None:
        """The gradients of the results, of the whole batch, as those of what microbatches gave."""
        for number, (grad, at) in enumerate(zip(grads, self.plan.outputs, strict=True)):
            if grad is None or self.owner[number] != self.rank:
                continue
            for m in range(self.plan.microbatches):
                if isinstance(at, Shard):
                    call.grads[f"result {number}", m] = part_of(grad, at, m).contiguous()
                elif isinstance(at, Partial) or m == 0:
                    call.grads[f"result {number}", m] = grad

    def tie(self, call: _Call) -> None:
        """Add up the gradients of parameters that several ranks have, once for all microbatches."""
        with self._talking():
            for axis in sorted(self.entered):
                paths = [path for path in sorted(self.entered[axis]) if path in call.sums]
                flat_sum = communicator().all_reduce(torch.cat([call.sums[p].reshape(-1) for p in paths]), "sum", axis)
                for path, total in zip(paths, flat_sum.split([call.sums[p].numel() for p in paths]), strict=True):
                    call.sums[path] = total.view(call.sums[path].shape)
            has = self._has(call)
            for path, stages in self.plan.ties.items():
                ranks = sorted({s % self.ranks for s in stages})
                if self.rank not in ranks or len(ranks) == 1:
                    continue
                makers = [other for other in ranks if path in has[other]]
                for other in ranks:
                    if other != self.rank and self.rank in makers:
                        communicator().send(call.sums[path], other, self.axis, f"tie {path}/{self.rank}")
                added: torch.Tensor | None = None
                for other in makers:  # in one order, so that all have one sum
                    one = call.sums[path] if other == self.rank else communicator().recv(
                        self._like(path), other, self.axis, f"tie {path}/{other}"
                    )  # fmt: skip
                    added = one if added is None else added + one
                if added is not None:
                    call.sums[path] = added

    def _has(self, call: _Call) -> dict[int, set[str]]:
        """Of which tied parameters ranks have gradients: those of branches that were not taken have none."""
        paths = sorted(self.plan.ties)
        sharing = sorted({s % self.ranks for stages in self.plan.ties.values() for s in stages})
        if not self.plan.may_skip or self.rank not in sharing:
            return {rank: set(paths) for rank in sharing}
        own = torch.tensor([path in call.sums for path in paths], dtype=torch.uint8)
        found = {self.rank: {path for path in paths if path in call.sums}}
        others = [rank for rank in sharing if rank != self.rank]
        for other in others:
            communicator().send(own, other, self.axis, f"ties of {self.rank}")
        for other in others:
            told = communicator().recv(torch.empty_like(own), other, self.axis, f"ties of {other}")
            found[other] = {path for path, is_there in zip(paths, told.tolist(), strict=True) if is_there}
        return found

    def _like(self, path: str) -> torch.Tensor:
        """A tensor of a parameter's size."""
        for code in self.codes.values():
            for value, (_, other) in zip(code.graph.inputs[len(code.stage.inputs) :], code.places, strict=True):
                if other == path and isinstance(value.type, TensorType):
                    return torch.empty(value.type.sizes, dtype=dtype_to_torch(value.type.dtype))
        raise KeyError(path)


def _check_certain(plan: Pipelined, stage: Stage) -> None:
    for number in plan.uncertain & stage.results.keys():
        raise SmeltError(f"result {number} of the program has gradients on some of its paths only", code="S0303")


def _as_typed(tensor: torch.Tensor, type_: TensorType) -> torch.Tensor:
    """A tensor with the strides that native code expects."""
    if tensor.stride() == type_.steps:
        return tensor
    made = torch.empty_strided(type_.sizes, type_.steps, dtype=tensor.dtype)
    return made.copy_(tensor)
