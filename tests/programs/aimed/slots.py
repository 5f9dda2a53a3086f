"""Objects with slots, dataclasses, named tuples, class attributes and properties, linked with each other and changed.

Why: what arms and turns change of an object is put back, merged and carried by its attributes, and each kind of object
keeps these elsewhere: in a dictionary, in slots, in both, in its class, behind a property, or as a tuple for good.
"""

from __future__ import annotations

from tests.programs.aimed.lines import Lines, generated, lines_for
from tests.programs.generate import Generated

TENSORS = ("x", "y", "a", "b")
CONDITIONS = (
    *("c[{k}] > 0", "c[{k}] > 0", "c.sum() > {k}", "{v}[0] > 1") * 2, "{o}.n > c[{k}]", "{o}.nx is None", "{o} is {u}",
    "hasattr({o}, 'extra')", "isinstance({o}, Leaf)", "{o}.val[0] > 1", "{o}.n < 2", "pair.n > {k}", "{o}.is_big",
    "float({o}.val[0]) > {k}", "{o}.nx is not None and {o}.nx.n > 0",
)  # fmt: skip
VALUES = (
    "{v}", "{v}", "{v} + 1", "{v} * 2", "{o}.val", "{o}.val + {o}.n", "{o}.total", "pair.val", "pair[0] + pair.n",
    "getattr({o}, 'extra', x)", "({v} if {c} else {o}.val)", "walk({o})", "{o}.bump().val", "{v}.clone()",
    "{o}.nx.val if {o}.nx is not None else {v}", "{v} * float({o}.n)", "ident({o}).val",
)  # fmt: skip
NUMBERS = ("{k}", "{o}.n + 1", "int(c[0])", "float(c[1])", "float({o}.val[0])", "pair.n", "bool(c[{k}] > 0)")
MADE = (
    "Node({e})", "Node({e}, {o})", "Leaf({e})", "Mixed({e}, {o})", "Part({e})", "Part({e}, {o}, {i})",
    "Data({e}, {o})", "Data(val={e}, n={i})", "copy.copy({o})", "{o}", "{o}", "{o}.nx or {o}",
)  # fmt: skip
STATEMENTS = (
    *("{n} = {e}",) * 4, *("{o}.val = {e}",) * 4, *("{o}.n += 1", "{o}.n = {i}", "{o}.nx = {u}", "{l} = {made}") * 2,
    "{o}.nx = {made}", "{o}.nx = None", "{o}.bump()", "{o}.bump({i})", "{o}.val.add_(1)", "{o}.val[0] = c[{k}]",
    "{o}.total = {k}", "setattr({o}, 'val', {e})", "p, q = q, p", "p = q", "{o}.val, {u}.val = {u}.val, {o}.val",
    "if isinstance({o}, (Leaf, Mixed)): {o}.extra = {e}", "if hasattr({o}, 'extra'): del {o}.extra",
    "pair = Pair({e}, {i})", "pair = pair._replace(n=pair.n + 1)", "pair = pair._replace(nx={o})", "a, n, _ = pair",
    "put({o}, {e})", "{n}.add_(1)", "parts.append({made})", "parts[0].n += 1", "parts[-1].val = {e}", "r = {o}",
)  # fmt: skip
# What else a program changes or reads: few do more than one kind, since much of it is no part of a graph.
MORE = {
    "s": ("s.n += 1", "s.val = {e}", "s.nx = {made}", "p = s", "m.n = {i}", "m.val = {e}", "q = m", "m.nx = {o}"),
    "read": ("a = s.val + s.n", "b = walk(s)", "a = s.total", "n = m.n", "a = m.val * 2", "q.nx = s", "p.n = s.n"),
    "STATE": ("STATE.kept = {made}", "STATE.last = {o}", "STATE.count += 1", "STATE.kept.val = {e}",
    "STATE.kept.n += 1",
              "a = STATE.last.val if STATE.last is not None else {e}", "b = STATE.kept.total", "p = STATE.kept"),
    "Cls": ("Cls.count += 1", "Cls.kept = {e}", "Cls.table['k'] = {e}", "b = x * Cls.count", "a = Cls.kept",
    "p.val = Cls.kept"),
    "G": ("G.append({o}) if len(G) < 3 else G.pop()", "G.append({made}) if len(G) < 3 else None",
    "p = G[-1] if G else p",
          "a = G[0].val if G else a"),
    "items": ("items.append({made})", "items[0].n += 1", "items[-1].val = {e}", "p = items[0]", "parts = items"),
}  # fmt: skip
LOOPS = ("i in range(int(c[0]) % 3)", "i in range(2)", "t in parts[:2]", "t in (p, q)", "i in range(p.n % 3)")
ENDS = (
    "p", "(p, q)", "s.val, p.n", "pair", "[p, r, pair]", "p is q, p.nx is r, a", "parts", "q.val, a", "a, b",
    "{{'p': p, 'a': a}}", "p.nx, m", "walk(p), walk(q)", "r.total, r.n", "parts[-1].val, b", "x", "q.bump(), a",
    "Part(a, pair, p.n)", "pair._replace(val=b)", "p, s",
)  # fmt: skip
HEAD = """
import collections
import copy
import dataclasses
from typing import Any, NamedTuple

class Common:
    __slots__ = ()
    def bump(self, k=1):
        self.n += k
        return self
    @property
    def total(self): return self.val * 2 + self.n
    @total.setter
    def total(self, v): self.val = self.val * 0 + v
    @property
    def is_big(self): return self.val.sum() > 6

class Node(Common):
    __slots__ = ('val', 'nx', 'n')
    def __init__(self, val, nx=None): self.val, self.nx, self.n = val, nx, 0

class Leaf(Node): __slots__ = 'extra'
class Mixed(Node): pass

@dataclasses.dataclass(slots=True, eq=False)
class Part(Common):
    val: Any
    nx: Any = None
    n: int = 0

@dataclasses.dataclass(eq=False)
class Data(Common):
    val: Any
    nx: Any = None
    n: int = 0
    parts: list = dataclasses.field(default_factory=list)

class Pair(NamedTuple):
    val: Any
    n: int
    nx: Any = None

class Cls: count, kept, table = 1, torch.ones(3), {}

def ident(o): return o
def put(o, v): o.val = v
def walk(o):
    total, turns = o.val, 0
    while o.nx is not None and turns < 3:
        o, turns = o.nx, turns + 1
        total = total + o.val * turns
    return total

G = STATE.globals = []
STATE.kept = Mixed(torch.ones(3))
def ask(): return Cls.count, Cls.kept, Cls.table
STATE.ask = ask

def given(kind, x, c, is_shared):
    x = torch.tensor(x)
    s = kind(x if is_shared else x + 1)
    m = Data(x - 1, s if is_shared else None)
    return x, x * 2 - 1, torch.tensor(c), s, m, [kind(x * 3), s]
"""
START = ("a, b = x + 2, y", "p = Node(x)", "q = Part(b, p)", "r = Leaf(y, q)", "pair = Pair(a, 1)",
         "parts = [p, Mixed(x)]")  # fmt: skip


