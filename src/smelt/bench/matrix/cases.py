"""Six uses as programs of random weights: what people serve, and train, on processors."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from smelt.bench.decode import Decoder, decode_arguments
from smelt.bench.models import Built, Model, Positional, transformer
from smelt.bench.training_models import Gradients, NanoGptLoss


def _embedding() -> Built:
    options = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 12, "intermediate_size": 1536}
    model, config = transformer("BertConfig", "BertModel", {**options, "use_cache": False})
    return Positional(model, "input_ids"), (torch.randint(0, config.vocab_size, (8, 64)),)


def _chat() -> Built:
    options = {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 32000,
    }  # fmt: skip
    model, config = transformer("LlamaConfig", "LlamaForCausalLM", options)
    return Decoder(model), decode_arguments(config, config.num_key_value_heads)


def _image() -> Built:
    options = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "num_labels": 1000}
    model, _ = transformer("ResNetConfig", "ResNetForImageClassification", options)
    return Positional(model, "pixel_values"), (torch.randn(1, 3, 224, 224),)


class Residual(nn.Module):
    """Two convolutions with group norms, and what the time adds between them."""

    def __init__(self, inside: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inside), nn.Conv2d(inside, out, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, out), nn.Conv2d(out, out, 3, padding=1)
        self.time, self.skip, self.act = nn.Linear(time, out), nn.Conv2d(inside, out, 1), nn.SiLU()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(self.act(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.conv2(self.act(self.norm2(h)))


class DiffusionStep(nn.Module):
    """One step of sampling: the noise that a U-Net of two levels predicts, removed from the latent image."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.begin, self.end = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.down1, self.down2 = Residual(width, width, 4 * width), Residual(width, 2 * width, 4 * width)
        self.middle = Residual(2 * width, 2 * width, 4 * width)
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up2, self.up1 = Residual(4 * width, width, 4 * width), Residual(2 * width, width, 4 * width)
        self.pool, self.larger = nn.AvgPool2d(2), nn.Upsample(scale_factor=2)

    def forward(self, x: Tensor, t: Tensor, alpha: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(torch.arange(32) * -0.3)
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        first = self.down1(self.begin(x), time)
        second = self.down2(self.pool(first), time)
        h = self.middle(second, time)
        flat = h.flatten(2).transpose(1, 2)
        h = h + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).unflatten(2, h.shape[2:])
        h = self.up2(torch.cat([h, second], 1), time)
        noise = self.end(self.up1(torch.cat([self.larger(h), first], 1), time))
        alpha = alpha[:, None, None, None]
        return (x - (1 - alpha).sqrt() * noise) / alpha.sqrt()


class Tabular(nn.Module):
    """Numbers and categories of a table's rows to one score."""

    def __init__(self, categories: int = 24, numbers: int = 32, width: int = 256) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, 8) for _ in range(categories))
        self.begin = nn.Linear(numbers + 8 * categories, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(3)
        )
        self.end = nn.Linear(width, 1)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        embedded = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        h = relu(self.begin(torch.cat([numbers, *embedded], 1)))
        for block in self.blocks:
            h = h + block(h)
        return torch.sigmoid(self.end(h))


_HF = ("transformers",)

CASES: tuple[Model, ...] = (
    Model("embedding-service", "BERT 4 x 384, 8 texts of 64 tokens", _embedding, _HF),
    Model("chat-decode", "Llama-style 4 x 576, one token, 128 in the cache", _chat, _HF),
    Model("image-classification", "ResNet-18, one 224x224 image", _image, _HF),
    Model(
        "diffusion-step",
        "a U-Net's step on a 4x32x32 latent image",
        lambda: (DiffusionStep(), (torch.randn(1, 4, 32, 32), torch.tensor([7.0]), torch.tensor([0.9]))),
    ),
    Model(
        "tabular",
        "64 rows of 32 numbers and 24 categories",
        lambda: (Tabular(), (torch.randn(64, 32), torch.randint(0, 1000, (64, 24)))),
    ),
    Model(
        "small-gpt-training",
        "GPT 3 x 128, batch 4, 64 tokens: loss, backward, AdamW",
        lambda: (Gradients(NanoGptLoss(3, 128, 4, 96, 64)), (torch.randint(0, 96, (4, 65)),)),
        trains=True,
    ),
)
