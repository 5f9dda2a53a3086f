"""The text of functions that read Python objects, records of guards and the process's block.

Invariant: what is read lies where `runtime.encoding.entry_table` says; nothing here writes.
"""

from __future__ import annotations

from smelt.codegen.llvm.text import FunctionText
from smelt.runtime.encoding.entry_table import BLOCK_SYMBOL, EXTERNALS, Block


def declaration(name: str, kind: str) -> str:
    """The line that declares a function of this type."""
    result, _, parameters = kind.partition(" ")
    return f"declare {result} @{name}{parameters}"


class EntryText(FunctionText):
    """A function that reads objects, records and the process's block."""

    def python(self, name: str, *arguments: str) -> str:
        """Call a function of Python's; its value, if it has one."""
        kind = EXTERNALS[name]
        self.declare(declaration(name, kind))
        result, _, parameters = kind.partition(" ")
        types = [t for t in parameters.strip("()").split(", ") if t]
        call = f"call {result} @{name}({', '.join(f'{t} {a}' for t, a in zip(types, arguments, strict=True))})"
        if result == "void":
            self.do(call)
            return ""
        return self.let(call)

    def at(self, base: str, nbytes: str | int) -> str:
        """The address some bytes further."""
        return base if nbytes == 0 else self.let(f"getelementptr i8, ptr {base}, i64 {nbytes}", "p")

    def field(self, base: str, nbytes: str | int, kind: str = "i64") -> str:
        """What lies some bytes further."""
        return self.let(f"load {kind}, ptr {self.at(base, nbytes)}, align 1")

    def element(self, base: str, index: str | int, kind: str = "i64") -> str:
        """Word number `index`."""
        return self.let(f"load {kind}, ptr {self.gep('i64', base, index)}, align 8")

    def block_word(self, word: Block, kind: str = "i64") -> str:
        """A word of the process's block."""
        return self.element(f"@{BLOCK_SYMBOL}", int(word), kind)

    def is_null(self, value: str) -> str:
        """Whether a pointer is null."""
        return self.let(f"icmp eq ptr {value}, null")

    def equal(self, a: str, b: str | int, kind: str = "i64") -> str:
        """Whether two words are equal."""
        return self.let(f"icmp eq {kind} {a}, {b}")

    def go(self, label: str) -> None:
        """Branch."""
        self.do(f"br label %{label}")

    def branch(self, condition: str, then: str, otherwise: str) -> None:
        """Branch on a condition."""
        self.do(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def need(self, condition: str, otherwise: str = "miss") -> None:
        """Go on if it holds, else elsewhere."""
        then = self.fresh("ok")
        self.branch(condition, then, otherwise)
        self.label(then)

    def need_not(self, condition: str, otherwise: str = "miss") -> None:
        """Go on if it does not hold, else elsewhere."""
        then = self.fresh("ok")
        self.branch(condition, otherwise, then)
        self.label(then)
