"""Nests over rows with gaps that are reduced, then written: two kernels, the answer of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smelt
from smelt.codegen.fusion.rules import far_rows
from smelt.codegen.fusion.rules.far_rows import far_stages
from smelt.codegen.kernels.evaluate import evaluate_nest
from smelt.codegen.kernels.nest import Buffer, Index, Let, Load, Nest, Op, Reduce, Ref, Store
from smelt.ir import DType

F32 = DType.F32


def centred(rows: int, elements: int, *, writes: int = 1) -> Nest:
    """Columns less their sums; the sums themselves are written to a buffer."""
    x = Load(0, Index(0, (1, rows)), F32)
    total = Ref("s", F32)
    return Nest(
        (Buffer("x", F32), Buffer("y", F32), Buffer("s", F32)), (rows,), (elements,),
        (
            Reduce("s", "sum", x, F32),
            Let("half", Op("mul", (total, Load(2, Index(0, (1, 0)), F32)), F32)),
            Store(2, Index(0, (1, 0)), total),
            Store(writes, Index(0, (1, rows)), Op("sub", (x, Ref("half", F32)), F32)),
        ),
    )  # fmt: skip


def test_two_nests_compute_what_one_does() -> None:
    for writes in (1, 0):
        nest = centred(32, 20_000, writes=writes)
        stages = far_stages(nest)
        assert [bool(stage.nest.inner) for stage in stages] == [True, False]
        given = [torch.randn(20_000, 32), torch.zeros(20_000, 32), torch.randn(32)]
        whole, apart = ([t.clone().flatten() for t in given] for _ in range(2))
        assert not evaluate_nest(nest, whole)
        spare = [torch.zeros(size) for size, _ in stages[0].partials]
        for stage in stages:
            assert not evaluate_nest(stage.nest, [apart[n] if n >= 0 else spare[-1 - n] for n in stage.buffers])
        for a, b in zip(apart, whole, strict=True):
            assert torch.equal(a, b)


def test_rows_that_stay_in_the_cache_are_left_alone(monkeypatch: Any) -> None:
    assert not far_stages(centred(32, 1000))
    monkeypatch.setattr(far_rows, "data_cache_nbytes", lambda: (1 << 10, 1 << 12))
    assert far_stages(centred(32, 1000))
    # Its elements lie side by side; what it writes along the row is read, too, in the second nest.
    assert not far_stages(Nest(centred(1, 1000).buffers, (1,), (1000,), centred(1, 1000).body))


@pytest.mark.parametrize(("rows", "are_apart"), [(1024, True), (1040, False)], ids=["4 KiB", "4160 B"])
def test_rows_a_power_of_two_apart_stay_in_no_cache(monkeypatch: Any, rows: int, are_apart: bool) -> None:
    """256 lines 4 KiB apart fall on 32 of 2,048 sets of a cache of 1 MiB in 8 ways, and fill them."""
    monkeypatch.setattr(far_rows, "data_cache_nbytes", lambda: (32 << 10, 1 << 20))
    assert bool(far_stages(centred(rows, 256))) is are_apart


def test_what_is_written_in_between_is_read_as_it_was(monkeypatch: Any) -> None:
    """A weight of each channel that changes in place by the sums of the rows it scales."""
    monkeypatch.setattr(far_rows, "data_cache_nbytes", lambda: (1 << 10, 1 << 12))

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        mean = x.mean((0, 2, 3))
        y = (x - mean.view(-1, 1, 1)) * w.view(-1, 1, 1)
        w.add_(mean)
        return y

    compiled = smelt.compile(f)
    x = torch.randn(2, 32, 9, 9).to(memory_format=torch.channels_last)
    w, other = torch.ones(32), torch.ones(32)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, w), f(x, other))
        torch.testing.assert_close(w, other)
