"""The native form of an entry point: its plan, with tensors and machine code, ready to run on this machine.

    entry "code/avx2/forward.json"
    {"kernels": [["smelt_1f..", 0, 4096]], "plan": ..., "held": [[slot, recipe]], "outputs": ..., "baked": [3, 5]}

Invariant: what a file says of the machine is not believed: the target is chosen by this process's own look at the CPU,
and code is loaded only where its digest, its kind of machine and its bounds fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

import torch

from smelt._torch.library.schemas import find_overload, takes_calls_of
from smelt.diag import InternalError, SmeltError
from smelt.diag.records import record
from smelt.runtime.encoding.sizes import SizedExecutable, SizedPlan
from smelt.runtime.executable import Executable
from smelt.runtime.guarding.guard_constants import Constants
from smelt.runtime.ingot.contents import Contents
from smelt.runtime.ingot.errors import broken
from smelt.runtime.ingot.free_sizes import Sizes
from smelt.runtime.ingot.manifest import Manifest, Method, Placed
from smelt.runtime.ingot.size_table import SizeTable
from smelt.runtime.ingot.texts import held_json, plan_json, recipe_json
from smelt.runtime.ingot.texts.held_json import (
    Computed,
    Filtered,
    FromState,
    Held,
    Packed,
    Packing,
    computed_of,
    filters_of,
    operators_of,
    sources_of,
    weight_of,
)
from smelt.runtime.ingot.texts.json_text import Part
from smelt.runtime.machine.isa import BASELINE_X86, NEON, host_isa
from smelt.runtime.plan import Bump, Call, Copy, Dispatch, Instruction, KernelCode, Loop, Plan, outs_of
from smelt.runtime.recipes import Lookup, OutputRecipe, rebuilt

_KEYS = ("kernels", "plan", "held", "outputs", "baked")
_MOST_THREADS = 8


class Refused(Exception):
    """A run came to data that native code leaves to torch, at the instruction of this number."""

    def __init__(self, index: int) -> None:
        super().__init__(f"instruction {index}")
        self.index = index


class CannotRun(Exception):
    """Why native code of the file is not used here."""


def targets() -> tuple[str, ...]:
    """The names of targets whose code runs on this machine, best first."""
    isa = host_isa()
    if isa is None or isa == BASELINE_X86:
        return ()
    if isa == NEON:
        return ("neon",)
    return ("avx512", "avx2") if isa.name == "avx512" else ("avx2",)


@record
class NativeText:
    """A method's native form, read and checked, without tensors.

    baked: numbers of the state whose contents were packed or folded. plan: without the tensors that it holds. table:
    the words of a plan for many sizes.
    """

    plan: Plan
    code: Sequence[KernelCode]
    held: Sequence[tuple[int, Held]]
    outputs: tuple[OutputRecipe, ...]
    baked: tuple[int, ...]
    table: SizeTable | None = None

    @staticmethod
    def read(part: Part, code: memoryview, method: Method, nstate: int) -> NativeText:
        """Raises: PackageError (S0701)."""
        is_sized = type(part.value) is dict and "table" in part.value
        kernels, plan, held, outputs, baked, *sizes = part.keys(*_KEYS, *(["table"] if is_sized else []))
        table = SizeTable.read(sizes[0]) if sizes else None
        if table is not None and (method.free is None or len(table.low) != len(method.free.symbols)):
            raise sizes[0].bad("is of other sizes than the program's")
        objects = tuple(_kernel(each, code) for each in kernels.items())
        found = []
        for each in held.items():
            slot, recipe = each.items(2)
            found.append((slot.as_int(), held_json.read(recipe, nstate, len(objects))))
        results = len(Part(plan.value, part.entry, ".plan").keys(*plan_json.KEYS)[2].items())
        recipes = tuple(recipe_json.read(each, len(method.places), results) for each in outputs.items())
        without = plan_json.read(plan, objects, _Refuse, 0 if table is None else len(table.columns))
        return NativeText(without, objects, found, recipes, baked.ints(0, nstate - 1), table)

    def changed_operator(self, manifest: Manifest) -> str:
        """An operator that weights follow from others by, and that this torch has otherwise; "" where there is none."""
        names = {name for _, recipe in self.held for name in operators_of(recipe)} & manifest.operators.keys()
        for name in sorted(names) if manifest.torch != str(torch.__version__) else ():
            found = find_overload(name)
            if found is None or not takes_calls_of(found, manifest.operators[name]):
                return name
        return ""

    def at(self, sizes: Mapping[str, int]) -> NativeText | None:
        """The same for these sizes alone; None where it is for others."""
        values = tuple(sizes.values())
        if self.table is None:
            return self
        if not self.table.holds(*values):
            return None
        plan = SizedPlan(tuple(sizes), (), self.plan, self.table.words, self.table.holds)
        return replace(self, plan=plan.at(values), table=None)


def _kernel(part: Part, code: memoryview) -> KernelCode:
    symbol, start, nbytes = part.items(3)
    if start.as_int() + nbytes.as_int() > len(code):
        raise part.bad("is outside of the code")
    return KernelCode(symbol.as_str(), bytes(code[start.as_int() : start.as_int() + nbytes.as_int()]))


@record
class _Refuse:
    """Stands for the computation of an instruction in torch, which the file does not have."""

    index: int

    def __call__(self, *args: Any) -> Any:
        raise Refused(self.index)


def _is_clean(plan: Plan, index: int) -> bool:
    """Whether nothing that lives longer than a run can have been written before an instruction runs."""
    lasting = {*plan.inputs, *(slot for slot, _ in plan.held)} - plan.fixed
    writes = [i for i, each in enumerate(plan.instructions) if _writes(each, lasting)]
    if any(isinstance(each, Loop) for each in plan.instructions):
        return not writes
    return not writes or index < writes[0]


def _writes(instruction: Instruction, lasting: set[int]) -> bool:
    match instruction:
        case Bump():
            return True
        case Copy(dst=dst):
            return dst in lasting
        case Call() | Dispatch():
            return not outs_of(instruction)  # an operator that writes into its arguments
    return False


def uses_library(plan: Plan) -> bool:
    """Whether torch's own functions are called, which are another version's in another torch."""
    return any(isinstance(each, (Call, Dispatch)) for each in plan.instructions)


class StateNow(Protocol):
    """The program's state as it is."""

    def tensor(self, number: int) -> torch.Tensor: ...

    def present(self, number: int) -> torch.Tensor | None:
        """The tensor; None where only the file has it, in panels."""
        ...

    def is_as_in_panels(self, number: int) -> bool:
        """Whether it is what the file has in panels."""
        ...


