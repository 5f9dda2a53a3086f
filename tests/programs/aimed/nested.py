"""Python containers in containers, of numbers or tensors, picked by anything and changed in any way where they stand.

Why: a container of a graph is a value, and one in another is a copy of what it was; whoever changes it through one of
its holders, or hands it out beside them, must find the one object that eager has.
"""

from __future__ import annotations

from tests.programs.aimed.lines import Lines, generated, lines_for
from tests.programs.generate import Generated

INTS = ("0", "1", "-1", "k", "len(x)", "i", "i + 1", "int(x.sum() > 0)", "int(c[{k}])", "len({row})", "{k}")
FLOATS = ("0.5", "-1.0", "vals[i % 3]", "x[{k}].item()", "float(c[{k}])", "c[1].item() * 2", "num(x)")
TENSORS = ("x", "x * 2", "x + {k}", "t", "x[{k}]", "x[i % 3]", "c.clone()", "torch.ones(2)", "x.sum()", "t + i")
INSIDE = ("{row}[0]", "{row}[-1]", "{row}[{j}]", "{row}[0] + 1", "max({row}, key=num)", "{rec}['n']", "{rec}['s']")
# What picks one of three, or of more, and one of two.
PLACES = (
    *("0", "1", "-1", "i % 3", "i % 2", "int(x[{k}] > 0)", "int(c[0]) % 3", "int(x.sum() > 0)", "k % 3", "k") * 2,
    "len(x) % 3", "x.shape[0] % 2", "(i + 1) % 3", "-2", "1 - k % 2", "int(vals[i % 3] > 0)", "(i + k) % 3",
)  # fmt: skip
HALVES = ("0", "1", "-1", "i % 2", "int(x[{k}] > 0)", "k % 2", "len(x) % 2", "1 - k % 2")
KEYS = ("'a'", "'b'", "'c'", "('a' if x[{k}] > 0 else 'b')", "key", "'abc'[{p}]", "('b' if k else 'c')", "KEYS[i % 3]")
ROWS = ("{g}[{p}]", "{g}[{p}]", "{g}[{p}]", "d[{key}]", "d[{key}]", "r", "r", "pair[{j}]", "deep['m'][{p}]", "q")
CONDITIONS = (
    *("x[{k}] > 0", "c[{k}] > 0", "x.sum() > {k}", "int(c[0]) == 1", "vals[i % 3] > 0") * 2, "len({row}) > {k}",
    "k > 0",
    "{g} is {h}", "{row} is r", "{row}", "num({row}[0]) > 1", "{key} in d", "len({g}) > 3", "i % 2 == 0", "k % 2 == 1",
    "len(x) > 4", "num({rec}['n']) > 0", "not {row}", "r is q",
)  # fmt: skip
MADE_ROWS = ("[{v}]", "[{v}, {v}]", "[]", "{row}", "{row}", "{row}[:]", "list({row})", "[e for e in {row} if {c}]",
             "ident({row})", "({row} if {c} else {row})", "max({g}, key=len)", "{row} + [{v}]", "min({g}, key=len)",
             "[e for e in {row}]", "d.setdefault({key}, [{v}])", "next(o for o in {g} if len(o) >= 0)")  # fmt: skip
