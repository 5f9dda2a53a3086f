"""Branches and loops of graphs: natively, in Python, and as the evaluator runs them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from smelt.codegen.llvm.walkers.executor import executor_object
from smelt.codegen.lower import lower
from smelt.ir import parse
from smelt.runtime.executable import Executable
from smelt.runtime.machine.cache import CodeCache
from smelt.runtime.plan import Empty, End, Loop, PyCall
from tests.codegen.harness import lookup_in, machine_code
from tests.control.harness import OWN, compare

TRUE, FALSE = torch.tensor(True), torch.tensor(False)


def test_branch_writes_one_place() -> None:
    text = """\
graph f(%x: f32[8, 4], %c: bool[]) -> f32[8, 4] {
  %0: f32[8, 4] = if %c {
    %1: f32[8, 4] = aten.exp.default(%x)
    %2: f32[8, 4] = aten.add.Tensor(%1, %x)
    yield %2
  } else {
    %3: f32[8, 4] = aten.neg.default(%x)
    yield %3
  }
  %4: f32[8, 4] = aten.mul.Tensor(%0, %x)
  return %4
}"""
    x = torch.randn(8, 4)
    made = compare(text, [x, TRUE], [x, FALSE], python=0, exact=False)
    assert made.report.counts["block"] == 1


def test_what_is_carried_may_repeat_its_elements() -> None:
    text = """\
graph f(%x: f32[3], %c: bool[]) -> f32[4, 3]{0, 1}, f32[2, 4]{4, 0}, f32[2, 4, 3]{0, 3, 1} {
  %s: f32[2, 1] = const([[1.0], [2.0]])
  %d: f32[1, 4, 3] = aten.full.default([1, 4, 3], 2.5)
  %n: f32[1, 4, 3] = aten.neg.default(%d)
  %p: f32[2, 4, 3]{0, 3, 1} = aten.expand.default(%d, [2, 4, 3])
  %q: f32[2, 4, 3]{0, 3, 1} = aten.expand.default(%n, [2, 4, 3])
  %0: f32[4, 3]{0, 1}, %1: f32[2, 4]{4, 0}, %2: f32[2, 4, 3]{0, 3, 1} = if %c {
    %3: f32[3] = aten.exp.default(%x)
    %4: f32[4, 3]{0, 1} = aten.expand.default(%3, [4, 3])
    %a: f32[2, 4] = aten.full.default([2, 4], 1.5)
    %5: f32[2, 1]{4, 1} = aten.slice.Tensor(%a, 1, 0, 1)
    %6: f32[2, 4]{4, 0} = aten.expand.default(%5, [2, 4])
    yield %4, %6, %p
  } else {
    %7: f32[4, 3]{0, 1} = aten.expand.default(%x, [4, 3])
    %b: f32[2, 4] = aten.full.default([2, 4], -1.5)
    %8: f32[2, 1]{4, 1} = aten.slice.Tensor(%b, 1, 1, 2)
    %9: f32[2, 4]{4, 0} = aten.expand.default(%8, [2, 4])
    yield %7, %9, %q
  }
  return %0, %1, %2
}"""
    x = torch.randn(3)
    compare(text, [x, TRUE], [x, FALSE], python=0, exact=False)


def test_branch_yields_inputs_outer_values_and_constants() -> None:
    text = """\
graph f(%x: f32[3], %y: f32[3], %c: bool[]) -> f32[3], f32[3], f32[3] {
  %k: f32[3] = const([1.0, 2.0, 3.0])
  %s: f32[3] = aten.add.Tensor(%x, %y)
  %0: f32[3], %1: f32[3], %2: f32[3] = if %c {
    yield %x, %s, %k
  } else {
    yield %y, %y, %s
  }
  %3: f32[3] = aten.neg.default(%0)
  %4: f32[3] = aten.neg.default(%1)
  %5: f32[3] = aten.neg.default(%2)
  return %3, %4, %5
}"""
    x, y = torch.randn(3), torch.randn(3)
    compare(text, [x, y, TRUE], [x, y, FALSE], python=0)


def test_branch_yields_an_outer_value_of_unknown_strides_before_a_write() -> None:
    """Whether it is written is told by the whole graph: a write stands outside of the branch."""
    text = """\
