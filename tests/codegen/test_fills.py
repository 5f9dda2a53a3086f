"""Memory that kernels fill while Python goes on: all of it, once, whoever helps, stops or forks meanwhile."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from smelt.codegen.contract.packing import Packing
from smelt.codegen.contract.tiling import tiling_for
from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.lower.products.packed_weight import pack, packed_by_torch, packed_weight, unpacked
from smelt.codegen.lower.products.weight_packing import Fills
from smelt.diag import Options
from smelt.ir import DType

ISA = host_isa()
TILING = None if ISA is None else tiling_for(ISA, DType.F32)
pytestmark = pytest.mark.skipif(TILING is None, reason="own kernels are not built here")
OPTIONS = Options()


def packing(n: int, k: int) -> Packing:
    assert TILING is not None
    return Packing(TILING, n, k)


def packed(fills: Fills, *sizes: tuple[int, int]) -> list[tuple[torch.Tensor, torch.Tensor, Packing]]:
    found = []
    for n, k in sizes:
        weight = torch.randn(n, k)
        assert ISA is not None
        found.append((pack(weight, packing(n, k), ISA, OPTIONS, fills), weight, packing(n, k)))
    return found


def assert_packed(made: list[tuple[torch.Tensor, torch.Tensor, Packing]]) -> None:
    for panels, weight, form in made:
        assert torch.equal(unpacked(panels, form), weight)
        assert torch.equal(unpacked(packed_by_torch(weight, form), form), weight)


SIZES = ((1500, 700), (7, 3), (1, 1), (300, 4096), (33, 17))


def test_all_is_there_after_finish() -> None:
    fills = Fills()
    made = packed(fills, *SIZES)
    assert not fills.is_done
    fills.start()
    fills.finish()
    assert fills.is_done
    assert_packed(made)
    fills.finish()


def test_nothing_to_fill_is_done() -> None:
    fills = Fills()
    fills.start()
    fills.pause()
    fills.finish()
    assert fills.is_done


@pytest.mark.spread(3)
@pytest.mark.parametrize("pauses", [1, 3, 20])
def test_a_pause_loses_nothing(pauses: int) -> None:
    fills = Fills()
    made = packed(fills, *SIZES * 4)
    for _ in range(pauses):
        fills.start()
        fills.pause()
        # Nobody writes now.
        before = [panels.clone() for panels, _, _ in made]
        assert all(torch.equal(a.view(torch.int32), b[0].view(torch.int32)) for a, b in zip(before, made, strict=True))
    fills.finish()
    assert_packed(made)


def test_a_weight_written_in_a_pause_is_read_after_it() -> None:
    fills = Fills()
    made = packed(fills, (64, 64))
    for _, weight, _ in made:
        weight.zero_()  # before it is begun
    fills.finish()
    assert_packed(made)


def test_helpers_at_once() -> None:
    fills = Fills()
    made = packed(fills, *SIZES * 3)
    fills.start()
    threads = [threading.Thread(target=fills.finish) for _ in range(5)]
    for thread in threads:
        thread.start()
    fills.pause()
    for thread in threads:
        thread.join()
    assert fills.is_done
    assert_packed(made)


def test_shared_panels_are_waited_for() -> None:
    assert ISA is not None
    weight = torch.randn(500, 500)
    first, second = Fills(), Fills()
    one = packed_weight(weight, packing(500, 500), ISA, OPTIONS, first, is_state=True)
    two = packed_weight(weight, packing(500, 500), ISA, OPTIONS, second, is_state=True)
    assert one is two and not second.is_done
    second.finish()
    assert first.is_done and second.is_done
    assert_packed([(two, weight, packing(500, 500))])


def test_a_kernel_that_cannot_be_built_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fills = Fills()
    monkeypatch.setattr(Fills, "add", lambda *_: False)
    made = packed(fills, *SIZES)
    assert fills.is_done
    assert_packed(made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_fills_by_itself() -> None:
    fills = Fills()
    made = packed(fills, *SIZES * 3)
    fills.start()  # whatever these threads have claimed stays with the parent
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)  # those of the library stay behind, too
            fills.finish()
            assert_packed(made)
            status = 0
        finally:
            os._exit(status)
    fills.finish()
    assert_packed(made)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
