"""Random programs whose data lie in dictionaries, sets and objects with keys of every kind.

    text = keyed(seed)                  the program: `program(x)`, `change(step)`, `world()`
    judge_keyed(path, "compile")        -> the first difference from eager over several calls; empty where there is none

Between the calls `change` puts, takes, moves and writes what the containers hold. Eager and the tried way have a module
of their own each, from one text, so that what one of them writes the other does not see.
"""

# ruff: noqa: E501  (a row of a table is a line)
from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch

import smelt
from smelt.diag import CaptureError
from tests.programs.objects import Objects, objects

WAYS = ("compile", "dynamic", "trace")
CALLS = 7

_HEAD = '''
import collections, dataclasses, datetime, decimal, enum, fractions, functools, math, pathlib, types, weakref
import numpy as np
import torch
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque
from types import MappingProxyType, SimpleNamespace


class Color(enum.Enum):
    RED, BLUE = 1, 2


class Level(enum.IntEnum):
    LOW, HIGH = 1, 2


class Bits(enum.Flag):
    A, B = 1, 2


class Plain:
    def __init__(self, scale):
        self.scale = scale


class Equal(Plain):
    def __eq__(self, other):
        return type(other) is Equal and other.scale == self.scale

    def __hash__(self):
        return hash(self.scale)


class Colliding(Plain):
    def __hash__(self):
        return 7


class Silent(Plain):
    def __repr__(self):
        raise RuntimeError("nobody may print this")


class Same(Plain):
    def __repr__(self):
        return "'a'"


class Text(str):
    __slots__ = ()

    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return 3

    def __repr__(self):
        return "'a'"


class Lower(str):
    def __hash__(self):
        return hash(str(self).lower())

    def __eq__(self, other):
        return isinstance(other, str) and str(self).lower() == str(other).lower()


class Whole(int):
    def __repr__(self):
        return "1"


class Other(int):
    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return 1


class Real(float):
    pass


class Slotted:
    __slots__ = ("scale", "part")

    def __init__(self, scale):
        self.scale, self.part = scale, None


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float
    name: str = "a"


@dataclasses.dataclass(unsafe_hash=True)
class Record:
    scale: float


Pair = collections.namedtuple("Pair", "a b")


class Table(dict):
    pass


class Filling(dict):
    def __missing__(self, key):
        return 0.25


class Shelf(dict):
    def __init__(self, *args):
        super().__init__(*args)
        self.extra = torch.full((1,), 0.5)


class Bag(set):
    pass


def plus(x):
    return x + 1


def twice(x):
    return x * 2


def use(x, v):
    """What any value does to a tensor."""
    if isinstance(v, torch.Tensor):
        return x + v
    if v is None:
        return x
    if isinstance(v, (bool, int, float)):
        return x * v
    if isinstance(v, str):
        return x + len(v)
    if callable(v):
        return v(x)
    if isinstance(v, (list, tuple, deque)):
        for i, item in enumerate(v):
            x = use(x, item) + i
        return x
    if isinstance(v, (dict, MappingProxyType, ChainMap, UserDict)):
        for i, item in enumerate(v.values()):
            x = use(x, item) - i
        return x
    if isinstance(v, (set, frozenset)):
        return x + len(v)
    return use(x, v.scale)


def t(value):
    return torch.full((1,), float(value))


NAN, OTHER_NAN = float("nan"), float("nan")
'''

