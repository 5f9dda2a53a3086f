"""Models and comparisons that several promise tests share."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import smelt
from smelt.capture import tensors_of
from smelt.compiler.programs.numeric_comparison import disagreement
from tests.zoo.build import Sample, build

RULE = {"measure": False}


def assert_agrees(answer: Any, expected: Any) -> None:
    """Two results hold the same tensors: kinds, sizes, strides, and values within a few roundings."""
    assert disagreement(tensors_of(expected), tensors_of(answer)) is None


def entry_of(compiled: Any) -> Any:
    """The entry that a compiled object used last, which must be native and have no Python step."""
    row = compiled.stats().rows[0]
    assert row.entry is not None and row.entry.executable.is_native, row.reason
    return row.entry


def how_nodes_run(compiled: Any) -> list[str]:
    """For each node of all entries, how it runs, as `explain` tells."""
    return [str(row["how"]) for row in smelt.explain(compiled).kernels if "how" in row]


class Block(nn.Module):
    """A transformer block with its attention spelled out, f32[b, n, 32] -> f32[b, n, 32]."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, n, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, n, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Images(nn.Module):
    """A convolution net with batch norm, a depthwise layer, pooling and a residual, f32[b, 3, 16, 16] -> f32[b, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.depth = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.ReLU6())
        self.point = nn.Sequential(nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.pool(x + self.point(self.depth(x)))
        return self.head(x.mean((2, 3)))


def block() -> Sample:
    torch.manual_seed(1)
    return Sample("block", Block().eval(), {"x": torch.randn(2, 8, 32)})


def images() -> Sample:
    torch.manual_seed(2)
    model = Images()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    return Sample("images", model.eval(), {"x": torch.randn(2, 3, 16, 16)})


def _from_zoo(name: str) -> Callable[[], Sample]:
    return lambda: build(name)


def _resnet50() -> Sample:
    transformers = importlib.import_module("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32, 32, 64], depths=[3, 4, 6, 3], layer_type="bottleneck"
    )
    torch.manual_seed(0)
    return Sample("resnet50", transformers.ResNetModel(config).eval(), {"pixel_values": torch.randn(1, 3, 64, 64)})


def _wide_bert() -> Sample:
    transformers = importlib.import_module("transformers")
    config = transformers.BertConfig(num_hidden_layers=2, vocab_size=1000, use_cache=False)
    torch.manual_seed(0)
    return Sample("bert 768", transformers.BertModel(config).eval(), {"input_ids": torch.randint(3, 999, (1, 128))})


SIX: dict[str, Callable[[], Sample]] = {
    "bert": _from_zoo("bert"),
    "gpt2": _from_zoo("gpt2"),
    "llama": _from_zoo("llama"),
    "vit": _from_zoo("vit"),
    "resnet50": _resnet50,
    "mobilenetv2": _from_zoo("mobilenet_v2"),
    "bert of real width": _wide_bert,
}


def make(name: str) -> Sample:
    """One of `SIX`, without what `transformers` has to say while it builds it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SIX[name]()
