"""What a run changed is told once, with its line, and not for the dictionary that holds the attribute as well."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import smelt


class Counting(nn.Module):
    n = 0

    def __getattr__(self, name: str) -> Any:
        return len(name) if name.startswith("size_") else super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return x * self.n


def test_a_counter_of_a_module_that_finds_attributes_itself() -> None:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        smelt.trace(Counting(), (torch.ones(2),))
    told = [str(w.message) for w in given if "it changes" in str(w.message)]
    assert len(told) == 1 and "it changes self.n at" in told[0]