MADE = (
    "[o for o in {g}]", "list({g})", "{g}[:]", "[o[:] for o in {g}]", "[*{g}, {made}]", "sorted({g}, key=len)",
    "[o for i, o in enumerate({g})]", "{g}[::-1]", "copy.deepcopy({g})", "{g}", "[{row}, {row}, {made}]",
    "[d['a'], d['b'], {made}]", "[{made}] * 3", "[o if {c} else r for o in {g}]", "[[v for v in o] for o in {g}]",
    "list(d.values())", "[{made} for _ in range(3)]", "[a for a, b in zip({g}, {h})] + [{row}] * 3",
    "[o for o in {g} if {c}] + [{row}, r, q]", "[o for o in {g} if len(o) > k] + [{row}, {row}, {row}]",
)  # fmt: skip
CHANGES = (
    *("{row}.append({v})",) * 5, *("{row} += [{v}]", "{row}.extend([{v}])", "push({row}, {v})", "r = {made}") * 2,
    "{row}.insert(0, {v})", "{row}.reverse()", "{row}.pop() if len({row}) > {few} else None", "q = {made}",
    "if len({row}) > {few}: del {row}[0]", "{row}[:1] = [{v}, {v}]", "{row}.sort(key=num)", "r, q = q, r",
    "{row}.extend({row}[:2])", "put({g}, {p}, {v})", "{row}[1:] = [{v}]",
    "v = {row}.pop(0) if len({row}) > {few} else 0",
    "r = {row}; r.append({v})", "{row}.clear() if len({row}) > 6 else {row}.append({v})", "pair = ({made}, {row})",
    "{rec}['n'] = {v}", "{rec}.update(s={v})", "{rec}.setdefault('z', {v})", "rec = {rec}",
    "rec = {{'n': {v}, 's': {v}}}",
    "k = int(c[{k}]) % 3", "k = len({row}) % 3", "key = {key}", "t = x * {k}", "k = (k + 1) % 3", "x = x + 1",
    "{rec}['n'] = {rec}['s']", "print(len({row}))",
)  # fmt: skip
# Those of rows with two elements or more.
IN_PLACE = (
    "{row}[{j}] = {v}", "{row}[{j}] += 1", "{row}[0] = {v}", "{row}[-1] += {v}",
    "{row}[0], {row}[1] = {row}[1], {row}[0]",
            "{row}[{j}], {row}[{j}] = {row}[{j}], {row}[{j}]", "v = {row}[{j}]", "{rec}['n'] += 1",
            "{row}[0] = {row}[1]",
            "{row}[{j}] = max({row}[0], {row}[1], key=num)",
)  # fmt: skip
ON_TENSORS = ("{row}[0].add_(1)", "{row}[-1].mul_(2)", "{rec}['s'].add_(1)", "r.append(torch.stack([t.sum()] * 2))")
OUTER = (
    *("{g}.append({made})",) * 5, *("{g}[{p}] = {made}", "d[{key}] = {made}", "{h} = {outer}") * 3,
    "{g} += [{made}]", "{g}.insert(0, {made})", "{g}.pop() if len({g}) > 3 else None", "{g}.reverse()", "{h} = {g}",
    "{g}.sort(key=len)", "{g}[{p}], {h}[{p}] = {h}[{p}], {g}[{p}]", "d.update(a={made})", "d.update({{{key}: {made}}})",
    "{g}[:1] = [{made}]", "if len({g}) > 3: del {g}[0]", "deep['m'] = {outer}", "deep = {{'m': {g}, 'n': d}}",
    "recs.append({rec}) if len(recs) < 6 else None", "recs[{p}] = {{'n': {v}, 's': {v}}}", "recs = [o for o in recs]",
    "r = {g}.pop() if len({g}) > 3 else r", "d = dict(d)", "r = d.pop('z', r)", "d['z'] = {made}",
    "{g}.extend([r, {row}])",
    "a, *rest = {g}", "recs = sorted(recs, key=lambda o: num(o['n']))", "r, {g}[{p}] = {row}, {row}",
    "r = [{v}]; {g}.append(r)",
)  # fmt: skip
# What else a program changes or reads: few do more than one kind.
MORE = {
    "arg": ("g = ga", "ga[{p}].append({v})", "d = da", "da[{key}].append({v})", "r = ga[{p}]", "ga.append({made})",
            "da[{key}] = {made}", "h = ga", "recs = ra", "ra[{p}]['n'] = {v}", "rec = ra[{p}]", "push(ga[{p}], {v})"),
    "state": ("g = self.bank", "self.bank[{p}].append({v})", "r = self.bank[{p}]",
    "self.bank.append({made}) if len(self.bank) < 6 else None",
              "self.parts[{key}].append({v})", "self.parts[{key}] = {made}", "h = self.bank", "self.last = {made}",
              "self.last = {g}",
              "self.count += 1", "d = self.parts", "self.bank[{p}] = {made}"),
    "global": ("g = G", "G[{p}].append({v})", "r = G[{p}]", "G[{p}] = {made}", "h = G",
    "G.append(r) if len(G) < 6 else None",
               "D[{key}].append({v})", "d = D", "self.last = r"),
}  # fmt: skip
LOOPS = (
    *("i in range(3)", "i in range(2)", "i in range(len(x))", "i, v in enumerate(x)",
    "v in x") * 2, "i in range(int(c[1]) % 3)",
    "i in range(len(x) - 1)", "i, (r, q) in enumerate(zip(list({g}), list({h})))", "r in list({g})",
    "i, r in enumerate(list({g}))",
    "key in list(d)", "key, r in list(d.items())", "k in (0, 2, 1)", "i in range(len({g}))", "r in {g}", "q in {g}",
    "i, q in enumerate({g})",
    "rec in recs", "r in d.values()", "key, q in d.items()", "v in {row}[:3]", "i in reversed(range(3))",
    "r in [o for o in {g} if {c}]",
    "i in range(12)", "i in range(20)", "i in range(16)", "q in filter(len, list({g}))", "r in sorted({g}, key=len)",
    "r in pair",
)  # fmt: skip
ENDS = (
    "g", "g", "g, h", "{row}", "r, g", "g, r, q", "[g, r, d]", "d, ga", "d", "g is h, r is q, r is g[0], len(g)",
    "(g[0], g[-1])",
    "{{'g': g, 'r': r}}", "[len(o) for o in g]", "[num(v) for o in g for v in o]", "g, self.bank", "rec, recs",
    "deep, g", "recs",
    "x * num((r or [1])[0])", "x * len(r)", "[o for o in g if len(o) > 1], g", "[r, [r, q]]", "pair, h", "t, g",
    "self.last, r, q",
    "d['a'], d", "d[{key}]", "[e for o in h for e in o]", "h[::-1], g", "g[0] is r, len(r), x", "k, r",
    "(r, q), deep", "{outer}", "x",
    "sum(len(o) for o in g) * x", "[o is r for o in g], [o is q for o in h]", "max(g, key=len)", "tuple(g)",
)  # fmt: skip
FIRST = (
    "[[{v}, {v}], [{v}, {v}], [{v}, {v}]]", "[[{v}] * 3 for _ in range(3)]", "[[{v}, {v}]] * 3", "[r, r, q]",
    "[r, [{v}, {v}], r]",
    "[[{v}, {v}] for _ in range(len(x))]", "[[{v}, {v}] for _ in x]", "[o[:] for o in ga]", "list(ga)",
    "[list(o) for o in ga]",
)  # fmt: skip
EMPTY = (
    "[[], [], []]", "[[] for _ in range(3)]", "[[]] * 3", "[[] for _ in range(len(x))]", "[r, r, []]", "[[], r, q]",
    "[[] for _ in x]",
)  # fmt: skip
OUTSIDE = {
    "arg": ("ga", "ga", "[*ga]"), "state": ("self.bank", "self.bank", "[*self.bank]"), "global": ("G", "G", "[*G]"),
}  # fmt: skip
HEAD = """
import copy

KEYS = ('a', 'b', 'c')

def num(v): return float(v.sum()) if isinstance(v, torch.Tensor) else float(v)
def ident(v): return v
def put(g, i, v): g[i].append(v)
def push(l, v):
    l.append(v)
    return l

ONE = {one}
G = STATE.globals = [[ONE, ONE], [ONE + 1, ONE], [ONE, ONE - 1]]
D = STATE.dict = {{'a': [ONE, ONE], 'b': G[0], 'c': [ONE]}}
STATE.bank = [[ONE, ONE + 1], [ONE, ONE], [ONE, ONE + 2]]
STATE.parts = {{'a': [ONE, ONE], 'b': [ONE], 'c': STATE.bank[0]}}

def given(x, c, is_shared):
    one = ONE * 1
    ga = [[one, one + 2], [one, one], [one + 1, one]]
    da = {{'a': [one, one], 'b': [one + 1, one], 'c': [one, one]}}
    if is_shared:
        ga[1], da['a'] = ga[0], ga[2]
    ra = [{{'n': one, 's': one + 1}} for _ in range(3)]
    return STATE, torch.tensor(x), torch.tensor(c), ga, da, ra
"""
# Loops that are as long as containers are, or long: what is in their bodies adds nothing to outer containers.
LONG = (
    "g", "h", "d.", "recs", "list(", "[o", "enumerate(", "zip(", "sorted(", "filter(", "range(len(g", "range(len(h",
    "range(1", "range(20",
)  # fmt: skip
KINDS = {"int": ("0", INTS), "float": ("0.5", FLOATS), "tensor": ("torch.ones(2)", TENSORS)}


