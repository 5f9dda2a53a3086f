"""The small programs of the benchmark, written the way people write them: plain modules and functions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mlp(nn.Module):
    """`f32[rows, 768] -> f32[rows, 768]` through 3072 features and an exact GELU."""

    def __init__(self, width: int = 768, hidden: int = 3072) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class MlpSplitBias(nn.Module):
    """The same function as `Mlp` with the first bias added apart."""

    def __init__(self, width: int = 768, hidden: int = 3072) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.up_bias = nn.Parameter(torch.randn(hidden) * 0.02)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x) + self.up_bias))


class AttentionBlock(nn.Module):
    """Self-attention spelled out, `f32[batch, length, width]` to the same: products, residual, LayerNorm."""

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def _split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._split(self.query(x)), self._split(self.key(x)), self._split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        mixed = torch.matmul(torch.softmax(scores, dim=-1), v)
        return self.norm(x + self.out(mixed.transpose(1, 2).reshape(x.shape)))


class LstmLoop(nn.Module):
    """An LSTM cell in a Python loop: `x f32[steps, batch, inputs]`, `h`, `c f32[batch, hidden]` -> last `h`, `c`."""

    def __init__(self, inputs: int = 64, hidden: int = 128) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, 4 * hidden)
        self.from_hidden = nn.Linear(hidden, 4 * hidden)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        for step in range(x.shape[0]):
            gates = self.from_input(x[step]) + self.from_hidden(h)
            i, f, g, o = gates.chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h, c


def box_iou(
    ax1: Tensor, ay1: Tensor, ax2: Tensor, ay2: Tensor, bx1: Tensor, by1: Tensor, bx2: Tensor, by2: Tensor
) -> Tensor:
    """Intersection over union of pairs of boxes, each coordinate `f32[pairs]`, pair by pair."""
    width = (torch.minimum(ax2, bx2) - torch.maximum(ax1, bx1)).clamp(min=0)
    height = (torch.minimum(ay2, by2) - torch.maximum(ay1, by1)).clamp(min=0)
    shared = width * height
    union = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - shared
    return shared / union


def lerp(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`w * x + (1 - w) * y`, all `f32[n]`."""
    return w * x + (1 - w) * y
