"""The rewriter's checks and events, patterns, and the driver's fixpoint and fuel."""

from __future__ import annotations

from itertools import pairwise

import pytest

from smelt.diag import InternalError, Span
from smelt.ir import Arg, Value, parse, verify
from smelt.rewrite import Event, Match, Rewriter, Rule, any_of, anything, apply_rules, common_scope, literal, match, op

TEXT = """graph f(%x: f32[2], %y: f32[2]) -> f32[2] {
  %0: f32[2] = aten.mul.Tensor(%x, 2)
  %1: f32[2] = aten.add.Tensor(%y, %0)  @ "m.py":3 in f of net.a
  %2: f32[2] = aten.neg.default(%1)  @ "m.py":4 in f of net.b
  return %2
}"""


def test_every_edit_is_told_and_leaves_a_sound_graph() -> None:
    graph = parse(TEXT)
    events: list[Event] = []
    rewriter = Rewriter(graph, [events.append])
    zero, one, two = graph.body
    made = rewriter.insert("aten.sin.default", (zero.result,), (zero.result.type,), before=two)
    assert made.span == two.span and made.scope == "net.b"
    rewriter.set_arguments(two, (made.result,))
    rewriter.replace_node(one, (zero.result,))
    rewriter.set_yields(graph.body, (made.result, two.result))
    rewriter.move(two, None)
    verify(graph)
    assert [e.kind for e in events] == ["insert", "arguments", "replace", "erase", "yields", "move"]
    assert rewriter.edits == 6


def test_edits_that_would_break_dominance_are_refused() -> None:
    graph = parse(TEXT)
    rewriter = Rewriter(graph)
    zero, one, two = graph.body
    with pytest.raises(InternalError, match="not defined before its use"):
        rewriter.replace_all_uses(graph.inputs[0], two.result)
    with pytest.raises(InternalError, match="still used"):
        rewriter.erase(zero)
    with pytest.raises(InternalError, match="cannot be replaced by something that holds it"):
        rewriter.replace_all_uses(one.result, (one.result, zero.result))
    with pytest.raises(InternalError, match="cannot replace"):
        rewriter.replace_node(two, ())
    with pytest.raises(InternalError, match="not defined before its use"):
        rewriter.move(two, zero)


def test_values_of_a_region_are_not_visible_outside() -> None:
    graph = parse(
        """graph f(%c: bool, %x: f32[2]) -> f32[2] {
          %0: f32[2] = if %c {
            %1: f32[2] = aten.sin.default(%x)
            yield %1
          } else {
            yield %x
          }
          %2: f32[2] = aten.neg.default(%0)
          return %2
        }"""
    )
    branch, last = graph.body
    (inner,) = branch.regions[0]
    rewriter = Rewriter(graph)
    assert rewriter.is_visible(graph.inputs[1], inner) and not rewriter.is_visible(inner.result, last)
    with pytest.raises(InternalError, match="not defined before its use"):
        rewriter.replace_all_uses(branch.result, inner.result)
    rewriter.replace_node(branch, (graph.inputs[1],))
    verify(graph)


def test_many_insertions_keep_their_order() -> None:
    graph = parse(TEXT)
    rewriter = Rewriter(graph)
    zero, *_, last = graph.body
    nodes = [rewriter.insert("aten.sin.default", (zero.result,), (zero.result.type,), before=last) for _ in range(50)]
    for earlier, later in pairwise(nodes):
        assert rewriter.is_before(earlier, later) and not rewriter.is_before(later, earlier)


def test_common_scope() -> None:
    assert common_scope(["a.b.c", "a.b.d"]) == "a.b"
    assert common_scope(["a", "b"]) == "" and common_scope([]) == "" and common_scope(["a.b"]) == "a.b"


def _is_two(arg: Arg) -> bool:
    return type(arg) is int and arg == 2


def test_patterns_follow_dataflow_in_either_order() -> None:
    _, one, _ = parse(TEXT).body
    product = op("aten.mul.Tensor", anything("a"), literal(_is_two, "k"), name="product")
    plain = op("aten.add.Tensor", product, anything("b"))
    assert match(plain, one) is None
    found = match(op("aten.add.Tensor", product, anything("b"), commutes=True), one)
    assert found is not None
    assert found["k"] == 2 and found.value("b").name == "y" and found.node("product").op == "aten.mul.Tensor"
    assert [n.op for n in found.nodes] == ["aten.add.Tensor", "aten.mul.Tensor"]
    with pytest.raises(TypeError):
        found.value("k")


