"""Variables that only some ways set, with early exits, loops, deletions and functions that load them.

Why: every load of such a variable has to ask whether it is set on this way, wherever it stands; one load that does not
ask gives another variable's value, or none of eager's `UnboundLocalError`.
"""

from __future__ import annotations

from tests.programs.aimed.lines import Lines, generated, lines_for
from tests.programs.generate import Generated

NAMES = ("u", "v", "w")
CONDITIONS = (
    "c[{k}] > 0", "c[{k}] > 0 and c[{j}] < 1", "{k} in c.tolist()", "int(c[{k}]) == 1", "not c[{k}] > 0",
    "(c[{k}] > 0).item() or n > 2",
)  # fmt: skip
MOSTLY = ("c.sum() < 4", "c.sum() > 1", "c[0] < 2", "c[0] > 0", "c[1] < 2", "c[2] + c[3] > 0", "c[2] + c[3] < 2")
# Most are set to what is there, so that what is not there is met late, and not by all calls.
TENSORS = (
    *("x", "x + 2", "x - 1", "x * 3", "x.neg()", "x[:2]") * 3,
    "{v}", "{v} + 1", "{v} * 2", "ident({v})", "second({v}, x)", "(lambda: {v})()",
    "[{v}, x][{k} % 2]", "({v} if {c} else x)", "inner()",
)  # fmt: skip
RESULTS = (
    "{v}", "{v}", "{v} + 1", "{v} * x", "x", "[{v}]", "({v}, x)", "ident({v})", "(lambda: {v})()", "second({v}, x)",
    "[{v} for _ in range(2)]", "{{'k': {v}}}", "{v} if {c} else x", "inner()", "max([{v}, x], key=lambda t: 1)",
)  # fmt: skip
ENDS = ("v", "u", "(u, v)", "keep", "[w]", "x", "(keep, v)", "i", "(i, x)", "j", "i(x)")
LOOPS = ("range(int(c[0]) % 3)", "range(2)", "x", "[x, x + 1]", "PARTS", "PARTS", "zip(PARTS, 'abcd')")
LEAVES = ("break", "break", "return x", "return v", "return i")
HEAD = """
def add(t): return t + 1
def double(t): return t * 2
def negate(t): return -t

PARTS = [add, double, negate, add]
"""


class _Unset(Lines):
    def fill(self, choices: tuple[str, ...]) -> str:
        k, j, v = self.rng.randrange(4), self.rng.randrange(4), self.pick(NAMES)
        text = self.pick(choices)
        return text.format(k=k, j=j, v=v, c=self.fill(CONDITIONS) if "{c}" in text else "")

    def statement(self, depth: int, in_loop: bool = False) -> bool:
        """One statement; whether others may follow."""
        nests = depth < 4 and self.budget > 0
        match self.rng.choices(("if", "for", "while", "try", "return", "leave", "plain"), (30, 8, 4, 4, 8, 4, 42))[0]:
            case "if" if nests:
                self.put(depth, f"if {self.fill(CONDITIONS)}:")
                self.inner(depth, in_loop)
                if self.chance(0.4):
                    self.put(depth, "else:")
                    self.inner(depth, in_loop)
            case "for" if nests:
                self.loop(depth, in_loop)
            case "while" if nests:
                self.put(depth, "n = 0", "while n < c[1]:", "    n += 1")
                self.inner(depth, True)
            case "try" if nests:
                self.put(depth, "try:")
                self.inner(depth, in_loop)
                self.put(depth, "except NameError:")
                self.inner(depth, in_loop)
            case "return":
                self.put(depth, f"return {self.fill(RESULTS)}")
                return False
            case "leave" if in_loop:
                self.put(depth, self.pick(("break", "continue")))
                return False
            case _:
                kinds = ("del {v}", "keep.append({v})", "{v} += 1") if self.chance(0.3) else ("{v} = {t}",)
                self.put(depth, self.pick(kinds).format(v=self.pick(NAMES), t=self.fill(TENSORS)))
        return True

    def inner(self, depth: int, in_loop: bool) -> None:
        self.block(depth + 1, lambda at: self.statement(at, in_loop))

    def loop(self, depth: int, in_loop: bool) -> None:
        name, over = self.pick(("i", "j", *NAMES)), self.pick(LOOPS)
        self.put(depth, f"for {name} in {over}:")
        if "PARTS" in over:
            part = f"{name}[0]" if "zip" in over else name
            self.put(depth + 1, f"x = {part}(x)")
            if self.chance(0.7):
                self.put(depth + 1, f"if x.sum() > {self.rng.randrange(2, 15)}:", f"    {self.pick(LEAVES)}")
        self.inner(depth, True)
        if self.chance(0.2):
            self.put(depth, "else:")
            self.inner(depth, in_loop)


def unset(seed: int, size: int = 0) -> Generated:
    """The program of this number with variables that may be unset."""
    lines = _Unset(**vars(lines_for(seed, size)))
    lines.put(1, "n = 0", "keep = []", "def ident(a):", "    return a", "def second(a, b):", "    return b")
    lines.put(1, "def inner():", f"    return {lines.pick(NAMES)}")
    # Each is set or may be, so that few programs raise at all calls.
    for number, name in enumerate((*NAMES, "i", "j"), 1):
        lines.put(1, *(() if lines.chance(0.6) else (f"if {lines.pick(MOSTLY)}:",)))
        lines.put(2 if lines.lines[-1].endswith(":") else 1, f"{name} = x * {number}")
    while lines.budget > 0 and not lines.lines[-1].startswith("    return"):
        lines.block(1, lines.statement)
    lines.put(1, f"return {lines.pick(ENDS)}")
    seen = ((0, 1, 2), (0, 2), (0, 1), (0, 1))
    calls = [f"(torch.arange(3.0) + 1, torch.tensor({[lines.rng.choice(of) for of in seen]}))" for _ in range(5)]
    return generated(seed, HEAD, "x, c", lines.lines, calls)
