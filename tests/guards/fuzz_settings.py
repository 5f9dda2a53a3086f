"""A module whose globals the fuzzer's programs read from outside."""

from __future__ import annotations

from typing import ClassVar

import torch

SCALE = 2.0
DEPTH = 2
NAMES = ["relu", "tanh"]
TABLE = {"gain": 1.5, "inner": {"bias": 0.25}}
WEIGHT = torch.tensor([1.0, -2.0, 0.5, 3.0])


class Defaults:
    """Settings held by a class."""

    rate = 0.5
    steps = 2
    nested: ClassVar = {"on": True}


def scaled(x: torch.Tensor) -> torch.Tensor:
    """A function of another module, which reads that module's globals."""
    return x * SCALE


def chosen(x: torch.Tensor, by: str) -> torch.Tensor:
    """Another one, by a name."""
    return getattr(torch, by)(x)
