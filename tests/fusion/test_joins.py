"""Joins of many tensors: a launch for each part, each element loaded and computed once, beside eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

import smelt
from smelt.codegen.fusion.chunks import are_pieces, stages
from smelt.codegen.fusion.cost import cost
from smelt.codegen.kernels.evaluate import evaluate_nest
from smelt.codegen.kernels.nest import Load, Nest, expressions, walk
from smelt.codegen.kernels.operations import OPS
from smelt.codegen.llvm.isa import host_isa
from smelt.diag import Options
from smelt.inspect.kernels import compiled_units, kernel_rows
from smelt.ir import parse
from smelt.ops.convert import dtype_to_torch
from smelt.ops.evaluate import evaluate
from smelt.runtime.launches import Launches
from smelt.runtime.plan import Launch
from smelt.runtime.schedule import Group, schedule
from tests.codegen.harness import lowered
from tests.fusion.harness import nest_of

native = pytest.mark.skipif(host_isa() is None, reason="there are no own kernels for this machine")


def joined(count: int, sizes: Sequence[int], dim: int, op: str = "cat", dtype: str = "f32") -> str:
    """The text of a graph that joins so many tensors."""
    made = list(sizes)
    if op == "cat":
        made[dim] *= count
    else:
        made.insert(dim % (len(made) + 1), count)
    types = [f"{dtype}[{', '.join(map(str, s))}]" for s in (sizes, made)]
    inputs = ", ".join(f"%x{i}: {types[0]}" for i in range(count))
    names = ", ".join(f"%x{i}" for i in range(count))
    return (
        f"graph f({inputs}) -> {types[1]} {{\n  %0: {types[1]} = aten.{op}.default([{names}], {dim})\n  return %0\n}}"
    )


def loads(nest: Nest) -> int:
    parts = (part for s in nest.body for expr in expressions(s) for part in walk(expr))
    return sum(isinstance(part, Load) for part in parts)


@pytest.mark.spread(6)
@pytest.mark.parametrize("count", [2, 3, 8, 37])
@pytest.mark.parametrize(
    ("op", "sizes", "dim"),
    [("cat", (40, 30), 0), ("cat", (60, 70), 1), ("cat", (4, 20, 9), 1), ("stack", (24, 50), 0),
     ("stack", (24, 50), 1), ("stack", (24, 50), -1), ("cat", (600, 1), 1)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "bool"])
def test_pieces_equal_one_nest(count: int, op: str, sizes: tuple[int, ...], dim: int, dtype: str) -> None:
    graph = parse(joined(count, sizes, dim, op, dtype))
    built = nest_of(graph)
    found = stages(built.nest)
    assert len(found) == count
    assert are_pieces(found)
    assert all(loads(stage.nest) == 1 for stage in found)
    kind = dtype_to_torch(graph.inputs[0].type.dtype)  # type: ignore[union-attr]
    tensors = [(torch.randn(sizes) * 50).to(kind) for _ in range(count)]
    (expected,) = evaluate(graph, tensors)
    out = torch.zeros_like(expected)
    memory: list[Any] = [dict(zip(graph.inputs, tensors, strict=True)).get(key, out) for key in built.keys]
    for stage in found:
        assert evaluate_nest(stage.nest, [memory[n] for n in stage.buffers]) == 0
    assert torch.equal(out, expected)


def test_few_elements_stay_one_nest() -> None:
    assert len(stages(nest_of(parse(joined(4, (1, 4), 0))).nest)) == 1


def test_a_pad_stays_one_nest() -> None:
    graph = parse("""\
graph f(%x: f32[64, 100]) -> f32[66, 102] {
  %0: f32[66, 102] = aten.constant_pad_nd.default(%x, [1, 1, 1, 1], 0.5)
  return %0
}""")
    assert len(stages(nest_of(graph).nest)) == 1


@pytest.mark.parametrize(("count", "sizes"), [(8, (100, 100)), (3, (1, 4))])
def test_the_cost_counts_each_part_once(count: int, sizes: tuple[int, int]) -> None:
    nest = nest_of(parse(joined(count, sizes, 0))).nest
    assert cost(nest).nbytes == 2 * 4 * count * sizes[0] * sizes[1]
    assert (cost(nest).operations == 0) == (len(stages(nest)) > 1)


def test_the_cost_is_that_of_the_pieces() -> None:
    graph = parse("""\
