"""Generated Python runs, says what the graph says, and has one function a module."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt.codegen.python import python_source
from smelt.ir import parse
from smelt.ops.evaluate import evaluate


def run(text: str, *inputs: Any, state: dict[str, torch.Tensor] | None = None) -> tuple[Any, ...]:
    namespace: dict[str, Any] = {}
    exec(compile(python_source(parse(text)), "generated.py", "exec"), namespace)
    return namespace["forward"](state or {}, *inputs)


BRANCH = """
graph f1(%x: f32[8, 16], %y: f32[16, 16]) -> f32[16, 16] {
  %0: f32[8, 16] = aten.sin.default(%x)  @ "model.py":3 in f1
  %1: f32[8, 16] = aten.matmul.default(%0, %y)
  %2: f32[] = aten.sum.default(%1)
  %3: bool[] = aten.lt.Scalar(%2, 0)
  %4: f32[16, 16] = if %3 {
    %5: f32[16, 16] = aten.neg.default(%y)
    yield %5
  } else {
    yield %y
  }
  return %4
}"""

MODULES = """
graph net(%x: f32[2, 4]) -> f32[2, 4], f32[2, 4] {
  %w: f32[4, 4] = param("a.weight")  of a
  %0: f32[2, 4] = aten.linear.default(%x, %w)  @ "net.py":7 in A.forward of a
  %1: f32[2, 4] = aten.relu.default(%0)  of a.act
  %2: f32[2, 4] = aten.add.Tensor(%1, %x, alpha=2)
  %3: f32[2, 4] = aten.linear.default(%2, %w)  of a
  %4: f32[2, 4] = aten.relu.default(%3)  of a.act
  return %4, %1
}"""


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_both_sides_of_a_branch(sign: float) -> None:
    x, y = torch.full((8, 16), sign), torch.ones(16, 16)
    expected = -y if (torch.sin(x) @ y).sum() < 0 else y
    (got,) = run(BRANCH, x, y)
    assert torch.equal(got, expected)


def test_modules_are_functions() -> None:
    source = python_source(parse(MODULES), "made by hand")
    assert source.startswith("# made by hand\nimport torch")
    assert [line for line in source.splitlines() if line.startswith("def ")] == [
        "def a_act(state, v0):",
        "def a(state, x):",
        "def a_act_1(state, v3):",
        "def a_1(state, v2, w):",
        "def forward(state, x):",
    ]
    assert "# f32[2, 4]  net.py:7" in source
    torch.manual_seed(0)
    x, w = torch.randn(2, 4), torch.randn(4, 4)
    first = torch.relu(torch.nn.functional.linear(x, w))
    second = torch.relu(torch.nn.functional.linear(first + 2 * x, w))
    got = run(MODULES, x, state={"a.weight": w})
    assert torch.equal(got[0], second) and torch.equal(got[1], first)


MODES = """
graph f(%x: f32[2, 4], %w: f32[4, 4]) -> bf16[2, 4], f32[2, 4], f32[2, 4] {
  %0: bf16[2, 4] = aten.mm.default(%x, %w)  ["autocast(bf16)"]
  %1: bf16[2, 4] = aten.mm.default(%0, %w)  ["autocast(bf16)"]
  %2: f32[2, 4] = aten.mm.default(%x, %w)
  %3: f32[2, 4] = aten.mul.Tensor(%x, 2)  ["no_grad autocast(off)"]
  return %1, %2, %3
}"""


def test_modes_are_switched_on() -> None:
    source = python_source(parse(MODES))
    assert [line.strip() for line in source.splitlines() if "with" in line] == [
        "with torch.autocast('cpu', dtype=torch.bfloat16):",
        "with torch.no_grad(), torch.autocast('cpu', enabled=False):",
    ]
    x, w = torch.randn(2, 4, requires_grad=True), torch.randn(4, 4)
    low, plain, constant = run(MODES, x, w)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(low, x @ w @ w)
    assert torch.equal(plain, x @ w) and plain.requires_grad and not constant.requires_grad


def test_loops() -> None:
    text = """
    graph loops(%x: f32[3], %n: int) -> f32[3], f32[3] {
      %0: f32[3] = for %i: int in (0, %n, 2) with (%h: f32[3] = %x) {
        %1: f32[3] = aten.add.Tensor(%h, %i)
        yield %1
      }
      %2: f32[3] = while with (%a: f32[3] = %x) {
        %3: f32[] = aten.sum.default(%a)
        %4: bool[] = aten.lt.Scalar(%3, 100)
        yield %4
      } do (%b: f32[3]) {
        %5: f32[3] = aten.mul.Tensor(%b, 2)
        yield %5
      }
      return %0, %2
    }"""
    x = torch.tensor([1.0, 2.0, 3.0])
    first, second = run(text, x, 5)
    assert torch.equal(first, x + 0 + 2 + 4)
    expected = x
    while expected.sum() < 100:
        expected = expected * 2
    assert torch.equal(second, expected)


def test_constants_literals_writes_and_unpack() -> None:
    text = """
    graph f(%x: f32[4]) -> f32[2], f32[0, 3], f64[2], f32[4] {
      %l: (f32[2], f32[2]) = aten.split.Tensor(%x, 2)
      %a: f32[2], %b: f32[2] = unpack(%l)
      %c: f32[2] = const([nan, -0.0])
      %e: f32[0, 3] = const([])
      %d: f32[2] = aten.add.Tensor(%a, %c)
      %z: f64[2] = aten.zeros.default([2], dtype=f64, device=device("cpu"), layout=layout(strided))
      %k: f32[4] = const("sha256:11")
      %w: f32[4] = write(%x, %k)
      return %d, %e, %z, %w
    }"""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    big = torch.arange(4.0)
    d, e, z, w = run(text, x, state={"sha256:11": big})
    assert torch.isnan(d[0]) and d[1] == 2.0
    assert e.shape == (0, 3) and z.dtype == torch.float64 and z.tolist() == [0.0, 0.0]
    assert w is x and torch.equal(x, big)


def test_names_that_python_cannot_use() -> None:
    text = """
    graph f(%class: f32[2], %"a b": f32[2], %aten: f32[2]) -> f32[2] {
      %1: f32[2] = aten.add.Tensor(%class, %"a b")
      %2: f32[2] = aten.mul.Tensor(%1, %aten)
      return %2
    }"""
    one = torch.ones(2)
    (got,) = run(text, one, one, one)
    assert got.tolist() == [2.0, 2.0]


def test_one_element_unpack_and_no_outputs() -> None:
    text = """
    graph f(%x: f32[2]) -> f32[2] {
      %l: (f32[2],) = aten.split.Tensor(%x, 2)
      %a: f32[2] = unpack(%l)
      return %a
    }"""
    (got,) = run(text, torch.ones(2))
    assert got.tolist() == [1.0, 1.0]
    assert run("graph g() -> () { return }") == ()


class Worded(Exception):
    def __init__(self, level: int) -> None:
        super().__init__(f"level {level}")
        self.level = level


def test_an_exception_is_raised_with_what_it_held() -> None:
    raising = f'py.raise("{Worded.__module__}.Worded", "level 3", %n, fields="level")'
    with pytest.raises(Worded, match=r"^level 3$") as caught:
        run(f"graph g(%n: int) -> () {{\n  {raising}\n  return\n}}", 3)
    assert caught.value.level == 3


ATTEMPTS = """
graph f(%x: f32[3], %i: int) -> list[str], list[str], str, str {
  %0: list[str] = py.attempt("aten.select.int", %x, 0, %i, indexed=1)
  %1: list[str] = py.attempt("py.floordiv", 7, %i)
  %2: str = py.raised("aten.view.default", %x, [2])
  %3: str = py.raised("aten.clone.default", %x)
  return %0, %1, %2, %3
}"""


@pytest.mark.parametrize("index", [0, 3])
def test_what_an_operator_raises_is_a_value(index: int) -> None:
    x = torch.ones(3)
    graph = parse(ATTEMPTS)
    assert run(ATTEMPTS, x, index) == tuple(evaluate(graph, [x, index]))


CALLS = """
graph f(%x: f32[3], %i: int) -> list[int], list[int], int, int, float, int {
  %0: list[int] = py.list(%i, 2, 9)
  %1: list[int] = py.list(1, 0, %i)
  %2: list[int] = py.call("list.sorted_by", %0, %1)
  %3: list[int] = py.call("list.sorted_by", %0, %1, reverse=True)
  %4: int = py.call("torch.int", %i)
  %5: int = py.call("operator.index", %i)
  %6: float = py.call("dtype.max", f32)
  %7: int = py.call("dtype.bits", i32)
  return %2, %3, %4, %5, %6, %7
}"""


def test_functions_that_python_has_under_no_name() -> None:
    x = torch.ones(3)
    assert run(CALLS, x, 5) == tuple(evaluate(parse(CALLS), [x, 5]))


BRACKETS = """
graph g(%x: tensor[?], %n: int) -> list[str], str, list[str], str {
  %0: list[str] = py.attempt("aten.select.int", %x, 1, %n, indexed=0)
  %1: str = py.raised("aten.select.int", %x, 1, %n, indexed=1)
  %2: list[str] = py.attempt("py.floordiv", 1, %n)
  %3: str = py.raised("py.call", "math.sqrt", %n)
  return %0, %1, %2, %3
}"""


def test_what_an_operator_raises_is_asked() -> None:
    x, out = torch.ones(2, 2, 2), "is out of bounds for dimension"
    assert run(BRACKETS, x, 1) == ([], "", [], "")
    index, behind, division, _ = run(BRACKETS, x, 0)
    assert (index, behind, division[0]) == ([], "", "builtins.ZeroDivisionError")
    index, behind, _, root = run(BRACKETS, x, -3)
    assert index == ["builtins.IndexError", f"index -3 {out} 1 with size 2"]
    assert behind == f"builtins.IndexError: index -3 {out} 2 with size 2" and root.startswith("builtins.ValueError: ")


def test_functions_that_python_has_under_no_such_name() -> None:
    text = """
    graph g(%l: list[int], %k: list[int], %d: dtype, %n: int, %x: i64[2]) -> list[int], any, any, any, any {
      %0: list[int] = py.call("list.sorted_by", %l, %k, True)
      %1: any = py.call("dtype.max", %d)
      %2: any = py.call("torch.int", %n)
      %3: any = py.call("operator.index", %n)
      %4: any = py.call("Tensor.tolist", %x)
      return %0, %1, %2, %3, %4
    }"""
    found = run(text, [1, 2, 3], [5, 9, 7], torch.int8, 4, torch.tensor([1, 2]))
    assert found == ([2, 3, 1], 127, 4, 4, [1, 2])
