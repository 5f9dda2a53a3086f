"""A kernel's module cut into the kernel's own function and the private functions that it calls.

    kernel, calls @strip.3, which calls @tile.8x3     ==>     three modules, of which each declares what it calls

Most of a product's text is the tiles that it calls, and they are the same for every epilogue: cut out and known by the
digests of their texts, they are compiled once for all kernels. `joined` links the objects into one.
Invariant: all modules together say what the one module said; a function of the same text has the same symbol.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import lru_cache

from smelt.diag.records import record

_NAME = re.compile(r"@([\w.$]+)")
_PRIVATE = "define internal "


@record
class Module:
    """LLVM text that defines `symbol`, a kernel or a function that kernels call."""

    symbol: str
    text: str
    is_function: bool = False


@record
class Parts:
    """The modules of a kernel: its own, and by symbol those of all private functions."""

    kernel: Module
    functions: dict[str, Module]


def parted(symbol: str, text: str) -> Parts:
    """The modules of a text that defines the kernel `symbol`; only its own where it has no private functions."""
    if _PRIVATE not in text:
        return Parts(Module(symbol, text), {})
    return _Cutter(text).parts(symbol)


class _Cutter:
    """The items of one text by their names, and the functions that have been cut out."""

    def __init__(self, text: str) -> None:
        self.defined: dict[str, str] = {}
        self.declared: dict[str, str] = {}
        self.attributes = ""
        for item in items(text):
            if item.startswith("attributes"):
                self.attributes += item
            elif found := _NAME.search(item):
                (self.declared if item.startswith("declare") else self.defined)[found[1]] = item
        self.functions: dict[str, Module] = {}
        self.symbols: dict[str, str] = {}

    def parts(self, symbol: str) -> Parts:
        """The kernel's modules."""
        kernel = self._module_text(symbol, self.defined[symbol])
        return Parts(Module(symbol, kernel), self.functions)

    def _function(self, name: str) -> str:
        """The symbol of a private function, which has a module from now on."""
        if name not in self.symbols:
            text = _named(self.defined[name], name, "SHARED").replace(_PRIVATE, "define ", 1)
            text = self._module_text("SHARED", text)
            symbol = _symbol(text)
            self.symbols[name] = symbol
            self.functions[symbol] = Module(symbol, _named(text, "SHARED", symbol), is_function=True)
        return self.symbols[name]

    def _module_text(self, symbol: str, item: str) -> str:
        """An item with all that it names: private functions as calls of other modules, constants as its own."""
        declared: dict[str, None] = {}
        constants: dict[str, None] = {}
        for name in dict.fromkeys(_NAME.findall(item)):
            if name in self.declared:
                declared[self.declared[name]] = None
            elif name != symbol and self.defined.get(name, "").startswith(_PRIVATE):
                called = self._function(name)
                item = _named(item, name, called)
                declared[_declaration(self.defined[name], name, called)] = None
            elif name != symbol and name in self.defined:
                constants[self.defined[name]] = None
        return "".join((*sorted(declared), *constants, item, self.attributes))


def name_of(item: str) -> str | None:
    """The first global name in a part of a module's text: of what it defines or declares."""
    found = _NAME.search(item)
    return None if found is None else found[1]


def items(text: str) -> Iterator[str]:
    """The top-level parts of a module's text: functions, and single lines."""
    function: list[str] = []
    for line in text.splitlines(keepends=True):
        if function or line.startswith("define "):
            function.append(line)
            if line.startswith("}"):
                yield "".join(function)
                function = []
        elif line.strip():
            yield line


def _named(text: str, name: str, new: str) -> str:
    return re.sub(rf"@{re.escape(name)}(?![\w.$])", f"@{new}", text)


def _declaration(text: str, name: str, symbol: str) -> str:
    """What declares a private function elsewhere: its first line without the names of its parameters."""
    head = text[: text.index("\n")].removeprefix(_PRIVATE)
    result, _, rest = head.partition(f" @{name}(")
    parameters, _, attributes = rest.rpartition(") ")
    types = ", ".join(p.rpartition(" ")[0] for p in parameters.split(", ")) if parameters else ""
    return f"declare {result} @{symbol}({types}) {attributes.removesuffix('{').strip()}\n"


@lru_cache(maxsize=1024)
def _symbol(text: str) -> str:
    return f"smelt_part_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
