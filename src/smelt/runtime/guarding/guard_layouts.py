"""The tensors that a program reads by itself keep dtype, sizes and strides: `p.data = q` and `module.half()` change
them in the very object, and compiled code goes by what they were.

Invariant: `unchanged` is True only if each tensor still has the layout seen, and, where addresses count, its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from smelt._torch.storage import nbytes_spanned, without_elements
from smelt._torch.tensor_layout import TensorLayout, tensor_layout
from smelt.runtime.guarding.guard_versions import Stamps, reader

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_DTYPE, _SHAPE = attrgetter("dtype"), attrgetter("shape")
_MOST = 10_000
Pairs = Sequence[tuple[int, int]]
_ADDRESSES = 3  # among the readings
_WORD = 8
_DTYPE_MASK = (1 << 16) - 1


class Layouts:
    """Layouts as they are now. pinned: their addresses count, too, because what meets them in memory was asked once."""

    def __init__(self, tensors: Sequence[torch.Tensor], pinned: bool) -> None:
        self._plain = [t for t in tensors if type(t) in _PLAIN and not without_elements(t) and t.device.type == "cpu"]
        known = {id(t) for t in self._plain}
        self._others = [t for t in tensors if id(t) not in known]
        self._pinned = [t for t in self._plain if nbytes_spanned(t)] if pinned else []
        self._seen = [read(group) for read, group in self._readings()]
        self._words = _Words.of(self)

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
        self._words = _Words.of(self)

    @property
    def plain(self) -> Sequence[torch.Tensor]:
        """Those that lie in this process's memory as torch's own tensors do."""
        return self._plain

    @property
    def is_pinned(self) -> bool:
        """Whether addresses count."""
        return bool(self._pinned)

    def __bool__(self) -> bool:
        return bool(self._plain or self._others)

    def unchanged(self) -> bool:
        """Whether all are as they were: by their words in memory, about 6 us for 200 tensors, where these are known."""
        if self._words is not None and self._words.hold():
            return True
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


class _Words:
    """The same as memory words, gathered in one call for the objects and one for what they point to."""

    def __init__(self, objects: Pairs, inside: Sequence[tuple[int, int, int]]) -> None:
        self._objects, self._seen_objects = reader([at for at, _ in objects]), _array([word for _, word in objects])
        self._inside = reader([at for at, _, _ in inside])
        self._masks = _array([mask for _, mask, _ in inside])
        self._seen_inside = _array([word & mask for _, mask, word in inside]).tobytes()
        self._seen_objects_bytes = self._seen_objects.tobytes()

    @staticmethod
    def of(layouts: Layouts) -> _Words | None:
        """None where they cannot be told so, or a tensor keeps a part of them elsewhere."""
        layout = tensor_layout()
        plain = layouts.plain
        if layout is None or not plain or len(plain) > _MOST or any(t.dim() > layout.capacity for t in plain):
            return None
        told = layouts.words(layout)
        if told is None or layouts.is_pinned:
            return None
        words, masked = told
        places = {id(t) + layout.impl for t in plain}
        objects = [pair for pair in words if pair[0] in places]
        rest = [(at, -1, word) for at, word in words if at not in places]
        return _Words(objects, [*rest, *masked])

    def hold(self) -> bool:
        """Whether all words are as they were; what objects point to is read only while they point there."""
        if self._objects().tobytes() != self._seen_objects_bytes:
            return False
        return (self._inside() & self._masks).tobytes() == self._seen_inside


def _array(words: Sequence[int]) -> Stamps:
    return np.array([word - (1 << 64) if word >= 1 << 63 else word for word in words], dtype=np.int64)


def _dtypes(tensors: Sequence[torch.Tensor]) -> list[torch.dtype]:
    return list(map(_DTYPE, tensors))


def _shapes(tensors: Sequence[torch.Tensor]) -> list[torch.Size]:
    return list(map(_SHAPE, tensors))


def _strides(tensors: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    return list(map(torch.Tensor.stride, tensors))


def _addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    return list(map(torch.Tensor.data_ptr, tensors))


def _others(tensors: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    return [(type(t), t.dtype, None if t.is_nested else t.shape, t.layout, t.device) for t in tensors]
