"""Python's ints, floats and bools that come of data, in all they can do, beside tensors of no dimension.

Why: in a graph they are tensors with a dtype, and Python's are not: ints have no end, `//` and `%` go down, `max` keeps
a type, errors have Python's texts, and a bool counts.
"""

from __future__ import annotations

from tests.programs.aimed.lines import Lines, generated, lines_for
from tests.programs.generate import Generated

# Kinds of variables by the first letter of their names: ints, floats, bools, floating and integer tensors.
MADE = {
    "n": (
        "{n} + {o}", "{n} * 3", "({n} % 100) ** 5", "{n} - {b}", "{n} // 3", "{n} % 3", "-{n} // 4", "{n} << 3", "~{n}",
        "{n} >> 1", "{n} & 5", "{n} | 2", "{n} ^ 7", "abs({n})", "int({f})", "round({f})", "math.floor({f})",
        "math.trunc({f} * 7)", "len(str({n}))", "max({n}, 1)", "divmod({n}, -4)[1]", "{n} * 2 ** 61", "int({s})",
        "{k}.item()", "int({k})", "math.gcd({n}, 12)", "math.isqrt(abs({n}))", "{b} + {b}", "{n} if {b} else 1",
        "pow({n}, 3, 7)", "hash({n})", "10 ** ({n} % 40)", "int({f} * 1e30)", "{n} or 3", "round({s}.item())",
    ),
    "f": (
        "{f} + {n}", "{f} * 0.1", "{f} // 0.3", "{f} % 0.7", "-{f} % 0.7", "{n} / 3", "{f} ** 3", "abs({f})", "-{f}",
        "round({f}, 1)", "float({s})", "{s}.item()", "max({f}, 0.0)", "min({f}, {g})", "math.sqrt(abs({f}))",
        "math.exp(min({f}, 9))", "math.log(abs({f}) + 1)", "math.atan2({f}, 2)", "math.fmod({f}, 0.4)",
        "math.copysign(2, {f})", "math.hypot({f}, 1)", "math.modf({f})[0]", "float({n})", "float({b})", "{n} * 0.5",
        "{f} if {b} else 1.5", "sum(t.tolist())", "{f} or 7.0", "{f} / ({n} or 1)", "math.pow(abs({f}), 0.5)",
    ),
    "b": (
        "{f} > {n}", "{n} == {f}", "{n} in (1, 2, 3)", "1 <= {n} < 4", "not {n}", "not {f}", "bool({s} > 1)",
        "({s} > {f}).item()", "{f}.is_integer()", "math.isnan({f})", "{b} and {n} > 2", "{n} in range(0, 10, 2)",
        "bool({k} == {n})", "{b} ^ {c}", "{b} is True", "type({n}) is int", "{f} < {g}", "{b} == 1",
    ),
    "s": (
        "{s} + {n}", "{s} * {b}", "t[0] * {n}", "torch.tensor({f})", "t.sum() - {f}", "{n} - {s}", "{s} / 4",
        "{s} // {n}", "{s} % 3", "{s}.clamp(max={f})", "torch.where({s} > {f}, {s}, {n})", "{k}.float()", "{s}.abs()",
        "torch.full((), {f})", "{s} * {f}",
    ),
    "k": (
        "{k} + {n}", "{k} * 2", "t.long().sum()", "torch.tensor({n})", "{k} // 3", "{k} % 3", "{s}.long()",
        "(t > {f}).sum()", "{k} ** 2", "{k} + {b}", "{k} << 1", "{n} * {k}", "torch.full((), {n})",
    ),
}  # fmt: skip
RESULTS = (
    "{b} and {n}", "{n} or {f}", "max({n}, {f})", "{b} * {n}", "str({n})", "f'{{{n}:05d}} {{{f}:.2f}}'", "{f}.hex()",
    "bin({n})", "[v * 2 for v in t.long().tolist()]", "divmod({n}, 3)", "math.modf({f})", "torch.arange({n} % 5)",
    "t.new_zeros({n} % 4)", "sorted([{f}, {n}])", "torch.full((2,), {f})", "torch.full((2,), {n})",
    "t * {n}", "t * {f}", "{n} is {o}", "min({s}, {f})", "{k} == {n}", "type({b})", "complex({n}, {f})",
)  # fmt: skip
LOOPS = ("for _ in range({n} % 4):", "while {f} < 3 and turns < 5:", "while turns < {n}:", "for _ in range(40):")


class _Numbers(Lines):
    def fill(self, text: str) -> str:
        name = {letter: self.pick((letter, f"{letter}2")) for letter in MADE}
        return text.format(**name, o=self.pick(("n", "n2")), g=self.pick(("f", "f2")), c=self.pick(("b", "b2")))

    def statement(self, depth: int) -> bool:
        """One statement."""
        nests = depth < 3 and self.budget > 0
        if nests and self.chance(0.2):
            self.put(depth, self.fill(f"if {self.pick(MADE['b'])}:"))
            self.block(depth + 1, self.statement)
            if self.chance(0.5):
                self.put(depth, "else:")
                self.block(depth + 1, self.statement)
        elif nests and self.chance(0.1):
            # Counted apart: a loop inside must not set back the count that ends the outer one.
            loop = self.fill(self.pick(LOOPS)).replace("turns", f"turns{depth}")
            self.put(depth, f"turns{depth} = 0", loop, f"    turns{depth} += 1", f"    if turns{depth} > 60: break")
            self.block(depth + 1, self.statement)
        else:
            kind = self.pick("nnnfffbbsk")
            self.put(depth, self.fill(f"{{{kind}}} = {self.pick(MADE[kind])}"))
        return True


def numbers(seed: int, size: int = 0) -> Generated:
    """The program of this number with Python's numbers that come of data."""
    lines = _Numbers(**vars(lines_for(seed, size)))
    lines.put(1, "n, n2, f, f2 = int(t[0]), 3, float(t[1]), 2.5", "b, b2, s, s2 = bool(t[0] > 1), False, t[0], t.sum()")
    lines.put(1, "k, k2 = t[0].long(), torch.tensor(2)")
    while lines.budget > 0:
        lines.block(1, lines.statement)
    shown = [lines.fill(lines.pick(RESULTS)) for _ in range(3)]
    lines.put(1, f"return n, n2, f, f2, b, b2, s, s2, k, k2, {', '.join(shown)}")
    values = (2.0, 3.0, -3.75, 0.0, 7.5, 2.5, -0.5, 12.0, -1.0, 1.0)
    calls = [f"(torch.tensor({[lines.rng.choice(values) for _ in range(2)]}),)" for _ in range(5)]
    return generated(seed, "", "t", lines.lines, calls)