# By name: the expression, and whether the order of a set of such keys follows addresses.
KEYS: dict[str, tuple[str, bool]] = {
    "text": ("'a'", False),
    "text like a path": ("\"a']['b\"", False),
    "empty text": ("''", False),
    "text with a number": ("'a#2'", False),
    "one": ("1", False),
    "true": ("True", False),
    "one as a float": ("1.0", False),
    "two": ("2", False),
    "minus one": ("-1", False),
    "minus two": ("-2", False),
    "zero": ("0.0", False),
    "minus zero": ("-0.0", False),
    "false": ("False", False),
    "nan": ("NAN", True),
    "another nan": ("OTHER_NAN", True),
    "infinity": ("math.inf", False),
    "complex": ("1j", False),
    "bytes": ("b'a'", False),
    "nothing": ("None", True),
    "ellipsis": ("...", True),
    "tuple": ("(1, 'a')", False),
    "tuple of true": ("(True, 'a')", False),
    "nested tuple": ("((1, 2.0), (None,))", True),
    "tuple of an object": ("(OBJECT, 1)", True),
    "tuple of a tensor": ("(TENSOR, 1)", True),
    "empty tuple": ("()", False),
    "frozenset": ("frozenset({1, 'a'})", False),
    "frozenset of a frozenset": ("frozenset({frozenset({1}), 2})", False),
    "frozenset of an object": ("frozenset({OBJECT})", True),
    "builtin type": ("int", True),
    "class": ("Plain", True),
    "function": ("plus", True),
    "another function": ("twice", True),
    "lambda": ("LAMBDA", True),
    "builtin function": ("len", True),
    "partial": ("PARTIAL", True),
    "bound method": ("OBJECT.__init__", True),
    "enum": ("Color.RED", False),
    "another enum": ("Color.BLUE", False),
    "int enum": ("Level.LOW", False),
    "flag": ("Bits.A | Bits.B", False),
    "dtype": ("torch.float32", True),
    "another dtype": ("torch.int64", True),
    "device": ("torch.device('cpu')", False),
    "size": ("torch.Size([1, 2])", False),
    "memory format": ("torch.contiguous_format", True),
    "tensor": ("TENSOR", True),
    "another tensor": ("OTHER_TENSOR", True),
    "parameter": ("PARAMETER", True),
    "module": ("LAYER", True),
    "object": ("OBJECT", True),
    "another object": ("OTHER_OBJECT", True),
    "object that is equal": ("Equal(2.0)", False),
    "object with a hash": ("COLLIDING", True),
    "another object with that hash": ("OTHER_COLLIDING", True),
    "object that cannot be printed": ("SILENT", True),
    "object that prints as a text": ("SAME", True),
    "object with slots": ("SLOTTED", True),
    "own text": ("TEXT", False),
    "another own text": ("OTHER_TEXT", False),
    "text without case": ("Lower('A')", False),
    "own int": ("Whole(5)", False),
    "int equal to none": ("OWN_INT", False),
    "own float": ("Real(2.5)", False),
    "named tuple": ("Pair(1, 'a')", False),
    "frozen record": ("Frozen(2.0)", False),
    "record": ("RECORD", False),
    "range": ("range(3)", False),
    "numpy float": ("np.float32(1.5)", False),
    "numpy int": ("np.int64(7)", False),
    "decimal": ("decimal.Decimal('1.5')", False),
    "fraction": ("fractions.Fraction(1, 3)", False),
    "date": ("datetime.date(2020, 1, 2)", False),
    "path": ("PATH", False),
    "module of python": ("math", True),
    "weak reference": ("WEAK", True),
    "error": ("ERROR", True),
}
_NAMED = """
TENSOR, OTHER_TENSOR = torch.full((1,), 0.25), torch.full((1,), 0.75)
PARAMETER = torch.nn.Parameter(torch.full((1,), 1.25), requires_grad=False)
LAYER = torch.nn.Linear(1, 1, bias=False).requires_grad_(False)
LAYER.weight.fill_(0.5)
OBJECT, OTHER_OBJECT = Plain(2.0), Plain(3.0)
COLLIDING, OTHER_COLLIDING = Colliding(1.5), Colliding(2.5)
SILENT, SAME, SLOTTED, RECORD = Silent(0.5), Same(1.5), Slotted(0.25), Record(1.25)
TEXT, OTHER_TEXT, OWN_INT = Text("a"), Text("a"), Other(1)
LAMBDA, PARTIAL, ERROR = (lambda x: x - 1), functools.partial(twice), ValueError("a")
WEAK = weakref.ref(LAYER)
PATH = pathlib.PurePosixPath('a/b')
str(PATH), hash(PATH), PATH < PATH  # which it keeps
"""
CONTAINERS = {
    "dict": "{{{items}}}",
    "OrderedDict": "OrderedDict([{pairs}])",
    "defaultdict": "defaultdict(float, [{pairs}])",
    "own dict": "Table([{pairs}])",
    "dict with a default": "Filling([{pairs}])",
    "dict with attributes": "Shelf([{pairs}])",
    "mapping proxy": "MappingProxyType({{{items}}})",
    "ChainMap": "ChainMap({{{items}}}, {{'z': 0.5}})",
    "UserDict": "UserDict([{pairs}])",
    "dict in a dict": "{{'in': {{{items}}}}}['in']",
}
_SETS = {"set": "{{{keys}}}", "frozenset": "frozenset([{keys}])", "own set": "Bag([{keys}])"}
_FIXED = ("mapping proxy",)
_HOLDERS = ("global", "cell", "attribute", "default", "class", "function", "slot", "list", "table")


