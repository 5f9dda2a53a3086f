"""Every pattern that a pass looks for, put inside a branch, a loop and a loop of a branch: the meaning stays."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from smelt.compiler.pipeline import FUNCTIONAL, OPTIMIZED
from smelt.diag import SmeltError
from smelt.ir import BOOL, INT, Builder, Graph, Node, Region, TensorType, Value, clone_node, map_values, parse, verify
from smelt.ops.check import check as check_node
from smelt.ops.convert import dtype_to_torch
from smelt.ops.effects import effects
from smelt.passes.base import Pass, PassContext
from smelt.passes.manager import compare, observe

FOLDER = Path(__file__).parent / "golden"
# What runs where nothing is asked for.
USUAL = (*FUNCTIONAL, *(p for p in OPTIMIZED if p.name not in ("lower-precision", "attention-fast")))
KINDS = ("if", "for", "while", "if in for")


def _golden() -> Any:
    path = Path(__file__).parent / "test_golden.py"
    spec = importlib.util.spec_from_file_location("tests_passes_golden_cases", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def cases() -> list[Any]:
    found = []
    for path in sorted(FOLDER.glob("*.txt")):
        for case in _golden().read(path):
            try:
                graph = parse(case.before)
                verify(graph, check_node)
            except SmeltError:
                continue
            if any(effects(node).arbitrary for node in graph.walk()):
                # No two runs agree on what `empty` holds.
                continue
            types = [v.type for v in graph.values() if v.node is None or v.node.op in ("param", "buffer", "captured")]
            if all(isinstance(t, TensorType) and t.is_static and t.device == "cpu" for t in types[: len(graph.inputs)]):
                found.append(pytest.param(case, id=f"{path.stem}: {case.name}"))
    return found


class Wrapper:
    """Clones the body of a graph into regions of another, with names of its own."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = Builder.new(graph.name, {v.name: v.type for v in graph.inputs})
        self.builder.graph.constants.update(graph.constants)
        self.outputs = [a for a in graph.outputs if isinstance(a, Value)]
        self.types = [v.type for v in self.outputs]
        self.condition = self.builder.add_param(self.builder.graph.body, "condition", BOOL)

    def clone(self, region: Region) -> tuple[Any, ...]:
        """The body at the end of a region; its outputs there."""
        inputs = self.builder.graph.inputs
        mapping: dict[Value, Any] = dict(zip(self.graph.inputs, inputs[: len(self.graph.inputs)], strict=True))
        for node in self.graph.body:
            copy = clone_node(node, mapping)
            self.rename(copy)
            region.insert(copy)
        return tuple(map_values(v, lambda v: mapping.get(v, v)) for v in self.outputs)

    def rename(self, node: Node) -> None:
        for value in node.results:
            value.name = self.builder.fresh_name()
        for region in node.regions:
            for param in region.params:
                param.name = self.builder.fresh_name()
            for inner in region:
                self.rename(inner)

    def branch(self) -> Node:
        node = self.builder.add("if", (self.condition,), self.types)
        for _ in range(2):
            region = self.builder.add_region(node)
            region.set_yields(self.clone(region))
        return node

    def loop(self, kind: str) -> Node:
        first = self.clone(self.builder.graph.body)
        if kind != "while":
            node = self.builder.add("for", (0, 2, 1, *first), self.types)
            body = self.builder.add_region(node)
            self.builder.add_param(body, "i", INT)
        else:
            node = self.builder.add("while", (0, *first), [INT, *self.types])
            test = self.builder.add_region(node)
            count = self.builder.add_param(test, "n", INT)
            for type_ in self.types:
                self.builder.add_param(test, "c", type_)
            with self.builder.inside(test):
                test.set_yields((self.builder.add("py.lt", (count, 2), (BOOL,)).result,))
            body = self.builder.add_region(node)
            self.builder.add_param(body, "n", INT)
        for type_ in self.types:
            self.builder.add_param(body, "c", type_)
        with self.builder.inside(body):
            if kind == "if in for":
                body.set_yields(tuple(self.branch().results))
            elif kind == "for":
                body.set_yields(self.clone(body))
            else:
                yields = self.clone(body)
                body.set_yields((self.builder.add("py.add", (body.params[0], 1), (INT,)).result, *yields))
        return node

    def wrapped(self, kind: str) -> Graph:
        node = self.branch() if kind == "if" else self.loop(kind)
        return self.builder.finish(tuple(node.results))


