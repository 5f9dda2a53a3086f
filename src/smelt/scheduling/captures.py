"""The graphs in which a schedule searches: one of the whole model, or of what of it can be captured.

Invariant: the model is not run, but where example inputs are given: then a copy of it is.
A program that ends in an error has a graph up to that line; modules that it did not reach are captured on their own.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from smelt.compiler import script, trace
from smelt.diag import ScheduleError, SmeltError, SmeltWarning, Span
from smelt.ir import Graph
from smelt.scheduling.target import Target, is_under, join


def captures_of(model: torch.nn.Module, examples: tuple[Any, ...] | None) -> tuple[list[Target], list[str]]:
    """The model's graphs prepared for searching, and what to know of them: lines at which they end.

    Raises: ScheduleError (S0605) where nothing of the model can be captured.
    """
    modules = dict(model.named_modules())
    notes: list[str] = []
    if examples is not None:
        graph = _traced(model, examples, notes)
        if graph is not None:
            return [Target(graph, "", modules)], notes
    found = list(_scripted("", model, modules, examples, notes))
    if not any(len(target.by_key.keys() - {"param", "buffer", "py.raise"}) for target in found):
        raise ScheduleError(
            f"nothing of {type(model).__name__} can be captured", why="; ".join(notes),
            fix="give the arguments of a call: smelt.schedule(model, example_inputs=(x,))", code="S0605",
        )  # fmt: skip
    return found, notes


def _traced(model: torch.nn.Module, examples: tuple[Any, ...], notes: list[str]) -> Graph | None:
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", SmeltWarning)
        try:
            return trace(copy.deepcopy(model), examples, check=False).graph
        except Exception as error:  # the model's own, or ours: what can be captured without a run is searched
            notes.append(f"a run ends in {type(error).__name__}: {_first_line(error)}")
            return None


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