@dataclass
class Keyed:
    """A program, and which constructs it has."""

    text: str
    constructs: list[str] = field(default_factory=list)


@dataclass
class _Container:
    name: str
    kind: str
    keys: list[str]
    where: str  # the expression by which the program reaches it
    at: str  # the one by which `change` does


class _Writer:
    def __init__(self, seed: int, for_trace: bool) -> None:
        self.rng, self.for_trace = Random(seed), for_trace
        self.used: list[str] = []
        self.head: list[str] = []
        self.body: list[str] = []
        self.changes: list[str] = []
        self.seen: list[str] = []
        self.cells: list[str] = []
        self.defaults: list[str] = []
        self.containers: list[_Container] = []
        self.sets: list[_Container] = []
        self.given: _Container | None = None

    def _note(self, what: str) -> None:
        self.used.append(what)

    def _value(self, depth: int = 0) -> str:
        rng = self.rng
        roll = rng.randrange(16 if depth < 2 else 10)
        number = rng.randint(1, 40) / 4
        if roll < 6:
            self._note("tensor as value")
            return f"t({number})"
        if roll < 8:
            return rng.choice((f"{number}", f"{rng.randint(1, 4)}", "True"))
        if roll == 8:
            return rng.choice(("None", "'abc'", "''"))
        if roll == 9:
            return rng.choice(("plus", "twice", "LAMBDA", "PARTIAL"))
        if roll == 10:
            return f"[{self._value(depth + 1)}, {self._value(depth + 1)}]"
        if roll == 11:
            return f"({self._value(depth + 1)}, {self._value(depth + 1)})"
        if roll == 12:
            return f"deque([{self._value(depth + 1)}])"
        if roll == 13:
            self._note("object as value")
            return f"{rng.choice(('Plain', 'Slotted', 'Record'))}({self._value(depth + 1)})"
        self._note("nested dict")
        keys = rng.sample(sorted(KEYS), 2)
        return "{" + ", ".join(f"{KEYS[k][0]}: {self._value(depth + 1)}" for k in keys) + "}"

    def _hold(self, name: str, made: str) -> tuple[str, str]:
        """Where a container is, as the program and as others see it."""
        self.head.append(f"{name} = {made}")
        holder = self.rng.choice(_HOLDERS)
        self._note(f"held by {holder}")
        match holder:
            case "cell":
                self.cells.append(name)
                return f"cell_{name}", name
            case "default":
                self.defaults.append(name)
                return f"given_{name}", name
            case "attribute":
                self.head.append(f"SPACE.{name} = {name}")
                return f"SPACE.{name}", name
            case "class":
                self.head.append(f"Plain.{name} = {name}")
                return self.rng.choice((f"Plain.{name}", f"OBJECT.{name}")), name
            case "function":
                self.head.append(f"use.{name} = {name}")
                return f"use.{name}", name
            case "slot":
                self.head.append(f"HOLDER_{name} = Slotted(1.0); HOLDER_{name}.part = {name}")
                return f"HOLDER_{name}.part", name
            case "list":
                self.head.append(f"LIST_{name} = [None, {name}]")
                return f"LIST_{name}[1]", name
            case "table":
                key = KEYS[self.rng.choice(sorted(KEYS))][0]
                self.head.append(f"TABLE_{name} = {{'first': 1, {key}: {name}}}; KEY_{name} = list(TABLE_{name})[1]")
                return f"TABLE_{name}[KEY_{name}]", name
        return name, name

    def _make(self, number: int) -> None:
        rng = self.rng
        kind = rng.choice(sorted(CONTAINERS))
        self._note(kind)
        keys = rng.sample(sorted(KEYS), rng.randint(2, 6))
        for key in keys:
            self._note(f"key: {key}")
        name = f"D{number}"
        names = [f"K{number}_{i}" for i in range(len(keys))]
        self.head += [f"{n} = {KEYS[k][0]}" for n, k in zip(names, keys, strict=True)]
        values = [self._value() for _ in keys]
        items = ", ".join(f"{k}: {v}" for k, v in zip(names, values, strict=True))
        pairs = ", ".join(f"({k}, {v})" for k, v in zip(names, values, strict=True))
        where, at = self._hold(name, CONTAINERS[kind].format(items=items, pairs=pairs))
        self.containers.append(_Container(name, kind, names, where, at))

    def _make_given(self) -> None:
        """A dict among the arguments, another one at each call."""
        keys = self.rng.sample(sorted(KEYS), self.rng.randint(1, 4))
        names = [f"A{i}" for i in range(len(keys))]
        for key in keys:
            self._note(f"key: {key}")
        self.head += [f"{n} = {KEYS[k][0]}" for n, k in zip(names, keys, strict=True)]
        self.given = _Container("given", "argument", names, "given", "given")
        self.containers.append(self.given)

    def _arguments(self) -> str:
        """What `given` is at each call: mostly the same keys in the same order."""
        if self.given is None:
            return "def arguments(step):\n    return ()\n"
        rng, rows = self.rng, []
        names = self.given.keys
        values = [self._value() for _ in names]
        for _ in range(CALLS):
            keys, roll = list(names), rng.random()
            made = [f"t({rng.randint(1, 40) / 4})" if v.startswith("t(") else v for v in values]
            if not self.for_trace and roll < 0.4:
                at = rng.randrange(len(keys))
                if roll < 0.1:
                    keys.reverse()
                elif roll < 0.2:
                    keys[at] = KEYS[rng.choice(sorted(KEYS))][0]
                elif roll < 0.3:
                    made[at] = self._value()
                else:
                    keys, made = keys[:at] + keys[at + 1 :], made[:at] + made[at + 1 :]
            kind = "OrderedDict([{}])" if self.for_trace or rng.random() < 0.9 else "defaultdict(float, [{}])"
            rows.append(kind.format(", ".join(f"({k}, {v})" for k, v in zip(keys, made, strict=True))))
        lines = "".join(f"    if step == {i}:\n        return ({row},)\n" for i, row in enumerate(rows))
        return f"def arguments(step):\n{lines}"

    def _make_set(self, number: int) -> None:
        kind = self.rng.choice(sorted(_SETS))
        self._note(kind)
        keys = self.rng.sample(sorted(KEYS), self.rng.randint(1, 4))
        names = [f"S{number}_{i}" for i in range(len(keys))]
        self.head += [f"{n} = {KEYS[k][0]}" for n, k in zip(names, keys, strict=True)]
        where, at = self._hold(f"S{number}", _SETS[kind].format(keys=", ".join(names)))
        self.sets.append(_Container(f"S{number}", kind, names, where, at))

    # ------------------------------------------------------------------------------------------ what the program does

    def _statement(self, indent: str) -> None:
        rng, c = self.rng, self.rng.choice(self.containers)
        d, key = c.where, rng.choice(c.keys)
        number, other = rng.randint(1, 8) / 4, rng.choice(c.keys)
        reads: list[tuple[str, list[str]]] = [
            ("get item", [f"x = use(x, {d}[{key}]) if {key} in {d} else x"]),
            ("get", [f"x = use(x, {d}.get({key}, {number}))"]),
            ("contains", [f"x = x * {number} if {key} in {d} else x"]),
            ("length", [f"x = x + len({d})"]),
            ("items", [f"for k, v in {d}.items():", f"    x = use(x, v) + ({number} if k is {key} else 1)"]),
            ("values", [f"for v in {d}.values():", "    x = use(x, v)"]),
            ("order", [f"x = x * {number} if list({d})[:1] == [{key}] else x"]),
            ("enumerate", [f"for i, k in enumerate({d}):", f"    x = x + (i if k is {key} else 0)"]),
            (
                "type of a key",
                [f"for k in {d}:", "    x = x * 2 if type(k) is bool else x + 1 if type(k) is int else x"],
            ),
            (
                "attribute of a key",
                [f"for k in {d}:", "    x = use(x, k.scale) if isinstance(k, (Plain, Record)) else x"],
            ),
            ("tensor as key", [f"for k in {d}:", "    x = x + k * 2 if isinstance(k, torch.Tensor) else x"]),
            (
                "tensor in a key",
                [
                    f"for k in {d}:",
                    "    x = x + k[0] if type(k) is tuple and len(k) and isinstance(k[0], torch.Tensor) else x",
                ],
            ),
            ("call of a key", [f"for k in {d}:", "    x = k(x) if isinstance(k, types.FunctionType) else x"]),
            ("module as key", [f"for k in {d}:", "    x = x + k(x[:1]) if isinstance(k, torch.nn.Module) else x"]),
            ("text of a key", [f"for k in {d}:", "    x = x + len(k) if isinstance(k, str) else x"]),
            ("comprehension", [f"x = use(x, [v for k, v in {d}.items() if k is not {key}])"]),
            ("first", [f"x = use(x, next(iter({d}.values()), 1))"]),
            (
                "copy",
                [
                    f"made = dict({d})",
                    f"made[{key}] = x.sum()",
                    "x = x + made[list(made)[0]] if isinstance(made[list(made)[0]], torch.Tensor) else x",
                ],
            ),
            ("sum of tensors", [f"x = x + sum(v for v in {d}.values() if isinstance(v, torch.Tensor))"]),
            (
                "key by data",
                [
                    f"k = {key} if x.sum() > {number} else {other}",
                    f"x = use(x, {d}.get(k, {number}))",
                    "out.append([k])",
                ],
            ),
            ("value by data", [f"x = use(x, {d}.get({key}, 1) if x.sum() > {number} else {d}.get({other}, 1))"]),
            ("result", [f"out.append({{{key}: x.sum()}})"]),
            ("keys in the result", [f"out.append([len({d}), {key} in {d}])"]),
        ]
        writes: list[tuple[str, list[str]]] = [
            ("write a tensor", [f"{d}[{key}] = x.sum()[None]"]),
            ("write in place", [f"if isinstance({d}.get({key}), torch.Tensor):", f"    {d}[{key}].add_({number})"]),
            ("count", [f"{d}[{key}] = ({d}.get({key}) if isinstance({d}.get({key}), float) else 0.0) + 1.0"]),
            ("setdefault", [f"x = use(x, {d}.setdefault({key}, {number}))"]),
            ("pop", [f"x = use(x, {d}.pop({key}, {number}))"]),
        ]
        rolled = rng.random()
        if rolled < 0.12 and c.kind not in _FIXED and not self.for_trace:
            what, lines = rng.choice(writes)
        elif rolled < 0.3 and self.sets:
            s = rng.choice(self.sets)
            member = rng.choice(s.keys)
            what, lines = rng.choice([
                ("member", [f"x = x + {number} if {member} in {s.where} else x"]),
                ("length of a set", [f"x = x + len({s.where})"]),
                ("members", [f"for k in {s.where}:", "    x = x + k if isinstance(k, torch.Tensor) else x + 1"]),
                ("member of a set", [f"x = x + {number} if {key} in {s.where} else x"]),
                ("attribute of a member", [f"x = x + sum(k.scale for k in {s.where} if isinstance(k, (Plain, Record)))"]),
            ])  # fmt: skip
        else:
            what, lines = rng.choice(reads)
        self._note(what)
        self.body += [indent + line for line in lines]

    # ---------------------------------------------------------------------------------------------- between the calls

    def _change(self) -> str:
        rng, c = self.rng, self.rng.choice([c for c in self.containers if c is not self.given])
        d, key = c.at, rng.choice(c.keys)
        tensors = [
            ("write into a value", f"_tensor({d}, {key}, lambda v: v.add_(0.5))"),
            (
                "replace a tensor",
                f"_tensor({d}, {key}, lambda v: {d}.__setitem__({key}, v + 1) if hasattr({d}, '__setitem__') else v.mul_(2))",
            ),
            ("write into a key", "TENSOR.add_(0.25)"),
            ("write into a parameter", "PARAMETER.mul_(2); LAYER.weight.add_(0.5)"),
            ("nothing", "pass"),
        ]
        if self.for_trace:
            what, text = rng.choice(tensors)
            self._note(f"between: {what}")
            return text
        others = [
            (
                "change what a key holds",
                f"{rng.choice(('OBJECT', 'OTHER_OBJECT', 'COLLIDING', 'SILENT', 'SAME'))}.scale = {rng.choice(('t(2.5)', '4.0', '0.5'))}",
            ),
        ]
        if c.kind not in _FIXED:
            value = self._value()
            others += [
                ("replace", f"{d}[{key}] = {value}"),
                ("remove", f"{d}.pop({key}, None)"),
                ("add", f"{d}[{KEYS[rng.choice(sorted(KEYS))][0]}] = {value}"),
                ("move to the end", f"_moved({d}, {key})"),
                ("put another key that is equal", f"_swapped({d})"),
                ("reverse", f"_reversed({d})"),
                ("exchange two values", f"_exchanged({d}, {key}, {rng.choice(c.keys)})"),
                ("clear and fill", f"_refilled({d})"),
            ]
        if self.sets:
            s = rng.choice(self.sets)
            if s.kind != "frozenset":
                member = rng.choice([*s.keys, KEYS[rng.choice(sorted(KEYS))][0]])
                others += [("toggle a member", f"_toggled({s.at}, {member})")]
        what, text = rng.choice([*tensors, *others, *others])
        self._note(f"between: {what}")
        return text

    def write(self) -> str:
        rng = self.rng
        for number in range(rng.randint(1, 3)):
            self._make(number)
        for number in range(rng.randint(0, 2)):
            self._make_set(number)
        if rng.random() < 0.4:
            self._note("argument")
            self._make_given()
        self.body += ["out = []"]
        for _ in range(rng.randint(2, 5)):
            if rng.random() < 0.2:
                self._note("branch on data")
                self.body.append(f"if x.sum() > {rng.randint(-4, 12)}:")
                self._statement("    ")
                if rng.random() < 0.5:
                    self.body.append("else:")
                    self._statement("    ")
            else:
                self._statement("")
        self.body.append("return x, out")
        changes = [self._change() for _ in range(CALLS)]
        cells = "".join(f"    cell_{name} = {name}\n" for name in self.cells)
        given = ", given" if self.given is not None else ""
        given += "".join(f", given_{name}={name}" for name in self.defaults)
        arguments = self._arguments()
        lines = "\n".join("        " + line for line in self.body)
        every = "[" + ", ".join(k for c in (*self.containers, *self.sets) for k in c.keys) + "]"
        return (
            f"{_HEAD}{_NAMED}SPACE = SimpleNamespace()\n" + "\n".join(self.head) + "\n"
            f"KEYS = {every}\n\ndef _made():\n{cells}    def program(x{given}):\n{lines}\n    return program\n\n"
            "program = _made()\n" + _CHANGES
            + "def change(step):\n" + "".join(f"    if step == {i}:\n        {text}\n" for i, text in enumerate(changes))
            + "\n" + arguments
            + "\ndef world():\n    return [" + ", ".join(c.at for c in self.containers if c is not self.given) + "], ["
            + ", ".join(f"[k in {s.at} for k in KEYS], len({s.at})" for s in self.sets) + "]\n"
        )  # fmt: skip


