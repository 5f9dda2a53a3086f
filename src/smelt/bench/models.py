"""What is benchmarked: a name, how to build it with seeded random weights, and what it stands for.

Architectures come from `transformers` configurations, so nothing is downloaded. A program's target is a function or a
module in eval mode of the asked dtype, its arguments a flat tuple of tensors, its result a tensor or a tuple of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smelt.bench.decode import Decoder, decode_arguments
from smelt.bench.programs import AttentionBlock, LstmLoop, Mlp, MlpSplitBias, box_iou, lerp
from smelt.diag.records import record

Target = Callable[..., Any]
Built = tuple[Target, tuple[Tensor, ...]]

_SEED = 20


@record
class Model:
    """One program of the benchmark; `make` builds the f32 target and its arguments (call `build` instead).

    trains: its parameters need gradients, and its modules are in training mode.
    """

    name: str
    summary: str
    make: Callable[[], Built]
    needs: tuple[str, ...] = ()
    trains: bool = False

    def build(self, dtype: torch.dtype = torch.float32) -> Built:
        """The target and its arguments in `dtype`, the same at every call. The global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            target, args = self.make()
            if isinstance(target, nn.Module):
                target = target.train() if self.trains else target.eval().requires_grad_(False)
                with torch.no_grad():
                    _spread_one_dimensional(target)
                target = target.to(dtype)
        return target, tuple(a.to(dtype) if a.is_floating_point() else a for a in args)


