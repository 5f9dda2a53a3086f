"""Tiny `transformers` models of many architectures, built offline with random weights, and inputs for them."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

import torch

# Sizes by the names that configurations use for them; a configuration gets those that it knows.
_SIZES: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embedding_size": 32, "emb_dim": 32,
    "embed_dim": 32, "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_decoder_layers": 2, "num_encoder_layers": 2, "num_attention_heads": 4, "n_head": 4,
    "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "intermediate_size": 64, "d_ff": 64, "ffn_dim": 64,
    "n_inner": 64, "hidden_dim": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "n_positions": 64, "n_ctx": 64, "type_vocab_size": 2, "image_size": 32, "patch_size": 8, "num_channels": 3,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
# What a few architectures need besides, or instead.
_SPECIAL: dict[str, dict[str, Any]] = {
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "convnextv2": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8},
    "swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 4},
    "swinv2": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 4},
    "mobilenet_v1": {"depth_multiplier": 0.25, "image_size": 32},
    "mobilenet_v2": {"depth_multiplier": 0.35, "image_size": 32},
    "poolformer": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_encoder_blocks": 4},
    "segformer": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]},
    "pvt_v2": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]},
    "mamba": {"state_size": 4, "conv_kernel": 4},
    "rwkv": {"attention_hidden_size": 32, "context_length": 32},
    "wav2vec2": {"conv_dim": [8, 8], "conv_kernel": [8, 4], "conv_stride": [4, 2], "num_feat_extract_layers": 2},
    "hubert": {"conv_dim": [8, 8], "conv_kernel": [8, 4], "conv_stride": [4, 2], "num_feat_extract_layers": 2},
    "funnel": {"block_sizes": [1, 1], "d_inner": 64, "d_head": 8, "num_decoder_layers": 1},
    "albert": {"embedding_size": 16},
}  # fmt: skip
# These look at the data for padding tokens unless there is none, which is control flow that depends on data.
_WITHOUT_PADDING = frozenset(("canine", "convbert", "deberta", "gpt2", "layoutlm", "rembert", "roformer", "yoso"))
# A spread over families: encoders, decoders, encoder-decoders, vision, audio, state-space, mixtures, old and new.
SPREAD: tuple[str, ...] = (
    "albert", "bart", "bert", "bigbird_pegasus", "biogpt", "blenderbot", "bloom", "camembert", "canine",
    "convbert", "convnext", "convnextv2", "ctrl", "deberta", "deit", "distilbert", "electra",
    "fnet", "gemma", "gpt2", "gpt_neo", "gpt_neox", "hubert", "layoutlm", "llama", "m2m_100", "marian",
    "mistral", "mobilebert", "mobilenet_v1", "mobilenet_v2", "mpnet", "mpt", "mt5", "opt", "pegasus", "phi",
    "poolformer", "qwen2", "regnet", "rembert", "resnet", "roberta", "roformer", "segformer", "stablelm", "swin",
    "t5", "vit", "wav2vec2", "xglm", "yoso",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """A tiny model in eval mode and keyword arguments for its forward."""

    name: str
    model: torch.nn.Module
    inputs: dict[str, Any]


def model_types() -> list[str]:
    """All architectures of the installed `transformers` that have a base model."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    return sorted(auto.MODEL_MAPPING_NAMES)


def build(model_type: str, seed: int = 0) -> Sample:
    """A tiny model of an architecture. Raises whatever `transformers` raises where it cannot be built this way."""
    transformers = importlib.import_module("transformers")
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    config = mapping[model_type]()
    for name, value in {**_SIZES, **_SPECIAL.get(model_type, {})}.items():
        if _settable(config, name, value):
            setattr(config, name, value)
    config.use_cache = False
    if model_type in _WITHOUT_PADDING:
        config.pad_token_id = None
    torch.manual_seed(seed)
    model = transformers.AutoModel.from_config(config).eval()
    return Sample(model_type, model, make_inputs(model, config, seed))


def _settable(config: Any, name: str, value: Any) -> bool:
    if not hasattr(config, name):
        return False
    current = getattr(config, name)
    return current is None or isinstance(current, list | tuple) == isinstance(value, list | tuple)


def make_inputs(model: torch.nn.Module, config: Any, seed: int = 0) -> dict[str, Any]:
    """Inputs by the names that the model's forward takes: text, pixels or waveform."""
    names = set(inspect.signature(model.forward).parameters)
    generator = torch.Generator().manual_seed(seed + 1)
    inputs: dict[str, Any] = {}
    if "input_ids" in names and model.main_input_name in ("input_ids", "inputs"):
        length = 16
        high = min(int(getattr(config, "vocab_size", 99) or 99), 90)
        inputs["input_ids"] = torch.randint(3, high, (2, length), generator=generator)
        if "decoder_input_ids" in names:
            inputs["decoder_input_ids"] = torch.randint(3, high, (2, 8), generator=generator)
    elif "pixel_values" in names:
        size = getattr(config, "image_size", 32)
        size = size if isinstance(size, int) else 32
        inputs["pixel_values"] = torch.randn(2, 3, size, size, generator=generator)
    elif "input_values" in names:
        inputs["input_values"] = torch.randn(2, 800, generator=generator)
    else:
        raise TypeError(f"no inputs known for a forward that takes {sorted(names)}")
    return inputs
