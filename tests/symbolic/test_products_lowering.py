"""Graphs of products and attention lowered once for all sizes: right on both sides of each threshold, few guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from smelt.codegen.lower.products.linear import own_isa_of
from smelt.ir import DType
from tests.codegen.test_lower_products import normal
from tests.contract.conftest import no_tiles  # noqa: F401  (own bf16 products where the library's are faster, too)
from tests.symbolic.lowering_harness import LIBRARY, OPTIONS, Program, kernels, launches

PAIRS = ((2, 2), (2, 3), (4, 2), (3, 3), (4, 4), (2, 40), (3, 300))
"""Rows on both sides of 2, 8 and 16."""


def linear(dtype: str = "f32", kind: str = "", k: int = 24) -> Program:
    """A linear with gelu and a residual behind it."""
    text = f"""\
graph f(%x: {dtype}[B, S, {k}]{kind}, %r: {dtype}[B, S, 40]) -> {dtype}[B, S, 40] {{
  %w: {dtype}[40, {k}] = param("w")
  %b: {dtype}[40] = param("b")
  %0: {dtype}[B, S, 40] = aten.linear.default(%x, %w, %b)
  %1: {dtype}[B, S, 40] = aten.gelu.default(%0)
  %2: {dtype}[B, S, 40] = aten.add.Tensor(%1, %r)
  return %2
}}"""
    torch_dtype = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}[dtype]

    def inputs(b: int, s: int) -> Sequence[torch.Tensor]:
        x = normal(b, s, k) if not kind else normal(s, b, k).transpose(0, 1)
        return x.to(torch_dtype), normal(b, s, 40, seed=1).to(torch_dtype)

    state = {"w": normal(40, k, seed=2).to(torch_dtype), "b": normal(40, seed=3).to(torch_dtype)}
    return Program(text, inputs, state)


@pytest.mark.spread(6)
@pytest.mark.parametrize("hints", [{"B": 2, "S": 3}, {"B": 4, "S": 64}], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_a_linear(hints: dict[str, int], dtype: str) -> None:
    program = linear(dtype)
    made = program.lowered(hints)
    assert made.guards == ()
    is_own = own_isa_of(OPTIONS, DType.BF16) is not None or dtype != "bf16"
    assert not is_own or kernels(made.lowered.plan) == ["product dots, packed"]
    for sizes in PAIRS:
        program.check(made, *sizes, ratio=3.0)


def test_words_are_those_of_a_plan_for_the_sizes() -> None:
    program = linear(k=256)
    for hints in ({"B": 4, "S": 64}, {"B": 2, "S": 2}):
        made = program.lowered(hints)
        for b, s in ((2, 2), (2, 4), (3, 3), (4, 64), (8, 512)):
            (here,), (alone,) = launches(made.at((b, s)).plan), launches(program.alone({"B": b, "S": s}))
            # The kernel for few rows or many has one matrix more.
            assert len(here.buffers) == len(alone.buffers) + 1
            assert (here.words, here.items, here.item_ns) == (alone.words, alone.items, alone.item_ns)


def test_a_weight_that_is_to_be_released_is_read_packed_only() -> None:
    program = replace(linear(k=256), options=replace(OPTIONS, release_originals=True))
    made = program.lowered({"B": 2, "S": 3})
    assert kernels(made.lowered.plan) == ["product packed"] and made.guards == ()
    for b, s in ((3, 3), (4, 64), (8, 512)):
        (here,), (alone,) = launches(made.at((b, s)).plan), launches(program.alone({"B": b, "S": s}))
        # One kernel serves all sizes; what is made for some alone may lack tiles.
        assert here.kernel.symbol == launches(made.lowered.plan)[0].kernel.symbol
        assert (here.words, here.items, here.item_ns) == (alone.words, alone.items, alone.item_ns)
    for sizes in PAIRS:
        program.check(made, *sizes)


@pytest.mark.parametrize(("hint", "label"), [(4, "product dots, packed"), (40, "product packed")])
def test_merged_weights_are_kept_twice_where_few_rows_are_expected(hint: int, label: str) -> None:
    text = """\
