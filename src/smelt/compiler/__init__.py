"""Where everything is put together: `trace`, `compile`, `Program`, and the order of the passes."""

from smelt.compiler.build import build
from smelt.compiler.compiled import Compiled, make_compile
from smelt.compiler.pipeline import check_options
from smelt.compiler.program import Program
from smelt.compiler.scripting import script
from smelt.compiler.tracing import trace
from smelt.compiler.unit import Unit

compile = make_compile(build, check_options)

__all__ = ["Compiled", "Program", "Unit", "build", "compile", "script", "trace"]
