"""The kernels of a schedule: the loop nests that its fused regions run as, by name.

    s.fuse(match, name="norm")      region norm_0: its one kernel is norm_0; several are norm_0.0, norm_0.1, ...
    print(s.kernels("norm"))        their loops, as they run with the steps taken

Invariant: what is shown is what the region runs for operands of the types that it was captured with.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import lru_cache

import torch

from smelt.codegen.kernels.nest import Nest, loop_name
from smelt.codegen.llvm.isa import Isa, host_isa
from smelt.codegen.llvm.nests.nest_ir import EmittedKernel, emit_nests, loops_text, simplify_nest
from smelt.codegen.llvm.objects import assembly_of
from smelt.codegen.triton.emit import emit_triton
from smelt.codegen.triton.kernel import TritonKernel
from smelt.compiler import Compiled
from smelt.diag import ScheduleError
from smelt.diag.loops import LoopStep
from smelt.diag.records import record
from smelt.ir import TensorType, Type, is_under
from smelt.scheduling.graphs.regions import NativeRegion
from smelt.scheduling.graphs.running import CALL
from smelt.scheduling.graphs.scope_graphs import ScopeGraph
from smelt.scheduling.modules.functions import stand_ins
from smelt.scheduling.state import State


@record
class Kernel:
    """A loop nest of a fused region, with the steps taken on its loops.

    name: as steps take it. path: of the module whose graph the region is in. region, number: the region, and which of
    its nests this is. steps: all of the region. isa: what its machine code is for; None on a GPU.
    """

    name: str
    path: str
    region: str
    number: int
    nest: Nest
    steps: tuple[LoopStep, ...]
    isa: Isa | None

    @property
    def loops(self) -> dict[str, int]:
        """Its loops by name, and how many turns they have."""
        nest = simplify_nest(self.nest)
        return {loop_name(nest, k): size for k, size in enumerate(nest.sizes)}

    @property
    def own(self) -> tuple[LoopStep, ...]:
        """The steps on this kernel."""
        return tuple(step for step in self.steps if step.kernel == self.number)

    @property
    def listing(self) -> str:
        """Its loops as they run; of a GPU its Triton source."""
        return str(self.triton) if self.isa is None else loops_text(self.nest, self.isa, self.own)

    @property
    def items(self) -> int:
        """The pieces of work that threads take; of a GPU its programs."""
        return self.triton.programs if self.isa is None else self._made.items

    @property
    def triton(self) -> TritonKernel:
        """The kernel that a GPU runs with these steps."""
        return emit_triton(self.nest, steps=self.own)

    @property
    def llvm(self) -> str:
        """Its LLVM text. Raises: ScheduleError (S0614) of a kernel for a GPU."""
        return self._made.source.text

    @property
    def assembly(self) -> str:
        """Its assembly for this machine, within the limit of SMELT_ISA. Raises: as `llvm`."""
        return assembly_of(self.llvm, self._isa)

    @property
    def _made(self) -> EmittedKernel:
        return emit_nests(self.nest, self._isa, self.own)[0]

    @property
    def _isa(self) -> Isa:
        if self.isa is None:
            raise ScheduleError(
                f"{self.name} has no code for a CPU", why="its tensors are on a GPU", code="S0614",
                fix="print its `triton`; `smelt show --ptx` and `--sass` show what it is compiled to",
            )  # fmt: skip
        return self.isa

    def check(self, step: LoopStep) -> None:
        """Whether one more step can be taken. Raises: ScheduleError (S0614)."""
        if self.isa is None:
            emit_triton(self.nest, steps=(*self.own, step))
        else:
            loops_text(self.nest, self.isa, (*self.own, step))

    def __str__(self) -> str:
        where = f" of {self.path}" if self.path else ""
        work = "program" if self.isa is None else "work item"
        return f"; kernel {self.name}{where}, {self.items} {work}{'s' * (self.items != 1)}\n{self.listing}"


class Kernels(tuple[Kernel, ...]):
    """Several kernels; printed, one below the other."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n\n".join(map(str, self))


def kernels_of(state: State, paths: Sequence[str], name: str) -> Kernels:
    """The kernels of a name at and below modules; all where the name is empty. Raises: ScheduleError (S0614)."""
    return Kernels(named(state.tree, state.scheduled, state.scope, paths, name))


