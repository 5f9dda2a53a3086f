"""What the atlas says of one program: frozen values of plain types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from smelt.diag.records import record


@record
class Effect:
    """What an optimisation gives. time, memory: of a call without it, over those with it; None: not measured.

    what: a pass, or an option that is off. fired: what it did. in_noise: whether the times of both overlap.
    """

    what: str
    fired: str
    time: float | None
    memory: float | None
    in_noise: bool
    note: str = ""


@record
class Training:
    """Both halves of a step: nodes, bytes that are saved, and eager's time over the compiled one's."""

    forward: int
    backward: int
    saved_nbytes: int
    speed_up: float | None
    error: float
    note: str = ""


@record
class Card:
    """One program. failed: why there is nothing to show. operators: nodes by kind; regions: blocks by kind.

    split: microseconds of a call by what they go to. bound: what the time is bound by. sizes: what other sizes did.
    """

    name: str
    summary: str
    failed: str = ""
    captured: int = 0
    optimized: int = 0
    modules: int = 0
    operators: Mapping[str, int] = field(default_factory=dict)
    regions: Mapping[str, int] = field(default_factory=dict)
    nbytes: int = 0
    flops: int = 0
    kernels: int = 0
    distinct: int = 0
    fused: int = 0
    apart: int = 0
    own_flops: float | None = None
    eager_us: float = 0.0
    smelt_us: float = 0.0
    speed_up: float = 0.0
    is_measurement: bool = False
    error: float = 0.0
    arena: int = 0
    arena_naive: int = 0
    split: Mapping[str, float] = field(default_factory=dict)
    bound: str = ""
    effects: Sequence[Effect] = ()
    sizes: str = ""
    training: Training | None = None
    advice: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain data that `json.dumps` takes."""
        return asdict(self)
