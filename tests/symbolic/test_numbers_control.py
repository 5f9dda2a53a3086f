"""Numbers that a graph takes: Python's arithmetic on them, what they decide, and what a plan does not take."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from smelt.codegen.lower import lower
from smelt.diag import InternalError, SmeltError
from smelt.ir import parse
from smelt.ops.evaluate import evaluate
from tests.codegen.harness import executables, lookup_in
from tests.control.harness import OWN, assert_outcome, compare, outcome

WHOLE = (0, 1, -1, 2, 3, -7, 2**31, 2**53 + 1, -(2**62), 2**63 - 1, -(2**63))
REAL = (0.0, -0.0, 1.0, 2.5, -3.7, 1e300, -5e-324, 2.0**53, 2.0**63, math.inf, -math.inf, math.nan)
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "eq", "ne", "lt", "le", "gt", "ge", "max", "min", "pow")
BITS = ("and_", "or_", "xor")
UNARY = ("neg", "abs", "pos", "not_", "bool", "int", "float")


def _answers(text: str, *inputs: Any) -> None:
    """The plan, natively and in Python, gives what the evaluator gives; or it says that 64 bits do not hold it."""
    graph = parse(text)
    made = lower(graph, lookup_in({}), OWN)
    wanted = outcome(lambda: evaluate(graph, list(inputs), lookup_in({})))
    for executable in executables(made.plan):
        try:
            found = outcome(lambda run=executable.run: made.rebuild(run(inputs), inputs, lookup_in({})))
        except SmeltError as error:
            values = wanted if isinstance(wanted, list) else inputs
            assert error.code == "S0404" and any(abs(v) >= 2**53 for v in (*values, *inputs)), (text, inputs)
            continue
        try:
            assert_outcome(found, wanted, exact=True)
        except AssertionError as error:
            raise AssertionError(f"{text} of {inputs}: {error}") from error


def _result(name: str, kinds: tuple[str, ...]) -> str:
    if name in ("eq", "ne", "lt", "le", "gt", "ge", "not_", "bool"):
        return "bool"
    if name in ("int", "float"):
        return name
    return "float" if "float" in kinds or name == "truediv" else "int"


VALUES: dict[str, tuple[Any, ...]] = {"int": WHOLE, "float": REAL, "bool": (True, False)}


@pytest.mark.spread(36)
@pytest.mark.parametrize("kinds", list(itertools.product(("int", "float"), repeat=2)), ids="-".join)
@pytest.mark.parametrize("name", BINARY + BITS)
def test_arithmetic_of_two(name: str, kinds: tuple[str, str]) -> None:
    if name in BITS and "float" in kinds:
        return
    if name == "pow":
        kinds = (kinds[0], "float")
    found = "any" if name in ("max", "min", "pow") and kinds[0] != kinds[1] else _result(name, kinds)
    text = f"graph f(%a: {kinds[0]}, %b: {kinds[1]}) -> {found} {{\n  %1: {found} = py.{name}(%a, %b)\n  return %1\n}}"
    for a, b in itertools.product(VALUES[kinds[0]], VALUES[kinds[1]]):
        if name == "pow" and (abs(a) > 100 or abs(b) > 100 or a < 0):
            continue
        _answers(text, a, b)


@pytest.mark.parametrize("kind", ["int", "float", "bool"])
@pytest.mark.parametrize("name", UNARY)
def test_arithmetic_of_one(name: str, kind: str) -> None:
    found = _result(name, (kind,)) if kind != "bool" or name in ("not_", "bool", "float") else "int"
    text = f"graph f(%a: {kind}) -> {found} {{\n  %1: {found} = py.{name}(%a)\n  return %1\n}}"
    for value in VALUES[kind]:
        _answers(text, value)


CHOSEN = """\
graph fn(%x: f32[40], %n: int) -> f32[40] {
  %y: f32[40] = aten.pow.Tensor_Scalar(%x, 2)
  %c: bool = py.ge(%n, 0)
  %0: f32[40] = if %c {
    %1: int = py.add(%n, 1)
    %2: f32[40] = aten.mul.Tensor(%y, %1)
    yield %2
  } else {
    %3: f32[40] = aten.div.Tensor(%y, %n)
    yield %3
  }
  return %0
}"""


def test_a_number_decides_a_branch() -> None:
    x = torch.randn(40)
    compare(CHOSEN, *([x, n] for n in (2, 3, 6, -3, 0, -1, 2**62)), python=0)


def test_a_bool_decides_a_branch() -> None:
    text = """\
