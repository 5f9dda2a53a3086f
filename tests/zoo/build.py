"""Tiny `transformers` models of all architectures, built offline with random weights, and inputs for them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from tests.zoo import inputs as inputs_of
from tests.zoo import special
from tests.zoo.configs import Shrinker

LIMIT = 35_000_000  # parameters of a model that still counts as tiny


# Over families: encoders, decoders, encoder-decoders, vision, audio, series, state-space, mixtures; old and new, and
# those whose way depends on data.
SPREAD: tuple[str, ...] = (
    "albert", "bamba", "bart", "bert", "big_bird", "bigbird_pegasus", "bloom", "canine", "clip", "convbert",
    "convnextv2", "ctrl", "deberta", "deepseek_v3", "deit", "dinov3_vit", "electra", "flaubert", "fnet", "fsmt",
    "gemma", "gemma3_text", "gpt2", "gpt_neo", "gpt_neox", "gpt_oss", "hubert", "jetmoe",
    "layoutlm", "led", "lfm2", "llama", "longformer", "longt5", "mamba", "marian", "mimo_v2_flash", "mistral",
    "mixtral", "mobilenet_v1", "mpt", "opt", "patchtst", "phi", "poolformer", "prophetnet", "qwen2", "regnet",
    "rembert", "resnet", "roformer", "segformer", "swin", "t5", "vit", "wav2vec2", "wav2vec2-conformer",
    "whisper", "xlnet", "yoso",
)  # fmt: skip


class TooLarge(Exception):
    """A model whose configuration the rules do not make tiny."""


@dataclass(frozen=True)
class Sample:
    """A tiny model in eval mode and keyword arguments for its forward (without a mask)."""

    name: str
    model: torch.nn.Module
    inputs: dict[str, Any]

    def other(self, data: int = 0, mask: int | None = 0) -> dict[str, Any]:
        """Inputs like `inputs` with other random numbers, or with other positions masked; None: without a mask."""
        config: Any = self.model.config
        return inputs_of.make(self.model, config, data, mask, special.INPUTS.get(self.name))


def model_types() -> list[str]:
    """All architectures of the installed `transformers` that have a base model, each model class once."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    first: dict[str, str] = {}
    for model_type, names in sorted(auto.MODEL_MAPPING_NAMES.items()):
        first.setdefault(names if isinstance(names, str) else names[0], model_type)
    for preferred in ("gpt2", "llama"):
        first[auto.MODEL_MAPPING_NAMES[preferred]] = preferred
    return sorted(first.values())


def build(model_type: str, seed: int = 0) -> Sample:
    """A tiny model of an architecture. Raises whatever `transformers` raises where it cannot be built this way."""
    transformers = importlib.import_module("transformers")
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    config = Shrinker().config(mapping[model_type], special.CONFIG.get(model_type, {}))
    for name in ("use_cache", "return_dict"):
        if hasattr(config, name):
            setattr(config, name, name == "return_dict")
    with torch.device("meta"):
        size = sum(p.numel() for p in transformers.AutoModel.from_config(config).parameters())
    if size > LIMIT:
        raise TooLarge(f"{model_type} has {size:,} parameters")
    torch.manual_seed(seed)
    model = transformers.AutoModel.from_config(config).eval()
    _randomize(model, seed)
    return Sample(model_type, model, inputs_of.make(model, config, mask=None, special=special.INPUTS.get(model_type)))


def _randomize(model: torch.nn.Module, seed: int) -> None:
    """Some noise on all parameters: zeros and tiny scales that training starts from would hide parts of the model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32) * 0.05
                parameter.copy_(torch.nan_to_num(parameter, 0.0, 0.0, 0.0) + noise.to(parameter.dtype))
