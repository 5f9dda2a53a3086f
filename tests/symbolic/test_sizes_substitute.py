"""Symbols of a graph become numbers, and what follows from them goes."""

import pytest

from smelt.codegen.lower.symbolic import specialize, substituted, symbolized
from smelt.ir import TensorType, parse, verify
from smelt.ir.sizes import Range, Size, tracing

TEXT = """
graph sized(%x: f32[B, S, 4], %y: f32[B, (S + 1)]{(S + 2), 1}, %n: int) -> f32[(B * S), 4], int, int, float {
  %b: int = aten.sym_size.int(%x, 0)
  %s: int = aten.sym_size.int(%x, -2)
  %m: int = py.mul(%b, %s)
  %v: f32[(B * S), 4] = aten.view.default(%x, [%m, 4])
  %w: f32[(B * S), 4] = aten.mul.Scalar(%v, %n)
  %k: int = py.max(%m, %n)
  %f: float = py.truediv(%s, 3)
  return %w, %k, %m, %f
}
"""


def _graph():
    return parse(TEXT)


def test_for_given_sizes_no_symbol_is_left():
    graph = _graph()
    before = str(graph)
    made = specialize(graph, {"B": 3, "S": 5})
    verify(made)
    assert str(graph) == before
    assert [node.op for node in made.walk()] == ["aten.view.default", "aten.mul.Scalar", "py.max"]
    view, scaled, larger = made.walk()
    assert view.args[1] == (15, 4) and str(view.result.type) == "f32[15, 4]"
    assert str(made.inputs[1].type) == "f32[3, 6]{7, 1}"
    assert larger.args == (15, made.inputs[2]) and scaled.args[1] is made.inputs[2]
    assert made.outputs[2:] == (15, 5 / 3)


def test_numbers_that_are_inputs_are_put_in_but_stay_what_the_caller_gets():
    graph = parse("""
graph sized(%x: f32[N], %n: int) -> f32[N], int {
  %v: f32[N] = aten.view.default(%x, [%n])
  return %v, %n
}
""")
    made = specialize(graph, {"N": 7}, {1: "N"})
    verify(made)
    (view,) = made.walk()
    assert view.args[1] == (7,) and made.outputs == (view.result, made.inputs[1])


def test_with_the_sizes_of_a_trace_and_back():
    with tracing({"B": (3, Range()), "S": (5, Range())}) as trace:
        made = substituted(_graph(), trace.symbols)
        view, _, larger = made.walk()
        kind = view.result.type
        assert isinstance(kind, TensorType) and kind.is_static
        assert type(kind.sizes[0]) is Size and kind.sizes[0] is not view.args[1][0]
        assert str(view.args[1][0]) == str(kind.sizes[0]) == "⟨B*S⟩"
        assert type(larger.args[0]) is Size and str(made.outputs[3]) == "⟨((S) / (3))⟩"
        symbolized(made)
        assert [str(v.type) for v in made.inputs] == [str(v.type) for v in _graph().inputs]
        assert str(view.result.type) == "f32[(B * S), 4]"
    assert not trace.guards and not trace.leaks


def test_what_python_would_raise_is_left_to_the_run():
    graph = parse("""
graph sized(%x: f32[B]) -> int, int {
  %b: int = aten.sym_size.int(%x, 0)
  %d: int = py.sub(%b, 4)
  %q: int = py.floordiv(%b, %d)
  %r: int = py.mod(7, %d)
  return %q, %r
}
""")
    assert [node.op for node in specialize(graph, {"B": 4}).walk()] == ["py.floordiv", "py.mod"]
    assert specialize(graph, {"B": 6}).outputs == (3, 1)
    with tracing({"B": (6, Range())}) as trace:
        assert not list(substituted(graph, trace.symbols).walk())
    assert [str(guard) for guard in trace.guards] == ["B - 4 != 0"]


def test_a_symbol_without_a_number_is_an_error():
    with pytest.raises(KeyError):
        specialize(_graph(), {"B": 3})
