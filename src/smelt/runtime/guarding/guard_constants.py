"""Tensors whose contents were folded or packed into a program: has any of them changed since?

A change is noticed by: another object or storage (`data_ptr`), a version counter that moved (`_version`; inference
tensors have none), or a different bit pattern at `SAMPLES` elements spread evenly over the tensor, first and last
included. So `load_state_dict`, `copy_`, `p.data = q`, and `p.data.mul_(2)` are noticed; a write through `.data` (or
under inference mode, or from NumPy) to a few elements that are not sampled is not: `refresh()` is there for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from smelt._torch.storage import without_elements

if TYPE_CHECKING:
    import numpy.typing as npt

SAMPLES = 16
Sample: TypeAlias = "npt.NDArray[np.generic]"
_ORDER = "<" if sys.byteorder == "little" else ">"
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def sample_view(tensor: torch.Tensor) -> Sample | None:
    """At most SAMPLES elements of a CPU tensor as integers, sharing its memory; None where there is nothing to see."""
    bits = _BITS.get(tensor.element_size())
    seen = tensor.device.type == "cpu" and not without_elements(tensor) and not (tensor.is_conj() or tensor.is_neg())
    if not seen or tensor.numel() == 0 or bits is None:
        return None
    flat = tensor.detach()
    n = flat.numel()
    if _is_dense(flat):
        flat = flat.as_strided((n,), (1,))
    else:  # strided or expanded: the longest row stands for the rest
        axis = max(range(flat.dim()), key=lambda d: flat.shape[d])
        n = flat.shape[axis]
        flat = flat.movedim(axis, -1)[(0,) * (flat.dim() - 1)]
    step = max((n - 1) // (SAMPLES - 1), 1)
    return np.asarray(_Memory(flat.view(bits)[: step * (SAMPLES - 1) + 1 : step]))


class _Memory:
    """The elements of a flat tensor of whole numbers as NumPy asks for them, to be read.

    Not `Tensor.numpy`: torch then never lets the tensor's owner resize it again. Its memory lies there as long as the
    tensor itself says so (`data_ptr`), which is asked first.
    """

    def __init__(self, flat: torch.Tensor) -> None:
        size = flat.element_size()
        self.tensor = flat
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1" if size == 1 else f"{_ORDER}i{size}",
            "data": (flat.data_ptr(), True),
            "shape": tuple(flat.shape),
            "strides": tuple(stride * size for stride in flat.stride()),
        }


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one block of memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def checksum(tensors: Sequence[torch.Tensor]) -> bytes:
    """The sampled bits of all tensors, in order."""
    views = [view for view in map(sample_view, tensors) if view is not None]
    return b"".join(np.concatenate(group).tobytes() for group in _by_type(views))


def _by_type(views: Sequence[Sample]) -> list[list[Sample]]:
    groups: dict[np.dtype[np.generic], list[Sample]] = {}
    for view in views:
        groups.setdefault(view.dtype, []).append(view)
    return list(groups.values())


class Constants:
    """The tensors a program was built from, as they were then.

    pointers: of each; versions: of those that are no inference tensors; groups: views of the sampled elements, those of
    one dtype together; bits: of each group, what they held.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tuple(tensors)
        self.refresh()

    def refresh(self) -> None:
        """Take the present contents as what the program holds."""
        self._versioned = [t for t in self.tensors if not t.is_inference()]
        self.versions = [t._version for t in self._versioned]
        self.pointers = [t.data_ptr() for t in self.tensors]
        self.groups = _by_type([view for view in map(sample_view, self.tensors) if view is not None])
        self.bits = [np.concatenate(group).tobytes() for group in self.groups]

    def unchanged(self) -> bool:
        """Whether nothing that can be noticed has changed, about 0.25 us a tensor."""
        if [t.data_ptr() for t in self.tensors] != self.pointers:
            return False
        if [t._version for t in self._versioned] != self.versions:
            return False
        return [np.concatenate(group).tobytes() for group in self.groups] == self.bits

    def version_of(self, tensor: torch.Tensor) -> int:
        """The version that a tensor had then; -1 for one that is not among these."""
        found = (version for t, version in zip(self._versioned, self.versions, strict=True) if t is tensor)
        return next(found, -1)

    def first_changed(self) -> int | None:
        """The position of the first tensor that differs."""
        return next(iter(self.changed()), None)

    def changed(self) -> list[int]:
        """The positions of all tensors that differ."""
        versions = iter(self.versions)
        bits = self._bits_by_tensor()
        found = []
        for i, tensor in enumerate(self.tensors):
            moved = tensor.data_ptr() != self.pointers[i]
            written = not tensor.is_inference() and tensor._version != next(versions)
            if moved or written or bits[i]:
                found.append(i)
        return found

    def _bits_by_tensor(self) -> list[bool]:
        """For each tensor, whether its sample differs now."""
        seen = {dtype: memoryview(bits) for dtype, bits in self._dtype_bits().items()}
        offsets = dict.fromkeys(seen, 0)
        differs = []
        for view in map(sample_view, self.tensors):
            if view is None:
                differs.append(False)
                continue
            start = offsets[view.dtype]
            offsets[view.dtype] = start + view.nbytes
            differs.append(view.tobytes() != bytes(seen[view.dtype][start : start + view.nbytes]))
        return differs

    def _dtype_bits(self) -> dict[np.dtype[np.generic], bytes]:
        return {group[0].dtype: bits for group, bits in zip(self.groups, self.bits, strict=True)}
