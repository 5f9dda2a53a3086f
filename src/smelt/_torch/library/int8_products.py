"""Products of bytes: `x @ weight.T` of signed bytes, exact in 32-bit integers.

Adapter for `torch._int_mm`, which takes plain tensors (torch's quantized ones are going away). Tried once on numbers of
which the answer is known; where that fails, the same integers are multiplied as floats, slower.
"""

from __future__ import annotations

from functools import lru_cache

import torch


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """i8[m, k], i8[n, k] -> i32[m, n], or floats of these values (rounded beyond 2**24)."""
    if is_native():
        return torch._int_mm(x, weight.t())
    return torch.nn.functional.linear(x.float(), weight.float())


@lru_cache(maxsize=1)
def is_native() -> bool:
    """Whether torch has such products on this CPU and they are right, for the extreme bytes too."""
    try:
        x = torch.tensor([[-128, 127, 127, 1], [-128, -128, -128, -128], [3, 2, 1, 0]], dtype=torch.int8).repeat(1, 16)
        found = torch._int_mm(x, x[:2].t())
    except (AttributeError, RuntimeError):  # pragma: no cover - another torch
        return False
    return torch.equal(found.long(), x.long() @ x[:2].long().t())
