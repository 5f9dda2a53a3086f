"""A plan as the table that C code runs: words and cells as the executor has them, and relocations.

Invariant: the encoder is the one that runs plans in this process; here stands only what the addresses are of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch

from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.package.c.addresses import LIBRARY, Elsewhere
from smelt.package.c.errors import refused
from smelt.package.c.sized import Sized, handled, sized_of
from smelt.package.c.weights import Weights
from smelt.runtime.check import check_plan
from smelt.runtime.encoding.encode import encode
from smelt.runtime.encoding.encoded import CannotShare, Encoded
from smelt.runtime.encoding.sizes import SizedPlan
from smelt.runtime.encoding.table import FRAME_ALIGNMENT, Op
from smelt.runtime.failures import describe
from smelt.runtime.ingot.errors import broken
from smelt.runtime.ingot.manifest import Placed
from smelt.runtime.ingot.natives import NativeText
from smelt.runtime.ingot.texts.held_json import Computed, Filtered, FromState, Held, Packed
from smelt.runtime.machine.elf import external_names, parse_object
from smelt.runtime.plan import (
    NUMBER_DTYPES,
    ArenaTensor,
    Bump,
    Call,
    Dispatch,
    Expect,
    KernelCode,
    Launch,
    OptionalUse,
    OptionalUses,
    Out,
    Plan,
    PyCall,
    Scalar,
    Use,
    Uses,
    Word,
)
from smelt.runtime.recipes import (
    Either,
    Fresh,
    Number,
    OfKind,
    OutputRecipe,
    Plain,
    Same,
    SizedView,
    Spent,
    StateName,
    ViewOf,
)

# Of the C library, what a kernel's object may name: LLVM itself makes such calls.
_C_LIBRARY = frozenset(("memcpy", "memmove", "memset", "memcmp"))


@record
class Tensor:
    """A tensor over a block, or over the arena; offset in bytes."""

    block: int
    offset: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@record
class Relocation:
    """A cell's address; kind and index as `smelt_program.h` has them (a function's index is its name)."""

    cell: int
    kind: str
    index: int | str
    offset: int = 0


@record
class Step:
    """What stands behind a record that may fail."""

    kind: str
    text: str
    operation: int = 0
    dst: int = 0
    a: int = 0
    b: int = 0
    at: int = 0


@record
class Source:
    """How an output comes to be; kind as `smelt_program.h` has it. value: of a view by free sizes, the first cell of
    its numbers.
    """

    kind: str
    cell: int = 0
    dtype: torch.dtype = torch.int64
    value: int | float | bool = 0
    over: Tensor | None = None
    options: tuple[Source, ...] = ()


@dataclass(frozen=True)
class Table:
    """One entry point's plan. outputs: None for one that C has no value for. sized: where sizes are free, for which it
    is, and what differs between them.
    """

    words: Sequence[int]
    cells: Sequence[int]
    relocations: Sequence[Relocation]
    data: bytes
    kernels: Sequence[KernelCode]
    calls: Sequence[LibraryCall]
    held: Sequence[Tensor]
    planned: Sequence[Tensor]
    input_cells: Sequence[int]
    result_cells: Sequence[int]
    outputs: Sequence[Source | None]
    steps: Sequence[Step]
    arena_nbytes: int
    scratch_stride: int
    team_limit: int
    sized: Sized | None = None


State: TypeAlias = Callable[[str, str], int]
"""(kind, path) as the graph says -> number of the state."""


# --- what needs torch -------------------------------------------------------------------------------------------------


@record
class LibraryCall:
    """A function of libtorch's C interface. kinds: of its arguments, in order ("tensor", "word", "double", ...)."""

    symbol: str
    kinds: tuple[str, ...]


_KINDS: tuple[tuple[type, str], ...] = (
    (Use, "tensor"), (Out, "result"), (OptionalUse, "optional"), (Uses, "tensors"), (OptionalUses, "optionals"),
    (float, "double"),
)  # fmt: skip


