"""Operators whose kernels without data give something else than the CPU: no result, an empty one, another layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.compiler.object.compiled import dispatcher_of

SIZES = [(3, 7), (4, 9), (5, 9), (6, 4), (2, 12), (1, 5), (7, 3)]
WEIGHT, BIAS, MEAN, VARIANCE = torch.randn(8), torch.randn(8), torch.zeros(8), torch.ones(8)
KERNEL, TABLE = torch.randn(4, 8, 3), torch.randn(10, 8)


def agree(expected: Any, found: Any) -> None:
    wanted, given = (torch.utils._pytree.tree_flatten(of) for of in (expected, found))
    assert wanted[1] == given[1]
    for want, got in zip(wanted[0], given[0], strict=True):
        assert (want is None) == (got is None)
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)
            assert got.stride() == want.stride() or got.numel() == 0


def check(program: Callable[..., Any], call: Callable[[int, int], tuple[tuple[Any, ...], dict[str, Any]]]) -> int:
    """The builds that seven sizes take; no call may be eager's."""
    compiled = smelt.compile(program)
    with torch.no_grad():
        for batch, length in SIZES:
            args, kwargs = call(batch, length)
            torch.manual_seed(1)
            expected = program(*args, **kwargs)
            torch.manual_seed(1)
            agree(expected, compiled(*args, **kwargs))
    stats = dispatcher_of(compiled).stats()
    assert not stats.fallbacks
    return stats.builds


def tokens(batch: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(batch, length, 8),), {}


def padded(batch: int, length: int) -> torch.Tensor:
    lengths = torch.randint(1, length + 1, (batch, 1))
    lengths[0] = length
    return torch.arange(length).expand(batch, length) >= lengths


def causal(length: int) -> torch.Tensor:
    return nn.Transformer.generate_square_subsequent_mask(length)


def itself(batch: int, length: int, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = torch.randn(batch, length, 8)
    return (x, x, x), {"need_weights": False, **kwargs}


def encoder(**kwargs: Any) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, **kwargs).eval()


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    "more",
    [
        lambda b, s: {},
        lambda b, s: {"need_weights": True},
        lambda b, s: {"key_padding_mask": padded(b, s)},
        lambda b, s: {"attn_mask": causal(s), "is_causal": True},
        lambda b, s: {"attn_mask": causal(s).isinf(), "key_padding_mask": padded(b, s)},
    ],
    ids=["plain", "weights", "padding", "causal", "both"],
)
def test_attention_without_weights_has_free_sizes(more: Any) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    assert check(attention, lambda b, s: itself(b, s, **more(b, s))) <= 3


@pytest.mark.spread(4)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("masks", ["none", "padding", "causal", "padded as it is"])
def test_an_encoder_over_many_sizes_is_three_builds_at_most(masks: str) -> None:
    model = encoder(enable_nested_tensor=masks != "padded as it is")

    def call(batch: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        more: dict[str, Any] = {"mask": causal(length), "is_causal": True} if masks == "causal" else {}
        if masks.startswith("padd"):
            more = {"src_key_padding_mask": padded(batch, length)}
        return (torch.randn(batch, length, 8),), more

    assert check(model, call) <= 3


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.native_batch_norm(x.mT, WEIGHT, BIAS, MEAN, VARIANCE, False, 0.1, 1e-5),
        lambda x: F.batch_norm(x.mT, MEAN, VARIANCE, WEIGHT, BIAS),
        lambda x: F.batch_norm(x.mT, MEAN.clone(), VARIANCE.clone(), WEIGHT, BIAS, True),
        lambda x: torch.ops.aten._native_batch_norm_legit_no_training(x.mT, WEIGHT, BIAS, MEAN, VARIANCE, 0.1, 1e-5),
        lambda x: torch.embedding_bag(
            TABLE, torch.arange(x.shape[0] * x.shape[1]) % 10, torch.arange(x.shape[0] + 1) * x.shape[1],
            include_last_offset=True,
        ),
        lambda x: torch.ops.aten.native_layer_norm_backward(
            x, x, (8,), x.mean(-1, keepdim=True), x.mean(-1, keepdim=True), WEIGHT, BIAS, [True, False, True]
        ),
        lambda x: torch.ops.aten.convolution_backward(
            torch.ones(x.shape[0], 4, x.shape[1] - 2), x.mT.contiguous(), KERNEL, [4], [1], [0], [1], False, [0], 1,
            [True, True, False],
        ),
        lambda x: torch._unique2(x, True, False, True),
        lambda x: torch._linalg_svd(x, False, False),
        lambda x: torch._scaled_dot_product_flash_attention_for_cpu(x[:, None], x[:, None], x[:, None]),
        lambda x: torch.histogram(x.flatten(), 5),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255),
    ],
    ids=[
        "native_batch_norm", "batch_norm", "batch_norm trains", "no_training", "embedding_bag", "layer_norm_backward",
        "convolution_backward", "unique2", "svd", "flash", "histogram", "fake_quantize",
    ],
)  # fmt: skip
def test_what_the_cpu_gives_otherwise_has_free_sizes(program: Any) -> None:
    assert check(program, tokens) <= 3


def test_a_result_that_is_there_for_some_sizes_only_keeps_them_fixed() -> None:
    def weight_gradient(x: torch.Tensor) -> Any:
        ones = torch.ones(x.shape[0], 4, x.shape[1] - 2)
        return torch.ops.aten.convolution_backward(
            ones, x.mT.contiguous(), KERNEL, [4], [1], [0], [1], False, [0], 1, [False, False, True]
        )

    check(weight_gradient, tokens)


def test_no_weights_are_none_in_a_branch_and_in_a_trace() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def program(x: torch.Tensor) -> Any:
        if x.sum() > 0:
            x = x * 2
        return attention(x, x, x, need_weights=False)

    with torch.no_grad():
        sized = smelt.trace(
            lambda x: attention(x, x, x, need_weights=False), torch.randn(3, 5, 8), dynamic_shapes=({0: "B", 1: "S"},)
        )
        branched = smelt.trace(program, torch.ones(3, 5, 8))
        for traced, x in ((sized, torch.randn(4, 6, 8)), (branched, -torch.ones(3, 5, 8))):
            agree(program(x) if traced is branched else attention(x, x, x, need_weights=False), traced(x))
        assert "if" in [node.op for node in branched.graph.walk()]
