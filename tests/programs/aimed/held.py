"""Containers and objects that hold tensors and each other, and who is whom afterwards, through branches and loops.

Why: a graph knows tensors, and everything around them is rebuilt at each call: lists, dicts and objects that are one
must stay one, those written through one name are seen through others, and what lies in arguments must not be a copy.
"""

from __future__ import annotations

from tests.programs.aimed.lines import Lines, generated, lines_for
from tests.programs.generate import Generated

TENSORS = ("x", "y", "a", "b", "t")
LISTS = ("L", "M", "items")
DICTS = ("D", "d")
CONDITIONS = (
    "c[{k}] > 0", "c.sum() > {k}", "int(c[{k}]) == 1", "len({l}) > int(c[{k}])", "{v}[0] > 1", "not c[{k}] > 0",
    "{v} is {w}", "box.n < c[{k}]", "{l} is {m}", "'q' in {d}",
)  # fmt: skip
VALUES = (
    "{v}", "{v}", "{v} + 1", "{v} * 2", "{v}.clone()", "{v}[1:].sum() + {w}", "{v}.view(3)", "{l}[0]", "{l}[-1]",
    "{l}[int(c[0]) % len({l})]", "{d}['p']", "{d}.get('q', {v})", "box.a", "self.kept", "ident({v})",
    "pair({v}, x)[{k} % 2]", "({v} if {c} else {w})", "torch.stack({l}).sum(0)",
    "max({l}, key=lambda e: float(e[0]))", "sum({l})",
)  # fmt: skip
COPIES = ("{l}", "[x]", "[a, b]", "list({l})", "{l}[:]", "[e + 1 for e in {l}]", "{l} + [x]", "[e for e in {l} if {c}]",
          "sorted({l}, key=lambda e: float(e[0]))")  # fmt: skip
STATEMENTS = (
    *("{n} = {e}",) * 6, *("{l}.append({e})",) * 2, *("{o} = {copy}",) * 3, "{l} += [{e}]", "{l}[0] = {e}",
    "{l}[-1] = {e}", "{l}.insert(0, {e})", "{n} = {l}.pop() if len({l}) > 1 else x", "{l}.reverse()", "{d}['q'] = {e}",
    "{d}['p'] = {e}", "{d}.pop('q', None)", "D = dict(d)", "D = d", "D = {{'p': a}}", "D = {{**d}}", "box.a = {e}",
    "box = Box({e})", "self.kept = {e}", "self.count += 1", "box.n += 1", "self.last = {any}", "{n}.add_(1)",
    "{v}.mul_(2)", "{l}[0].add_(1)", "{n}[0] = 5", "{n}[0] = c[0]", "put({l}, {e})", "{d}.update(q={e})",
    "box.a.add_(1)", "G['k'] += 1", "G['t'] = {e}", "a, b = b, a", "a = b = {e}", "a, *rest = {l}",
    "b = {d}.setdefault('q', {e})",
)  # fmt: skip
LOOPS = (
    "i in range(int(c[0]) % 3)",
    "i in range(2)",
    "t in list({l})",
    "i, t in enumerate([x, a])",
    "i in range(len(L))",
)
EARLY = ("L", "a", "(a, b)", "[L, M]", "D", "self.kept", "x")
ENDS = (
    "a, b", "L", "L, M", "D, a", "[a, L]", "box.a, a", "self.kept, a, x", "d, items",
    "a is b, a is x, L is M, len(L)", "{'l': L, 'b': b}", "(L[0], L[-1])", "items, a",
)  # fmt: skip
HEAD = """
class Box:
    def __init__(self, a): self.a, self.n = a, 0

def ident(v): return v
def pair(a, b): return a, b
def put(l, v):
    l.append(v)
    return l

G = STATE.globals = {'k': 0, 't': None}
STATE.kept = torch.ones(3)
"""
START = ("a = x", "b = y + 1", "t = x * 2", "L = [x, b]", "M = []", "M.append(y)", "D = {'p': b}", "box = Box(x)")


class _Held(Lines):
    def fill(self, choices: tuple[str, ...]) -> str:
        text = self.pick(choices)
        simple = {
            "k": self.rng.randrange(3), "v": self.pick(TENSORS), "w": self.pick(TENSORS), "n": self.pick(TENSORS[2:]),
            "l": self.pick(LISTS), "m": self.pick(LISTS), "o": self.pick(LISTS[:2]), "d": self.pick(DICTS),
            "any": self.pick((*TENSORS, *LISTS, *DICTS, "box")),
        }  # fmt: skip
        nested = {
            name: self.fill(of)
            for name, of in (("c", CONDITIONS), ("e", VALUES), ("copy", COPIES))
            if f"{{{name}}}" in text
        }
        return text.format(**simple, **nested)

    def statement(self, depth: int, in_loop: bool = False) -> bool:
        """One statement; whether others may follow."""
        nests = depth < 4 and self.budget > 0
        match self.rng.choices(("if", "for", "while", "leave", "return", "plain"), (28, 8, 4, 4, 4, 52))[0]:
            case "if" if nests:
                self.put(depth, f"if {self.fill(CONDITIONS)}:")
                self.inner(depth, in_loop)
                if self.chance(0.4):
                    self.put(depth, "else:")
                    self.inner(depth, in_loop)
            case "for" if nests:
                self.put(depth, f"for {self.fill(LOOPS)}:")
                self.inner(depth, True)
            case "while" if nests:
                name = f"n{len(self.lines)}"
                self.put(depth, f"{name} = 0", f"while {name} < c[1]:", f"    {name} += 1")
                self.inner(depth, True)
            case "leave" if in_loop:
                self.put(depth, self.pick(("break", "continue")))
                return False
            case "return" if depth > 1:
                self.put(depth, f"return {self.pick(EARLY)}")
                return False
            case _:
                self.put(depth, self.fill(STATEMENTS))
        return True

    def inner(self, depth: int, in_loop: bool) -> None:
        self.block(depth + 1, lambda at: self.statement(at, in_loop))


def held(seed: int, size: int = 0) -> Generated:
    """The program of this number with containers and objects that hold tensors."""
    lines = _Held(**vars(lines_for(seed, size)))
    lines.put(1, *START)
    while lines.budget > 0:
        lines.block(1, lines.statement)
    lines.put(1, f"return {lines.pick(ENDS)}")
    return generated(seed, HEAD + _GIVEN, "self, x, y, c, items, d", lines.lines, [_call(lines) for _ in range(5)])


_GIVEN = """
def given(x, c, are_shared):
    x = torch.tensor(x)
    y = x * 0 + torch.tensor([1.0, -1.0, 2.0])
    items, d = [x + 3, y * 2], {'p': x - 1}
    if are_shared:
        items.append(x)
        d['q'] = y
    return STATE, x, y, torch.tensor(c), items, d
"""


def _call(lines: Lines) -> str:
    x = lines.rng.choice(([1.0, 2.0, 3.0], [2.0, 0.0, 0.5], [-1.0, 2.0, 3.0], [3.0, 2.0, 3.0]))
    c = [float(lines.rng.randint(-1, 2)), float(lines.rng.randint(0, 2)), float(lines.rng.randint(-1, 2))]
    return f"given({x}, {c}, {x[2] == 0.5})"
