"""A lowered program as the entry of an ingot that holds its plan.

Invariant: what a plan holds of the program's weights is in the file once: read as it lies, packed at loading, or,
where it follows from weights by more than that, stored beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.codegen.contract.coding import Coding, coding_source
from smelt.codegen.contract.packing import Packing, packing_source
from smelt.codegen.llvm.isa import AVX2, AVX512, NEON, Isa
from smelt.codegen.llvm.objects import compile_kernels
from smelt.codegen.lower.products.packed_weight import Narrow
from smelt.codegen.lower.result import Lookup, Lowered
from smelt.codegen.lower.static import plan_tensors as lowering
from smelt.codegen.lower.static.plan_tensors import Live, PackedFilters, Panels, made_now
from smelt.codegen.lower.static.static_program import Apply, At, Content, Read, StaticProgram
from smelt.diag import Options
from smelt.ops.convert import to_torch
from smelt.package.paths import short_path
from smelt.package.state import Tensors
from smelt.runtime.ingot.manifest import Placed
from smelt.runtime.ingot.size_table import SizeTable
from smelt.runtime.ingot.texts import plan_json, recipe_json
from smelt.runtime.ingot.texts.held_json import (
    ARITHMETIC,
    VIEWS,
    Computed,
    Filtered,
    FromState,
    Held,
    Packed,
    Result,
    Step,
    Steps,
)
from smelt.runtime.machine.cache import code_cache
from smelt.runtime.plan import KernelCode, uses_of
from smelt.runtime.recipes import Either, OfKind, Same, SizedView, Spent, StateName, ViewOf

TARGETS: Mapping[str, Isa] = {"avx512": AVX512, "avx2": AVX2, "neon": NEON}
"""What native code is made for."""


@dataclass
class Code:
    """The kernels for one target, each once, whatever number of methods use it."""

    kernels: dict[str, tuple[int, int]] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    nbytes: int = 0

    def place(self, kernel: KernelCode) -> tuple[int, int]:
        """Where a kernel's object lies, and its size."""
        found = self.kernels.get(kernel.symbol)
        if found is None:
            found = self.kernels[kernel.symbol] = self.nbytes, len(kernel.object)
            self.pieces += [kernel.object, bytes(-len(kernel.object) % 16)]
            self.nbytes += len(kernel.object) + -len(kernel.object) % 16
        return found


