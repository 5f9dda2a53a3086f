"""The tables of a program as C source."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from smelt.diag.records import record
from smelt.package.c.addresses import DTYPES
from smelt.package.c.expressions import c_text
from smelt.package.c.library_calls import library_call_lines
from smelt.package.c.signature import UNKNOWN, Kind, Signature, size_text
from smelt.package.c.sized import Sized
from smelt.package.c.tables import Source, Step, Table, Tensor
from smelt.package.c.weights import File, PackedLater
from smelt.runtime.ingot.free_sizes import Expr, shown

_CPUS = {"avx2": "SMELT_NEEDS_AVX2", "avx512": "SMELT_NEEDS_AVX512", "neon": "SMELT_NEEDS_NEON"}
_ARRAYS = (
    "code", "cells", "relocations", "data", "kernels", "calls", "held", "planned", "input_cells", "result_cells",
    "outputs", "steps",
)  # fmt: skip


_SIZED_ARRAYS = ("columns", "firsts", "bases", "steps_of", "fills", "works", "groups", "teams")
_POINTERS = ("smelt_kernel", "smelt_library_call")


@record
class Entry:
    """An entry point: its plans, of which each is for some of its free sizes, and the conditions on these."""

    signature: Signature
    tables: Sequence[Table]
    checks: Sequence[tuple[Expr, bool]] = ()


@dataclass
class ProgramText:
    """The source of one program's tables. name: what its C names begin with."""

    name: str
    target: str
    entries: Sequence[Entry]
    file: File
    packings: Sequence[PackedLater]
    state: Sequence[tuple[str, Tensor]]
    needs: str = ""
    _lines: list[str] = field(default_factory=list)
    _dims: dict[tuple[int, ...] | tuple[str, ...], str] = field(default_factory=dict)

    def source(self) -> str:
        """All of it; the symbol that it defines is `<name>_program`."""
        header = "internal.h" if self.needs else "smelt_program.h"
        self._lines = ["/* Made by `smelt export`. */", f'#include "{header}"', ""]
        tables = [table for entry in self.entries for table in entry.tables]
        symbols = dict.fromkeys(kernel.symbol for table in tables for kernel in table.kernels)
        symbols.update(dict.fromkeys(packing.kernel.symbol for packing in self.packings))
        self._lines += [f"extern int32_t {symbol}(const int64_t *, int64_t, int64_t, void *);" for symbol in symbols]
        calls = {call.symbol: call for table in tables for call in table.calls}
        self._lines += library_call_lines(list(calls.values()))
        first, entries = 0, []
        for number, entry in enumerate(self.entries):
            entries.append(self._entry(number, entry, first))
            first += len(entry.tables)
        self._array("smelt_entry", "entries", entries)
        blocks = [f"{{SMELT_IN_{b.home}, {b.place}u, {b.own}u, {b.nbytes}u}}" for b in self.file.blocks]
        self._array("smelt_block", "blocks", blocks)
        self._array("smelt_packing", "packings", [self._packing(i, p) for i, p in enumerate(self.packings)])
        named = [f"{{{quoted(name)}, {self._placed(tensor)}}}" for name, tensor in self.state]
        self._array("smelt_named", "state", named)
        self._program()
        return "\n".join(self._lines) + "\n"

    def _program(self) -> None:
        file = self.file
        plans = sum(len(entry.tables) for entry in self.entries)
        counts = f"{len(self.entries)}, {plans}, {len(file.blocks)}, {len(self.packings)}, {len(self.state)}"
        panels, own = file.panels_nbytes, file.state_nbytes
        self._lines += [
            '__attribute__((visibility("default")))',
            f"const smelt_program {self.name}_program = {{",
            f"    SMELT_ABI, {_CPUS[self.target]}, {counts}, {quoted(self.name)}, {quoted(self.needs)},",
            f"    {'smelt_torch_function' if self.needs else 'NULL'}, entries, blocks, packings, state,",
            f"    {len(file.content)}u, {file.checked_nbytes}u, {panels}u, {own}u,",
            f"    {{{_bytes(file.checked)}}},",
            f"    {{{_bytes(file.digest)}}}}};",
        ]

    def _entry(self, number: int, entry: Entry, first: int) -> str:
        """first: the number of its first plan among all."""
        at, signature = f"e{number}_", entry.signature
        plans = [self._plan(f"{at}{i}_", table) for i, table in enumerate(entry.tables)]
        self._array("smelt_plan", f"{at}plans", plans)
        self._array("smelt_type", f"{at}inputs", [self._type(kind) for kind in signature.inputs])
        self._array("smelt_type", f"{at}output_types", [self._type(kind) for kind in signature.outputs.values()])
        sizes = [
            f"{{{quoted(each.name)}, {each.input}, {each.dim}, {each.low}, {each.high}}}" for each in signature.free
        ]
        self._array("smelt_size", f"{at}sizes", sizes)
        functions = "NULL, NULL"
        if signature.free:
            self._lines += [*dims_function(f"{at}dims", signature), *broken_function(f"{at}broken", entry)]
            functions = f"{at}dims, {at}broken"
        kinds = f"{len(signature.inputs)}, {len(signature.outputs)}, {at}inputs, {at}output_types"
        described = f"{{{quoted(signature.name)}, {kinds}, {len(sizes)}, {at}sizes}}"
        ndims = 2 * sum(len(kind.sizes) for kind in signature.inputs)
        return f"{{{described}, {at}plans, {len(plans)}, {first}, {ndims}, {functions}}}"

    def _plan(self, at: str, table: Table) -> str:
        self._array("int32_t", f"{at}code", [str(word) for word in table.words])
        self._array("int64_t", f"{at}cells", [_i64(cell) for cell in table.cells])
        relocations = [
            f"{{{r.cell}, SMELT_AT_{r.kind}, {f'SMELT_FN_{r.index}' if r.kind == 'FUNCTION' else r.index}, {r.offset}}}"
            for r in table.relocations
        ]
        self._array("smelt_relocation", f"{at}relocations", relocations)
        data = struct.unpack(f"<{len(table.data) // 8}q", table.data)
        self._array("int64_t", f"{at}data", [_i64(word) for word in data])
        self._array("smelt_kernel", f"{at}kernels", [kernel.symbol for kernel in table.kernels])
        calls = [f"(smelt_library_call)call_{call.symbol}" for call in table.calls]
        self._array("smelt_library_call", f"{at}calls", calls)
        self._array("smelt_placed", f"{at}held", [self._placed(t) for t in table.held])
        self._array("smelt_placed", f"{at}planned", [self._placed(t) for t in table.planned])
        self._array("int32_t", f"{at}input_cells", [str(cell) for cell in table.input_cells])
        self._array("int32_t", f"{at}result_cells", [str(cell) for cell in table.result_cells])
        self._array("smelt_source", f"{at}outputs", self._sources([s for s in table.outputs if s is not None]))
        self._array("smelt_step", f"{at}steps", [_step(step) for step in table.steps])
        sized = "NULL" if table.sized is None else self._sized(at, table.sized)
        lists = (
            table.words,
            table.cells,
            table.relocations,
            table.held,
            table.planned,
            table.result_cells,
            table.steps,
        )
        return (
            f"{{{', '.join(at + name for name in _ARRAYS)}, {', '.join(str(len(each)) for each in lists)}, "
            f"{table.team_limit}, {table.arena_nbytes}u, {table.scratch_stride}u, {sized}}}"
        )

    def _sized(self, at: str, sized: Sized) -> str:
        """The address of what differs between sizes."""
        runs = [run for column in sized.columns for run in zip(column.firsts, column.bases, column.steps, strict=True)]
        begins = [0]
        for column in sized.columns:
            begins.append(begins[-1] + len(column.firsts))
        self._array("int32_t", f"{at}columns", [str(begin) for begin in begins])
        self._array("uint16_t", f"{at}firsts", [str(first) for first, _, _ in runs])
        self._array("int64_t", f"{at}bases", [_i64(_wrapped_i64(_bits(base))) for _, base, _ in runs])
        self._array("int64_t", f"{at}steps_of", [_i64(_wrapped_i64(step)) for _, _, step in runs])
        fills = [f"{{SMELT_FILL_{fill.kind}, {fill.column}, {fill.where}, {fill.dim}}}" for fill in sized.fills]
        self._array("smelt_fill", f"{at}fills", fills)
        works = [f"{{{work.cell}, {work.items}, {work.item_ns}}}" for work in sized.works]
        self._array("smelt_work", f"{at}works", works)
        for name, found in (("groups", sized.groups), ("teams", sized.teams)):
            self._array("smelt_share", f"{at}{name}", [f"{{{p.word}, {p.first}, {p.count}}}" for p in found])
        bounds = f"{self._ints(sized.low)}, {self._ints(sized.count)}"
        arrays = ", ".join(f"{at}{name}" for name in _SIZED_ARRAYS)
        counts = f"{sized.taken}, {len(sized.fills)}, {len(sized.groups)}, {len(sized.teams)}"
        self._array("smelt_sized", f"{at}sized", [f"{{{bounds}, {arrays}, {counts}}}"])
        return f"{at}sized"

    def _sources(self, sources: Sequence[Source]) -> list[str]:
        """The outputs, and behind them the options of those that are one of several."""
        options = [option for source in sources for option in source.options]
        first = len(sources)
        made = []
        for source in (*sources, *options):
            made.append(self._source(source, first if source.options else 0))
            first += len(source.options)
        return made

    def _source(self, source: Source, first: int) -> str:
        placed = "{0}" if source.over is None else self._placed(source.over)
        own = f"{source.cell}, {DTYPES[source.dtype][0]}, {first}, {len(source.options)}, {_i64(_bits(source.value))}"
        return f"{{SMELT_OUT_{source.kind}, {own}, {placed}}}"

    def _placed(self, tensor: Tensor) -> str:
        code = DTYPES.get(tensor.dtype, (0, "", ""))[0]
        dims = self._ints((*tensor.sizes, *tensor.strides))
        return f"{{{tensor.block}, {tensor.offset}, {code}, {len(tensor.sizes)}, {dims}}}"

    def _type(self, kind: Kind) -> str:
        strides = "NULL" if kind.strides is None or not kind.sizes else self._ints(tuple(map(_fixed, kind.strides)))
        own = (
            f"SMELT_{DTYPES[kind.dtype][1]}, {len(kind.sizes)}, {self._ints(tuple(map(_fixed, kind.sizes)))}, {strides}"
        )
        texts = "NULL" if all(isinstance(n, int) for n in kind.sizes) else self._texts(tuple(map(_named, kind.sizes)))
        return f"{{{quoted(kind.name)}, {own}, {int(kind.is_written)}, {texts}}}"

    def _packing(self, number: int, packing: PackedLater) -> str:
        words = self._ints(packing.words)
        own = f"{packing.matrix}, {packing.panels}, {len(packing.words)}, {words}, {packing.items}"
        return f"{{{packing.kernel.symbol}, {own}}}"

    def _ints(self, values: tuple[int, ...]) -> str:
        """The name of a constant array; equal ones are there once."""
        if values not in self._dims:
            self._dims[values] = f"d{len(self._dims)}"
            self._array("int64_t", self._dims[values], [_i64(value) for value in values])
        return self._dims[values]

    def _texts(self, values: tuple[str, ...]) -> str:
        """The name of a constant array of texts."""
        if values not in self._dims:
            self._dims[values] = f"t{len(self._dims)}"
            self._array("char *const", self._dims[values], [quoted(value) if value else "NULL" for value in values])
        return self._dims[values]

    def _array(self, kind: str, name: str, items: Sequence[str]) -> None:
        # C has no arrays of no elements.
        body = _wrapped(items) if items else "    {0}" if kind.startswith("smelt_") and kind not in _POINTERS else "0"
        self._lines += [f"static const {kind} {name}[] = {{", body, "};"]


