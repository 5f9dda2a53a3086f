"""Runs of nodes on tensors of unknown sizes: one call each, compiled for sizes that come again."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

import smelt
from smelt.codegen.lower import lower, preparing
from smelt.codegen.lower.python import sized_block
from smelt.codegen.lower.python.python_nodes import PythonRun
from smelt.codegen.lower.python.python_parts import While
from smelt.codegen.lower.python.sized_block import SizedBlock
from smelt.diag import Options
from smelt.ir import parse, verify
from smelt.ops.evaluate import evaluate, no_state
from smelt.runtime.executable import Executable
from smelt.runtime.plan import PyCall
from tests.control.harness import compare

CHAIN = """graph f(%x: f32[8], %m: bool[8]) -> f32[_], f32[] {
  %0: f32[_] = aten.masked_select.default(%x, %m)
  %1: f32[_] = aten.sin.default(%0)
  %2: f32[_] = aten.mul.Tensor(%1, 2.0)
  %3: int = aten.sym_size.int(%2, 0)
  %4: int = py.add(%3, 1)
  %5: f32[_] = aten.div.Scalar(%2, %4)
  %6: f32[] = aten.sum.default(%5)
  return %5, %6
}"""

TWO_SIZES = """graph f(%x: f32[4], %c: bool[]) -> f32[_], int {
  %0: f32[_], %1: int = if %c {
    %2: f32[4] = aten.sin.default(%x)
    %3: f32[4] = aten.mul.Tensor(%2, 2.0)
    yield %3, 3
  } else {
    %4: f32[8] = aten.cat.default([%x, %x])
    yield %4, 4
  }
  return %0, %1
}"""

LOOP = """graph f(%x: f32[1], %n: i64[]) -> f32[_], f32[] {
  %k: int = aten.item.default(%n)
  %z: f32[] = aten.sum.default(%x)
  %0: f32[_], %s: f32[] = for %i: int in (0, %k, 1) with (%h: f32[_] = %x, %t: f32[] = %z) {
    %1: f32[_] = aten.cat.default([%h, %h])
    %2: f32[_] = aten.mul.Tensor(%1, 0.5)
    %3: f32[] = aten.sum.default(%2)
    yield %2, %3
  }
  return %0, %s
}"""


def mask(count: int) -> torch.Tensor:
    return torch.arange(8) < count


def test_a_chain_on_what_a_mask_selects() -> None:
    x = torch.randn(8)
    calls = [[x, mask(n)] for n in (3, 3, 3, 5, 0, 0, 5, 8, 1, 8)]
    compare(CHAIN, *calls, exact=False)


def test_branches_may_give_different_sizes_without_python_around() -> None:
    x = torch.randn(4)
    made = compare(TWO_SIZES, [x, torch.tensor(True)], [x, torch.tensor(False)], exact=False)
    assert not any(isinstance(part, While) for run in runs(made.plan) for part in run._parts)
    assert {r.how for r in made.report.nodes if r.op == "if"} == {"block"}


def runs(plan: Any) -> list[PythonRun]:
    return [i.fn for i in plan.instructions if isinstance(i, PyCall) and isinstance(i.fn, PythonRun)]


def blocks(plan: Any) -> list[SizedBlock]:
    """The blocks anywhere in a plan's calls of Python."""
    return [part for run in runs(plan) for part in run._parts if isinstance(part, SizedBlock)]


def block_of(text: str = CHAIN) -> tuple[Any, SizedBlock]:
    """The block of a graph that is lowered without padding."""
    graph = parse(text)
    verify(graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "padded", lambda graph, **_: graph)
        lowered = lower(graph, no_state, Options())
    (block,) = blocks(lowered.plan)
    return graph, block


def values(count: int) -> list[Any]:
    return [torch.randn(8)[:count].clone()]