class _Nested(Lines):
    values: tuple[str, ...] = ()
    inner_ones: tuple[str, ...] = ()
    outer_ones: tuple[str, ...] = ()
    rows: tuple[str, ...] = ROWS
    few = 0

    def fill(self, choices: tuple[str, ...], depth: int = 0) -> str:
        text = self.pick(choices)
        values = self.values if depth > 2 or not self.few else (*self.values, *INSIDE)
        flat = ("r", "q", "{g}[{p}]")
        kinds = {
            "v": values, "p": PLACES if depth < 4 else ("0", "1"), "j": HALVES,
            "key": KEYS if depth < 4 else ("'a'", "'b'"),
            "c": CONDITIONS if depth < 3 else ("x[0] > 0", "k > 0"), "row": self.rows if depth < 4 else flat,
            "made": MADE_ROWS if depth < 3 else flat, "outer": MADE, "rec": ("recs[{p}]", "recs[{p}]", "rec"),
        }  # fmt: skip
        for name, of in kinds.items():
            while f"{{{name}}}" in text:
                text = text.replace(f"{{{name}}}", self.escaped(self.fill(of, depth + 1)), 1)
        g, h = self.pick(("g", "g", "h")), self.pick(("h", "h", "g"))
        return text.format(k=self.rng.randrange(3), g=g, h=h, few=self.few)

    def escaped(self, text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}")

    def statement(self, depth: int, in_loop: bool = False, may_grow: bool = True) -> bool:
        """One statement; whether others may follow. may_grow: outer containers may be changed, too."""
        nests = depth < 4 and self.budget > 0
        match self.rng.choices(("if", "for", "while", "leave", "return", "plain"), (20, 14, 4, 3, 3, 56))[0]:
            case "if" if nests:
                self.put(depth, f"if {self.fill(CONDITIONS)}:")
                self.inner(depth, in_loop, may_grow)
                if self.chance(0.4):
                    self.put(depth, "else:")
                    self.inner(depth, in_loop, may_grow)
            case "for" if nests:
                head = self.fill(LOOPS)
                if in_loop and head.endswith(("(12)", "(16)", "(20)")):
                    head = "i in range(3)"
                self.put(depth, f"for {head}:")
                over = head.split(" in ", 1)[1]
                self.inner(depth, True, may_grow and not over.startswith(LONG))
            case "while" if nests:
                name = f"n{len(self.lines)}"
                bound = self.pick(("c[1]", "len(x)", "min(k + 1, 4)"))
                self.put(depth, f"{name} = 0", f"while {name} < {bound}:", f"    {name} += 1")
                self.inner(depth, True, may_grow)
            case "leave" if in_loop:
                self.put(depth, self.pick(("break", "continue")))
                return False
            case "return" if depth > 1:
                self.put(depth, f"return {self.fill(ENDS)}")
                return False
            case _:
                self.put(depth, self.fill((*self.inner_ones, *self.outer_ones) if may_grow else self.inner_ones))
        return True

    def inner(self, depth: int, in_loop: bool, may_grow: bool) -> None:
        self.block(depth + 1, lambda at: self.statement(at, in_loop, may_grow))


