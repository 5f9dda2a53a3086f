"""Which nodes become one nest, as text, and that the groups compute what the graph does."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch

from smelt.codegen.fusion.build import build, eager_memory
from smelt.codegen.fusion.groups import Trial, Trials
from smelt.codegen.fusion.partition import Partition, partition
from smelt.codegen.fusion.pull import Pull
from smelt.codegen.fusion.rules.rules import RULES
from smelt.ir import Graph, parse
from smelt.ops.evaluate import evaluate
from tests.differential.compare import tensor_difference
from tests.fusion.harness import run_partition


def _texts(graph: Graph) -> list[str]:
    parts = partition(graph, lambda built: None)
    return [_text(parts, i) for i in range(len(parts.groups))]


def _text(parts: Partition, i: int) -> str:
    group = parts.groups[i]
    return str(build(group.roots, parts.facts.inside(group.nodes), RULES, eager_memory, eager_memory).nest)


IOU = "\n".join(
    (
        "graph f(%a: f32[4, 1000], %b: f32[4, 1000]) -> f32[1000] {",
        *(f"  %{n}{i}: f32[1000] = aten.select.int(%{n}, 0, {i})" for n in "ab" for i in range(4)),
        *(f"  %h{i}: f32[1000] = aten.minimum.default(%a{i + 2}, %b{i + 2})" for i in range(2)),
        *(f"  %l{i}: f32[1000] = aten.maximum.default(%a{i}, %b{i})" for i in range(2)),
        *(f"  %d{i}: f32[1000] = aten.sub.Tensor(%h{i}, %l{i})" for i in range(2)),
        *(f"  %c{i}: f32[1000] = aten.clamp.default(%d{i}, 0)" for i in range(2)),
        "  %s: f32[1000] = aten.mul.Tensor(%c0, %c1)",
        *(f"  %{n}s{i}: f32[1000] = aten.sub.Tensor(%{n}{i + 2}, %{n}{i})" for n in "ab" for i in range(2)),
        *(f"  %{n}m: f32[1000] = aten.mul.Tensor(%{n}s0, %{n}s1)" for n in "ab"),
        "  %t: f32[1000] = aten.add.Tensor(%am, %bm)",
        "  %u: f32[1000] = aten.sub.Tensor(%t, %s)",
        "  %r: f32[1000] = aten.div.Tensor(%s, %u)",
        "  return %r",
        "}",
    )
)


def test_iou_is_one_kernel_of_eight_loads_and_one_store() -> None:
    (text,) = _texts(parse(IOU))
    loads = {f"%{n}{i}[i0]" for n in "ab" for i in range(4)}
    assert all(load in text for load in loads)
    assert text.count("\n    %") == 1 and "%r[i0] = " in text


def test_softmax() -> None:
    graph = parse("""\
graph f(%x: f32[16, 128], %m: f32[16, 128]) -> f32[16, 128] {
  %0: f32[16, 128] = aten.add.Tensor(%x, %m)
  %1: f32[16, 128] = aten.softmax.int(%0, -1)
  return %1
}""")
    assert _texts(graph) == [
        """\
nest(%x: f32, %m: f32, %1: f32)
  for i0 < 16:
    v0 = add(%x[128*i0 + j0], %m[128*i0 + j0])    # for each j0 < 128
    r1 = max f32 over (j0 < 128) of v0
    v2 = exp(sub(v0, r1))    # for each j0 < 128
    r3 = sum f32 over (j0 < 128) of v2
    %1[128*i0 + j0] = div(v2, r3)"""
    ]


def test_residual_layer_norm_stores_the_sum_too() -> None:
    graph = parse("""\
graph f(%x: f32[4, 8], %y: f32[4, 8], %w: f32[8]) -> f32[4, 8], f32[4, 8] {
  %0: f32[4, 8] = aten.add.Tensor(%x, %y)
  %1: f32[4, 8] = aten.layer_norm.default(%0, [8], %w)
  return %0, %1
}""")
    assert _texts(graph) == [
        """\
nest(%x: f32, %y: f32, %0: f32, %w: f32, %1: f32)
  for i0 < 4:
    v0 = add(%x[8*i0 + j0], %y[8*i0 + j0])    # for each j0 < 8
    %0[8*i0 + j0] = v0
    r1 = sum f32 over (j0 < 8) of v0
    v2 = div(r1, 8.0)
    v3 = sub(v0, v2)    # for each j0 < 8
    r4 = sum f32 over (j0 < 8) of v3
    v5 = div(r4, 8.0)
    r6 = sum f32 over (j0 < 8) of mul(v3, v3)
    v7 = div(r6, 8.0)
    v8 = add(v2, v5)
    v9 = mul(v5, v5)
    v10 = rsqrt(add(select(lt(v9, v7), sub(v7, v9), v7), 9.999999747378752e-06))
    %1[8*i0 + j0] = mul(mul(sub(v0, v8), v10), %w[j0])"""
    ]


def test_views_between_are_index_maps() -> None:
    graph = parse("""\
