"""One step of text generation: a token in, logits and the grown key/value cache out, all as plain tensors."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch
from torch import Tensor, nn

CACHED = 128
"""Tokens in the cache before the step."""


def cache_name(model: nn.Module) -> str:
    """What a `transformers` model calls its cache, as an argument and in its output: `cache` since 5.24."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class Decoder(nn.Module):
    """A causal `transformers` model for one token.

    token, position i64[1, 1]; past: for each layer the keys and the values f32[1, heads, cached, head_size]
    -> logits f32[1, 1, vocabulary], then keys and values f32[1, heads, cached + 1, head_size] of each layer.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.caches = importlib.import_module("transformers.cache_utils")
        self.cache = cache_name(model)

    def forward(self, token: Tensor, position: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        layers = [self._layer(k, v) for k, v in zip(past[::2], past[1::2], strict=True)]
        cache = {self.cache: self.caches.Cache(layers=layers)}
        out = self.model(input_ids=token, position_ids=position, use_cache=True, **cache)
        grown = (t for layer in out[self.cache].layers for t in (layer.keys, layer.values))
        return (out.logits, *grown)

    def _layer(self, keys: Tensor, values: Tensor) -> Any:
        """A cache layer that holds tokens already: one made empty joins an empty tensor first, which exporters keep."""
        layer = self.caches.DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        return layer


def decode_arguments(config: Any, heads: int) -> tuple[Tensor, ...]:
    """Random arguments for a `Decoder` of a model with this configuration and so many key/value heads."""
    size = config.hidden_size // config.num_attention_heads
    past = [torch.randn(1, heads, CACHED, size) for _ in range(2 * config.num_hidden_layers)]
    token = torch.randint(0, config.vocab_size, (1, 1))
    return token, torch.full((1, 1), CACHED), *past
