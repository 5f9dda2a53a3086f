"""Results and questions of all kinds whose parts are numbers of data: what is returned, sorted, matched and looked up.

Why: a graph gives tensors and numbers, and whatever holds them is made anew at each call; nothing of it may be what an
earlier call left there, and what is asked of it, how deep it may stand, is asked of this call's data.
"""

from __future__ import annotations

from tests.programs.aimed.lines import Lines, generated, lines_for
from tests.programs.generate import Generated

NUMBERS = (
    "int(c[{k}])", "int(c[{k}])", "{k}", "len(L)", "n", "int(x[{k}])", "round(float(x[0]))", "c[{k}].int().item()",
    "m",
)  # fmt: skip
FLOATS = ("float(x[{k}])", "x[{k}].item()", "float(c[0]) / 2", "f", "x.sum().item()", "abs(f)", "-f")
FLAGS = (
    "bool(c[{k}] > 0)", "(c[{k}] > 0).item()", "{i} > {j}", "not {i}", "flag", "x[{k}].item() > 1", "{i} == {j}",
    "f > {k}",
)  # fmt: skip
TEXTS = (
    "'s'", "str({i})", "f'{{{i}}}-{{{j}}}'", "'ab'[{i} % 2]", "'x' * {i}", "repr({f})", "format({f}, '.2f')",
    "str({b})",
)  # fmt: skip
TENSORS = ("x", "x + 1", "a", "b", "a * {i}", "L[{i} % len(L)]", "x.sum()")
# What may be a key or a member of a set, and what may be any part.
HASHED = (
    "{i}", "{i}", "{f}", "{b}", "{s}", "({i}, {j})", "({s}, {b})", "Color({i} % 3)", "frozenset([{i}, {j}])", "None",
)  # fmt: skip
PARTS = ("{i}", "{i}", "{f}", "{b}", "{s}", "{t}", "{t}", "{q}", "{h}", "{h}", "r0", "r1")
KINDS = (
    "({e}, {g})", "[{e}, {g}]", "{{'a': {e}, {h}: {g}}}", "{{{h}: {e}}}", "{{{h}, {q}}}", "frozenset([{h}, {q}])",
    "slice({i}, {j})", "slice({i}, None, {f})", "range({i})", "range({i}, {j}, 2)",
    "functools.partial(pair, {e}, b={g})", "Problem({e}, {g})", "KeyError({h})", "Point({e}, {g})", "Two({e}, {g})",
    "Color({i} % 3)", "complex({f}, {i})", "types.MappingProxyType({{{h}: {e}}})", "{{{h}: {e}}}.items()",
    "{{{h}: 1, {q}: 2}}.keys()", "{{'a': {e}}}.values()", "iter([{e}, {g}])", "zip([{e}], [{g}])",
    "map(pair, [{e}], [{g}])", "reversed([{e}, {g}])", "enumerate([{e}], {i})", "asks({e})", "bytes([{i} % 5, 2])",
    "collections.deque([{e}, {g}])", "collections.Counter([{h}, {q}])",
    "collections.OrderedDict([({h}, {e}), ({q}, {g})])", "(v for v in [{e}, {g}])", "Slot({e})", "L.append",
    "types.SimpleNamespace(a={e})", "sorted([{i}, {j}, {k}], key=lambda v: -v)", "max({i}, {j}, key=abs)",
    "min([({i}, {e}), ({j}, {g})], key=lambda p: p[0])", "sorted([{s}, {s}])", "max([({f}, {i}), ({f}, {j})])",
    "min({f}, {i})", "sorted({{{i}, {j}}}, reverse=True)", "sum([{i}, {f}])", "dict(zip([{h}, {q}], [{e}, {g}]))",
    "[{e} for _ in range({i})]", "{{v: v * 2 for v in ({i}, {j})}}", "divmod({i}, 2)", "({e} if {b} else {g})",
    "({e}, {g})[{i} % 2]", "{b} and {e}", "{i} or {e}", "table.get({i}, {e})", "any([{b}, {b}])", "S", "D",
    "max([{t}, {t}], key=lambda v: float(v.sum()))", "{{**D, {h}: {e}}}", "[*L, {e}]", "list(map(str, [{i}, {f}]))",
    "str({s}).join('ab')",
)  # fmt: skip
STATEMENTS = (*("{r} = {any}",) * 8, "D[{h}] = {e}", "S.add({h})", "L.append({t})", "n = {i}", "m = {i}", "f = {f}",
"flag = {b}", "a = {t}",
              "b = a + {i}", "D.pop({h}, None)", "D.setdefault({h}, {e})", "S.discard({i})", "a = x * {f}", "n += {i}",
              "a = table.get({i}, x)", "{r} = n in S, {h} in D", "D = {{n: D}}", "{r}, *_ = [{e}, {g}]")  # fmt: skip
