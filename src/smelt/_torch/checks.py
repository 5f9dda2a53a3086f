"""torch's own checks of a condition, `torch._check` and its kin, by what they raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_RAISED: dict[str, type[Exception]] = {
    "_check": RuntimeError, "_check_index": IndexError, "_check_value": ValueError, "_check_type": TypeError,
    "_check_not_implemented": NotImplementedError,
}  # fmt: skip
CHECKS: dict[Callable[..., Any], type[Exception]] = {
    found: raised for name, raised in _RAISED.items() if (found := getattr(torch, name, None)) is not None
}
"""`check(condition, message)`; what each raises where the condition does not hold."""
check_with: Callable[..., Any] | None = getattr(torch, "_check_with", None)
"""`check_with(raised, condition, message)`."""
UNTOLD = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an "
    "enhancement request to PyTorch.)"
)
"""The text of an error without a message."""
