"""Loops and branches under other conditions: threads at once, numbers of threads, a fork, other instruction sets."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from smelt._torch.library import shim
from smelt.codegen.lower import lower
from smelt.ir import parse
from smelt.ops.evaluate import evaluate
from smelt.runtime.executable import Executable
from tests.codegen.harness import lookup_in, machine_code
from tests.control.generate import Generator, inputs
from tests.control.harness import OWN, assert_outcome, compare, outcome
from tests.forked import smelt_forks

LARGE = """\
graph f(%x: f32[512, 512], %n: i64[]) -> f32[512, 512], f32[] {
  %k: int = aten.item.default(%n)
  %z: f32[] = aten.sum.default(%x)
  %0: f32[512, 512], %1: f32[] = for %i: int in (0, %k, 1) with (%h: f32[512, 512] = %x, %s: f32[] = %z) {
    %2: f32[512, 512] = aten.mm.default(%h, %x)
    %3: f32[512, 512] = aten.remainder.Scalar(%2, 5)
    %4: f32[] = aten.amax.default(%3)
    %5: bool[] = aten.gt.Scalar(%4, 3)
    %6: f32[512, 512] = if %5 {
      %7: f32[512, 512] = aten.add.Tensor(%3, %i)
      yield %7
    } else {
      yield %h
    }
    %8: f32[] = aten.add.Tensor(%s, %4)
    yield %6, %8
  }
  return %0, %1
}"""


def large() -> list[torch.Tensor]:
    return [torch.randint(-2, 3, (512, 512)).float(), torch.tensor(6)]


@pytest.mark.parametrize("threads", [1, 2])
def test_regions_of_threads_inside_loops(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        compare(LARGE, large(), options=(OWN,))
    finally:
        torch.set_num_threads(before)


def test_threads_at_once() -> None:
    """One plan in several threads, each with data of its own, and misses and errors among them."""
    graph = parse(Generator(11).text())
    run = Executable(lower(graph, lookup_in({}), OWN).plan, machine_code())
    made = lower(graph, lookup_in({}), OWN)

    def one(seed: int) -> None:
        given = inputs(seed)
        wanted = outcome(lambda: evaluate(graph, given, lookup_in({})))
        for _ in range(50):
            found = outcome(lambda: made.rebuild(run.run(given), given, lookup_in({})))
            assert_outcome(found, wanted, exact=True)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(one, seed) for seed in range(12)]:
            done.result()


def test_after_a_fork() -> None:
    # No product of the library: its own threads do not come along into a child.
    text = LARGE.replace("aten.mm.default(%h, %x)", "aten.mul.Tensor(%h, %x)")
    run = Executable(lower(parse(text), lookup_in({}), OWN).plan, machine_code())
    given = large()
    wanted = run.run(given)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            found = run.run(given)
            torch.set_num_threads(1)  # torch's own threads do not come along either, and comparing would wait for them
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
            status = 0
        finally:
            # Nothing of the parent's test run may go on here.
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.spread(2)
@pytest.mark.parametrize("isa", ["avx2", "baseline"])
def test_other_instruction_sets(isa: str) -> None:
    script = (
        "from tests.control.generate import Generator, inputs\n"
        "from tests.control.harness import OWN, compare\n"
        "for seed in range(12):\n"
        "    compare(Generator(seed).text(), inputs(seed), options=(OWN,))\n"
    )
    smelt_forks().run(script, environment={"SMELT_ISA": isa})


@pytest.mark.spread(3)
@pytest.mark.parametrize("symbol", ["aoti_torch_get_data_ptr", "aoti_torch_empty_strided", "aoti_torch_copy_"])
def test_missing_symbols_change_no_answer(symbol: str) -> None:
    with shim.hidden(symbol):
        for seed in range(10):
            compare(Generator(seed).text(), inputs(seed), options=(OWN,))
