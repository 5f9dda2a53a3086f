"""More constructs for random programs: narrow and mixed dtypes, errors that are caught, functions of a module that
call each other, objects, generators, views by every name, writes by index, empty tensors, nested loops.

Invariant: as in `generate`, what decides a way is exact in any order of computation; mixed dtypes are only returned.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

from tests.programs.generate import (
    DOUBLE,
    FLOAT,
    LONG,
    UNKNOWN,
    VECTOR,
    Generated,
    Kind,
    Writer,
    _Place,
    generate,
    tensor,
)
from tests.programs.wide_tables import (
    BOX,
    ERRORS,
    EXPRESSIONS,
    MATRIX,
    OPAQUE,
    PARTS,
    POINT,
    PRELUDE,
    RISKS,
    SCALAR,
    SHORT,
    TRIPLE,
    WRITES,
)


class Wide(Writer):
    """Writes one program with these constructs, too."""

    parts = PARTS
    holes: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {}
    expressions: ClassVar[dict[Any, dict[str, tuple[str, ...]]]] = EXPRESSIONS

    def fill(self, template: str, depth: int = 1, **more: str) -> str:
        """The template with an expression in each place."""
        holes: dict[str, Any] = {
            "{v}": lambda: self.tensor(FLOAT, (4,), depth),
            "{m}": lambda: self.tensor(FLOAT, (3, 4), depth),
            "{t}": lambda: self.tensor(FLOAT, (3,), depth),
            "{s}": lambda: self.tensor(FLOAT, (), depth),
            "{k}": lambda: self.tensor(LONG, (4,), depth),
            "{b}": lambda: self.tensor("bool", (4,), depth),
            "{j}": lambda: self.tensor(LONG, (), depth),
            "{d}": lambda: self.tensor(DOUBLE, (4, 3), depth),
            "{u}": lambda: self.tensor(FLOAT, UNKNOWN, depth),
            "{i}": lambda: self.int(depth),
            "{f}": lambda: self.float(depth),
            "{q}": lambda: self.test(depth),
            "{c}": lambda: str(self.rng.randint(0, 3)),
        }
        holes |= {hole: functools.partial(self.tensor, *kind, depth) for hole, kind in self.holes.items()}
        text, at = "", 0
        while at < len(template):
            hole = template[at : at + 3]
            if hole in holes:
                made = holes[hole]()
                text += made if made.isidentifier() or made.isdigit() else f"({made})"
                at += 3
            elif hole[:2] in ("{{", "}}"):
                text, at = text + hole[0], at + 2
            elif hole[0] == "{" and hole[1] in "nr":
                text, at = text + more[hole[1]], at + 3
            else:
                text, at = text + hole[0], at + 1
        return text

    def known(self, kind: Any, depth: int) -> str:
        """An expression of this kind with one of the constructs above."""
        construct = self.pick(self.expressions[kind])
        self.note(construct)
        return self.fill(self.pick(self.expressions[kind][construct]), depth - 1)

    def tensor(self, dtype: str, shape: tuple[Any, ...], depth: int = 2) -> str:
        kind = tensor(dtype, shape)
        if depth > 0 and kind in self.expressions and self.chance(0.35):
            return f"({self.known(kind, depth)})"
        return super().tensor(dtype, shape, depth)

    def value(self, kind: Kind, depth: int = 2) -> str:
        if kind == OPAQUE:
            return self.known(OPAQUE, depth)
        if kind == POINT:
            return f"Point({self.tensor(FLOAT, (4,), depth - 1)}, {self.int(1)})"
        if kind == BOX:
            return self.fill("Box({v}, {i} % 4)", depth - 1)
        return super().value(kind, depth)

    def random_kind(self) -> Kind:
        if self.chance(0.16):
            return self.rng.choices([OPAQUE, SHORT, POINT, BOX], [4, 2, 1, 1])[0]
        return super().random_kind()

    def statement(self, place: _Place) -> list[str]:
        if self.chance(0.6):
            return super().statement(place)
        kinds: dict[str, float] = {
            "vector write": 5,
            "caught": 2.5,
            "shift": 0.5,
            "many views": 1.5,
            "object": 1.5,
            "collections": 2.5,
            "walrus": 0.8,
            "functions": 1,
            "modules": 1,
            "state": 0.6,
        }
        if place.depth < 2:
            kinds |= {"nest of loops": 1.5, "forever": 1, "loop by step": 1}
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        made: list[str] = getattr(self, "write_" + kind.replace(" ", "_"))(place)
        return made

    # ---------------------------------------------------------------- statements

    def write_vector_write(self, place: _Place) -> list[str]:
        names = self.named(VECTOR)
        if not names:
            return self.write_assign(place)
        name, (template, what) = self.pick(names), self.pick(WRITES)
        self.note(what)
        lines = [self.fill(template, n=name)]
        return [*lines, f"{name}.clamp_(-32, 32)"] if self.chance(0.7) else lines

    def write_caught(self, place: _Place) -> list[str]:
        self.note("error that is caught")
        error, text = self.pick(ERRORS) if self.chance(0.4) else "Exception", self.new("v")
        before = dict(self.scope)
        risk = self.fill(self.pick(RISKS))
        lines = ["try:", *(self.inner(place) if self.chance(0.5) else [])]
        if lines[-1].split()[0] in ("return", "raise", "break", "continue"):
            lines = ["try:"]
        lines.append(f"    {risk}" if "=" in risk or self.chance(0.3) else f"    {self.new('o')} = {risk}")
        self.scope = dict(before)
        if self.chance(0.6):
            self.note("text of an error")
            lines += [
                f"except {error} as e:",
                f"    {text} = str(e)" if self.chance(0.6) else f"    {text} = type(e).__name__",
            ]
        else:
            lines += [f"except {error}:", *self.inner(place)]
            if self.chance(0.15):
                self.note("raise again")
                lines += ["    raise"] if lines[-1].split()[0] not in ("return", "raise", "break", "continue") else []
        self.scope = dict(before)
        if self.chance(0.3):
            self.note("try else")
            lines += ["else:", *self.inner(place)]
            self.scope = dict(before)
        if self.chance(0.3):
            self.note("finally")
            lines += [
                "finally:",
                f"    {self.new('o')} = {self.int(1)}" if self.chance(0.5) else "    " + self._touch(),
            ]
        self.scope = before
        return lines

    def _touch(self) -> str:
        names = self.named(VECTOR)
        return f"{self.pick(names)}.add_(1).clamp_(-32, 32)" if names else "pass"

    def write_shift(self, place: _Place) -> list[str]:
        names = self.named(VECTOR)
        if not names:
            return self.write_assign(place)
        self.note("own context manager")
        before, name = dict(self.scope), self.new("w")
        head = self.fill("with shifted({n}, {i} % 3) as {r}:", n=self.pick(names), r=name)
        self.bind(name, VECTOR)
        lines = [head, *self.inner(place)]
        self.scope = self.joined([before, self.scope])
        return lines

    def write_many_views(self, place: _Place) -> list[str]:
        names = self.named(VECTOR) + self.named(MATRIX)
        if not names:
            return self.write_assign(place)
        self.note("several views at once")
        name, a, b = self.pick(names), self.new("w"), self.new("w")
        if self.scope[name] == MATRIX:
            self.bind(a, VECTOR)
            self.bind(b, VECTOR)
            return [f"{a}, {b}, *_ = {name}" if self.chance(0.5) else f"{a}, _, {b} = {name}.unbind(0)"]
        self.bind(a, SCALAR)
        self.bind(b, TRIPLE)
        return [f"{a}, {b} = {name}[0], {name}[1:]"]

    def write_object(self, place: _Place) -> list[str]:
        boxes, points, name = self.named(BOX), self.named(POINT), self.new("o")
        if (not boxes and not points) or self.chance(0.25):
            kind = self.pick([BOX, POINT])
            self.bind(name, kind)
            return [f"{name} = {self.value(kind, 2)}"]
        if points and (not boxes or self.chance(0.4)):
            self.note("named tuple")
            self.bind(name, VECTOR)
            return [f"{name} = {self.pick(points)}.left"]
        box = self.pick(boxes)
        self.note("object that is written")
        return [
            self.fill(
                self.pick(
                    [
                        "{n}.value += {v}",
                        "{n}.weight += {i} % 3",
                        "{n}.value[{c}] = {f}",
                        "{n}.value = {v}",
                        "{n}.weight %= 5",
                        "{n}.value.clamp_(-8, 8)",
                        "{n} = {n}.moved({v})",
                        "{n}.value, {n}.weight = {n}.doubled.clamp(-9, 9), {i}",
                    ]
                ),
                n=box,
            )
        ]

    def write_collections(self, place: _Place) -> list[str]:
        name, other = self.new("c"), self.new("c")
        what, lines, kind = self.pick(
            [
                (
                    "dict comprehension",
                    ["{n} = {{f'r{{number}}': row for number, row in enumerate({m})}}"],
                    ("dict", VECTOR),
                ),
                ("dict comprehension", ["{n} = {{key: value for key, value in zip('abc', {v})}}"], ("dict", SCALAR)),
                ("nested comprehension", ["{n} = [a + c for a in {t} for c in {k} if c > a]"], ("list", SCALAR)),
                ("set", ["{n} = sorted({{value % 3 for value in {k}.tolist()}})"], ("list", "int")),
                ("set", ["{n} = len(set({k}.tolist()) & {{1, 2, {i}}})"], "int"),
                ("sorted", ["{n} = sorted({k}.tolist(), reverse={q})"], ("list", "int")),
                ("slice of a list", ["{n} = {k}.tolist()[::-1][1:{i}]"], ("list", "int")),
                ("zip and map", ["{n} = list(map(lambda a, c: a + c, {v}, {k}))"], ("list", SCALAR)),
                ("zip and map", ["{n} = [a * 2 for a in filter(lambda t: t > 0, {v})]"], ("list", SCALAR)),
                ("zip and map", ["{n} = [c for _, c in zip(range({i} % 4), {m})]"], ("list", VECTOR)),
                (
                    "reversed",
                    ["{n} = [row + i for i, row in enumerate(reversed(list({m})), start={i})]"],
                    ("list", VECTOR),
                ),
                (
                    "defaultdict",
                    ["{n} = defaultdict(int)", "for {r} in {k}.tolist():", "    {n}[{r} % 3] += {r}", "{n} = {n}[1]"],
                    "int",
                ),
                (
                    "setdefault",
                    [
                        "{n} = {{'a': [{i}]}}",
                        "{n}.setdefault('a' if {q} else 'b', []).append({i})",
                        "{n} = len({n}['a'])",
                    ],
                    "int",
                ),
                (
                    "dict merge",
                    ["{n} = {{**{{'a': {v}}}, 'b': {v}}} | {{'a': {v}}}", "{n}.pop('b', None)"],
                    ("dict", VECTOR),
                ),
                (
                    "list methods",
                    [
                        "{n} = [{i}, {i}, 3]",
                        "{n}.insert(1, {i})",
                        "{n}.sort()",
                        "{n}.reverse()",
                        "{n}.extend([1, {i}])",
                        "del {n}[0]",
                    ],
                    ("list", "int"),
                ),
                ("list slice assign", ["{n} = [{v}, {v}]", "{n}[1:] = [{v}, {v}]"], ("list", VECTOR)),
                ("tuple", ["{n} = tuple(t for t in {v}) + ({s},)", "{n} = {n}[{i} % 5]"], SCALAR),
                ("star unpacking", ["{n}, *{r} = {k}.tolist()", "{n} = spread({n}, *{r}) % 9"], "int"),
                (
                    "text",
                    ["{n} = ''.join(str(value) for value in {k}.tolist())", "{n} = {n}.count('1') + len({n}) % 4"],
                    "int",
                ),
                ("text", ["{n} = '%d:%s' % ({i}, {q}) + f'{{{i}:03d}}'"], "str"),
                ("generator", ["{n} = next((t for t in {v} if t > {i}), {s})"], SCALAR),
                ("generator", ["{n} = sum(1 for t in {v} if t > 0)"], "int"),
                ("alias in a list", ["{r} = [{v}.clone()] * 2", "{r}[0].add_(1)", "{n} = {r}[1]"], VECTOR),
                ("alias in a list", ["{r} = {v}.clone()", "{n} = [{r}, {r}[:]]", "{r} += {f}"], ("list", VECTOR)),
                ("divmod", ["{n}, {r} = divmod({i}, 3)", "{n} = {n} * {r} % 5"], "int"),
            ]
        )
        self.note(what)
        made = [self.fill(line, n=name, r=other) for line in lines]
        self.bind(name, kind)
        return made

    def write_walrus(self, place: _Place) -> list[str]:
        self.note("walrus")
        name, before = self.new("v"), dict(self.scope)
        kind = self.pick(["int", SCALAR, VECTOR])
        test = {"int": f"> {self.int(0)}", SCALAR: f"< {self.float(0)}", VECTOR: ""}[kind]
        text = self.bounded(kind, self.value(kind, 2))
        head = f"if ({name} := {text}) {test}:" if kind != VECTOR else f"if ({name} := {text}).sum() > {self.int(0)}:"
        self.bind(name, kind)
        lines = [head, *self.inner(place)]
        self.scope = before | {name: kind}
        return lines

    def write_functions(self, place: _Place) -> list[str]:
        self.note("functions in a list")
        name, result = self.new("g"), self.new("v")
        lines = [
            self.fill(line, n=name, r=result)
            for line in self.pick(
                [
                    ("{n} = [lambda t, i=i: t + i for i in range(3)]", "{r} = {n}[{i} % 3]({v})"),
                    ("{n} = [lambda t: t - i for i in range(2)]", "{r} = {n}[0]({v})"),
                    ("def {n}(t, n):", "    return t if n <= 0 else {n}(t - 1, n - 1)", "{r} = {n}({v}, {i} % 4)"),
                    (
                        "def {n}(t):",
                        "    def inner(a):",
                        "        return a if a.sum() > {i} else a + t",
                        "    return inner",
                        "{r} = {n}({v})({v})",
                    ),
                    (
                        "def {n}(t):",
                        "    for row in t:",
                        "        if row.sum() > {i}:",
                        "            return row",
                        "    return t[0] * 0",
                        "{r} = {n}({m})",
                    ),
                    (
                        "def {n}(*ts, flip=False):",
                        "    return ts[-1] if flip else ts[0]",
                        "{r} = {n}({v}, {v}, flip={q})",
                    ),
                    ("def {n}(t, memo={{}}):", "    return t + len(memo)", "{r} = {n}({v})"),
                ]
            )
        ]
        self.bind(result, VECTOR)
        return lines

    def write_modules(self, place: _Place) -> list[str]:
        if not self.is_module:
            return self.write_functions(place)
        self.note("loop over modules")
        name = self.new("v")
        lines = [
            self.fill(line, n=name)
            for line in self.pick(
                [
                    ("{n} = {v}", "for part in self.parts:", "    {n} = part({n})"),
                    ("{n} = self.parts[{i} % 2]({v}, add={v})",),
                    ("{n} = self.table['up' if {q} else 'down']({v})",),
                    ("{n} = self.parts[0]({v})", "if self.parts[0].seen > 2:", "    {n} = {n} + 1"),
                    ("{n} = nn.Sequential(*self.parts)({v})",),
                    ("{n} = self.parts[-1].forward({v}) + self.gain",),
                    ("{n} = sum(p.seen for p in self.parts) % 8 + {v}",),
                ]
            )
        ]
        self.bind(name, VECTOR)
        return lines

    def write_state(self, place: _Place) -> list[str]:
        names = self.named(VECTOR)
        self.note("buffer write")
        buffer = self.attribute("buffer")
        return [
            self.pick(
                [
                    f"{buffer} *= -1",
                    f"{buffer}[:2] += {self.int(1)} % 3",
                    f"{self.attribute('steps')} += {self.tensor(LONG, (), 1)} % 3",
                    f"{buffer}.masked_fill_({self.tensor('bool', (4,), 1)}, 2)",
                    f"{buffer}.view(2, 2)[0].neg_()",
                    *([f"{self.pick(names)}.add_({buffer})"] if names else []),
                ]
            ),
            f"{buffer}.clamp_(-9, 9)",
        ]

    def write_nest_of_loops(self, place: _Place) -> list[str]:
        self.note("nested loops")
        self.budget += 2
        i, j = self.new("i"), self.new("i")
        before = dict(self.scope)
        self.scope |= {i: "int", j: "int"}
        self.locked |= {i, j}
        deeper = _Place(place.depth + 1, True, place.nested)
        body = ["        " + line for line in self.block(3, deeper)]
        ends = (
            [f"        if {self.test(2)}:", f"            {self.pick(['break', 'continue'])}"]
            if self.chance(0.6)
            else []
        )
        tail = ["    else:", f"        {self.pick(['continue', 'pass', 'break'])}"] if self.chance(0.4) else []
        tail += ["    break"] if tail and self.chance(0.5) else []
        self.scope = self.joined([before, self.scope])
        heads = [
            f"for {i} in range({self.trips(1)}):",
            f"    for {j} in {self.pick([f'range({i} + 1)', 'range(2)', f'range({i}, 3)'])}:",
        ]
        return [*heads, *ends, *body, *tail]

    def write_forever(self, place: _Place) -> list[str]:
        self.note("while True")
        name, before = self.new("n"), dict(self.scope)
        self.bind(name, "int")
        self.locked.add(name)
        after = dict(self.scope)
        lines = [
            f"{name} = 0",
            "while True:",
            f"    {name} += 1",
            f"    if {name} > {self.rng.choice([2, 4])} or {self.test(2)}:",
            "        break",
            *self.inner(place, loop=True),
        ]
        self.scope = self.joined([after, self.scope])
        del before
        return lines

    def write_loop_by_step(self, place: _Place) -> list[str]:
        self.note("range with a step")
        i, t = self.new("i"), self.new("x")
        head, targets = self.pick(
            [
                ("for {n} in range({i} % 6, -1, -2):", {i: "int"}),
                ("for {n} in reversed(range({i} % 4)):", {i: "int"}),
                ("for {n}, {r} in zip({m}, {k}.tolist()):", {i: VECTOR, t: "int"}),
                ("for {n}, ({r}, _) in enumerate(zip({v}, {k})):", {i: "int", t: SCALAR}),
                ("for {n} in {u}:", {i: SCALAR}),
                ("for {n} in rows({m}):", {i: VECTOR}),
                ("for {n} in [{v}, {v}]:", {i: VECTOR}),
                ("for {n} in {k}.tolist():", {i: "int"}),
                ("for {n} in {m}.t()[:, 0]:", {i: SCALAR}),
                ("for {n}, {r} in {{1: {v}, 2: {v}}}.items():", {i: "int", t: VECTOR}),
            ]
        )
        return self.looped(self.fill(head, n=i, r=t), place, targets)


def wide(seed: int, size: int = 0) -> Generated:
    """The program of this number with all constructs."""
    return generate(seed, size, Wide, PRELUDE)
