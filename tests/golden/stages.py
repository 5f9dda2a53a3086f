"""What a program becomes at each stage, as text that is the same on each machine.

A source is Python; its last line calls the program. Kernels are lowered for AVX2 and one thread, whatever the machine.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.codegen.llvm.isa import AVX2, compiling_for
from smelt.codegen.lower.lowering import lower
from smelt.codegen.lower.preparing import prepared
from smelt.codegen.lower.report import KernelReport
from smelt.codegen.lower.result import Lowered
from smelt.diag import Options, SmeltError
from smelt.runtime.plan import Instruction, KernelCode, Launch, Plan, Word

FILE = "case.py"
Called = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@contextmanager
def program(source: str) -> Iterator[Called]:
    """The program of a source, and the arguments of its call."""
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    module = types.ModuleType("case")
    module.__dict__.update({"torch": torch, "nn": nn, "F": F, "smelt": smelt})
    tree = ast.parse(source)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr) and isinstance(last.value, ast.Call), "the last line calls the program"
    torch.manual_seed(0)
    with torch.random.fork_rng():
        exec(compile(tree, FILE, "exec"), module.__dict__)
        call = last.value
        parts = [compile(ast.Expression(one), FILE, "eval") for one in (call.func, *call.args)]
        target, *args = (eval(part, module.__dict__) for part in parts)
        named = {k.arg: eval(compile(ast.Expression(k.value), FILE, "eval"), module.__dict__) for k in call.keywords}
        yield target, tuple(args), {str(name): value for name, value in named.items()}


def traced(called: Called, **options: Any) -> smelt.Program:
    """The program of a call."""
    target, args, kwargs = called
    return smelt.trace(target, args, kwargs, check=False, options={"measure": False, **options})


def graph(called: Called) -> str:
    """What a person reads of the program."""
    with torch.no_grad():
        return str(traced(called).graph)


def optimized(called: Called) -> str:
    """The graph behind all passes."""
    with torch.no_grad(), compiling_for(AVX2), one_thread():
        unit = traced(called).unit
        return str(unit.optimize())


def ready(called: Called) -> str:
    """The graph that is lowered."""
    with torch.no_grad(), compiling_for(AVX2), one_thread():
        return str(prepared(traced(called).unit.optimize(), Options(measure=False)).graph)


def script(called: Called) -> str:
    """The graph of a program's source, without a run."""
    return str(smelt.script(called[0]).graph)


def gradient(called: Called) -> str:
    """The graph that gives a program's result, and its gradients in all inputs of floats."""
    with torch.no_grad():
        return str(traced(called).grad_graph())


# --- plans and nests -------------------------------------------------------------------------------------------------