def test_sizes_that_come_again_are_compiled_for_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized_block, "COMPILED", 2)
    _, block = block_of()
    for expected, count in [(0, 3), (1, 3), (1, 3), (1, 5), (2, 5), (2, 7), (2, 7), (2, 7)]:
        (given,) = values(count)
        whole, total = block([given])
        assert torch.allclose(whole, given.sin() * 2 / (count + 1)) and torch.allclose(total, whole.sum())
        assert block.compiled_for == expected


def test_too_many_sizes_are_not_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized_block, "SEEN", 2)
    _, block = block_of()
    for count in (1, 2, 3, 4, 3, 4, 3, 4):
        block(values(count))
    assert block.compiled_for == 0
    block(values(1))
    assert block.compiled_for == 1


def test_strides_and_dtypes_are_told_apart() -> None:
    _, block = block_of()
    for _ in range(3):
        for given in (
            torch.randn(4),
            torch.randn(8)[::2],
            torch.randn(4, dtype=torch.float64),
            torch.randn(1).expand(4),
        ):
            whole, _ = block([given])
            assert torch.allclose(whole, given.sin() * 2 / 5) and whole.dtype == given.dtype
    assert block.compiled_for == 4


def test_what_compiled_code_does_not_take_runs_one_by_one() -> None:
    _, block = block_of()
    given = torch.randn(4, dtype=torch.complex64).conj()
    for _ in range(3):
        whole, _ = block([given])
        assert torch.allclose(whole, given.sin() * 2 / 5)
    assert block.compiled_for == 0


def test_results_are_not_kept() -> None:
    _, block = block_of()
    given = torch.randn(6)
    results = [block([given])[0] for _ in range(4)]
    before = [r.clone() for r in results]
    results[-1].add_(1)
    assert all(torch.equal(a, b) for a, b in zip(results[:-1], before[:-1], strict=True))
    assert len({r.data_ptr() for r in results}) == 4


def test_an_operator_that_refuses_sizes_raises_its_own_error() -> None:
    text = """graph f(%x: f32[8], %m: bool[8], %y: f32[3]) -> f32[_] {
  %0: f32[_] = aten.masked_select.default(%x, %m)
  %1: f32[_] = aten.sin.default(%0)
  %2: f32[_] = aten.add.Tensor(%1, %y)
  return %2
}"""
    x, y = torch.randn(8), torch.randn(3)
    compare(text, *[[x, mask(n), y] for n in (3, 1, 4, 4, 3, 3)], exact=False)


@pytest.mark.parametrize(
    "view", ["aten.slice.Tensor(%1, 0, 1, 3)", "aten.view.default(%1, [-1])", "aten.t.default(%1)"]
)
def test_views_of_what_is_unknown(view: str) -> None:
    text = f"""graph f(%x: f32[8], %m: bool[8]) -> f32[_], f32[_] {{
  %0: f32[_] = aten.masked_select.default(%x, %m)
  %1: f32[_] = aten.sin.default(%0)
  %2: f32[_] = {view}
  return %1, %2
}}"""
    x = torch.randn(8)
    compare(text, *[[x, mask(n)] for n in (4, 4, 4, 6, 6, 4)], exact=False)


def test_operands_that_the_plan_writes_over_are_copied() -> None:
    text = """graph f(%x: f32[4], %c: bool[]) -> f32[_], f32[4] {
  %1: f32[4] = aten.sin.default(%x)
  %2: f32[_] = if %c {
    yield %1
  } else {
    %3: f32[8] = aten.cat.default([%1, %x])
    yield %3
  }
  %4: f32[4] = aten.cos.default(%x)
  %5: f32[4] = aten.exp.default(%4)
  return %2, %5
}"""
    x = torch.randn(4)
    compare(text, [x, torch.tensor(True)], [x, torch.tensor(False)], [x + 1, torch.tensor(True)], exact=False)


def test_a_loop_that_carries_what_grows() -> None:
    calls = [[torch.randn(1), torch.tensor(n)] for n in (3, 3, 3, 0, 1, 5, 5)]
    compare(LOOP, *calls, exact=False)


