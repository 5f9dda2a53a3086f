"""Fake tensors: shapes, dtypes and strides as on the real device, without data.

Adapter for `torch._subclasses.fake_tensor.FakeTensorMode`. Making the mode costs about a second the first time, so it
is made on first need; where the name is missing `fake_context` gives None and callers use another way.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

try:
    from torch._subclasses.fake_tensor import FakeTensorMode
except ImportError:  # pragma: no cover - another torch
    FakeTensorMode = None


@lru_cache(maxsize=1)
def fake_context() -> Any | None:
    """The one FakeTensorMode (a context manager), or None where torch has none."""
    return None if FakeTensorMode is None else FakeTensorMode()