def dims_function(name: str, signature: Signature) -> list[str]:
    """A function that gives the dims of all inputs for sizes: of each its sizes, then its strides."""
    names = {each.name: f"n[{i}]" for i, each in enumerate(signature.free)}
    lines = [f"static void {name}(const int64_t *n, int64_t *out)", "{", "    (void)n;"]
    at = 0
    for kind in signature.inputs:
        ndim = len(kind.sizes)
        for i, size in enumerate(kind.sizes):
            lines.append(f"    out[{at + i}] = {c_text(size, names)};")
        for i in reversed(range(ndim)):
            row = "1" if i == ndim - 1 else f"out[{at + ndim + i + 1}] * smelt_larger(out[{at + i + 1}], 1)"
            lines.append(
                f"    out[{at + ndim + i}] = {row if kind.strides is None else c_text(kind.strides[i], names)};"
            )
        at += 2 * ndim
    return [*lines, "}"]


def broken_function(name: str, entry: Entry) -> list[str]:
    """A function that gives the first condition that sizes do not fulfil, as text; NULL where they fulfil all."""
    names = {each.name: f"n[{i}]" for i, each in enumerate(entry.signature.free)}
    lines = [f"static const char *{name}(const int64_t *n)", "{", "    (void)n;"]
    for expr, outcome in entry.checks:
        text = size_text(expr) if outcome else f"not {shown(expr)}"
        lines += [f"    if ({'!' if outcome else ''}({c_text(expr, names)}))", f"        return {quoted(text)};"]
    return [*lines, "    return NULL;", "}"]


def _fixed(size: Expr) -> int:
    return size if isinstance(size, int) else UNKNOWN


def _named(size: Expr) -> str:
    return "" if isinstance(size, int) else size_text(size)


def _wrapped(items: Iterable[str]) -> str:
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) > 116:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join([*lines, line])


def quoted(text: str) -> str:
    """A C string."""
    escaped = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(escaped)}"'


def _i64(value: int) -> str:
    if value == -(1 << 63):
        return "INT64_MIN"
    return str(value) if -(1 << 31) <= value < 1 << 31 else f"INT64_C({value})"


def _bits(value: int | float | bool) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0]) if isinstance(value, float) else int(value)


def _wrapped_i64(value: int) -> int:
    """The number of 64 bits that it is modulo 2**64."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _bytes(digest: bytes) -> str:
    return ", ".join(map(str, digest))


def _step(step: Step) -> str:
    return (
        f"{{SMELT_STEP_{step.kind}, {step.operation}, {step.dst}, {step.a}, {step.b}, {step.at}, {quoted(step.text)}}}"
    )
