"""Smelt melts a PyTorch program down to one typed, readable graph and runs it as native code.

p = smelt.trace(f, args)        run once, record: p.graph, p.code, p.graph_for(*args)
c = smelt.compile(model)        the same program, compiled at its first call
smelt.explain(c)                what became of it, and why
smelt.parse(str(p.graph))       graphs are text that parses back
"""

from smelt.compiler import Program, compile, trace
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
from smelt.inspect import Report, explain
from smelt.ir import Graph, parse

__version__ = "0.1.0"

__all__ = [
    "CaptureError",
    "Graph",
    "InternalError",
    "Options",
    "PackageError",
    "Program",
    "Report",
    "ScheduleError",
    "SmeltError",
    "SmeltWarning",
    "VerifyError",
    "__version__",
    "compile",
    "explain",
    "parse",
    "trace",
]
