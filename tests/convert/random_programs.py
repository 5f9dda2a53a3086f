"""Random functions of two ints: control flow of every kind over ints and tuples, always ending."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

_NAMES = ("a", "b", "x", "y", "z")
_ERRORS = ("ZeroDivisionError", "ValueError", "IndexError", "UnboundLocalError", "NameError")


@dataclass
class Maker:
    """Writes one function. `pure`: an arm has no effect but on variables, so that it may run for nothing."""

    rng: Random
    pure: bool = False
    count: int = 0

    def program(self) -> str:
        body = self.block(4, loop=False, depth=0)
        helper = ""
        if self.rng.random() < 0.5:
            helper = "    def bump(k):\n        nonlocal x\n        x = k if k else x\n        return k\n"
        # Mostly bound, so that a run gets far.
        bound = "".join(
            f"    {name} = {value}\n" for name, value in (("y", "a"), ("z", "b")) if self.rng.random() < 0.8
        )
        head = "    x = 1\n" + bound + helper + "    t = (a, b)\n    fuel = 40\n"
        if not self.pure:
            head += "    log = []\n"
        tail = "    return a, x, t" + ("" if self.pure else ", log")
        text = "def f(a, b):\n" + head + "\n".join("    " + line for line in body) + "\n" + tail + "\n"
        return text if helper else text.replace("bump(", "abs(")

    def new(self, what: str) -> str:
        self.count += 1
        return f"{what}{self.count}"

    def block(self, size: int, *, loop: bool, depth: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self.rng.randint(1, size)):
            lines += self.statement(loop, depth)
        return lines

    def inner(self, loop: bool, depth: int) -> list[str]:
        return ["    " + line for line in self.block(3, loop=loop, depth=depth + 1)]

    def statement(self, loop: bool, depth: int) -> list[str]:
        r = self.rng
        kinds = ["assign"] * 4 + ["bump", "augmented", "tuple", "unpack", "walrus"]
        if depth < 4:
            kinds += ["if"] * 4 + ["while", "for", "for", "try", "with", "match", "nested"]
        if loop:
            kinds += ["break", "continue"]
        if depth:
            kinds += ["return", "raise", "assert"]
        if r.random() < 0.3:
            kinds += ["delete"]
        if not self.pure:
            kinds += ["print", "log"]
        match r.choice(kinds):
            case "assign":
                return [f"{r.choice(_NAMES)} = {self.expr(3)}"]
            case "augmented":
                return [f"{r.choice(_NAMES)} {r.choice(['+=', '-=', '*='])} {self.expr(2)} % 9"]
            case "tuple":
                return [f"t = {r.choice([f't + ({self.expr(2)},)', 't[1:]', f'({self.expr(1)}, *t)', self.comp()])}"]
            case "unpack":
                swaps = ["x, (y,) = y, (x,)", "x, y = y, x", "(a, b), z = (b, a), x"]
                return [r.choice([*swaps, "*_, x = (0, *t)", "x = z = a"])]
            case "delete":
                return [f"del {r.choice('xyz')}"]
            case "walrus":
                return [f"b = {self.expr(1)} if ({r.choice('xyz')} := {self.expr(2)}) else {self.expr(1)}"]
            case "if":
                lines = [f"if {self.test(2)}:", *self.inner(loop, depth)]
                if r.random() < 0.3:
                    lines += [f"elif {self.test(2)}:", *self.inner(loop, depth)]
                if r.random() < 0.5:
                    lines += ["else:", *self.inner(loop, depth)]
                return lines
            case "while":
                test = f"(fuel := fuel - 1) > 0 and {self.test(2)}"
                return [f"while {test}:", *self.inner(True, depth), *self.orelse(loop, depth)]
            case "for":
                target, source = r.choice(
                    [
                        ("x", "range(4)"),
                        (self.new("i"), "t[:5]"),
                        ("y", "range(b % 4)"),
                        ("x, (y, *_)", "[(1, (2, 3)), (b, (a,))]"),
                    ]
                )
                fuel = "    if (fuel := fuel - 1) < 0: break"
                return [f"for {target} in {source}:", fuel, *self.inner(True, depth), *self.orelse(loop, depth)]
            case "try":
                lines = ["try:", *self.inner(loop, depth)]
                name = r.choice(["", " as e"])
                lines += [f"except {r.choice(_ERRORS)}{name}:", *self.inner(loop, depth)]
                if r.random() < 0.4:
                    lines += ["else:", *self.inner(loop, depth)]
                if r.random() < 0.4:
                    lines += [
                        "finally:",
                        *["    " + line for line in self.block(2, loop=False, depth=4) if "return" not in line],
                    ]
                    lines += ["    pass"]
                return lines
            case "with":
                return [f"with suppress({r.choice(_ERRORS)}):", *self.inner(loop, depth)]
            case "match":
                return [
                    f"match {r.choice(['t', 'a % 3', '(a, b)', 'x'])}:",
                    "    case 0 | 1:",
                    *["    " + line for line in self.inner(loop, depth)],
                    f"    case [y, *_] if {self.test(1)}:",
                    *["    " + line for line in self.inner(loop, depth)],
                    f"    case {r.choice(['_', '_', 'int(z)'])}:",
                    *["    " + line for line in self.inner(loop, depth)],
                ]
            case "nested":
                name = self.new("g")
                body = r.choice(["return p if p else a", "nonlocal b\n    b = p\n    return b", "return x"])
                return [
                    f"def {name}(p, q={self.expr(1)}):",
                    *["    " + line for line in body.split("\n    ")],
                    f"z = {name}({self.expr(1)})",
                ]
            case "return":
                return [f"return {self.expr(2)}"]
            case "raise":
                return [f"raise {r.choice(_ERRORS[:3])}({self.expr(1)})"]
            case "assert":
                return [f"assert {self.test(2)}, {self.expr(1)}"]
            case "print":
                return [f"print(f'{{{r.choice(_NAMES)}!r:>4}}', {self.expr(1)})"]
            case "log":
                return [f"log{r.choice(['.append(%s)', ' += [%s]'])} ".replace("%s", self.expr(2)).rstrip()]
            case "bump":
                return [f"z = {self.test(1)} and bump({self.expr(1)})"]
            case kind:
                return [kind]

    def orelse(self, loop: bool, depth: int) -> list[str]:
        return ["else:", *self.inner(loop, depth)] if self.rng.random() < 0.3 else []

    def comp(self) -> str:
        v = self.new("v")
        walrus = f"(y := {v} + 1)" if self.rng.random() < 0.3 else f"{v} * {self.expr(1)}"
        # A condition guards an item that is appended, which is an effect.
        condition = "" if self.pure else f" if {v} != {self.expr(1)}"
        return f"tuple([{walrus} for {v} in t[:4]{condition}])"

    def test(self, depth: int) -> str:
        r = self.rng
        match r.randint(0, 6 if depth else 2):
            case 0:
                return f"{self.expr(1)} {r.choice(['<', '>', '==', '!=', '<='])} {self.expr(1)}"
            case 1:
                return f"{self.expr(1)} % {r.randint(2, 4)}"
            case 2:
                return f"({self.expr(1)}) in t"
            case 3:
                return f"({self.test(depth - 1)} {r.choice(['and', 'or'])} {self.test(depth - 1)})"
            case 4:
                return f"not {self.test(depth - 1)}"
            case 5:
                return f"{self.expr(1)} < {self.expr(1)} <= {self.expr(1)}"
            case _:
                return f"{r.choice(['any', 'all'])}({self.new('v')} > {self.expr(1)} for v{self.count} in t[:3])"

    def expr(self, depth: int) -> str:
        r = self.rng
        if depth <= 0 or r.random() < 0.3:
            return r.choice([*_NAMES, str(r.randint(-2, 5)), str(r.randint(0, 3))])
        match r.randint(0, 8):
            case 0 | 1:
                return f"({self.expr(depth - 1)} {r.choice('+-*')} {self.expr(depth - 1)}) % 100"
            case 2:
                return f"({self.expr(depth - 1)} if {self.test(1)} else {self.expr(depth - 1)})"
            case 3:
                return f"({self.expr(depth - 1)} {r.choice(['and', 'or'])} {self.expr(depth - 1)})"
            case 4:
                return f"({r.choice('xyz')} := {self.expr(depth - 1)})"
            case 5:
                return f"({self.expr(depth - 1)} // ({self.expr(0)} or 1))"
            case 6:
                return f"t[{self.expr(0)} % (len(t) or 1)]"
            case 7:
                return f"(lambda p, q={self.expr(1)}: p or q)({self.expr(depth - 1)})"
            case _:
                return f"len(t) - {self.expr(depth - 1)}"


def random_program(seed: int, *, pure: bool = False) -> str:
    """A module that defines `f(a, b)`."""
    while True:
        text = "from contextlib import suppress\n" + Maker(Random(seed), pure).program()
        try:
            compile(text, "<random>", "exec")
        except SyntaxError:
            # `x` both assigned and bound by a walrus within a comprehension, and the like.
            seed += 1_000_003
        else:
            return text