def named(
    tree: torch.nn.Module, scheduled: Sequence[str], scope: Callable[[str], ScopeGraph], paths: Sequence[str], name: str
) -> list[Kernel]:
    """The kernels of a name in the graphs of modules on which steps were taken, at and below these paths.

    tree: of the model, to see what is compiled. Raises: ScheduleError (S0614) where there is none.
    """
    isa = host_isa()
    if isa is None:
        raise ScheduleError(
            "there are no kernels here", why="own kernels are not made for this machine, or SMELT_ISA=none",
            fix="unset SMELT_ISA, or leave the step out", code="S0614",
        )  # fmt: skip
    compiled = [path for path, module in tree.named_modules(remove_duplicate=False) if isinstance(module, Compiled)]
    found: list[Kernel] = []
    known: list[str] = []
    for path in scheduled:
        if not any(is_under(path, above) for above in paths):
            continue
        for region, native, types in _regions(scope(path)):
            known.append(region)
            if not name or any(_is_of(region, base) for base in (name, name.rpartition(".")[0])):
                found += _kernels(path, region, native, types, isa)
    chosen = [k for k in found if not name or _is_of(k.region, name) or _is_of(k.region, *_numbered(name), k.number)]
    within = {kernel.path: path for kernel in chosen for path in compiled if is_under(kernel.path, path)}
    left = [kernel for kernel in chosen if kernel.path not in within]
    if left:
        return left
    around = next(iter(within.values()), None)
    if around is None and not chosen:
        around = next((path for path in compiled if any(is_under(path, p) or is_under(p, path) for p in paths)), None)
    if around is not None and (chosen or not known):
        raise ScheduleError(
            f"there is no kernel {name!r} of its own" if name else "there is no kernel of its own",
            why=f"{around or 'the whole'} is compiled: what is in it is fused anew, for each kind of call",
            fix="undo the compile, fuse what is to have its own loops with keep=True, and compile modules beside it; "
            "`smelt show --kernels` prints the kernels of a compiled program", code="S0614",
        )  # fmt: skip
    raise _unknown(name, [kernel.name for kernel in found] or known)


def _numbered(name: str) -> tuple[str, int]:
    base, _, number = name.rpartition(".")
    return (base, int(number)) if number.isdecimal() else ("", -1)


def _is_of(region: str, base: str, wanted: int = 0, number: int = 0) -> bool:
    """Whether a region has a name, or one of those that `fuse` makes of it; and a kernel the number."""
    return wanted == number and re.fullmatch(rf"{re.escape(base)}(_\d+)?", region) is not None


def _regions(scope: ScopeGraph) -> Iterator[tuple[str, NativeRegion, Sequence[Type]]]:
    """The native regions that a graph calls, with the types of their operands."""
    called = {str(node.args[0]) for node in scope.edited.graph.body if node.op == CALL}
    for name, region, types in scope.edited.regions:
        if isinstance(region, NativeRegion) and name in called:
            if not scope.is_concrete:
                raise ScheduleError(
                    f"the kernels of {name} are not known yet", why="sizes are not known without example inputs",
                    fix="give the arguments of a call: smelt.schedule(model, example_inputs=(x,))", code="S0614",
                )  # fmt: skip
            yield name, region, types


@record
class _Asked:
    """A region as a key: by what its loops follow from."""

    text: str | int
    types: tuple[Type, ...]
    isa: Isa
    region: NativeRegion = field(compare=False)


@lru_cache(maxsize=64)
def _nests(asked: _Asked) -> tuple[Nest | None, ...]:
    return asked.region.nests(stand_ins(asked.types))


def _kernels(path: str, region: str, native: NativeRegion, types: Sequence[Type], isa: Isa) -> list[Kernel]:
    nests = _nests(_Asked(native.key, tuple(types), isa, native))
    is_on_gpu = any(isinstance(t, TensorType) and t.device.startswith("cuda") for t in types)
    own = None if is_on_gpu else isa
    return [
        Kernel(region if len(nests) == 1 else f"{region}.{n}", path, region, n, nest, native.loops, own)
        for n, nest in enumerate(nests)
        if nest is not None
    ]


def _unknown(name: str, known: Sequence[str]) -> ScheduleError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    fix = (
        f"did you mean {near[0]!r}? s.kernels() shows them" if near else "make one: s.fuse(match, name=..., keep=True)"
    )
    return ScheduleError(
        f"there is no kernel {name!r} of loops" if name else "there is no kernel of loops",
        why=f"there {'is' if len(known) == 1 else 'are'} {', '.join(known) or 'none'}", fix=fix, code="S0614",
    )  # fmt: skip
