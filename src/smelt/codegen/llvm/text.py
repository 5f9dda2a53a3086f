"""A small builder of LLVM text: one function with fresh names, labels and counted loops.

Invariant: the text depends on nothing but the calls that made it, so equal kernels have equal text. The function's own
name is the placeholder `@KERNEL` until its digest is known (`objects.KernelSource.of`).

LLVM's strength reduction looks for better ways to step through every address of a loop nest. Loops here are written as
they should run, and the search took a quarter of the time of code generation. `freeze` makes the next value of a
counter one that it does not look into, and no instruction.

    fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
    with fn.loop("%begin", "%end") as item:
        at = fn.gep("float", "%x", item)
        fn.store("float", fn.let(f"fadd float {fn.load('float', at)}, 1.0"), at)
    text = fn.finish("i32 0")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

KERNEL_PARAMETERS = "ptr noalias %args, i64 %begin, i64 %end, ptr noalias %scratch"
"""What every kernel takes: addresses and constant words, the range of its work items, the thread's scratch memory."""

# What is carried that may be an address, or a part of one.
_STEPPED = frozenset(("ptr", "i64", "i32"))


@dataclass(slots=True)
class Carried:
    """A value that a loop carries: its type, its name inside the loop, and after the loop its last value."""

    type: str
    now: str
    next: str | None = None
    last: str = ""


@dataclass(slots=True)
class Loop:
    """A counted loop under construction: its induction variable and carried values."""

    index: str
    carried: list[Carried] = field(default_factory=list)


