"""Random whole programs as text: a function or a module with control flow on data and on Python's values.

A program's file defines `make()`, which gives a new subject, and `calls()`, which gives new arguments for five calls:
random ones, their negatives, zeros, some with NaN, small ones. Its numbers are multiples of 1/4 that stay small, so
that whatever decides a way is exact in every order of computation; what rounds (`rough`) decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

FLOAT, DOUBLE, LONG, BOOL = "float32", "float64", "int64", "bool"
SHAPES = ((3, 4), (4, 3), (4,), (3,), ())
UNKNOWN = ("u",)

# Kinds of values: ("t", dtype, shape), ("rough", shape), "int", "float", "bool", "str", ("list", kind), ("dict", kind),
# ("pair", kind, kind), ("maybe", kind).
Kind = Any


def tensor(dtype: str, shape: tuple[Any, ...]) -> Kind:
    """The kind of tensors of this type."""
    return ("t", dtype, shape)


def one_zero(extreme: str, dtype: str) -> str:
    """An extreme of numbers. Which one it is of two zeros eager leaves open (decision 0004), and Python tells."""
    return f"({extreme} + 0.0)" if "float" in dtype else extreme


def is_tensor(kind: Kind) -> bool:
    """Whether it is a tensor whose numbers are exact."""
    return isinstance(kind, tuple) and kind[0] == "t"


VECTOR = tensor(FLOAT, (4,))
LISTED = (VECTOR, "int", tensor(FLOAT, ()))


@dataclass
class Generated:
    """A program's text, and which constructs it has."""

    seed: int
    text: str
    constructs: Counter[str]


@dataclass
class _Place:
    """Where a statement stands: loops around it, whether it may return, and its depth."""

    depth: int = 0
    loop: bool = False
    nested: bool = False


