"""Small programs as text: what the random tests write, shrink, print and keep as regressions."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.differential.compare import ROUNDINGS
from tests.differential.tensors import tensor

_numbers = itertools.count()


@dataclass(frozen=True)
class Program:
    """inputs: expressions for x0, x1, …, which may use earlier ones and `seed`. state: the same for s0, s1, …

    lines: statements. result: the expression that is returned. is_module: the state are parameters (even numbers) and
    buffers (odd) of a module, spelled `self.s0`; otherwise globals. is_exact: no product, so every bit must agree.
    """

    inputs: tuple[str, ...]
    lines: tuple[str, ...]
    result: str
    state: tuple[str, ...] = ()
    is_module: bool = False
    is_exact: bool = True

    def source(self) -> str:
        """The function's, or the module's `forward`, text."""
        names = [f"x{i}" for i in range(len(self.inputs))]
        head = f"def forward({', '.join((['self'] if self.is_module else []) + names)}):"
        return "\n".join((head, *(f"    {line}" for line in self.lines), f"    return {self.result}", ""))

    @property
    def rounding(self) -> float:
        """Of the narrowest dtype that the program names: a product in it may have been widened since."""
        text = "".join((*self.inputs, *self.state, *self.lines, self.result))
        return max((value for dtype, value in ROUNDINGS.items() if str(dtype) in text), default=0.0)


@dataclass
class Subject:
    """A program ready to be called, with its live state."""

    fn: Callable[..., Any]
    state: list[torch.Tensor]


def make_inputs(program: Program, seed: int, layout: str | None = None) -> list[torch.Tensor]:
    """Fresh inputs; the same for the same seed, with other values for another. layout: in place of the written ones."""

    def make(number: int, shape: Sequence[int], dtype: torch.dtype, how: str, kind: str) -> torch.Tensor:
        return tensor(1000 * seed + number, shape, dtype, layout or how, kind)

    space: dict[str, Any] = {"torch": torch, "T": make}
    for i, text in enumerate(program.inputs):
        space[f"x{i}"] = eval(text, space)
    return [space[f"x{i}"] for i in range(len(program.inputs))]


def make_subject(program: Program) -> Subject:
    """A new function or module with state of its own."""
    text = program.source()
    file = f"<program {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "__name__": "programs", "T": tensor}
    state: list[torch.Tensor] = []
    for i, expression in enumerate(program.state):
        state.append(eval(expression, space | {f"s{at}": value for at, value in enumerate(state)}))
        if not program.is_module:
            space[f"s{i}"] = state[i]
    exec(compile(text, file, "exec"), space)
    forward = space["forward"]
    if not program.is_module:
        return Subject(forward, state)
    module = type("Random", (torch.nn.Module,), {"forward": forward, "__module__": "programs"})()
    for i, value in enumerate(state):
        if i % 2:
            module.register_buffer(f"s{i}", value)
        else:
            module.register_parameter(f"s{i}", torch.nn.Parameter(value, requires_grad=False))
    module.eval()
    return Subject(module, [getattr(module, f"s{i}") for i in range(len(state))])
