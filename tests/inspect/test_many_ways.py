"""A program that runs as partitions, as its way differs at each call, says why one graph does not hold all ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import smelt


def by_rounded_key(x: Tensor) -> Any:
    k = float(x.sum())
    table = {round(k, 2): x}
    return x * k if x.sum() > 0 else table


def test_in_the_warning_and_in_the_report() -> None:
    compiled = smelt.compile(by_rounded_key)
    told = r"at nearly each call.*; one graph cannot hold all paths: .*test_many_ways\.py:\d+"
    with pytest.warns(smelt.SmeltWarning, match=told):
        for n in range(16):
            compiled(torch.randn(3, generator=torch.Generator().manual_seed(n)))
    assert any("one graph cannot hold all paths" in found["why"] for found in smelt.explain(compiled).breaks)