def test_a_name_that_stands_twice_matches_one_thing() -> None:
    graph = parse(
        """graph f(%x: f32[2], %y: f32[2]) -> f32[2], f32[2] {
          %0: f32[2] = aten.mul.Tensor(%x, %x)
          %1: f32[2] = aten.mul.Tensor(%x, %y)
          return %0, %1
        }"""
    )
    same = op("aten.mul.Tensor", anything("a"), anything("a"))
    assert [match(same, n) is not None for n in graph.body] == [True, False]
    either = op("aten.mul.Tensor", any_of(op("aten.sin.default", anything()), anything("a")), anything())
    assert all(match(either, n) is not None for n in graph.body)


def _negate_twice(rewriter: Rewriter, found: Match) -> Arg:
    x = found.value("x")
    first = rewriter.builder.add("aten.neg.default", (x,), (x.type,)).result
    return rewriter.builder.add("aten.neg.default", (first,), (x.type,)).result


def test_rules_that_cycle_are_named_when_the_fuel_runs_out() -> None:
    grow = Rule("grow", op("aten.neg.default", anything("x")), _negate_twice)
    with pytest.raises(InternalError, match="rules grow keep firing") as caught:
        apply_rules(Rewriter(parse(TEXT)), [grow], fuel=20)
    assert caught.value.code == "S0901"


def test_rules_run_to_a_fixpoint_and_merge_origins() -> None:
    graph = parse(TEXT)

    def fuse(rewriter: Rewriter, found: Match) -> Arg:
        made = rewriter.builder.add("aten.sub.Tensor", (found["b"], found["p"]), (found.root.result.type,))
        rewriter.adopt(made)
        made.span = None
        made.scope = ""
        return made.result

    rule = Rule(
        "neg-of-add", op("aten.neg.default", op("aten.add.Tensor", anything("b"), anything("p"), once=True)), fuse
    )
    fired = apply_rules(Rewriter(graph), [rule], can_erase=lambda n: True)
    verify(graph)
    assert fired == {"neg-of-add": 1} and [n.op for n in graph.body] == ["aten.mul.Tensor", "aten.sub.Tensor"]
    last = graph.body.last
    assert last is not None and last.span == Span("m.py", 4, "f") and last.scope == "net"


def test_a_rule_that_declines_leaves_no_trace() -> None:
    graph = parse(TEXT)

    def decline(rewriter: Rewriter, found: Match) -> None:
        x = found["x"]
        assert isinstance(x, Value)
        rewriter.adopt(rewriter.builder.add("aten.sin.default", (x,), (x.type,)))

    fired = apply_rules(Rewriter(graph), [Rule("no", op("aten.neg.default", anything("x")), decline)])
    assert not fired and str(graph) == str(parse(TEXT))


def test_nodes_of_different_modes_are_not_joined() -> None:
    graph = parse(TEXT.replace("aten.add.Tensor(%y, %0)", 'aten.add.Tensor(%y, %0)  ["no_grad"]'))
    rule = Rule(
        "r",
        op("aten.neg.default", op("aten.add.Tensor", anything("b"), anything())),
        lambda rewriter, found: found["b"],
    )
    assert not apply_rules(Rewriter(graph), [rule])


def test_order_is_right_after_a_renumbering() -> None:
    graph = parse(TEXT)
    rewriter = Rewriter(graph)
    x, last = graph.inputs[0], graph.body.last
    assert last is not None
    nodes = [rewriter.insert("aten.sin.default", (x,), (x.type,), before=last) for _ in range(30)]
    assert rewriter.is_before(nodes[28], nodes[29])
    for node in nodes[:25]:
        rewriter.erase(node)
    late = [rewriter.insert("aten.cos.default", (x,), (x.type,), before=last) for _ in range(2)]
    assert rewriter.is_before(nodes[29], late[1]) and not rewriter.is_before(late[1], nodes[29])
