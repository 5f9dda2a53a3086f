"""Attention in plans: own kernels for the operator and for the spelled-out form, in eager's layouts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from smelt.capture import capture
from smelt.codegen.lower import Lowered
from smelt.compiler.pipeline import functional_graph, optimized_graph
from smelt.diag import Options
from smelt.ir import Graph, parse
from smelt.ops.evaluate import evaluate
from tests.codegen import harness
from tests.codegen.harness import call, executables, lookup_in, rms_ratio

NAN, INF = float("nan"), float("inf")
OWN = Options(deterministic=True)
ATTENTION = "aten.scaled_dot_product_attention.default"


def check(text: str | Graph, inputs: Sequence[Tensor], options: Options = OWN, *, exact: bool = True) -> Lowered:
    return harness.check(text, inputs, None, options, exact=exact)


def fused(plan: Lowered) -> list[str]:
    """The operators that the plan's only attention, an own kernel, computes besides."""
    (node,) = (n for n in plan.report.nodes if n.op == ATTENTION)
    assert node.how == "kernel" and plan.report.python_nodes == ()
    return [n.op for n in plan.report.nodes if n.how == "fused" and n.target == f"%{node.value}"]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def graph(rest: str = "", extra: str = "", q: str = "2, 4, 6, 8", kv: str = "2, 4, 6, 8", kind: str = "") -> str:
    return f"""\
graph f(%q: f32[{q}]{kind}, %k: f32[{kv}], %v: f32[{kv}]{extra}) -> f32[{q}]{kind} {{
  %0: f32[{q}]{kind} = aten.scaled_dot_product_attention.default(%q, %k, %v{rest})
  return %0
}}"""


def operands(q: tuple[int, ...] = (2, 4, 6, 8), kv: tuple[int, ...] = (2, 4, 6, 8)) -> list[Tensor]:
    return [normal(*q), normal(*kv, seed=1), normal(*kv, seed=2)]


@pytest.mark.spread(2)
@pytest.mark.parametrize("rest", ["", ", None, 0.0, True", ", scale=0.3"])
def test_the_operator_is_one_launch(rest: str) -> None:
    plan = check(graph(rest), operands(), exact=False)
    assert plan.report.counts == {"kernel": 1}
    (kernel,) = plan.report.kernels
    assert kernel.flops == 4 * 2 * 4 * 6 * 6 * 8 and kernel.nbytes == 4 * 4 * 2 * 4 * 6 * 8


@pytest.mark.spread(6)
@pytest.mark.parametrize("sizes", [(6, 6), (2, 1, 6, 6), (1, 1, 1, 6), (4, 1, 6)])
@pytest.mark.parametrize("kind", ["bool", "f32"])
def test_masks(sizes: tuple[int, ...], kind: str) -> None:
    mask = normal(*sizes, seed=9)
    given = mask > -1.0 if kind == "bool" else mask
    extra = f", %m: {kind}[{', '.join(map(str, sizes))}]"
    plan = check(graph(", %m", extra), [*operands(), given], exact=False)
    assert plan.report.counts == {"kernel": 1}


def test_layouts_of_operands_are_taken_and_eagers_is_given() -> None:
    text = graph(kind="{192, 8, 32, 1}")
    inputs = [normal(2, 6, 4, 8).transpose(1, 2), *operands()[1:]]
    assert check(text, inputs, exact=False).report.counts == {"kernel": 1}


def test_other_ranks_and_sizes() -> None:
    check(graph(q="4, 6, 8", kv="4, 9, 8"), operands((4, 6, 8), (4, 9, 8)), exact=False)
    check(graph(q="6, 8", kv="9, 8"), operands((6, 8), (9, 8)), exact=False)
    text = """\
graph f(%q: f32[4, 6, 8], %k: f32[4, 6, 8], %v: f32[4, 6, 5]) -> f32[4, 6, 5] {
  %0: f32[4, 6, 5] = aten.scaled_dot_product_attention.default(%q, %k, %v)
  return %0
}"""
    assert check(text, [normal(4, 6, 8), normal(4, 6, 8), normal(4, 6, 5)], exact=False).report.counts == {"kernel": 1}


def test_fewer_key_heads() -> None:
    text = graph(", None, 0.0, True, enable_gqa=True", q="1, 4, 6, 8", kv="1, 2, 6, 8")
    assert check(text, operands((1, 4, 6, 8), (1, 2, 6, 8)), exact=False).report.counts == {"kernel": 1}


def test_refused_values_are_computed_by_eager() -> None:
    q, k, v = operands()
    v[0, 1, 3, 2] = INF
    plan = check(graph(", None, 0.0, True"), [q, k, v], exact=False)
    assert plan.report.counts == {"kernel": 1}


