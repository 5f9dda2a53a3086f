"""What Python may do with a number, as expressions of `n` and a tensor `x`; and what they call."""
# ruff: noqa: F401  (the uses name the modules)

from __future__ import annotations

import collections
import copy
import dataclasses
import decimal
import enum
import fractions
import functools
import itertools
import json
import math
import numbers
import operator
import pickle
import random
import statistics
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

BOTH = """
type(n) is int
type(n) in (int, float)
type(n).__name__
type(n)
type(n)(3) + 1
type(n)("7")
type(n) is type(x.shape[0]), type(n + 1), type(n * 1.0), type(round(n)), type([n][0])
n.__class__
n.__class__(3)
isinstance(n, int), isinstance(n, numbers.Number), isinstance(n, numbers.Integral), isinstance(n, bool)
isinstance(3, type(n)), issubclass(type(n), int)
operator.is_(type(n), int)
{int: "a", float: "b"}[type(n)]
list(map(type, [n, 1]))
[type(k) for k in (n, "a")]
[v for v in [n, 2.5, "a"] if type(v) is int]
list(filter(lambda v: type(v) is int, [n, 2.5]))
(lambda k: type(k).__name__)(n)
functools.partial(type, n)().__name__
named(n), aliased(n), nested(n), defaulted(n), generated(n), keywords(n=n), dispatched(n), matched(n)
Holder(n).kind(), Holder(n).of(n), Holder.static(n), Holder.of_class(n)
type(x) is torch.Tensor, type(x * n) is type(x), named(x), type(x.shape).__name__
tried(lambda: json.dumps({"n": n}))
json.dumps({"a": [n]}, default=str)
json.loads(json.dumps({"n": n, "l": [n, [n]]}))
f"{n!r} {n} {n:8.3f} {n!s:>9}"
"%s %d %r" % (n, n, n)
"{:>6}".format(n), str([n]), repr((n,)), format(n, ""), ascii(n)
pickle.loads(pickle.dumps([n]))
copy.copy(n), copy.deepcopy({"a": (n,)})
{n: 1}[n], {n}, n in {2, 3, 4.5}, hash((n, 1))
math.floor(n), math.ceil(n), math.trunc(n), math.sqrt(n), math.isclose(n, 3), math.fsum([n, 1]), math.modf(n)
round(n), round(n, 2), round(n, -1), divmod(n, 3), divmod(7, n)
n ** -1, n ** 2, 2 ** n, n ** 0.5, pow(n, 2)
tried(lambda: pow(n, 2, 5))
n == "a", n != "a", n == None, n is None, n in [1, 2], n in (3, 4.5), [1, 3, 4.5].count(n)
[tried(f) for f in (lambda: n < "a", lambda: len(n), lambda: n[0], lambda: n(), lambda: iter(n), lambda: n.nothing)]
[tried(f) for f in (lambda: n / 0, lambda: n % 0, lambda: n // 0, lambda: "a" + n)]
hasattr(n, "is_integer"), hasattr(n, "bit_length"), hasattr(n, "item")
n.real, n.imag, n.conjugate(), n.as_integer_ratio()
sorted([n, 3]), max(n, 3), min([n, 3]), sum([n, 1])
bool(n), not n, n and 5, n or 5, int(n), float(n), complex(n), str(n), repr(n)
1 < n < 4, (n, 1) < (4, 0), [n] == [3]
fractions.Fraction(n), decimal.Decimal(n), statistics.mean([n, 3]), struct.pack("d", n)
numpy.array([n, 1]).dtype.name, numpy.asarray(n).dtype.name, numpy.full((2,), n).tolist(), numpy.float32(n).item()
numpy.issubdtype(type(n), numpy.integer), (numpy.ones(2) * n).tolist()
torch.tensor([n, 1]), torch.full((2,), n), x * n, x.clamp(max=n), torch.result_type(x, n)
functools.reduce(operator.add, [n, 1, 2]), list(itertools.accumulate([n, 1, n]))
Data(n), dataclasses.asdict(Data(n)), collections.Counter([n, 3])
n.__add__(1), n.__eq__(3), n.__format__(""), n.__radd__(5), n.__divmod__(2)
type(x.sum().item()) is type(n)
random.Random(n).random()
tried(lambda: math.frexp(n)), n.__getnewargs__(), float.__add__(float(n), 1.0)
"""
INTS = """
operator.index(n), list(range(n)), range(n), len(range(n)), n in range(10), range(10)[n]
range(n)[-1], range(n)[1:], range(1, n)[-1], bool(range(n - n)), range(n) == range(0, n), f"{range(n)}"
tried(lambda: range(n)[20])
isinstance(range(n), range), type(range(n)), max(range(n)), set(range(n)), [*range(n)], range(n).index(1)
n.bit_length(), n.bit_count(), n.numerator, n.denominator
int.from_bytes(n.to_bytes(2, "big"), "big"), tried(lambda: n.to_bytes(2, "big")), int.bit_length(n)
n & 3, n | 3, n ^ 3, n << 2, n >> 1, ~n, 3 & n, 1 << n
[0] * n, "a" * n, n * "ab", (1,) * n, bytes(n)
[1, 2, 3, 4, 5, 6, 7][:n], [1, 2, 3, 4][-n:], "abcdefgh"[:n], "abcdefgh"[n]
math.gcd(n, 6), math.comb(n, 2), math.factorial(n), math.isqrt(n), math.ldexp(1.0, n)
hex(n), chr(n + 60), f"{n:x}", "%03d" % n, "%*d" % (n, 3)
list(itertools.islice(itertools.count(), n)), collections.deque([1, 2, 3, 4], maxlen=n)
n.__index__(), n.__pow__(2, 5), torch.Size([n, 2]).numel(), torch.zeros(n).shape, numpy.zeros(n).shape
round(12345.678, n), round(1234567, -n), "a".rjust(n), Color(n) if n in (2, 3) else None
n ** n
"""
FLOATS = """
n.is_integer(), n.hex(), float.fromhex(n.hex()), round(n, 1), math.floor(n) == n, f"{n:.2e}", f"{n:%}"
[tried(f) for f in (lambda: [1][n], lambda: range(n), lambda: operator.index(n), lambda: n & 1, lambda: "a" * n)]
struct.pack("f", n), math.isnan(n), math.ulp(n), n == int(n), (n * 10) // 1
"""
kind = type