def data(type_: Any, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = 1 + sum((n - 1) * t for n, t in zip(type_.sizes, type_.steps, strict=True)) if type_.numel else 0
    whole = torch.randn(max(4096, size), generator=generator)
    dtype = dtype_to_torch(type_.dtype)
    # Booleans are masks of which some elements are set, ints are places.
    flat = whole[:size].abs() + 0.1 if dtype.is_floating_point else (torch.arange(size) % 3 == 0)
    flat = flat.to(dtype)
    return flat.as_strided(type_.sizes, type_.steps)


def check(case: Any, kind: str, passes: list[tuple[Pass, ...]]) -> None:
    graph = Wrapper(parse(case.before)).wrapped(kind)
    verify(graph, check_node)
    assert parse(str(graph)) == graph
    kinds = {str(n.args[0]): n.result.type for n in graph.walk() if n.op in ("param", "buffer", "captured")}
    state = {name: data(type_, 7 + i) for i, (name, type_) in enumerate(kinds.items())}
    inputs = [data(v.type, i) if isinstance(v.type, TensorType) else True for i, v in enumerate(graph.inputs)]

    def lookup(kind: str, path: str) -> torch.Tensor:
        return state[path]

    try:
        expected = observe(graph, inputs, lookup)
    except (RuntimeError, IndexError, SmeltError) as error:
        pytest.skip(f"eager refuses these data: {error}")
    for some in passes:
        current = graph.clone()
        rounds = False
        for one in some:
            one.run(current, PassContext(lookup))
            verify(current, check_node)
            rounds |= one.rounding
        found = observe(current, inputs, lookup)
        names = ", ".join(p.name for p in some)
        told = f"after {names}:\n{graph}\n---\n{current}"
        tolerance = (5e-2, 1e-1) if "lower-precision" in names else (1e-4, 1e-5) if rounds else (0.0, 0.0)
        assert not compare(found, expected, *tolerance), f"{compare(found, expected, *tolerance)} {told}"
        assert found.sharing == expected.sharing, f"{found.sharing} for {expected.sharing} {told}"


def paired(each: bool) -> list[Any]:
    """Every pattern in every kind of region, or in two, each kind as often as the others."""
    found = []
    for i, case in enumerate(cases()):
        for kind in KINDS if each else (KINDS[i % 4], KINDS[(i + 1 + i // 4 % 3) % 4]):
            found.append(pytest.param(*case.values, kind, id=f"{case.id}-{kind}"))
    return found


@pytest.mark.spread(18)
@pytest.mark.parametrize(("case", "kind"), paired(each=False))
def test_patterns_inside_regions(case: Any, kind: str) -> None:
    _check_alone_and_together(case, kind)


@pytest.mark.nightly
@pytest.mark.parametrize(("case", "kind"), paired(each=True))
def test_patterns_inside_all_regions(case: Any, kind: str) -> None:
    _check_alone_and_together(case, kind)


def _check_alone_and_together(case: Any, kind: str) -> None:
    alone = [(*FUNCTIONAL, one) for one in OPTIMIZED]
    check(case, kind, [*alone, (*FUNCTIONAL, *OPTIMIZED)])


def test_patterns_are_found_inside_regions() -> None:
    """Not only kept: one product inside a loop and a branch is spelled and takes its bias."""
    text = """graph f(%x: f32[3, 4], %n: int) -> f32[3, 4] {
      %r: f32[3, 4] = for %i: int in (0, %n, 1) with (%h: f32[3, 4] = %x) {
        %w: f32[4, 4] = param("w")
        %b: f32[4] = param("b")
        %t: f32[4, 4]{1, 4} = aten.t.default(%w)
        %m: f32[3, 4] = aten.mm.default(%h, %t)
        %a: f32[3, 4] = aten.add.Tensor(%m, %b)
        yield %a
      }
      return %r
    }"""
    graph = parse(text)
    for one in USUAL:
        one.run(graph, PassContext())
        verify(graph, check_node)
    loop = next(n for n in graph.walk() if n.op == "for")
    assert [n.op for n in loop.regions[0]] == ["aten.linear.default"]
    assert [n.op for n in graph.body] == ["param", "param", "for"]


def test_invariants_leave_loops_and_what_may_raise_stays() -> None:
    graph = parse("""graph f(%x: f32[4], %k: int, %n: int) -> f32[4], int {
      %r: f32[4], %s: int = for %i: int in (0, %n, 1) with (%h: f32[4] = %x, %c: int = 0) {
        %w: f32[4] = aten.exp.default(%x)
        %u: f32[4] = aten.add.Tensor(%h, %w)
        %d: int = py.floordiv(%k, %n)
        %q: int = py.mul(%k, 3)
        %e: int = py.add(%c, %d)
        %g: int = py.add(%e, %q)
        py.print("trip")
        yield %u, %g
      }
      return %r, %s
    }""")
    for one in OPTIMIZED:
        one.run(graph, PassContext())
    outside = [n.op for n in graph.body]
    inside = [n.op for n in graph.walk() if n.parent is not graph.body]
    assert "aten.exp.default" in outside and "py.mul" in outside
    assert "py.floordiv" in inside and "py.print" in inside


def test_dead_carried_values_and_known_branches_go() -> None:
    graph = parse("""graph f(%x: f32[4], %n: int) -> f32[4] {
      %r: f32[4], %a: f32[4], %b: int = for %i: int in (0, %n, 1) with (%h: f32[4] = %x, %p: f32[4] = %x, %q: int = 0) {
        %c: bool = py.lt(1, 2)
        %z: f32[4] = if %c {
          %y: f32[4] = aten.sin.default(%h)
          yield %y
        } else {
          py.raise("builtins.ValueError", "never")
          yield %h
        }
        %k: f32[4] = aten.exp.default(%p)
        %m: int = py.add(%q, 1)
        yield %z, %k, %m
      }
      return %r
    }""")
    for one in OPTIMIZED:
        one.run(graph, PassContext())
        verify(graph, check_node)
    loop = next(n for n in graph.walk() if n.op == "for")
    # The test is known after folding; its branch goes with the sweep.
    assert len(loop.results) == 1 and [n.op for n in loop.regions[0]] == ["aten.sin.default"]
    assert not effects(loop).may_throw


def test_expectations_and_effects_stay_where_they_are() -> None:
    text = """graph f(%x: f32[4], %c: bool, %n: int) -> () {
      %s: f32[] = aten.sum.default(%x)
      %t: bool[] = aten.gt.Scalar(%s, 0)
      expect(%t, True)
      if %c {
        expect(%t, True)
        %d: int = py.floordiv(1, %n)
        py.print("then", %d)
        yield
      } else {
        yield
      }
      return
    }"""
    graph = parse(text)
    for one in OPTIMIZED:
        one.run(graph, PassContext())
        verify(graph, check_node)
    assert [n.op for n in graph.walk() if n.op in ("expect", "if", "py.floordiv", "py.print")] == [
        "expect",
        "if",
        "py.floordiv",
        "py.print",
    ]
