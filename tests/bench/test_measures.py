"""The parts that measure: products counted, errors, packed products, paired ratios, the FMA loop."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smelt._torch.library import packed_products
from smelt._torch.seen import dispatch_mode
from smelt.bench import floors, measure
from smelt.bench.accuracy import compare, reference
from smelt.bench.harvest import harvest, total_flops
from smelt.bench.measure import Plan, Timing
from smelt.bench.models import MODELS, Model, flatten
from smelt.bench.systems import Ready
from smelt.codegen.llvm import fma_peak
from smelt.diag import SmeltError


def test_products_of_a_linear() -> None:
    (product,) = harvest(nn.Linear(768, 3072), (torch.randn(4, 8, 768),))
    assert (product.kind, product.left, product.right, product.bias) == ("linear", (32, 768), (768, 3072), True)
    assert product.flops == 2 * 32 * 768 * 3072


def test_products_of_convolutions() -> None:
    plain = nn.Conv2d(3, 8, 3, stride=2, padding=1)
    (product,) = harvest(plain, (torch.randn(2, 3, 16, 16),))
    assert product.flops == 2 * (2 * 8 * 8 * 8) * (3 * 3 * 3)
    depthwise = nn.Conv2d(8, 8, 3, groups=8, bias=False)
    (product,) = harvest(depthwise, (torch.randn(1, 8, 10, 10),))
    assert product.flops == 2 * (8 * 8 * 8) * 9
    assert product.groups == 8
    transposed = nn.ConvTranspose2d(4, 6, 3)
    (product,) = harvest(transposed, (torch.randn(1, 4, 5, 5),))
    assert product.flops == 2 * (4 * 25) * (6 * 9)


def test_products_of_attention_count_only_what_the_mask_keeps() -> None:
    q, k = torch.randn(2, 3, 10, 16), torch.randn(2, 3, 10, 16)
    (full,) = harvest(F.scaled_dot_product_attention, (q, k, k))
    assert full.flops == 2 * 2 * 3 * 100 * 32
    (causal,) = harvest(lambda *a: F.scaled_dot_product_attention(*a, is_causal=True), (q, k, k))
    assert causal.flops == 2 * 2 * 3 * 55 * 32


def test_products_of_a_loop_share_their_weights() -> None:
    target, args = next(m for m in MODELS if m.name == "lstm").build()
    products = harvest(target, args)
    assert len(products) == 64
    assert len({p.weight for p in products}) == 2
    ready = floors.gemm_library(products, torch.float32)
    assert ready.settings["calls"] == 64
    ready.call()


def test_every_kind_of_product_runs_as_a_library_call() -> None:
    class All(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv1d(4, 4, 3), nn.Conv2d(4, 8, 3, groups=2)
            self.up = nn.ConvTranspose2d(8, 4, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            z = self.up(self.two(y))
            return self.one(x) @ torch.rand(1, 6, 5) + F.scaled_dot_product_attention(z, z, z).sum()

    products = harvest(All(), (torch.rand(1, 4, 8), torch.rand(1, 4, 9, 9)))
    assert {p.kind for p in products} >= {"batched", "convolution", "attention"}
    assert total_flops(products) == sum(p.flops for p in products) > 0
    floors.gemm_library(products, torch.float32).call()


@pytest.mark.parametrize("available", [True, False])
def test_packed_products_equal_the_public_operators(available: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not available:
        monkeypatch.setattr(packed_products, "LINEAR_AVAILABLE", False)
        monkeypatch.setattr(packed_products, "CONVOLUTION_AVAILABLE", False)
    x, w, b = torch.randn(5, 64), torch.randn(32, 64), torch.randn(32)
    torch.testing.assert_close(packed_products.packed_linear(w, b, 5)(x), F.linear(x, w, b))
    image, kernel = torch.randn(1, 8, 9, 9), torch.randn(8, 2, 3, 3)
    got = packed_products.packed_convolution(
        kernel, None, stride=(2, 2), padding=(1, 1), dilation=(1, 1), groups=4, input_size=(1, 8, 9, 9)
    )(image)
    torch.testing.assert_close(got, F.conv2d(image, kernel, None, 2, 1, 1, 4))


def test_without_a_dispatch_mode_products_are_an_error_and_blocks_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_mode, "AVAILABLE", False)
    with pytest.raises(SmeltError, match="cannot be counted"):
        harvest(torch.sin, (torch.rand(3),))
    with dispatch_mode.intercepting(lambda f, a, k: None):
        assert torch.ones(2).sum() == 2


def test_errors_treat_equal_nan_and_inf_as_equal() -> None:
    a = torch.tensor([1.0, float("nan"), float("inf"), -0.0])
    exact = a.double()
    same = compare((a,), (a.clone(),), (exact,))
    assert (same.max_abs_err, same.rms_err, same.rms_ratio) == (0.0, 0.0, 1.0)
    off = compare((a + torch.tensor([0.5, 0, 0, 0]),), (a,), (exact,))
    assert off.max_abs_err == 0.5
    assert off.rms_err == pytest.approx(0.25)
    assert off.rms_ratio is None
    lost = compare((torch.zeros(4),), (a,), (exact,))
    assert lost.max_abs_err != lost.max_abs_err
    with pytest.raises(ValueError, match="shapes"):
        compare((a[:2],), (a,), (exact,))


def test_the_reference_is_float64_where_the_model_says_float32() -> None:
    class Casts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.to(torch.float32)
            return (y * y.float().softmax(0, dtype=torch.float32)).mean(dtype=torch.float32) / 3

    x = torch.linspace(-3, 3, 50)
    model = Model("casts", "", lambda: (Casts(), (x,)))
    (got,) = reference(model, torch.float32)
    wide = x.double()
    assert got.dtype is torch.float64
    assert got.item() == pytest.approx((wide * wide.softmax(0)).mean().item() / 3, rel=1e-15)


def test_building_a_model_is_repeatable_and_leaves_the_generator_alone() -> None:
    model = next(m for m in MODELS if m.name == "attention")
    state = torch.random.get_rng_state()
    first, args = model.build()
    second, again = model.build()
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.testing.assert_close(first(*args), second(*again), rtol=0, atol=0)
    half, half_args = model.build(torch.bfloat16)
    assert flatten(half(*half_args))[0].dtype is torch.bfloat16


def test_ratios_are_paired_by_round() -> None:
    eager = Timing({0: 10.0, 1: 20.0, 2: 40.0})
    ours = Timing({0: 5.0, 2: 20.0})
    assert ours.ratio_to(eager) == 2.0
    assert Timing().ratio_to(eager) is None
    assert Timing().median_ms is None


def test_interleaving_rotates_and_stops_a_system_at_its_budget() -> None:
    order: list[str] = []

    def recorder(name: str) -> Ready:
        return Ready(order.append, (name,))

    measure.interleave({n: recorder(n) for n in "abc"}, Plan(repeats=2, blocks=False), inner=1)
    assert "".join(order) == "aabbcc" + "bbccaa"
    timing = measure.interleave({"a": recorder("a")}, Plan(repeats=50, budget_s=0.0, blocks=False), inner=1)["a"]
    assert len(timing.samples_ms) == 3


def test_inner_calls_grow_as_calls_shrink() -> None:
    assert measure.inner_calls(5.0, 1.0) == 1
    assert measure.inner_calls(0.01, 1.0) == 100
    assert measure.inner_calls(0.0, 1.0) == 20_000


def test_a_deadline_outside_the_main_thread_does_nothing() -> None:
    seen: list[Any] = []

    def work() -> None:
        with measure.deadline(0.0):
            seen.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [1]


def test_the_fma_loop_does_its_work_with_distinct_chains() -> None:
    loop = fma_peak.compile_fma_loop()
    lanes, chains = loop.shape.lanes, loop.shape.chains
    text = fma_peak.fma_loop_ir(loop.shape)
    assert text.count("call <") == chains
    rng = np.random.default_rng(0)
    factors = rng.uniform(0.1, 0.9, 2 * lanes).astype(np.float32)
    state = rng.uniform(-1, 1, chains * lanes).astype(np.float32)
    want = state.astype(np.float64).reshape(chains, lanes)
    loop.run(factors.ctypes.data, state.ctypes.data, 5)
    for _ in range(5):
        want = want * factors[:lanes].astype(np.float64) + factors[lanes:].astype(np.float64)
    np.testing.assert_allclose(state.reshape(chains, lanes), want, rtol=1e-5)
    peak = fma_peak.measure_fma_peak(2, trials=2, trial_ms=1.0, loop=loop)
    assert peak.gflops > 0
    assert (peak.threads, peak.lanes) == (2, lanes)