graph f(%x: f32[300, 40], %y: f32[200, 40], %z: f32[40]) -> f32[500, 40] {
  %0: f32[300, 40] = aten.exp.default(%x)
  %1: f32[200, 40] = aten.mul.Tensor(%y, %z)
  %2: f32[500, 40] = aten.cat.default([%0, %1], 0)
  %3: f32[500, 40] = aten.neg.default(%2)
  return %3
}""")
    nest = nest_of(graph).nest
    found = [cost(stage.nest) for stage in stages(nest)]
    assert cost(nest).operations == sum(c.operations for c in found)
    exp, other = OPS["exp"].cost, OPS["mul"].cost
    assert cost(nest).operations == (exp + other) * 300 * 40 + 2 * other * 200 * 40
    assert cost(nest).nbytes == sum(c.nbytes for c in found)


@native
def test_pieces_run_side_by_side() -> None:
    plan = lowered(joined(8, (100, 100), 0), options=Options(deterministic=True)).plan
    (group,) = [item for item in schedule(plan, Launches.of(plan, True), 2) if isinstance(item, Group)]
    assert len(group.indices) == 8
    apart = replace(plan, instructions=tuple(_alone(i) for i in plan.instructions))
    assert sum(isinstance(item, Group) for item in schedule(apart, Launches.of(apart, True), 2)) == 8


def _alone(instruction: Any) -> Any:
    return replace(instruction, piece_of=0) if isinstance(instruction, Launch) else instruction


# --- compiled


def some(count: int, *sizes: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [(torch.randn(sizes) * 9).to(dtype) for _ in range(count)]


def check(f: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The very result of eager, at the first and at a later call."""
    compiled = smelt.compile(f, **options)
    with torch.no_grad():
        for _ in range(2):
            same(compiled(*args), f(*args))
    return compiled


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert torch.equal(found, expected)


def mixed() -> list[torch.Tensor]:
    return [*some(3, 40, 30), *some(3, 40, 30, dtype=torch.bfloat16), *some(3, 40, 30, dtype=torch.int64)]


def of_many_layouts() -> list[torch.Tensor]:
    x = torch.randn(60, 80)
    return [x[:40, :30], x.t()[:40, :30], x[10:50:1, 1:61:2], x[:1, :30].expand(40, 30), torch.randn(30, 40).t(),
            x[20:60, 50:]]  # fmt: skip


PARTS: dict[str, Callable[[], list[torch.Tensor]]] = {
    "twenty": lambda: some(20, 40, 30),
    "sixty": lambda: some(60, 4, 32),
    "doubles": lambda: some(9, 40, 30, dtype=torch.float64),
    "halves": lambda: some(9, 40, 30, dtype=torch.float16),
    "bytes": lambda: some(9, 40, 30, dtype=torch.uint8),
    "bools": lambda: some(9, 40, 30, dtype=torch.bool),
    "complex": lambda: some(9, 40, 30, dtype=torch.complex64),
    "mixed": mixed,
    "layouts": of_many_layouts,
    "repeated": lambda: some(2, 40, 30) * 6,
    "channels last": lambda: [x.to(memory_format=torch.channels_last) for x in some(6, 4, 8, 12, 10)],
}


@pytest.mark.spread(11)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("join", [torch.cat, torch.stack], ids=["cat", "stack"])
@pytest.mark.parametrize("name", PARTS)
def test_equal_to_eager(name: str, join: Callable[..., torch.Tensor], dim: int) -> None:
    is_told = pytest.warns(smelt.SmeltWarning, match="an argument is complex") if name == "complex" else nullcontext()
    with is_told:
        check(lambda x: join(x, dim), PARTS[name]())