def test_nothing_is_launched_where_libraries_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Options(deterministic=True, numerics="eager-library")
    assert check(graph(), operands(), options=library).report.counts == {"library": 1}
    monkeypatch.setenv("SMELT_ISA", "none")
    assert check(graph(), operands()).report.counts == {"library": 1}


def test_a_few_queries_of_odd_sizes_are_left_to_the_library() -> None:
    text = graph(q="1, 2, 1, 9", kv="1, 2, 64, 9")
    assert check(text, operands((1, 2, 1, 9), (1, 2, 64, 9))).report.counts == {"library": 1}


# --- spelled out


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (4, 8)).transpose(1, 2)


def spelled(x: Tensor, y: Tensor) -> Tensor:
    scores = heads(x) @ heads(y).transpose(-1, -2) / 8**0.5
    return (scores.softmax(-1) @ heads(y)).transpose(1, 2).flatten(2)


def masked(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    scores = heads(x) @ heads(y).transpose(-1, -2) / 8**0.5 + mask
    return (scores.softmax(-1) @ heads(y)).transpose(1, 2).flatten(2)


def optimized(f: object, *args: Tensor) -> Graph:
    captured = capture(f, args)  # type: ignore[arg-type]
    assert captured.graph is not None
    functional, _ = functional_graph(captured.graph, OWN)
    return optimized_graph(functional, OWN, lookup_in({}))[0]


def lowered(f: object, *args: Tensor) -> Lowered:
    made = optimized(f, *args)
    assert any(node.op == "aten.scaled_dot_product_attention.default" for node in made.body)
    return check(made, args, exact=False)


def test_spelled_out_attention_is_one_launch_with_no_term_to_compute() -> None:
    x, y = normal(2, 7, 32), normal(2, 11, 32, seed=1)
    plan = lowered(spelled, x, y)
    assert {"aten.amin.default", "aten.add.Tensor"} <= set(fused(plan))
    assert {node.how for node in plan.report.nodes} == {"kernel", "view", "fused"}


def test_spelled_out_attention_keeps_nan() -> None:
    x, y = normal(2, 7, 32), normal(2, 11, 32, seed=1)
    mask = torch.zeros(2, 1, 7, 11)
    mask[0, 0, 3] = -INF
    mask[1, 0, 2, 5] = NAN
    mask[1, 0, 4, 5] = -INF
    x[0, 1, 2], y[1, 3, 9] = NAN, INF
    assert "aten.amax.default" in fused(lowered(masked, x, y, mask))
    (found,) = evaluate(optimized(masked, x, y, mask), [x, y, mask], lookup_in({}))
    assert torch.equal(found.isnan(), masked(x, y, mask).isnan())


def test_a_term_that_is_used_elsewhere_is_computed() -> None:
    text = """\
graph f(%q: f32[1, 2, 6, 8], %k: f32[1, 2, 6, 8], %v: f32[1, 2, 6, 8]) -> f32[1, 2, 6, 8], f32[1, 2, 6, 1] {
  %0: f32[1, 2, 6, 8] = aten.scaled_dot_product_attention.default(%q, %k, %v)
  %1: f32[1, 2, 6, 8] = aten.mul.Tensor(%q, 0.0)
  %2: f32[1, 2, 6, 1] = aten.sum.dim_IntList(%1, [-1], True)
  %3: f32[1, 2, 6, 8] = aten.mul.Tensor(%k, 0.0)
  %4: f32[1, 2, 6, 1] = aten.sum.dim_IntList(%3, [-1], True)
  %n: f32[1, 2, 6, 1] = aten.nan_to_num.default(%4, inf)
  %m: f32[1, 2, 1, 1] = aten.amin.default(%n, [-2], True)
  %5: f32[1, 2, 1, 1] = aten.mul.Tensor(%m, 0.0)
  %6: f32[1, 2, 6, 1] = aten.add.Tensor(%2, %5)
  %7: f32[1, 2, 6, 8] = aten.add.Tensor(%0, %6)
  return %7, %2
}"""
    q, k, v = operands((1, 2, 6, 8), (1, 2, 6, 8))
    q[0, 1, 2, 3] = NAN
    assert fused(check(text, [q, k, v], exact=False)) == []
    alone = parse(text.replace("%7, %2", "%7").replace("-> f32[1, 2, 6, 8], f32[1, 2, 6, 1]", "-> f32[1, 2, 6, 8]"))
    assert len(fused(check(alone, [q, k, v], exact=False))) == 9


@pytest.mark.parametrize(
    ("change", "to"),
    [("%q, 0.0", "%v, 0.0"), ("%k, 0.0", "%k, 1.0"), ("%1, [-1]", "%1, [-2]"), ("%5)", "%5, alpha=2)")],
)
def test_terms_that_are_not_the_guard_are_computed(change: str, to: str) -> None:
    text = f"""\
graph f(%q: f32[1, 2, 6, 6], %k: f32[1, 2, 6, 6], %v: f32[1, 2, 6, 6]) -> f32[1, 2, 6, 6] {{
  %0: f32[1, 2, 6, 6] = aten.scaled_dot_product_attention.default(%q, %k, %v)
  %1: f32[1, 2, 6, 6] = aten.mul.Tensor(%q, 0.0)
  %2: f32[1, 2, {"1, 6" if "-2" in to else "6, 1"}] = aten.sum.dim_IntList(%1, [-1], True)
  %3: f32[1, 2, 6, 6] = aten.mul.Tensor(%k, 0.0)
  %4: f32[1, 2, 6, 1] = aten.sum.dim_IntList(%3, [-1], True)
  %n: f32[1, 2, 6, 1] = aten.nan_to_num.default(%4, inf)
  %m: f32[1, 2, 1, 1] = aten.amin.default(%n, [-2], True)
  %5: f32[1, 2, 1, 1] = aten.mul.Tensor(%m, 0.0)
  %6: f32[1, 2, {"1, 6" if "-2" in to else "6, 1"}] = aten.add.Tensor(%2, %5)
  %7: f32[1, 2, 6, 6] = aten.add.Tensor(%0, %6)
  return %7
}}"""
    assert change in text
    q, k, v = operands((1, 2, 6, 6), (1, 2, 6, 6))
    v[0, 0, 0, 0] = NAN
    assert fused(check(text.replace(change, to), [q, k, v], exact=False)) == []


def test_the_error_keeps_to_eagers() -> None:
    q, k, v = (normal(1, 40, 4 * 16, seed=i).unflatten(-1, (4, 16)).transpose(1, 2) for i in range(3))
    text = """\
graph f(%q: KIND, %k: KIND, %v: KIND) -> KIND {
  %0: KIND = aten.scaled_dot_product_attention.default(%q, %k, %v)
  return %0
}""".replace("KIND", "f32[1, 4, 40, 16]{2560, 16, 64, 1}")
    plan = check(text, [q, k, v], exact=False)
    exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    (eager,) = evaluate(parse(text), [q, k, v], lookup_in({}))
    assert plan.report.counts == {"kernel": 1}
    for executable in executables(plan.plan):
        (found,) = call(plan, executable, [q, k, v], {})
        assert rms_ratio(found, eager, exact) <= 1.5


# --- heads that share keys


def repeated(t: Tensor, times: int) -> Tensor:
    batch, count, length, size = t.shape
    return t[:, :, None].expand(batch, count, times, length, size).reshape(batch, count * times, length, size)


def grouped(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    keys = repeated(y.unflatten(-1, (2, 8)).transpose(1, 2), 2)
    scores = heads(x) @ keys.transpose(-1, -2) * 0.25 + mask
    return (scores.softmax(-1) @ keys).transpose(1, 2).flatten(2)


def grouped_operator(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    keys = y.unflatten(-1, (2, 8)).transpose(1, 2).repeat_interleave(2, 1)
    return torch.nn.functional.scaled_dot_product_attention(heads(x), keys, keys, mask)


def grouped_otherwise(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    keys = y.unflatten(-1, (2, 8)).transpose(1, 2).repeat(1, 2, 1, 1)
    return torch.nn.functional.scaled_dot_product_attention(heads(x), keys, keys, mask)


@pytest.mark.parametrize(("f", "count"), [(grouped, 13), (grouped_operator, 0)])
def test_repeated_heads_are_read_once(f: object, count: int) -> None:
    x, y, mask = normal(2, 7, 32), normal(2, 11, 16, seed=1), normal(2, 1, 7, 11, seed=2)
    mask[0, 0, 3] = -INF
    x[0, 1, 2], y[1, 3, 9] = NAN, INF
    made = optimized(f, x, y, mask)
    ops = [node.op for node in made.body]
    assert not {"aten.expand.default", "aten.clone.default"} & set(ops)
    assert len(fused(lowered(f, x, y, mask))) == count


def test_heads_in_another_order_are_not_shared() -> None:
    x, y, mask = normal(2, 7, 32), normal(2, 11, 16, seed=1), normal(2, 1, 7, 11, seed=2)
    assert "aten.repeat.default" in [node.op for node in optimized(grouped_otherwise, x, y, mask).body]
    lowered(grouped_otherwise, x, y, mask)


def test_values_refused_with_shared_heads() -> None:
    x, y, mask = normal(2, 7, 32), normal(2, 11, 16, seed=1), torch.zeros(2, 1, 7, 11)
    y[1, 3] = 3e38
    assert fused(lowered(grouped, x, y, mask))
