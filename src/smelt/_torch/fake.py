"""Fake tensors: shapes, dtypes and strides as on the real device, without data.

Adapter for `torch._subclasses.fake_tensor.FakeTensorMode`. The mode is made on first need; where the name is missing
`fake_tensors` gives False and callers use another way.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from smelt._torch.light_fake import light_mode, unmarked

try:
    from torch._subclasses.fake_tensor import FakeTensorMode
except ImportError:  # pragma: no cover - another torch
    FakeTensorMode = None


@lru_cache(maxsize=1)
def _mode() -> Any | None:
    return None if FakeTensorMode is None else light_mode(FakeTensorMode)


@contextmanager
def fake_tensors() -> Iterator[bool]:
    """New tensors have no data for a while; gives False, and changes nothing, where torch has no fake tensors.

    torch logs every operator that fails under it; a failure is an answer here, so that log is held back.
    """
    mode = _mode()
    if mode is None:
        yield False
        return
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled = log.disabled
    log.disabled = True
    try:
        with unmarked(), mode:
            yield True
    finally:
        log.disabled = was_disabled


def meta_kernels_are_loaded() -> bool:
    """Whether torch's kernels for data-free tensors are ready: they are Python, and the first call of many of them
    imports torch's own compiler, which takes seconds.
    """
    return "torch._dynamo" in sys.modules
