"""Programs that TorchScript saved (`torch.jit.save`), as Programs of Smelt.

    archive -- torch.jit.load --> its inlined graph -- written as Python --> forward(self, x) -- traced --> Program

The graph that torch shows of a loaded module (`inlined_graph`) has branches, loops and every call inlined. It is
written as one Python function over a plain module with the same parameters and buffers; from there on it is a program
like any other: branches and loops over data are part of the graph, and the Program is saved, compiled and trained.

Invariant: nothing of the archive's source is run; of the graph each operator is written by its name and overload, and
an operator of Python's values that is not known is refused, by its line.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, BinaryIO

import torch

from smelt.compiler.doors.torchscript_source import Source
from smelt.compiler.programs.program import Program
from smelt.compiler.programs.tracing import trace
from smelt.diag import CaptureError, Options

_numbers = count()


class _Module(torch.nn.Module):
    """A module of the archive, without its code; values that its code reads are attributes."""


def from_torchscript(
    source: str | os.PathLike[str] | BinaryIO | torch.jit.ScriptModule,
    example_inputs: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    options: Mapping[str, Any] | Options | None = None,
) -> Program:
    """The Program of a TorchScript archive, or of a module that `torch.jit` gave: of its `forward`.

    It has the module's own parameters and buffers, under their names. example_inputs: what `smelt.trace` takes.
    Raises: CaptureError (S0104) naming an operator that has no form here, with the line of the original source; as
        `trace`; what `torch.jit.load` raises.
    """
    script = source if isinstance(source, torch.jit.ScriptModule) else torch.jit.load(source, map_location="cpu")
    return trace(module_of(script), tuple(example_inputs), dict(example_kwargs or {}), options=options)


def module_of(script: torch.jit.ScriptModule) -> torch.nn.Module:
    """A plain module whose `forward` does what the script's does, over the same state. Raises: CaptureError (S0104)."""
    if not hasattr(script, "inlined_graph"):
        raise CaptureError(
            "the TorchScript module has no forward",
            why="a Program is made of the method that a call of the module runs",
            fix="save a module with forward, or export the method that is wanted as forward",
            code="S0104",
        )
    whole = _plain(script, {})
    source = Source(script, whole)
    file = f"<torchscript {next(_numbers)}>"
    text = source.text()
    # Where the converter, tracebacks and reports look for lines.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {**source.constants, "torch": torch}
    exec(compile(text, file, "exec"), scope)
    kind = type(script.original_name or "Scripted", (_Module,), {"forward": scope["forward"]})
    whole.__class__ = kind
    return whole


def _plain(script: torch.jit.ScriptModule, known: dict[Any, torch.nn.Parameter]) -> torch.nn.Module:
    """The module and those in it, over the same memory; known: parameters by where they lie, so that ties stay."""
    made = _Module()
    made.training = getattr(script, "training", False)  # a frozen one has no flag
    for name, parameter in script.named_parameters(recurse=False):
        key = parameter.data_ptr(), parameter.dtype, tuple(parameter.shape), parameter.stride()
        found = known.get(key) if parameter.numel() else None
        if found is None:
            found = known[key] = torch.nn.Parameter(parameter.detach(), parameter.requires_grad)
        made.register_parameter(name, found)
    kept = script.state_dict(keep_vars=True)
    for name, buffer in script.named_buffers(recurse=False):
        made.register_buffer(name, buffer, persistent=name in kept)
    for name, child in script.named_children():
        made.add_module(name, _plain(child, known))
    return made