_CHANGES = '''
def _tensor(d, key, act):
    if isinstance(d.get(key), torch.Tensor):
        act(d[key])


def _moved(d, key):
    if key in d:
        d[key] = d.pop(key)


def _swapped(d):
    """Keys that are equal to others, and of another type."""
    for key, other in ((1, True), (True, 1.0), (1.0, 1), (0.0, -0.0), (-0.0, False), (False, 0.0)):
        found = [k for k in d if type(k) is type(key) and repr(k) == repr(key)]
        if found and key in d:
            value = d.pop(found[0])
            d[other] = value
            return


def _reversed(d):
    items = list(d.items())
    for key, _ in items:
        d.pop(key, None)
    for key, value in reversed(items):
        d[key] = value


def _exchanged(d, a, b):
    if a in d and b in d:
        d[a], d[b] = d[b], d[a]


def _refilled(d):
    items = list(d.items())
    d.clear()
    for key, value in items:
        d[key] = value


def _toggled(s, key):
    if key in s:
        s.discard(key)
    else:
        s.add(key)


'''


def keyed(seed: int, for_trace: bool = False) -> Keyed:
    """One program. for_trace: nothing but tensors changes between the calls, and nothing in one."""
    writer = _Writer(seed, for_trace)
    text = writer.write()
    return Keyed(text, writer.used)


