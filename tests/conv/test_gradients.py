"""Convolutions in training: weights packed in the call, gradients of images and weights by own kernels."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from smelt.codegen.conv.repack import Packed, repacking
from smelt.codegen.conv.shape import ConvShape, Window
from smelt.diag import Options
from smelt.runtime import filters
from tests.codegen import harness
from tests.codegen.harness import rms_ratio
from tests.conv.machine import isas, run_text

Tensor = torch.Tensor
PRODUCTS = Options(deterministic=True, own_kernels=False)
ISAS = isas()


def normal(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def turned(weight: Tensor, groups: int) -> Tensor:
    """The weight of the convolution that gives an image's gradient."""
    cout, inner, kh, kw = weight.shape
    apart = weight.view(groups, cout // groups, inner, kh, kw)
    return apart.transpose(1, 2).flip(3, 4).reshape(groups * inner, cout // groups, kh, kw)


WEIGHTS = ((20, 7, 3, 3, 1), (33, 16, 5, 5, 1), (8, 4, 2, 3, 2), (64, 3, 7, 7, 1), (40, 18, 1, 1, 1))
"""Channels of the result, of a group of the image, the window, groups."""


@pytest.mark.parametrize("name", list(ISAS))
def test_packing_in_a_call_is_that_of_torch(name: str) -> None:
    isa = ISAS[name]
    for cout, inner, kh, kw, groups in WEIGHTS:
        weight = normal(cout, inner, kh, kw)
        for is_turned in (False, True):
            ours = turned(weight, groups) if is_turned else weight
            shape = ConvShape(1, ours.shape[1] * groups, 9, 9, ours.shape[0], kh, kw, Window(), groups)
            for vectors in (1, 3):
                packed = Packed("dense", isa.f32_lanes, vectors, is_turned)
                wanted, there = (filters.pack_dense(t, groups, packed.columns) for t in (ours, torch.ones_like(ours)))
                assert torch.equal(_packed(name, shape, packed, weight) * there.flatten(), wanted.flatten())
    for is_turned in (False, True):
        weight = normal(7, 1, 3, 3)
        shape, packed = ConvShape(1, 7, 9, 9, 7, 3, 3, Window(), 7), Packed("depthwise", isa.f32_lanes, 1, is_turned)
        ours = weight.flip(2, 3) if is_turned else weight
        wanted, there = (filters.pack_depthwise(t, isa.f32_lanes) for t in (ours, torch.ones_like(ours)))
        assert torch.equal(_packed(name, shape, packed, weight) * there.flatten(), wanted.flatten())
        weight = normal(64, 32, 3, 3)
        ours = turned(weight, 1) if is_turned else weight
        shape = ConvShape(1, ours.shape[1], 9, 9, ours.shape[0], 3, 3, Window())
        packed = Packed("winograd", isa.f32_lanes, 2, is_turned)
        wanted = filters.pack_winograd(ours, packed.columns).flatten()
        torch.testing.assert_close(_packed(name, shape, packed, weight), wanted, rtol=1e-6, atol=1e-6)


def _packed(name: str, shape: ConvShape, packed: Packed, weight: Tensor) -> Tensor:
    made = repacking(ISAS[name], shape, packed)
    memory = torch.full((made.nelements + 128,), torch.nan)
    run_text(made.text, ISAS[name], (weight, memory[64:-64]), made.words, made.items)
    assert bool(memory[:64].isnan().all()) and bool(memory[-64:].isnan().all())
    return memory[64:-64]


@dataclass(frozen=True)
class Form:
    """A convolution by what its operator takes; kernels: how many of forward and the two gradients have own ones."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: int = 1
    padding: int | tuple[int, ...] = 0
    dilation: int = 1
    groups: int = 1
    bias: bool = False
    channels_last: bool = False
    kernels: int = 3

    @property
    def axes(self) -> int:
        return len(self.x) - 2

    @property
    def how(self) -> tuple[list[int], list[int], list[int]]:
        padding = self.padding if isinstance(self.padding, tuple) else (self.padding,) * self.axes
        return [self.stride] * self.axes, list(padding), [self.dilation] * self.axes

    def tensors(self, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        x, w = normal(*self.x, seed=seed), normal(*self.weight, seed=seed + 1) / 16
        if self.channels_last:
            x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
        out = torch.ops.aten.convolution(x, w, None, *self.how, False, [0] * self.axes, self.groups)
        return x, w, torch.empty_like(out).copy_(normal(*out.shape, seed=seed + 2) / 16)

    def eager(self, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, w, g = tensors
        how = (*self.how, False, [0] * self.axes, self.groups)
        bias = torch.ones(w.shape[0], dtype=w.dtype) if self.bias else None
        found = torch.ops.aten.convolution(x, w, bias, *how)
        dx, dw, _ = torch.ops.aten.convolution_backward(g, x, w, None, *how, [True, True, False])
        return found, dx, dw

    def text(self, *tensors: Tensor) -> str:
        x, w, g = tensors

        def kind(t: Tensor) -> str:
            sizes = ", ".join(map(str, t.shape))
            return f"f32[{sizes}]" + ("" if t.is_contiguous() else "{" + ",".join(map(str, t.stride())) + "}")

        stride, padding, dilation = self.how
        how = f"{stride}, {padding}, {dilation}, False, {[0] * self.axes}, {self.groups}"
        found, dx, dw = map(kind, self.eager(x, w, g))
        bias = f"  %b: f32[{w.shape[0]}] = aten.ones.default([{w.shape[0]}])\n" if self.bias else ""
        return f"""\
graph f(%x: {kind(x)}, %w: {kind(w)}, %g: {kind(g)}) -> {found}, {dx}, {dw} {{
{bias}  %0: {found} = aten.convolution.default(%x, %w, {"%b" if self.bias else "None"}, {how})
  %1: {dx}, %2: none, %3: none = aten.convolution_backward.default(%g, %x, %w, None, {how}, [True, False, False])
  %4: none, %5: {dw}, %6: none = aten.convolution_backward.default(%g, %x, %w, None, {how}, [False, True, False])
  return %0, %1, %5
}}"""


FORMS = {
    "3x3": Form((2, 20, 9, 7), (24, 20, 3, 3), padding=1, bias=True),
    "3x3 with fewer products": Form((2, 64, 12, 12), (64, 64, 3, 3), padding=1),
    "3x3 of strides 2": Form((2, 32, 12, 11), (40, 32, 3, 3), 2, 1, bias=True),
    "3x3 of strides 3, pixels left over": Form((1, 16, 14, 13), (16, 16, 3, 3), 3),
    "2x2 of strides 3, gaps between windows": Form((1, 16, 14, 15), (16, 16, 2, 2), 3),
    "5x5": Form((1, 48, 8, 8), (33, 48, 5, 5), padding=2),
    "7x7 of strides 2": Form((1, 16, 21, 22), (16, 16, 7, 7), 2, 3),
    "dilated": Form((2, 24, 11, 10), (16, 24, 3, 3), 1, 2, 2),
    "dilated with strides": Form((2, 24, 11, 10), (16, 24, 3, 3), 2, 2, 2, kernels=2),
    "1x1": Form((2, 24, 6, 5), (40, 24, 1, 1), bias=True),
    "1x1 of strides 2": Form((2, 24, 7, 6), (40, 24, 1, 1), 2),
    "padded more than the window": Form((1, 16, 5, 6), (16, 16, 2, 2), 1, 2, kernels=2),
    "groups": Form((2, 64, 7, 7), (96, 32, 3, 3), 1, 1, groups=2),
    "groups of few channels": Form((2, 12, 7, 7), (12, 4, 3, 3), 1, 1, groups=3, kernels=0),
    "depthwise": Form((2, 20, 9, 9), (20, 1, 3, 3), 1, 1, groups=20, kernels=2),
    "few channels": Form((2, 3, 16, 15), (24, 3, 3, 3), 1, 1, kernels=2),
    "lines": Form((2, 24, 40), (32, 24, 5), 1, 2, bias=True),
    "lines of strides 2": Form((2, 24, 41), (32, 24, 4), 2, (1,)),
    "channels last": Form((2, 20, 9, 7), (24, 20, 3, 3), padding=1, channels_last=True),
    "few pixels": Form((1, 32, 2, 2), (32, 32, 3, 3), 1, 1, kernels=1),
}


@pytest.mark.parametrize("name", FORMS)
def test_gradients_of_a_convolution(name: str) -> None:
    form = FORMS[name]
    given = form.tensors()
    plan = harness.check(form.text(*given), list(given), options=PRODUCTS, exact=False)
    assert plan.report.counts.get("kernel", 0) == form.kernels, plan.report.counts
    reference, eager = (form.eager(*(t.to(dtype) for t in given)) for dtype in (torch.float64, torch.float32))
    for executable in harness.executables(plan.plan):
        for found, ours, exact in zip(harness.call(plan, executable, given, {}), eager, reference, strict=True):
            assert rms_ratio(found, ours, exact) <= 1.5


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["3x3", "3x3 with fewer products", "3x3 of strides 2", "depthwise", "few channels"])
def test_numbers_that_are_not_finite_spread_as_in_eager(name: str) -> None:
    form = FORMS[name]
    for which in range(3):
        given = form.tensors(seed=which)
        for place, value in enumerate((torch.nan, torch.inf, -torch.inf)):
            given[which].view(-1)[place * given[which].numel() // 3] = value
            harness.check(form.text(*given), list(given), options=PRODUCTS, exact=False)


@pytest.mark.parametrize("isa", ["avx2", "baseline"])
def test_other_instruction_sets(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_ISA", isa)
    for name in ("3x3", "3x3 of strides 2", "groups", "lines", "1x1"):
        given = FORMS[name].tensors()
        harness.check(FORMS[name].text(*given), list(given), options=PRODUCTS, exact=False)
