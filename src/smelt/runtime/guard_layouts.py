"""The tensors that a program reads by itself keep dtype, sizes and strides: `p.data = q` and `module.half()` change
them in the very object, and compiled code goes by what they were.

Invariant: `unchanged` is True only if each tensor still has the layout seen, and, where addresses count, its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch

from smelt._torch.storage import nbytes_spanned
from smelt._torch.tensor_layout import TensorLayout

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_DTYPE, _SHAPE = attrgetter("dtype"), attrgetter("shape")
_ADDRESSES = 3  # among the readings
_WORD = 8
_DTYPE_MASK = (1 << 16) - 1


class Layouts:
    """Layouts as they are now. pinned: their addresses count, too, because what meets them in memory was asked once."""

    def __init__(self, tensors: Sequence[torch.Tensor], pinned: bool) -> None:
        self._plain = [t for t in tensors if type(t) in _PLAIN and t.layout is torch.strided and t.device.type == "cpu"]
        known = {id(t) for t in self._plain}
        self._others = [t for t in tensors if id(t) not in known]
        self._pinned = [t for t in self._plain if nbytes_spanned(t)] if pinned else []
        self._seen = [read(group) for read, group in self._readings()]

    def _readings(self) -> tuple[tuple[Callable[[Sequence[torch.Tensor]], Any], Sequence[torch.Tensor]], ...]:
        return (
            (_dtypes, self._plain), (_shapes, self._plain), (_strides, self._plain), (_addresses, self._pinned),
            (_others, self._others),
        )  # fmt: skip

    def leave_addresses_of(self, tensors: Sequence[torch.Tensor]) -> None:
        """Ask no longer where these are: others watch over them, and their memory may be given back."""
        left = {id(t) for t in tensors}
        kept = [i for i, tensor in enumerate(self._pinned) if id(tensor) not in left]
        self._seen[_ADDRESSES] = [self._seen[_ADDRESSES][i] for i in kept]
        self._pinned = [self._pinned[i] for i in kept]

    def __bool__(self) -> bool:
        return bool(self._plain or self._others)

    def unchanged(self) -> bool:
        """Whether all are as they were, about 0.2 us a tensor."""
        return [read(group) for read, group in self._readings()] == self._seen

    def changed(self) -> torch.Tensor | None:
        """The first that is not."""
        for (read, group), seen in zip(self._readings(), self._seen, strict=True):
            for tensor, now, before in zip(group, read(group), seen, strict=True):
                if now != before:
                    return tensor
        return None

    def words(self, layout: TensorLayout) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]] | None:
        """(address, word), then (address, mask, word) that hold while the layouts do, each to be read only while those
        before it hold; None where not all can be told so."""
        if self._others:
            return None
        words: list[tuple[int, int]] = []
        masked: list[tuple[int, int, int]] = []
        for tensor in self._plain:
            impl = layout.implementation(tensor)
            words.append((id(tensor) + layout.impl, impl))
            words += layout.shape_words(tensor)
            at, shift = layout.dtype // _WORD * _WORD, layout.dtype % _WORD * 8
            masked.append((impl + at, _DTYPE_MASK << shift, layout.dtype_number(tensor) << shift))
            masked.append((impl + layout.keys, layout.keys_mask, layout.key_bits(tensor)))
        for tensor in self._pinned:
            words += layout.address_words(tensor)
        return words, masked


def _dtypes(tensors: Sequence[torch.Tensor]) -> list[torch.dtype]:
    return list(map(_DTYPE, tensors))


def _shapes(tensors: Sequence[torch.Tensor]) -> list[torch.Size]:
    return list(map(_SHAPE, tensors))


def _strides(tensors: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    return list(map(torch.Tensor.stride, tensors))


def _addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    return list(map(torch.Tensor.data_ptr, tensors))


def _others(tensors: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    return [(type(t), t.dtype, t.shape, t.layout, t.device) for t in tensors]
