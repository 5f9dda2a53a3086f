"""Lists that grow in loops: one buffer where the number of turns is known, Python's own list where it is not."""

from __future__ import annotations

import pytest
import torch

from smelt.codegen.lower import lower
from smelt.diag import SmeltError
from smelt.ir import parse
from smelt.ops.evaluate import no_state
from smelt.runtime.plan import PyCall
from tests.control.harness import compare

LOOP = """\
graph f(%x: f32[{n}, 2, 3], %z: f32[2, 3]) -> {types} {{
  %l: list[f32[2, 3]] = py.list({first})
  %h: f32[2, 3], %ys: list[f32[2, 3]] = for %i: int in (0, {n}, 1) with
      (%a: f32[2, 3] = %z, %m: list[f32[2, 3]] = %l) {{
    %0: f32[2, 3] = aten.select.int(%x, 0, %i)
    %1: f32[2, 3] = aten.mul.Tensor(%a, 0.5)
    %2: f32[2, 3] = aten.add.Tensor(%0, %1)
    %3: list[f32[2, 3]] = py.append(%m, {added})
    yield %2, %3
  }}
  {rest}
}}"""

ENDS = {
    "stack": ("f32[{c}, 2, 3]", "%s: f32[{c}, 2, 3] = aten.stack.default(%ys)\n  return %s"),
    "stack-1": ("f32[2, {c}, 3]", "%s: f32[2, {c}, 3] = aten.stack.default(%ys, 1)\n  return %s"),
    "stack-last": ("f32[2, 3, {c}]", "%s: f32[2, 3, {c}] = aten.stack.default(%ys, -1)\n  return %s"),
    "cat": ("f32[{d}, 3]", "%s: f32[{d}, 3] = aten.cat.default(%ys)\n  return %s"),
    "cat-1": ("f32[2, {e}]", "%s: f32[2, {e}] = aten.cat.default(%ys, 1)\n  return %s"),
    "twice": (
        "f32[{c}, 2, 3], f32[{c}, 2, 3], f32[2, 3]",
        "%s: f32[{c}, 2, 3] = aten.stack.default(%ys)\n  %t: f32[{c}, 2, 3] = aten.stack.default(%ys)\n"
        "  return %s, %t, %h",
    ),
    "inner": (
        "f32[{c}, 2, 3]",
        "%s: f32[{c}, 2, 3] = aten.stack.default(%ys)\n  %t: f32[{c}, 2, 3] = aten.exp.default(%s)\n  return %t",
    ),
    "list": ("list[f32[2, 3]]", "return %ys"),
    "element": ("f32[2, 3], int", "%s: f32[2, 3] = py.getitem(%ys, -1)\n  %t: int = py.len(%ys)\n  return %s, %t"),
}


def text(end: str, n: int, first: int, added: str) -> str:
    types, rest = ENDS[end]
    count = n + first
    sizes = {"c": count, "d": 2 * count, "e": 3 * count}
    given = ", ".join(["%z"] * first)
    return LOOP.format(n=n, types=types.format(**sizes), rest=rest.format(**sizes), first=given, added=added)


@pytest.mark.spread(2)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("n", "first", "added"), [(5, 0, "%2"), (4, 2, "%a"), (3, 0, "%z"), (1, 0, "%2")])
def test_lists_of_known_length(end: str, n: int, first: int, added: str) -> None:
    if end in ("list", "element") and (first or added in ("%z", "%a")):
        # A list with the caller's own tensors in it, or one of these: eager runs.
        with pytest.raises(SmeltError, match="from outside"):
            lower(parse(text(end, n, first, added)), no_state)
        return
    made = compare(text(end, n, first, added), [torch.randn(n, 2, 3), torch.randn(2, 3)], exact=False)
    if end not in ("list", "element"):
        assert not any(isinstance(i, PyCall) for i in made.plan.instructions)


def test_transposed_tensors_are_appended() -> None:
    source = """\
graph f(%x: f32[4, 2, 3]) -> f32[4, 3, 2] {
  %l: list[f32[3, 2]] = py.list()
  %ys: list[f32[3, 2]] = for %i: int in (3, -1, -1) with (%m: list[f32[3, 2]] = %l) {
    %0: f32[2, 3] = aten.select.int(%x, 0, %i)
    %1: f32[3, 2]{1, 3} = aten.transpose.int(%0, 0, 1)
    %2: list[f32[3, 2]] = py.append(%m, %1)
    yield %2
  }
  %s: f32[4, 3, 2] = aten.stack.default(%ys)
  return %s
}"""
    compare(source, [torch.randn(4, 2, 3)], python=0)


@pytest.mark.parametrize("case", ["length", "looked at", "sometimes", "while"])
def test_other_lists_are_pythons(case: str) -> None:
    source = {
        "length": """\
graph f(%x: f32[3], %n: i64[]) -> f32[_, 3] {
  %k: int = aten.item.default(%n)
  %l: list[f32[3]] = py.list(%x)
  %ys: list[f32[3]] = for %i: int in (0, %k, 1) with (%m: list[f32[3]] = %l) {
    %1: f32[3] = aten.mul.Tensor(%x, %i)
    %2: list[f32[3]] = py.append(%m, %1)
    yield %2
  }
  %s: f32[_, 3] = aten.stack.default(%ys)
  return %s
}""",
        "looked at": """\
graph f(%x: f32[3], %n: i64[]) -> f32[4, 3] {
  %l: list[f32[3]] = py.list(%x)
  %ys: list[f32[3]] = for %i: int in (0, 3, 1) with (%m: list[f32[3]] = %l) {
    %0: f32[3] = py.getitem(%m, -1)
    %1: f32[3] = aten.mul.Tensor(%0, 2)
    %2: list[f32[3]] = py.append(%m, %1)
    yield %2
  }
  %s: f32[4, 3] = aten.stack.default(%ys)
  return %s
}""",
        "sometimes": """\
graph f(%x: f32[3], %n: i64[]) -> f32[_, 3] {
  %l: list[f32[3]] = py.list(%x)
  %ys: list[f32[3]] = for %i: int in (0, 3, 1) with (%m: list[f32[3]] = %l) {
    %0: bool[] = aten.gt.Scalar(%n, %i)
    %3: list[f32[3]] = if %0 {
      %1: f32[3] = aten.mul.Tensor(%x, 2)
      %2: list[f32[3]] = py.append(%m, %1)
      yield %2
    } else {
      yield %m
    }
    yield %3
  }
  %s: f32[_, 3] = aten.stack.default(%ys)
  return %s
}""",
        "while": """\
graph f(%x: f32[3], %n: i64[]) -> list[f32[3]] {
  %l: list[f32[3]] = py.list()
  %ys: list[f32[3]], %r: i64[] = while with (%m: list[f32[3]] = %l, %j: i64[] = %n) {
    %0: bool[] = aten.gt.Scalar(%j, 0)
    yield %0
  } do (%p: list[f32[3]], %q: i64[]) {
    %1: f32[3] = aten.mul.Tensor(%x, %q)
    %2: list[f32[3]] = py.append(%p, %1)
    %3: i64[] = aten.sub.Tensor(%q, 1)
    yield %2, %3
  }
  return %ys
}""",
    }[case]
    made = compare(source, *([torch.randn(3), torch.tensor(n)] for n in (0, 2, 3)))
    assert made.report.counts["python"] > 0