def _spread_one_dimensional(module: nn.Module) -> None:
    """Move biases, scales and running statistics off 0 and 1, so that an error in one of them shows in the result."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.ndim == 1 and tensor.is_floating_point() and "inv_freq" not in name:
            noise = torch.randn_like(tensor) * 0.05
            tensor.add_(noise.abs() if "running_var" in name else noise)


class Positional(nn.Module):
    """A `transformers` model as `tensor -> tensors`: the first `results` entries of its output."""

    def __init__(self, model: nn.Module, keyword: str, results: int = 1) -> None:
        super().__init__()
        self.model = model
        self.keyword = keyword
        self.results = results

    def forward(self, x: Tensor) -> Any:
        out = self.model(**{self.keyword: x}).to_tuple()
        return out[0] if self.results == 1 else out[: self.results]


def _ids(vocabulary: int, length: int = 128) -> Tensor:
    return torch.randint(0, vocabulary, (1, length))


def transformer(config_name: str, model_name: str, options: Mapping[str, Any]) -> tuple[nn.Module, Any]:
    """A model with random weights from a configuration class of `transformers`, and its configuration."""
    transformers = importlib.import_module("transformers")
    config = getattr(transformers, config_name)(**options)
    return getattr(transformers, model_name)(config), config


def _bert() -> Built:
    model, config = transformer("BertConfig", "BertModel", {"use_cache": False})
    return Positional(model, "input_ids", results=2), (_ids(config.vocab_size),)


def _gpt2() -> Built:
    model, config = transformer("GPT2Config", "GPT2LMHeadModel", {"use_cache": False})
    return Positional(model, "input_ids"), (_ids(config.vocab_size),)


_LLAMA: Mapping[str, Any] = {
    "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_key_value_heads": 4, "vocab_size": 32000,
}  # fmt: skip


def _llama() -> Built:
    model, config = transformer("LlamaConfig", "LlamaForCausalLM", {**_LLAMA, "use_cache": False})
    return Positional(model, "input_ids"), (_ids(config.vocab_size),)


def _gpt2_decode() -> Built:
    model, config = transformer("GPT2Config", "GPT2LMHeadModel", {})
    return Decoder(model), decode_arguments(config, config.num_attention_heads)


def _llama_decode() -> Built:
    model, config = transformer("LlamaConfig", "LlamaForCausalLM", _LLAMA)
    return Decoder(model), decode_arguments(config, config.num_key_value_heads)


def _vit() -> Built:
    model, _ = transformer("ViTConfig", "ViTForImageClassification", {"num_labels": 1000})
    return Positional(model, "pixel_values"), (torch.randn(1, 3, 224, 224),)


def _resnet50() -> Built:
    model, _ = transformer("ResNetConfig", "ResNetForImageClassification", {"num_labels": 1000})
    return Positional(model, "pixel_values"), (torch.randn(1, 3, 224, 224),)


def _mobilenetv2() -> Built:
    model, _ = transformer("MobileNetV2Config", "MobileNetV2ForImageClassification", {"num_labels": 1000})
    return Positional(model, "pixel_values"), (torch.randn(1, 3, 224, 224),)


def _lstm() -> Built:
    return LstmLoop(), (torch.randn(32, 1, 64), torch.randn(1, 128), torch.randn(1, 128))


def _iou(pairs: int = 100_000) -> Built:
    def corners() -> tuple[Tensor, ...]:
        x, y, w, h = torch.rand(4, pairs).unbind()
        return x, y, x + w + 0.01, y + h + 0.01

    return box_iou, (*corners(), *corners())


def _lerp(n: int) -> Built:
    return lerp, (torch.rand(n), torch.randn(n), torch.randn(n))


_HF = ("transformers",)

MODELS: tuple[Model, ...] = (
    Model("bert", "BERT-base, b1, 128 tokens", _bert, _HF),
    Model("gpt2", "GPT-2 small with language head, b1, 128 tokens", _gpt2, _HF),
    Model("llama", "Llama-style 12 x 768, 12 heads on 4, b1, 128 tokens", _llama, _HF),
    Model("gpt2_decode", "GPT-2 small, one token, 128 in the key/value cache", _gpt2_decode, _HF),
    Model("llama_decode", "the Llama-style model, one token, 128 in the key/value cache", _llama_decode, _HF),
    Model("vit", "ViT-B/16 classifier, one 224x224 image", _vit, _HF),
    Model("resnet50", "ResNet-50 classifier, one 224x224 image", _resnet50, _HF),
    Model("mobilenetv2", "MobileNetV2 1.0 classifier, one 224x224 image", _mobilenetv2, _HF),
    Model("mlp", "768-3072-768 with GELU on 16x512 rows", lambda: (Mlp(), (torch.randn(16, 512, 768),))),
    Model("mlp_4x128", "the same on 4x128 rows", lambda: (Mlp(), (torch.randn(4, 128, 768),))),
    Model(
        "mlp_split_bias",
        "mlp with its first bias added apart",
        lambda: (MlpSplitBias(), (torch.randn(16, 512, 768),)),
    ),
    Model(
        "attention",
        "self-attention spelled out, 12 heads, 128 tokens",
        lambda: (AttentionBlock(), (torch.randn(1, 128, 768),)),
    ),
    Model("lstm", "LSTM cell 64 to 128, Python loop of 32 steps, b1", _lstm),
    Model("iou", "box IoU of 100,000 pairs", _iou),
    Model("lerp200", "w*x + (1-w)*y on 200 floats", lambda: _lerp(200)),
    Model("lerp1m", "w*x + (1-w)*y on 1,000,000 floats", lambda: _lerp(1_000_000)),
)


class FunctionModule(nn.Module):
    """A plain function as a module, for the exporters that take only modules."""

    def __init__(self, function: Target) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def as_module(target: Target) -> nn.Module:
    """`target` itself if it is a module, else a module that calls it."""
    return target if isinstance(target, nn.Module) else FunctionModule(target)


def flatten(result: Any) -> tuple[Tensor, ...]:
    """The tensors of a result, in order, out of tensors, tuples, lists and mappings."""
    if isinstance(result, Tensor):
        return (result,)
    if isinstance(result, Mapping):
        return flatten(tuple(result.values()))
    if isinstance(result, tuple | list):
        return tuple(t for item in result for t in flatten(item))
    return ()
