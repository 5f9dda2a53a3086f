"""The open door, literals and constants, the evaluator, and result types outside the catalogue."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
import torch

from smelt.diag import InternalError, SmeltError
from smelt.ir import Builder, Device, DType, Graph, Layout, MemoryFormat, Node, TensorType, TupleType, parse, verify
from smelt.ops import registry
from smelt.ops.convert import constant_of, from_torch, tensor_of_literal, to_torch, type_of
from smelt.ops.effects import alias_of, aliases, effects, is_pure
from smelt.ops.evaluate import evaluate
from smelt.ops.registry import normalize, overload, schema_of
from smelt.ops.typing import infer


def _bump(x: torch.Tensor) -> None:
    x.add_(1)


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    made = torch.library.Library("smelt_test_ops", "DEF")
    made.define("twice(Tensor x) -> Tensor")
    made.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    made.define("bump(Tensor(a!) x) -> ()")
    made.impl("bump", _bump, "CPU")
    yield made
    made._destroy()


def only(text: str) -> Node:
    graph = parse(text)
    verify(graph)
    (node,) = [n for n in graph.body if n.op != "param"]
    return node


# --- names and schemas


@pytest.mark.parametrize(
    "name", ["param", "if", "aten.nothing.default", "aten.add.nothing", "aten.__init__.x", "a.b.c.d", "__class__.a.b"]
)
def test_names_that_are_no_operators(name: str) -> None:
    assert overload(name) is None and schema_of(name) is None


def test_one_spelling() -> None:
    assert normalize("aten.add.Tensor", (1, 2), {"alpha": 1}) == ((1, 2), {})
    assert normalize("aten.add.Tensor", (1, 2), {"alpha": 1.0}) == ((1, 2), {"alpha": 1.0})
    assert normalize("aten.conv2d.default", (1, 2, None, 1, 0), {}) == ((1, 2), {})
    assert normalize("aten.conv2d.default", (1, 2, None, 2), {}) == ((1, 2, None, (2, 2)), {})
    assert normalize("aten.sum.dim_IntList", (), {"self": 1, "dim": (0,), "keepdim": True}) == ((1, (0,), True), {})
    contiguous = MemoryFormat("contiguous_format")
    assert normalize("aten.contiguous.default", (1,), {"memory_format": contiguous}) == ((1,), {})
    assert normalize("aten.clamp.default", (1, None, -0.0), {}) == ((1, None, -0.0), {})
    with pytest.raises(TypeError, match="no argument 'beta'"):
        normalize("aten.add.Tensor", (1, 2), {"beta": 1})
    with pytest.raises(TypeError, match="lacks 'other'"):
        normalize("aten.add.Tensor", (1,), {})


def test_calls_that_are_in_that_spelling_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = (1, True, 1.0, -0.0, None, (1, 1), (0,), "none")
    draw = random.Random(3)

    def spelled(name: str, args: tuple[object, ...]) -> str:
        try:
            return repr(normalize(name, args, {}))  # type: ignore[arg-type]
        except TypeError as error:
            return str(error)

    calls = []
    known = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    for name in known[::5]:
        name = name.replace("::", ".") + ("" if "." in name else ".default")
        if (schema := schema_of(name)) is None:
            continue
        for _ in range(3):
            count = draw.randint(0, len(schema.positional) + 1)
            defaults = [a.default if draw.random() < 0.3 else draw.choice(values) for a in schema.positional]
            calls.append((name, tuple([*defaults, 1][:count])))
    found = [spelled(*call) for call in calls]
    at_once = sum(registry._is_spelled(registry._spelling(overload(name)), args) for name, args in calls)
    assert 300 < at_once < len(calls) - 300
    monkeypatch.setattr(registry, "_is_spelled", lambda spelling, args: False)
    assert found == [spelled(*call) for call in calls]


# --- literals and constants


@pytest.mark.parametrize(
    "obj",
    [1, True, 2.5, -0.0, 1 + 2j, "s", None, torch.float8_e5m2, torch.device("cpu"), torch.strided, torch.channels_last],
)
def test_literals_round_trip(obj: object) -> None:
    literal = from_torch(obj)
    back = to_torch(literal)
    assert back == obj and type(back) is type(obj)


def test_literals() -> None:
    assert from_torch(torch.Size([2, 3])) == (2, 3) and from_torch([1, [2.0]]) == (1, (2.0,))
    assert from_torch(True) is True and type(from_torch(False)) is bool
    assert from_torch(torch.float32) is DType.F32 and from_torch(torch.device("cpu")) == Device("cpu")
    assert from_torch(torch.strided) == Layout("strided")
    with pytest.raises(TypeError, match="Tensor cannot stand"):
        from_torch(torch.ones(1))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.0, -0.0, math.nan, math.inf]),
        torch.tensor(3),
        torch.tensor([True, False]),
        torch.tensor([1.5, 2.0], dtype=torch.bfloat16),
        torch.tensor([0.1], dtype=torch.float64),
        torch.tensor([1 + 2j]),
        torch.empty(0, 3),
        torch.tensor(2.0).expand(3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(6.0)[::2],
    ],
)
def test_small_constants_keep_bits_and_strides(tensor: torch.Tensor) -> None:
    args, large = constant_of(tensor)
    assert large is None
    back = tensor_of_literal(args[0], type_of(tensor))
    assert type_of(back) == type_of(tensor)
    torch.testing.assert_close(back, tensor, rtol=0, atol=0, equal_nan=True)
    if tensor.is_floating_point():
        assert torch.equal(back.signbit(), tensor.signbit())


def test_a_nan_of_another_pattern_is_kept_by_hash() -> None:
    strange = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    (name,), large = constant_of(strange)
    assert large is not None and name == large[0] and str(name).startswith("sha256:")
    assert torch.equal(large[1].view(torch.int32), strange.view(torch.int32))


def test_large_constants_are_private_and_named_by_content() -> None:
    tensor = torch.arange(40.0).reshape(8, 5).t()
    _, large = constant_of(tensor)
    assert large is not None
    name, copy = large
    assert copy.stride() == tensor.stride() and torch.equal(copy, tensor)
    again = constant_of(tensor.clone())[1]
    assert again is not None and again[0] == name
    tensor.add_(1)
    other = constant_of(tensor)[1]
    assert other is not None and other[0] != name and not torch.equal(copy, tensor)


# --- effects and aliases outside the catalogue


def test_library_operators_are_run_typed_and_never_dropped(library: torch.library.Library) -> None:
    kind = TensorType.of(DType.F32, (2,))
    builder = Builder.new("f", {"x": kind})
    x = builder.graph.inputs[0]
    assert infer("smelt_test_ops.twice.default", (x,)) == (kind,)
    twice = builder.add("smelt_test_ops.twice.default", (x,), (kind,))
    bump = builder.add("smelt_test_ops.bump.default", (x,), ())
    builder.finish((twice.result,))
    assert effects(twice).io and not is_pure(twice)
    assert effects(bump).writes == (x,)
    data = torch.ones(2)
    (result,) = evaluate(builder.graph, [data])
    assert torch.equal(result, torch.full((2,), 2.0)) and torch.equal(data, torch.full((2,), 2.0))


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("%y: f32[4, 3]{1, 4} = aten.adjoint.default(%x)", True),
        ('%y: f32[4, 3]{1, 4} = aten.einsum.default("ij->ji", [%x])', True),
        ("%y: f32[3, 4] = aten.roll.default(%x, [1], [0])", False),
        ("%y: f32[3, 4] = aten.nan_to_num.default(%x)", False),
        ("%y: f32[3, 4] = aten.dropout.default(%x, 0.5, False)", True),
        ("%y: f32[3, 4] = aten.to.dtype(%x, f32, False, True)", False),
        ("%y: f32[3, 4] = aten.mul_.Tensor(%x, 2)", True),
        ("%y: f32[3, 4] = write(%x, %x)", True),
    ],
)
def test_sharing_is_declared_or_observed(text: str, shares: bool) -> None:
    node = only(f"graph f(%x: f32[3, 4]) -> f32[] {{\n  {text}\n  return %x\n}}".replace("-> f32[]", "-> f32[3, 4]"))
    assert bool(aliases(node)[0]) is shares
    assert (alias_of(node) is not None) is shares


def test_sharing_of_unknown_sizes_is_feared() -> None:
    node = only("graph f(%x: f32[?]) -> f32[?] {\n  %y: f32[?] = aten.reshape.default(%x, [-1])\n  return %y\n}")
    assert aliases(node)[0] and alias_of(node) is None


@pytest.mark.parametrize(
    ("call", "draws"),
    [
        ("aten.dropout.default(%x, 0.5, True)", True),
        ("aten.dropout.default(%x, 0.0, True)", False),
        ("aten.rrelu.default(%x)", False),
        ("aten.rrelu.default(%x, 0.1, 0.3, True)", True),
        ("aten.native_dropout.default(%x, 0.5, False)", False),
        ("aten.normal.Tensor_float(%x)", True),
        ("aten.exponential.default(%x)", True),
    ],
)
def test_random_draws(call: str, draws: bool) -> None:
    results = "%y: f32[2], %m: bool[2]" if "native" in call else "%y: f32[2]"
    node = only(f"graph f(%x: f32[2]) -> f32[2] {{\n  {results} = {call}\n  return %y\n}}")
    assert effects(node).rng is draws


# --- types outside the catalogue


def test_types_of_lists_scalars_and_factories() -> None:
    kind = TensorType.of(DType.F32, (3, 4))
    x = Builder.new("f", {"x": kind}).graph.inputs[0]
    row = TensorType.of(DType.F32, (1, 4))
    assert infer("aten.tensor_split.sections", (x, 3)) == (TupleType((row, row, row)),)
    assert infer("aten.zeros.default", ((2,),), {"dtype": DType.F64}) == (TensorType.of(DType.F64, (2,)),)
    assert infer("aten.add_.Tensor", (x, 1)) == (kind,)
    assert infer("aten._foreach_add_.Scalar", ((x,), 1)) == ()
    assert str(infer("aten.equal.default", (x, x))[0]) == "bool"
    with pytest.raises(InternalError, match="cannot be determined"):
        infer("aten.mm.default", (x, x))


# --- the evaluator


def test_regions_run() -> None:
    graph = parse(
        """graph f(%x: f32[], %n: int) -> f32[], f32[] {
          %a: f32[] = for %i: int in (0, %n, 2) with (%c: f32[] = %x) {
            %d: f32[] = aten.add.Tensor(%c, %i)
            yield %d
          }
          %b: f32[] = while with (%e: f32[] = %a) {
            %t: bool[] = aten.lt.Scalar(%e, 100)
            yield %t
          } do (%g: f32[]) {
            %h: f32[] = aten.mul.Tensor(%g, 2)
            yield %h
          }
          %q: bool[] = aten.gt.Scalar(%x, 0)
          %r: f32[] = if %q {
            yield %b
          } else {
            %s: f32[] = aten.neg.default(%b)
            yield %s
          }
          return %a, %r
        }"""
    )
    verify(graph)
    assert [o.item() for o in evaluate(graph, [torch.tensor(1.0), 5])] == [7.0, 112.0]
    low = evaluate(graph, [torch.tensor(-200.0), 401])
    assert [o.item() for o in low] == [40000.0, -40000.0]


def test_modes_are_entered() -> None:
    graph = parse(
        """graph f(%x: f32[2, 2]) -> bf16[2, 2], f32[2, 2] {
          %a: bf16[2, 2] = aten.mm.default(%x, %x)  ["autocast(bf16)"]
          %b: f32[2, 2] = aten.mul.Tensor(%x, 2)  ["no_grad"]
          return %a, %b
        }"""
    )
    first, second = evaluate(graph, [torch.ones(2, 2, requires_grad=True)])
    assert first.dtype == torch.bfloat16 and first.requires_grad and not second.requires_grad


def test_constants_are_fresh_in_every_run() -> None:
    text = """graph f() -> f32[2] {
      %0: f32[2] = const([1.0, 2.0])
      %1: f32[2] = aten.add_.Tensor(%0, 1)
      return %1
    }"""
    graph = parse(text)
    for _ in range(2):
        assert torch.equal(evaluate(graph, [])[0], torch.tensor([2.0, 3.0]))


def test_what_is_missing_is_said() -> None:
    with pytest.raises(SmeltError, match="takes 1 inputs, not 0"):
        evaluate(parse("graph f(%x: f32[2]) -> f32[2] {\n  return %x\n}"), [])
    with pytest.raises(SmeltError, match="reads param 'w'"):
        evaluate(parse('graph f() -> f32[2] {\n  %0: f32[2] = param("w")\n  return %0\n}'), [])
    with pytest.raises(SmeltError, match="not at hand"):
        evaluate(parse('graph f() -> f32[2] {\n  %0: f32[2] = const("sha256:0")\n  return %0\n}'), [])
    with pytest.raises(SmeltError, match=r"no operator aten\.nothing\.default"):
        evaluate(unknown_operator(), [torch.ones(2)])


def unknown_operator() -> Graph:
    return parse("graph f(%x: f32[2]) -> f32[2] {\n  %0: f32[2] = aten.nothing.default(%x)\n  return %0\n}")
