"""Memory that is also seen by `as_strided`: written, read and written through these views, against eager."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

import smelt
from smelt.ir import Graph, Node, parse
from smelt.ops.convert import type_of
from smelt.ops.effects import effects
from smelt.ops.evaluate import evaluate
from smelt.ops.shapes.pointwise import is_dense
from smelt.ops.shapes.views import Layout
from smelt.passes.manager import compare, observe, run_passes
from smelt.passes.mutation.functionalize import functionalize

LAYOUTS: tuple[Callable[[], torch.Tensor], ...] = (
    lambda: torch.randn(24),
    lambda: torch.randn(4, 6),
    lambda: torch.randn(6, 4).t(),
    lambda: torch.randn(2, 3, 4).permute(2, 0, 1),
    lambda: torch.randn(1, 24, 1),
)


def _type(tensor: torch.Tensor) -> str:
    return str(type_of(tensor))


def _view(rng: random.Random, numel: int) -> tuple[list[int], list[int]]:
    """Sizes and strides of a view within so many elements; often some of its elements share an address."""
    while True:
        rank = rng.randint(0, 3)
        sizes = [rng.randint(1, 4) for _ in range(rank)]
        strides = [rng.choice([0, 1, 1, 2, 3, 4, 5, 8]) for _ in range(rank)]
        if 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) <= numel:
            return sizes, strides


def _program(rng: random.Random, base: torch.Tensor) -> str:
    """A graph that writes and reads a tensor like this one and views of it, as they come."""
    kind = _type(base)
    lines, tensors = [f"%v0: {kind} = aten.clone.default(%x)"], {"v0": torch.empty_like(base)}
    seen = []
    for number in range(1, rng.randint(4, 9)):
        name = f"v{number}"
        source = rng.choice(list(tensors))
        tensor = tensors[source]
        match rng.randint(0, 4):
            case 0 | 1:
                sizes, strides = _view(rng, 24)
                source, tensor = "v0", tensors["v0"]
                made, call = tensor.as_strided(sizes, strides), f"aten.as_strided.default(%v0, {sizes}, {strides})"
            case 2 if tensor.dim():
                dim = rng.randrange(tensor.dim())
                index = rng.randrange(tensor.shape[dim])
                made, call = tensor.select(dim, index), f"aten.select.int(%{source}, {dim}, {index})"
            case _:
                factor = rng.choice([0.5, 2.0, 3.0])
                lines.append(f"%{name}: {_type(tensor)} = aten.mul_.Tensor(%{source}, {factor})")
                tensors[name] = tensor
                try:
                    tensor.mul_(factor)
                except RuntimeError:
                    lines.pop()
                    del tensors[name]
                continue
        lines.append(f"%{name}: {_type(made)} = {call}")
        lines.append(f"%s{number}: {_type(torch.sin(made))} = aten.sin.default(%{name})")
        seen.append((f"%s{number}", _type(torch.sin(made))))
        tensors[name] = made
    outputs = [*seen, ("%v0", kind)]
    body = "\n".join(lines)
    returned = ", ".join(name for name, _ in outputs)
    return f"graph f(%x: {kind}) -> {', '.join(t for _, t in outputs)} {{\n{body}\nreturn {returned}\n}}"


def _in_place(graph: Graph) -> list[Node]:
    return [n for n in graph.walk() if effects(n).writes and n.op != "write"]


@pytest.mark.spread(6)
@pytest.mark.parametrize("seed", range(150))
def test_random_views_and_writes(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    base = rng.choice(LAYOUTS)()
    graph = parse(_program(rng, base))
    before = graph.clone()
    run_passes(graph, [functionalize])
    difference = compare(observe(graph, [base]), observe(before, [base]))
    assert not difference, f"{difference}\n{before}\n{graph}"


def test_most_of_these_programs_become_functional() -> None:
    whole = 0
    for seed in range(40):
        rng = random.Random(seed)
        graph = parse(_program(rng, rng.choice(LAYOUTS)()))
        run_passes(graph, [functionalize])
        whole += not _in_place(graph)
    assert whole >= 30


def chunks(x: torch.Tensor) -> torch.Tensor:
    q = x + 1
    q /= 3.0
    return q.as_strided((3, 4, 8), (16, 8, 1)).sum((1, 2))


def column(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    q = x.t() * 2
    view = q.as_strided((4, 2), (8, 3))
    view.add_(1)
    q[0].neg_()
    return q, view.exp()


def of_the_caller(x: torch.Tensor) -> torch.Tensor:
    view = x.as_strided((8,), (9,))
    view.zero_()
    return view


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    q = x.sin()
    for i in range(3):
        q.as_strided((3, 4), (16, 1)).mul_(i + 0.5)
        q[i] += q.as_strided((8,), (8,)).clone()
    return q


def counted_from_the_start(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows, bits = (x + 1)[2:4], (x * 2).chunk(2)[1].view(torch.int32)
    return (
        x.clone().as_strided((3,), (2,), 1) * 2,
        rows.flatten().as_strided((5,), (1,), 0) + 1,
        bits.as_strided((2,), (1,), 3) * 2,
    )


@pytest.mark.parametrize("program", [chunks, column, of_the_caller, in_a_loop])
def test_programs_run_whole(program: Callable[[torch.Tensor], object]) -> None:
    compiled = smelt.compile(program, options={"measure": False})
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(8, 8)
        mine, theirs = x.clone(), x.clone()
        torch.testing.assert_close(compiled(mine), program(theirs))
        assert torch.equal(mine, theirs)
    (row,) = compiled.stats().rows
    assert row.entry is not None and not compiled.stats().fallbacks
    graph = smelt.trace(program, torch.randn(8, 8)).graph
    assert not _in_place(graph), str(graph)


@pytest.mark.parametrize("offset", [0, 5])
def test_places_are_counted_from_the_start_of_the_storage_they_are_in(offset: int) -> None:
    x = torch.randn(8 * 8 + offset)[offset:].view(8, 8)
    wanted = counted_from_the_start(x)
    traced = smelt.trace(counted_from_the_start, x, options={"measure": False})
    assert all(map(torch.equal, traced(x), wanted))


@pytest.mark.parametrize(
    "line",
    [
        # A place counted from the start of a storage that only this memory has.
        "%v: f32[2] = aten.as_strided.default(%x, [2], [1], 1)",
        # Past what the tensor itself holds.
        "%v: f32[2]{4} = aten.as_strided.default(%x, [2], [4])",
    ],
)
def test_what_other_memory_may_not_have_stays_in_place(line: str) -> None:
    type_ = line[4 : line.index(" =")]
    graph = parse(
        f"""graph f(%x: f32[4]) -> {type_.split("{")[0]} {{
          {line}
          %m: f32[4] = aten.add_.Tensor(%x, 1)
          %s: {type_.split("{")[0]} = aten.sin.default(%v)
          return %s
        }}"""
    )
    before = graph.clone()
    run_passes(graph, [functionalize])
    assert "add_" in str(graph)
    memory = torch.arange(8.0)
    mine, theirs = memory.clone()[1:5], memory.clone()[1:5]
    assert torch.equal(*evaluate(graph, [mine]), *evaluate(before, [theirs]))
    assert torch.equal(mine, theirs)


def test_an_operator_that_reads_what_it_writes_through_such_a_view_stays() -> None:
    graph = parse(
        """graph f(%x: f32[8]) -> f32[8] {
          %b: f32[8] = aten.clone.default(%x)
          %h: f32[4] = aten.slice.Tensor(%b, 0, 1, 5)
          %v: f32[4] = aten.as_strided.default(%b, [4], [1])
          %m: f32[4] = aten.add_.Tensor(%h, %v)
          return %b
        }"""
    )
    run_passes(graph, [functionalize])
    assert "add_" in str(graph)


def test_memory_with_gaps_stays_in_place() -> None:
    graph = parse(
        """graph f(%x: f32[2, 3]{4, 1}) -> f32[6] {
          %v: f32[6] = aten.as_strided.default(%x, [6], [1])
          %m: f32[2, 3]{4, 1} = aten.add_.Tensor(%x, 1)
          %s: f32[6] = aten.neg.default(%v)
          return %s
        }"""
    )
    before = graph.clone()
    run_passes(graph, [functionalize])
    assert _in_place(graph)
    mine, theirs = torch.arange(8.0).reshape(2, 4), torch.arange(8.0).reshape(2, 4)
    assert torch.equal(*evaluate(graph, [mine[:, :3]]), *evaluate(before, [theirs[:, :3]]))
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        ("f32[]", True), ("f32[0, 3]", True), ("f32[3, 4]", True), ("f32[4, 3]{1, 4}", True), ("f32[1, 4]{7, 1}", True),
        ("f32[3, 4]{8, 1}", False), ("f32[4]{0}", False), ("f32[4]{2}", False), ("f32[2, 3, 4]{3, 1, 6}", True),
    ],
)  # fmt: skip
def test_dense(type_: str, expected: bool) -> None:
    (value,) = parse(f"graph f(%x: {type_}) -> {type_} {{\nreturn %x\n}}").body.params
    assert is_dense(Layout.of(value.type)) is expected