graph f(%x: f32[M, 24]) -> f32[M, 40] {
  %v: f32[10, 24] = param("v")
  %w: f32[30, 24] = param("w")
  %0: f32[40, 24] = aten.cat.default([%v, %w])
  %1: f32[M, 40] = aten.linear.default(%x, %0)
  return %1
}"""
    state = {"v": normal(10, 24), "w": normal(30, 24, seed=2)}
    program = Program(text, lambda m: (normal(m, 24, seed=3),), state)
    made = program.lowered({"M": hint})
    assert kernels(made.lowered.plan) == [label] and made.guards == ()
    for m in (2, 8, 9, 100):
        program.check(made, m)


def test_rows_that_are_always_few_read_the_live_weight() -> None:
    text = """\
graph f(%x: f32[M, 24]) -> f32[M, 40] {
  %w: f32[40, 24] = param("w")
  %0: f32[M, 40] = aten.linear.default(%x, %w)
  %1: f32[M, 40] = aten.silu.default(%0)
  return %1
}"""
    program = Program(text, lambda m: (normal(m, 24),), {"w": normal(40, 24, seed=2)})
    made = program.lowered({"M": 4}, high=8)
    assert kernels(made.lowered.plan) == ["product dots"] and made.guards == ()
    assert made.lowered.report.memory.packed_nbytes == 0
    for m in range(2, 9):
        program.check(made, m)


@pytest.mark.parametrize("hints", [{"B": 2, "S": 3}, {"B": 4, "S": 64}], ids=str)
def test_an_operand_whose_rows_do_not_run_on(hints: dict[str, int]) -> None:
    program = linear(kind="{24, (B * 24), 1}")
    made = program.lowered(hints)
    assert made.guards == ()
    for sizes in PAIRS:
        program.check(made, *sizes)


@pytest.mark.parametrize("hint", [3, 40])
def test_a_weight_that_lies_along_its_rows(hint: int) -> None:
    text = """\
graph f(%x: f32[M, 24]) -> f32[M, 40] {
  %w: f32[24, 40] = param("w")
  %b: f32[40] = param("b")
  %0: f32[M, 40] = aten.addmm.default(%b, %x, %w)
  %1: f32[M, 40] = aten.tanh.default(%0)
  return %1
}"""
    state = {"w": normal(24, 40, seed=2), "b": normal(40, seed=3)}
    program = Program(text, lambda m: (normal(m, 24),), state)
    made = program.lowered({"M": hint})
    assert made.guards == () and kernels(made.lowered.plan) == ["product packed"]
    for m in (2, 3, 8, 9, 16, 130, 1000):
        program.check(made, m)


# --- products of activations


def scores(right: str = "[B, 4, T, 16]", result: str = "%2") -> Program:
    """q @ k^T / 4, or without the division."""
    text = f"""\
graph f(%q: f32[B, 4, S, 16], %k: f32{right}) -> f32[B, 4, S, T] {{
  %0: f32{right.replace("T, 16", "16, T")}{{(T * 64), (T * 16), 1, 16}} = aten.transpose.int(%k, 2, 3)
  %1: f32[B, 4, S, T] = aten.matmul.default(%q, %0)
  %2: f32[B, 4, S, T] = aten.div.Tensor(%1, 4.0)
  return {result}
}}"""
    count = 1 if right[1] == "1" else None
    return Program(text, lambda b, s, t: (normal(b, 4, s, 16), normal(count or b, 4, t, 16, seed=1)), {})


TRIPLES = ((2, 2, 2), (2, 3, 7), (3, 2, 300), (2, 8, 8), (2, 9, 2), (3, 17, 65), (2, 130, 40))


@pytest.mark.parametrize("right", ["[B, 4, T, 16]", "[1, 4, T, 16]"])
@pytest.mark.parametrize("hints", [{"B": 2, "S": 3, "T": 40}, {"B": 2, "S": 64, "T": 64}], ids=str)
def test_scores(right: str, hints: dict[str, int]) -> None:
    program = scores(right)
    made = program.lowered(hints)
    assert made.guards == () and len(kernels(made.lowered.plan)) == 1
    for sizes in TRIPLES:
        program.check(made, *sizes)


@pytest.mark.parametrize("s", ["S", "1", "2", "3"])
def test_weights_times_values(s: str) -> None:
    """As many terms as keys; a decoding step has few rows, by lines."""
    text = f"""\
