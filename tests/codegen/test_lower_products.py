"""Products with static weights: every candidate, every epilogue, and what must not be fused."""

from __future__ import annotations

import pytest
import torch

from smelt.codegen.lower import lower
from smelt.codegen.lower.products import linear
from smelt.diag import Options
from smelt.ir import parse
from smelt.ops.evaluate import evaluate
from tests.codegen.harness import RULE, State, assert_same, call, check, executables, lookup_in, rms_ratio

CANDIDATES = ("own", "onednn", "mkl", "plain")
LIBRARY = Options(numerics="eager-library")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def force(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(linear, "_candidates", lambda ctx, product: [name])


LINEAR = """\
graph f(%x: f32[{sizes}, 24]) -> f32[{sizes}, 40] {{
  %w: f32[40, 24] = param("w")
  %b: f32[40] = param("b")
  %0: f32[{sizes}, 40] = aten.linear.default(%x, %w{bias})
  return %0
}}"""
WEIGHTS: State = {"w": normal(40, 24), "b": normal(40, seed=1)}


@pytest.mark.parametrize("bias", ["", ", %b"])
@pytest.mark.parametrize("sizes", [(1,), (7,), (2, 3), (2, 1, 5)])
@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate(monkeypatch: pytest.MonkeyPatch, name: str, sizes: tuple[int, ...], bias: str) -> None:
    force(monkeypatch, name)
    text = LINEAR.format(sizes=", ".join(map(str, sizes)), bias=bias)
    plan = check(text, [normal(*sizes, 24, seed=2)], WEIGHTS, exact=name == "plain")
    assert [c.chosen for c in plan.report.choices] == [name]
    assert plan.report.counts == {"state": 1 + len(bias) // 4, "kernel" if name == "own" else "library": 1} or not bias


@pytest.mark.parametrize("name", CANDIDATES)
def test_strided_operand(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    force(monkeypatch, name)
    text = """\
graph f(%x: f32[3, 5, 24]{1, 72, 3}) -> f32[3, 5, 40] {
  %w: f32[40, 24] = param("w")
  %0: f32[3, 5, 40] = aten.linear.default(%x, %w)
  return %0
}"""
    x = normal(5, 24, 3).permute(2, 0, 1)
    check(text, [x], WEIGHTS, exact=False)


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize(
    "op",
    [
        "addmm.default(%b, %x, %w)",
        "mm.default(%x, %w)",
        "matmul.default(%x, %w)",
        "addmm.default(%b, %x, %w, beta=0.5)",
    ],
)
def test_weight_stored_the_other_way(monkeypatch: pytest.MonkeyPatch, name: str, op: str) -> None:
    force(monkeypatch, name)
    text = f"""\
graph f(%x: f32[6, 24]) -> f32[6, 40] {{
  %w: f32[24, 40] = param("w")
  %b: f32[40] = param("b")
  %0: f32[6, 40] = aten.{op}
  return %0
}}"""
    check(text, [normal(6, 24)], {"w": normal(24, 40), "b": normal(40)}, exact=False)


@pytest.mark.parametrize(
    ("act", "is_fused"),
    [
        ("gelu.default(%0)", True),
        ('gelu.default(%0, approximate="tanh")', True),
        ("silu.default(%0)", True),
        ("sigmoid.default(%0)", True),
        ("tanh.default(%0)", True),
        ("hardswish.default(%0)", True),
        ("leaky_relu.default(%0)", True),
        ("relu.default(%0)", False),
        ("hardtanh.default(%0, -0.5, 0.5)", False),
        ("add.Tensor(%0, %r)", True),
        ("add.Tensor(%r, %0)", True),
        ("add.Tensor(%r, %0, alpha=2)", False),
        ("add.Tensor(%0, %0)", False),
    ],
)
def test_epilogues(monkeypatch: pytest.MonkeyPatch, act: str, is_fused: bool) -> None:
    force(monkeypatch, "onednn")
    text = f"""\
graph f(%x: f32[6, 24], %r: f32[6, 40]) -> f32[6, 40] {{
  %w: f32[40, 24] = param("w")
  %b: f32[40] = param("b")
  %0: f32[6, 40] = aten.linear.default(%x, %w, %b)
  %1: f32[6, 40] = aten.{act}
  return %1
}}"""
    plan = check(text, [normal(6, 24), normal(6, 40, seed=5)], WEIGHTS, exact=False)
    assert plan.report.counts.get("fused", 0) == is_fused


@pytest.mark.parametrize("act", ["relu.default(%0)", "relu6.default(%0)", "hardtanh.default(%0)", "silu.default(%0)"])
def test_nan_and_infinity_survive_the_activation(monkeypatch: pytest.MonkeyPatch, act: str) -> None:
    force(monkeypatch, "onednn")
    text = f"""\
graph f(%x: f32[5, 1]) -> f32[5, 8] {{
  %w: f32[8, 1] = param("w")
  %0: f32[5, 8] = aten.linear.default(%x, %w)
  %1: f32[5, 8] = aten.{act}
  return %1
}}"""
    x = torch.tensor([[torch.nan], [torch.inf], [-torch.inf], [1e-40], [-3.0]])
    check(text, [x], {"w": torch.ones(8, 1)}, exact=False)


def test_weight_that_does_not_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, "onednn")
    monkeypatch.setattr(linear.mkldnn, "pack_linear", lambda weight, rows: None)
    text = """\
graph f(%x: f32[6, 24]) -> f32[6, 40] {
  %w: f32[40, 24] = param("w")
  %0: f32[6, 40] = aten.linear.default(%x, %w)
  %1: f32[6, 40] = aten.gelu.default(%0)
  return %1
}"""
    assert check(text, [normal(6, 24)], WEIGHTS).report.memory.packed_nbytes == 0


def test_result_used_twice_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, "onednn")
    text = """\
graph f(%x: f32[6, 24]) -> f32[6, 40], f32[6, 40] {
  %w: f32[40, 24] = param("w")
  %0: f32[6, 40] = aten.linear.default(%x, %w)
  %1: f32[6, 40] = aten.gelu.default(%0)
  return %0, %1
}"""
    assert "fused" not in check(text, [normal(6, 24)], WEIGHTS, exact=False).report.counts


def test_two_products_and_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, "onednn")
    text = """\
graph f(%x: f32[6, 24], %y: f32[6, 24]) -> f32[6, 40] {
  %w: f32[40, 24] = param("w")
  %0: f32[6, 40] = aten.linear.default(%x, %w)
  %1: f32[6, 40] = aten.linear.default(%y, %w)
  %2: f32[6, 40] = aten.add.Tensor(%0, %1)
  return %2
}"""
    plan = check(text, [normal(6, 24), normal(6, 24, seed=4)], WEIGHTS, exact=False)
    assert plan.report.counts["fused"] == 1
    # One weight, one packed copy.
    assert plan.report.memory.packed_nbytes == 40 * 24 * 4


