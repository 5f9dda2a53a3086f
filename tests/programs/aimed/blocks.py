"""Blocks that are left by errors, early returns and generators: `with`, `try`, `yield`, and the errors themselves.

Why: what stands at the end of a block is done on each way out of it, what a generator has not done yet is done when
somebody asks, and an error is an object that carries tensors and lists and is changed like any other.
"""

from __future__ import annotations

from tests.programs.aimed.lines import Lines, generated, lines_for
from tests.programs.generate import Generated

TENSORS = ("x", "y", "a", "b", "t")
LISTS = ("L", "M")
CONDITIONS = (
    *("c[{k}] > 0", "c.sum() > {k}", "{v}[0] > 1", "{v}.sum() > {k}", "c[{k}] == 1") * 2, "len({l}) > {k}",
    "kept is None", "error.n > c[{k}]", "len(error.args) > 1", "{v}[0] < c[1]", "isinstance(kept, Small)",
)  # fmt: skip
VALUES = (
    "{v}", "{v}", "{v} + 1", "{v} * 2", "{l}[-1]", "next(g, {v})", "next(h, {v})", "sum(upto({v}, {k}))",
    "check({v}, {k}, x)", "tried({v}, {k})", "sum(each({l}))", "error.held", "kept.held if kept is not None else {v}",
    "held_in({v}, {l})", "({v} if {c} else {w})", "max((e for e in {l}), key=lambda e: e.sum())", "{v} * error.n",
    "{v} + len({l})", "early({v}, {l})",
)  # fmt: skip
STATEMENTS = (
    *("{n} = {e}",) * 5, *("{l}.append({e})",) * 3, "{n}.add_(1)", "{l}.extend(h)", "M = list(each({l}))",
    "h = each({l})", "h = outer({v}, {l})", "g = upto({v}, {k})", "g = ({w} + e for e in each({l}))",
    "{l}.extend(upto({v}, 2))", "M = [*{l}, *outer({v}, {l})]", "error.n += 1", "error.held = {e}",
    "error.items.append({e})", "kept = error", "kept = error", "error.args += ({k},)", "error.args = ('q', {v})",
    "error = Small('s{k}', {e})", "STATE.last = kept", "STATE.count += 1", "error.__cause__ = kept",
    "a, *rest = outer({v}, {l})", "STATE.log.append({k})", "for t in {l}[:2]: {n} = {n} + t", "D['k'] = [*each({l})]",
    "totals.send({k})",
)  # fmt: skip
MANAGERS = (
    "Note({l}, {v})", "Note({l}, {v}, True)", "Note({l}, {v}, {c})", "noted({l}, {v})", "noted({l}, {v}) as M",
    "contextlib.suppress(Problem)", "contextlib.suppress(Small, ValueError)", "contextlib.nullcontext({e}) as t",
    "torch.no_grad()", "noted({l}, {v}), Note(M, {w})", "contextlib.suppress(Problem), noted({l}, {v})", "kept_note",
)  # fmt: skip
RAISES = (
    "raise Problem('p{k}', {e})", "raise Small('s{k}', {e})", "raise ValueError({k})", "a = check({v}, {k})",
    "raise error", "raise Small('f{k}') from error", "raise Problem({k}, {l})", "assert {c}, 'n{k}'",
    "b = late({v}, {k})",
)  # fmt: skip
HANDLED = (
    "a = e.held if e.held is not None else x", "e.n += 1", "e.args += ({k},)", "kept = e", "error = e",
    "L.append({v})", "e.items.append({v})", "e.held = {v} * 2", "b = b * len(e.args)", "kept = Small('h', {v})",
    "D['e'] = e",
)  # fmt: skip
CAUGHT = (
    "Problem as e", "Problem as e", "Problem as e", "(Small, LookupError) as e", "Exception",
    "(ValueError, AssertionError)",
)  # fmt: skip
LOOPS = (
    "t in each({l})", "t in upto({v}, 2)", "i in range(int(c[0]) % 3)", "t in outer({v}, {l})", "t in g",
    "i in range(2)",
)  # fmt: skip
ENDS = (
    "a, b", "a, L", "L, M", "error, a", "kept, a", "list(g), a", "M, *each(L)", "error.args, error.n, b", "D, a",
    "g, a", "[e for e in h], L", "kept_note.n, a", "kept is error, error.items", "x", "error.held, L",
    "totals.send(1), a",
)  # fmt: skip
HEAD = """
import contextlib

class Problem(Exception):
    def __init__(self, what, held=None):
        super().__init__(what)
        self.held, self.items, self.n = held, [], 0

class Small(Problem): pass

class Note:
    def __init__(self, items, v, hides=False): self.items, self.v, self.hides, self.n = items, v, hides, 0
    def __enter__(self):
        self.items.append(self.v)
        return self
    def __exit__(self, kind, error, where):
        self.items.append(self.v + self.n)
        self.n += 1
        if isinstance(error, Problem): error.n += 1
        return self.hides and isinstance(error, (Problem, ValueError, AssertionError))

@contextlib.contextmanager
def noted(items, v):
    items.append(v)
    try: yield items
    except Small: items.append(v * 2)
    finally: items.append(v + 1)

def each(items):
    for i, v in enumerate(items):
        if i > 4: return
        yield v + i

def upto(v, k):
    n = 0
    while n < k + 1 and v.sum() > n:
        n += 1
        yield v + n

def outer(v, items):
    yield v
    yield from each(list(items))
    yield v * 2

def sums():
    total = 0
    while True: total += (yield total) or 0

def check(v, k, other=None):
    if v.sum() > k + 3:
        if other is not None: return other
        raise Problem('big', v)
    return v

def late(v, k):
    for part in upto(v, k):
        if part[0] > 2: raise Small('late', part)
    return v

def tried(v, k):
    try: return check(v, k) + 1
    except Problem as e: return e.held - 1
    finally: NOTES.append(k) if len(NOTES) < 2 else None

def held_in(v, items):
    with noted(items, v) as inner:
        if v[0] > 1: return inner[-1] * 2
        inner.append(v)
    return v

def early(v, items):
    for t in each(items):
        if t[0] > v[0]: return t
    return v

NOTES = STATE.globals = []

def given(x, c):
    x = torch.tensor(x)
    return x, x * 2 - 1, torch.tensor(c)
"""
START = (
    "a, b, t = x + 2, y, x", "L, M, D = [x, b], [y], {}", "error, kept = Problem('start', x), None", "totals = sums()",
    "next(totals)", "g, h = upto(x, 1), each(L)", "kept_note = Note(M, x)",
)  # fmt: skip


