"""What the emitters of the executor's records write into: the lines of its walking function.

Invariant: the names %code, %frame and %rec (the record at hand) mean the same in all of them, and a record ends with a
branch to `next`, or to the label of a status.
"""

from __future__ import annotations


class Body:
    """Lines of one function, with fresh names for its values."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def let(self, text: str) -> str:
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def word(self, at: int, base: str = "%rec") -> str:
        """The record's int32 word number `at`, widened."""
        return self.let(f"sext i32 {self.let(f'load i32, ptr {self.word_address(at, base)}')} to i64")

    def word_address(self, at: int, base: str = "%rec") -> str:
        return self.let(f"getelementptr i32, ptr {base}, i64 {at}")

    def cell_address(self, index: str | int) -> str:
        return self.let(f"getelementptr i64, ptr %frame, i64 {int(index) if isinstance(index, int) else index}")

    def cell(self, index: str | int, kind: str = "i64") -> str:
        return self.let(f"load {kind}, ptr {self.cell_address(index)}")

    def store(self, value: str, index: str | int) -> None:
        self.do(f"store i64 {value}, ptr {self.cell_address(index)}")

    def function(self, index: str | int) -> str:
        return self.let(f"inttoptr i64 {self.cell(index)} to ptr")

    def unless_zero(self, rc: str, status: str, then: str) -> None:
        """Go to `then` when a return code is zero, else fail with `status`."""
        ok = self.let(f"icmp eq i32 {rc}, 0")
        self.do(f"br i1 {ok}, label %{then}, label %{status}")
        self.label(then)

    def function_text(self, head: str) -> str:
        """The finished function."""
        lines = "\n".join(self.lines)
        return f"{head} {{\n{lines}\n}}\n"