def nested(seed: int, size: int = 0) -> Generated:
    """The program of this number with containers in containers."""
    lines = _Nested(**vars(lines_for(seed, size)))
    rng = lines.rng
    kind = rng.choice(("int", "int", "float", "tensor", "tensor"))
    one, lines.values = KINDS[kind]
    is_empty, more = rng.random() < 0.3, rng.choice((None, None, "arg", "state", "global"))
    _start(lines, is_empty, more)
    lines.rows, lines.few = ROWS, 0 if is_empty else 2
    # Few kinds of statements in each: a program meets with itself then.
    of_two = () if is_empty else (*IN_PLACE * 2, *(ON_TENSORS if kind == "tensor" else ()))
    lines.inner_ones = tuple(rng.sample((*CHANGES, *of_two), rng.choice((5, 8, 12))))
    lines.outer_ones = (*rng.sample(OUTER, rng.choice((1, 2, 4, 8))), *(rng.sample(MORE[more], 4) if more else ()))
    while lines.budget > 0:
        lines.block(1, lines.statement)
    lines.put(1, f"return {lines.fill(ENDS)}")
    is_fixed = rng.random() < 0.5
    calls = [_call(lines, is_fixed) for _ in range(5)]
    return generated(seed, HEAD.format(one=one), "self, x, c, ga, da, ra", lines.lines, calls)


