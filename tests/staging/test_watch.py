"""Staged numbers never reach code that would take them for something else than numbers."""

import dataclasses
import functools
import json
import numbers
import operator
import sys
from collections import namedtuple

import pytest
import torch

from tests.staging.programs import check, refused, staged

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])
INPUTS = ((X,), (X + 1,), (-X,))
Pair = namedtuple("Pair", "n x")


def kind(n):
    return 2.0 if type(n) is int else 3.0


def is_true(flag):
    return 2.0 if flag is True else 5.0 if flag is False else 3.0


@dataclasses.dataclass
class Held:
    n: int
    scale: float = 1.0

    def kind(self):
        return 2.0 if type(self.n) is int else 3.0


@dataclasses.dataclass
class Checked:
    n: int

    def __post_init__(self):
        self.kind = type(self.n)


class Slotted:
    __slots__ = ("n",)

    def kind(self):
        return kind(self.n)


class Called:
    def __call__(self, n):
        return 2.0 if type(n) is int else 3.0

    def __add__(self, n):
        return 2.0 if type(n) is int else 3.0

    @property
    def kind(self):
        return 2.0 if type(self.n) is int else 3.0


def number(x):
    return int(x.sum())


def of_caller(x):
    n = number(x)
    return x * (2.0 if type(n) is int else 3.0)


def of_caller_of_item(x):
    n = x.sum().item()
    return x * (2.0 if type(n) is float else 3.0)


def of_temporary(x):
    return x * (2.0 if type(number(x)) is int else 3.0)


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        found = function(*args, **kwargs)
        return x_of(found) if type(found) is tuple and type(found[0]) is int else args[0] * 3

    return wrapper


def x_of(found):
    return found[1]


@wrapped
def decorated(x):
    return number(x), x * 2


def with_attribute(x):
    held = Called()
    held.n = number(x)
    return x * held.kind


def set_by_callee(x):
    held = Called()
    put(held, x)
    return x * (2.0 if type(held.n) is int else 3.0)


def put(held, x):
    held.n = int(x.sum())


def slotted(x):
    held = Slotted()
    held.n = number(x)
    return x * held.kind()


def default(x):
    n = number(x)

    def inner(y, m=n):
        return y * kind(m)

    return inner(x)


def closed_over(x):
    n = number(x)
    return apply(lambda y: y * (2.0 if type(n) is int else 3.0), x)


def apply(function, x):
    return function(x)


PROGRAMS = {
    "function": lambda x: x * kind(number(x)),
    "flag": lambda x: x * is_true(x.sum().item() > 2),
    "none": lambda x: x if number(x) is None else x * 2,
    "isinstance": lambda x: x * (2 if isinstance(number(x), numbers.Integral) else 3),
    "set": lambda x: x * (2 if number(x) in {5, 6} else 3),
    "method": lambda x: x * Held(number(x)).kind(),
    "post init": lambda x: x * (2 if Checked(number(x)).kind is int else 3),
    "call": lambda x: x * Called()(number(x)),
    "operator": lambda x: x * (Called() + number(x)),
    "partial": lambda x: x * functools.partial(kind, number(x))(),
    "keywords": lambda x: x * functools.partial(kind, n=number(x))(),
    "map": lambda x: x * sum(map(kind, [number(x), 3])),
    "sort key": lambda x: x * len(sorted([number(x)], key=kind)),
    "in a list": lambda x: x * inside([number(x)]),
    "in a dict": lambda x: x * inside({"n": [number(x)]}["n"]),
    "tuple": lambda x: x * inside(Pair(number(x), x)),
    "reduce": lambda x: x * functools.reduce(lambda a, b: a + kind(b), [number(x), 2], 0),
    "is_": lambda x: x * (2 if operator.is_(x.sum().item() > 2, True) else 3),
    "caller": of_caller, "caller of item": of_caller_of_item, "temporary": of_temporary, "decorated": decorated,
    "property": with_attribute, "attribute": set_by_callee, "slots": slotted, "default": default,
    "closure": closed_over,
}  # fmt: skip


def inside(items):
    return 2.0 if type(items[0]) is int else 3.0


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_taken_for_a_number(name):
    check(PROGRAMS[name], *INPUTS)


def test_matching():
    def f(x):
        n, flag = int(x.sum()), x.sum().item() > 2
        match n:
            case int(m):
                y = x * m
            case _:
                y = x
        match flag:
            case True:
                return y * 2
        return y

    check(f, *INPUTS)


def made(source):
    scope = {"json": json}
    exec(source, scope)
    return scope["helper"]


def test_code_without_source_is_not_given_numbers():
    helper = made("def helper(n):\n    return 2 if type(n) is int else 3\n")
    assert "helper receives a number" in refused(lambda x: x * helper(int(x.sum())), X)


def test_code_without_source_gets_no_numbers_back():
    helper = made("def helper(x, f):\n    return 2 if type(f(x)) is int else 3\n")
    assert "helper receives a number" in refused(lambda x: x * helper(x, number), X)


def test_generators_are_not_given_numbers():
    def each(n):
        yield 2 if type(n) is int else 3

    assert "each receives a number" in refused(lambda x: x * next(each(int(x.sum()))), X)


def test_pythons_own_code_is_not_given_numbers():
    assert "receives a number" in refused(lambda x: x * len(json.dumps({"n": int(x.sum())})), X)
    assert "receives a number" in refused(lambda x: (x, id(int(x.sum()))), X)
    assert "receives a number" in refused(lambda x: (x, list(map(type, [int(x.sum())]))), X)


def test_who_traced_the_thread_goes_on():
    seen = []

    def trace(frame, event, arg):
        seen.append(frame.f_code.co_name)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        captured = staged(of_caller, (X,))
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    assert captured.error is None and seen
