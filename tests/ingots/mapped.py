"""What a process has of a file in its memory, as Linux counts it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

WIDE_NBYTES = 2 * 4 * 256 * 4096
"""Bytes of the matrices of `wide`."""


def wide() -> nn.Module:
    """f32[rows, 256] -> f32[rows, 256], with 8 MB of weights."""
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 256)).eval()


def mapped_nbytes(path: Path, process: int | str = "self") -> Counter[str]:
    """What `mapped_of` finds in a process."""
    smaps = Path(f"/proc/{process}/smaps")
    if not smaps.exists():
        pytest.fail(f"this system does not tell what is mapped: there is no {smaps}")
    return mapped_of(smaps.read_text(), path)


def mapped_of(smaps: str, path: Path) -> Counter[str]:
    """Bytes of all maps of a file by their names in a text of `/proc/PID/smaps` (Rss, Pss, Shared_Clean,
    Private_Dirty...), and how many `maps` there are.
    """
    found: Counter[str] = Counter()
    is_of_file = False
    for line in smaps.splitlines():
        first, *others = line.split()
        if not first.endswith(":"):
            is_of_file = line.endswith(str(path))
            found["maps"] += is_of_file
        elif is_of_file and others[-1] == "kB":
            found[first.rstrip(":")] += int(others[0]) << 10
    return found


def assert_shared(one: Counter[str], other: Counter[str], nbytes: int) -> None:
    """Two processes that have read so many bytes of a file have them in the same pages, half of which each accounts
    for. Pages that are not on the disk yet are called dirty.
    """
    for found in (one, other):
        assert found["Shared_Clean"] + found["Shared_Dirty"] >= nbytes
        assert found["Private_Clean"] + found["Private_Dirty"] + found["Anonymous"] < nbytes // 50
        assert abs(found["Pss"] / found["Rss"] - 0.5) < 0.05