graph f(%x: f32[6, 4]) -> f32[3, 4, 2] {
  %0: f32[6, 4] = aten.exp.default(%x)
  %1: f32[2, 3, 4] = aten.view.default(%0, [2, 3, 4])
  %2: f32[3, 4, 2]{4, 1, 12} = aten.permute.default(%1, [1, 2, 0])
  %3: f32[3, 4, 2] = aten.clone.default(%2, memory_format=memory_format(contiguous_format))
  return %3
}""")
    assert _texts(graph) == [
        """\
nest(%x: f32, %3: f32)
  for i0 < 12, i1 < 2:
    %3[2*i0 + i1] = exp(%x[i0 + 12*i1])"""
    ]


def test_nothing_is_fused_across_a_write() -> None:
    graph = parse("""\
graph f(%x: f32[8], %y: f32[8]) -> f32[8] {
  %0: f32[8] = aten.mul.Tensor(%x, %y)
  %1: f32[8] = write(%y, %x)
  %2: f32[8] = aten.add.Tensor(%0, %1)
  return %2
}""")
    parts = partition(graph, lambda built: None)
    assert [[n.op for n in g.nodes] for g in parts.groups] == [["aten.mul.Tensor"], ["aten.add.Tensor"]]
    assert [d.why for d in parts.decisions if not d.fused] == ["a write stands between them"]


def test_a_library_call_between_keeps_groups_apart() -> None:
    graph = parse("""\