graph f(%x: f32[3], %y: f32[4, 3], %c: bool[]) -> f32[4, 3]{_, 1}, f32[4, 3] {
  %0: f32[4, 3]{_, 1} = if %c {
    %1: f32[3] = aten.exp.default(%x)
    %2: f32[4, 3]{0, 1} = aten.expand.default(%1, [4, 3])
    yield %2
  } else {
    yield %y
  }
  %3: f32[4, 3] = aten.add.Tensor(%y, %0)
  %4: f32[3] = aten.neg.default(%x)
  %5: f32[3] = write(%x, %4)
  return %0, %3
}"""
    x, y = torch.randn(3), torch.randn(4, 3)
    compare(text, [x, y, TRUE], [x, y, FALSE], exact=False)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, math.nan, -math.inf])
def test_float_conditions(value: float) -> None:
    text = """\
graph f(%x: f32[3], %c: f32[1, 1]) -> f32[3] {
  %0: f32[3] = if %c {
    %1: f32[3] = aten.neg.default(%x)
    yield %1
  } else {
    yield %x
  }
  return %0
}"""
    compare(text, [torch.randn(3), torch.full((1, 1), value)], python=0)


def test_nested_branches_and_early_exit() -> None:
    text = """\
graph f(%x: f32[4], %n: i64[]) -> f32[4], i64[] {
  %z: i64[] = const(0)
  %0: f32[4], %1: i64[] = while with (%h: f32[4] = %x, %k: i64[] = %z) {
    %2: bool[] = aten.lt.Tensor(%k, %n)
    yield %2
  } do (%g: f32[4], %m: i64[]) {
    %3: f32[] = aten.sum.default(%g)
    %4: bool[] = aten.gt.Scalar(%3, 3.0)
    %5: f32[4], %6: i64[] = if %4 {
      %7: bool[] = aten.gt.Scalar(%3, 6.0)
      %8: f32[4] = if %7 {
        %9: f32[4] = aten.mul.Tensor(%g, 0.25)
        yield %9
      } else {
        yield %g
      }
      yield %8, %n
    } else {
      %10: f32[4] = aten.add.Tensor(%g, 0.5)
      %11: i64[] = aten.add.Tensor(%m, 1)
      yield %10, %11
    }
    yield %5, %6
  }
  return %0, %1
}"""
    calls = [[torch.full((4,), v), torch.tensor(n)] for v in (0.0, 0.9, 5.0, math.nan) for n in (0, 1, 2, 50)]
    compare(text, *calls, python=0)


def test_swaps_keep_both_values() -> None:
    """Fibonacci's pair, a plain swap, and a value that is carried as it is."""
    text = """\
graph f(%a: f32[5], %b: f32[5], %u: f32[2]) -> f32[5], f32[5], f32[5], f32[5], f32[2] {
  %0: f32[5], %1: f32[5], %2: f32[5], %3: f32[5], %4: f32[2] = for %i: int in (0, 5, 1) with
      (%p: f32[5] = %a, %q: f32[5] = %b, %r: f32[5] = %a, %s: f32[5] = %b, %w: f32[2] = %u) {
    %5: f32[5] = aten.add.Tensor(%r, %s)
    yield %q, %p, %s, %5, %w
  }
  %6: f32[5] = aten.neg.default(%0)
  %7: f32[5] = aten.neg.default(%1)
  %8: f32[5] = aten.neg.default(%2)
  %9: f32[5] = aten.neg.default(%3)
  return %6, %7, %8, %9, %4
}"""
    compare(text, [torch.randn(5), torch.randn(5), torch.randn(2)], python=0)