@dataclass
class NativeWriter:
    """Writes one method's plan for one target.

    numbers: (kind, path) of the state -> its number. table: the words of a plan for many sizes. folded: numbers of the
    state that stored values follow from.
    """

    lowered: Lowered
    isa: Isa
    options: Options
    state: Lookup
    numbers: Callable[[str, str], int]
    tensors: Tensors
    code: Code
    table: SizeTable | None = None
    folded: set[int] = field(default_factory=set)
    _used: dict[str, int] = field(default_factory=dict)
    _rows: list[list[Any]] = field(default_factory=list)

    def entry(self) -> Any:
        """The entry as JSON, but for what the plan holds: recipes, which `Panels.settled` has the last word on.

        Raises: plan_json.NotWritten.
        """
        lowered, plan = self.lowered, self.lowered.plan
        written = plan_json.write(plan, self._kernel, short_path, is_sized=self.table is not None)
        used = {slot for each in plan.instructions for slot in uses_of(each)} | set(plan.outputs)
        held = [(slot, self._held(slot, tensor)) for slot, tensor in plan.held if slot in used]
        for recipe in (*(how for _, how in held), *self._returned()):
            self.tensors.panels.note(recipe)
        written["fixed"] = sorted(plan.fixed & used)
        try:
            outputs = [recipe_json.write(recipe) for recipe in lowered.outputs]
        except TypeError as error:
            raise plan_json.NotWritten(f"a result: {error}") from None
        baked = sorted({self.numbers(name.kind, name.path) for name in lowered.constants})
        entry = {"kernels": self._rows, "plan": written, "held": held, "outputs": outputs, "baked": baked}
        return entry if self.table is None else entry | {"table": self.table.written()}

    def _returned(self) -> list[FromState]:
        """The tensors of the state that are results themselves, or views of which are."""
        found = []
        for recipe in self.lowered.outputs:
            inner = recipe.recipe if isinstance(recipe, (OfKind, Spent)) else recipe
            for one in inner.options if isinstance(inner, Either) else (inner,):
                if isinstance(one, (Same, ViewOf, SizedView)) and isinstance(one.source, StateName):
                    found.append(FromState(self.numbers(one.source.kind, one.source.path)))
        return found

    def _kernel(self, kernel: KernelCode) -> int:
        found = self._used.get(kernel.symbol)
        if found is None:
            found = self._used[kernel.symbol] = len(self._rows)
            self._rows.append([kernel.symbol, *self.code.place(kernel)])
        return found

    def _held(self, slot: int, tensor: torch.Tensor) -> Held:
        how = (self.lowered.how_made or {}).get(slot)
        made = None if how is None else how()
        if how is not None and made is None:
            raise plan_json.NotWritten("a weight follows from a constant that has no plain elements")
        match made:
            case None:
                live = self._live(tensor)
                if live is not None:
                    return live
                self.folded |= {self.numbers(name.kind, name.path) for name in self.lowered.constants}
            case Live(state=Read(name=name)):
                return FromState(self.numbers(name.kind, name.path))
            case Panels() | PackedFilters() | lowering.Computed():
                steps = self._steps(made.program)
                if steps is not None:
                    return self._recipe(made, steps)
                self.folded |= {
                    self.numbers(step.name.kind, step.name.path)
                    for step in made.program.steps
                    if isinstance(step, Read)
                }
                tensor = made_now(made, self.state)
        if tensor.layout is not torch.strided:
            raise plan_json.NotWritten("a weight is in a form of torch's own library")
        return self.tensors.stored(tensor)

    def _recipe(self, made: lowering.Computed | Panels | PackedFilters, steps: Steps) -> Held:
        match made:
            case PackedFilters(sizes=sizes, filters=filters):
                return Filtered(steps, sizes, filters)
            case Panels():
                return self._packed(made, steps)
        value = made.program.run(self.state)
        return Computed(steps, value.dtype, tuple(value.shape), value.stride())

    def _live(self, tensor: torch.Tensor) -> FromState | None:
        """The tensor of the state that this one is."""
        if tensor.layout is not torch.strided or not tensor.numel():
            return None
        key = tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
        for name in self.lowered.handles:
            other = self.state(name.kind, name.path)
            if key == (other.data_ptr(), other.dtype, tuple(other.shape), other.stride()):
                return FromState(self.numbers(name.kind, name.path))
        return None

    def _packed(self, made: Panels, steps: Steps) -> Packed:
        """How the panels are made when the file is loaded."""
        weight = made.program.run(self.state).detach()
        weight = weight.t() if made.is_transposed else weight
        is_dense = 1 not in weight.stride()
        weight = weight.contiguous() if is_dense else weight
        along_columns = weight.stride(1) == 1
        form = made.form
        if isinstance(form, Narrow):
            raise plan_json.NotWritten("a weight is over few bits")
        if isinstance(form, Packing):
            source, panels, dtype = packing_source(form.tiling, along_columns), form.nelements, weight.dtype
        else:
            source, panels, dtype = coding_source(form.tiling, along_columns), form.nbytes, torch.uint8
        cache = code_cache(self.options.cache_dir, self.options.cache_limit_mb)
        kernel = compile_kernels([source], self.isa, cache)[source.symbol]
        words = form.words(weight.stride(0) if along_columns else weight.stride(1), along_columns)
        packed = Packed(
            steps, made.is_transposed, is_dense, weight.dtype, tuple(weight.shape), weight.stride(),
            self._kernel(kernel), words, form.panels, panels, dtype,
        )  # fmt: skip
        if isinstance(form, Coding):
            return packed
        return self.tensors.panels.ask(packed, form, weight, lambda number: self.tensors.tensors[number].detach())

    def _steps(self, program: StaticProgram) -> Steps | None:
        """The program as a file has it; None where it has other operators."""
        found: list[FromState | Placed | Step] = []
        for step in program.steps:
            match step:
                case Read(name=name):
                    found.append(FromState(self.numbers(name.kind, name.path)))
                case Content():
                    found.append(self.tensors.stored(step.tensor()))
                case Apply(op=op, is_list=False) if op in VIEWS | ARITHMETIC:
                    kwargs = {name: _argument(arg) for name, arg in step.kwargs}
                    found.append(Step(op, tuple(map(_argument, step.args)), kwargs))
                case _:
                    return None
        return tuple(found) if program.value == At(len(found) - 1) else None


def _argument(arg: Any) -> Any:
    if isinstance(arg, At):
        return Result(arg.step)
    return tuple(map(_argument, arg)) if isinstance(arg, tuple) else to_torch(arg)
