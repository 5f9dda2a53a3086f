"""Modules that are compiled several at once, and the object of several modules cut into one for each.

    one.ll, two.ll     ==>     both.ll     == LLVM ==>     both.o     ==>     one.o, two.o

A module takes LLVM more than a millisecond, whatever is in it: passes are set up, a file is made. Of a kernel of middle
size that is a seventh.

Invariant: a function's code is the same as in a module of its own, since it begins at a line of the cache there. What
does not fit together, or cannot be cut, is compiled apart.
"""

from __future__ import annotations

import heapq
import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from smelt.codegen.llvm.joined import write_object
from smelt.codegen.llvm.parted import Module, items, name_of
from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.runtime.machine.elf import ObjectFile, Relocation, Section, Symbol, parse_object

_MOST = 8
"""Modules in a batch: more save nothing more, and one that LLVM refuses has them all compiled again."""
_BATCHES_PER_THREAD = 4
_LINE_NBYTES = 64


@dataclass(slots=True)
class Batch:
    """Modules, each of one function, and the parts of their common text by name."""

    modules: list[Module] = field(default_factory=list)
    declared: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    attributes: str = ""

    def take(self, module: Module) -> bool:
        """Take a module in, if what it names means the same in all of them."""
        made = Batch.of(module)
        if self.modules and (made is None or not self._agrees(made)):
            return False
        self.modules.append(module)
        if made is None:
            return True
        self.declared |= made.declared
        self.constants |= made.constants
        self.functions |= made.functions
        self.attributes = made.attributes
        return True

    @staticmethod
    def of(module: Module) -> Batch | None:
        """A module alone; None where it holds more than declarations, constants and its one function."""
        made = Batch([module])
        kinds = {"declare": made.declared, "define": made.functions, "@": made.constants}
        for item in items(module.text):
            name = name_of(item)
            kind = "@" if item.startswith("@") else item.partition(" ")[0]
            if item.startswith("attributes #0 "):
                made.attributes = item
            elif name is None or kind not in kinds:
                return None
            else:
                kinds[kind][name] = item
        return made if list(made.functions) == [module.symbol] else None

    def _agrees(self, other: Batch) -> bool:
        if len(self.functions) < len(self.modules):
            return False  # what they hold besides is not known
        pairs = ((self.declared, other.declared), (self.constants, other.constants))
        is_same = all(mine.get(name, text) == text for mine, theirs in pairs for name, text in theirs.items())
        return is_same and self.attributes == other.attributes and self.functions.keys().isdisjoint(other.functions)

    @property
    def only(self) -> Module:
        """The one module. Raises: InternalError where there are several."""
        if len(self.modules) > 1:
            raise InternalError("a batch has several modules")
        return self.modules[0]

    @property
    def text(self) -> str:
        """The text of all modules as one."""
        if len(self.modules) == 1:
            return self.modules[0].text
        declared = (text for name, text in self.declared.items() if name not in self.functions)
        functions = (_aligned(text) for text in self.functions.values())
        return "".join((*declared, *self.constants.values(), *functions, self.attributes))

    def cut(self, code: bytes) -> dict[str, bytes]:
        """The object of each module. Raises: InternalError where it cannot be told what is whose."""
        if len(self.modules) == 1:
            return {self.modules[0].symbol: code}
        whole = parse_object(code)
        return {one.name: write_object(one.name, whole.machine, one.parts) for one in _cut(whole, self.functions)}


