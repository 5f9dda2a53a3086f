"""The tables of a program as C source."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from smelt.package.c.addresses import DTYPES
from smelt.package.c.library_calls import library_call_lines
from smelt.package.c.signature import Kind, Signature
from smelt.package.c.tables import Source, Step, Table, Tensor
from smelt.package.c.weights import File, PackedLater

_CPUS = {"avx2": "SMELT_NEEDS_AVX2", "avx512": "SMELT_NEEDS_AVX512", "neon": "SMELT_NEEDS_NEON"}
_ARRAYS = (
    "code", "cells", "relocations", "data", "kernels", "calls", "held", "planned", "input_cells", "result_cells",
    "outputs", "steps",
)  # fmt: skip


_POINTERS = ("smelt_kernel", "smelt_library_call")


@dataclass
class ProgramText:
    """The source of one program's tables. name: what its C names begin with."""

    name: str
    target: str
    tables: Sequence[tuple[Signature, Table]]
    file: File
    packings: Sequence[PackedLater]
    state: Sequence[tuple[str, Tensor]]
    needs: str = ""
    _lines: list[str] = field(default_factory=list)
    _dims: dict[tuple[int, ...], str] = field(default_factory=dict)

    def source(self) -> str:
        """All of it; the symbol that it defines is `<name>_program`."""
        header = "internal.h" if self.needs else "smelt_program.h"
        self._lines = ["/* Made by `smelt export`. */", f'#include "{header}"', ""]
        symbols = dict.fromkeys(kernel.symbol for _, table in self.tables for kernel in table.kernels)
        symbols.update(dict.fromkeys(packing.kernel.symbol for packing in self.packings))
        self._lines += [f"extern int32_t {symbol}(const int64_t *, int64_t, int64_t, void *);" for symbol in symbols]
        calls = {call.symbol: call for _, table in self.tables for call in table.calls}
        self._lines += library_call_lines(list(calls.values()))
        entries = [self._entry(i, signature, table) for i, (signature, table) in enumerate(self.tables)]
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
        counts = f"{len(self.tables)}, {len(file.blocks)}, {len(self.packings)}, {len(self.state)}"
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

    def _entry(self, number: int, signature: Signature, table: Table) -> str:
        at = f"e{number}_"
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
        self._array("smelt_type", f"{at}inputs", [self._type(kind) for kind in signature.inputs])
        self._array("smelt_type", f"{at}output_types", [self._type(kind) for kind in signature.outputs.values()])
        counts = [table.cells, table.relocations, table.held, table.planned, table.result_cells, table.steps]
        kinds = f"{len(signature.inputs)}, {len(signature.outputs)}, {at}inputs, {at}output_types"
        return (
            f"{{{{{quoted(signature.name)}, {kinds}}}, {', '.join(at + name for name in _ARRAYS)}, "
            f"{', '.join(str(len(c)) for c in counts)}, {table.team_limit}, {table.arena_nbytes}u, "
            f"{table.scratch_stride}u}}"
        )

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
        strides = "NULL" if kind.strides is None or not kind.sizes else self._ints(kind.strides)
        own = f"SMELT_{DTYPES[kind.dtype][1]}, {len(kind.sizes)}, {self._ints(kind.sizes)}, {strides}"
        return f"{{{quoted(kind.name)}, {own}, {int(kind.is_written)}}}"

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

    def _array(self, kind: str, name: str, items: Sequence[str]) -> None:
        # C has no arrays of no elements.
        body = _wrapped(items) if items else "    {0}" if kind.startswith("smelt_") and kind not in _POINTERS else "0"
        self._lines += [f"static const {kind} {name}[] = {{", body, "};"]


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


def _bytes(digest: bytes) -> str:
    return ", ".join(map(str, digest))


def _step(step: Step) -> str:
    return (
        f"{{SMELT_STEP_{step.kind}, {step.operation}, {step.dst}, {step.a}, {step.b}, {step.at}, {quoted(step.text)}}}"
    )