graph f(%p: f32[B, 4, {s}, T], %v: f32[B, 4, T, 16]) -> f32[B, 4, {s}, 16] {{
  %0: f32[B, 4, {s}, 16] = aten.matmul.default(%p, %v)
  return %0
}}"""

    def inputs(b: int, rows: int, t: int) -> Sequence[torch.Tensor]:
        return normal(b, 4, rows, t), normal(b, 4, t, 16, seed=1)

    if s == "S":
        program = Program(text, inputs, {})
        made = program.lowered({"B": 2, "S": 30, "T": 40})
        assert made.guards == ()
        for sizes in TRIPLES:
            program.check(made, *sizes)
        return
    program = Program(text, lambda b, t: inputs(b, int(s), t), {})
    made = program.lowered({"B": 2, "T": 40})
    assert made.guards == ()
    for b, _, t in TRIPLES:
        program.check(made, b, t)


@pytest.mark.parametrize("hints", [{"B": 2, "S": 3}, {"B": 4, "S": 64}], ids=str)
def test_a_product_that_is_added(hints: dict[str, int]) -> None:
    text = """\
graph f(%c: f32[B, S, 20], %a: f32[B, S, 16], %b: f32[B, 16, 20]) -> f32[B, S, 20] {
  %0: f32[B, S, 20] = aten.baddbmm.default(%c, %a, %b, beta=0.5, alpha=2.0)
  %1: f32[B, S, 20] = aten.relu.default(%0)
  return %1
}"""

    def inputs(b: int, s: int) -> Sequence[torch.Tensor]:
        return normal(b, s, 20), normal(b, s, 16, seed=1), normal(b, 16, 20, seed=2)

    program = Program(text, inputs, {})
    made = program.lowered(hints)
    assert made.guards == ()
    for sizes in PAIRS:
        program.check(made, *sizes)


@pytest.mark.parametrize("hints", [{"S": 3}, {"S": 64}], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_left_matrix_that_is_transposed(hints: dict[str, int], dtype: str) -> None:
    """Its rows lie side by side, S apart along the terms."""
    text = f"""\
graph f(%a: {dtype}[20, S], %b: {dtype}[20, 30]) -> {dtype}[S, 30] {{
  %0: {dtype}[S, 20]{{1, S}} = aten.t.default(%a)
  %1: {dtype}[S, 30] = aten.mm.default(%0, %b)
  return %1
}}"""
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    program = Program(text, lambda s: (normal(20, s).to(kind), normal(20, 30, seed=1).to(kind)), {})
    made = program.lowered(hints)
    assert made.guards == ()
    for s in (2, 8, 9, 64, 300):
        program.check(made, s)


# --- attention


def attention(rest: str = "", mask: str = "", kv_heads: int = 4, s: str = "S", t: str = "S") -> Program:
    text = f"""\
