"""Fake tensors of plain real ones, made at once instead of through torch's description of every kind of tensor.

torch describes a tensor in fifty fields, its gradient after it, before it makes the fake one: a millisecond for a
parameter and its gradient, where an optimizer reads a thousand such tensors. A plain one has a dtype, sizes and strides
in memory of its own, and needs no more.

Invariant: torch's converter is told of each tensor made here and of its memory, so that it makes views of it, and what
else shares its memory, as if it had made it itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from smelt._torch.plain import is_plain
from smelt._torch.seen.light_fake import light_mode
from smelt._torch.storage import storage_key

try:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils._mode_utils import no_dispatch
except ImportError:  # pragma: no cover - another torch
    FakeTensor, FakeTensorMode, no_dispatch = (), None, None


class PlainFakes:
    """The fake tensors of one mode's plain tensors. Make it by `plain_fakes`."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        converter = mode.fake_tensor_converter
        self._remember = converter.set_tensor_memo
        self._memory = converter.meta_converter.storage_memo
        describer = converter.meta_converter.describer
        self._known_memory, self._number = describer.lookup_storage, describer.get_storage_id

    def makes(self, tensor: torch.Tensor) -> bool:
        """Whether `of` makes a real tensor's fake one, the first in its memory."""
        if not _is_plain_leaf(tensor) or torch.is_inference_mode_enabled():
            return False
        memory = tensor.untyped_storage()
        return memory.nbytes() > 0 and memory not in self._known_memory

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The fake tensor of a real one that is no view; None where torch has to describe it."""
        if not self.makes(tensor):
            return None
        memory = tensor.untyped_storage()
        with no_dispatch():
            elements = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
            fake: Any = FakeTensor(self._mode, elements, tensor.device)
        if tensor.requires_grad:
            fake.requires_grad = True
        if isinstance(tensor, torch.nn.Parameter):
            fake._is_param = True
        self._memory[self._number(memory)] = fake.untyped_storage()
        self._remember(tensor, fake)
        return fake


def plain_fakes(mode: Any) -> PlainFakes | None:
    """What makes a light mode's plain fake tensors; None where this torch makes them otherwise."""
    return PlainFakes(mode) if _is_as_known() else None


@lru_cache(maxsize=1)
def _is_as_known() -> bool:
    """Whether torch finds what is made here, and makes what shares its memory upon it."""
    try:
        mode = light_mode(FakeTensorMode)
        # It is asked once in a process, perhaps by a program that runs in inference mode or with a default device.
        with torch.inference_mode(False):
            known = torch.empty(2, device="cpu")
            made = PlainFakes(mode).of(known)
            found = mode.from_tensor(known, static_shapes=True)
            alias = mode.from_tensor(known.detach(), static_shapes=True)
    except Exception:  # pragma: no cover - another torch
        return False
    return isinstance(made, FakeTensor) and found is made and storage_key(alias) == storage_key(made)


def _is_plain_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor is elements that lie from the start of its memory, without a history."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not is_plain(tensor) or tensor.storage_offset() != 0:
        return False
    if not tensor.requires_grad:
        return True
    return tensor.is_leaf and getattr(tensor, "grad_dtype", tensor.dtype) == tensor.dtype
