"""The graph's text parses back, in this process and in a fresh one, and bad text is refused with its place."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import HealthCheck, given, settings

from smelt.diag import VerifyError
from smelt.ir import Builder, DType, Graph, Node, TensorType, TextError, Value, parse, verify
from tests.forked import smelt_forks
from tests.ir.strategies import graphs

EXAMPLE = """\
graph f1(%x: f32[8, 16], %y: f32[16, 4]) -> f32[16, 4] {
  %0: f32[8, 16] = aten.sin.default(%x)  @ "model.py":3 in f1
  %1: f32[8, 4] = aten.matmul.default(%0, %y)  @ "model.py":4 in f1
  %2: f32[] = aten.sum.default(%1)  @ "model.py":5 in f1
  %3: bool[] = aten.lt.Scalar(%2, 0)  ["no_grad"] @ "model.py":5 in f1 of block.0
  %4: f32[16, 4] = if %3 {
    %5: f32[16, 4] = aten.neg.default(%y)  @ "model.py":6 in f1
    yield %5
  } else {
    yield %y
  }  @ "model.py":5 in f1
  %6: f32[16, 4] = for %i: int in (0, 10, 1) with (%c: f32[16, 4] = %4) {
    %7: f32[16, 4] = aten.add.Tensor(%c, %i, alpha=2)
    yield %7
  }
  %8: f32[16, 4] = while with (%d: f32[16, 4] = %6) {
    %9: bool[] = aten.any.default(%d)
    yield %9
  } do (%e: f32[16, 4]) {
    yield %e
  }
  %10: (f32[B, (S // 2)], f32[?], f32[_]{2}) = aten.split.Tensor(%8, [1, 2], -0.0, nan, device("cpu"), f32)
  aten._assert_async.default(%3)
  return %8
}"""


def test_example_round_trips() -> None:
    graph = parse(EXAMPLE)
    verify(graph)
    assert str(graph) == EXAMPLE
    assert graph.clone() == graph


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_any_graph_round_trips(graph: Graph) -> None:
    verify(graph)
    text = str(graph)
    again = parse(text)
    assert again == graph
    assert str(again) == text
    verify(again)
    copy = graph.clone()
    assert copy == graph
    verify(copy)


def test_text_parses_in_a_fresh_process() -> None:
    script = f"import sys; from smelt.ir import parse; sys.stdout.write(str(parse({EXAMPLE!r})))"
    assert smelt_forks().run(script) == EXAMPLE


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("aten.sin.default(%x)", "aten.sin.default(%zz)", "%zz is used before it is defined"),
        ("-> f32[16, 4] {", "-> f32[16, 5] {", "the header says that f32[16, 5] is returned"),
        ("%1: f32[8, 4]", "%0: f32[8, 4]", "%0 is defined twice"),
        ("f32[8, 16] =", "f33[8, 16] =", "there is no type 'f33'"),
        ("f32[8, 16] =", "f32[8.5, 16] =", "expected an integer"),
        ("(%c, %i, alpha=2)", "(%c, alpha=2, %i)", "a positional argument stands after a keyword"),
        ("yield %9", "", "expected 'yield'"),
        ("return %8\n}", "return %8\n} extra", "unexpected 'extra'"),
        ("aten.sum.default", "aten.sum.default ;", "unexpected character ';'"),
        ("yield %e", "yield %9", "%9 is used before it is defined"),
        ("(S // 2)", "(S ^ 2)", "unexpected character '^'"),
        ("device(", "gadget(", "'gadget' is no value or literal"),
    ],
)
def test_bad_text_names_its_place(old: str, new: str, message: str) -> None:
    bad = EXAMPLE.replace(old, new, 1)
    assert bad != EXAMPLE
    with pytest.raises(TextError) as error:
        parse(bad)
    assert message in str(error.value)
    assert "line" in str(error.value) and "^" in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("yield %5", "yield %0", "the then region yields %0: f32[8, 16] where the result is f32[16, 4]"),
        ("if %3 {", "if %1 {", "the condition is f32[8, 4]"),
        ("(0, 10, 1)", "(0, 1.5, 1)", "start, stop and step of a for are integers"),
        ("with (%d: f32[16, 4] = %6)", "with (%d: f32[16, 4] = %0)", "%0 is f32[8, 16], but the loop carries"),
        ("    yield %9", "    yield %d", "the test of a while yields one bool"),
    ],
)
def test_ill_formed_graphs_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(VerifyError, match="not well formed") as error:
        verify(parse(EXAMPLE.replace(old, new, 1)))
    assert message in str(error.value)


def test_broken_bookkeeping_is_found() -> None:
    f32 = TensorType(DType.F32, (2,))
    builder = Builder.new("f", {"x": f32})
    (x,) = builder.graph.inputs
    first = builder.add("aten.sin.default", (x,), [f32])
    second = builder.add("aten.cos.default", (first.result,), [f32])
    graph = builder.finish((second.result,))
    verify(graph)

    graph.body.remove(first)
    graph.body.insert(first)
    with pytest.raises(VerifyError, match="used before it is defined"):
        verify(graph)
    graph.body.remove(first)
    graph.body.insert(first, second)
    verify(graph)

    x.users[second] = 1
    with pytest.raises(VerifyError, match="out of step"):
        verify(graph)
    del x.users[second]

    first.results[0].name = "x"
    with pytest.raises(VerifyError, match="defined 2 times"):
        verify(graph)
    first.results[0].name = "0"

    stranger = Value("s", f32, Node("aten.sin.default", (), {}))
    second.set_arguments((stranger,))
    with pytest.raises(VerifyError, match="is not defined in this graph"):
        verify(graph)


def test_op_check_is_asked() -> None:
    with pytest.raises(VerifyError, match="no sines today"):
        verify(parse(EXAMPLE), lambda node: ["no sines today"] if "sin" in node.op else [])


def test_graph_equality_tells_literals_apart() -> None:
    def graph(literal: str) -> Graph:
        return parse(f"graph f() -> () {{ a.b.c({literal}) return }}")

    assert graph("nan") == graph("nan")
    distinct = ["1", "1.0", "True", "0.0", "-0.0", "None", '"1"', "[1]", "complex(1.0, 0.0)", "inf", "f32"]
    for i, left in enumerate(distinct):
        for j, right in enumerate(distinct):
            assert (graph(left) == graph(right)) is (i == j), (left, right)


def test_regions_are_edited_in_constant_time_and_survive_edits_while_walked() -> None:
    f32 = TensorType(DType.F32, (2,))
    builder = Builder.new("f", {"x": f32})
    value = builder.graph.inputs[0]
    for _ in range(5):
        value = builder.add("aten.sin.default", (value,), [f32]).result
    graph = builder.finish((value,))
    seen = []
    for node in graph.body:
        seen.append(node)
        if len(seen) == 2:  # erase the current node
            old = node.result
            last = node.args[0]
            assert isinstance(last, Value)
            for user in list(old.users):
                assert isinstance(user, Node)
                user.set_arguments((last,))
            node.drop_arguments()
            graph.body.remove(node)
    assert len(seen) == 5 and len(graph.body) == 4
    assert [n.op for n in reversed(graph.body)] == ["aten.sin.default"] * 4
    verify(graph)


def test_long_graphs_pickle_and_copy() -> None:
    f32 = TensorType(DType.F32, (2,))
    builder = Builder.new("f", {"x": f32})
    value = builder.graph.inputs[0]
    for _ in range(3000):
        value = builder.add("aten.sin.default", (value,), [f32]).result
    graph = builder.finish((value,))
    graph.constants["sha256:1"] = "data"
    again = pickle.loads(pickle.dumps(graph))
    assert again == graph and again.constants == graph.constants
    assert copy.deepcopy(graph) == graph