def test_split_and_unpack_in_one_run() -> None:
    text = """graph f(%x: f32[8, 2], %m: bool[8]) -> f32[_], f32[_] {
  %i: list[i64[_]] = aten.nonzero_numpy.default(%m)
  %0: i64[_] = py.getitem(%i, 0)
  %1: f32[_, 2] = aten.index.Tensor(%x, [%0])
  %2: (f32[_, 1], f32[_, 1]) = aten.split.Tensor(%1, 1, 1)
  %3: f32[_, 1], %4: f32[_, 1] = unpack(%2)
  %5: f32[_] = aten.squeeze.dim(%3, 1)
  %6: f32[_] = aten.squeeze.dim(%4, 1)
  %7: f32[_] = aten.add.Tensor(%5, %6)
  return %7, %5
}"""
    x = torch.randn(8, 2)
    compare(text, *[[x, mask(n)] for n in (4, 4, 4, 0, 0, 8, 8)])


def test_draws_come_in_the_order_of_the_graph() -> None:
    text = """graph f(%x: f32[8], %m: bool[8]) -> f32[_] {
  %0: f32[_] = aten.masked_select.default(%x, %m)
  %1: f32[_] = aten.sin.default(%0)
  %2: f32[_] = aten.rand_like.default(%1)
  %3: f32[4] = aten.rand.default([4])
  %4: f32[] = aten.sum.default(%3)
  %5: f32[_] = aten.rand_like.default(%2)
  %6: f32[_] = aten.sub.Tensor(%2, %5)
  %7: f32[_] = aten.add.Tensor(%6, %4)
  return %7
}"""
    graph = parse(text)
    lowered = lower(graph, no_state, Options())
    executable = Executable(lowered.plan, None)
    x = torch.randn(8)
    for n in (4, 4, 4, 6):
        torch.manual_seed(n)
        (expected,) = evaluate(graph, [x, mask(n)])
        after = torch.get_rng_state()
        torch.manual_seed(n)
        (found,) = lowered.rebuild(executable.run([x, mask(n)]), [x, mask(n)], no_state)
        assert torch.allclose(found, expected) and torch.equal(torch.get_rng_state(), after)


def test_threads() -> None:
    _, block = block_of()
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for n in range(40):
            count = (n * 5 + seed) % 7
            given = torch.randn(count, generator=generator)
            whole, total = block([given])
            expected = given.sin() * 2 / (count + 1)
            if not (torch.allclose(whole, expected) and torch.allclose(total, expected.sum(), atol=1e-6)):
                wrong.append((count, given))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and block.compiled_for > 0


@pytest.mark.usefixtures("young_heap")
def test_a_block_goes_with_its_plan() -> None:
    _, block = block_of()
    for _ in range(3):
        block(values(4))
    gone = weakref.ref(block._compiled[next(iter(block._compiled))])
    del block
    gc.collect()
    assert gone() is None


class Grows(torch.nn.Module):
    """Tokens that are joined turn after turn, as a decoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = torch.nn.Embedding(8, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            found = self.head(self.norm(self.embed(ids)).mean(1)).argmax(-1, keepdim=True)
            ids = torch.cat([ids, found], 1)
            if (found == 0).all():
                break
        return ids


def test_blocks_with_parameters_are_compiled() -> None:
    model = Grows().eval()
    compiled = smelt.compile(model)
    with torch.no_grad():
        for ids in 4 * [torch.tensor([[1, 2]]), torch.tensor([[5, 3]])]:
            assert torch.equal(compiled(ids), model(ids))
    (row,) = compiled.stats().rows
    (run,) = runs(row.entry.lowered.plan)
    found = [part for part in run._parts[0].body.parts if isinstance(part, SizedBlock)]
    assert found and all(block.compiled_for > 0 for block in found)
