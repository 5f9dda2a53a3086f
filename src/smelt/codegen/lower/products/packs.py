"""Packed weights that several plans use: a call with other sizes packs nothing anew.

Invariant: a packed copy is handed out only while the weight that it was made of is, as far as guards can tell
(`runtime.guarding.guard_constants`), as it was then; so a plan that shares one is as good as the plan that made it. A
copy lives as long as some plan holds it, and the weight is held no longer than that.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache

import torch

from smelt.codegen.lower.products.weight_packing import Fills
from smelt.diag.records import record
from smelt.runtime.guarding.guard_constants import Constants

_Key = tuple[Hashable, ...]


@record
class _Copy:
    """A packed tensor, the weight as it was when packing it began, and what fills it."""

    packed: weakref.ref[torch.Tensor]
    weight: Constants
    fills: weakref.ref[Fills]


class Packs:
    """Packed copies of live weights by memory, layout and form."""

    def __init__(self) -> None:
        self._known: dict[_Key, _Copy] = {}
        self._lock = threading.Lock()

    def get_or_pack(
        self, weight: torch.Tensor, form: Hashable, pack: Callable[[], torch.Tensor], fills: Fills
    ) -> torch.Tensor:
        """The weight packed in a form when `fills` are done; `weight` lies in the memory of the program's own tensor.

        pack: makes it, by means of `fills`.
        """
        key = (weight.data_ptr(), tuple(weight.shape), weight.stride(), weight.dtype, form)
        with self._lock:
            found = self._known.get(key)
            packed = found.packed() if found is not None and found.weight.unchanged() else None
        if packed is not None:
            assert found is not None
            others = found.fills()
            if others is not None:
                fills.share(others)
            return packed
        # Taken before it is read: a change meanwhile makes the copy one that is not handed out.
        before = Constants((weight,))
        packed = pack()

        def drop(gone: weakref.ref[torch.Tensor]) -> None:
            # No lock: the collector may call this while the lock is held.
            copy = self._known.get(key)
            if copy is not None and copy.packed is gone:
                self._known.pop(key, None)

        with self._lock:
            self._known[key] = _Copy(weakref.ref(packed, drop), before, weakref.ref(fills))
        return packed

    def forget(self, weights: Iterable[torch.Tensor]) -> None:
        """Hand out no copy of these tensors' memory any more."""
        pointers = {w.untyped_storage().data_ptr() for w in weights if w.layout is torch.strided}
        with self._lock:
            for key, copy in list(self._known.items()):
                if copy.weight.tensors[0].untyped_storage().data_ptr() in pointers:
                    self._known.pop(key, None)


@lru_cache(maxsize=1)
def packs() -> Packs:
    """The process's packed weights."""
    return Packs()