CONDITIONS = (
    "c[{k}] > 0", "c[{k}] > 0", "{b}", "{i} in S", "{h} in D", "{i} > {j}", "x[{k}] > 1", "{s} == '1'", "n is None",
    "{i} in (0, 2)",
)  # fmt: skip
SUBJECTS = (
    "({e}, {g})", "({i}, {b})", "[{b}, {i}, {e}]", "{{'a': {i}, 'b': {b}}}", "Point({i}, {b})", "{i}", "{b}", "{f}",
    "r0", "r1", "L", "D", "Two({i}, [{b}, {e}])", "{s}", "(Point({i}, {f}), [{i}, {j}])",
    "{{'p': Point({b}, 1), 'q': ({i},)}}", "Color({i} % 3)",
)  # fmt: skip
PATTERNS = (
    "True", "False", "None", "0", "1", "-1", "1.0", "2", "0 | 2", "int()", "bool()", "float()", "str()", "True | None",
    "Color.RED", "Color.RED | Color.BLUE", "'a' | '1'", "int() as {v}", "bool({v})", "[{p}, *_]", "[*_, {p}]",
    "({p}, {p})", "[{p}, {p}, *{v}]", "{{'a': {p}}}", "{{'b': {p}, **{v}}}", "Point({p}, {p})", "Point(one={p})",
    "Two({p}, {p})", "[]", "{v}", "_", "({p})", "Two(two=[{p}, _])", "[{p}]", "{{'p': Point({p}), 'q': [{p}]}}",
    "torch.Tensor()", "(True, _) | (_, True)",
)  # fmt: skip
HEAD = """
import collections
import dataclasses
import enum
import functools
import types
from typing import Any, NamedTuple

class Color(enum.Enum): RED, GREEN, BLUE = range(3)
class Problem(Exception): pass

@dataclasses.dataclass
class Point:
    one: Any
    two: Any

class Two(NamedTuple):
    one: Any
    two: Any

class Slot:
    __slots__ = ('held',)
    def __init__(self, held): self.held = held

def pair(a, b): return a, b
def asks(v):
    def ask(): return v
    return ask
"""
START = (
    "a, b, L, S, D = x + 1, x * 2, [x, x - 1], {1, 'q'}, {0: x, 'a': 1}", "n, m, f, flag = int(c[0]), 1, 0.5, True",
    "r0 = r1 = r2 = None", "table = {0: a, 1: b, 2: 's'}",
)  # fmt: skip


