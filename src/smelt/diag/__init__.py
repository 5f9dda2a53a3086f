"""Spans, the error catalogue and options: what every other package may use."""

from smelt.diag.errors import (
    CATALOGUE,
    CaptureError,
    InternalError,
    LateError,
    Miss,
    PackageError,
    RanksError,
    ScheduleError,
    SmeltError,
    SmeltWarning,
    VerifyError,
)
from smelt.diag.frames import user_level
from smelt.diag.options import Options, isa_limit
from smelt.diag.span import Span

__all__ = [
    "CATALOGUE",
    "CaptureError",
    "InternalError",
    "LateError",
    "Miss",
    "Options",
    "PackageError",
    "RanksError",
    "ScheduleError",
    "SmeltError",
    "SmeltWarning",
    "Span",
    "VerifyError",
    "isa_limit",
    "user_level",
]