class _Slots(Lines):
    more: tuple[str, ...] = ()

    def fill(self, choices: tuple[str, ...]) -> str:
        text = self.pick(choices)
        simple = {
            "k": self.rng.randrange(3), "v": self.pick(TENSORS), "n": self.pick(TENSORS[2:]), "o": self.pick("pqr"),
            "u": self.pick("pqr"), "l": self.pick("pq"),
        }  # fmt: skip
        kinds = {"c": CONDITIONS, "e": VALUES, "i": NUMBERS, "made": MADE}
        return text.format(**simple, **{k: self.fill(of) for k, of in kinds.items() if f"{{{k}}}" in text})

    def statement(self, depth: int, in_loop: bool = False) -> bool:
        """One statement; whether others may follow."""
        kind = self.rng.choices(("if", "for", "while", "walk", "leave", "plain"), (26, 7, 5, 3, 4, 55))[0]
        if kind == "leave" and depth > 1:
            self.put(depth, self.pick(("break", "continue")) if in_loop else f"return {self.fill(ENDS)}")
            return False
        if kind in ("plain", "leave") or depth > 3 or self.budget <= 0:
            self.put(depth, self.fill(self.more if self.more and self.chance(0.25) else STATEMENTS))
            return True
        n = f"n{len(self.lines)}"
        if kind == "if":
            self.put(depth, f"if {self.fill(CONDITIONS)}:")
        elif kind == "for":
            self.put(depth, f"for {self.fill(LOOPS)}:")
        else:
            head = f"while {n} < c[1]:" if kind == "while" else f"while {n} < 3 and {self.fill(CONDITIONS)}:"
            self.put(depth, f"{n} = 0", head, f"    {n} += 1")
        self.block(depth + 1, lambda at: self.statement(at, in_loop or kind != "if"))
        if kind == "if" and self.chance(0.4):
            self.put(depth, "else:")
            self.block(depth + 1, lambda at: self.statement(at, in_loop))
        return True


def slots(seed: int, size: int = 0) -> Generated:
    """The program of this number with objects of all kinds."""
    lines = _Slots(**vars(lines_for(seed, size)))
    lines.put(1, *START)
    lines.more = MORE[lines.pick(sorted(MORE))] if lines.chance(0.6) else ()
    while lines.budget > 0:
        lines.block(1, lines.statement)
    lines.put(1, f"return {lines.fill(ENDS)}")
    kind = lines.pick(("Node", "Leaf", "Mixed", "Part"))
    return generated(seed, HEAD, "x, y, c, s, m, items", lines.lines, [_call(lines, kind, n) for n in range(5)])


def _call(lines: Lines, kind: str, number: int) -> str:
    x = lines.rng.choice(([1.0, 2.0, 3.0], [2.0, 0.0, 0.5], [-1.0, 2.0, 3.0], [3.0, 2.0, 3.0]))
    c = [float(lines.rng.randint(-1, 2)), float(lines.rng.randint(0, 2)), float(lines.rng.randint(-1, 2))]
    return f"given({kind}, {x}, {c}, {number % 3 == 2})"