# ------------------------------------------------------------------------------------------------------------ judging


@dataclass
class Judged:
    """difference: the first from eager. graphs: how many graphs were made. why: the reasons of runs in eager."""

    difference: str = ""
    graphs: int = 0
    why: list[str] = field(default_factory=list)


def _load(path: Path, number: int) -> dict[str, Any]:
    module = types.ModuleType(f"{path.stem}_{number}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module.__dict__


def _look(run: Callable[..., Any], space: dict[str, Any], x: torch.Tensor, step: int) -> tuple[Objects, str]:
    more = space["arguments"](step)
    try:
        result = run(x, *more)
    except CaptureError:
        raise
    except Exception as error:
        return objects(more, *space["world"]()), f"{type(error).__name__}: {error}"
    return objects(result, x, more, *space["world"]()), ""


def judge_keyed(path: Path, way: str, options: dict[str, Any]) -> Judged:
    """Call eager and the given way side by side, with changes between the calls."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _judged(path, way, options)
        finally:
            for number in (0, 1):
                sys.modules.pop(f"{path.stem}_{number}", None)


def _judged(path: Path, way: str, options: dict[str, Any]) -> Judged:
    eager, tried = _load(path, 0), _load(path, 1)
    found = Judged()
    rng = Random(path.stem)
    inputs = [torch.tensor([rng.randint(-16, 16) / 4 for _ in range(rng.choice((2, 3, 5)))]) for _ in range(CALLS)]
    if way != "dynamic":
        inputs = [x[:2] for x in inputs]
    if way == "trace":
        try:
            run: Any = smelt.trace(tried["program"], (inputs[0].clone(), *tried["arguments"](0)), check=False)
        except CaptureError as error:
            found.why.append(str(error.what))
            return found
        except Exception:
            return found  # the program's own
        eager["program"](inputs[0].clone(), *eager["arguments"](0))
    else:
        run = smelt.compile(tried["program"], options=options, dynamic=True if way == "dynamic" else None)
    for step, x in enumerate(inputs):
        for _ in range(2 if step % 2 else 1):
            want, raised = _look(eager["program"], eager, x.clone(), step)
            try:
                got, fell = _look(run, tried, x.clone(), step)
            except CaptureError as error:
                found.why.append(str(error.what))
                return found
            if raised != fell:
                found.difference = f"call {step}: {fell or 'no error'} instead of {raised or 'none'}"
            text = want.difference(got)
            if text and not found.difference:
                found.difference = f"call {step}: {text}"
            if found.difference:
                return found
        for space in (eager, tried):
            space["change"](step)
    if way != "trace":
        stats = run.stats()
        found.graphs = sum(row.entry is not None for row in stats.rows)
        found.why += [str(reason) for reason in stats.fallbacks]
    else:
        found.graphs = 1
    return found


__all__ = ["CONTAINERS", "KEYS", "WAYS", "Judged", "Keyed", "judge_keyed", "keyed"]
