"""Which operators autocast casts the operands of on a device, which are made of others, and how it is switched off.

Adapter for `torch._C._dispatch_has_kernel_for_dispatch_key`; where torch has no such function, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch

from smelt._torch.seen.leaves import is_leaf
from smelt._torch.state import autocast, is_any_autocast

_has_kernel: Callable[[str, str], bool] | None = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", None)


@contextmanager
def no_autocast() -> Iterator[None]:
    """The caller's autocast is off, for graphs say at each node what is cast."""
    if not is_any_autocast():
        yield
        return
    with ExitStack() as stack:
        for device, _ in autocast():
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


class _Cleared:
    """How often the process's regions of autocast have forgotten the casts that they kept; counted on demand."""

    def __init__(self) -> None:
        self.times = 0
        self._watching: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()
        self._original: Callable[[], None] | None = None

    def tell(self, owner: Any, note: Callable[[Any], None]) -> None:
        """Have `note(owner)` be called whenever it happens from now on, as long as the owner lives."""
        self._watching[owner] = note
        self.count()

    def count(self) -> None:
        """Count from now on."""
        if self._original is None:
            # What ends a region calls it by this name. It stays, for taking it away could undo what others have set.
            self._original, torch.clear_autocast_cache = torch.clear_autocast_cache, self._clear

    def _clear(self) -> None:
        self.times += 1
        for owner, note in tuple(self._watching.items()):
            note(owner)
        assert self._original is not None
        self._original()


cleared = _Cleared()


def keeps_casts() -> bool:
    """Whether autocast is on and keeps the casts of weights."""
    return bool(is_any_autocast()) and torch.is_autocast_cache_enabled()


def is_kept(tensor: torch.Tensor) -> bool:
    """Whether autocast, where it keeps casts, keeps that of this tensor."""
    if tensor.dtype is not torch.float32 or not tensor.requires_grad:
        return False
    return is_leaf(tensor) and tensor._base is None


@lru_cache(maxsize=1024)
def is_cast(op: str, device: str = "cpu") -> bool | None:
    """Whether autocast of a device has a way of its own to run `aten.linear.default`; None where nobody knows."""
    return _asked(op, f"Autocast{device.upper()}")


@lru_cache(maxsize=1024)
def is_composite(op: str) -> bool | None:
    """Whether an operator is nothing but calls of others, each of which autocast looks at; None where nobody knows."""
    return _asked(op, "CompositeImplicitAutograd")


def _asked(op: str, key: Any) -> bool | None:
    space, _, rest = op.partition(".")
    name, _, overload = rest.partition(".")
    try:
        full = f"{space}::{name}" if overload == "default" else f"{space}::{name}.{overload}"
        return None if _has_kernel is None else bool(_has_kernel(full, key))
    except RuntimeError:  # torch has no such operator
        return None