@contextmanager
def one_thread() -> Iterator[None]:
    """As on a machine with one core, where eager takes vectors of AVX2."""
    with (
        mock.patch.object(torch, "get_num_threads", lambda: 1),
        mock.patch.object(os, "cpu_count", lambda: 1),
        mock.patch.object(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2"),
    ):
        yield


def lowered(called: Called) -> Lowered:
    """A program's plan, without code."""
    with torch.no_grad(), compiling_for(AVX2), one_thread():
        unit = traced(called).unit
        return lower(unit.optimize(), unit.lookup, Options(measure=False), build=False)


def plan(called: Called) -> str:
    """The instructions, one a line, with the slots that the caller and the plan own."""
    made = lowered(called)
    return _Plan(made.plan, made.report.kernels).text()


_UNSHOWN = {"eager", "words", "item_ns", "scratch_nbytes", "piece_of", "may_refuse", "span", "node", "kernel", "label"}


class _Plan:
    """A plan as text: kernels by their order, held tensors by their types."""

    def __init__(self, made: Plan, reports: tuple[KernelReport, ...]) -> None:
        self.plan, self._reports = made, iter(reports)
        self._kernels: dict[str, str] = {}

    def text(self) -> str:
        made = self.plan
        lines = [f"inputs {list(made.inputs)}, outputs {list(made.outputs)}, {made.nslots} slots"]
        lines += [f"held {slot}: {_tensor(tensor)}" for slot, tensor in made.held]
        depth = 0
        for instruction in made.instructions:
            name = type(instruction).__name__
            depth -= name in ("End", "Otherwise")
            lines.append("  " * (depth + 1) + self._line(instruction))
            depth += name in ("Branch", "Loop", "Otherwise")
        return "\n".join(lines)

    def _line(self, instruction: Instruction) -> str:
        if isinstance(instruction, Launch):
            report = next(self._reports)
            name = self._kernels.setdefault(instruction.kernel.symbol, f"k{len(self._kernels)}")
            computes = report.label or ", ".join(node.split(" = ")[-1] for node in report.nodes)
            return f"{name}({', '.join(map(str, instruction.buffers))})  # {computes}, {instruction.items} items"
        return self._value(instruction)

    def _value(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return _tensor(value)
        if isinstance(value, KernelCode):
            return self._kernels.setdefault(value.symbol, f"k{len(self._kernels)}")
        if type(value) is Word:
            return "word"
        if is_dataclass(value) and not isinstance(value, type):
            shown = [f for f in fields(value) if f.name not in _UNSHOWN and not f.name.startswith("_")]
            inner = [self._value(getattr(value, f.name)) for f in shown if f.repr]
            return f"{type(value).__name__}({', '.join(inner)})"
        if isinstance(value, (list, tuple)):
            inner = [self._value(one) for one in value]
            return f"[{', '.join(inner)}]"
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{k}: {self._value(v)}" for k, v in value.items()) + "}"
        if callable(value) and not isinstance(value, type):
            return str(getattr(value, "__name__", None) or value)
        return masked(str(value))


def _tensor(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} by {list(tensor.stride())}"


def nest(called: Called) -> str:
    """The loop nests, each under what it computes."""
    report = lowered(called).report
    heads = [", ".join(one.nodes) for one in report.kernels]
    nests = [str(one) for one in report.nests if one is not None]
    rest = [f"{head}: {one.label}" for head, one in zip(heads, report.kernels, strict=True) if one.label]
    return "\n\n".join([*nests, "\n".join(rest)]).strip() or "no nest"


# --- guards ----------------------------------------------------------------------------------------------------------


def guards(called: Called) -> str:
    """The guards that a person sees, then the test of the arguments, after two calls."""
    target, args, kwargs = called
    with torch.no_grad(), one_thread():
        compiled = smelt.compile(target, options={"measure": False})
        compiled(*args, **kwargs)
    (row,) = compiled.stats().rows
    table = row.guards
    settings = {"state", "hooks"}
    shown = [f"{g.kind}  {masked(str(g))}" for g in table.listed if g.kind not in settings]
    lines = [masked(line) for line in table.source.splitlines() if "read_grad()" not in line]
    return "\n".join([*shown, "", *lines])


def masked(text: str) -> str:
    """A text without addresses and paths of installed packages."""
    text = re.sub(r"(?<=0x)[0-9a-f]{4,}", "...", text)
    return re.sub(r"[\"']?/[^\"' ]*/(?:site-packages|tests|src)/[^\"' ]*", '".../', text)


STAGES: Mapping[str, Callable[[Called], str]] = {
    "graph": graph,
    "prepared": ready,
    "script": script,
    "optimized": optimized,
    "gradient": gradient,
    "plan": plan,
    "nest": nest,
    "guards": guards,
}


def outcome(how: str, source: str) -> str:
    """The text of a source at a stage, or the first line of the error."""
    stage = STAGES[how.removeprefix("stage:").strip()]
    with warnings.catch_warnings(record=True) as warned, program(source) as called:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", smelt.SmeltWarning)
        try:
            text = stage(called)
        except SmeltError as error:
            text = f"error: {str(error).splitlines()[0]}"
    return masked("\n".join([text, *(f"warning: {one.message}" for one in warned)]))