graph f(%q: f32[B, {s}, 4, 16], %k: f32[B, {t}, {kv_heads}, 16], %v: f32[B, {t}, {kv_heads}, 16]{mask}) -> f32[B, {s}, 4, 16] {{
  %0: f32[B, 4, {s}, 16]{{({s} * 64), 16, 64, 1}} = aten.transpose.int(%q, 1, 2)
  %1: f32[B, {kv_heads}, {t}, 16]{{({t} * {16 * kv_heads}), 16, {16 * kv_heads}, 1}} = aten.transpose.int(%k, 1, 2)
  %2: f32[B, {kv_heads}, {t}, 16]{{({t} * {16 * kv_heads}), 16, {16 * kv_heads}, 1}} = aten.transpose.int(%v, 1, 2)
  %3: f32[B, 4, {s}, 16]{{({s} * 64), 16, 64, 1}} = aten.scaled_dot_product_attention.default(%0, %1, %2{rest})
  %4: f32[B, {s}, 4, 16] = aten.transpose.int(%3, 1, 2)
  return %4
}}"""  # noqa: E501
    if s == "1":
        text = text.replace("(1 * 64)", "64").replace(
            "f32[B, 4, 1, 16]{64, 16, 64, 1}", "f32[B, 4, 1, 16]{64, 16, 64, 1}"
        )

    def inputs(b: int, rows: int, keys: int | None = None) -> Sequence[torch.Tensor]:
        if s == "1":
            rows, keys = 1, rows
        keys = rows if keys is None else keys
        found = [normal(b, rows, 4, 16), *(normal(b, keys, kv_heads, 16, seed=i) for i in (1, 2))]
        if "bool" in mask:
            found.append(normal(b, 1, 1 if "1, 1" in mask else rows, keys, seed=3) > -1.0)
        elif mask:
            found.append(normal(rows, keys, seed=3))
        return found

    return Program(text, inputs, {})


@pytest.mark.spread(6)
@pytest.mark.parametrize("hints", [{"B": 2, "S": 3}, {"B": 4, "S": 64}], ids=str)
@pytest.mark.parametrize(
    ("rest", "mask", "kv_heads"),
    [
        ("", "", 4),
        (", None, 0.0, True", "", 4),
        (", %m", ", %m: bool[B, 1, S, S]", 4),
        (", %m", ", %m: bool[B, 1, 1, S]", 4),
        (", %m, scale=0.3", ", %m: f32[S, S]", 4),
        (", None, 0.0, False, enable_gqa=True", "", 2),
        (", None, 0.0, True, enable_gqa=True", "", 1),
    ],
)
def test_attention(hints: dict[str, int], rest: str, mask: str, kv_heads: int) -> None:
    program = attention(rest, mask, kv_heads)
    made = program.lowered(hints)
    assert made.guards == () and len(kernels(made.lowered.plan)) == 1
    for sizes in PAIRS:
        program.check(made, *sizes)


@pytest.mark.parametrize("hint", [5, 100])
@pytest.mark.parametrize(("rest", "kv_heads"), [("", 4), (", None, 0.0, False, enable_gqa=True", 1)])
def test_a_query_against_a_growing_cache(hint: int, rest: str, kv_heads: int) -> None:
    program = attention(rest, "", kv_heads, s="1", t="T")
    made = program.lowered({"B": 2, "T": hint})
    assert made.guards == () and len(kernels(made.lowered.plan)) == 1
    for sizes in ((2, 2), (2, 3), (2, 7), (3, 15), (2, 16), (2, 17), (3, 300), (2, 5000)):
        program.check(made, *sizes)


def test_a_mask_of_another_symbol_is_compared_by_a_guard() -> None:
    program = attention(", %m", ", %m: f32[S, U]", s="S", t="T")
    inputs = program.inputs
    program = replace(program, inputs=lambda b, s, t, u: (*inputs(b, s, t)[:3], normal(s, u, seed=3)))
    made = program.lowered({"B": 2, "S": 30, "T": 40, "U": 40})
    assert [text for text, _ in made.guards] in (["T - U == 0"], ["U - T == 0"])
    assert len(kernels(made.lowered.plan)) == 1 and not made.plan.holds(2, 30, 40, 41)
    for b, s, t in TRIPLES:
        program.check(made, b, s, t, t)


def test_values_of_another_length_than_the_keys_are_left_to_the_library() -> None:
    """Eager refuses them nowhere, and reads what it finds."""
    program = attention(s="S", t="T")
    text = program.text.replace("%v: f32[B, T,", "%v: f32[B, U,").replace("%2: f32[B, 4, T,", "%2: f32[B, 4, U,")
    text = text.replace(
        "{(T * 64), 16, 64, 1} = aten.transpose.int(%v", "{(U * 64), 16, 64, 1} = aten.transpose.int(%v"
    )

    def inputs(b: int, s: int, t: int, u: int) -> Sequence[torch.Tensor]:
        return (*program.inputs(b, s, t)[:2], normal(b, u, 4, 16, seed=2))

    program = replace(program, text=text)
    longer = replace(program, inputs=inputs)
    same = longer.lowered({"B": 2, "S": 30, "T": 40, "U": 40})
    assert len(kernels(same.lowered.plan)) == 1 and len(same.guards) == 1
    other = longer.lowered({"B": 2, "S": 30, "T": 40, "U": 50})
    assert kernels(other.lowered.plan) == [] and len(other.guards) == 1
    for b, s, t in TRIPLES:
        longer.check(same, b, s, t, t)
        assert not same.plan.holds(b, s, t, t + 1) and not other.plan.holds(b, s, t, t)


# --- the library


def test_bf16_by_the_library_where_it_has_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected to be many rows: the library's product, for few, too; and the other way round."""
    monkeypatch.setattr("smelt.codegen.lower.products.linear.cpu_flags", lambda: frozenset(("amx_bf16",)))
    program = linear("bf16")
    if own_isa_of(OPTIONS, DType.BF16) is None:
        return
    own = program.lowered({"B": 2, "S": 3})
    assert kernels(own.lowered.plan) == ["product dots, packed"] and own.guards == ()
    for sizes in PAIRS:
        program.check(own, *sizes, ratio=3.0)
    text = program.text.replace("  %1: bf16[B, S, 40] = aten.gelu.default(%0)\n", "")
    program = replace(program, text=text.replace("add.Tensor(%1", "add.Tensor(%0"))
    library = program.lowered({"B": 4, "S": 64})
    assert "product packed" not in kernels(library.lowered.plan) and library.guards == ()
    for sizes in PAIRS:
        program.check(library, *sizes, ratio=3.0)


