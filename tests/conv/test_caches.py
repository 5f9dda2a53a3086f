"""Tiles and choices that follow from the sizes of the caches: on every machine the same numbers, whatever they are."""

from __future__ import annotations

import pytest
import torch

from smelt.codegen.conv import tiles
from smelt.codegen.conv.epilogue import Epilogue
from smelt.codegen.conv.kernels import plan_kernel
from smelt.codegen.conv.shape import ConvShape, Window
from smelt.codegen.llvm import isa as instruction_sets
from smelt.codegen.llvm.isa import AVX512
from smelt.runtime.machine.cpu import data_cache_nbytes
from tests.conv.machine import Case, isas, run

SMALL, LARGE = (32 << 10, 1 << 20), (48 << 10, 2 << 20)


def same(cin: int, hw: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> ConvShape:
    """A convolution whose window has a border of half its size."""
    half = kernel // 2
    window = Window((stride, stride), (1, 1), (half, half), (half, half))
    return ConvShape(1, cin, hw, hw, cout, kernel, kernel, window, groups)


def _have(caches: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine have caches of these sizes."""
    for module in (tiles, instruction_sets):
        monkeypatch.setattr(module, "data_cache_nbytes", lambda: caches)


def kernel_of(shape: ConvShape) -> str:
    strides = (shape.h * shape.w * shape.cin, 1, shape.w * shape.cin, shape.cin)
    plan = plan_kernel(AVX512, shape, strides, Epilogue())
    assert plan is not None
    return plan.kind


def test_caches_of_this_machine_are_plausible() -> None:
    first, second = data_cache_nbytes()
    assert 8 << 10 <= first <= 1 << 20 and first <= second <= 64 << 20


@pytest.mark.parametrize("caches", [SMALL, LARGE], ids=["small", "large"])
def test_weights_read_for_few_tiles(caches: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    _have(caches, monkeypatch)
    assert kernel_of(same(512, 7, 512, 3)) == ("winograd" if caches == SMALL else "window")
    assert kernel_of(same(256, 14, 256, 3)) == "winograd"
    assert kernel_of(same(64, 7, 64, 3)) == "winograd"


@pytest.mark.spread(6)
@pytest.mark.parametrize("caches", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("name", isas())
@pytest.mark.parametrize(
    "shape",
    [
        same(300, 7, 64, 1), same(130, 9, 80, 1, 2), same(96, 7, 128, 3, 2), same(40, 6, 100, 5), same(64, 18, 192, 3),
        same(256, 5, 96, 3, groups=2),
    ],
    ids=["deep 1x1", "strided 1x1", "strided 3x3", "5x5", "3x3", "groups"],
)  # fmt: skip
def test_results_do_not_depend_on_tiles(
    shape: ConvShape, name: str, caches: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bits are those of this machine's own tiles, however the items are cut, and right."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape.n, shape.h, shape.w, shape.cin, generator=generator).permute(0, 3, 1, 2)
    weight = torch.randn(shape.cout, shape.group_in, shape.kh, shape.kw, generator=generator)
    case = Case(shape, x, weight, torch.randn(shape.cout, generator=generator))
    isa = isas()[name]
    own, _ = run(case, isa)
    _have(caches, monkeypatch)
    found, _ = run(case, isa, chunk=1)
    assert bool(((found - case.reference()).abs() <= case.bound()).all())
    assert torch.equal(found, own)
