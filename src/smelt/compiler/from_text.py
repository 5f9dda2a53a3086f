"""A program that is there as the text of its graphs: run by torch's operators, or compiled here.

This is what `smelt.runtime.ingot` reaches for where a file's native code does not fit, or gradients are needed.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from smelt._torch.autocast import no_autocast
from smelt.codegen.lower import Lowered, lower
from smelt.compiler.pipeline import optimized_graph
from smelt.compiler.unit import machine_code
from smelt.diag import Options, PackageError, SmeltError, SmeltWarning, user_level
from smelt.ir import Graph, parse
from smelt.ops.evaluate import evaluate
from smelt.runtime.executable import Executable
from smelt.runtime.guard_constants import Constants

Lookup = Callable[[str, str], torch.Tensor]


class TextProgram:
    """An entry point by its graphs' texts: the functional graph, and the one with the program's own writes.

    constants: data of large constants by their hash.
    """

    def __init__(
        self, text: str, as_written: str, constants: Mapping[str, torch.Tensor], options: Mapping[str, Any]
    ) -> None:
        self._text, self._as_written_text, self._constants = text, as_written, constants
        self._options = Options.make(options)
        self._lock = threading.Lock()
        self._compiled: tuple[Lowered, Executable, Constants] | None = None
        self._live: tuple[torch.Tensor, ...] = ()
        self._failed = False

    @cached_property
    def graph(self) -> Graph:
        """The functional graph. Raises: PackageError (S0701) where the text does not parse."""
        return self._parsed(self._text)

    @cached_property
    def _as_written(self) -> Graph:
        return self._parsed(self._as_written_text)

    def _parsed(self, text: str) -> Graph:
        try:
            return parse(text, self._constants)
        except SmeltError as error:
            raise PackageError(
                f"the ingot's graph cannot be read: {error.what}", why=error.why, fix=error.fix, code="S0701"
            ) from None

    def run(self, inputs: Sequence[torch.Tensor], lookup: Lookup, *, native: bool) -> Sequence[Any]:
        """The graph's outputs; native: compile it, once for each state of what is baked in."""
        compiled = self._ready(lookup) if native and not self._failed else None
        if compiled is None:
            return evaluate(self._as_written, inputs, lookup, as_written=True)
        lowered, executable, _ = compiled
        return lowered.rebuild(executable.call(*inputs), inputs, lookup)

    def _ready(self, lookup: Lookup) -> tuple[Lowered, Executable, Constants] | None:
        with self._lock:
            if self._compiled is not None and self._is_current(self._compiled, lookup):
                return self._compiled
            try:
                with no_autocast():
                    lowered = lower(optimized_graph(self.graph, self._options, lookup)[0], lookup, self._options)
                    executable = Executable(lowered.plan, machine_code(self._options))
            except SmeltError as error:
                self._failed = True
                warnings.warn(f"the program runs operator by operator: {error}", SmeltWarning, stacklevel=user_level())
                return None
            baked = Constants([lookup(name.kind, name.path) for name in lowered.constants])
            self._live = tuple(lookup(name.kind, name.path) for name in lowered.handles)
            self._compiled = lowered, executable, baked
            return self._compiled

    def _is_current(self, compiled: tuple[Lowered, Executable, Constants], lookup: Lookup) -> bool:
        """Whether the state holds the tensors that the plan has, and those that were packed as they were."""
        lowered, _, baked = compiled
        live = zip(self._live, lowered.handles, strict=True)
        if not all(lookup(name.kind, name.path) is tensor for tensor, name in live):
            return False
        names = zip(baked.tensors, lowered.constants, strict=True)
        return all(lookup(name.kind, name.path) is t for t, name in names) and baked.unchanged()
