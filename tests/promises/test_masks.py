"""Masks that a library asks about (`mask.all()`): what was traced with one kind of mask holds for the others."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from transformers import AutoModel, BertConfig, GPT2Config, LlamaConfig

import smelt

CONFIGS: dict[str, Any] = {
    "bert": BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32,
    ),
    "gpt2": GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=32, use_cache=False),
    "llama": LlamaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        use_cache=False,
    ),
}  # fmt: skip


def _masks() -> dict[str, torch.Tensor]:
    full = torch.ones(2, 6, dtype=torch.long)
    right, left = full.clone(), full.clone()
    right[1, 3:], left[1, :3] = 0, 0
    return {"full": full, "right": right, "left": left}


@pytest.mark.spread(6)
@pytest.mark.parametrize("first", ["full", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_traced_with_one_mask_for_all_masks(name: str, first: str) -> None:
    torch.manual_seed(0)
    model, ids, masks = AutoModel.from_config(CONFIGS[name]).eval(), torch.randint(0, 50, (2, 6)), _masks()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # a way that holds for one kind of mask only is told of
        traced = smelt.trace(model, (), {"input_ids": ids, "attention_mask": masks[first]})
        for mask in masks.values():
            wanted = model(input_ids=ids, attention_mask=mask).last_hidden_state
            got = traced(input_ids=ids, attention_mask=mask).last_hidden_state
            torch.testing.assert_close(got, wanted)