def test_views_of_carried_values() -> None:
    text = """\
graph f(%a: f32[2, 2]) -> f32[2, 2] {
  %0: f32[2, 2] = for %i: int in (0, 3, 1) with (%p: f32[2, 2] = %a) {
    %1: f32[2, 2]{1, 2} = aten.transpose.int(%p, 0, 1)
    %2: f32[2, 2] = aten.clone.default(%1, memory_format=memory_format(contiguous_format))
    %3: f32[2] = aten.select.int(%p, 0, 1)
    %4: f32[2, 2] = aten.add.Tensor(%2, %3)
    yield %4
  }
  return %0
}"""
    compare(text, [torch.randn(2, 2)], python=0)


@pytest.mark.parametrize("bounds", ["0, 0, 1", "3, 0, 1", "0, 3, -1", "5, -4, -2", "-7, 8, 3", "0, 1, 1"])
def test_counted_loops(bounds: str) -> None:
    text = f"""\
graph f(%a: f32[3]) -> f32[3], int, int {{
  %0: f32[3], %1: int, %2: int = for %i: int in ({bounds}) with (%p: f32[3] = %a, %k: int = 7, %last: int = -1) {{
    %3: f32[3] = aten.add.Tensor(%p, %i)
    %4: int = py.mul(%k, 2)
    yield %3, %4, %i
  }}
  return %0, %1, %2
}}"""
    compare(text, [torch.randn(3)], python=0)


def test_bounds_of_the_run() -> None:
    text = """\
graph f(%a: f32[3], %n: i64[], %m: i32[1]) -> f32[3], int {
  %0: int = aten.item.default(%n)
  %1: int = py.int(%m)
  %2: f32[3], %3: int = for %i: int in (%0, %1, 1) with (%p: f32[3] = %a, %k: int = %0) {
    %4: f32[3], %5: int = for %j: int in (0, %i, 1) with (%q: f32[3] = %p, %l: int = %k) {
      %6: f32[3] = aten.mul.Tensor(%q, 0.5)
      %7: int = py.add(%l, %j)
      yield %6, %7
    }
    %8: f32[3] = aten.add.Tensor(%4, %a)
    yield %8, %5
  }
  return %2, %3
}"""
    calls = [
        [torch.randn(3), torch.tensor(a), torch.tensor([b], dtype=torch.int32)] for a, b in ((0, 4), (2, 2), (-3, 3))
    ]
    compare(text, *calls, python=0)


def test_numbers_meet_tensors() -> None:
    text = """\
graph f(%x: f32[6], %h: bf16[6], %i: i64[6], %t: f32[], %k: i64[])
    -> f32[6], bf16[6], f32[6], bool[6], i64[6], f32[6], f32[] {
  %v: float = aten.item.default(%t)
  %n: int = aten.item.default(%k)
  %w: float = py.truediv(%v, 3)
  %0: f32[6] = aten.mul.Tensor(%x, %v)
  %1: f32[6] = aten.add.Tensor(%0, %n)
  %2: bf16[6] = aten.mul.Tensor(%h, %w)
  %3: f32[6] = aten.div.Tensor(%i, %w)
  %4: bool[6] = aten.lt.Scalar(%x, %w)
  %5: i64[6] = aten.mul.Tensor(%i, %n)
  %6: f32[6] = aten.where.ScalarOther(%4, %x, %w)
  %7: f32[] = aten.add.Tensor(%t, %w)
  return %1, %2, %3, %4, %5, %6, %7
}"""
    for value in (0.1, -3.7, math.inf, math.nan):
        inputs = [torch.randn(6), torch.randn(6).bfloat16(), torch.arange(6), torch.tensor(value), torch.tensor(3)]
        compare(text, inputs, python=0)


