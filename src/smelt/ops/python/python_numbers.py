"""`py.fits`: a number, if it is in the range of an element type; torch's error if not.

%m: float = py.fits(%n, "f32")
"""

from __future__ import annotations

from typing import Final

import torch

FITS: Final = "py.fits"
RANGES: Final = {"f32": torch.float32, "f64": torch.float64}
"""The element types that it knows; infinities and NaN are in the range of each."""


def fits(number: float, dtype: str) -> float:
    """The number. Raises: RuntimeError where it is finite and beyond the element type."""
    torch.empty((), dtype=RANGES[dtype]).fill_(number)
    return number
