"""Which operators autocast casts the operands of on the CPU, which are made of others, and how it is switched off.

Adapter for `torch._C._dispatch_has_kernel_for_dispatch_key`; where torch has no such function, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import torch

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


@lru_cache(maxsize=1024)
def is_cast(op: str) -> bool | None:
    """Whether autocast has a way of its own to run `aten.linear.default`; None where nobody knows."""
    return _asked(op, "AutocastCPU")


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
