"""The graphs of single modules' forwards while a schedule is made: what steps on matches edit.

Invariant: with example inputs a copy of the model runs once to see how the modules are called; without, or where that
run fails, the graph is the one of the module's source, and types may be open.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from smelt.compiler import script
from smelt.diag import ScheduleError, SmeltError, SmeltWarning
from smelt.ir import Graph
from smelt.scheduling.comparing.compare_runs import searched
from smelt.scheduling.comparing.observing import ObservedRun
from smelt.scheduling.finding.probing import probe_of, run_seen
from smelt.scheduling.finding.target import Target, join
from smelt.scheduling.graphs.editing import Edited, GraphStep, edit
from smelt.scheduling.graphs.scheduled import scheduled_of
from smelt.scheduling.graphs.scope_capture import ScopeCapture, capture_scope
from smelt.scheduling.graphs.scope_twins import Call, Known, twins
from smelt.scheduling.modules.module_steps_forward import surroundings

_COMPARED = 4  # captures of one class that another call is compared with


@dataclass(frozen=True, eq=False)
class ScopeGraph:
    """One module's graph: as captured, and with the steps taken.

    source: the graph as captured, for this module or for its like. is_concrete: from a run, so that all types are
    known. tensors: a copy of its parameters and buffers, by path. like: another module with this graph, on which the
    same steps were taken: what is asked of graphs and is not about their nodes is asked of that one.
    """

    path: str
    module: torch.nn.Module
    source: Graph
    steps: tuple[GraphStep, ...]
    is_concrete: bool
    tensors: Mapping[str, torch.Tensor]
    like: ScopeGraph | None = None

    @cached_property
    def original(self) -> Graph:
        """The graph as captured: nodes of its own."""
        return self.source if self.like is None else self.source.clone()

    @cached_property
    def edited(self) -> Edited:
        """The graph with the steps taken. Raises: ScheduleError of a step."""
        return edit(
            self.original, self.module, self.steps, self.path, is_concrete=self.is_concrete, tensors=self.tensors
        )  # fmt: skip

    @cached_property
    def target(self) -> Target:
        """The edited graph, prepared for a search."""
        return self._prepared(self.edited.graph)

    @cached_property
    def original_target(self) -> Target:
        """The graph as captured, prepared for a search."""
        return self._prepared(self.original)

    def _prepared(self, graph: Graph) -> Target:
        modules = {join(self.path, name): module for name, module in self.module.named_modules()}
        return Target(graph, self.path, modules, self.original)

    def with_step(self, step: GraphStep, module: torch.nn.Module, like: ScopeGraph | None = None) -> ScopeGraph:
        """The same with one more step, over another copy of the module.

        like: of which the step has been taken. Raises: ScheduleError of the step.
        """
        steps = (*self.steps, step)
        alike = like if like is not None and _are_same(like.steps, steps) else None
        scope = ScopeGraph(self.path, module, self.source, steps, self.is_concrete, self.tensors, alike)
        return scope.checked()

    def checked(self) -> ScopeGraph:
        """The same. Raises: ScheduleError where a step cannot be taken."""
        if self.like is None:
            _ = self.edited
        return self


def _are_same(steps: Sequence[GraphStep], others: Sequence[GraphStep]) -> bool:
    """Whether steps do the same to two graphs that are alike."""
    return len(steps) == len(others) and all(
        (a.name, a.edit, a.keeps_meaning) == (b.name, b.edit, b.keeps_meaning)
        and a.selector is b.selector
        and a.arguments.keys() == b.arguments.keys()
        and all(_is_same(value, b.arguments[name]) for name, value in a.arguments.items())
        for a, b in zip(steps, others, strict=True)
    )


def _is_same(value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and type(value) in (bool, int, str) and value == other)


def paths_with_steps(tree: torch.nn.Module) -> tuple[str, ...]:
    """The modules of a tree of whose graphs steps were taken."""
    return tuple(name for name, module in tree.named_modules() if scheduled_of(module) is not None)


def scope_graphs(
    tree: torch.nn.Module, examples: Sequence[Any] | None, paths: Iterable[str], run: ObservedRun | None = None
) -> dict[str, ScopeGraph]:
    """The graphs of the modules at these paths, with the steps that were taken on them.

    run: one of the tree that was searched.

    Raises: ScheduleError (S0605, S0613) where a module cannot be captured as one straight graph.
    """
    wanted, found = list(paths), dict[str, ScopeGraph]()
    with _observed(tree, examples, wanted, run) as seen:
        captured = _captures(seen, wanted)
    for path in wanted:
        module = tree.get_submodule(path)
        now = scheduled_of(module)
        steps = now.steps if now is not None else ()
        if path in captured:
            source, tensors, first = captured[path]
            like = found.get(first)
            alike = like if like is not None and _are_same(like.steps, steps) else None
            scope = ScopeGraph(path, module, source if alike else source.clone(), steps, True, tensors, alike)
        else:
            scope = ScopeGraph(path, module, _from_source(module, path), steps, False, {})
        found[path] = scope.checked()
    return found


_Made = tuple[Graph, Mapping[str, torch.Tensor], str]


def _captures(seen: Mapping[str, Call], paths: Iterable[str]) -> dict[str, _Made]:
    """The graph of each call, the tensors behind it, and the path of which it is: like calls are captured once."""
    made: dict[str, _Made] = {}
    runs: dict[type, list[tuple[str, Call, ScopeCapture]]] = {}
    ready: dict[str, Known] = {}
    for path in paths:
        call = seen.get(path)
        if call is None:
            continue
        known = runs.setdefault(type(call.module), [])
        for first, run, capture in known[-_COMPARED:]:
            if capture.reads is None:
                continue
            if first not in ready:
                ready[first] = Known(capture.reads, capture.state)
            tensors = twins(run, ready[first], call)
            if tensors is not None:
                made[path] = capture.graph, tensors, first
                break
        else:
            scheduled, around = scheduled_of(call.module), surroundings(call.module)
            own = call.module.forward if around is None else around.original
            forward = own if scheduled is None else scheduled.original
            try:
                capture = capture_scope(call.module, forward, call.args, call.kwargs, guarded=False)
            except SmeltError:
                raise
            except Exception as error:  # the program's own
                raise ScheduleError(
                    f"the forward of {path or 'the whole'} raises {type(error).__name__} when it runs again: {error}",
                    why="it runs once more on the arguments of a call, which that call may have changed",
                    fix="select a smaller module, in which this does not happen", code="S0613",
                ) from error  # fmt: skip
            known.append((path, call, capture))
            ready.clear()  # what other runs read may have changed in this one
            made[path] = capture.graph, capture.state, path
    return made


@contextlib.contextmanager
def _observed(
    tree: torch.nn.Module, examples: Sequence[Any] | None, paths: Sequence[str], run: ObservedRun | None
) -> Iterator[Mapping[str, Call]]:
    """The first call of each of the modules in a run of a probe, which lives as long as the block."""
    seen: dict[str, Call] = {}
    if examples is None:
        yield seen
        return
    known = None if run is None else run.calls(tree, paths)
    if run is not None and known is not None:
        with run.probe.entered():
            yield known
        return
    with probe_of(tree) as probe:
        if list(paths) == [""]:
            yield {"": Call(probe, tuple(examples), {})}
            return
        handles = []
        for path in paths:

            def note(module: torch.nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
                seen.setdefault(path, Call(module, args, kwargs))

            handles.append(probe.get_submodule(path).register_forward_pre_hook(note, with_kwargs=True))
        # What a run raises is told by the search; what was reached before it is known all the same.
        with torch.random.fork_rng(devices=[]), contextlib.suppress(Exception), warnings.catch_warnings(), searched():
            warnings.simplefilter("ignore")
            run_seen(probe, examples)
        for handle in handles:
            handle.remove()
        yield seen


def _from_source(module: torch.nn.Module, path: str) -> Graph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        try:
            return script(module).graph
        except SmeltError as error:
            raise ScheduleError(
                f"the forward of {path or 'the whole'} ({type(module).__name__}) cannot be captured: {error.what}",
                error.where, error.why, "give the arguments of a call: smelt.schedule(model, example_inputs=(x,))",
                "S0605",
            ) from error  # fmt: skip
