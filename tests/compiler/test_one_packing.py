"""One packing of a weight serves all sizes that a program is called with, for as long as the weight stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.lower.products import packed_weight
from smelt.codegen.lower.products.packs import packs

pytestmark = pytest.mark.skipif(host_isa() is None, reason="own kernels are not built here")


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Size]]:
    """The shapes of the weights that were packed."""
    found: list[torch.Size] = []
    pack = packed_weight.pack

    def noted(weight: torch.Tensor, *rest: object, **more: Any) -> torch.Tensor:
        found.append(weight.shape)
        return pack(weight, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(packed_weight, "pack", noted)
    with torch.no_grad():
        yield found


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 64)).eval()


def x(rows: int) -> torch.Tensor:
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows))


def assert_agrees(compiled: smelt.compile, original: torch.nn.Module, rows: int) -> None:  # type: ignore[valid-type]
    for _ in range(2):
        torch.testing.assert_close(compiled(x(rows)), original(x(rows)), rtol=1e-5, atol=1e-5)  # type: ignore[operator]


def test_other_sizes_pack_nothing(packed: list[torch.Size]) -> None:
    original = model()
    compiled = smelt.compile(original)
    for rows in (40, 72, 33):
        assert_agrees(compiled, original, rows)
    assert len(packed) == 2


def test_a_written_weight_is_packed_anew(packed: list[torch.Size]) -> None:
    original = model()
    compiled = smelt.compile(original)
    assert_agrees(compiled, original, 40)
    original[0].weight.mul_(2)
    assert_agrees(compiled, original, 72)
    assert len(packed) == 3, "the other weight stayed"
    assert_agrees(compiled, original, 40)


def test_another_weight_in_its_place_is_packed(packed: list[torch.Size]) -> None:
    original = model()
    compiled = smelt.compile(original)
    assert_agrees(compiled, original, 40)
    original[0].weight.data = torch.randn(96, 64)
    assert_agrees(compiled, original, 72)
    assert len(packed) == 3


def test_refresh_packs_what_no_guard_notices(packed: list[torch.Size]) -> None:
    original = model()
    compiled = smelt.compile(original)
    assert_agrees(compiled, original, 40)
    original[0].weight.data[1, 1] += 100.0
    compiled.refresh()
    assert_agrees(compiled, original, 40)
    assert_agrees(compiled, original, 72)


@pytest.mark.usefixtures("young_heap")
def test_a_copy_goes_with_its_plans(packed: list[torch.Size]) -> None:
    original = model()
    compiled = smelt.compile(original)
    assert_agrees(compiled, original, 40)
    pointers = {p.data_ptr() for p in original.parameters()}

    def known() -> set[int]:
        return {key[0] for key in packs()._known} & pointers

    assert len(known()) == 2
    del compiled
    gc.collect()
    assert not known()