@pytest.mark.parametrize("hints", [{"B": 2, "S": 3}, {"B": 4, "S": 64}], ids=str)
@pytest.mark.parametrize("kind", ["", "{24, (B * 24), 1}"])
def test_the_library_computes_a_linear_too(hints: dict[str, int], kind: str) -> None:
    text = f"""\
graph f(%x: f32[B, S, 24]{kind}) -> f32[B, S, 40] {{
  %w: f32[40, 24] = param("w")
  %b: f32[40] = param("b")
  %0: f32[B, S, 40] = aten.linear.default(%x, %w, %b)
  return %0
}}"""
    program = replace(linear(kind=kind), text=text, options=LIBRARY)
    program = replace(program, inputs=lambda b, s: linear(kind=kind).inputs(b, s)[:1])
    made = program.lowered(hints)
    assert made.guards == () and kernels(made.lowered.plan) == []
    for sizes in PAIRS:
        program.check(made, *sizes)


@pytest.mark.parametrize("hints", [{"B": 2, "S": 3}, {"B": 4, "S": 64}], ids=str)
@pytest.mark.parametrize("rest", ["", ", None, 0.0, True"])
def test_the_library_computes_attention_too(hints: dict[str, int], rest: str) -> None:
    program = replace(attention(rest), options=LIBRARY)
    made = program.lowered(hints)
    assert made.guards == () and kernels(made.lowered.plan) == []
    for sizes in PAIRS:
        program.check(made, *sizes)


@pytest.mark.parametrize("right", ["[B, 4, T, 16]", "[1, 4, T, 16]"])
def test_the_library_computes_products_of_activations_too(right: str) -> None:
    program = replace(scores(right, "%1"), options=LIBRARY)
    made = program.lowered({"B": 2, "S": 3, "T": 40})
    assert made.guards == () and kernels(made.lowered.plan) == []
    for sizes in TRIPLES:
        program.check(made, *sizes)