def library_calls(plan: Plan) -> list[LibraryCall]:
    """The functions of libtorch's C interface that a plan calls, each once. Raises: PackageError (S0704)."""
    found: dict[str, LibraryCall] = {}
    for instruction in plan.instructions:
        if isinstance(instruction, Call) and instruction.symbol not in LIBRARY:
            kinds = tuple(next((k for t, k in _KINDS if isinstance(arg, t)), "word") for arg in instruction.args)
            call = found.setdefault(instruction.symbol, LibraryCall(instruction.symbol, kinds))
            if call.kinds != kinds:
                raise refused(
                    "the program",
                    f"it calls {instruction.symbol} with two kinds of arguments",
                    "run the ingot by smelt.load",
                )
    return list(found.values())


def needs_python(plan: Plan) -> list[str]:
    """The operators, each once, that only Python can run: no library can be linked for them."""
    return list(dict.fromkeys(describe(each) for each in plan.instructions if isinstance(each, PyCall)))


def needs_library(plan: Plan) -> list[str]:
    """The operators, each once, that only torch has."""
    found: dict[str, None] = {}
    for instruction in plan.instructions:
        match instruction:
            case Call(symbol=symbol) if symbol not in LIBRARY:
                found[_operator_of(symbol)] = None
            case Dispatch() | PyCall():
                found[describe(instruction)] = None
            case Launch(kernel=kernel, label=label):
                names = [n for n in external_names(parse_object(kernel.object)) if n.startswith("Sleef_")]
                found.update(dict.fromkeys(f"{label or kernel.symbol} ({name})" for name in names))
            case _:
                pass
    return list(found)