def batches(modules: Iterable[Module]) -> list[Batch]:
    """Modules in batches of about the same length, the longest first."""
    ordered = sorted(modules, key=lambda module: -len(module.text))
    wanted = max(_BATCHES_PER_THREAD * (os.cpu_count() or 1), -(-len(ordered) // _MOST))
    if wanted >= len(ordered):
        return [Batch([module]) for module in ordered]
    found = [Batch() for _ in range(wanted)]
    shortest = [(0, number) for number in range(wanted)]
    for module in ordered:
        length, number = heapq.heappop(shortest)
        if not found[number].take(module):
            found.append(Batch([module]))
        else:
            length += len(module.text)
        heapq.heappush(shortest, (length, number))
    return sorted(filter(lambda batch: batch.modules, found), key=lambda batch: -len(batch.text))


def _aligned(function: str) -> str:
    head, end, body = function.partition(" {\n")
    return f"{head} align {_LINE_NBYTES}{end}{body}"


# --- one object as several -------------------------------------------------------------------------------------------


@record
class _Part:
    """What of an object belongs to one function."""

    name: str
    parts: ObjectFile


def _cut(whole: ObjectFile, names: Mapping[str, object]) -> list[_Part]:
    """The functions of these names, each with the constants that it uses."""
    (text, *more) = [section for section in whole.sections if section.is_code]
    found = sorted((s.value, s) for s in whole.symbols if s.section == text.index and s.name in names)
    if more or len(found) != len(names) or any(r.section != text.index for r in whole.relocations):
        raise InternalError("an object holds more than its functions and constants")
    relocations = sorted(whole.relocations, key=lambda r: r.offset)
    offsets = [r.offset for r in relocations]
    constants = _Constants(whole, text)
    parts = []
    for begin, symbol in found:
        end = begin + symbol.nbytes
        mine = relocations[bisect_left(offsets, begin) : bisect_left(offsets, end)]
        parts.append(_Part(symbol.name, constants.part(symbol, mine, names)))
    return parts


class _Constants:
    """The constants of an object: where each begins that has a name."""

    def __init__(self, whole: ObjectFile, text: Section) -> None:
        self.whole, self.text = whole, text
        self.sections = {section.index: section for section in whole.sections if not section.is_code}
        self.begins: dict[int, list[int]] = {}
        for symbol in whole.symbols:
            if symbol.section in self.sections and symbol.name:
                self.begins.setdefault(symbol.section, []).append(symbol.value)
        for begins in self.begins.values():
            begins.sort()

    def part(self, function: Symbol, relocations: Sequence[Relocation], names: Mapping[str, object]) -> ObjectFile:
        """A function with what its relocations need."""
        own = {number: self.whole.symbols[number] for number in {r.symbol for r in relocations}}
        reach: dict[int, tuple[int, int]] = {}
        for symbol in own.values():
            if symbol.section in self.sections:
                low, high = self._extent(symbol)
                before = reach.get(symbol.section, (low, high))
                reach[symbol.section] = min(low, before[0]), max(high, before[1])
        data = self.text.data[function.value : function.value + function.nbytes]
        sections = [Section(self.text.index, ".text", data, self.text.align, True)]
        for number, (low, high) in reach.items():
            section = self.sections[number]
            low -= low % section.align
            reach[number] = low, high
            sections.append(Section(number, section.name, section.data[low:high], section.align, False))
        symbols = [Symbol(function.name, self.text.index, 0)]
        numbers: dict[int, int] = {}
        for number, symbol in own.items():
            numbers[number] = len(symbols)
            symbols.append(self._moved(symbol, function, reach, names))
        moved = (
            Relocation(r.section, r.offset - function.value, r.kind, numbers[r.symbol], r.addend) for r in relocations
        )
        return ObjectFile(self.whole.machine, tuple(sections), tuple(symbols), tuple(moved))

    def _extent(self, symbol: Symbol) -> tuple[int, int]:
        """From where to where a section is needed: one constant of several, or all of them."""
        length = len(self.sections[symbol.section].data)
        if not symbol.name:
            return 0, length
        begins = self.begins[symbol.section]
        after = bisect_left(begins, symbol.value + 1)
        return symbol.value, begins[after] if after < len(begins) else length

    def _moved(
        self, symbol: Symbol, function: Symbol, reach: Mapping[int, tuple[int, int]], names: Mapping[str, object]
    ) -> Symbol:
        """A symbol as the function's own object has it: other functions are elsewhere."""
        if symbol.section in reach:
            return Symbol(symbol.name, symbol.section, symbol.value - reach[symbol.section][0])
        if symbol.section == 0 or symbol.name == function.name:
            return Symbol(symbol.name, symbol.section, 0)
        if symbol.section == self.text.index and symbol.name in names:
            return Symbol(symbol.name, 0, 0)
        raise InternalError("a function refers to the code of another one")
