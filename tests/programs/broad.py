"""Random programs with all kinds of parameters, dtypes and state: `wide`, and beyond it

- parameters that are optional (None or a tensor), have defaults, are given by name, variable (`*rest`, `**named`), or
  hold tensors: dicts, dataclasses, named tuples, lists of ints; text; narrow dtypes; tensors of changing length;
- arguments that are laid out otherwise, overlap, share memory, hold infinities; numbers that change between calls, and
  equal ones of other types (`1`, `True`, `1.0`, `-0.0`);
- out=, writes through views in loops, functions made in loops, errors that are caught, writes to objects outside.

Invariant: as in `generate`, what decides a way is exact in any order of computation; 16-bit floats stay multiples of
1/4 below 32, which all of them hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from tests.programs import broad_tables as tables
from tests.programs import wide_tables
from tests.programs.broad_tables import HALVES, HOLES, NARROW
from tests.programs.generate import (
    _PLAIN,
    _TENSORS,
    BOOL,
    DOUBLE,
    FLOAT,
    LONG,
    UNKNOWN,
    VECTOR,
    Generated,
    Kind,
    _Place,
    _tensor,
    generate,
    is_tensor,
    one_zero,
    tensor,
)
from tests.programs.wide import Wide
from tests.programs.wide_tables import BOX, POINT


@dataclass(frozen=True)
class Parameter:
    """A parameter beside the plain ones. form: positional, default, named, rest or table. value: an argument for one
    call, None where it is left out; default: as the signature has it.
    """

    name: str
    kind: Kind
    form: str
    construct: str
    value: Callable[[Random, int], str | None]
    default: str = ""


def _one(rng: Random, call: int, kind: Kind = VECTOR) -> str:
    if not is_tensor(kind) or kind[1] not in (*HALVES, *NARROW):
        return _tensor(rng, kind, call)
    _, dtype, shape = kind
    low = 0 if dtype == "uint8" else -16
    flat = [rng.randint(low, 16) for _ in range(shape[0] * (shape[1] if len(shape) == 2 else 1))]
    scale = " / 4" if dtype in HALVES else ""
    return f"(torch.tensor({flat}, dtype=torch.{dtype}){scale}).reshape({list(shape)})"


def _length(rng: Random, call: int) -> str:
    flat = [rng.randint(-8, 8) / 4 for _ in range(rng.choice([0, 0, 1, 2, 4, 3]))]
    return f"torch.tensor({flat}, dtype=torch.float32)"


def _some(*choices: str | None) -> Callable[[Random, int], str | None]:
    return lambda rng, call: rng.choice(choices)


def _maybe(make: Callable[[Random, int], str], *others: str | None) -> Callable[[Random, int], str | None]:
    return lambda rng, call: rng.choice([make(rng, call), *others])


def _of(kind: Kind) -> Callable[[Random, int], str]:
    return lambda rng, call: _one(rng, call, kind)


def _table(rng: Random, call: int) -> str:
    keys = ["a", "b", "c"][: rng.choice([1, 2, 2, 3])]
    return "{" + ", ".join(f"'{key}': {_one(rng, call)}" for key in keys) + "}"


def _rest(rng: Random, call: int) -> str:
    return ", ".join(_one(rng, call) for _ in range(rng.choice([0, 1, 2, 2])))


PARAMETERS = (
    Parameter(
        "mask", ("maybe", VECTOR), "default", "None or a tensor as argument", _maybe(_of(VECTOR), None, "None"), "None"
    ),
    Parameter("gate", ("maybe", VECTOR), "positional", "None or a tensor as argument", _maybe(_of(VECTOR), "None")),
    Parameter("power", "int", "default", "default argument", _some(None, "2", "1", "True", "0", "3"), "2"),
    Parameter(
        "ratio",
        "float",
        "named",
        "keyword-only argument",
        _some(None, "0.5", "1.0", "1", "-0.0", "0.0", "NAN", "2.25", "INF"),
        "0.5",
    ),
    Parameter("weight", VECTOR, "named", "keyword-only argument", _of(VECTOR)),
    Parameter("flip", "bool", "named", "keyword-only argument", _some(None, "True", "False", "1", "0"), "False"),
    Parameter("how", "str", "default", "text as argument", _some(None, "'left'", "'right'", "'up'"), "'left'"),
    Parameter("rest", ("list", VECTOR), "rest", "*args", _rest),
    Parameter("more", ("dict", VECTOR), "table", "**kwargs", _table),
    Parameter("table", ("dict", VECTOR), "positional", "dict as argument", _table),
    Parameter(
        "ints",
        ("list", "int"),
        "positional",
        "list of ints as argument",
        _some("[1, 2, 3]", "[1, 2, 3]", "[]", "[0, -1]", "[True, 2]", "[5]"),
    ),
    Parameter(
        "box", BOX, "positional", "dataclass as argument", lambda r, c: f"Box({_one(r, c)}, {r.choice([2, 2, 1, 3])})"
    ),
    Parameter(
        "point",
        POINT,
        "positional",
        "named tuple as argument",
        lambda r, c: f"Point({_one(r, c)}, {r.choice([1, 1, 2])})",
    ),
    Parameter(
        "pair",
        ("pair", VECTOR, "int"),
        "positional",
        "tuple as argument",
        lambda r, c: f"({_one(r, c)}, {r.choice([1, 1, 4])})",
    ),
    Parameter("half", tensor("float16", (4,)), "positional", "float16", _of(tensor("float16", (4,)))),
    Parameter("brain", tensor("bfloat16", (3, 4)), "positional", "bfloat16", _of(tensor("bfloat16", (3, 4)))),
    Parameter("small", tensor("int8", (4,)), "positional", "int8", _of(tensor("int8", (4,)))),
    Parameter("bits", tensor("uint8", (4,)), "positional", "uint8", _of(tensor("uint8", (4,)))),
    Parameter("whole", tensor("int32", (4,)), "positional", "int32", _of(tensor("int32", (4,)))),
    Parameter("hollow", tensor(FLOAT, UNKNOWN), "positional", "tensor of changing length", _length),
)
_ORDER = ("positional", "default", "rest", "named", "table")
_LAYOUTS = {
    "transposed": lambda t, shape: f"{t}.t().contiguous().t()" if len(shape) == 2 else "",
    "strided": lambda t, shape: f"{t}.repeat_interleave(2, -1)[..., ::2]" if shape else "",
    "expanded": lambda t, shape: f"{t}[:1].expand({list(shape)})" if shape else "",
    "offset": lambda t, shape: f"torch.cat([{t}.flatten()[:1], {t}.flatten()])[1:].view({list(shape)})",
    "0-d of a larger one": lambda t, shape: f"{t}.expand(3)[1]" if not shape else "",
    "reversed copy": lambda t, shape: f"{t}.flip(0)" if shape else "",
}
_NUMBERS = {
    "n": (("2", "3"), ("1", "True"), ("0", "False"), ("-2", "4", "7"), ("1", "2", "3", "4"), ("0", "1", "300")),
    "f": (("0.5", "-1.5"), ("1.0", "1"), ("0.0", "-0.0"), ("NAN", "0.25"), ("INF", "2.0"), ("1.5", "2", "True")),
    "g": (("True", "False"), ("True", "1"), ("0", "False")),
}


class Broad(Wide):
    """Writes one program with all of it."""

    expressions: ClassVar[dict[Any, dict[str, tuple[str, ...]]]] = tables.TABLE
    holes: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = HOLES

    def more(self) -> dict[str, Kind]:
        self.chosen_parameters = self.rng.sample(PARAMETERS, self.rng.choice([0, 1, 1, 2, 3]))
        self.chosen_parameters.sort(key=lambda p: _ORDER.index(p.form))
        for parameter in self.chosen_parameters:
            self.note(parameter.construct)
        return {p.name: p.kind for p in self.chosen_parameters}

    def opening(self) -> list[str]:
        return ["rest = list(rest)"] if any(p.form == "rest" for p in self.chosen_parameters) else []

    def parameters(self, names: list[str]) -> list[str]:
        texts, is_starred = list(names), False
        for p in self.chosen_parameters:
            if p.form == "named" and not is_starred:
                texts.append("*")
                is_starred = True
            match p.form:
                case "rest":
                    texts.append("*rest")
                    is_starred = True
                case "table":
                    texts.append("**more")
                case _:
                    texts.append(p.name + (f"={p.default}" if p.default else ""))
        return texts

    def calls(self, names: list[str]) -> tuple[list[str], list[str]]:
        rng = self.rng
        rows, named = [], []
        layouts = {n: rng.choice(list(_LAYOUTS)) for n in names if n in _TENSORS and rng.random() < 0.25}
        numbers = {n: rng.choice(_NUMBERS[n]) for n in names if n in _PLAIN}
        is_shared, has_infinity = rng.random() < 0.15, rng.random() < 0.3
        first: dict[str, str] = {}
        for call in range(5):
            parts = [self._argument(name, call, first, layouts, numbers) for name in names]
            if is_shared:
                parts = self._shared(names, parts)
            by_name = self._others(parts, call)
            row = f"({', '.join(parts)},)"
            rows.append(row.replace("NAN", rng.choice(["NAN", "INF", "-INF"])) if has_infinity else row)
            named.append("{" + ", ".join(f"'{name}': {text}" for name, text in by_name.items()) + "}")
        if layouts:
            self.note("argument laid out otherwise")
        if has_infinity:
            self.note("infinite arguments")
        return rows, named if any(row != "{}" for row in named) else []

    def _argument(
        self, name: str, call: int, first: dict[str, str], layouts: dict[str, str], numbers: dict[str, tuple[str, ...]]
    ) -> str:
        if name in numbers:
            return self.rng.choice(numbers[name])
        if name == "items":
            return f"[{_one(self.rng, call)}, {_one(self.rng, call)}]"
        text = _tensor(self.rng, _TENSORS[name], call, first.get(name, ""))
        first.setdefault(name, text)
        return _LAYOUTS[layouts[name]](f"({text})", _TENSORS[name][2]) or text if name in layouts else text

    def _shared(self, names: list[str], parts: list[str]) -> list[str]:
        """Vectors and 0-d tensors in the memory of the first argument, a matrix."""
        self.note("arguments share memory")
        views = {"y": self.rng.choice(["[1]", ".flatten()[2:6]", "[0]"]), "s": self.rng.choice(["[0, 1]", "[2, 3]"])}
        return [
            f"(X := {parts[0]})",
            *(f"X{views[n]}" if n in views else p for n, p in zip(names[1:], parts[1:], strict=True)),
        ]

    def _others(self, parts: list[str], call: int) -> dict[str, str]:
        """Appends what is given by position; the rest by name."""
        by_name: dict[str, str] = {}
        has_rest = any(p.form == "rest" for p in self.chosen_parameters)
        for p in self.chosen_parameters:
            text = p.value(self.rng, call)
            if p.form == "rest":
                parts += [text] if text else []
            elif p.form == "table":
                by_name |= {f"k{i}": _one(self.rng, call) for i in range(self.rng.choice([0, 1, 2]))}
            elif p.form == "named" or (p.form == "default" and not has_rest and (by_name or self.rng.random() < 0.4)):
                if text is not None:
                    by_name[p.name] = text
                elif p.form == "default":
                    by_name[p.name] = p.default
                elif not p.default:
                    raise ValueError(p.name)
            elif text is None:
                parts.append(p.default)
            else:
                parts.append(text)
        return by_name

    # ---------------------------------------------------------------- narrow dtypes

    def binary(self, dtype: str, shape: tuple[Any, ...], d: int) -> str:
        if dtype in HALVES:
            a, b = self.tensor(dtype, shape, d), self.tensor(dtype, shape, d)
            if self.chance(0.3):
                return one_zero(f"torch.{self.rng.choice(['maximum', 'minimum'])}({a}, {b})", dtype)
            return f"({a} {self.rng.choice('+-')} {b}).clamp(-8, 8)"
        if dtype in NARROW:
            a, b = self.tensor(dtype, shape, d), self.tensor(dtype, shape, d)
            return self.pick(
                [
                    f"({a} {self.rng.choice('+-*')} {b})",
                    f"torch.maximum({a}, {b})",
                    f"({a} {self.rng.choice('&|^')} {b})",
                ]
            )
        return super().binary(dtype, shape, d)

    def unary(self, dtype: str, shape: tuple[Any, ...], d: int) -> str:
        if dtype == "uint8":
            return (
                "("
                + self.pick(["{}.clone()", "(~{})", "-{}", "{}.clamp(max=9)"]).format(self.tensor(dtype, shape, d))
                + ")"
            )
        return super().unary(dtype, shape, d)

    def scalar(self, dtype: str, shape: tuple[Any, ...], d: int) -> str:
        a = self.tensor(dtype, shape, d)
        if dtype in NARROW:
            return self.pick([f"({a} {self.rng.choice('+-*')} {self.int(d)})", f"({a} % 5)", f"({a} // 2)"])
        if dtype in HALVES:
            return self.pick(
                [
                    f"({a} + {self.int(0)} % 5).clamp(-8, 8)",
                    f"({a} * {self.rng.choice(['0.5', '2', '-1'])}).clamp(-8, 8).round()",
                ]
            )
        return super().scalar(dtype, shape, d)

    def other_dtype(self, dtype: str, shape: tuple[Any, ...], d: int) -> str:
        if dtype not in (*HALVES, *NARROW):
            if shape != UNKNOWN and self.chance(0.15):
                self.note("from a narrow dtype")
                source = self.pick([*HALVES, *NARROW])
                return f"{self.tensor(source, shape, d)}.to(torch.{dtype})"
            return super().other_dtype(dtype, shape, d)
        self.note("to a narrow dtype")
        source = self.pick([FLOAT, LONG, BOOL, *NARROW, *HALVES])
        a = self.tensor(source, shape, d)
        if dtype in HALVES:
            return f"{a}.clamp(-8, 8).to(torch.{dtype})" if source not in (BOOL, "uint8") else f"{a}.to(torch.{dtype})"
        held = f"{a}.nan_to_num(0, 9, -9)" if source in (FLOAT, DOUBLE, *HALVES) else a
        return f"{held}.abs().to(torch.{dtype})" if dtype == "uint8" and held != a else f"{held}.to(torch.{dtype})"

    def bounded(self, kind: Kind, text: str) -> str:
        if is_tensor(kind) and kind[1] == "uint8":
            return text
        if is_tensor(kind) and kind[1] in HALVES and not text.isidentifier():
            return f"({text}).clamp(-8, 8)"
        return super().bounded(kind, text)

    def random_kind(self) -> Kind:
        if self.chance(0.13):
            dtype = self.pick([*HALVES, *NARROW])
            self.note("narrow dtype")
            return tensor(dtype, self.rng.choices([(4,), (3, 4), (), (3,)], [4, 2, 1, 1])[0])
        return super().random_kind()

    # ---------------------------------------------------------------- statements

    def statement(self, place: _Place) -> list[str]:
        if self.chance(0.75):
            return super().statement(place)
        kinds: dict[str, float] = {"loop of writes": 3, "out": 2, "made function": 3, "caught risk": 2, "argument": 3}
        if self.acts:
            kinds["act"] = 6
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        made: list[str] = getattr(self, "write_" + kind.replace(" ", "_"))(place)
        return made

    def _lines(self, rows: tuple[tuple[str, ...], ...], construct: str, *, binds: bool) -> list[str]:
        names = self.named(VECTOR)
        row = self.pick(rows)
        needs_name = any("{n}" in line for line in row) and binds is not None
        is_function = rows is tables.FUNCTIONS
        if needs_name and not is_function and not names:
            return self.write_assign(_Place())
        name, result = self.new("g") if is_function else self.pick(names or [""]), self.new("v")
        self.note(construct)
        lines = [self.fill(line, n=name, r=result) for line in row]
        if binds and any(line.split("{r}")[0].strip() == "" and "{r}" in line for line in row):
            self.bind(result, VECTOR)
        return lines

    def write_loop_of_writes(self, place: _Place) -> list[str]:
        return self._lines(tables.LOOPS, "write through a view in a loop", binds=False)

    def write_out(self, place: _Place) -> list[str]:
        return self._lines(tables.OUTS, "out=", binds=True)

    def write_made_function(self, place: _Place) -> list[str]:
        return self._lines(tables.FUNCTIONS, "function made here", binds=True)

    def write_caught_risk(self, place: _Place) -> list[str]:
        return self._lines(tables.CAUGHT, "error with a way on", binds=True)

    def write_act(self, place: _Place) -> list[str]:
        return self._lines(tables.ACTS, "object outside that is written", binds=True)

    def write_argument(self, place: _Place) -> list[str]:
        """A statement about one of the further parameters."""
        rows = [row for p in self.chosen_parameters for row in _USES.get(p.name, ()) if p.name in self.scope]
        if not rows:
            return self.write_assign(place)
        self.note("use of a further parameter")
        result = self.new("v")
        lines = [self.fill(line, n="", r=result) for line in self.pick(rows)]
        if any(line.strip().startswith("{r} =") for line in self.pick(rows)) or any(
            f"{result} =" in line for line in lines
        ):
            self.bind(result, VECTOR)
        return lines


_USES: dict[str, tuple[tuple[str, ...], ...]] = {
    "mask": (
        ("{r} = {v} if mask is None else {v} * mask",),
        ("{r} = {v}", "if mask is not None:", "    {r} = {r} + mask"),
    ),
    "gate": (
        ("{r} = {v} * (1 if gate is None else gate)",),
        ("{r} = masked({v}, None if gate is None else gate > 0)",),
    ),
    "power": (
        ("{r} = ({v} ** power).clamp(-9, 9)",),
        ("{r} = {v}", "for _ in range(power):", "    {r} = ({r} + 1).clamp(-9, 9)"),
        ("{r} = {v} * power",),
        ("{r} = {v}[power:].sum() + {v}",),
    ),
    "ratio": (
        ("{r} = ({v} * ratio).clamp(-9, 9)",),
        ("{r} = {v} + 1 if ratio > {f} else {v}",),
        ("{r} = torch.full((4,), ratio)",),
        ("{r} = {v} / (ratio or 1)",),
    ),
    "weight": (("{r} = {v} + weight",), ("weight.add_(1)", "{r} = weight * {v}", "{r}.clamp_(-9, 9)")),
    "flip": (
        ("{r} = {v}.flip(0) if flip else {v}",),
        ("{r} = {v} + flip",),
        ("{r} = {v} if flip is True else {v} + 1",),
    ),
    "how": (
        ("{r} = {v} if how == 'left' else {v}.flip(0)",),
        ("{r} = {v} + len(how)",),
        ("{r} = pooled({m}, 'a' + how)",),
        ("{r} = {{'left': {v}, 'right': {v}}}.get(how, {v})",),
    ),
    "rest": (
        ("{r} = sum(rest, {v})",),
        ("{r} = mixed({v}, 1, *rest)",),
        ("{r} = rest[-1] if rest else {v}",),
        ("{r} = {v} + len(rest)",),
        ("{r} = {v}", "for one in rest:", "    {r} = torch.maximum({r}, one)"),
    ),
    "more": (
        ("{r} = mixed({v}, **more)",),
        ("{r} = {v} + len(more)",),
        ("{r} = {v}", "for one in more.values():", "    {r} = {r} + one"),
        ("{r} = more.get('k0', {v})",),
        ("{r} = {v} + ('k1' in more)",),
    ),
    "table": (
        ("{r} = chosen(table, 'b', {v})",),
        ("table['a'].add_(1)", "{r} = table['a'] * 1"),
        ("table['d'] = {v}", "{r} = table['d'] + 1"),
        ("{r} = table.pop('a', {v})",),
        ("{r} = sum(table.values(), {v})",),
        ("{r} = torch.stack(list(table.values())).sum(0)",),
    ),
    "ints": (
        ("{r} = {v} + sum(ints)",),
        ("{r} = {v}[[one % 4 for one in ints]].sum() + {v}",),
        ("ints.append(1)", "{r} = {v} + len(ints)"),
        ("{r} = torch.zeros(4)", "{r}[: len(ints)] += 1"),
    ),
    "box": (
        ("{r} = boxed(box, {v})",),
        ("box.weight += 1", "{r} = {v} * (box.weight % 3)"),
        ("box.value = {v}", "{r} = box.doubled.clamp(-9, 9)"),
        ("{r} = box({v}).clamp(-9, 9)",),
        ("box.value.add_(1)", "{r} = box.value.clone()"),
    ),
    "point": (
        ("{r} = point.left + point.right",),
        ("left, right = point", "{r} = left * right"),
        ("{r} = point._replace(left={v}).left",),
    ),
    "pair": (("{r} = pair[0] + pair[1]",), ("{r}, o = pair", "{r} = {r} - o"), ("pair[0].neg_()", "{r} = pair[0] + 1")),
    "half": (
        ("{r} = (half + {v}).clamp(-9, 9)",),
        ("half.add_({c})", "{r} = half.float().clamp(-9, 9)"),
        ("{r} = {v} if half.sum() > {i} else {v} + 1",),
    ),
    "brain": (
        ("{r} = brain.amax(0).float()",),
        ("brain[1].zero_()", "{r} = brain[2].float()"),
        ("{r} = brain.float().sum(0).clamp(-9, 9)",),
    ),
    "small": (
        ("{r} = (small * 3).float()",),
        ("small += 100", "{r} = small.float() % 9"),
        ("{r} = {v}[small.long() % 4]",),
    ),
    "bits": (
        ("{r} = (bits - 3).float() % 9",),
        ("bits.sub_(20)", "{r} = bits.float() % 9"),
        ("{r} = {v}.masked_fill(bits.bool(), 1)",),
    ),
    "whole": (
        ("{r} = (whole + {k}).float().clamp(-9, 9)",),
        ("{r} = {v} + whole.sum().item() % 5",),
        ("{r} = {v}[whole % 4]",),
    ),
    "hollow": (
        ("{r} = {v} + hollow.sum()",),
        ("{r} = F.pad(hollow, (0, 4))[:4]",),
        ("{r} = {v} + len(hollow)",),
        ("{r} = {v}", "for one in hollow:", "    {r} = ({r} + one).clamp(-9, 9)"),
        ("hollow.neg_()", "{r} = torch.cat([hollow, {v}])[:4]"),
    ),
}


def broad(seed: int, size: int = 0) -> Generated:
    """The program of this number with all constructs and kinds of parameters."""
    made = generate(seed, size, Broad, wide_tables.PRELUDE + tables.PRELUDE)
    # Sums of the largest finite numbers depend on their order.
    return Generated(seed, made.text.replace(".nan_to_num()", ".nan_to_num(0, 9, -9)"), made.constructs)
