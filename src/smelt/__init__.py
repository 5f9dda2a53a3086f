"""Smelt melts a PyTorch program down to one typed, readable graph and runs it as native code.

p = smelt.trace(f, args)        run once, record: p.graph, p.code, p.graph_for(*args)
p = smelt.script(f)             from source, nothing run: branches and loops are in the graph
c = smelt.compile(model)        the same program, compiled at its first call
smelt.explain(c)                what became of it, and why
smelt.parse(str(p.graph))       graphs are text that parses back
"""

from smelt import schedules
from smelt.capture.scripting.annotations import (
    bf16,
    bool_,
    c64,
    c128,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
)
from smelt.compiler import Dim, Program, compile, script, trace
from smelt.compiler.doors.fx_in import from_exported, from_fx
from smelt.diag import (
    CaptureError,
    InternalError,
    Options,
    PackageError,
    ScheduleError,
    SmeltError,
    SmeltWarning,
    VerifyError,
)
from smelt.diag.logs import show_kinds as _show_kinds
from smelt.diag.packages import VERSION as _VERSION
from smelt.inspect import Report, explain
from smelt.ir import Graph, parse
from smelt.scheduling import Primitive, apply, list_primitives, register_primitive, schedule, tune

__version__ = _VERSION

__all__ = [
    "CaptureError",
    "Dim",
    "Graph",
    "InternalError",
    "Options",
    "PackageError",
    "Primitive",
    "Program",
    "Report",
    "ScheduleError",
    "SmeltError",
    "SmeltWarning",
    "VerifyError",
    "__version__",
    "apply",
    "bf16",
    "bool_",
    "c64",
    "c128",
    "compile",
    "explain",
    "f16",
    "f32",
    "f64",
    "from_exported",
    "from_fx",
    "i8",
    "i16",
    "i32",
    "i64",
    "list_primitives",
    "parse",
    "register_primitive",
    "schedule",
    "schedules",
    "script",
    "trace",
    "tune",
    "u8",
]


def __dir__() -> list[str]:
    """The public names: the packages behind them are found by their own names, and are no part of the interface."""
    return sorted([*__all__, "__doc__", "__file__", "__name__", "__path__"])


_show_kinds()
