"""Fake tensors: shapes, dtypes and strides as on the real device, without data.

Adapter for `torch._subclasses.fake_tensor.FakeTensorMode`. Each thread's mode is made on first need, since a mode
remembers by itself what it was entered over; where the name is missing `fake_tensors` gives False and callers use
another way.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from smelt._torch.seen.light_fake import light_mode, unlogged, unmarked

try:
    from torch._subclasses.fake_tensor import FakeTensorMode
except ImportError:  # pragma: no cover - another torch
    FakeTensorMode = None


class _Thread(threading.local):
    mode: Any = None


_thread = _Thread()


def _mode() -> Any | None:
    if FakeTensorMode is None:
        return None
    if _thread.mode is None:
        _thread.mode = light_mode(FakeTensorMode)
    return _thread.mode


@contextmanager
def fake_tensors() -> Iterator[bool]:
    """New tensors have no data for a while; gives False, and changes nothing, where torch has no fake tensors."""
    mode = _mode()
    if mode is None:
        yield False
        return
    with unlogged, unmarked(), mode:
        yield True


def meta_kernels_are_loaded() -> bool:
    """Whether torch's kernels for data-free tensors are ready: they are Python, and the first call of many of them
    imports torch's own compiler, which takes seconds.
    """
    return "torch._dynamo" in sys.modules