graph f(%x: f32[9], %b: bool, %s: float) -> f32[9], bool, float {
  %0: f32[9], %r: float = if %b {
    %1: f32[9] = aten.mul.Tensor(%x, %s)
    yield %1, %s
  } else {
    %2: float = py.neg(%s)
    yield %x, %2
  }
  %3: f32[9] = aten.add.Tensor(%0, %x)
  return %3, %b, %r
}"""
    x = torch.randn(9)
    calls = [[x, b, s] for b in (True, False) for s in (0.5, -0.0, math.nan, math.inf)]
    compare(text, *calls, python=0)


@pytest.mark.parametrize("step", [1, 2, -1, -3])
def test_a_number_counts_a_loop(step: int) -> None:
    text = f"""\
graph f(%x: f32[6, 5], %a: int, %n: int, %s: float) -> f32[6, 5], int {{
  %0: f32[6, 5], %t: int = for %i: int in (%a, %n, {step}) with (%h: f32[6, 5] = %x, %k: int = 0) {{
    %1: f32[6, 5] = aten.mul.Tensor(%h, %s)
    %2: f32[6, 5] = aten.add.Tensor(%1, %i)
    %3: int = py.add(%k, %i)
    yield %2, %3
  }}
  return %0, %t
}}"""
    x = torch.randn(6, 5)
    calls = [[x, a, n, 0.5] for a in (0, 3, -2) for n in (0, 1, 7, -5)]
    compare(text, *calls, python=0)


def test_a_number_ends_a_loop() -> None:
    text = """\
graph f(%x: f32[7], %n: int, %f: float) -> f32[7], int {
  %0: f32[7], %t: int = while with (%h: f32[7] = %x, %k: int = %n) {
    %1: bool = py.gt(%k, 1)
    yield %1
  } do (%g: f32[7], %l: int) {
    %2: f32[7] = aten.mul.Tensor(%g, %f)
    %3: int = py.floordiv(%l, 2)
    yield %2, %3
  }
  return %0, %t
}"""
    x = torch.randn(7)
    compare(text, *([x, n, f] for n in (0, 1, 2, 100, -4, 2**62) for f in (0.5, -1.25)), python=0)


def test_numbers_index_and_join() -> None:
    text = """\
graph f(%x: f32[5, 4], %i: int, %a: float) -> f32[4], f32[5, 4] {
  %0: f32[4] = aten.select.int(%x, 0, %i)
  %1: f32[4] = aten.mul.Tensor(%0, %a)
  %2: f32[5, 4] = aten.add.Tensor(%x, %1)
  %3: f32[5, 4] = aten.clamp.default(%2, %a)
  return %1, %3
}"""
    x = torch.randn(5, 4)
    compare(text, *([x, i, a] for i in (0, 4, -1, -5, 5, -6) for a in (0.5, -2.0)), python=0)


def test_only_numbers() -> None:
    text = """\
graph f(%n: int, %m: int) -> int, bool {
  %0: int = py.mul(%n, %m)
  %1: bool = py.lt(%0, 10)
  return %0, %1
}"""
    compare(text, [3, 4], [0, -1], [2**31, 2**31])


def test_an_input_that_nothing_needs() -> None:
    text = """\
graph f(%n: int, %x: f32[3], %s: float) -> f32[3] {
  %0: f32[3] = aten.neg.default(%x)
  return %0
}"""
    compare(text, [3, torch.randn(3), 0.5], [-1, torch.randn(3), math.nan])


def test_numbers_beside_calls_of_python() -> None:
    text = """\
graph f(%x: f32[3], %n: int) -> list[int], f32[3] {
  %0: list[int] = py.list(%n, 2, %n)
  %1: f32[3] = aten.add.Tensor(%x, %n)
  return %0, %1
}"""
    compare(text, [torch.randn(3), 5], [torch.randn(3), -(2**63)])


def test_numbers_of_another_type_are_refused() -> None:
    plan = lower(parse(CHOSEN), lookup_in({}), OWN).plan
    x = torch.ones(40)
    for executable in executables(plan):
        for number in (3.0, True, None, "3", torch.tensor(3)):
            with pytest.raises(InternalError):
                executable.run([x, number])
        with pytest.raises(InternalError):
            executable.run([3, x])
        with pytest.raises(SmeltError, match="beyond 64 bits"):
            executable.run([x, 2**63])
        torch.testing.assert_close(executable.run([x, 3])[0], torch.full((40,), 4.0))


@pytest.mark.parametrize("kind", ["complex", "str", "list[int]", "optional[f32[2]]"])
def test_what_a_plan_does_not_take(kind: str) -> None:
    graph = parse(f"graph f(%x: f32[3], %n: {kind}) -> f32[3] {{\n  %0: f32[3] = aten.exp.default(%x)\n  return %0\n}}")
    with pytest.raises(SmeltError) as caught:
        lower(graph, lookup_in({}), OWN)
    assert caught.value.code == "S0303" and "neither a tensor nor a number" in caught.value.what
