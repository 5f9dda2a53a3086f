"""Random programs in which Python asks tensors about themselves: bases, versions, strides, offsets, flags, identity.

    h, w = x.shape
    t1 = x * 2
    t2 = t1.reshape(-1)
    t2.add_(1)
    seen.append(t2._base is t1)
    seen.append(t1._version)

Sizes are other ones at each call. A statement that raises in eager for some call's sizes is not written.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from random import Random
from typing import Any

import torch

from tests.programs.asks_tables import ASKS, CHANGES, MAKERS, RISKY, SOURCES, VIEWS
from tests.programs.generate import Generated
from tests.programs.sized import argument

_HEIGHTS = (3, 3, 4, 5, 7, 12, 2, 1)
_INPUTS = {"x": "float32", "v": "float32", "p": "float32", "k": "int64"}
_MOST_ELEMENTS = 4096
_HEAD = """import torch
import torch.nn.functional as F
from torch import nn

NAN = float('nan')


class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0
        self.flag = False
        self.log = []
        self.register_buffer('buffer', torch.tensor([[1.0, -2.0, 0.5], [3.0, 4.0, 1.5]]))
        self.register_buffer('steps', torch.tensor(0))

    def forward(self, x, v, p, k):
        h, w = x.shape
        seen = []
"""
_TAIL = """

def make():
    return Program().eval()


def calls():
    return [
{calls}
    ]
"""


class _Owner:
    """Stands for the module while a program is written."""

    def __init__(self) -> None:
        self.buffer = torch.tensor([[1.0, -2.0, 0.5], [3.0, 4.0, 1.5]])


class _Writer:
    """Writes one program, and runs what it has for each call's arguments."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.constructs: Counter[str] = Counter()
        self.lines: list[str] = []
        self.names: list[str] = list(_INPUTS)
        self.calls = [self._call(height) for height in self._heights()]
        self.spaces = [self._space(text) for text in self.calls]
        self.has_risk = self.rng.random() < 0.2

    def _heights(self) -> list[int]:
        heights = self.rng.sample(_HEIGHTS, 5)
        heights[0] = max(heights[0], self.rng.choice((2, 2, 2, 1)))
        if self.rng.random() < 0.1:
            heights[self.rng.randint(1, 4)] = 0
        return heights

    def _call(self, height: int) -> str:
        width = height + 1 if self.rng.random() < 0.8 else self.rng.choice((1, 4, 6))
        dims = {"x": [height, width], "v": [width], "p": [height, 2], "k": [width]}
        return f"({', '.join(self._argument(_INPUTS[name], dims[name]) for name in _INPUTS)},)"

    def _argument(self, dtype: str, shape: list[int]) -> str:
        """The text of a tensor, which is a view of another or has memory of its own."""
        text = argument(self.rng, dtype, shape)
        return f"({text}).clone()" if self.rng.random() < 0.5 else text

    def _space(self, text: str) -> dict[str, Any]:
        space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "self": _Owner(), "seen": []}
        space.update(zip(_INPUTS, eval(text, {"torch": torch}), strict=True))
        space["h"], space["w"] = space["x"].shape
        return space

    def write(self, size: int) -> None:
        """Statements, of which about half ask."""
        for name in _INPUTS:
            if self.rng.random() < 0.9:
                self._try(f"{name} = {name} * 2", "copy")
        if self.rng.random() < 0.3:
            self._try(f"z = {self.rng.choice(('torch.view_as_complex(p)', 'torch.complex(x, x)'))}", "complex") and (
                self.names.append("z")
            )
        for _ in range(size):
            for _ in range(self.rng.choice((1, 1, 2))):
                self._step()
            for _ in range(self.rng.choice((1, 2, 2))):
                self._ask()

    def _step(self) -> None:
        for _ in range(8):
            table, share = self.rng.choices(
                ((VIEWS, "view"), (MAKERS, "maker"), (CHANGES, "change"), (SOURCES, "source")), (6, 2, 3, 1)
            )[0]
            label, template = self._pick(table)
            text = self._fill(template)
            if table is not CHANGES:
                new = f"t{len(self.lines)}"
                text = f"{new} = {text}"
            if self.rng.random() < 0.08:
                text = self._on_one_way(text, table is CHANGES)
            if self._try(text, f"{share}: {label}"):
                if table is not CHANGES:
                    self.names.append(new)
                return

    def _on_one_way(self, text: str, is_change: bool) -> str:
        test = f"if {self._name()}.real.sum() > 0:"
        if is_change:
            return f"{test}\n    {text}"
        return f"{test}\n    {text}\nelse:\n    {text.split(' = ')[0]} = {self._name()}"

    def _ask(self) -> None:
        for _ in range(8):
            table = RISKY if self.has_risk and self.rng.random() < 0.2 else ASKS
            label, template = self._pick(table)
            if self._try(f"seen.append({self._fill(template)})", f"asks: {label}"):
                return

    def _pick(self, table: dict[str, tuple[str, ...]]) -> tuple[str, str]:
        label = self.rng.choice(list(table))
        return label, self.rng.choice(table[label])

    def _name(self) -> str:
        """A tensor, mostly one of the latest."""
        return self.rng.choice(self.names[-4:] if self.rng.random() < 0.6 else self.names)

    def _fill(self, template: str) -> str:
        text = template
        for hole in ("{a}", "{b}", "{c}"):
            text = text.replace(hole, self._name())
        for hole, values in (("{d}", (0, -1, 1)), ("{n}", (0, 1, 2)), ("{s}", (1, 2))):
            while hole in text:
                text = text.replace(hole, str(self.rng.choice(values)), 1)
        return text

    def _try(self, text: str, construct: str) -> bool:
        """Add a statement that runs, and gives what is of use."""
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not all(_runs(text, space, self.names) for space in self.spaces):
                self.spaces = [self._space(call) for call in self.calls]
                for line in self.lines:
                    for space in self.spaces:
                        exec(line, space)
                return False
        self.lines.append(text)
        self.constructs[construct] += 1
        return True

    def text(self) -> str:
        body = "\n".join("        " + row for line in self.lines for row in line.split("\n"))
        kept = self.rng.sample(self.names, min(3, len(self.names)))
        result = f"        return seen, {', '.join(kept)}\n"
        return _HEAD + body + "\n" + result + _TAIL.format(calls="\n".join(f"        {c}," for c in self.calls))


def _runs(text: str, space: dict[str, Any], names: list[str]) -> bool:
    known = set(space)
    with contextlib.suppress(Exception):
        nbytes = _held_nbytes(space, names)
        exec(text, space)
        if ".resize_(" in text and _held_nbytes(space, names) > nbytes:
            return False  # what is in the memory that it adds is anything
        made = [space[name] for name in (*names, *(set(space) - known)) if name in space]
        return all(isinstance(v, torch.Tensor) and _is_small(v) for v in made if not isinstance(v, dict))
    return False


def _held_nbytes(space: dict[str, Any], names: list[str]) -> int:
    return sum(space[name].untyped_storage().nbytes() for name in names)


def _is_small(tensor: torch.Tensor) -> bool:
    """Whether it stays small, and so exact, in any order of computation."""
    return tensor.numel() <= _MOST_ELEMENTS


def asks(seed: int, size: int = 0) -> Generated:
    """The program of a seed, of about so many statements."""
    writer = _Writer(seed)
    writer.write(size or writer.rng.choice((3, 5, 8)))
    return Generated(seed, writer.text(), writer.constructs)