def tried(use: Callable[[], Any]) -> Any:
    try:
        return use()
    except Exception as error:
        return type(error), str(error)


def named(k: Any) -> Any:
    return type(k).__name__


def aliased(k: Any) -> Any:
    return kind(k) is int, kind(k) is float


def nested(k: Any) -> Any:
    def inner() -> Any:
        return type(k)

    return inner()


def defaulted(k: Any, asked: Any = type) -> Any:
    return asked(k)


def generated(k: Any) -> Any:
    def each() -> Any:
        yield type(k)

    return list(each())


def keywords(**given: Any) -> Any:
    return {name: type(value) for name, value in given.items()}


@functools.singledispatch
def dispatched(n: Any) -> Any:
    return "object"


dispatched.register(int)(lambda n: "int")
dispatched.register(float)(lambda n: "float")


def matched(n: Any) -> Any:
    match n:
        case 3:
            return "three"
        case int(k) if k > 4:
            return k * 2
        case float():
            return "float"
    return "other"


class Holder:
    def __init__(self, n: Any) -> None:
        self.n = n

    def kind(self) -> Any:
        return type(self).__name__, type(self.n)

    def of(self, n: Any) -> Any:
        return type(self), type(n)

    @staticmethod
    def static(n: Any) -> Any:
        return type(n)

    @classmethod
    def of_class(cls, n: Any) -> Any:
        return cls, type(n)


@dataclasses.dataclass
class Data:
    n: Any


class Color(enum.Enum):
    RED, BLUE = 2, 3


def programs(uses: str, text: str, folder: Path) -> dict[str, Callable[..., Any]]:
    """A program for each use, with source of its own; text: how it is made, with the use where `USE` stands."""
    found = {}
    for i, use in enumerate(filter(None, uses.splitlines())):
        file = folder / f"use{i}.py"
        file.write_text(text.replace("USE", use))
        scope = dict(globals())
        exec(compile(file.read_text(), str(file), "exec"), scope)
        found[use] = scope["f"]
    return found
