"""What a recorder keeps: tensors by slot, who shares memory with whom, operator calls, and data that reached Python.

Invariant: a slot stands for one tensor object at one point of the program.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs
from smelt._torch.seen.record_modes import Modes
from smelt._torch.seen.record_patches import facts
from smelt.capture.dynamic.dims import sized_type
from smelt.capture.recording.opinfo import OpInfo
from smelt.capture.recording.spans import Site
from smelt.capture.structure.roots import Entry
from smelt.diag import CaptureError
from smelt.ir import TensorType
from smelt.ops.convert import dtype_from_torch, type_of

_STRIDED = torch.strided
_USUAL = frozenset((torch.Tensor, torch.nn.Parameter))


class Family:
    """Tensors that may share memory: whether any depends on data, and whether any was written (later: by other than
    what makes a tensor for a cache to keep), and by which record last.

    blank: made by `empty` and not written since; is_constant: its data were given as Python values. is_written_apart:
    other than once on all paths of a staged run, so that its version is not known.
    """

    __slots__ = (
        "blank", "is_constant", "is_foreign", "is_written_apart", "last_write", "tainted", "written", "written_later",
    )  # fmt: skip

    def __init__(self, tainted: bool) -> None:
        self.tainted = tainted
        self.written = False
        self.written_later = False
        self.last_write = -1
        self.blank = False
        self.is_constant = False
        self.is_foreign = False
        self.is_written_apart = False


class Slot:
    """One tensor at one point of the program.

    kind: "result", "input", "param", "buffer", "captured", "constant" or "unknown".
    type: (dtype, sizes, strides, device), or the graph's own type where the layout is not strided.
    """

    __slots__ = ("family", "kind", "ref", "type")

    def __init__(self, tensor: torch.Tensor, family: Family, kind: str) -> None:
        self.ref: Callable[[], torch.Tensor | None] = weakref.ref(tensor)
        self.family = family
        self.kind = kind
        if type(tensor) not in _USUAL:
            self.type: Any = facts(tensor)
        elif tensor.layout is _STRIDED:
            self.type = (tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        else:
            self.type = None
        if self.type is None:
            self.type = type_of(tensor)


class StateSlot(Slot):
    """A tensor that was reachable before the run."""

    __slots__ = ("entry",)

    def __init__(self, tensor: torch.Tensor, entry: Entry) -> None:
        super().__init__(tensor, Family(True), entry.kind)
        self.entry = entry


class UnknownSlot(Slot):
    """A tensor whose making was not seen, with the place where it turned up."""

    __slots__ = ("origin",)

    def __init__(self, tensor: torch.Tensor, origin: Site | None) -> None:
        super().__init__(tensor, Family(False), "unknown")
        self.origin = origin


class Record(NamedTuple):
    """One operator call: arguments with slots for tensors, the results likewise (None for a missing one)."""

    info: OpInfo
    args: OpArgs
    kwargs: OpKwargs
    results: tuple[Any, ...]
    site: Site | None
    scope: str
    modes: Modes


class Conversion(NamedTuple):
    """A place where data reached Python: `what` was done (`bool`, `item`, a data-dependent size, ...) and where.

    value: what Python got, where it is a number or sizes. is_checked: the graph has it as an `expect`. askers: the
    function that got it, and the one that called this.
    """

    code: str
    what: str
    type: str
    origin: str
    site: Site | None
    value: Any = None
    is_checked: bool = False
    askers: tuple[CodeType, ...] = ()


@lru_cache(maxsize=8192)
def tensor_type(dtype: torch.dtype, shape: Any, strides: Any, device: torch.device) -> TensorType:
    """The graph's type of a strided tensor."""
    return TensorType.of(dtype_from_torch(dtype), shape, strides, str(device))


def slot_type(slot: Slot) -> Any:
    """The graph's type of a slot."""
    if not isinstance(slot.type, tuple):
        return slot.type
    dtype, shape, strides, device = slot.type
    try:
        return tensor_type(dtype, shape, strides, device)
    except TypeError:
        # A size that is a symbol has no hash; what its type says of it may be known better later.
        return sized_type(dtype_from_torch(dtype), shape, strides, str(device))


def conversion_error(found: Conversion) -> CaptureError:
    """The error for data that reached Python where they must not."""
    if found.code == "S0102":
        title = f"{found.what} has a result whose size depends on the data of a tensor {found.type} ({found.origin})"
        why = "the captured graph holds for one size; other data give another"
        fix = "use an operation of fixed size (torch.where, masked_fill, a fixed output size)"
    else:
        title = f"{_phrase(found.what)} of a tensor {found.type} ({found.origin}) was read by Python"
        why = "what follows depends on data, and one run shows only one outcome"
        fix = "stay in tensors (torch.where, masks), or move this out of the captured function"
    return CaptureError(title, found.site.span if found.site else None, why, fix, found.code)


def _phrase(what: str) -> str:
    named = {"is_nonzero": "the truth value", "item": "the value", "_local_scalar_dense": "the value"}
    return named.get(what, f"the result of {what}")