class Native:
    """An entry point's plan over the program's present tensors. Built once for each state of these."""

    def __init__(
        self, contents: Contents, method: Method, text: NativeText, executor: bytes, state: StateNow,
        read: Sequence[int], threads: int,
    ) -> None:  # fmt: skip
        """read: the numbers of the state that the program reads. Raises: CannotRun; PackageError (S0701, S0402)."""
        self.text = text
        for _, recipe in text.held:
            if not _is_in_panels(recipe, state):
                for number in sources_of(recipe):
                    state.tensor(number)
        # What changes from here on may be in what is packed or not: the next call will see that it has.
        self.present = tuple(map(state.present, read))
        self._baked = [tensor for number in text.baked if (tensor := state.present(number)) is not None]
        self._constants = Constants(self._baked)
        packings: list[Packing] = []
        held = []
        for slot, recipe in text.held:
            held.append((slot, _tensor(contents, recipe, state, text.code, packings)))
        self._plan = replace(text.plan, held=tuple(held))
        contents.populate(
            [tensor for (_, tensor), (_, how) in zip(held, text.held, strict=True) if isinstance(how, Packed)]
        )
        _run_all(packings, threads)
        self._sized = None if text.table is None else _sized(self._plan, text.table, method, executor)
        try:
            if self._sized is None or text.table is None:
                self.executable = Executable(self._plan, executor)
            else:
                # The first sizes decide where regions of threads are: small ones have none.
                self.executable = self._sized.at(text.table.most)
        except InternalError as error:
            raise broken("its plan", str(error.what)) from None
        if not self.executable.is_native:
            raise CannotRun("machine code cannot be loaded into memory here")

    def takes(self, sizes: Sizes) -> bool:
        """Whether its plan is for these free sizes."""
        return self.text.table is None or self.text.table.holds(*sizes)

    def is_current(self) -> bool:
        """Whether what was packed and folded is still as it was."""
        return self._constants.unchanged()

    def is_clean(self, refused: Refused) -> bool:
        """Whether nothing that lives longer than a run had been written when it was refused."""
        return _is_clean(self._plan, refused.index)

    def run(self, inputs: Sequence[torch.Tensor], lookup: Lookup) -> list[Any]:
        """The graph's outputs. Raises: Refused; as `Executable.call`."""
        call = self.executable.call if self._sized is None else self._sized.call
        return rebuilt(self.text.outputs, call(*inputs), inputs, lookup)


def _sized(plan: Plan, table: SizeTable, method: Method, executor: bytes) -> SizedExecutable:
    """What runs a plan for many sizes."""
    symbols = () if method.free is None else method.free.symbols
    sources = tuple((symbol.input, symbol.dim) for symbol in symbols)
    names = tuple(symbol.name for symbol in symbols)
    return SizedExecutable(SizedPlan(names, sources, plan, table.words, table.holds, table.can_share), executor)


def _is_in_panels(recipe: Held, state: StateNow) -> bool:
    """Whether the file has the present panels of a weight."""
    return (
        isinstance(recipe, Packed)
        and recipe.stored is not None
        and all(map(state.is_as_in_panels, sources_of(recipe)))
    )  # fmt: skip


def _tensor(
    contents: Contents, recipe: Held, state: StateNow, code: Sequence[KernelCode], packings: list[Packing]
) -> torch.Tensor:  # fmt: skip
    def given(source: FromState | Placed) -> torch.Tensor:
        return contents.tensor(source) if isinstance(source, Placed) else state.tensor(source.number).detach()

    match recipe:
        case FromState() | Placed():
            return given(recipe)
        case Computed():
            return _fitting(computed_of(recipe, given))
        case Filtered():
            return _fitting(filters_of(recipe, given))
        case Packed(stored=Placed() as stored) if _is_in_panels(recipe, state):
            return contents.tensor(stored)
        case Packed():
            weight = _fitting(weight_of(recipe, given))
            try:
                packing = Packing(recipe, weight, code)
            except SmeltError as error:
                raise CannotRun(error.what) from None
            packings.append(packing)
            return packing.panels


def _fitting(made: torch.Tensor | None) -> torch.Tensor:
    """Raises: CannotRun."""
    if made is None:
        raise CannotRun("a weight has another type, memory layout or kind of numbers than the program was saved with")
    return made


def _run_all(packings: Sequence[Packing], threads: int) -> None:
    """Fill all panels, by several threads where there is much to do."""
    nthreads = min(threads, len(packings), _MOST_THREADS)
    if nthreads <= 1:
        for packing in packings:
            packing.run()
        return
    with ThreadPoolExecutor(nthreads) as pool:
        list(pool.map(Packing.run, packings))
