"""Text whose addresses code generation takes as they are.

LLVM's strength reduction looks for better ways to step through every address of a loop nest. Nests here are deep, their
inner loops are spelled as they should run, and the search was a third of a kernel's compilation. `freeze` makes of a
computed address one that it does not look into, and no instruction.

Invariant: an address that a loop's own counter steps through stays visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from smelt.codegen.llvm.text import FunctionText, Loop


class OpaqueText(FunctionText):
    """A function whose addresses at computed places are frozen."""

    def __init__(self, name: str, parameters: str) -> None:
        super().__init__(name, parameters)
        self._counters: set[str] = set()

    @contextmanager
    def loop(
        self, start: str | int, stop: str | int, step: str | int = 1, carried: Sequence[tuple[str, str]] = ()
    ) -> Iterator[Loop]:
        """As `FunctionText.loop`."""
        with super().loop(start, stop, step, carried) as made:
            self._counters.add(made.index)
            yield made

    def gep(self, type_: str, base: str, index: str | int) -> str:
        """As `FunctionText.gep`."""
        at = super().gep(type_, base, index)
        is_plain = at == base or str(index) in self._counters or not str(index).startswith("%")
        return at if is_plain else self.let(f"freeze ptr {at}", "p")
