"""How the tensors that a plan holds come to be when a file is loaded.

    parameter that kernels read as it lies      ["state", 3]
    weight in panels                            ["packed", its steps, what the packing kernel is called with]
    weight of a convolution                     ["filters", its steps, the form that kernels read]
    what follows from weights (a folded norm)   ["computed", its steps, what must come of them]
    anything else (constants)                   ["stored", where it lies in the file]

Invariant: reading runs views and arithmetic of weights, and machine code that packs; no other operator.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import zip_longest
from typing import Any, TypeAlias, get_args

import torch

from smelt.diag import SmeltError
from smelt.diag.records import record
from smelt.runtime.filters import Filters, Form, is_finite
from smelt.runtime.ingot.manifest import Placed
from smelt.runtime.ingot.structure import read_constant, write_constant
from smelt.runtime.ingot.tensors import dtype_name, dtype_of
from smelt.runtime.ingot.texts.json_text import Part
from smelt.runtime.machine.loaded_kernels import kernels
from smelt.runtime.plan import KernelCode

VIEWS = frozenset(
    (
        "aten.t.default", "aten.transpose.int", "aten.view.default", "aten.reshape.default", "aten.permute.default",
        "aten.unsqueeze.default", "aten.squeeze.dim", "aten.slice.Tensor", "aten.select.int", "aten.cat.default",
        "aten.detach.default", "aten.contiguous.default", "aten.clone.default",
    )
)  # fmt: skip
"""Operators that a weight may come from: none takes more memory than its operands, but for that of the result."""

ARITHMETIC = frozenset(
    (
        "aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.rsub.Scalar",
        "aten.neg.default", "aten.rsqrt.default", "aten.sqrt.default", "aten.reciprocal.default", "aten.exp.default",
        "aten.tanh.default", "aten.sigmoid.default", "aten.pow.Tensor_Scalar", "aten.to.dtype",
        "aten._to_copy.default",
    )
)  # fmt: skip
"""Operators element by element, of operands that are broadcast to the result's sizes."""

_STEP_LIMIT = 64
_LOW = -(1 << 63)
_PACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


@record
class FromState:
    """The live tensor of the program's state."""

    number: int


@record
class Step:
    """An operator over results of earlier steps, which stand among its arguments as `Result`."""

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@record
class Result:
    """What an earlier step gave."""

    step: int


Steps: TypeAlias = "tuple[FromState | Placed | Step, ...]"
"""What gives a weight, last: tensors of the state, stored constants, and operators over these."""


@record
class Packed:
    """A weight in the form that its kernel reads.

    is_transposed, is_dense: what the steps give is transposed, and copied row by row, before. dtype, sizes, strides:
    what it then must have. kernel: packs `items` panels, called with `words`, into `nelements` elements of `panels`.
    stored: where the file has the panels of the weights that were saved.
    """

    steps: Steps
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
    stored: Placed | None = None


@record
class Filtered:
    """A convolution's weight f32[sizes], which the steps give in other sizes maybe, in the form that its kernel
    reads.
    """

    steps: Steps
    sizes: tuple[int, ...]
    filters: Filters


@record
class Computed:
    """What the steps give, and what it must be."""

    steps: Steps
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


Held: TypeAlias = FromState | Packed | Filtered | Computed | Placed


def sources_of(held: Held) -> set[int]:
    """The numbers of the state that a tensor follows from, or is."""
    match held:
        case FromState(number=number):
            return {number}
        case Placed():
            return set()
    return {step.number for step in held.steps if isinstance(step, FromState)}


def operators_of(held: Held) -> set[str]:
    """The operators that a tensor follows by from the state."""
    match held:
        case FromState() | Placed():
            return set()
    return {step.op for step in held.steps if isinstance(step, Step)}


# --- as JSON ----------------------------------------------------------------------------------------------------------