def _operator_of(symbol: str) -> str:
    """aoti_torch_cpu_sort_stable  ==>  aten.sort_stable"""
    return f"aten.{symbol.removeprefix('aoti_torch_').removeprefix('cpu_').lstrip('_')}"


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass
class TableWriter:
    """Makes the table of one plan. inputs: their dtypes. tensor, placed: of the state, by number. sizes: the names of
    free ones.
    """

    name: str
    inputs: Sequence[torch.dtype]
    text: NativeText
    weights: Weights
    state: State
    tensor: Callable[[int], torch.Tensor]
    placed: Callable[[int], Placed]
    where: Elsewhere = field(default_factory=Elsewhere)
    sizes: Sequence[str] = ()
    _held: dict[int, Tensor] = field(default_factory=dict)
    _results: list[int] = field(default_factory=list)

    def table(self) -> Table:
        """Raises: PackageError (S0701) for a plan that breaks its rules, (S0704) for one that C cannot run."""
        plan, at = self._plan()
        calls = library_calls(plan)
        self.where.calls = {call.symbol: i for i, call in enumerate(calls)}
        encoded = self._encoded(plan, at)
        self._check_encoded(plan, encoded)
        self._held = {slot: self._tensor(recipe) for slot, recipe in self.text.held}
        sized, arena_nbytes, scratch_nbytes = None, plan.arena_nbytes, encoded.scratch_nbytes
        if self.text.table is not None:
            sized, arena_nbytes, scratch_nbytes = sized_of(self.name, plan, encoded, self.text.table)
        self._results = list(dict.fromkeys(slot for slot in plan.outputs if slot not in plan.kinds))
        stride = -(-scratch_nbytes // FRAME_ALIGNMENT) * FRAME_ALIGNMENT
        return Table(
            words=list(encoded.code),
            cells=list(encoded.cells),
            relocations=self._relocations(plan, encoded, arena_nbytes),
            data=bytes(self.where.data),
            kernels=self.where.kernels,
            calls=calls,
            held=list(self._held.values()),
            planned=[_planned(tensor) for tensor in handled(plan, encoded)],
            input_cells=[encoded.cell_of[slot] for slot in plan.inputs],
            result_cells=[encoded.cell_of[slot] for slot in self._results],
            outputs=[self._source(plan, encoded, recipe) for recipe in self.text.outputs],
            steps=_steps(plan, encoded),
            arena_nbytes=arena_nbytes,
            scratch_stride=stride,
            team_limit=encoded.team_limit,
            sized=sized,
        )

    def _plan(self) -> tuple[Plan, Plan]:
        """The plan without what only Python's tensors have, over weights that do not move; it at its largest sizes."""
        plan = self.text.plan
        held = tuple((slot, torch.empty(0)) for slot, _ in self.text.held)
        kept = tuple(each for each in plan.instructions if not isinstance(each, Bump))
        bare = replace(plan, held=held, instructions=kept, fixed=frozenset(slot for slot, _ in held), origins=())
        table = self.text.table
        try:
            if table is None:
                check_plan(replace(plan, held=held))
                return bare, bare
            at = SizedPlan(tuple(self.sizes), (), bare, table.words, table.holds).at(table.most)
            check_plan(at)
        except InternalError as error:
            raise broken("its plan", str(error.what)) from None
        return bare, at

    def _encoded(self, plan: Plan, at: Plan) -> Encoded:
        """Raises: PackageError (S0704) where each of the free sizes needs records of its own."""
        if self.text.table is None:
            return encode(plan, where=self.where)
        try:
            return encode(plan, at, where=self.where)
        except CannotShare as error:
            raise refused(
                self.name, f"each of its sizes needs a plan of its own: {error}", "name single sizes, by --size"
            ) from None

    def _check_encoded(self, plan: Plan, encoded: Encoded) -> None:
        stepped = {owner for at, owner in zip(encoded.starts, encoded.owners, strict=True) if _is_step(encoded, at)}
        if stepped:
            names = ", ".join(dict.fromkeys(describe(plan.instructions[index]) for index in sorted(stepped)))
            raise refused(self.name, f"C has no form for {names}", "run the ingot by smelt.load")
        for kernel in self.where.kernels:
            names_there = external_names(parse_object(kernel.object))
            unknown = [n for n in names_there if not _is_linked(n, self.where.links_torch)]
            if unknown:
                raise refused(self.name, f"a kernel calls {', '.join(unknown)}", "save the program again")

    def _tensor(self, recipe: Held) -> Tensor:
        match recipe:
            case FromState(number=number):
                return self._over(self.placed(number))
            case Placed():
                return self._over(recipe)
            case Packed():
                block = self.weights.of_packed(recipe, self.text.code, self.tensor)
                return Tensor(block, 0, recipe.panels, (recipe.nelements,), (1,))
            case Filtered() | Computed():
                block, made = self.weights.of_made(recipe, self.tensor)
                return Tensor(block, 0, made.dtype, tuple(made.shape), made.stride())

    def _over(self, placed: Placed) -> Tensor:
        offset = placed.offset * placed.dtype.itemsize
        return Tensor(self.weights.of_stored(placed), offset, placed.dtype, placed.sizes, placed.strides)

    def _relocations(self, plan: Plan, encoded: Encoded, arena_nbytes: int) -> list[Relocation]:
        found = [Relocation(cell, "FRAME", at) for cell, at in encoded.addresses]
        found += [Relocation(cell, "ARENA", 0, at) for cell, at in encoded.arena_addresses if type(at) is not Word]
        low, high = encoded.arena_cells
        found += [Relocation(low, "ARENA", 0), Relocation(high, "ARENA", 0, arena_nbytes)]
        found += [Relocation(encoded.cell_of[slot], "HELD", i) for i, slot in enumerate(self._held)]
        found += [Relocation(encoded.cell_of[t.slot], "PLANNED", i) for i, t in enumerate(handled(plan, encoded))]
        for cell, symbol in encoded.relocations:
            match symbol.kind:
                case "held":
                    over = self._held[symbol.name]
                    found.append(Relocation(cell, "BLOCK", over.block, over.offset + symbol.offset))
                case "data":
                    found.append(Relocation(cell, "DATA", 0, symbol.offset))
                case kind:
                    found.append(Relocation(cell, kind.upper(), symbol.name, symbol.offset))
        return found

    # --- outputs

    def _source(self, plan: Plan, encoded: Encoded, recipe: OutputRecipe) -> Source | None:
        match recipe:
            case OfKind(recipe=inner) | Spent(recipe=inner):
                return self._source(plan, encoded, inner)
            case Fresh(index=index) | Number(index=index):
                slot = plan.outputs[index]
                number = plan.kinds.get(slot)
                if number is None:
                    return Source("RESULT", self._results.index(slot))
                return Source("NUMBER", encoded.cell_of[slot], NUMBER_DTYPES[number])
            case Same(source=int(place)):
                return Source("INPUT", place)
            case Same(source=StateName(kind=kind, path=path)):
                return Source("BLOCK", over=self._over(self.placed(self.state(kind, path))))
            case ViewOf():
                return self._view(recipe)
            case SizedView(source=source, ndim=ndim):
                zeros = (0,) * ndim
                return replace(self._view(ViewOf(source, zeros, zeros, 0)), value=_first_cell(plan, encoded, recipe))
            case Either(which=which, options=options):
                found = tuple(self._source(plan, encoded, option) for option in options)
                cell = encoded.cell_of[plan.outputs[which]]
                return Source("EITHER", cell, options=tuple(one for one in found if one is not None))
            case Plain(value=value) if isinstance(value, (bool, int, float)):
                dtype = {bool: torch.bool, int: torch.int64, float: torch.float64}[type(value)]
                return Source("CONSTANT", dtype=dtype, value=value)
        return None

    def _view(self, recipe: ViewOf) -> Source:
        source = recipe.source
        if isinstance(source, int):
            dtype = self.inputs[source]
            over = Tensor(0, recipe.offset * dtype.itemsize, dtype, recipe.sizes, recipe.strides)
            return Source("INPUT", source, over=over)
        base = self._over(self.placed(self.state(source.kind, source.path)))
        offset = base.offset + recipe.offset * base.dtype.itemsize
        return Source("BLOCK", over=Tensor(base.block, offset, base.dtype, recipe.sizes, recipe.strides))


def _first_cell(plan: Plan, encoded: Encoded, view: SizedView) -> int:
    """Where the numbers of a view stand in the frame, side by side. Raises: PackageError (S0701) where they do not."""
    slots = plan.outputs[view.first : view.first + 2 * view.ndim + 1]
    cells = [encoded.cell_of[slot] for slot in slots if plan.kinds.get(slot) == "int"]
    if not cells or cells != list(range(cells[0], cells[0] + 2 * view.ndim + 1)):
        raise broken("its plan", "the numbers of a view do not stand side by side")
    return cells[0]


def _planned(tensor: ArenaTensor) -> Tensor:
    """Numbers that differ between sizes are 0 until a call fills them in."""
    dims = [tuple(0 if type(n) is Word else n for n in numbers) for numbers in (tensor.sizes, tensor.strides)]
    return Tensor(0, 0 if type(tensor.offset) is Word else tensor.offset, tensor.dtype, dims[0], dims[1])


def _is_step(encoded: Encoded, at: int) -> bool:
    return bool(encoded.code[at] == Op.STEP)


def _is_linked(name: str, links_torch: bool) -> bool:
    if name.startswith("Sleef_"):
        return links_torch
    return name in _C_LIBRARY or not name.startswith(("aoti_", "torch_", "smelt_"))


def _steps(plan: Plan, encoded: Encoded) -> list[Step]:
    """The steps by their numbers, then the expectations."""
    owned = zip(encoded.starts, encoded.owners, strict=True)
    numbers = {owner: at for at, owner in owned if encoded.code[at] == Op.ARITH}
    found = []
    for owner in encoded.step_owners:
        instruction = plan.instructions[owner]
        if isinstance(instruction, Scalar):
            at = numbers[owner]
            operation, dst, a, b = encoded.code[at + 2 : at + 6]
            found.append(Step("NUMBER", describe(instruction), operation, dst, a, b))
        else:
            found.append(Step("LAUNCH", describe(instruction)))
    for at, owner in zip(encoded.starts, encoded.owners, strict=True):
        expected = plan.instructions[owner] if encoded.code[at] == Op.EXPECT else None
        if isinstance(expected, Expect):
            where = expected.where
            line = f" at {where.file}:{where.line}" if where is not None else ""
            found.append(Step("EXPECT", f"it was captured for {expected.literal!r}{line}", at=at))
    return found
