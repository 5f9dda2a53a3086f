"""Memory that kernels fill while Python goes on: all of it, once, whoever helps, stops or forks meanwhile."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence

import pytest
import torch

from smelt.codegen.contract.packing import Packing
from smelt.codegen.contract.tiling import tiling_for
from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.lower.products import weight_packing
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


def test_what_is_added_while_others_finish_is_filled_too() -> None:
    """A plan that shares panels may finish the fills of one that is still being made."""
    fills = Fills()
    made = packed(fills, *SIZES)
    fills.finish()
    made += packed(fills, *SIZES)
    assert not fills.is_done
    fills.start()
    made += packed(fills, *SIZES)
    fills.finish()
    assert fills.is_done
    assert_packed(made)


def test_few_copies_wait_to_be_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_packing, "_WAITING_NBYTES", 3 * 4 * 200 * 300)
    fills, form = Fills(), packing(200, 300)
    assert ISA is not None
    alive: list[weakref.ref[torch.Tensor]] = []
    made = []
    for i in range(8):
        weight = torch.full((200, 300), float(i))
        alive.append(weakref.ref(weight))
        made.append((pack(weight, form, ISA, OPTIONS, fills, is_copy=True), i))
        del weight
        assert sum(one() is not None for one in alive) <= 2
    fills.finish()
    assert not any(one() is not None for one in alive)
    assert all(torch.equal(unpacked(panels, form), torch.full((200, 300), float(i))) for panels, i in made)


@pytest.mark.parametrize("nbytes", [1, 1 << 20, 1 << 40])
def test_parts_are_packed_when_they_are_told(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_packing, "_WAITING_NBYTES", nbytes)
    fills = Fills()
    made, told = packed(fills, *SIZES), []

    def behind(weights: Sequence[torch.Tensor]) -> None:
        told.extend(map(id, weights))
        assert_packed([one for one in made if id(one[1]) in told])

    fills.finish_by_parts(behind)
    assert fills.is_done and told == [id(weight) for _, weight, _ in made]


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
    monkeypatch.setattr(Fills, "add", lambda *_, **__: False)
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