class FunctionText:
    """Lines of one function.

    reduced: whether LLVM may look for other ways to step through its loops. That pays where it keeps apart what a
    scheduler would bring together (tiles that fill all registers), and for products in short loops.
    """

    def __init__(
        self, name: str, parameters: str, *, result: str = "i32", attributes: str = "nounwind", reduced: bool = False
    ) -> None:
        self.name, self.parameters, self.result, self.attributes = name, parameters, result, attributes
        self.reduced = reduced
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.declarations: dict[str, None] = {}
        self.helpers: dict[str, None] = {}
        self.prologue: list[str] = []
        self.block = "entry"
        self._count = 0

    # --- lines

    def fresh(self, stem: str = "v") -> str:
        """A new local name, without its percent sign."""
        self._count += 1
        return f"{stem}{self._count}"

    def do(self, text: str) -> None:
        """Append an instruction that gives no value."""
        self.lines.append(f"  {text}")

    def let(self, text: str, stem: str = "v") -> str:
        """Append an instruction; the name of its value."""
        name = f"%{self.fresh(stem)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def label(self, name: str) -> None:
        """Begin a basic block; what ran before must have branched."""
        self.lines.append(f"{name}:")
        self.block = name

    def declare(self, text: str) -> None:
        """A declaration (an intrinsic's) that the module needs, kept once."""
        self.declarations[text] = None

    def helper(self, text: str) -> None:
        """A private function or constant (of a fixed name) that the module also has, kept once."""
        self.helpers[text] = None

    def private(self, fn: FunctionText, answer: str) -> None:
        """A private function that the module also has, which returns `answer` at its block at hand; kept once."""
        self.declarations |= fn.declarations
        self.helpers |= fn.helpers
        fn.declarations, fn.helpers = {}, {}
        text = fn.finish(answer)
        self.helper(text[: text.rindex("attributes #0")].rstrip())

    def alloca(self, type_: str, count: int = 1, align: int = 64) -> str:
        """Stack memory, taken once at entry."""
        name = f"%{self.fresh('stack')}"
        self.allocas.append(f"  {name} = alloca {type_}, i64 {count}, align {align}")
        return name

    # --- memory

    def gep(self, type_: str, base: str, index: str | int) -> str:
        """The address of element `index` of an array of `type_` at `base`."""
        if index == 0 or index == "0":
            return base
        return self.let(f"getelementptr {type_}, ptr {base}, i64 {index}", "p")

    def load(self, type_: str, at: str, align: int | None = None) -> str:
        """The value at an address; an `align` of None is the type's own."""
        return self.let(f"load {type_}, ptr {at}" + (f", align {align}" if align is not None else ""))

    def store(self, type_: str, value: str, at: str, align: int | None = None) -> None:
        """Write a value to an address."""
        self.do(f"store {type_} {value}, ptr {at}" + (f", align {align}" if align is not None else ""))

    def at_entry(self, text: str, stem: str = "w") -> str:
        """Put an instruction before all others of the function; the name of its value."""
        name = f"%{self.fresh(stem)}"
        self.prologue.append(f"  {name} = {text}")
        return name

    def word(self, number: int) -> str:
        """Word `number` of the kernel's `%args`."""
        return self.load("i64", self.gep("i64", "%args", number), 8)

    def address(self, number: int) -> str:
        """Word `number` of the kernel's `%args`, as an address."""
        return self.load("ptr", self.gep("i64", "%args", number), 8)

    # --- integers

    def add(self, a: str | int, b: str | int) -> str:
        """a + b over i64, folding what is known."""
        if _is_zero(a):
            return str(b)
        if _is_zero(b):
            return str(a)
        if isinstance(a, int) and isinstance(b, int):
            return str(a + b)
        return self.let(f"add nsw i64 {a}, {b}", "i")

    def mul(self, a: str | int, b: str | int) -> str:
        """a * b over i64, folding what is known."""
        if _is_zero(a) or _is_zero(b):
            return "0"
        if _is_one(a):
            return str(b)
        if _is_one(b):
            return str(a)
        if isinstance(a, int) and isinstance(b, int):
            return str(a * b)
        return self.let(f"mul nsw i64 {a}, {b}", "i")

    # --- control flow

    @contextmanager
    def loop(
        self, start: str | int, stop: str | int, step: str | int = 1, carried: Sequence[tuple[str, str]] = ()
    ) -> Iterator[Loop]:
        """`for index in range(start, stop, step)`, step > 0; runs no time if start >= stop.

        carried: (type, initial value) of what the loop carries. Inside, set `loop.carried[k].next`; afterwards
        `loop.carried[k].last` is the final value.
        """
        head, body, done = self.fresh("head"), self.fresh("body"), self.fresh("done")
        index, following = f"%{self.fresh('i')}", f"%{self.fresh('n')}"
        made = Loop(index, [Carried(type_, f"%{self.fresh('c')}") for type_, _ in carried])
        before = self.block
        self.do(f"br label %{head}")
        self.label(head)
        at = len(self.lines)
        goes_on = self.let(f"icmp slt i64 {index}, {stop}", "b")
        self.do(f"br i1 {goes_on}, label %{body}, label %{done}")
        self.label(body)
        yield made
        grown = f"add nsw i64 {index}, {step}"
        if not self.reduced:
            grown = f"freeze i64 {self.let(grown, 'i')}"
            for value in made.carried:
                if value.type in _STEPPED and value.next is not None:
                    value.next = self.let(f"freeze {value.type} {value.next}", "f")
        self.do(f"{following} = {grown}")
        self.do(f"br label %{head}")
        phis = [f"  {index} = phi i64 [{start}, %{before}], [{following}, %{self.block}]"]
        for value, (type_, initial) in zip(made.carried, carried, strict=True):
            assert value.next is not None, "a loop-carried value was not assigned its next value"
            phis.append(f"  {value.now} = phi {type_} [{initial}, %{before}], [{value.next}, %{self.block}]")
            value.last = value.now
        self.lines[at:at] = phis
        self.label(done)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Run the block only if an i1 holds."""
        then, done = self.fresh("then"), self.fresh("done")
        self.do(f"br i1 {condition}, label %{then}, label %{done}")
        self.label(then)
        yield
        self.do(f"br label %{done}")
        self.label(done)

    # --- the whole

    def finish(self, answer: str = "i32 0") -> str:
        """The module's text: declarations and the function, which returns `answer` at the block at hand."""
        self.do(f"ret {answer}" if answer else "ret void")
        head = f"define {self.result} @{self.name}({self.parameters}) #0 {{"
        body = "\n".join(("entry:", *self.allocas, *self.prologue, *self.lines))
        declared = "".join(f"{line}\n" for line in (*sorted(self.declarations), *sorted(self.helpers)))
        # Jump tables would be data reached through a relocation.
        return f'{declared}{head}\n{body}\n}}\nattributes #0 = {{ {self.attributes} "no-jump-tables"="true" }}\n'


def _is_zero(value: str | int) -> bool:
    return value in (0, "0")


def _is_one(value: str | int) -> bool:
    return value in (1, "1")