def write(held: Held) -> Any:
    """A recipe as JSON. Raises: TypeError for an argument that has no written form."""
    match held:
        case FromState(number=number):
            return ["state", number]
        case Placed():
            return ["stored", held.written()]
    steps = list(map(_written, held.steps))
    if isinstance(held, Filtered):
        form = held.filters
        return ["filters", steps, list(held.sizes), form.form, form.groups, form.columns, form.is_finite]
    shape = [dtype_name(held.dtype), list(held.sizes), list(held.strides)]
    if isinstance(held, Computed):
        return ["computed", steps, *shape]
    stored = None if held.stored is None else held.stored.written()
    own = [held.kernel, list(held.words), held.items, held.nelements, dtype_name(held.panels), stored]
    return ["packed", steps, held.is_transposed, held.is_dense, *shape, *own]


def _written(step: FromState | Placed | Step) -> Any:
    match step:
        case FromState(number=number):
            return number
        case Placed():
            return {"stored": step.written()}
    args = [_argument(arg) for arg in step.args]
    return [step.op, args, {name: _argument(arg) for name, arg in step.kwargs.items()}]


def _argument(arg: Any) -> Any:
    if isinstance(arg, Result):
        return {"step": arg.step}
    return [_argument(item) for item in arg] if isinstance(arg, tuple) else write_constant(arg)


_COUNTS = {"state": 1, "stored": 1, "packed": 12, "filters": 6, "computed": 4}


def read(part: Part, nstate: int, nkernels: int) -> Held:
    """A recipe of JSON. Raises: PackageError (S0701)."""
    first, *own = part.items() or [part]
    kind = first.one_of(*_COUNTS)
    if len(own) != _COUNTS[kind]:
        raise part.bad("is no recipe of a tensor")
    if kind == "state":
        return FromState(own[0].as_int(0, nstate - 1))
    if kind == "stored":
        return Placed.read(own[0])
    steps, *own = own
    if not 0 < len(steps.items()) <= _STEP_LIMIT:
        raise steps.bad("has too many steps, or none")
    found = tuple(_step(each, i, nstate) for i, each in enumerate(steps.items()))
    if kind == "filters":
        return _filtered(found, *own)
    if kind == "computed":
        dtype, sizes, strides = own
        return Computed(found, dtype_of(dtype), sizes.ints(), strides.ints())
    is_transposed, is_dense, dtype, sizes, strides, kernel, words, items, nelements, panels, stored = own
    packed = Packed(
        found, is_transposed.as_bool(), is_dense.as_bool(), dtype_of(dtype), sizes.ints(), strides.ints(),
        kernel.as_int(0, nkernels - 1), words.ints(_LOW), items.as_int(),
        nelements.as_int(0, 1 << 40), dtype_of(panels), None if stored.is_null() else Placed.read(stored),
    )  # fmt: skip
    if packed.stored is not None and (packed.stored.sizes, packed.stored.strides, packed.stored.dtype) != (
        (packed.nelements,), (1,), packed.panels,
    ):  # fmt: skip
        raise stored.bad("are not the panels of the weight")
    return packed


_FORMS: Mapping[str, Form] = {form: form for form in get_args(Form)}


def _filtered(steps: Steps, sizes: Part, form: Part, groups: Part, columns: Part, is_finite: Part) -> Filtered:
    shape = sizes.ints(1, 1 << 40)
    if len(shape) != 4:
        raise sizes.bad("are no sizes of a convolution's weight")
    kind = _FORMS[form.one_of(*_FORMS)]
    filters = Filters(kind, groups.as_int(1, shape[0]), columns.as_int(1, 1 << 16), is_finite.as_bool())
    cout, cin, *window = shape
    fits = {
        "dense": cout % filters.groups == 0,
        "turned": cout % filters.groups == 0,
        "depthwise": cin == 1,
        "winograd": window == [3, 3] and cout % filters.columns == 0,
        "winograd_row": window == [1, 3] and cout % filters.columns == 0,
        "winograd_deep": window[0] % 3 == 0 and window[1] == 3 and cout % filters.columns == 0,
        "winograd_frames": window[0] % 3 == 0 and cout % filters.columns == 0,
    }
    if not fits[kind]:
        raise sizes.bad("do not fit the form of the weight")
    return Filtered(steps, shape, filters)