def test_parts_without_elements() -> None:
    parts = [torch.randn(n, 64) for n in (0, 20, 0, 7, 30, 0)]
    check(lambda x: torch.cat(x), parts)
    check(lambda x: torch.cat(x, 1), [x.t() for x in parts])
    check(lambda x: torch.cat(x), [torch.empty(0), *parts])
    check(lambda x: torch.cat(x), some(5, 0, 3))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_parts_of_other_sizes(dim: int) -> None:
    parts = []
    for n in (3, 17, 1, 40, 2, 64, 5):
        sizes = [12, 10, 9]
        sizes[dim] = n
        parts.append(torch.randn(sizes))
    check(lambda x: torch.cat(x, dim), parts)
    check(lambda x: torch.cat([t * 2 for t in x], dim).relu().transpose(0, 2), parts)


def dense_block(x: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([torch.relu(t) for t in x], 1)


def used_twice(x: list[torch.Tensor]) -> torch.Tensor:
    y = torch.cat([t + 1 for t in x])
    return y * y.sum(1, keepdim=True).round()


def of_sums(x: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([t.amax(1) for t in x], 1)


def reduced(x: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(x).amax(1)


def reduced_across(x: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(x, 1).amax(1)


def of_joins(x: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([torch.cat(x[:4], 1), torch.cat(x[4:8], 1)])


def turned(x: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(x).permute(1, 2, 0).reshape(40, -1) * 3


def halves_turned(x: list[torch.Tensor]) -> torch.Tensor:
    a, b = x[0].chunk(2, -1)
    return x[0] * x[1] + torch.cat((-b, a), -1) * x[2]


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "f", [dense_block, used_twice, of_sums, reduced, reduced_across, of_joins, turned, halves_turned]
)
def test_producers_and_consumers(f: Callable[..., torch.Tensor]) -> None:
    check(f, [x.round() for x in some(9, 40, 30)])


@native
def test_producers_are_in_the_pieces() -> None:
    compiled = check(dense_block, some(6, 8, 16, 14, 14))
    rows = kernel_rows(compiled_units(compiled))
    assert sum(row["launches"] for row in rows) == 6
    assert sum(row["launches"] * row["bytes"] for row in rows) == 2 * 4 * 6 * 8 * 16 * 14 * 14


def test_an_index_out_of_range_is_eagers_error() -> None:
    def f(x: torch.Tensor, at: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([x.index_select(0, i) for i in at])

    x, at = torch.randn(50, 40), [torch.randint(0, 50, (30,)) for _ in range(8)]
    compiled = check(f, x, at)
    at[5] = torch.full((30,), 77)
    with pytest.raises(Exception) as expected:
        f(x, at)
    with pytest.raises(type(expected.value)) as found:
        compiled(x, at)
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_a_join_of_a_loop() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h, found = x.new_zeros(x.shape[0], w.shape[0]), []
        for step in x.unbind(1):
            h = torch.clamp(step + h, -1, 1)
            found.append(h)
        return torch.stack(found, 1)

    check(f, torch.randn(8, 50, 16), torch.randn(16, 16))


@pytest.mark.parametrize("dim", [0, 1])
def test_free_sizes(dim: int) -> None:
    def f(x: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([t + 1 for t in x], dim)

    compiled = smelt.compile(f, dynamic=True)
    for n, m in ((40, 30), (41, 30), (7, 64), (3, 5), (100, 2), (1, 9), (64, 64), (0, 4)):
        parts = some(9, n, m)
        same(compiled(parts), f(parts))


def test_free_sizes_of_each_part() -> None:
    compiled = smelt.compile(torch.cat, dynamic=True)
    for lengths in ((3, 40, 50), (4, 41, 51), (100, 2, 7), (1, 1, 1), (0, 9, 300)):
        parts = [torch.randn(n, 32) for n in lengths]
        same(compiled(parts), torch.cat(parts))


def test_one_tensor_twice_among_many() -> None:
    """Many arguments are told apart natively, too."""
    parts = some(40, 8, 32)
    compiled = check(lambda x: torch.cat(x), parts)
    parts[37] = parts[5]
    same(compiled(parts), torch.cat(parts))
    parts[37] = parts[5].clone()
    same(compiled(parts), torch.cat(parts))
