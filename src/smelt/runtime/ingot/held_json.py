"""How the tensors that a plan holds come to be when a file is loaded.

    parameter that kernels read as it lies      ["state", 3]
    weight in panels                            ["packed", its steps, what the packing kernel is called with]
    anything else (folded values, constants)    ["stored", where it lies in the file]

Invariant: reading runs views and concatenations of weights, and machine code that packs; no other operator.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from smelt.diag import SmeltError
from smelt.runtime.ingot.json_text import Part
from smelt.runtime.ingot.manifest import Placed
from smelt.runtime.ingot.structure import read_constant, write_constant
from smelt.runtime.ingot.tensors import dtype_name, dtype_of
from smelt.runtime.kernels import kernels
from smelt.runtime.plan import KernelCode

VIEWS = frozenset(
    (
        "aten.t.default", "aten.transpose.int", "aten.view.default", "aten.permute.default", "aten.unsqueeze.default",
        "aten.squeeze.dim", "aten.slice.Tensor", "aten.select.int", "aten.cat.default", "aten.detach.default",
    )
)  # fmt: skip
"""Operators that a weight may come from: none takes more memory than its operands, but for that of the result."""

_STEP_LIMIT = 64
_LOW = -(1 << 63)
_PACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class FromState:
    """The live tensor of the program's state."""

    number: int


@dataclass(frozen=True, slots=True)
class Step:
    """An operator over results of earlier steps, which stand among its arguments as `Result`."""

    op: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What an earlier step gave."""

    step: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight in the form that its kernel reads.

    steps: what gives the weight: tensors of the state, and operators over these. is_transposed, is_dense: it is
    transposed, and copied row by row, before. dtype, sizes, strides: what it then must have. kernel: packs `items`
    panels, called with `words`, into `nelements` elements of `panels`.
    """

    steps: tuple[FromState | Step, ...]
    is_transposed: bool
    is_dense: bool
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    kernel: int
    words: tuple[int, ...]
    items: int
    nelements: int
    panels: torch.dtype


Held: TypeAlias = FromState | Packed | Placed


def write(held: Held) -> Any:
    """A recipe as JSON."""
    match held:
        case FromState(number=number):
            return ["state", number]
        case Placed():
            return ["stored", held.written()]
    steps = [s.number if isinstance(s, FromState) else [s.op, [_argument(arg) for arg in s.args]] for s in held.steps]
    shape = [dtype_name(held.dtype), list(held.sizes), list(held.strides)]
    own = [held.kernel, list(held.words), held.items, held.nelements, dtype_name(held.panels)]
    return ["packed", steps, held.is_transposed, held.is_dense, *shape, *own]


def _argument(arg: Any) -> Any:
    if isinstance(arg, Result):
        return {"step": arg.step}
    return [_argument(item) for item in arg] if isinstance(arg, tuple) else write_constant(arg)


def read(part: Part, nstate: int, nkernels: int) -> Held:
    """A recipe of JSON. Raises: PackageError (S0701)."""
    first, *own = part.items() or [part]
    kind = first.one_of("state", "stored", "packed")
    if len(own) != (11 if kind == "packed" else 1):
        raise part.bad("is no recipe of a tensor")
    if kind == "state":
        return FromState(own[0].as_int(0, nstate - 1))
    if kind == "stored":
        return Placed.read(own[0])
    steps, is_transposed, is_dense, dtype, sizes, strides, kernel, words, items, nelements, panels = own
    if not 0 < len(steps.items()) <= _STEP_LIMIT:
        raise steps.bad("has too many steps, or none")
    found = tuple(_step(each, i, nstate) for i, each in enumerate(steps.items()))
    return Packed(
        found, is_transposed.as_bool(), is_dense.as_bool(), dtype_of(dtype), sizes.ints(), strides.ints(),
        kernel.as_int(0, nkernels - 1), words.ints(_LOW), items.as_int(),
        nelements.as_int(0, 1 << 40), dtype_of(panels),
    )  # fmt: skip


def _step(part: Part, number: int, nstate: int) -> FromState | Step:
    if type(part.value) is int:
        return FromState(part.as_int(0, nstate - 1))
    op, args = part.items(2)
    if op.as_str() not in VIEWS:
        raise op.bad("is no operator that a weight may come from")

    def argument(arg: Part) -> Any:
        if type(arg.value) is list:
            return tuple(map(argument, arg.items()))
        if type(arg.value) is dict and arg.value.keys() == {"step"}:
            return Result(arg.keys("step")[0].as_int(0, number - 1))
        return read_constant(arg)

    return Step(op.as_str(), tuple(map(argument, args.items())))


def weight_of(packed: Packed, state: Callable[[int], torch.Tensor]) -> torch.Tensor | None:
    """The weight as the packing kernel reads it; None where it is not what the plan was made for."""
    known: list[torch.Tensor] = []

    def filled(arg: Any) -> Any:
        if isinstance(arg, Result):
            return known[arg.step]
        return [filled(item) for item in arg] if isinstance(arg, tuple) else arg

    with torch.no_grad():
        for step in packed.steps:
            if isinstance(step, FromState):
                known.append(state(step.number).detach())
                continue
            _, packet, overload = step.op.split(".")
            try:
                known.append(getattr(getattr(torch.ops.aten, packet), overload)(*map(filled, step.args)))
            except (RuntimeError, TypeError, IndexError):
                return None
            if known[-1].numel() * known[-1].itemsize > 2 * packed.nelements * packed.panels.itemsize:
                return None  # a panel is smaller than its weight by less than that
        weight = known[-1].t() if packed.is_transposed else known[-1]
        weight = weight.contiguous() if packed.is_dense else weight
    fits = weight.dtype == packed.dtype and tuple(weight.shape) == packed.sizes and weight.stride() == packed.strides
    return weight if fits and weight.device.type == "cpu" else None


class Packing:
    """The packing of one weight: `panels` are complete when `run` has returned."""

    def __init__(self, packed: Packed, weight: torch.Tensor, code: Sequence[KernelCode]) -> None:
        """Raises: PackageError (S0402) where its kernel cannot be loaded."""
        kernel = code[packed.kernel]
        loaded = kernels().loaded(kernel)
        if loaded is None:
            raise SmeltError("the kernel that packs a weight cannot be loaded", code="S0402")
        self.panels = torch.empty(packed.nelements, dtype=packed.panels)
        args = (weight.data_ptr(), self.panels.data_ptr(), *packed.words)
        self._args = (ctypes.c_int64 * len(args))(*args)
        self._function, self._items, self._keeps = _PACK(loaded.address(kernel.symbol)), packed.items, (loaded, weight)

    def run(self) -> None:
        """Fill the panels; the GIL is released meanwhile."""
        self._function(ctypes.addressof(self._args), 0, self._items, None)
