"""Aliases, dependence, liveness and cost on small graphs."""

from __future__ import annotations

from smelt.analysis import (
    alias_analysis,
    cost,
    dependence,
    is_static,
    last_uses,
    live_bytes,
    output_aliases,
    total_cost,
    used_by,
)
from smelt.ir import Graph, Value, parse


def value(graph: Graph, name: str) -> Value:
    return next(v for v in graph.values() if v.name == name)


def test_views_lie_in_their_base_and_copies_do_not() -> None:
    graph = parse(
        """graph f(%x: f32[3, 4]) -> f32[4, 3]{1, 4}, f32[12], f32[12] {
          %t: f32[4, 3]{1, 4} = aten.t.default(%x)
          %v: f32[12] = aten.reshape.default(%x, [12])
          %c: f32[12] = aten.reshape.default(%t, [12])
          return %t, %v, %c
        }"""
    )
    aliases = alias_analysis(graph)
    x, t, v, c = (value(graph, n) for n in "xtvc")
    assert aliases.of(t) == aliases.of(v) == {x} and aliases.of(c) == {c}
    assert aliases.may_share(t, v) and not aliases.may_share(t, c)
    assert aliases.outputs == {x, c} and not aliases.written
    first, second = output_aliases(graph)
    assert (first.output, first.inputs, first.outputs) == (0, ("x",), (1,))
    assert (second.output, second.inputs, second.outputs) == (1, ("x",), (0,))


def test_what_a_branch_yields_lies_in_either() -> None:
    graph = parse(
        """graph f(%x: f32[2], %y: f32[2], %c: bool) -> f32[2] {
          %r: f32[2] = if %c {
            yield %x
          } else {
            %s: f32[2] = aten.sin.default(%y)
            yield %s
          }
          %w: f32[2] = aten.add_.Tensor(%r, 1)
          return %w
        }"""
    )
    aliases = alias_analysis(graph)
    assert aliases.of(value(graph, "r")) == {value(graph, "x"), value(graph, "s")}
    assert aliases.is_written(value(graph, "x")) and not aliases.is_written(value(graph, "y"))


def test_what_a_loop_carries_may_be_its_first_value() -> None:
    graph = parse(
        """graph f(%x: f32[2]) -> f32[2] {
          %r: f32[2] = for %i: int in (0, 3, 1) with (%c: f32[2] = %x) {
            %d: f32[2] = aten.mul.Tensor(%c, 2)
            yield %d
          }
          return %r
        }"""
    )
    aliases = alias_analysis(graph)
    assert aliases.of(value(graph, "r")) == aliases.of(value(graph, "c")) == {value(graph, "x"), value(graph, "d")}


def test_dependence() -> None:
    graph = parse(
        """graph f(%x: f32[2]) -> f32[2], f32[2] {
          %k: f32[2] = const([1.0, 2.0])
          %w: f32[2] = param("w")
          %b: f32[2] = buffer("b")
          %e: f32[2] = aten.exp.default(%k)
          %s: f32[2] = aten.mul.Tensor(%w, %e)
          %r: f32[2] = aten.rand_like.default(%k)
          %y: f32[2] = aten.add.Tensor(%s, %x)
          %z: f32[2] = aten.add_.Tensor(%b, 1)
          return %y, %z
        }"""
    )
    found = dependence(graph)
    levels = {n: found[value(graph, n)] for n in "xkwesryz"}
    assert levels == {
        "x": "call", "k": "constant", "w": "state", "e": "constant", "s": "state",
        "r": "call", "y": "call", "z": "call",
    }  # fmt: skip
    assert found[value(graph, "b")] == "call"
    assert is_static(value(graph, "s"), found) and not is_static(value(graph, "y"), found)


def test_liveness() -> None:
    graph = parse(
        """graph f(%x: f32[4], %c: bool) -> f32[4] {
          %a: f32[4] = aten.sin.default(%x)
          %b: f32[4] = aten.exp.default(%a)
          %v: f32[2, 2] = aten.view.default(%a, [2, 2])
          %r: f32[4] = if %c {
            %s: f32[2, 2] = aten.neg.default(%v)
            %t: f32[4] = aten.view.default(%s, [4])
            yield %t
          } else {
            yield %b
          }
          return %r
        }"""
    )
    nodes = list(graph.body)
    last = last_uses(graph.body)
    assert last[value(graph, "a")] is nodes[2] and last[value(graph, "v")] is nodes[3] is last[value(graph, "b")]
    assert last[value(graph, "r")] is graph.body
    assert used_by(nodes[3]) == {value(graph, "c"), value(graph, "v"), value(graph, "b")}
    assert live_bytes(graph.body, alias_analysis(graph)) == [16, 32, 32, 32]


def test_cost() -> None:
    graph = parse(
        """graph f(%x: f32[8, 16], %w: f32[4, 16]) -> f32[8, 4] {
          %y: f32[8, 4] = aten.linear.default(%x, %w)
          %t: f32[4, 8]{1, 4} = aten.t.default(%y)
          %z: f32[8, 4] = aten.exp.default(%y)
          return %z
        }"""
    )
    linear, view, pointwise = (cost(n) for n in graph.body)
    assert linear.flops == 2 * 8 * 4 * 16 and linear.nbytes == 4 * (8 * 16 + 4 * 16 + 8 * 4)
    assert (view.flops, view.nbytes) == (0, 0) and pointwise.flops == 32
    assert total_cost(graph).flops == linear.flops + 32