def test_rows_by_a_running_index() -> None:
    text = """\
graph f(%x: f32[7, 3, 4]) -> f32[3, 4], f32[7, 4] {
  %z: f32[3, 4] = aten.zeros.default([3, 4], dtype=f32)
  %y: f32[7, 4] = aten.zeros.default([7, 4], dtype=f32)
  %0: f32[3, 4], %1: f32[7, 4] = for %i: int in (-2, 3, 1) with (%h: f32[3, 4] = %z, %g: f32[7, 4] = %y) {
    %2: f32[3, 4] = aten.select.int(%x, 0, %i)
    %3: f32[3, 4] = aten.add.Tensor(%h, %2)
    %4: f32[7, 4]{12, 1} = aten.select.int(%x, 1, %i)
    %5: f32[7, 4] = aten.mul.Tensor(%4, 2)
    %6: f32[7, 4] = aten.add.Tensor(%g, %5)
    yield %3, %6
  }
  return %0, %1
}"""
    compare(text, [torch.randn(7, 3, 4)], python=0)


def test_an_index_beyond_raises_as_eager() -> None:
    text = """\
graph f(%x: f32[3, 2], %n: i64[]) -> f32[2] {
  %k: int = aten.item.default(%n)
  %z: f32[2] = aten.zeros.default([2], dtype=f32)
  %0: f32[2] = for %i: int in (0, %k, 1) with (%h: f32[2] = %z) {
    %2: f32[2] = aten.select.int(%x, 0, %i)
    %3: f32[2] = aten.add.Tensor(%h, %2)
    yield %3
  }
  return %0
}"""
    compare(text, *([torch.randn(3, 2), torch.tensor(n)] for n in (2, 4, 3)), python=0)


ARITHMETIC = """\
graph f(%a: i64[], %b: i64[], %c: f64[], %d: f64[])
    -> int, int, int, int, float, bool, bool, float, float, bool, int, float, int, float, bool {
  %i: int = aten.item.default(%a)
  %j: int = aten.item.default(%b)
  %x: float = aten.item.default(%c)
  %y: float = aten.item.default(%d)
  %0: int = py.add(%i, %j)
  %1: int = py.mul(%i, 3)
  %2: int = py.floordiv(%i, %j)
  %3: int = py.mod(%i, %j)
  %4: float = py.truediv(%i, %j)
  %5: bool = py.lt(%i, %j)
  %6: bool = py.not_(%5)
  %7: float = py.add(%x, %i)
  %8: float = py.truediv(%x, %y)
  %9: bool = py.eq(%x, %i)
  %10: int = py.int(%x)
  %11: float = py.max(%x, %y, 0.5)
  %12: int = py.min(%i, %j)
  %13: float = py.float(%i)
  %14: bool = py.bool(%y)
  return %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14
}"""


def test_arithmetic_is_pythons() -> None:
    cases = [
        (7, 2, 1.5, -0.5),
        (-7, 2, 2.0, 3.0),
        (7, -2, -0.0, 0.1),
        (0, 5, 1e18, 1e-300),
        (5, 0, 1.0, 1.0),
        (1, 1, 1.0, 0.0),
    ]
    cases += [(3, 4, math.nan, 1.0), (3, 4, 2.0, math.nan), (3, 4, math.inf, 1.0)]
    calls = [
        [torch.tensor(a), torch.tensor(b), torch.tensor(c, dtype=torch.float64), torch.tensor(d, dtype=torch.float64)]
        for a, b, c, d in cases
    ]
    compare(ARITHMETIC, *calls, python=0)


def test_expect_misses_before_anything_is_written() -> None:
    text = """\
graph f(%x: f32[3], %c: bool[], %n: f32[]) -> f32[3] {
  expect(%c, True)
  %v: float = aten.item.default(%n)
  expect(%v, nan)
  %0: f32[3] = aten.add.Tensor(%x, 1)
  %1: f32[3] = write(%x, %0)
  return %0
}"""
    calls = [[torch.zeros(3), c, torch.tensor(n)] for c in (TRUE, FALSE) for n in (0.0, math.nan)]
    compare(text, *calls)
    made = lower(parse(text), lookup_in({}), OWN)
    x = torch.zeros(3)
    with pytest.raises(Exception, match="expected True"):
        Executable(made.plan, machine_code()).run([x, FALSE, torch.tensor(math.nan)])
    assert torch.equal(x, torch.zeros(3))


