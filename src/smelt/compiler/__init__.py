"""Where everything is put together: `trace`, `compile`, `Program`, and the order of the passes."""

from smelt.compiler.build import build
from smelt.compiler.object.compiled import Compiled, make_compile
from smelt.compiler.pipeline import check_options
from smelt.compiler.programs.program import Program
from smelt.compiler.programs.scripting import script
from smelt.compiler.programs.tracing import trace
from smelt.compiler.sizes.dims import Dim
from smelt.compiler.sizes.sized_unit import SizedUnit
from smelt.compiler.split.splitting import split_program
from smelt.compiler.unit import Unit

compile = make_compile(build, check_options, split_program)

__all__ = ["Compiled", "Dim", "Program", "SizedUnit", "Unit", "build", "compile", "script", "trace"]
