"""Attention and its gradients as kernels for a GPU: interpreted against eager, compiled for three architectures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt
from smelt.codegen.lower.gpu import GpuProgram, gpu_program
from smelt.codegen.triton.compile import ARCHITECTURES, compile_cuda
from tests.triton.fake_cuda import fake_gpu
from tests.triton.test_catalogue import interpreted
from tests.triton.test_products import drawn

_SHARED = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that a block may have."""


def attention(function: Callable[..., Any], *args: Tensor) -> GpuProgram:
    program = gpu_program(smelt.trace(function, args, check=False).graph_for(*args))
    assert not program.refused, program.refused
    assert [one.kernel.form for one in program.kernels].count("attention") >= 1
    return program


def same(function: Callable[..., Any], *args: Tensor, tolerance: float = 2e-5) -> GpuProgram:
    program = attention(function, *args)
    want = function(*args)
    for ours, eager in zip(interpreted(program, args), want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(ours, eager, rtol=tolerance, atol=tolerance, equal_nan=True)
    return program


def qkv(heads: int = 2, kv_heads: int = 2, queries: int = 37, keys: int = 50, width: int = 24) -> list[Tensor]:
    sizes = [(2, heads, queries, width), (2, kv_heads, keys, width), (2, kv_heads, keys, width)]
    return [drawn(*s, seed=k) for k, s in enumerate(sizes)]


@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
def test_scores_are_never_stored(is_causal: bool) -> None:
    program = same(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=0.3), *qkv())
    assert len(program.kernels) == 1 and program.arena_nbytes == 0


@pytest.mark.parametrize("sizes", [(37, 50), (1, 50), (2, 1, 1, 50), (2, 2, 37, 1)], ids=str)
@pytest.mark.parametrize("is_bool", [False, True], ids=["added", "bool"])
def test_masks_of_any_broadcast(sizes: tuple[int, ...], is_bool: bool) -> None:
    mask = drawn(*sizes, seed=9)
    same(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *qkv(), mask > -0.5 if is_bool else mask)


def test_a_query_that_sees_no_key_gives_zero() -> None:
    mask = torch.ones(37, 50, dtype=torch.bool)
    mask[3] = False
    program = same(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *qkv(), mask)
    assert len(program.kernels) == 1


def test_heads_of_keys_are_shared() -> None:
    same(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), *qkv(heads=6))


@pytest.mark.parametrize("sizes", [(1, 50, 24), (37, 1, 24), (5, 7, 1)], ids=str)
def test_one_query_one_key_one_column(sizes: tuple[int, int, int]) -> None:
    queries, keys, width = sizes
    args = (drawn(2, 2, queries, width, seed=7), *qkv(queries=queries, keys=keys, width=width))
    program = same(gradients, *args)
    # The interpreter broadcasts addresses that a GPU's compiler refuses.
    assert len(compile_cuda([one.kernel.source for one in program.kernels], 90)) == 3


def test_operands_are_parts_of_one_product() -> None:
    """Queries, keys and values are slices of one tensor, so their elements begin inside of it."""

    def f(x: Tensor) -> Tensor:
        q, k, v = (t.view(2, 33, 2, 16).transpose(1, 2) for t in x.chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    same(f, drawn(2, 33, 96))


@pytest.mark.parametrize(("dtype", "width"), [(torch.bfloat16, 64), (torch.float16, 40)], ids=str)
def test_half_floats(dtype: torch.dtype, width: int) -> None:
    same(F.scaled_dot_product_attention, *(t.to(dtype) for t in qkv(width=width)), tolerance=1e-2)


def test_values_that_are_not_finite() -> None:
    q, k, v = qkv()
    q[0, 0, 3, 0], v[1, 1, 4, 2] = float("nan"), float("inf")
    same(F.scaled_dot_product_attention, q, k, v)


# --- gradients


def gradients(*args: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Any:
    """Those of a weighted sum, by the kernels that keep logarithms."""
    g, q, k, v = args
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, sums = op(q, k, v, 0.0, is_causal, attn_mask=mask)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return (out, sums, *backward(g, q, k, v, out, sums, 0.0, is_causal, attn_mask=mask))


@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
def test_gradients(is_causal: bool) -> None:
    program = same(lambda *args: gradients(*args, is_causal=is_causal), drawn(2, 2, 37, 24, seed=7), *qkv())
    assert len(program.kernels) == 3


def test_gradients_under_a_mask_that_hides_all_of_a_row() -> None:
    mask = drawn(2, 1, 37, 50, seed=9)
    mask[:, :, 3] = float("-inf")
    args = (drawn(2, 2, 37, 24, seed=7), *qkv(), mask)
    same(lambda g, q, k, v, m: gradients(g, q, k, v, mask=m), *args)


def test_gradients_of_shared_heads_are_added() -> None:
    """As those of keys and values that are repeated for each head, added up."""
    q, k, v = qkv(heads=4)
    g = drawn(*q.shape, seed=7)
    program = attention(gradients, g, q, k, v)
    made = interpreted(program, [g, q, k, v])
    many = [t.repeat_interleave(2, 1) for t in (k, v)]
    want = gradients(g, q, *many)
    torch.testing.assert_close(made[2], want[2], rtol=2e-5, atol=2e-5)
    for ours, eager in zip(made[3:], want[3:], strict=True):
        torch.testing.assert_close(ours, eager.unflatten(1, (2, 2)).sum(2), rtol=2e-5, atol=2e-5)


# --- compiled


@pytest.mark.spread(8)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("width", [16, 64, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_compile_within_shared_memory(dtype: torch.dtype, width: int, arch: int) -> None:
    args = [drawn(1, 1, 256, width, dtype=dtype) for _ in range(4)]
    program = attention(lambda *args: gradients(*args, is_causal=True), *args)
    sources = [one.kernel.source for one in program.kernels]
    codes = compile_cuda(sources, arch)
    assert len(codes) == 3
    for code in codes.values():
        assert code.shared_nbytes <= _SHARED[arch], code.name


def test_attention_that_drops_weights_is_torchs() -> None:
    """Which numbers torch draws for weights there is not known: its own operator stands between launches."""
    with fake_gpu() as gpu:

        def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q * 2.0, k, v, dropout_p=0.25) + 1.0

        q, k, v = (drawn(1, 2, 12, 16, seed=n).cuda() for n in range(3))
        program = smelt.compile(function, fullgraph=True)
        program(q, k, v)
        torch.manual_seed(3)
        want = function(q, k, v)
        torch.manual_seed(3)
        before = gpu.calls.count("launch")
        torch.testing.assert_close(program(q, k, v).cpu(), want.cpu(), rtol=1e-5, atol=1e-5)
        assert gpu.calls.count("launch") == before + 2


def test_attention_that_caps_its_scores_is_kernels() -> None:
    with fake_gpu() as gpu:

        def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            scores = torch.tanh(q @ k.transpose(-1, -2) / 30.0) * 30.0
            return torch.softmax(scores, -1) @ v

        q, k, v = (drawn(1, 2, 12, 16, seed=n).cuda() for n in range(3))
        program = smelt.compile(function, fullgraph=True)
        program(q, k, v)
        before = gpu.calls.count("launch")
        torch.testing.assert_close(program(q, k, v).cpu(), function(q, k, v).cpu(), rtol=1e-5, atol=1e-5)
        assert gpu.calls.count("launch") == before + 1