graph f(%x: f32[8, 8], %w: f32[8, 8]) -> f32[8, 8] {
  %0: f32[8, 8] = aten.exp.default(%x)
  %1: f32[8, 8] = aten.mm.default(%0, %w)
  %2: f32[8, 8] = aten.add.Tensor(%0, %1)
  return %2
}""")
    parts = partition(graph, lambda built: None)
    assert len(parts.groups) == 2
    refused = [d for d in parts.decisions if not d.fused]
    assert "another kernel stands between them" in {d.why for d in refused}


_UNARY = ("neg", "abs", "relu", "exp", "sigmoid", "square", "floor")
_BINARY = ("add.Tensor", "sub.Tensor", "mul.Tensor", "maximum.default", "minimum.default")


def _random_graph(
    seed: int, most: int = 14, unary: tuple[str, ...] = _UNARY, near: int = 4
) -> tuple[Graph, list[torch.Tensor]]:
    """Pointwise nodes, reductions, views and softmaxes over a few sizes, several of them given out. near: how many
    values back the first operand may be."""
    rng = random.Random(seed)
    shape = rng.choice(((4, 6), (2, 3, 4), (3, 8), (5, 1, 4)))
    last = len(shape) - 1
    text = ", ".join(map(str, shape))
    full, narrow = f"f32[{text}]", f"f32[{', '.join(map(str, (*shape[:-1], 1)))}]"
    values = [("x", full), ("y", full)]
    lines = []
    for i in range(rng.randrange(3, most)):
        name, kind = rng.choice(values[-near:])
        form = rng.random()
        if form < 0.35:
            op = rng.choice(unary)
            lines.append(f"  %v{i}: {kind} = aten.{op}.default(%{name})")
            values.append((f"v{i}", kind))
        elif form < 0.7:
            other, other_kind = rng.choice(values)
            result = full if full in (kind, other_kind) else narrow
            lines.append(f"  %v{i}: {result} = aten.{rng.choice(_BINARY)}(%{name}, %{other})")
            values.append((f"v{i}", result))
        elif form < 0.8 and kind == full:
            lines.append(f"  %v{i}: {narrow} = aten.{rng.choice(('sum.dim_IntList', 'amax.default', 'mean.dim'))}"
                         f"(%{name}, [{last}], True)")  # fmt: skip
            values.append((f"v{i}", narrow))
        elif form < 0.9 and kind == full:
            lines.append(f"  %v{i}: {full} = aten.softmax.int(%{name}, {rng.randrange(len(shape))})")
            values.append((f"v{i}", full))
        elif kind == full:
            lines.append(f"  %v{i}: {full} = aten.flip.default(%{name}, [{rng.randrange(len(shape))}])")
            values.append((f"v{i}", full))
    outputs = list(dict.fromkeys([values[-1], *rng.sample(values[2:] or values, min(2, len(values[2:]) or 1))]))
    names = ", ".join(f"%{n}" for n, _ in outputs)
    body = "\n".join(lines)
    head = f"graph f(%x: {full}, %y: {full}) -> {', '.join(k for _, k in outputs)} {{"
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=generator) for _ in range(2)]
    return parse(f"{head}\n{body}\n  return {names}\n}}"), tensors


@pytest.mark.spread(3)
@pytest.mark.parametrize("batch", range(8))
def test_random_graphs(batch: int) -> None:
    for seed in range(batch * 25, batch * 25 + 25):
        graph, tensors = _random_graph(seed)
        _, found = run_partition(graph, tensors)
        for a, b in zip(evaluate(graph, tensors), found, strict=True):
            assert tensor_difference(a, b, is_exact=False) is None, f"{seed}\n{graph}"


@pytest.mark.spread(3)
@pytest.mark.parametrize("batch", range(8))
def test_random_graphs_with_calls_of_the_library(batch: int) -> None:
    """Groups compute again what others compute, and none waits for itself through what no nest can compute."""
    for seed in range(batch * 25, batch * 25 + 25):
        graph, tensors = _random_graph(seed, 40, ("neg", "abs", "i0", "lgamma"), near=12)
        _, found = run_partition(graph, tensors)
        for a, b in zip(evaluate(graph, tensors), found, strict=True):
            assert tensor_difference(a, b, is_exact=False) is None, f"{seed}\n{graph}"


def test_halves_that_change_places_again_and_again_do_not_double_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element is one of two, each of which is one of two others, at places and masks of their own."""
    lines, at, steps = [], "%x", 20
    for i in range(steps):
        lines.append(f"%a{i}: f32[4] = aten.slice.Tensor({at}, 0, 0, 4)")
        lines.append(f"%b{i}: f32[4] = aten.slice.Tensor({at}, 0, 4, 8)")
        lines.append(f"%c{i}: f32[4] = aten.add.Tensor(%b{i}, 1)")
        lines.append(f"%d{i}: f32[4] = aten.mul.Tensor(%a{i}, 2)")
        at = f"%e{i}"
        lines.append(f"{at}: f32[8] = aten.cat.default([%c{i}, %d{i}])")
    body = "\n".join(lines)
    graph = parse(f"graph f(%x: f32[8]) -> f32[8] {{\n{body}\nreturn {at}\n}}")
    count, element = [0], Pull._element

    def counted(self: Pull, *args: Any) -> Any:
        count[0] += 1
        return element(self, *args)

    monkeypatch.setattr(Pull, "_element", counted)
    x = torch.randn(8)
    _, (found,) = run_partition(graph, [x])
    assert torch.equal(found, evaluate(graph, [x])[0])
    assert count[0] < 100_000, count


def test_a_long_chain_takes_a_few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one for each operator, of all that stands behind it."""
    lines = [f"%a{i}: f32[8] = aten.add.Tensor(%{f's{i - 1}' if i else 'x'}, %y)\n" +
             f"%s{i}: f32[8] = aten.sin.default(%a{i})" for i in range(60)]  # fmt: skip
    graph = parse("graph f(%x: f32[8], %y: f32[8]) -> f32[8] {\n" + "\n".join(lines) + "\nreturn %s59\n}")
    sizes: list[int] = []
    tried = Trials._build

    def counted(self: Trials, nodes: Any, roots: Any) -> Trial:
        sizes.append(len(nodes))
        return tried(self, nodes, roots)

    monkeypatch.setattr(Trials, "_build", counted)
    x, y = torch.randn(8), torch.randn(8)
    parts, (found,) = run_partition(graph, [x, y])
    assert (found - evaluate(graph, [x, y])[0]).abs().max() < 1e-5
    assert [len(g.nodes) for g in parts.groups] == [40, 80]
    assert sum(sizes) < 600, sizes


def test_what_would_be_computed_for_each_element_of_more_does_not_come_with_a_run() -> None:
    """A run joins where it costs no more than apart: exponentials of a row are not taken for each row of a table."""
    graph = parse("""\