def test_what_has_no_native_form_is_counted() -> None:
    """Sizes that depend on data, containers, strings, and a branch over these."""
    text = """\
graph f(%x: f32[6], %c: bool[]) -> f32[_], list[f32[6]], str, dict[str, int], f32[] {
  %0: bool[6] = aten.gt.Scalar(%x, 0)
  %m: f32[_] = aten.masked_select.default(%x, %0)
  %1: f32[_] = aten.flip.default(%m, [0])  @ "model.py":7 in f
  %2: f32[] = aten.sum.default(%1)
  %3: f32[6] = aten.exp.default(%x)
  %4: list[f32[6]] = py.list(%3, %x)
  %5: list[f32[6]] = py.append(%4, %3)
  %6: f32[6] = aten.neg.default(%3)
  %7: list[f32[6]] = py.append(%5, %6)
  %8: int = py.len(%7)
  %9: str = py.format(%8, "03d", None)
  %10: dict[str, int] = py.dict(%9, %8)
  %11: f32[_] = if %c {
    %12: f32[_] = aten.mul.Tensor(%1, 2)
    yield %12
  } else {
    yield %1
  }
  return %11, %7, %9, %10, %2
}"""
    x = torch.randn(6)
    made = compare(text, [x, TRUE], [x, FALSE], exact=False)
    nodes = made.report.python_nodes
    assert {"aten.flip.default", "if", "py.append"} <= {n.op for n in nodes}
    assert next(n.where for n in nodes if n.op == "aten.flip.default") == "model.py:7"
    assert 0 < sum(isinstance(i, PyCall) for i in made.plan.instructions) < len(nodes)  # neighbours share a call


def test_python_inside_native_loops() -> None:
    """One node of a loop runs in Python, an exception in it ends the run as in eager, and the next run is fine."""
    text = """\
graph f(%x: f32[4], %n: i64[]) -> f32[4], int {
  %k: int = aten.item.default(%n)
  %0: f32[4], %1: int = for %i: int in (0, 4, 1) with (%h: f32[4] = %x, %a: int = 1) {
    %2: int = py.sub(%k, %i)
    %3: int = py.pow(%2, 2)
    %4: int = py.floordiv(12, %2)
    %5: f32[4] = aten.add.Tensor(%h, %3)
    %6: f32[4] = aten.mul.Tensor(%5, 0.5)
    %7: int = py.add(%a, %4)
    yield %6, %7
  }
  return %0, %1
}"""
    made = compare(text, *([torch.randn(4), torch.tensor(n)] for n in (7, 2, 9)))
    assert any(isinstance(i, Loop) for i in made.plan.instructions)
    assert made.report.counts["python"] == 1


def test_branches_in_loops_over_outer_values() -> None:
    """Copies and views that one arm makes of outer values are not believed to be there in the other."""
    text = """\
graph f(%x: f32[4, 3], %c: bool[]) -> f32[4, 3], f32[3, 4] {
  %w: f32[4, 3] = param("w")
  %y: f32[4, 3] = aten.exp.default(%x)
  %t: f32[3, 4]{1, 3} = aten.transpose.int(%y, 0, 1)
  %0: f32[3, 4] = if %c {
    %1: f32[3, 4] = aten.clone.default(%t, memory_format=memory_format(contiguous_format))
    %2: f32[3, 4] = aten.cumsum.default(%1, 0)
    yield %2
  } else {
    %3: f32[3, 3] = aten.mm.default(%t, %w)
    %4: f32[3, 4] = aten.mm.default(%3, %t)
    yield %4
  }
  %5: f32[4, 4] = aten.mm.default(%y, %0)
  %6: f32[4, 3] = aten.mm.default(%5, %y)
  return %6, %0
}"""
    # Of one sign and near each other: sums in another order differ by rounding alone.
    x, w = torch.rand(4, 3) + 0.5, torch.rand(4, 3) + 0.5
    compare(text, [x, TRUE], [x, FALSE], state={"w": w}, exact=False)