@dataclass
class Writer:
    """Writes one program. scope: the kinds of the names bound here."""

    rng: Random
    is_module: bool
    scope: dict[str, Kind] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    names: int = 0
    budget: int = 22
    locked: set[str] = field(default_factory=set)
    acts: bool = False
    prints: bool = False
    parts: ClassVar[tuple[str, ...]] = ()

    # ---------------------------------------------------------------- helpers

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def pick(self, items: Any) -> Any:
        return self.rng.choice(list(items))

    def new(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def note(self, what: str) -> None:
        self.used[what] += 1

    def of(self, test: Callable[[Kind], bool]) -> list[str]:
        return [name for name, kind in self.scope.items() if test(kind)]

    def named(self, kind: Kind) -> list[str]:
        return self.of(lambda k: k == kind)

    def attribute(self, name: str) -> str:
        return f"self.{name}" if self.is_module else f"STATE.{name}"

    # ---------------------------------------------------------------- what other writers have more of

    def more(self) -> dict[str, Kind]:
        """Further parameters."""
        return {}

    def opening(self) -> list[str]:
        """Statements before all others."""
        return []

    def parameters(self, names: list[str]) -> list[str]:
        """The parameters as the signature says them."""
        return names

    def calls(self, names: list[str]) -> tuple[list[str], list[str]]:
        """Five calls' arguments as expressions, and what they give by name, if anything."""
        return _arguments(self.rng, names), []

    # ---------------------------------------------------------------- numbers of Python

    def int(self, depth: int = 2) -> str:
        r, names = self.rng, self.named("int")
        if depth <= 0 or self.chance(0.3):
            return self.pick(names) if names and self.chance(0.7) else str(r.randint(-3, 5))
        d = depth - 1
        match r.randint(0, 16):
            case 0 | 1:
                return f"({self.int(d)} {r.choice('+-*')} {self.int(d)}) % {r.choice([5, 7, 11])}"
            case 2:
                self.note("floor division")
                return f"({self.int(d)} // {r.choice(['2', '3', '-2', f'({self.int(0)} or 1)'])})"
            case 3:
                self.note("int(tensor)")
                return f"int({self.tensor(LONG, (), d)})"
            case 4:
                self.note(".item()")
                return f"{self.tensor(LONG, (), d)}.item()"
            case 5:
                self.note("int(tensor)")
                return f"int({self.tensor(FLOAT, (), d)}.nan_to_num(0, 9, -9))"
            case 6:
                lists = self.of(lambda k: k[0] == "list" or k[0] == "dict")
                self.note("len()")
                if lists:
                    return f"len({self.pick(lists)})"
                return f"len({self.any_tensor(1, d)})"
            case 7:
                self.note("size of data")
                mask = self.pick([".nonzero().size(0)", ".nonzero().numel()", ".sum().item()", ".nonzero().shape[0]"])
                return f"{self.tensor(BOOL, self.pick([(4,), (3, 4)]), d)}{mask}"
            case 8:
                self.note("size")
                return self.pick([f"{self.any_tensor(2, d)}.size(1)", f"{self.any_tensor(1, d)}.shape[0]",
                                  f"{self.any_tensor(1, d)}.dim()", f"{self.any_tensor(1, d)}.numel()"])  # fmt: skip
            case 9:
                self.note("ternary")
                return f"({self.int(d)} if {self.test(d)} else {self.int(d)})"
            case 10:
                self.note("min/max/abs")
                return self.pick([f"min({self.int(d)}, {self.int(d)})", f"max({self.int(d)}, {self.int(d)}, 0)",
                                  f"abs({self.int(d)})"])  # fmt: skip
            case 11:
                known = self.of(lambda k: k in (("list", "int"), ("dict", "int")))
                if known:
                    name = self.pick(known)
                    self.note("container element")
                    if self.scope[name][0] == "dict":
                        return f"{name}.get({self.key()}, {self.int(0)})"
                    return self.pick([f"sum({name})", f"({name}[-1] if {name} else 0)", f"{name}[0]"])
                return self.int(d)
            case 12:
                self.note("argmax")
                return f"{self.tensor(FLOAT, (4,), d)}.nan_to_num().{r.choice(['argmax', 'argmin'])}().item()"
            case 13:
                self.note("attribute read")
                return self.attribute("count")
            case 14:
                self.note("int(bool)")
                return f"int({self.test(d)})"
            case 15:
                self.note("tolist")
                return f"{self.tensor(LONG, (4,), d)}.tolist()[{r.randint(-2, 3)}]"
            case _:
                self.note("round/int(float)")
                return f"int(max(-9.0, min(9.0, {self.float(d)})))"

    def float(self, depth: int = 2) -> str:
        r, names = self.rng, self.named("float")
        if depth <= 0 or self.chance(0.3):
            return self.pick(names) if names and self.chance(0.7) else r.choice(["0.5", "-1.25", "2.0", "0.0", "3.75"])
        d = depth - 1
        match r.randint(0, 8):
            case 0 | 1:
                return f"({self.float(d)} {r.choice('+-')} {self.float(d)})"
            case 2:
                return f"({self.int(d)} / {r.choice(['2', '4', '-8'])})"
            case 3:
                self.note("float(tensor)")
                return f"float({self.tensor(self.pick([FLOAT, DOUBLE]), (), d)})"
            case 4:
                self.note(".item()")
                return f"{self.tensor(self.pick([FLOAT, DOUBLE]), (), d)}.item()"
            case 5:
                self.note("ternary")
                return f"({self.float(d)} if {self.test(d)} else {self.float(d)})"
            case 6:
                self.note("tolist")
                return f"{r.choice(['max', 'min', 'sum'])}({self.tensor(FLOAT, (4,), d)}.tolist())"
            case 7:
                self.note("attribute read")
                return self.attribute("scale")
            case _:
                return f"float({self.int(d)})"

    def key(self) -> str:
        return self.pick(["'a'", "'b'", "'c'"])

    def test(self, depth: int = 2) -> str:
        """A condition of Python: a bool, or what has a truth value."""
        r, names = self.rng, self.named("bool")
        d = depth - 1
        if depth <= 0:
            if names and self.chance(0.4):
                return self.pick(names)
            return f"{self.int(0)} {r.choice(['<', '>', '==', '!='])} {self.int(0)}"
        match r.randint(0, 16):
            case 0 | 1 | 2 | 3:
                self.note("test of a tensor")
                return f"{self.tensor(FLOAT, (), d)} {r.choice(['<', '>', '<=', '>=', '==', '!='])} " + self.pick(
                    [self.float(0), self.int(0), self.tensor(FLOAT, (), 0)]
                )
            case 4 | 5:
                self.note("test of any/all")
                return f"{self.tensor(BOOL, self.pick([(4,), (3, 4), (3,)]), d)}.{r.choice(['any', 'all'])}()"
            case 6:
                self.note("tensor as test")
                return self.tensor(self.pick([FLOAT, LONG, BOOL]), (), d)
            case 7:
                self.note("and/or")
                return f"({self.test(d)} {r.choice(['and', 'or'])} {self.test(d)})"
            case 8:
                self.note("not")
                return f"(not {self.test(d)})"
            case 9:
                self.note("chained comparison")
                value = self.pick([self.int(d), self.float(d), self.tensor(FLOAT, (), d)])
                return f"({self.int(0)} {r.choice(['<', '<='])} {value} < {r.randint(2, 6)})"
            case 10:
                self.note("bool(tensor)")
                return f"bool({self.tensor(self.pick([FLOAT, BOOL]), (), d)})"
            case 11:
                some = self.of(lambda k: k[0] == "maybe")
                if some:
                    self.note("is None")
                    return f"{self.pick(some)} is {r.choice(['None', 'not None'])}"
                return self.test(d)
            case 12:
                known = self.of(lambda k: k[0] in ("list", "dict"))
                if known:
                    name = self.pick(known)
                    self.note("container as test")
                    if self.scope[name][0] == "dict":
                        return f"{self.key()} in {name}"
                    return name if self.scope[name][1] != "int" else self.pick([name, f"{self.int(0)} in {name}"])
                return self.test(d)
            case 13:
                self.note("attribute as test")
                return self.pick([self.attribute("flag"), f"{self.attribute('count')} > {r.randint(0, 3)}"])
            case 14:
                self.note("torch.equal")
                return f"torch.equal({self.tensor(FLOAT, (4,), d)}, {self.tensor(FLOAT, (4,), d)})"
            case 15:
                self.note("any/all of a generator")
                v = self.new("q")
                return f"{r.choice(['any', 'all'])}({v} > {self.int(0)} for {v} in {self.tensor(FLOAT, (4,), 0)})"
            case _:
                return f"{self.int(d)} {r.choice(['<', '>', '==', '<=', '!='])} {self.int(d)}"

    # ---------------------------------------------------------------- tensors

    def any_tensor(self, rank: int, depth: int) -> str:
        shape = self.pick([s for s in SHAPES if len(s) == rank])
        return self.tensor(self.pick([FLOAT, LONG]), shape, depth)

    def tensor(self, dtype: str, shape: tuple[Any, ...], depth: int = 2) -> str:
        names = self.named(tensor(dtype, shape))
        if names and (depth <= 0 or self.chance(0.45)):
            return self.pick(names)
        if depth <= -1:
            return self.factory(dtype, shape)
        d = depth - 1
        if dtype == BOOL and self.chance(0.7):
            return self.compared(shape, d)
        makers = [self.binary, self.unary, self.scalar, self.other_shape, self.other_dtype, self.chosen, self.factory]
        weights = (5, 4, 3, 6, 2, 2, 1) if depth > 0 else (1, 2, 1, 6, 3, 0, 2)
        made = self.rng.choices(makers, weights)[0]
        return made(dtype, shape, d) if made != self.factory else self.factory(dtype, shape)

    def compared(self, shape: tuple[Any, ...], d: int) -> str:
        r = self.rng
        dtype = self.pick([FLOAT, FLOAT, LONG, DOUBLE])
        a = self.tensor(dtype, shape, d)
        if dtype != LONG and self.chance(0.15):
            return f"{a}.isnan()"
        b = self.pick([self.tensor(dtype, shape, d - 1), self.int(0), "0"])
        return f"({a} {r.choice(['<', '>', '<=', '==', '!='])} {b})"

    def binary(self, dtype: str, shape: tuple[Any, ...], d: int) -> str:
        a, b = self.tensor(dtype, shape, d), self.tensor(dtype, shape, d)
        if dtype == BOOL:
            return f"({a} {self.rng.choice('&|^')} {b})"
        match self.rng.randint(0, 4):
            case 0 | 1:
                return f"({a} {self.rng.choice('+-')} {b})"
            case 2:
                tail = " % 7" if dtype == LONG else ".round().clamp(-16, 16)"
                return f"(({a} * {b}){tail})"
            case 3:
                return one_zero(f"torch.{self.rng.choice(['maximum', 'minimum'])}({a}, {b})", dtype)
            case _:
                return f"{a}.{self.rng.choice(['add', 'sub'])}({b}, alpha={self.rng.randint(-2, 3)})"

    def unary(self, dtype: str, shape: tuple[Any, ...], d: int) -> str:
        a = self.tensor(dtype, shape, d)
        if dtype == BOOL:
            return f"(~{a})"
        kinds = ["-{}", "{}.abs()", "{}.clamp(-3, 3)", "{}.relu()", "{}.clone()", "{}.detach()"]
        if dtype != LONG:
            kinds += ["{}.floor()", "{}.nan_to_num()", "{}.sign()"]
        if shape and shape != UNKNOWN:
            kinds += ["{}.flip(0)", "{}.roll(1, 0)", "{}.contiguous()"]
        return "(" + self.pick(kinds).format(a) + ")"

    def scalar(self, dtype: str, shape: tuple[Any, ...], d: int) -> str:
        a = self.tensor(dtype, shape, d)
        if dtype == BOOL:
            return f"(~{a})"
        if dtype == LONG:
            return f"({a} {self.rng.choice('+-')} {self.int(d)})"
        self.note("Python number in arithmetic")
        return self.pick([f"({a} + {self.float(d)})", f"({a} - {self.int(d)})", f"({self.int(d)} - {a})",
                          f"({a} * {self.rng.choice([2, -1, 3])})"])  # fmt: skip

    def other_dtype(self, dtype: str, shape: tuple[Any, ...], d: int) -> str:
        source = self.pick([t for t in (FLOAT, DOUBLE, LONG, BOOL) if t != dtype])
        a = self.tensor(source, shape, d)
        self.note("dtype conversion")
        if dtype == LONG and source in (FLOAT, DOUBLE):
            return f"{a}.nan_to_num(0, 9, -9).long()"
        how = {FLOAT: ".float()", DOUBLE: ".double()", LONG: ".long()", BOOL: ".bool()"}
        return a + self.pick([how[dtype], f".to(torch.{dtype})"])

    def chosen(self, dtype: str, shape: tuple[Any, ...], d: int) -> str:
        if self.chance(0.3):
            self.note("ternary of tensors")
            return f"({self.tensor(dtype, shape, d)} if {self.test(d)} else {self.tensor(dtype, shape, d)})"
        mask = self.tensor(BOOL, shape, d)
        return f"torch.where({mask}, {self.tensor(dtype, shape, d)}, {self.tensor(dtype, shape, d - 1)})"

    def factory(self, dtype: str, shape: tuple[Any, ...], d: int = 0) -> str:
        if shape == UNKNOWN:
            return f"torch.zeros({self.rng.randint(0, 3)}, dtype=torch.{dtype})"
        what = self.rng.choice(["zeros", "ones"])
        size = f"{list(shape)}"
        if dtype == FLOAT:
            return self.pick([f"torch.{what}({size})", f"torch.full({size}, {self.float(0)})"])
        return f"torch.{what}({size}, dtype=torch.{dtype})"

    def index(self, size: int, d: int) -> str:
        """An index that is mostly in range."""
        if self.chance(0.15):
            self.note("index of data")
            return f"{self.int(d)} % {size}"
        return str(self.rng.randint(-size, size - 1))

    def other_shape(self, dtype: str, shape: tuple[Any, ...], d: int) -> str:
        r = self.rng
        if shape == UNKNOWN:
            return self.dynamic(dtype, d)
        sums = dtype != BOOL
        if shape == ():
            size = self.pick([(4,), (3,), (3, 4)])
            a = self.tensor(dtype, size, d)
            if sums and self.chance(0.6):
                return one_zero(f"{a}.{r.choice(['sum', 'amax', 'amin', 'max', 'sum'])}()", dtype)
            return f"{a}[{', '.join(self.index(n, d) for n in size)}]"
        if shape in ((4,), (3,)):
            n = shape[0]
            wide = self.pick([(3, 4), (4, 3)])
            axis = wide.index(n)
            a = self.tensor(dtype, wide, d)
            self.note("view")
            kinds = [f"{a}.select({1 - axis}, {self.index(7 - n, d)})"]
            kinds += [f"{a}[{self.index(7 - n, d)}]" if axis == 1 else f"{a}[:, {self.index(7 - n, d)}]"]
            if sums:
                kinds += [f"{a}.sum({1 - axis})", one_zero(f"{a}.amax({1 - axis})", dtype)]
            if n == 3:
                kinds += [f"{self.tensor(dtype, (4,), d)}[{r.choice(['1:', ':3', ':-1'])}]"]
            else:
                b = self.tensor(dtype, (4,), d)
                kinds += [f"torch.cat([{b}[:2], {self.tensor(dtype, (4,), d)}[2:]])"]
                kinds += [f"torch.stack([{', '.join(self.tensor(dtype, (), d - 1) for _ in range(4))}])"]
            return self.pick(kinds)
        self.note("view")
        other = shape[::-1]
        kinds = [f"{self.tensor(dtype, other, d)}.{r.choice(['t()', 'transpose(0, 1)', 'T', f'reshape{shape}'])}"]
        kinds += [f"{self.tensor(dtype, shape[1:], d)}.expand{shape}"]
        kinds += [f"{self.tensor(dtype, shape[:1], d)}.unsqueeze(1).expand{shape}"]
        kinds += [f"torch.stack([{', '.join(self.tensor(dtype, shape[1:], d - 1) for _ in range(shape[0]))}])"]
        if dtype != BOOL:
            kinds += [f"({self.tensor(dtype, shape, d)} + {self.tensor(dtype, shape[1:], d)})"]
        return self.pick(kinds)

    def dynamic(self, dtype: str, d: int) -> str:
        self.note("size of data")
        a = self.tensor(dtype, (4,), d)
        kinds = [f"{a}[{self.tensor(BOOL, (4,), d)}]", f"{a}[:{self.int(d)}]",
                 f"torch.masked_select({a}, {self.tensor(BOOL, (4,), d)})"]  # fmt: skip
        if dtype == LONG:
            kinds += [f"{self.tensor(BOOL, (4,), d)}.nonzero().squeeze(1)", f"torch.arange({self.int(d)} % 5)"]
            kinds += [f"{a}.unique()"]
        if dtype == FLOAT:
            kinds += [f"torch.full(({self.int(d)} % 4,), {self.float(0)})", f"torch.ones(max({self.int(d)}, 0) % 6)"]
        return self.pick(kinds)

    def rough(self, shape: tuple[Any, ...]) -> str:
        """What rounds: no condition reads it."""
        self.note("rounding operator")
        known = self.named(("rough", shape))
        base = self.pick(known) if known and self.chance(0.5) else self.tensor(FLOAT, shape, 1)
        # What eager leaves open of gelu: infinity's is NaN or infinity, by the layout of its operand; far below zero it
        # is a difference of two halves, of which nothing but rounding is left.
        finite = "F.gelu({}.clamp(-2, 99))"
        kinds = ["{}.sin()", "{}.tanh()", "{}.sigmoid()", "({} / 3)", "{}.exp().clamp(max=9)", finite]
        if shape:
            kinds += ["{}.softmax(-1)", "{}.cumsum(0)"]
        if len(shape) == 2:
            kinds += [f"({{}} @ {self.tensor(FLOAT, shape[::-1], 0)} @ {self.tensor(FLOAT, shape, 0)})"]
            if self.is_module and shape == (3, 4):
                kinds += ["self.linear({})"] * 3
            kinds += [f"F.layer_norm({{}}, ({shape[1]},))"]
        return self.pick(kinds).format(base)

    def bounded(self, kind: Kind, text: str) -> str:
        """The text with its values held small, so that a loop cannot make them grow."""
        if is_tensor(kind) and kind[1] != BOOL and not text.isidentifier():
            return f"({text}).clamp(-32, 32)" if self.chance(0.8) or "sum" in text or "*" in text else text
        if kind == "int" and not text.isidentifier():
            return f"({text}) % {self.pick([7, 11, 16])}"
        if kind == "float" and not text.isidentifier():
            return f"max(-32.0, min(32.0, {text}))"
        return text

    def value(self, kind: Kind, depth: int = 2) -> str:
        """An expression of this kind."""
        if is_tensor(kind):
            return self.tensor(kind[1], kind[2], depth)
        if kind == "str":
            return self.string(depth)
        if isinstance(kind, str):
            return {"int": self.int, "float": self.float, "bool": self.test}[kind](depth)
        match kind[0]:
            case "rough":
                return self.rough(kind[1])
            case "list":
                return f"[{', '.join(self.value(kind[1], depth - 1) for _ in range(self.rng.randint(0, 3)))}]"
            case "dict":
                keys = self.rng.sample(["'a'", "'b'", "'c'"], self.rng.randint(1, 3))
                return "{" + ", ".join(f"{k}: {self.value(kind[1], depth - 1)}" for k in keys) + "}"
            case "pair":
                return f"({self.value(kind[1], depth - 1)}, {self.value(kind[2], depth - 1)})"
            case _:
                return "None" if self.chance(0.5) else self.value(kind[1], depth)

    def string(self, depth: int) -> str:
        names = self.named("str")
        if names and self.chance(0.3):
            return self.pick(names)
        self.note("f-string")
        inner = self.pick([self.int(depth - 1), self.float(depth - 1), self.tensor(LONG, (), depth - 1)])
        inner = inner.replace("'", '"')
        return self.pick(["'left'", "'right'", f"f'<{{{inner}}}>'", f"'up' if {self.test(depth - 1)} else 'down'"])

    def random_kind(self) -> Kind:
        r = self.rng
        roll = r.random()
        if roll < 0.55:
            dtype = r.choices([FLOAT, DOUBLE, LONG, BOOL], (6, 1, 2, 1))[0]
            shape = r.choices([*SHAPES, UNKNOWN], (4, 1, 4, 2, 3, 1.2))[0]
            return tensor(dtype, shape)
        if roll < 0.63:
            return ("rough", r.choice([(3, 4), (4,), ()]))
        if roll < 0.86:
            return r.choices(["int", "float", "bool", "str"], (4, 2, 2, 1))[0]
        if roll < 0.92:
            return ("list", self.pick(LISTED))
        if roll < 0.95:
            return ("dict", self.pick(["int", VECTOR]))
        if roll < 0.98:
            return ("pair", self.pick([VECTOR, "int"]), self.pick([VECTOR, "int", "float"]))
        return ("maybe", VECTOR)

    # ---------------------------------------------------------------- statements

    def block(self, most: int, place: _Place) -> list[str]:
        lines: list[str] = []
        for _ in range(self.rng.randint(1, most)):
            if self.budget <= 0:
                break
            self.budget -= 1
            more = self.statement(place)
            lines += more
            if more and more[-1].split(" ")[0] in ("return", "raise", "break", "continue"):
                break
        return lines or ["pass"]

    def inner(self, place: _Place, **changes: Any) -> list[str]:
        deeper = _Place(place.depth + 1, changes.get("loop", place.loop), changes.get("nested", place.nested))
        return ["    " + line for line in self.block(3, deeper)]

    def statement(self, place: _Place) -> list[str]:
        kinds: dict[str, float] = {
            "assign": 5, "update": 4, "in place": 4, "view": 2, "container": 4, "attribute": 1.2, "buffer": 1.2,
            "print": 0.7, "swap": 0.6, "closure": 0.9, "unpack": 0.6, "comprehension": 1, "random": 0.2, "with": 0.2,
            "maybe": 0.8, "argument list": 0.3, "tolist": 0.5, "delete": 0.15,
        }  # fmt: skip
        if place.depth < 3:
            kinds |= {"if": 6, "for": 3.5, "while": 2.5, "try": 0.3, "match": 0.5}
        if place.loop:
            kinds |= {"break": 1.2, "continue": 1}
        if place.depth and not place.nested:
            kinds |= {"return": 0.8, "raise": 0.4}
        kinds["assert"] = 0.5
        if not self.acts:
            del kinds["attribute"]
        if not self.prints:
            del kinds["print"]
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        return getattr(self, "write_" + kind.replace(" ", "_"))(place)

    def bind(self, name: str, kind: Kind) -> None:
        self.scope[name] = kind

    def write_assign(self, place: _Place) -> list[str]:
        kind = self.random_kind()
        names = [n for n in self.named(kind) if n not in self.locked]
        name = self.pick(names) if names and self.chance(0.5) else self.new("v")
        text = self.bounded(kind, self.value(kind, 3))
        self.bind(name, kind)
        return [f"{name} = {text}"]

    def write_update(self, place: _Place) -> list[str]:
        names = [n for n in self.of(lambda k: k in ("int", "float") or is_tensor(k)) if n not in self.locked]
        if not names:
            return self.write_assign(place)
        name = self.pick(names)
        kind = self.scope[name]
        if self.chance(0.5):
            return [f"{name} = {self.bounded(kind, self.value(kind, 2))}"]
        if kind in ("int", "float"):
            return [f"{name} += {self.value(kind, 1)}", f"{name} %= 16"]
        if kind[1] == BOOL:
            return [f"{name} {self.rng.choice('&|^')}= {self.value(kind, 1)}"]
        self.note("in-place operator")
        return [f"{name} {self.rng.choice('+-')}= {self.value(kind, 1)}", f"{name}.clamp_(-32, 32)"]

    def write_in_place(self, place: _Place) -> list[str]:
        names = self.of(lambda k: is_tensor(k) and k[1] != BOOL and k[2] != UNKNOWN)
        if not names:
            return self.write_assign(place)
        name = self.pick(names)
        _, dtype, shape = self.scope[name]
        r = self.rng
        self.note("in-place update")
        if shape == ():
            return [f"{name}.{r.choice([f'add_({self.int(1)})', 'neg_()', f'fill_({self.int(1)})', 'clamp_(-8, 8)'])}"]
        target, left = self.piece(name, shape)
        self.note("in-place through a view") if target != name else None
        value = self.pick([self.int(1), self.tensor(dtype, left, 1)])
        kinds = [f"{target}.add_({value})", f"{target}.zero_()", f"{target}.neg_()", f"{target}.clamp_(-5, 5)",
                 f"{target}.copy_({self.tensor(dtype, left, 1)})", f"{target}.fill_({self.int(1)})"]  # fmt: skip
        if target.endswith("]"):
            kinds += [f"{target} = {value}", f"{target} += {value}", f"{target} = {value}"]
        else:
            mask = self.tensor(BOOL, shape, 1)
            kinds += [f"{name}[{mask}] = {self.int(1)}", f"{name}.masked_fill_({mask}, {self.int(1)})"]
        lines = [self.pick(kinds)]
        return [*lines, f"{name}.clamp_(-32, 32)"] if self.chance(0.3) else lines

    def piece(self, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """A view of a tensor as an expression, and its shape."""
        n = shape[0]
        kinds: list[tuple[str, tuple[int, ...]]] = [(name, shape), (f"{name}[{self.index(n, 1)}]", shape[1:])]
        if n == 4:
            kinds += [(f"{name}[1:]", (3, *shape[1:])), (f"{name}[:3]", (3, *shape[1:]))]
        if len(shape) == 2:
            kinds += [(f"{name}[:, {self.index(shape[1], 1)}]", shape[:1]), (f"{name}.t()", shape[::-1]),
                      (f"{name}.t()[{self.index(shape[1], 1)}]", shape[:1]),
                      (f"{name}.select(1, {self.index(shape[1], 1)})", shape[:1]),
                      (f"{name}.view(-1)[{self.index(12, 1)}]", ())]  # fmt: skip
        kinds = [k for k in kinds if k[1] in SHAPES]
        return self.pick(kinds)

    def write_view(self, place: _Place) -> list[str]:
        names = self.of(lambda k: is_tensor(k) and k[2] not in ((), UNKNOWN))
        if not names:
            return self.write_assign(place)
        base = self.pick(names)
        text, shape = self.piece(base, self.scope[base][2])
        name = self.new("w")
        self.bind(name, tensor(self.scope[base][1], shape))
        self.note("named view" if text != base else "alias")
        return [f"{name} = {text}"]

    def write_container(self, place: _Place) -> list[str]:
        names = [n for n in self.of(lambda k: k[0] in ("list", "dict")) if n not in self.locked]
        if not names or self.chance(0.2):
            kind = ("list", self.pick(LISTED)) if self.chance(0.7) else ("dict", self.pick(["int", VECTOR]))
            name = self.new("c")
            text = self.value(kind, 2) if self.chance(0.6) else ("[]" if kind[0] == "list" else "{}")
            self.bind(name, kind)
            return [f"{name} = {text}"]
        name = self.pick(names)
        kind, item = self.scope[name]
        if kind == "dict":
            self.note("dict item set")
            value = self.bounded(item, self.value(item, 2))
            if self.chance(0.2):
                return [
                    f"{name}[{self.key()}] = {name}.get({self.key()}, {self.value(item, 1)}) + {self.value(item, 0)}"
                ]
            return [f"{name}[{self.key()}] = {value}"]
        value = self.bounded(item, self.value(item, 2))
        match self.rng.randint(0, 6):
            case 0 | 1 | 2:
                self.note("list append")
                return [f"{name}.append({value})"]
            case 3:
                self.note("list +=")
                return [f"{name} += [{value}]"]
            case 4:
                self.note("list pop")
                return [f"if {name}:", f"    {name}.{self.rng.choice(['pop()', 'pop(0)'])}"]
            case 5:
                self.note("list item set")
                return [f"if {name}:", f"    {name}[{self.rng.choice([0, -1])}] = {value}"]
            case _:
                self.note("list of a list")
                return [f"{name} = {self.pick([f'{name}[1:]', f'{name} + [{value}]', f'[{value}] + {name}[-2:]'])}"]

    def write_attribute(self, place: _Place) -> list[str]:
        self.note("attribute effect")
        if self.chance(0.6):
            return [f"{self.attribute('count')} += {self.pick(['1', '2', self.int(1) + ' % 3'])}"]
        if self.chance(0.5):
            flag = self.attribute("flag")
            return [f"{flag} = {self.pick(['True', 'False', f'not {flag}'])}"]
        return [f"{self.attribute('log')}.append({self.pick(['1', self.int(1)])})"]

    def write_buffer(self, place: _Place) -> list[str]:
        self.note("buffer write")
        buffer = self.attribute("buffer")
        return self.pick([
            [f"{buffer}.add_({self.int(1)}).clamp_(-9, 9)"], [f"{buffer}[{self.index(4, 1)}] = {self.float(1)}"],
            [f"{buffer}.copy_({self.tensor(FLOAT, (4,), 1)}.clamp(-9, 9))"],
            [f"{self.attribute('steps')} += 1"],
            [f"{buffer} = ({buffer} + {self.int(1)}).clamp(-9, 9)"] if self.is_module and self.chance(0.3)
            else [f"{buffer}[1:] -= 1", f"{buffer}.clamp_(-9, 9)"],
        ])  # fmt: skip

    def write_print(self, place: _Place) -> list[str]:
        self.note("print")
        items = [self.pick([self.string(1), self.int(1), self.float(1), self.tensor(LONG, (), 1), "'here'"])]
        items += [self.int(0)] if self.chance(0.4) else []
        options = self.pick(["", "", ", sep=':'", ", end=';'"])
        return [f"print({', '.join(items)}{options})"]

    def write_swap(self, place: _Place) -> list[str]:
        by: dict[Any, list[str]] = {}
        for name, kind in self.scope.items():
            if name not in self.locked:
                by.setdefault(kind, []).append(name)
        groups = [names for names in by.values() if len(names) > 1]
        if not groups:
            return self.write_assign(place)
        a, b = self.rng.sample(self.pick(groups), 2)
        self.note("swap")
        return [f"{a}, {b} = {b}, {a}"]

    def write_unpack(self, place: _Place) -> list[str]:
        pairs = self.of(lambda k: k[0] == "pair")
        a, b = self.new("v"), self.new("v")
        self.note("unpacking")
        if pairs:
            name = self.pick(pairs)
            self.bind(a, self.scope[name][1])
            self.bind(b, self.scope[name][2])
            return [f"{a}, {b} = {name}"]
        if self.chance(0.5):
            text = self.tensor(FLOAT, (4,), 1)
            self.bind(a, tensor(FLOAT, ()))
            self.bind(b, ("list", tensor(FLOAT, ())))
            return [f"{a}, *{b} = {text}"]
        text = self.tensor(FLOAT, (4,), 1)
        self.bind(a, tensor(FLOAT, ()))
        self.bind(b, tensor(LONG, ()))
        return [f"{a}, {b} = {text}.nan_to_num().max(0)"]

    def write_comprehension(self, place: _Place) -> list[str]:
        self.note("comprehension")
        name, v = self.new("c"), self.new("q")
        source = self.pick(["tensor", "range", "list"])
        test = f" if {self.test(1)}" if self.chance(0.3) else ""
        if source == "tensor":
            self.bind(name, ("list", tensor(FLOAT, ())))
            own = f" if {v} {self.rng.choice('<>')} {self.int(0)}" if self.chance(0.5) else test
            return [f"{name} = [{v} + {self.int(0)} for {v} in {self.tensor(FLOAT, (4,), 1)}{own}]"]
        if source == "range":
            self.bind(name, ("list", VECTOR))
            return [f"{name} = [{self.tensor(FLOAT, (4,), 1)} + {v} for {v} in range({self.trips(1)}){test}]"]
        self.bind(name, ("list", "int"))
        return [f"{name} = [({v} + {self.int(1)}) % 9 for {v} in {self.tensor(LONG, (4,), 1)}.tolist(){test}]"]

    def write_tolist(self, place: _Place) -> list[str]:
        self.note("tolist")
        name = self.new("c")
        self.bind(name, ("list", "int"))
        return [f"{name} = {self.tensor(LONG, self.pick([(4,), UNKNOWN]), 1)}.tolist()"]

    def write_random(self, place: _Place) -> list[str]:
        self.note("random numbers")
        name = self.new("v")
        if self.chance(0.3):
            self.bind(name, ("rough", (4,)))
            return [f"{name} = torch.rand(4)"]
        self.bind(name, VECTOR)
        return [f"{name} = torch.randint(-2, 3, (4,)).float()"]

    def write_delete(self, place: _Place) -> list[str]:
        names = [n for n in self.scope if n[0] in "vw" and n not in self.locked]
        if not names:
            return ["pass"]
        name = self.pick(names)
        self.note("del")
        if self.chance(0.9):
            del self.scope[name]
        return [f"del {name}"]

    def write_with(self, place: _Place) -> list[str]:
        self.note("with")
        return [f"with torch.{self.rng.choice(['no_grad()', 'inference_mode(False)'])}:", *self.inner(place)]

    def write_maybe(self, place: _Place) -> list[str]:
        some = self.of(lambda k: k[0] == "maybe")
        if not some:
            name = self.new("m")
            self.bind(name, ("maybe", VECTOR))
            return [f"{name} = None"]
        name = self.pick(some)
        if self.chance(0.5):
            return [f"if {self.test(2)}:", f"    {name} = {self.value(VECTOR, 1)}"]
        self.note("None or a tensor")
        saved = dict(self.scope)
        self.bind(name, VECTOR)
        lines = [f"if {name} is not None:", *self.inner(place)]
        self.scope = saved
        return lines

    def grows_over(self, name: str, item: Any, indent: str = "    ") -> list[str]:
        """A list gets another length in a loop over it, some times and not for ever."""
        self.note("list changed in a loop over it")
        value, test = self.bounded(item, self.value(item, 1)), self.test(1) if self.chance(0.6) else "True"
        if self.chance(0.2):
            return [f"{indent}if len({name}) > 1 and {test}:", f"{indent}    {name}.pop()"]
        return [f"{indent}if len({name}) < 6 and {test}:", f"{indent}    {name}.append({value})"]

    def write_argument_list(self, place: _Place) -> list[str]:
        if "items" not in self.scope:
            return self.write_assign(place)
        self.note("write to an argument's container")
        if "items" in self.locked:
            return self.grows_over("items", VECTOR, "")
        return [self.pick([f"items.append({self.value(VECTOR, 1)})", f"items[0] = {self.value(VECTOR, 1)}",
                           "items[0].add_(1).clamp_(-9, 9)"])]  # fmt: skip

    def write_closure(self, place: _Place) -> list[str]:
        r = self.rng
        kind = self.pick([VECTOR, "int", tensor(FLOAT, ())])
        name, p, result = self.new("g"), self.new("p"), self.new("v")
        saved, locked = dict(self.scope), set(self.locked)
        self.note("closure")
        if self.chance(0.35):
            self.bind(p, kind)
            body = self.bounded(kind, self.value(kind, 2))
            self.scope = dict(saved)
            lines = [f"{name} = lambda {p}: {body}"]
            self.note("lambda")
        else:
            lines = [f"def {name}({p}):"]
            writable = [n for n, k in saved.items() if k in ("int", VECTOR) and n not in locked]
            if writable and self.chance(0.4):
                chosen = self.pick(writable)
                lines += [
                    f"    nonlocal {chosen}",
                    f"    {chosen} = {self.bounded(saved[chosen], self.value(saved[chosen], 1))}",
                ]
                self.note("nonlocal")
            self.locked = set(saved)
            self.bind(p, kind)
            if self.chance(0.6):
                lines += [f"    if {self.test(2)}:", f"        return {self.bounded(kind, self.value(kind, 1))}"]
                self.note("early return")
            if self.chance(0.5):
                self.budget = max(self.budget, 2)
                lines += ["    " + line for line in self.block(2, _Place(2, nested=True))]
            lines += [f"    return {self.bounded(kind, self.value(kind, 2))}"]
            self.scope, self.locked = dict(saved), locked
        del r
        lines.append(f"{result} = {name}({self.value(kind, 1)})")
        self.bind(result, kind)
        if self.chance(0.4):
            lines.append(f"{result} = {name}({result})")
        return lines

    def write_assert(self, place: _Place) -> list[str]:
        self.note("assert")
        test = self.pick([f"{self.tensor(FLOAT, (), 1)} < {self.rng.choice([30, 12])}", self.test(1),
                          f"{self.int(1)} < 20"])  # fmt: skip
        return [f"assert {test}, {self.string(1)}" if self.chance(0.5) else f"assert {test}"]

    def write_raise(self, place: _Place) -> list[str]:
        self.note("raise")
        return [f"raise {self.rng.choice(['ValueError', 'RuntimeError', 'KeyError'])}({self.string(1)})"]

    def write_return(self, place: _Place) -> list[str]:
        self.note("early return")
        return [f"return {self.result()}"]

    def write_break(self, place: _Place) -> list[str]:
        self.note("break")
        return [f"if {self.test(2)}:", "    break"] if self.chance(0.7) else ["break"]

    def write_continue(self, place: _Place) -> list[str]:
        self.note("continue")
        return [f"if {self.test(2)}:", "    continue"] if self.chance(0.7) else ["continue"]

    # ---------------------------------------------------------------- compound statements

    def arms(self, heads: list[str], place: _Place, *, total: bool) -> list[str]:
        """Arms one after the other, and what is bound behind them. total: one of them is always taken."""
        before = dict(self.scope)
        lines: list[str] = []
        ends: list[dict[str, Kind]] = []
        for head in heads:
            self.scope = dict(before)
            body = self.inner(place)
            lines += [head, *body]
            if body[-1].split()[0] not in ("return", "raise", "break", "continue"):
                ends.append(self.scope)
        if not total:
            ends.append(before)
        self.scope = self.joined(ends or [before])
        return lines

    def joined(self, ends: list[dict[str, Kind]]) -> dict[str, Kind]:
        found: dict[str, Kind] = {}
        for end in ends:
            for name, kind in end.items():
                if all(other.get(name) == kind for other in ends):
                    found[name] = kind
                elif name not in found and self.chance(0.06):
                    self.note("defined on one path")
                    found[name] = kind
        return found

    def write_if(self, place: _Place) -> list[str]:
        self.note("if")
        heads = [f"if {self.test(3)}:"]
        while self.chance(0.25):
            heads.append(f"elif {self.test(2)}:")
            self.note("elif")
        total = self.chance(0.5)
        if total:
            heads.append("else:")
            self.note("else")
        return self.arms(heads, place, total=total)

    def write_match(self, place: _Place) -> list[str]:
        self.note("match")
        arms = [f"case {self.rng.randint(0, 2)}:", f"case n if n > {self.rng.randint(1, 3)}:"]
        total = self.chance(0.6)
        lines = self.arms([*arms, "case _:"] if total else arms, place, total=total)
        return [f"match {self.int(2)}:", *("    " + line for line in lines)]

    def write_try(self, place: _Place) -> list[str]:
        self.note("try")
        error = self.rng.choice(["ValueError", "ZeroDivisionError", "RuntimeError", "IndexError"])
        before = dict(self.scope)
        body = self.inner(place)
        self.scope = dict(before)
        lines = ["try:", *body, f"except {error}:", *self.inner(place)]
        self.scope = before
        if self.chance(0.4):
            lines += ["finally:", f"    {self.new('v')} = {self.int(1)}"]
        return lines

    def trips(self, depth: int = 2) -> str:
        if self.chance(0.5):
            self.note("range of data")
            return f"{self.int(depth)} % 4"
        return str(self.rng.choice([2, 3, 4, 3, 10]))

    def looped(self, head: str, place: _Place, targets: dict[str, Kind]) -> list[str]:
        before = dict(self.scope)
        self.scope |= targets
        locked, self.locked = self.locked, self.locked | set(targets)
        body = self.inner(place, loop=True)
        self.locked = locked
        after = self.scope
        self.scope = self.joined([before, after])
        lines = [head, *body]
        if self.chance(0.2):
            self.note("loop else")
            saved = dict(self.scope)
            lines += ["else:", *self.inner(place)]
            self.scope = self.joined([saved, self.scope])
        return lines

    def write_for(self, place: _Place) -> list[str]:
        self.note("for")
        i, t = self.new("i"), self.new("x")
        match self.rng.randint(0, 8):
            case 0 | 1 | 2:
                self.note("for over range")
                return self.looped(f"for {i} in range({self.trips()}):", place, {i: "int"})
            case 3 | 4:
                self.note("for over tensor")
                shape = self.pick([(3, 4), (4,), (4, 3)])
                dtype = self.pick([FLOAT, FLOAT, LONG])
                return self.looped(f"for {t} in {self.tensor(dtype, shape, 1)}:", place, {t: tensor(dtype, shape[1:])})
            case 5:
                self.note("for over list")
                lists = self.of(lambda k: k[0] == "list")
                if lists:
                    name = self.pick(lists)
                    self.locked.add(name)
                    item = self.scope[name][1]
                    grows = self.grows_over(name, item) if self.chance(0.4) else []
                    lines = self.looped(f"for {t} in {name}:", place, {t: item})
                    self.locked.discard(name)
                    return [lines[0], *grows, *lines[1:]]
                return self.looped(f"for {i} in {self.value(('list', 'int'), 2)}:", place, {i: "int"})
            case 6:
                self.note("enumerate")
                source = self.tensor(FLOAT, (3, 4), 1)
                return self.looped(f"for {i}, {t} in enumerate({source}):", place, {i: "int", t: VECTOR})
            case 7:
                self.note("zip")
                a, b = self.tensor(FLOAT, (4,), 1), self.tensor(FLOAT, (3,), 1)
                u = self.new("x")
                kinds = {t: tensor(FLOAT, ()), u: tensor(FLOAT, ())}
                return self.looped(f"for {t}, {u} in zip({a}, {b}):", place, kinds)
            case _:
                dicts = self.of(lambda k: k[0] == "dict")
                if not dicts:
                    return self.write_while(place)
                name = self.pick(dicts)
                self.note("for over dict")
                self.locked.add(name)
                kinds = {i: "str", t: self.scope[name][1]}
                lines = self.looped(f"for {i}, {t} in {name}.items():", place, kinds)
                self.locked.discard(name)
                return lines

    def write_while(self, place: _Place) -> list[str]:
        self.note("while")
        n = self.new("n")
        self.bind(n, "int")
        self.locked.add(n)
        most = self.rng.choice([2, 3, 4, 12])
        test = self.pick(
            [f"{n} < {most} and {self.test(2)}", f"{self.test(2)} and {n} < {most}", f"{n} < {self.trips()}"]
        )
        lines = self.looped(f"while {test}:", place, {})
        return [f"{n} = 0", lines[0], f"    {n} += 1", *lines[1:]]

    # ---------------------------------------------------------------- the whole

    def result(self) -> str:
        names = list(self.scope)
        if not names or self.chance(0.1):
            return self.tensor(FLOAT, (4,), 1)
        chosen = self.rng.sample(names, min(len(names), self.rng.randint(1, 4)))
        match self.rng.randint(0, 5):
            case 0:
                return chosen[0]
            case 1:
                self.note("dict result")
                return "{" + ", ".join(f"'{name}': {name}" for name in chosen) + "}"
            case 2:
                self.note("list result")
                return f"[{', '.join(chosen)}]"
            case 3:
                return f"{self.tensor(FLOAT, (4,), 2)}, {self.rough((3, 4))}"
            case _:
                return ", ".join(chosen) + ("," if len(chosen) == 1 else "")


_TENSORS = {
    "x": tensor(FLOAT, (3, 4)), "y": VECTOR, "k": tensor(LONG, (4,)), "s": tensor(FLOAT, ()),
    "d": tensor(DOUBLE, (4, 3)), "b": tensor(BOOL, (4,)), "j": tensor(LONG, ()),
}  # fmt: skip
_PLAIN = {"n": "int", "f": "float", "g": "bool"}


def _arguments(rng: Random, names: list[str]) -> list[str]:
    """Five calls' arguments as expressions; a view, an expanded or shared tensor now and then."""
    calls = []
    bases: dict[str, str] = {}
    plain = {"n": [rng.randint(-2, 4), rng.randint(0, 6)], "f": [0.5, -1.5], "g": [True, False]}
    for call in range(5):
        parts = []
        for name in names:
            if name in plain:
                parts.append(repr(plain[name][0 if call < 3 else rng.randint(0, 1)]))
                continue
            if name == "items":
                parts.append(f"[{', '.join(_tensor(rng, VECTOR, call) for _ in range(2))}]")
                continue
            kind = _TENSORS[name]
            text = _tensor(rng, kind, call, bases.get(name, ""))
            if call == 0:
                bases[name] = text
            parts.append(text)
        calls.append(f"({', '.join(parts)},)")
    return calls


def _tensor(rng: Random, kind: Kind, call: int, first: str = "") -> str:
    _, dtype, shape = kind
    if call == 1 and first and dtype != BOOL:
        return f"-{first}"
    if call == 2:
        return f"torch.zeros({list(shape)}, dtype=torch.{dtype})"

    def value() -> str:
        if dtype == BOOL:
            return str(rng.random() < 0.5)
        if dtype == LONG:
            return str(rng.randint(-3, 4))
        if call == 3 and rng.random() < 0.25:
            return "NAN"
        return str(rng.randint(-16, 16) / 4 if call != 4 else rng.randint(-4, 4) / 4)

    def nest(size: tuple[int, ...]) -> str:
        return value() if not size else f"[{', '.join(nest(size[1:]) for _ in range(size[0]))}]"

    text = f"torch.tensor({nest(shape)}, dtype=torch.{dtype})"
    return text


def generate(seed: int, size: int = 0, kind: type[Writer] = Writer, prelude: str = "") -> Generated:
    """The program of this number. size: about how many statements it has; 0: many or few.

    kind, prelude: who writes it, and what its file has before it (`wide.wide`).
    """
    rng = Random(seed)
    is_module = rng.random() < 0.5
    writer = kind(rng, is_module, budget=size or rng.choice([3, 5, 8, 14, 22]))
    # What acts on Python's objects is left to eager as a whole, so most programs do not.
    writer.acts, writer.prints = rng.random() < 0.2, rng.random() < 0.2
    names = ["x", *rng.sample(sorted(set(_TENSORS) - {"x"}), rng.randint(0, 3))]
    names += rng.sample(sorted(_PLAIN), rng.choice([0, 0, 1, 2]))
    if writer.acts and rng.random() < 0.4:
        names.append("items")
    for name in names:
        writer.scope[name] = _TENSORS.get(name) or _PLAIN.get(name) or ("list", VECTOR)
    writer.scope |= writer.more()
    body: list[str] = []
    while writer.budget > 0:
        body += writer.block(5, _Place())
        if body[-1].split()[0] in ("return", "raise"):
            break
    # An argument is mostly not written, so that a program does more than to change it.
    body = [f"{n} = {n}.clone()" for n in names if n in _TENSORS and rng.random() < 0.4] + body
    body = writer.opening() + body
    body += [f"return {writer.result()}"]
    lines = ["import torch", "import torch.nn.functional as F", "from torch import nn", "", "NAN = float('nan')", ""]
    lines += prelude.splitlines()
    state = ["count = 0", "flag = False", "scale = 1.5", "log = []"]
    if is_module:
        lines += ["", "class Program(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        lines += [f"        self.{line}" for line in state]
        lines += ["        self.register_buffer('buffer', torch.tensor([1.0, -2.0, 0.5, 3.0]))"]
        lines += ["        self.register_buffer('steps', torch.tensor(0))"]
        lines += [f"        {line}" for line in writer.parts]
        lines += ["        self.linear = nn.Linear(4, 4)", "        torch.manual_seed(1)"]
        lines += ["        nn.init.normal_(self.linear.weight)", "        nn.init.zeros_(self.linear.bias)", ""]
        lines += [
            f"    def forward({', '.join(['self', *writer.parameters(names)])}):",
            *("        " + line for line in body),
        ]
        lines += ["", "", "def make():", "    return Program().eval()"]
    else:
        lines += ["", "class STATE:", *("    " + line for line in state)]
        lines += ["    buffer = torch.tensor([1.0, -2.0, 0.5, 3.0])", "    steps = torch.tensor(0)", "", ""]
        lines += [f"def program({', '.join(writer.parameters(names))}):", *("    " + line for line in body)]
        lines += ["", "", "def make():", "    return program"]
    calls, named = writer.calls(names)
    for function, rows in (("calls", calls), ("named", named)):
        if rows:
            lines += ["", "", f"def {function}():", "    return [", *(f"        {row}," for row in rows), "    ]"]
    lines.append("")
    writer.note("module" if is_module else "function")
    return Generated(seed, "\n".join(lines), writer.used)