graph f(%x: f32[4096], %y: f32[512, 4096]) -> f32[512, 4096] {
  %a: f32[4096] = aten.exp.default(%x)
  %b: f32[4096] = aten.exp.default(%a)
  %c: f32[4096] = aten.exp.default(%b)
  %d: f32[512, 4096] = aten.mul.Tensor(%y, %c)
  return %d
}""")
    first, second = _texts(graph)
    assert "exp(" in first and "exp(" not in second


def _running(turns: int) -> Graph:
    """Running values, all of which are results: a list of a loop that `stack` takes."""
    lines = ["%m0: f32[4, 16] = aten.mul.Tensor(%x, 0.9)"]
    for i in range(1, turns):
        lines.append(f"%a{i}: f32[4, 16] = aten.add.Tensor(%m{i - 1}, %x)")
        lines.append(f"%m{i}: f32[4, 16] = aten.mul.Tensor(%a{i}, 0.9)")
    lines += [f"%u{i}: f32[1, 4, 16] = aten.unsqueeze.default(%m{i}, 0)" for i in range(turns)]
    pieces = ", ".join(f"%u{i}" for i in range(turns))
    lines.append(f"%out: f32[{turns}, 4, 16] = aten.cat.default([{pieces}], 0)")
    body = "\n".join(f"  {line}" for line in lines)
    return parse(f"graph f(%x: f32[4, 16]) -> f32[{turns}, 4, 16] {{\n{body}\n  return %out\n}}")


@pytest.mark.spread(3)
@pytest.mark.parametrize("turns", [4, 9, 30])
def test_what_many_pieces_need_is_computed_once(turns: int) -> None:
    graph = _running(turns)
    parts = partition(graph, lambda built: None)
    homes = [group.nodes for group in parts.groups]
    joined = next(nodes for nodes in homes if nodes[-1].op == "aten.cat.default")
    # Few pieces are computed where they are joined; of many, the last one's own nodes at most.
    assert len(joined) == 2 * turns if turns <= 8 else len(joined) <= 3
    assert turns <= 8 or sum(map(len, homes)) == 2 * turns
    x = torch.randn(4, 16)
    (expected,) = evaluate(graph, [x])
    _, (found,) = run_partition(graph, [x])
    assert tensor_difference(found, expected, is_exact=False) is None


def test_what_many_groups_need_is_stored() -> None:
    """A value is computed again where it is needed, but not in as many groups as there are."""
    lines, results = ["%h0: f32[2] = aten.mul.Tensor(%x, 0.9)"], list[str]()
    for i in range(1, 40):
        lines.append(f"%h{i}: f32[2] = aten.mul.Tensor(%h{i - 1}, 0.{5 + i % 5})")
        lines.append(f"%a{i}: f32[2] = aten.abs.default(%h{i})")
        lines.append(f"%s{i}: f32[] = aten.amax.default(%a{i})")
        lines.append(f"%c{i}: bool[] = aten.lt.Scalar(%s{i}, 0.5)")
        lines.append(f"%t{i}: f32[] = aten.select.int(%h{i}, 0, 0)")
        lines.append(f"%d{i}: bool[] = aten.gt.Scalar(%t{i}, 0.5)")
        results += [f"%c{i}", f"%d{i}"]
    body = "\n".join(f"  {line}" for line in lines)
    types = ", ".join(["bool[]"] * len(results))
    graph = parse(f"graph f(%x: f32[2]) -> {types} {{\n{body}\n  return {', '.join(results)}\n}}")
    trials: list[Any] = []
    parts = partition(graph, lambda built: trials.append(built))
    assert max(Counter(node for group in parts.groups for node in group.nodes).values()) <= 16
    assert len(trials) < 200, len(trials)  # 524 where each value was tried in all groups
    x = torch.randn(2)
    _, found = run_partition(graph, [x])
    assert all(map(torch.equal, found, evaluate(graph, [x])))


@pytest.mark.parametrize(("size", "groups"), [(64, 1), (40_000, 2)], ids=["small", "large"])
def test_a_number_that_two_updates_read_makes_one_of_them_where_they_are_small(size: int, groups: int) -> None:
    """Large ones may lie in different orders, which is seen where memory is planned, and have nothing to gain."""
    vector = f"f32[{size}]"
    graph = parse(f"""\
graph f(%p: {vector}, %g: {vector}, %q: {vector}, %h: {vector}, %lr: f32[]) -> {vector}, {vector} {{
  %0: {vector} = aten.mul.Tensor(%g, %lr)
  %1: {vector} = aten.sub.Tensor(%p, %0)
  %2: {vector} = aten.mul.Tensor(%h, %lr)
  %3: {vector} = aten.sub.Tensor(%q, %2)
  return %1, %3
}}""")
    assert len(_texts(graph)) == groups
