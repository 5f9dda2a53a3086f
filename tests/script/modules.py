"""Modules whose scripted graph, for known types, is that of a recorded run."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import smelt


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.act = nn.Linear(8, 16), nn.Linear(16, 4), "gelu"

    def forward(self, x):
        h = self.a(x)
        h = F.gelu(h) if self.act == "gelu" else F.relu(h)
        return self.b(h)


class Attention(nn.Module):
    def __init__(self, size=16, heads=4):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, size)
        self.heads, self.norm, self.drop = heads, nn.LayerNorm(size), nn.Dropout(0.1)

    def split(self, x):
        shape = x.shape[:-1] + (self.heads, -1)  # noqa: RUF005
        return x.view(shape).permute(0, 2, 1, 3)

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1)
        found = (self.drop(weights) @ v).permute(0, 2, 1, 3)
        return self.norm(found.reshape(found.shape[0], found.shape[1], -1) + x)


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(16, dim=2)
        q, k, v = (y.view(b, t, 4, c // 4).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).contiguous().view(b, t, c)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(10, 24)

    def forward(self, x, h, c):
        out = []
        for i in range(len(x)):
            i_, f, o, u = self.w(torch.cat([x[i], h], 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i_) * torch.tanh(u)
            h = torch.sigmoid(o) * torch.tanh(c)
            out += [h]
        return torch.stack(out), h, c


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(10, 8), nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: smelt.i64[None, None], mask=None):
        places = torch.arange(ids.size(1), device=ids.device)
        return self.head(self.layer(self.words(ids) + self.places(places)[None]))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.down: Any = None

    def forward(self, x):
        identity = x if self.down is None else self.down(x)
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + identity)


class Rope(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("freq", 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8))

    def forward(self, x):
        angles = torch.arange(x.shape[1])[:, None] * self.freq[None, :]
        a, b = x[..., ::2], x[..., 1::2]
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        kind = x.dtype
        x = x.to(torch.float32)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(kind)


class Masked(nn.Module):
    def forward(self, x):
        n = x.size(-1)
        mask = torch.triu(torch.full((n, n), float("-inf")), diagonal=1)
        return torch.softmax(x + mask, -1).masked_fill(x > 1, 0.0)


class Sequence(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(4, 6, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.rnn(x)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.m(x, x, x, need_weights=False)[0]


def _r(*sizes):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


MODULES: dict[str, tuple[nn.Module, list[tuple[torch.Tensor, ...]]]] = {
    "mlp": (MLP(), [(_r(3, 8),), (_r(2, 3, 8),)]),
    "attention": (Attention().eval(), [(_r(2, 5, 16),), (_r(1, 3, 16),)]),
    "causal": (Causal(), [(_r(2, 5, 16),)]),
    "cell": (Cell(), [(_r(5, 2, 4), _r(2, 6), _r(2, 6)), (_r(1, 2, 4), _r(2, 6), _r(2, 6))]),
    "embedded": (Embedded().eval(), [(torch.tensor([[1, 2, 3], [4, 5, 6]]),)]),
    "residual": (Residual().eval(), [(_r(2, 4, 6, 6),)]),
    "residual in training": (Residual(), [(_r(2, 4, 6, 6),)]),
    "rope": (Rope(), [(_r(2, 5, 8),)]),
    "rms norm": (RMSNorm(), [(_r(2, 8),), (_r(2, 8).to(torch.bfloat16),)]),
    "masked": (Masked(), [(_r(4, 4),), (_r(2, 3, 3),)]),
    "lstm": (Sequence(nn.LSTM), [(_r(2, 5, 4),)]),
    "gru": (Sequence(nn.GRU), [(_r(2, 5, 4),)]),
    "rnn": (Sequence(nn.RNN), [(_r(2, 5, 4),)]),
    "heads": (Heads().eval(), [(_r(2, 5, 8),)]),
    "conv": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()).eval(),
        [(_r(2, 3, 8, 8),)],
    ),
    "conv1d": (
        nn.Sequential(nn.Conv1d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool1d(2)),
        [(_r(2, 3, 8),)],
    ),
    "norms": (nn.Sequential(nn.LayerNorm(8), nn.Hardswish(), nn.Softplus(), nn.LogSoftmax(-1)), [(_r(2, 8),)]),
    "bilinear": (nn.Bilinear(4, 5, 3), [(_r(2, 4), _r(2, 5))]),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2), [(_r(1, 3, 5, 5),)]),
    "loss": (nn.CrossEntropyLoss(), [(_r(4, 5), torch.tensor([0, 1, 2, 3]))]),
}  # fmt: skip