def test_invariants_leave_loops_and_nothing_is_allocated_inside() -> None:
    text = """\
graph f(%x: f32[16, 64], %n: i64[]) -> f32[16, 64] {
  %w: f32[64, 64] = param("w")
  %k: int = aten.item.default(%n)
  %0: f32[16, 64] = for %i: int in (0, %k, 1) with (%h: f32[16, 64] = %x) {
    %1: f32[16, 64] = aten.tanh.default(%x)
    %2: f32[16, 64] = aten.linear.default(%h, %w)
    %3: f32[16, 64] = aten.add.Tensor(%2, %1)
    %4: f32[16, 64] = aten.sigmoid.default(%3)
    yield %4
  }
  return %0
}"""
    state = {"w": torch.randn(64, 64) / 8}
    made = compare(
        text, *([torch.randn(16, 64), torch.tensor(n)] for n in (0, 1, 4)), state=state, exact=False, options=(OWN,)
    )
    instructions = made.plan.instructions
    begin = next(i for i, one in enumerate(instructions) if isinstance(one, Loop))
    end = next(i for i, one in enumerate(instructions) if i > begin and isinstance(one, End))
    assert not any(isinstance(one, (Empty, PyCall)) for one in instructions[begin:end])
    inside = [k.label for k in made.report.kernels]
    assert inside[0] == "tanh" and sum("tanh" in label for label in inside) == 1


def test_branches_yield_other_strides_than_they_have() -> None:
    text = """\
graph f(%x: f32[4, 3], %c: bool[]) -> f32[3, 4] {
  %0: f32[3, 4] = if %c {
    %1: f32[3, 4]{1, 3} = aten.transpose.int(%x, 0, 1)
    %2: f32[3, 4] = aten.contiguous.default(%1)
    yield %2
  } else {
    %3: f32[12] = aten.reshape.default(%x, [12])
    %4: f32[3, 4] = aten.reshape.default(%3, [3, 4])
    yield %4
  }
  return %0
}"""
    x = torch.randn(4, 3)
    compare(text, [x, TRUE], [x, FALSE], python=0)


def test_state_in_regions_that_python_evaluates() -> None:
    text = """\
graph f(%x: f32[6], %c: bool[]) -> f32[_], f32[6] {
  %0: f32[_] = if %c {
    %w: f32[6] = param("w")
    %1: bool[6] = aten.gt.Tensor(%x, %w)
    %2: f32[_] = aten.masked_select.default(%w, %1)
    yield %2
  } else {
    yield %x
  }
  %3: f32[6] = param("w")
  %4: f32[6] = aten.mul.Tensor(%x, %3)
  return %0, %4
}"""
    x, state = torch.randn(6), {"w": torch.zeros(6)}
    made = compare(text, [x, TRUE], [x, FALSE], state=state)
    assert [name.path for name in made.handles] == ["w"]


def test_profiles_of_loops() -> None:
    text = """\
graph f(%x: f32[64], %n: i64[]) -> f32[64] {
  %k: int = aten.item.default(%n)
  %0: f32[64] = for %i: int in (0, %k, 1) with (%h: f32[64] = %x) {
    %1: f32[64] = aten.sin.default(%h)
    yield %1
  }
  return %0
}"""
    made = lower(parse(text), lookup_in({}), replace(OWN, profile=True))
    run = Executable(made.plan, executor_object(CodeCache(""), profile=True))
    inputs = [torch.randn(64), torch.tensor(5)]
    for _ in range(3):
        run.run(inputs)
    (row,) = [row for row in run.profile() if row.label == "sin"]
    assert row.calls == 15 and row.total_ns > 0
