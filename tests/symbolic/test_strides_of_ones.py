"""Tensors with a size of 1 that has an odd stride: how often a program is built for them, and that it is the program.

`ids[:, -1:]` of one row has another stride with each length. It says nothing of where elements lie, but views and
copies carry it on, and Python may ask for it: then each is a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.bench.decode import cache_name

VOCABULARY, WIDTH = 19, 8
LENGTHS = (5, 6, 9, 11, 9, -9, 7, 1)
"""Of what the last element is taken; of those below 0, the other stride is the odd one."""


class Decoder(nn.Module):
    """One layer of attention whose caller holds the cache."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, ids: Any, cache: Any) -> Any:
        x = self.words(ids.view(-1, ids.shape[-1]))
        q, k, v = self.qkv(x).view(ids.shape[0], ids.shape[1], 6, WIDTH // 2).transpose(1, 2).chunk(3, 1)
        k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=ids.shape[1] > 1)
        return self.head(x.transpose(1, 2).reshape(ids.shape[0], -1, WIDTH)), (k, v)


def test_decoding_with_the_last_token_of_all() -> None:
    module = Decoder().eval()
    compiled = smelt.compile(module)
    with torch.no_grad():
        ids = torch.randint(0, VOCABULARY, (1, 7))
        empty = torch.zeros(1, 2, 0, WIDTH // 2)
        _, cache = module(ids, (empty, empty))
        other = cache
        for _ in range(30):
            assert ids[:, -1:].stride() == (ids.shape[1], 1)
            found, cache = compiled(ids[:, -1:], cache)
            wanted, other = module(ids[:, -1:], other)
            for a, b in zip((found, *cache), (wanted, *other), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
                assert a.stride() == b.stride()
            ids = torch.cat([ids, wanted[:, -1].argmax(-1, keepdim=True)], 1)
    assert compiled.stats().builds <= 3
    assert compiled.stats().fallbacks == {}


def test_decoding_with_a_model_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    module = transformers.GPT2LMHeadModel(config).eval()
    compiled = smelt.compile(module)
    one, two = transformers.DynamicCache(), transformers.DynamicCache()
    name = cache_name(module)
    with torch.no_grad():
        ids = torch.randint(0, VOCABULARY, (1, 7))
        compiled(ids, **{name: one})
        module(ids, **{name: two})
        for _ in range(30):
            found = compiled(ids[:, -1:], **{name: one}).logits
            wanted = module(ids[:, -1:], **{name: two}).logits
            pairs = [(found, wanted), *((a.keys, b.keys) for a, b in zip(one.layers, two.layers, strict=True))]
            for a, b in pairs:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
                assert a.stride() == b.stride()
            ids = torch.cat([ids, wanted[:, -1:].argmax(-1)], 1)
    assert compiled.stats().builds <= 4


WORDS = nn.Embedding(20, WIDTH).requires_grad_(False)
_STRIDE = torch.Tensor.stride


def grown(ids: Any, cache: Any) -> Any:
    return torch.cat([cache, WORDS(ids)], 1)


def viewed(ids: Any, cache: Any) -> Any:
    x = ids[:, None].squeeze(1).detach().clone().view(1, 1)
    return torch.cat([cache, WORDS(x)], 1), ids.shape[1], ids.numel()


def compared(ids: Any, cache: Any) -> Any:
    return ids != 3, torch.cat([cache, WORDS(ids)], 1)


def given_back(ids: Any, cache: Any) -> Any:
    return ids, cache * 2


def seen_otherwise(ids: Any, cache: Any) -> Any:
    return ids.transpose(0, 1), ids[..., None], cache * 2


def copied(ids: Any, cache: Any) -> Any:
    return ids.clone(), ids.float(), torch.zeros_like(ids), ids.contiguous(), cache * 2


def added(ids: Any, cache: Any) -> Any:
    return ids + 1, ids + cache[:, :, 0].long(), cache * 2


def written(ids: Any, cache: Any) -> Any:
    ids.add_(1)
    return torch.cat([cache, WORDS(ids)], 1)


def told(ids: Any, cache: Any) -> Any:
    return cache * 2, ids.stride(0)


def asked(ids: Any, cache: Any) -> Any:
    return cache * 2 if ids.stride() == (9, 1) else cache * 3


def asked_aside(ids: Any, cache: Any) -> Any:
    return cache * 2 if _STRIDE(ids)[0] == 9 else cache * 3


def asked_of_operators(ids: Any, cache: Any) -> Any:
    return cache * 2 if torch.ops.aten.stride.int(ids, 0) == 9 else cache * 3


def asked_in_order(ids: Any, cache: Any) -> Any:
    return cache * 2 if ids.dim_order() == (0, 1) else cache * 3


@pytest.mark.parametrize("program", [grown, viewed, compared], ids=lambda program: program.__name__)
def test_programs_that_do_not_tell_strides_are_built_twice(program: Callable[..., Any]) -> None:
    assert builds_like_eager(program) == 2


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    "program",
    [
        given_back, seen_otherwise, copied, added, written, told, asked, asked_aside, asked_of_operators,
        asked_in_order,
    ],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_programs_that_tell_strides(program: Callable[..., Any]) -> None:
    builds_like_eager(program)


def test_calls_that_lie_row_by_row_are_served_too() -> None:
    compiled = smelt.compile(grown)
    for length in (5, 6, 7, 8):
        compiled(torch.arange(length)[None, -1:], torch.zeros(1, length, WIDTH))
    builds = compiled.stats().builds
    found = compiled(torch.tensor([[3]]), torch.ones(1, 9, WIDTH))
    torch.testing.assert_close(found, grown(torch.tensor([[3]]), torch.ones(1, 9, WIDTH)))
    assert compiled.stats().builds == builds


def builds_like_eager(program: Callable[..., Any]) -> int:
    """How often the program is built for last elements of many lengths; each answer is eager's."""
    compiled = smelt.compile(program)
    for length in LENGTHS:
        rows = [torch.arange(abs(length)).reshape(1, -1) for _ in range(2)]
        one, two = (x[:, -1:] if length > 0 else x.t()[-1:] for x in rows)
        cache = torch.randn(1, abs(length) + 2, WIDTH)
        found, wanted = compiled(one, cache), program(two, cache)
        assert torch.equal(*rows)
        if not isinstance(wanted, tuple):
            found, wanted = (found,), (wanted,)
        for a, b in zip(found, wanted, strict=True):
            if not isinstance(b, torch.Tensor):
                assert a == b and type(a) is type(b)
                continue
            assert torch.equal(a, b)
            assert (a.dtype, a.stride()) == (b.dtype, b.stride())
    return compiled.stats().builds