def _start(lines: _Nested, is_empty: bool, more: str | None) -> None:
    """The containers that a program begins with. is_empty: those in others are; more: what else may be one of them."""
    lines.put(1, "i, k, key, t, vals, v = 0, int(c[0]) % 3, 'a', x * 2, x.tolist(), 1", "r, q = [ONE, ONE], [ONE]")
    lines.rows = ("r", "q")
    lines.put(1, "r, q = [], []" if is_empty else lines.fill(("r, q = [{v}, {v}], [{v}, {v}]",)))
    first = EMPTY if is_empty else (*FIRST, *(OUTSIDE[more] * 4 if more else ()))
    lines.put(1, f"g = {lines.fill(first)}", f"h = {lines.fill((*first, 'g', 'g', 'g[:]'))}")
    lines.rows = ("{g}[{p}]", "r", "q")
    items = "[]" if is_empty else "[{v}, {v}]"
    of_dicts = (f"d = {{{{'a': {items}, 'b': {{row}}, 'c': {items}}}}}", f"d = {{{{o: {items} for o in KEYS}}}}")
    lines.put(1, lines.fill(of_dicts))
    lines.put(1, lines.fill(("pair = ({row}, {row})", f"pair = ({items}, {{row}})")))
    lines.put(1, lines.fill(("deep = {{'m': {g}, 'n': d}}", "deep = {{'m': {h}}}")))
    record = "{{'n': {v}, 's': {v}}}"
    lines.put(1, lines.fill((f"recs = [{record} for _ in range(3)]", f"recs = [{record}, {record}, {record}]")))
    lines.put(1, "rec = recs[0]")


def _call(lines: Lines, is_fixed: bool) -> str:
    rng = lines.rng
    x = [float(rng.choice((-2, -1, 0.5, 1, 2, 3))) for _ in range(4 if is_fixed else rng.choice((3, 4, 5, 6, 9)))]
    c = [float(rng.randint(0, 2)), float(rng.randint(0, 2)), float(rng.randint(-1, 2))]
    return f"given({x}, {c}, {rng.random() < 0.3})"