@pytest.mark.parametrize("sizes", ["6", "2, 3"])
def test_eager_library_gives_the_same_bits(sizes: str) -> None:
    text = LINEAR.format(sizes=sizes, bias=", %b")
    x = normal(*map(int, sizes.split(",")), 24)
    check(text, [x], WEIGHTS, LIBRARY, exact=True)


@pytest.mark.parametrize("k", [768, 3072])
@pytest.mark.parametrize("name", CANDIDATES)
def test_error_against_float64_is_bounded(monkeypatch: pytest.MonkeyPatch, name: str, k: int) -> None:
    force(monkeypatch, name)
    text = f"""\
graph f(%x: f32[32, {k}]) -> f32[32, 256] {{
  %w: f32[256, {k}] = param("w")
  %0: f32[32, 256] = aten.linear.default(%x, %w)
  return %0
}}"""
    graph, state, x = parse(text), {"w": normal(256, k, seed=3)}, normal(32, k)
    plan = lower(graph, lookup_in(state), RULE)
    (eager,) = evaluate(graph, [x], lookup_in(state))
    reference = x.double() @ state["w"].double().t()
    (found,) = call(plan, executables(plan.plan)[1], [x], state)
    assert rms_ratio(found, eager, reference) <= 3.0


@pytest.mark.parametrize("name", ["onednn", "plain"])
def test_bf16(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    force(monkeypatch, name)
    text = LINEAR.replace("f32", "bf16").format(sizes="7", bias=", %b")
    state = {key: value.bfloat16() for key, value in WEIGHTS.items()}
    x = normal(7, 24).bfloat16()
    plan = lower(parse(text), lookup_in(state), RULE)
    expected = evaluate(parse(text), [x], lookup_in(state))
    for executable in executables(plan.plan):
        (found,) = call(plan, executable, [x], state)
        torch.testing.assert_close(found, expected[0], atol=0.05, rtol=0.02)


def test_unpacked_parameters_are_read_live() -> None:
    text = LINEAR.format(sizes="2", bias=", %b")
    state = {key: value.clone() for key, value in WEIGHTS.items()}
    plan = lower(parse(text), lookup_in(state), LIBRARY)
    assert {n.path for n in plan.handles} == {"w", "b"} and plan.constants == ()
    x = normal(2, 24)
    for executable in executables(plan.plan):
        state["w"].mul_(2.0)
        state["b"].add_(1.0)
        assert_same(call(plan, executable, [x], state), evaluate(parse(text), [x], lookup_in(state)), exact=True)


def test_measured_choice_is_kept_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_ISA", "none")
    text = LINEAR.format(sizes="11", bias="")
    first = check(text, [normal(11, 24)], WEIGHTS, Options(), exact=False).report.choices
    second = check(text, [normal(11, 24)], WEIGHTS, Options(), exact=False).report.choices
    assert first == second
    assert first[0].reason == "measured" and {c.name for c in first[0].candidates} == set(CANDIDATES[1:])
    assert all(c.latency_us is not None for c in first[0].candidates)


def test_batched_products_write_into_the_arena() -> None:
    text = """\
graph f(%q: f32[2, 3, 5, 4], %k: f32[2, 3, 4, 6], %v: f32[2, 3, 6, 4]) -> f32[2, 3, 5, 4] {
  %0: f32[2, 3, 5, 6] = aten.matmul.default(%q, %k)
  %1: f32[2, 3, 5, 6] = aten.softmax.int(%0, -1)
  %2: f32[2, 3, 5, 4] = aten.matmul.default(%1, %v)
  %3: f32[2, 3, 5, 4] = aten.neg.default(%2)
  %4: f32[2, 3, 5, 4] = aten.mul.Tensor(%3, %2)
  return %4
}"""
    plan = check(text, [normal(2, 3, 5, 4), normal(2, 3, 4, 6), normal(2, 3, 6, 4)], options=LIBRARY)
    assert plan.report.memory.arena_nbytes > 0
    assert plan.report.counts["library"] == 3


def test_products_of_activations_keep_the_bits_of_eagers_library() -> None:
    text = """\
graph f(%a: f32[5, 4], %b: f32[4, 6], %c: f32[6], %d: f32[2, 5, 4]) -> f32[5, 6], f32[5, 6], f32[2, 5, 6] {
  %0: f32[5, 6] = aten.mm.default(%a, %b)
  %1: f32[5, 6] = aten.addmm.default(%c, %a, %b, beta=0.5, alpha=2)
  %2: f32[2, 5, 6] = aten.matmul.default(%d, %b)
  return %0, %1, %2
}"""
    inputs = [normal(5, 4), normal(4, 6), normal(6), normal(2, 5, 4)]
    check(text, inputs, options=LIBRARY)
    assert check(text, inputs, exact=False).report.counts == {"kernel": 3}


def test_a_product_of_weights_is_computed_once() -> None:
    """As relative positions have, whose projections follow from parameters alone."""
    text = """graph f(%x: f32[2, 4, 16]) -> f32[2, 4, 64] {
      %t: f32[64, 16] = param("t")
      %w: f32[16, 16] = param("w")
      %u: f32[1, 64, 16] = aten.unsqueeze.default(%t, 0)
      %p: f32[1, 64, 16] = aten.linear.default(%u, %w)
      %r: f32[1, 16, 64]{1024, 1, 16} = aten.transpose.int(%p, 1, 2)
      %e: f32[2, 16, 64]{0, 1, 16} = aten.expand.default(%r, [2, -1, -1])
      %0: f32[2, 4, 64] = aten.bmm.default(%x, %e)
      return %0
    }"""
    state = {"t": torch.randn(64, 16), "w": torch.randn(16, 16)}
    plan = check(text, [torch.randn(2, 4, 16)], state, exact=False)
    assert sum(node.how == "kernel" for node in plan.report.nodes) <= 1
    assert [node.how for node in plan.report.nodes if node.op == "aten.linear.default"] == ["static"]
