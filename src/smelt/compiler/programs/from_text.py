"""A program that is there as the text of its graphs: run by torch's operators, or compiled here.

This is what `smelt.runtime.ingot` reaches for where a file's native code does not fit, or gradients are needed.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from smelt._torch.autocast import no_autocast
from smelt.codegen.lower import Lowered, lower
from smelt.codegen.lower.symbolic import specialize
from smelt.compiler.pipeline import optimized_graph
from smelt.compiler.unit import machine_code
from smelt.diag import Options, PackageError, SmeltError, SmeltWarning, user_level
from smelt.ir import Graph
from smelt.ops.evaluate import evaluate
from smelt.ops.upgrades import read_graph
from smelt.runtime.executable import Executable
from smelt.runtime.guarding.guard_constants import Constants

Lookup = Callable[[str, str], torch.Tensor]
_MOST_SIZES = 32
"""Values of free sizes for which what was compiled is kept."""


class TextProgram:
    """An entry point by its graphs' texts: the functional graph, and the one with the program's own writes.

    constants: data of large constants by their hash. operators, version: the schemas that operators had
    in the torch that it was saved with.
    """

    def __init__(
        self, text: str, as_written: str, constants: Mapping[str, torch.Tensor], options: Mapping[str, Any],
        operators: Mapping[str, str], version: str,
    ) -> None:  # fmt: skip
        self._text, self._as_written_text, self._constants = text, as_written, constants
        self._operators, self._torch = operators, version
        self._options = Options.make(options)
        self._lock = threading.Lock()
        self._compiled: tuple[Lowered, Executable, Constants] | None = None
        self._live: tuple[torch.Tensor, ...] = ()
        self._failed = False
        self._at: OrderedDict[tuple[int, ...], TextProgram] = OrderedDict()

    def at(self, sizes: Mapping[str, int]) -> TextProgram:
        """The program for these values of its free sizes: itself where it has none."""
        if not sizes:
            return self
        key = tuple(sizes.values())
        with self._lock:
            found = self._at.get(key)
            if found is None:
                found = TextProgram(
                    self._text, self._as_written_text, self._constants, {}, self._operators, self._torch
                )
                found._options = self._options
                found.__dict__["graph"] = specialize(self.graph, sizes)
                found.__dict__["_as_written"] = self._as_written
                self._at[key] = found
                if len(self._at) > _MOST_SIZES:
                    self._at.popitem(last=False)
            self._at.move_to_end(key)
            return found

    @cached_property
    def graph(self) -> Graph:
        """The functional graph. Raises: PackageError (S0701) where the text does not parse."""
        return self._parsed(self._text)

    @cached_property
    def _as_written(self) -> Graph:
        return self._parsed(self._as_written_text)

    def _parsed(self, text: str) -> Graph:
        try:
            return read_graph(text, self._constants, self._operators, self._torch)
        except PackageError:
            raise
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
