"""Python's operators in the graph: what they compute, the types they say, what they may raise, their text."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smelt.diag import Miss, SmeltError, VerifyError
from smelt.ir import (
    ANY,
    BOOL,
    FLOAT,
    INT,
    STR,
    Builder,
    DictType,
    ListType,
    OptionalType,
    TupleType,
    Type,
    arg_fits,
    fits,
    join,
    parse,
    verify,
)
from smelt.ops.check import check
from smelt.ops.effects import effects
from smelt.ops.evaluate import evaluate
from smelt.ops.python.python_calls import _STR_METHODS
from smelt.ops.python.python_ops import PYTHON_OPS, infer_python
from tests.ir.strategies import types

scalars = st.one_of(
    st.booleans(),
    st.integers(-9, 9),
    st.sampled_from([0, 1, -1, 2**70, -(2**1100)]),
    st.floats(-8, 8),
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1e300]),
    st.text(max_size=3),
    st.complex_numbers(max_magnitude=4),
)
# What methods of texts are given that take something.
_TEXTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), (5,)),
    **dict.fromkeys(("count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix"), (" ",)),
    **dict.fromkeys(("rfind", "rindex", "rpartition", "startswith"), (" ",)),
    "join": (("a", "b"),),
    "replace": ("a", "b"),
    "__mod__": ((),),
}
BY_NAME = {op.name: op for op in PYTHON_OPS}
# An operand of these is a container, or the name of something.
_OF_OTHERS = ("call", "draw", "setitem", "delitem", "insert", "append", "pow", "getattr", "attempt", "raised")
OF_SCALARS = [
    op
    for op in PYTHON_OPS
    if op.results == 1 and op.name.startswith("py.") and op.name.removeprefix("py.") not in _OF_OTHERS
]


def type_of(value: Any) -> Type:
    match value:
        case list():
            found: Type = ListType(ANY)
            return ListType(join_all(value)) if value else found
        case tuple():
            return TupleType(tuple(map(type_of, value)))
        case dict():
            return DictType(join_all(value), join_all(value.values())) if value else DictType(ANY, ANY)
    kinds = {bool: BOOL, int: INT, float: FLOAT, str: STR}
    return kinds.get(type(value), ANY if not isinstance(value, complex) else infer_python("py.complex", (1.0,))[0])


def join_all(values: Any) -> Type:
    found = [type_of(v) for v in values]
    result = found[0]
    for one in found[1:]:
        result = join(result, one)
    return result


def one_node(op: str, args: list[Any], declared: list[Type] | None = None) -> Any:
    """A graph of one operator, its operands given as inputs."""
    b = Builder.new("one", {f"a{i}": type_of(a) for i, a in enumerate(args)})
    node = b.add(op, tuple(b.graph.inputs), declared or infer_python(op, tuple(b.graph.inputs)))
    return b.finish(tuple(node.results)), node


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(OF_SCALARS), st.lists(scalars, min_size=1, max_size=3))
def test_types_and_raises_hold_for_any_scalars(op: Any, args: list[Any]) -> None:
    args = args[: op.most] if op.most else args
    while len(args) < op.least:
        args.append(2)
    # Python takes for ever to round to the 2**1100-th digit before the point.
    assume(op.name != "py.round" or type(args[-1]) is not int or abs(args[-1]) < 2**70)
    graph, node = one_node(op.name, args)
    verify(graph, check)
    assert parse(str(graph)) == graph
    try:
        (found,) = evaluate(graph, args)
    except (TypeError, ValueError, ArithmeticError, LookupError, KeyError) as error:
        assert effects(node).may_throw, f"{op.name} {args} raised {error!r}"
        return
    if not (type(found) is list and not found):
        assert fits(type_of(found), node.result.type), f"{found!r} is no {node.result.type}"


@settings(max_examples=200, deadline=None)
@given(st.integers(-5, 5), st.one_of(st.integers(-3, 5), st.floats(-3, 3), st.booleans()))
def test_powers_have_the_type_they_say(base: int, exponent: Any) -> None:
    for literal in (False, True):
        b = Builder.new("p", {"a": INT, "b": type_of(exponent)})
        args = (b.graph.inputs[0], exponent if literal else b.graph.inputs[1])
        node = b.add("py.pow", args, infer_python("py.pow", args))
        graph = b.finish((node.result,))
        try:
            (found,) = evaluate(graph, [base, exponent])
        except ZeroDivisionError:
            assert effects(node).may_throw
            continue
        assert fits(type_of(found), node.result.type)


EXACT = [
    ("py.floordiv(-7, 2)", -4),
    ("py.mod(-7, 2)", 1),
    ("py.mod(-7.5, 2)", 0.5),
    ("py.truediv(1, 2)", 0.5),
    ("py.pow(2, 100)", 2**100),
    ("py.pow(2, -1)", 0.5),
    ("py.add([1], [2.5])", [1, 2.5]),
    ('py.mul("ab", 2)', "abab"),
    ("py.not_([])", True),
    ("py.round(2.5)", 2),
    ("py.round(2.675, 2)", 2.67),
    ("py.min(3, 1, 2)", 1),
    ("py.max([3, 1])", 3),
    ("py.sum([1, 2, 3])", 6),
    ("py.sum([])", 0),
    ("py.getitem([1, 2, 3], -1)", 3),
    ("py.slice([1, 2, 3], None, None, -1)", [3, 2, 1]),
    ("py.slice([1, 2, 3], 1)", [2, 3]),
    ("py.in_(2, [1, 2])", True),
    ('py.in_("b", "abc")', True),
    ("py.setitem([1, 2, 3], -1, 7)", [1, 2, 7]),
    ("py.delitem([1, 2, 3], 0)", [2, 3]),
    ("py.insert([1, 2], 0, 3)", [3, 1, 2]),
    ("py.append([1], [2])", [1, [2]]),
    ('py.dict("a", 1, "a", 2)', {"a": 2}),
    ("py.tuple(1, [2])", (1, [2])),
    ('py.format(3.14159, "8.2f")', "    3.14"),
    ('py.format("x", ">3", "r")', "'x'"),
    ('py.join("a", "", "é\\n")', "aé\n"),
    ('py.int("12")', 12),
    ("py.int(-1.9)", -1),
    ("py.float(True)", 1.0),
    ("py.str(1e+16)", "1e+16"),
    ("py.complex(1, 2)", 1 + 2j),
    ("py.bool(0.0)", False),
    ("py.is_none(None)", True),
    ('py.call("math.sqrt", 2.0)', math.sqrt(2.0)),
    ('py.call("builtins.sorted", [3, 1, 2], reverse=True)', [3, 2, 1]),
    ('py.call("builtins.zip", [1, 2], [3, 4])', [(1, 3), (2, 4)]),
    ('py.call("str.upper", "ab")', "AB"),
    ('py.call("builtins.range", 3)', [0, 1, 2]),
    ("py.lt(1, 2.5)", True),
    ("py.eq([1, 2], [1, 2])", True),
    ("py.invert(5)", -6),
    ("py.xor(True, True)", False),
]


@pytest.mark.parametrize(("text", "expected"), EXACT)
def test_what_python_computes(text: str, expected: Any) -> None:
    graph = parse(f"graph g() -> any {{\n  %a: any = {text}\n  return %a\n}}")
    verify(graph, check)
    assert parse(str(graph)) == graph
    (found,) = evaluate(graph, [])
    assert type(found) is type(expected) and found == expected
    node = next(iter(graph.walk()))
    (inferred,) = infer_python(node.op, node.args)
    assert inferred == ANY or fits(type_of(found), inferred)


@pytest.mark.parametrize("name", _STR_METHODS)
def test_methods_of_texts_have_types(name: str) -> None:
    function, args = getattr(str, name), _TEXTS.get(name, ())
    (inferred,) = infer_python("py.call", (f"str.{name}", "a b", *args))
    assert inferred == type_of(function("a b", *args))


def test_containers_are_values_and_hold_the_very_tensors() -> None:
    graph = parse("""graph g(%x: f32[2], %y: f32[2]) -> list[f32[2]], list[f32[2]], list[f32[2]], f32[2] {
      %a: list[f32[2]] = py.list(%x)
      %b: list[f32[2]] = py.append(%a, %y)
      %c: list[f32[2]], %d: f32[2] = py.pop(%b, 0)
      return %a, %b, %c, %d
    }""")
    verify(graph, check)
    x, y = torch.ones(2), torch.zeros(2)
    a, b, c, d = evaluate(graph, [x, y])
    assert [t is x for t in a] == [True] and (b[0] is x and b[1] is y) and c[0] is y and d is x


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    graph = parse("""graph g(%x: f32[2], %n: int) -> () {
      py.print("n", %n, %x, sep="-", end="!")
      py.print("err", stream="stderr")
      return
    }""")
    verify(graph, check)
    evaluate(graph, [torch.zeros(2), 3])
    assert capsys.readouterr() == ("n-3-tensor([0., 0.])!", "err\n")
    assert all(effects(n).io for n in graph.walk())


def test_raising_and_asserting() -> None:
    graph = parse("""graph g(%n: int) -> () {
      %c: bool = py.lt(%n, 0)
      if %c {
        py.raise("builtins.ValueError", "below", %n, cause="builtins.KeyError", cause_args=["k"])
        yield
      } else {
        yield
      }
      %d: bool = py.lt(%n, 5)
      py.assert(%d, "large")
      return
    }""")
    verify(graph, check)
    assert parse(str(graph)) == graph
    assert evaluate(graph, [1]) == []
    with pytest.raises(ValueError, match="below") as caught:
        evaluate(graph, [-1])
    assert caught.value.args == ("below", -1) and isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(AssertionError, match="large"):
        evaluate(graph, [7])
    node = next(n for n in graph.walk() if n.op == "if")
    assert effects(node).may_throw and effects(node).is_pure


class Worded(Exception):
    def __init__(self, level: int, *, hint: str = "") -> None:
        super().__init__(f"level {level}")
        self.level, self.hint = level, hint


def test_what_is_raised_again_holds_what_it_held() -> None:
    graph = parse(f"""graph g(%n: int) -> () {{
      py.raise("{Worded.__module__}.Worded", "level 3", %n, "none", fields="level hint")
      return
    }}""")
    verify(graph, check)
    with pytest.raises(Worded, match=r"^level 3$") as caught:
        evaluate(graph, [3])
    assert (caught.value.level, caught.value.hint) == (3, "none")


@pytest.mark.parametrize("name", ["builtins.print", "no.such.Error", "builtins.Nothing", "ValueError"])
def test_only_exceptions_are_raised(name: str) -> None:
    graph = parse(f'graph g() -> () {{\n  py.raise("{name}")\n  return\n}}')
    with pytest.raises(SmeltError, match="names no class"):
        evaluate(graph, [])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%a: int = py.add(1)", "py.add takes 2 arguments"),
        ("%a: int = py.nothing(1)", "there is no operator py.nothing"),
        ("%a: str = py.add(1, 2)", "%a is int, not str"),
        ("py.add(1, 2)", "py.add has 1 results"),
        ("%a: int = py.call(1)", "py.call cannot call 1"),
        ('%a: int = py.call("os.system", "ls")', "py.call cannot call"),
        ("py.print(1, file=2)", "has no argument 'file'"),
        ("py.raise(1)", "takes the name"),
        ("%a: int = py.pop([1])", "py.pop has 2 results"),
    ],
)
def test_calls_that_do_not_fit_are_found(line: str, message: str) -> None:
    graph = parse(f"graph g() -> () {{\n  {line}\n  return\n}}")
    with pytest.raises(VerifyError, match=message.replace("(", r"\(")):
        verify(graph, check)


@pytest.mark.parametrize(
    ("literal", "holds", "fails"),
    [
        ("1", [1, torch.tensor(1)], [1.0, True, 2, torch.tensor(1.0)]),
        ("True", [True, torch.tensor(True)], [1, False]),
        ("nan", [math.nan, torch.tensor(math.nan)], [0.0]),
        ("-0.0", [-0.0, torch.tensor([-0.0])], [0.0, 0]),
        ("0.0", [0.0], [-0.0, math.nan]),
        ("complex(0.0, -0.0)", [complex(0.0, -0.0)], [0j]),
        ('"a"', ["a"], ["b", None]),
        ("None", [None], [0]),
    ],
)
def test_expect(literal: str, holds: list[Any], fails: list[Any]) -> None:
    graph = parse(f"graph g(%v: any) -> () {{\n  expect(%v, {literal})\n  return\n}}")
    verify(graph, check)
    found = effects(next(iter(graph.walk())))
    assert found.stops and not found.is_pure and not found.io
    for value in holds:
        assert evaluate(graph, [value]) == []
    for value in fails:
        with pytest.raises(Miss):
            evaluate(graph, [value])


@settings(max_examples=300, deadline=None)
@given(types, types, types)
def test_joins_hold_both(a: Type, b: Type, c: Type) -> None:
    both = join(a, b)
    assert fits(a, both) and fits(b, both) and join(b, a) == both
    assert fits(a, a) and fits(a, ANY) and fits(a, OptionalType(a))
    if fits(a, b) and fits(b, c):
        assert fits(a, c)


def test_joins_of_tensors() -> None:
    def type_(text: str) -> Type:
        return parse(f"graph g(%x: {text}) -> () {{ return }}").inputs[0].type

    for a, b, both in (
        ("f32[8, 4]", "f32[3, 4]", "f32[_, 4]"),
        ("f32[8, 4]", "f32[8, 4]{1, 8}", "f32[8, 4]{_, _}"),
        ("f32[8, 4]", "f32[8]", "f32[?]"),
        ("f32[s]", "f32[t]", "f32[_]"),
        ("f32[s, 4]", "f32[s, 4]", "f32[s, 4]"),
        ("f32[2]", "f64[2]", "any"),
        ("none", "f32[2]", "optional[f32[2]]"),
        ("optional[f32[2]]", "f32[3]", "optional[f32[_]]"),
        ("list[int]", "list[none]", "list[optional[int]]"),
        ("(int, f32[2])", "(int, f32[3])", "(int, f32[_])"),
        ("int", "float", "any"),
    ):
        assert str(join(type_(a), type_(b))) == both
    assert arg_fits((), ListType(STR)) and not arg_fits((1,), ListType(STR)) and arg_fits((1, 2.0), ListType(ANY))
    assert not fits(type_("f32[8]"), type_("f32[s]")) and not fits(type_("f32[_]"), type_("f32[8]"))
    assert not fits(type_("f32[4, 8]{1, 4}"), type_("f32[_, _]")) and fits(type_("f32[4, 8]{1, 4}"), type_("f32[?]"))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(OF_SCALARS), st.lists(scalars, min_size=1, max_size=3))
def test_an_attempt_tells_what_is_raised(op: Any, args: list[Any]) -> None:
    graph, node = one_node("py.attempt", [op.name, *args])
    (told,) = evaluate(graph, [op.name, *args])
    assert not effects(node).may_throw
    (as_one,) = evaluate(one_node("py.raised", [op.name, *args])[0], [op.name, *args])
    assert as_one == ": ".join(told)
    try:
        op.run(*args)
    except Exception as error:
        assert told == [
            f"{type(error).__module__}.{type(error).__qualname__}",
            str(error.args[0]) if error.args else "",
        ]
    else:
        assert told == []


@pytest.mark.parametrize("op", ["gt", "le", "eq", "mul", "bitwise_and", "remainder"])
def test_an_attempt_takes_numbers_for_tensors_as_torch_does(op: str) -> None:
    x = torch.arange(3)
    for args in ((x, 2), (2, x)) if op in ("gt", "le", "eq") else ((x, 2),):
        graph, _ = one_node("py.attempt", [f"aten.{op}.Tensor", *args])
        assert evaluate(graph, [f"aten.{op}.Tensor", *args]) == [[]]