def _step(part: Part, number: int, nstate: int) -> FromState | Placed | Step:
    if type(part.value) is int:
        return FromState(part.as_int(0, nstate - 1))
    if type(part.value) is dict:
        return Placed.read(part.keys("stored")[0])
    op, args, kwargs = part.items(3)
    if op.as_str() not in VIEWS | ARITHMETIC:
        raise op.bad("is no operator that a weight may come from")

    def argument(arg: Part) -> Any:
        if type(arg.value) is list:
            return tuple(map(argument, arg.items()))
        if type(arg.value) is dict and arg.value.keys() == {"step"}:
            return Result(arg.keys("step")[0].as_int(0, number - 1))
        return read_constant(arg)

    named = {name: argument(arg) for name, arg in kwargs.pairs()}
    return Step(op.as_str(), tuple(map(argument, args.items())), named)


# --- tensors ----------------------------------------------------------------------------------------------------------

Given: TypeAlias = Callable[["FromState | Placed"], torch.Tensor]
"""The tensor of the state, or out of the file."""


def value_of(steps: Steps, given: Given, limit_nbytes: int) -> torch.Tensor | None:
    """What the last step gives; None where one does not take what the ones before give, or gives more than so much."""
    known: list[torch.Tensor] = []

    def filled(arg: Any) -> Any:
        if isinstance(arg, Result):
            return known[arg.step]
        return [filled(item) for item in arg] if isinstance(arg, tuple) else arg

    with torch.no_grad():
        for step in steps:
            if not isinstance(step, Step):
                known.append(given(step).detach())
                continue
            _, packet, overload = step.op.split(".")
            args, kwargs = list(map(filled, step.args)), {name: filled(arg) for name, arg in step.kwargs.items()}
            try:
                if step.op in ARITHMETIC and _nbytes(args) > limit_nbytes:
                    return None
                known.append(getattr(getattr(torch.ops.aten, packet), overload)(*args, **kwargs))
            except (RuntimeError, TypeError, IndexError):
                return None
            if known[-1].numel() * known[-1].itemsize > limit_nbytes:
                return None
    return known[-1] if known[-1].device.type == "cpu" else None


def _nbytes(args: Sequence[Any]) -> int:
    """The memory of a result over operands that are broadcast, at most; of 8 bytes an element.

    Not by `torch.broadcast_shapes`, which imports sympy: 300 ms of a first call.
    """
    shapes = [tuple(reversed(arg.shape)) for arg in args if isinstance(arg, torch.Tensor)]
    return 8 * math.prod(max(sizes) for sizes in zip_longest(*shapes, fillvalue=1))


def filters_of(filtered: Filtered, given: Given) -> torch.Tensor | None:
    """The packed weight; None where the weight is not what the plan was made for."""
    nbytes = 8 * math.prod(filtered.sizes)
    weight = value_of(filtered.steps, given, 2 * nbytes)
    if weight is None or weight.dtype is not torch.float32 or weight.numel() != math.prod(filtered.sizes):
        return None
    if filtered.filters.is_finite and not is_finite(weight):
        return None
    return filtered.filters.packed(weight.reshape(filtered.sizes))


def computed_of(computed: Computed, given: Given) -> torch.Tensor | None:
    """The value; None where it is not what the plan was made for."""
    value = value_of(computed.steps, given, 16 * max(math.prod(computed.sizes), 1 << 10))
    return value if value is not None and _is(value, computed) else None


def weight_of(packed: Packed, given: Given) -> torch.Tensor | None:
    """The weight as the packing kernel reads it; None where it is not what the plan was made for."""
    # A panel is smaller than its weight by less than half.
    weight = value_of(packed.steps, given, 2 * packed.nelements * packed.panels.itemsize)
    if weight is None:
        return None
    weight = weight.t() if packed.is_transposed else weight
    weight = weight.contiguous() if packed.is_dense else weight
    return weight if _is(weight, packed) else None


def _is(tensor: torch.Tensor, wanted: Packed | Computed) -> bool:
    found = tensor.dtype, tuple(tensor.shape), tensor.stride()
    return found == (wanted.dtype, wanted.sizes, wanted.strides)


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
