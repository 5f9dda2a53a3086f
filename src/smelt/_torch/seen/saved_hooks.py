"""Whether `torch.utils.checkpoint` runs the present code, or repeats it: it expects both to save the same tensors.

Adapter for `torch._C._autograd._top_saved_tensors_default_hooks`; where torch has no such function, nothing is known of
it: then no code seems to be run again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_top: Callable[[bool], Any] | None = getattr(
    getattr(torch._C, "_autograd", None), "_top_saved_tensors_default_hooks", None
)


def is_in_checkpoint() -> bool:
    """Whether the code runs in a checkpoint: forward, or once more on the way back."""
    if _top is None:
        return False
    hooks = _top(True)
    return bool(hooks) and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint"