class _Answers(Lines):
    bound: int = 0
    kinds: tuple[str, ...] = KINDS
    hashed: tuple[str, ...] = HASHED
    texts: tuple[str, ...] = TEXTS

    def fill(self, text: str, depth: int = 0) -> str:
        parts = PARTS if depth > 1 else (*PARTS, *self.kinds)
        kinds = {
            "i": NUMBERS, "j": NUMBERS, "f": FLOATS, "b": FLAGS, "s": self.texts, "t": TENSORS, "h": self.hashed,
            "q": self.hashed, "e": parts, "g": PARTS, "any": self.kinds,
        }  # fmt: skip
        nested = {name: self.fill(self.pick(of), depth + 1) for name, of in kinds.items() if f"{{{name}}}" in text}
        return text.format(k=self.rng.randrange(3), r=self.pick(("r0", "r1", "r2")), **nested)

    def pattern(self, depth: int = 0) -> str:
        """A pattern; each name in it is bound once. At the top none is always true."""
        text = self.pick(
            tuple(p for p in PATTERNS if (depth or p not in ("{v}", "_", "({p})")) and (depth < 2 or "{p}" not in p))
        )
        while "{p}" in text or "{v}" in text:
            self.bound += 1
            text = (
                text.replace("{v}", f"v{self.bound}", 1)
                if "{v}" in text
                else text.replace("{p}", self.pattern(depth + 1), 1)
            )
        return text.replace("{{", "{").replace("}}", "}")

    def statement(self, depth: int, in_loop: bool = False) -> bool:
        """One statement; whether others may follow."""
        kind = self.rng.choices(("if", "match", "for", "while", "leave", "plain"), (18, 18, 6, 4, 3, 50))[0]
        if kind == "leave" and depth > 1:
            self.put(depth, self.pick(("break", "continue")) if in_loop else f"return {self.fill('{any}')}")
            return False
        if kind in ("plain", "leave") or depth > 3 or self.budget <= 0:
            self.put(depth, self.fill(self.pick(STATEMENTS)))
        elif kind == "match":
            self.match(depth, in_loop)
        else:
            number = f"n{len(self.lines)}"
            if kind == "while":
                self.put(depth, f"{number} = 0")
            over = self.pick(("range(int(c[0]) % 3)", "range(2)", "c.tolist()[:2]", "sorted({int(v) for v in c})"))
            heads = {
                "if": f"if {self.fill(self.pick(CONDITIONS))}:",
                "for": f"for m in {over}:",
                "while": f"while {number} < c[1]:",
            }
            self.put(depth, heads[kind], *((f"    {number} += 1",) if kind == "while" else ()))
            self.block(depth + 1, lambda at: self.statement(at, in_loop or kind != "if"))
            if kind == "if" and self.chance(0.4):
                self.put(depth, "else:")
                self.block(depth + 1, lambda at: self.statement(at, in_loop))
        return True

    def match(self, depth: int, in_loop: bool) -> None:
        self.put(depth, f"match {self.fill(self.pick(SUBJECTS))}:")
        for _ in range(self.rng.choice((1, 2, 2, 3))):
            first = self.bound
            pattern = self.pattern()
            names = [f"v{n}" for n in range(first + 1, self.bound + 1) if f"v{n}" in pattern]
            self.put(
                depth + 1, f"case {pattern}{f' if {self.fill(self.pick(CONDITIONS))}' if self.chance(0.25) else ''}:"
            )
            if names:
                self.put(depth + 2, f"{self.pick(('r0', 'r1', 'r2'))} = {', '.join(names)}, {self.fill('{e}')}")
            self.block(depth + 2, lambda at: self.statement(at, in_loop))
        if self.chance(0.5):
            self.put(depth + 1, "case _:")
            self.block(depth + 2, lambda at: self.statement(at, in_loop))


def answers(seed: int, size: int = 0) -> Generated:
    """The program of this number with results of all kinds."""
    lines = _Answers(**vars(lines_for(seed, size)))
    # Few kinds in each, and no data as keys or in texts in some: most of these are no part of a graph.
    lines.kinds = tuple(lines.rng.sample(KINDS, 9))
    lines.hashed = lines.rng.choice((HASHED, ("{k}", "'s'", "(1, 's')", "None", "True")))
    lines.texts = lines.rng.choice((TEXTS, ("'s'", "'ab'")))
    lines.put(1, *START)
    while lines.budget > 0:
        lines.block(1, lines.statement)
    ends = ("r0, r1, r2", "r0, a", "{any}", "[r1, r2, D]", "{any}, r0", "r2, n, S", "r1, r2, b")
    lines.put(1, f"return {lines.fill(lines.pick(ends))}")
    return generated(seed, HEAD, "x, c", lines.lines, [_call(lines) for _ in range(5)])


def _call(lines: Lines) -> str:
    x = lines.rng.choice(([1.0, 2.0, 3.0], [2.0, 0.0, 0.5], [-1.0, 2.0, 3.0], [3.0, 2.0, 3.0], [-1.0, -2.0, 0.0]))
    c = [float(lines.rng.randint(-1, 2)), float(lines.rng.randint(0, 2)), float(lines.rng.randint(-1, 2))]
    return f"(torch.tensor({x}), torch.tensor({c}))"
