"""Records of the graph's own operators: structured ones with lists of records inside, and `py.*`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from smelt._torch.seen.record_modes import Modes
from smelt.capture.recording.opinfo import OpInfo
from smelt.capture.recording.spans import Site
from smelt.capture.recording.tensor_slots import Slot
from smelt.ir import ListType, TupleType


class RegionRecords(NamedTuple):
    """A region: its parameters, its records and what it yields (slots and literals)."""

    params: Sequence[Slot]
    records: Sequence[Any]
    yields: Sequence[Any]


class Listed(NamedTuple):
    """A list or tuple that a region yields: what is in it, and its type."""

    items: Sequence[Any]
    type: ListType | TupleType


class Structured(NamedTuple):
    """An `if`, `for` or `while`."""

    op: str
    args: Sequence[Any]
    regions: Sequence[RegionRecords]
    results: Sequence[Slot]
    site: Site | None
    scope: str
    modes: Modes


def size_of(records: Sequence[object]) -> int:
    """How many operators there are, inner ones too."""
    inner = (region.records for r in records if isinstance(r, Structured) for region in r.regions)
    return len(records) + sum(map(size_of, inner))


@lru_cache(maxsize=512)
def plain_info(name: str) -> OpInfo:
    """An operator of the graph's own, or one that torch's dispatcher did not show."""
    return OpInfo(name, name.split(".")[1] if "." in name else name, True, 1, False, True, False, (), None, -1, False,
                  None)  # fmt: skip
