"""Smelt melts a PyTorch program down to one typed, readable graph and runs it as native code.

p = smelt.trace(f, args)        run once, record: p.graph, p.code, p.graph_for(*args)
p = smelt.script(f)             from source, nothing run: branches and loops are in the graph
c = smelt.compile(model)        the same program, compiled at its first call
smelt.explain(c)                what became of it, and why
smelt.parse(str(p.graph))       graphs are text that parses back
p.save("m.ingot")               one file: graphs, weights, native code; smelt.load("m.ingot") needs no source

Names are looked up when they are first used: a process that only loads a saved program never imports the compiler.
"""

import importlib as _importlib
from typing import TYPE_CHECKING
from typing import Any as _Any

from smelt.diag.collector import full_collections_later as _full_collections_later
from smelt.diag.logs import show_kinds as _show_kinds
from smelt.diag.packages import VERSION as __version__

if TYPE_CHECKING:
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
    from smelt.compiler.doors.torchscript import from_torchscript
    from smelt.compiler.programs.saving import save_programs as save
    from smelt.diag import (
        CaptureError,
        InternalError,
        Options,
        PackageError,
        RanksError,
        ScheduleError,
        SmeltError,
        SmeltWarning,
        VerifyError,
    )
    from smelt.inspect.explain import explain
    from smelt.inspect.report import Report
    from smelt.ir import Graph, parse
    from smelt.parallel.checkpoint import load_checkpoint, save_checkpoint
    from smelt.parallel.step import clip_grad_norm_, forward_backward
    from smelt.runtime.ingot.load import load
    from smelt.runtime.ingot.program import LoadedProgram
    from smelt.runtime.ingot.signature import sign
    from smelt.scheduling import Primitive, list_primitives, register_primitive, tune
    from smelt.scheduling.schedule import apply, schedule

__all__ = [
    "CaptureError",
    "Dim",
    "Graph",
    "InternalError",
    "LoadedProgram",
    "Options",
    "PackageError",
    "Primitive",
    "Program",
    "RanksError",
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
    "clip_grad_norm_",
    "compile",
    "explain",
    "f16",
    "f32",
    "f64",
    "forward_backward",
    "from_exported",
    "from_fx",
    "from_torchscript",
    "i8",
    "i16",
    "i32",
    "i64",
    "list_primitives",
    "load",
    "load_checkpoint",
    "parse",
    "register_primitive",
    "save",
    "save_checkpoint",
    "schedule",
    "schedules",
    "script",
    "sign",
    "trace",
    "tune",
    "u8",
]

_ANNOTATIONS = ("bf16", "bool_", "c64", "c128", "f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8")
_ERRORS = (
    "CaptureError", "InternalError", "Options", "PackageError", "RanksError", "ScheduleError", "SmeltError",
    "SmeltWarning", "VerifyError",
)  # fmt: skip
_SCHEDULING = ("Primitive", "apply", "list_primitives", "register_primitive", "schedule", "tune")
_PLACES: dict[str, tuple[str, str]] = {
    **{name: ("smelt.capture.scripting.annotations", name) for name in _ANNOTATIONS},
    **{name: ("smelt.compiler", name) for name in ("Dim", "Program", "compile", "script", "trace")},
    **{name: ("smelt.compiler.doors.fx_in", name) for name in ("from_exported", "from_fx")},
    "from_torchscript": ("smelt.compiler.doors.torchscript", "from_torchscript"),
    **{name: ("smelt.diag", name) for name in _ERRORS},
    **{name: ("smelt.inspect", name) for name in ("Report", "explain")},
    **{name: ("smelt.ir", name) for name in ("Graph", "parse")},
    **{name: ("smelt.scheduling", name) for name in _SCHEDULING},
    **{name: ("smelt.parallel.checkpoint", name) for name in ("load_checkpoint", "save_checkpoint")},
    **{name: ("smelt.parallel.step", name) for name in ("clip_grad_norm_", "forward_backward")},
    "save": ("smelt.compiler.programs.saving", "save_programs"),
    "load": ("smelt.runtime.ingot.load", "load"),
    "sign": ("smelt.runtime.ingot.signature", "sign"),
    "LoadedProgram": ("smelt.runtime.ingot.program", "LoadedProgram"),
    "schedules": ("smelt.schedules", ""),
}
"""Of each public name the module that has it, and what it is called there ("": it is the module)."""
_PACKAGES = (
    "_torch", "analysis", "autodiff", "bench", "capture", "cli", "codegen", "compiler", "diag", "inspect", "ir", "ops",
    "package", "passes", "pattern", "rewrite", "runtime", "scheduling",
)  # fmt: skip
"""What is behind the names: reached by attribute, too, as when all of it was imported with the first name."""


if not TYPE_CHECKING:  # a type checker has the imports above

    def __getattr__(name: str) -> _Any:
        place = _PLACES.get(name)
        if place is None and name in _PACKAGES:
            return _importlib.import_module(f"{__name__}.{name}")
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _full_collections_later():  # of all that torch has made, which takes longer than the import
            module = _importlib.import_module(place[0])
        found = globals()[name] = getattr(module, place[1]) if place[1] else module
        return found


def __dir__() -> list[str]:
    """The public names: the packages behind them are found by their own names, and are no part of the interface."""
    return sorted([*__all__, "__doc__", "__file__", "__name__", "__path__"])


_show_kinds()
