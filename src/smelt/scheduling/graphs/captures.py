"""The graphs in which a schedule searches: one of the whole model, or of what of it can be captured.

Invariant: the model is not run, but where example inputs are given: then a copy of it is. Sources are read on a copy,
too, since what they do to Python's objects (`requires_grad_`, hooks) happens.
A program that ends in an error has a graph up to that line; modules that it did not reach are captured on their own.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from smelt.capture import capture
from smelt.compiler import script
from smelt.compiler.pipeline import functional_graph
from smelt.compiler.staged import staged_capture
from smelt.diag import Options, ScheduleError, SmeltError, SmeltWarning, Span
from smelt.ir import Graph, is_under
from smelt.scheduling.comparing.compare_runs import searched
from smelt.scheduling.comparing.observing import ObservedRun
from smelt.scheduling.finding.forms import STATE
from smelt.scheduling.finding.probing import probe_of
from smelt.scheduling.finding.target import Target, join


def captures_of(
    model: torch.nn.Module, examples: tuple[Any, ...] | None
) -> tuple[list[Target], list[str], ObservedRun | None]:
    """The model's graphs prepared for searching, what to know of them (lines at which they end), and the run.

    Raises: ScheduleError (S0605) where nothing of the model can be captured, or a call computes nothing on tensors.
    """
    modules = dict(model.named_modules())
    notes: list[str] = []
    if examples is not None:
        graph, run = _traced(model, examples, notes)
        if graph is not None:
            _check_computes(model, graph, examples)
            return [Target(graph, "", modules)], notes, run
    with contextlib.ExitStack() as stack:
        read = model
        with contextlib.suppress(ScheduleError):  # what cannot be copied is read as it is
            read = stack.enter_context(probe_of(model))
        found = list(_scripted("", read, modules, examples, notes))
    if not any(len(target.by_key.keys() - {"param", "buffer", "py.raise"}) for target in found):
        raise ScheduleError(
            f"nothing of {type(model).__name__} can be captured", why="; ".join(notes),
            fix="give the arguments of a call: smelt.schedule(model, example_inputs=(x,))", code="S0605",
        )  # fmt: skip
    return found, notes, None


def _check_computes(model: torch.nn.Module, graph: Graph, examples: tuple[Any, ...]) -> None:
    """Raises: ScheduleError (S0605) where Python computed all, from numbers: then there is nothing to be found."""
    numbers = [value for value in examples if isinstance(value, bool | int | float | complex)]
    if numbers and not graph.inputs and all(node.op in (*STATE, "const", "write") for node in graph.walk()):
        given = ", ".join(map(repr, numbers))
        raise ScheduleError(
            f"{type(model).__name__} computes nothing on tensors in a call with {given}",
            why="what is computed from Python's numbers alone is a constant of the graph, in which nothing is found",
            fix=f"give tensors: torch.tensor({numbers[0]!r}), not {numbers[0]!r}", code="S0605",
        )  # fmt: skip


def _traced(
    model: torch.nn.Module, examples: tuple[Any, ...], notes: list[str]
) -> tuple[Graph | None, ObservedRun | None]:
    with warnings.catch_warnings(), searched():
        warnings.simplefilter("ignore", SmeltWarning)
        try:
            run = ObservedRun(model)
            with run.watched() as probe:
                return _graph_of(probe, examples), run
        except Exception as error:  # the model's own, or ours: what can be captured without a run is searched
            notes.append(f"a run ends in {type(error).__name__}: {_first_line(error)}")
            return None, None


def _graph_of(probe: torch.nn.Module, examples: tuple[Any, ...]) -> Graph:
    """The functional graph of a run, with all its ways where that can be.

    Raises: whatever the run raises, SmeltError where there is none.
    """
    captured = capture(probe, examples, specialize=True)
    if captured.error is not None:
        raise captured.error
    if captured.conversions:
        staged = staged_capture(captured, probe, examples, {})
        if staged.error is None and staged.graph is not None:
            with contextlib.suppress(SmeltError):  # whatever is wrong with it, the recorded way stands
                return functional_graph(staged.graph, Options(), staged.entangled)[0]
    assert captured.graph is not None
    return functional_graph(captured.graph, Options(), captured.entangled)[0]


def _scripted(
    prefix: str,
    module: torch.nn.Module,
    modules: Mapping[str, torch.nn.Module],
    examples: tuple[Any, ...] | None,
    notes: list[str],
) -> Iterator[Target]:
    """The graph of a module from its source, and of those below that it does not reach."""
    reached: set[str] = set()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            graph = script(module, example_inputs=examples).graph
        except SmeltError as error:
            graph = None
            notes.append(_note(prefix, module, _first_line(error), error.where))
    if graph is not None:
        target = Target(graph, prefix, modules)
        reached = {target.path_of(node) for node in target.nodes if node.op != "py.raise"}
        yield target
        last = graph.body.last
        if last is None or last.op != "py.raise":
            return
        told = next((w for w in said if issubclass(w.category, SmeltWarning)), None)
        where = Span(told.filename, told.lineno) if told is not None else last.span
        notes.append(_note(prefix, module, ": ".join(str(arg).removeprefix("builtins.") for arg in last.args), where))
    for name, child in module.named_children():
        path = join(prefix, name)
        if type(child) in (torch.nn.ModuleList, torch.nn.ModuleDict):
            below = [(join(path, inner), grandchild) for inner, grandchild in child.named_children()]
        else:
            below = [(path, child)]
        for inner_path, inner in below:
            if not any(is_under(found, inner_path) for found in reached):
                yield from _scripted(inner_path, inner, modules, None, notes)


def _note(prefix: str, module: torch.nn.Module, said: str, where: Span | None) -> str:
    place = f" at {where}" if where is not None else ""
    return f"{prefix or 'the whole'} ({type(module).__name__}) ends in {said}{place}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