class _Blocks(Lines):
    def fill(self, choices: tuple[str, ...]) -> str:
        text = self.pick(choices)
        simple = {
            "k": self.rng.randrange(3), "v": self.pick(TENSORS), "w": self.pick(TENSORS), "n": self.pick(TENSORS[2:]),
            "l": self.pick(LISTS),
        }  # fmt: skip
        nested = {name: self.fill(of) for name, of in (("c", CONDITIONS), ("e", VALUES)) if f"{{{name}}}" in text}
        return text.format(**simple, **nested)

    def statement(self, depth: int, catches: bool = False, in_loop: bool = False) -> bool:
        """One statement; whether others may follow. catches: whether somebody around it does."""
        kinds = ("if", "for", "while", "with", "try", "leave", "raise", "plain")
        kind = self.rng.choices(kinds, (20, 7, 3, 14, 14, 4, 14 if catches else 1, 40))[0]
        if kind == "leave" and depth > 1:
            self.put(depth, self.pick(("break", "continue")) if in_loop else f"return {self.fill(ENDS)}")
            return False
        if kind == "raise":
            # Most are under a question, so that what follows them is met, too.
            self.put(depth, f"if {self.fill(CONDITIONS)}: {self.fill(RAISES)}")
        elif kind in ("plain", "leave") or depth > 4 or self.budget <= 0:
            self.put(depth, self.fill(STATEMENTS))
        elif kind == "try":
            self.tried(depth, catches, in_loop)
        else:
            n, manager = f"n{len(self.lines)}", self.fill(MANAGERS)
            if kind == "while":
                self.put(depth, f"{n} = 0")
            heads = {
                "if": f"if {self.fill(CONDITIONS)}:", "for": f"for {self.fill(LOOPS)}:", "with": f"with {manager}:",
                "while": f"while {n} < c[1]:",
            }  # fmt: skip
            self.put(depth, heads[kind], *((f"    {n} += 1",) if kind == "while" else ()))
            hides = kind == "with" and ("suppress(Problem)" in manager or "True" in manager)
            self.inner(depth, catches or hides, in_loop or kind in ("for", "while"))
        return True

    def inner(self, depth: int, catches: bool, in_loop: bool) -> None:
        self.block(depth + 1, lambda at: self.statement(at, catches, in_loop))

    def tried(self, depth: int, catches: bool, in_loop: bool) -> None:
        """A `try` with what it needs to let few errors out."""
        self.put(depth, "try:")
        self.inner(depth, True, in_loop)
        caught = self.pick(CAUGHT)
        self.put(depth, f"except {caught}:")
        self.put(depth + 1, self.fill(HANDLED if "Problem as" in caught else STATEMENTS))
        if "Exception" not in caught and self.chance(0.8):
            self.put(depth, "except Exception:", "    " + self.fill(STATEMENTS))
        for word, chance in (("else", 0.2), ("finally", 0.3)):
            if self.chance(chance):
                self.put(depth, f"{word}:")
                self.put(depth + 1, self.fill(STATEMENTS))


def blocks(seed: int, size: int = 0) -> Generated:
    """The program of this number with blocks, generators and errors."""
    lines = _Blocks(**vars(lines_for(seed, size)))
    lines.put(1, *START)
    while lines.budget > 0:
        lines.block(1, lines.statement)
    lines.put(1, f"return {lines.fill(ENDS)}")
    return generated(seed, HEAD, "x, y, c", lines.lines, [_call(lines) for _ in range(5)])


def _call(lines: Lines) -> str:
    x = lines.rng.choice(([1.0, 2.0, 3.0], [2.0, 0.0, 0.5], [-1.0, 2.0, 3.0], [3.0, 2.0, 3.0], [-1.0, -2.0, 0.0]))
    c = [float(lines.rng.randint(-1, 2)), float(lines.rng.randint(0, 2)), float(lines.rng.randint(-1, 2))]
    return f"given({x}, {c})"
