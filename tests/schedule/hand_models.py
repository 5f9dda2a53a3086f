"""Six models written by hand, each in a spelling of its own; nothing of them is named anywhere in the package."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class EncoderLayer(nn.Module):
    """BERT's layer: heads flattened into the batch, `bmm`, scores seen by head for the mask."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1, self.norm2, self.drop, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(0.1), heads

    def split(self, x):
        b, n, _ = x.shape
        return x.view(b, n, self.heads, -1).transpose(1, 2).reshape(b * self.heads, n, -1)

    def forward(self, x, mask):
        b, n, w = x.shape
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.bmm(q * (q.shape[-1] ** -0.5), k.transpose(1, 2))
        scores = scores.view(b, self.heads, n, n) + mask
        p = self.drop(F.softmax(scores.view(b * self.heads, n, n), dim=-1))
        y = torch.bmm(p, v).view(b, self.heads, n, -1).transpose(1, 2).reshape(b, n, w)
        x = self.norm1(x + self.drop(self.out(y)))
        return self.norm2(x + self.drop(self.down(F.gelu(self.up(x)))))


class Encoder(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.words, self.layers = nn.Embedding(99, 32), nn.ModuleList(EncoderLayer() for _ in range(depth))

    def forward(self, ids, keep):
        x, mask = self.words(ids), (1.0 - keep[:, None, None, :].float()) * torch.finfo(torch.float32).min
        for layer in self.layers:
            x = layer(x, mask)
        return x


class Conv1D(nn.Module):
    """A linear layer whose weight lies the other way round."""

    def __init__(self, n, m):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(n, m) * 0.1), nn.Parameter(torch.zeros(m))

    def forward(self, x):
        size = (*x.shape[:-1], self.weight.shape[1])
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(size)


class DecoderLayer(nn.Module):
    """GPT-2's layer: three `addmm`, a mask chosen by `where`, its own activation."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.proj = (Conv1D(width, width) for _ in range(4))
        self.fc, self.back, self.drop, self.heads = Conv1D(width, 64), Conv1D(64, width), nn.Dropout(0.1), heads
        self.register_buffer("bias", torch.tril(torch.ones(64, 64, dtype=torch.bool)), persistent=False)

    def forward(self, x):
        b, n, w = x.shape
        h = self.ln1(x)
        q, k, v = (layer(h).view(b, n, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = torch.where(self.bias[:n, :n], scores, torch.full([], torch.finfo(scores.dtype).min))
        y = self.drop(scores.softmax(-1)) @ v
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(b, n, w)))
        h = self.fc(self.ln2(x))
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))
        return x + self.drop(self.back(h))


class Decoder(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.words, self.places = nn.Embedding(99, 32), nn.Embedding(64, 32)
        self.h, self.norm = nn.ModuleList(DecoderLayer() for _ in range(depth)), nn.LayerNorm(32)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.h:
            x = layer(x)
        return self.norm(x) @ self.words.weight.T


class RMS(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


class GroupedLayer(nn.Module):
    """Llama's layer: rotated, fewer heads of keys than of queries, `einsum`, a gated MLP."""

    def __init__(self, width=32, heads=4, kept=2):
        super().__init__()
        self.n1, self.n2, self.heads, self.kept = RMS(width), RMS(width), heads, kept
        size = width // heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(width, kept * size, bias=False), nn.Linear(width, kept * size, bias=False)
        self.gate, self.up = nn.Linear(width, 64, bias=False), nn.Linear(width, 64, bias=False)
        self.down = nn.Linear(64, width, bias=False)

    def forward(self, x, cos, sin, mask):
        b, n, w = x.shape
        h = self.n1(x)
        q = rotated(self.q(h).view(b, n, self.heads, -1), cos, sin).view(b, n, self.kept, self.heads // self.kept, -1)
        k = rotated(self.k(h).view(b, n, self.kept, -1), cos, sin)
        v = self.v(h).view(b, n, self.kept, -1)
        scores = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * (q.shape[-1] ** -0.5) + mask
        p = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        x = x + self.o(torch.einsum("bhgqk,bkhd->bqhgd", p, v).reshape(b, n, w))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Grouped(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.words, self.layers, self.norm = nn.Embedding(99, 32), nn.ModuleList(), RMS(32)
        self.layers.extend(GroupedLayer() for _ in range(depth))

    def forward(self, ids):
        n, x = ids.shape[1], self.words(ids)
        angle = torch.outer(torch.arange(n).float(), 1e4 ** (-torch.arange(0, 8, 2) / 8.0)).repeat(1, 2)[:, None]
        mask = torch.full((n, n), float("-inf")).triu(1)
        for layer in self.layers:
            x = layer(x, angle.cos(), angle.sin(), mask)
        return self.norm(x)


class Across(nn.Module):
    """T5's attention: unscaled, with a learned bias of positions, `baddbmm`, perhaps over another sequence."""

    def __init__(self, width=32, heads=4, causal=False, near=True):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.heads, self.causal = heads, causal
        self.near = nn.Embedding(16, heads) if near else None

    def bias(self, n, m):
        bias = torch.zeros(self.heads, n, m)
        if self.near is not None:
            apart = (torch.arange(m)[None] - torch.arange(n)[:, None]).clamp(-8, 7) + 8
            bias = self.near(apart).permute(2, 0, 1)
        if self.causal:
            bias = bias.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(1), -1e9)
        return bias

    def forward(self, x, y):
        (b, n, w), m = x.shape, y.shape[1]
        q = self.q(x).view(b, n, self.heads, -1).transpose(1, 2).reshape(b * self.heads, n, -1)
        k = self.k(y).view(b, m, self.heads, -1).permute(0, 2, 3, 1).reshape(b * self.heads, -1, m)
        v = self.v(y).view(b, m, self.heads, -1).transpose(1, 2).reshape(b * self.heads, m, -1)
        p = torch.baddbmm(self.bias(n, m).repeat(b, 1, 1), q, k).softmax(-1)
        return self.o(torch.bmm(p, v).view(b, self.heads, n, -1).transpose(1, 2).reshape(b, n, w))


class Step(nn.Module):
    def __init__(self, decodes):
        super().__init__()
        self.n1, self.n2, self.n3 = RMS(32), RMS(32), RMS(32)
        self.here = Across(causal=decodes)
        self.there = Across(near=False) if decodes else None
        self.wi0, self.wi1, self.wo = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x, other=None):
        h = self.n1(x)
        x = x + self.here(h, h)
        if self.there is not None:
            x = x + self.there(self.n2(x), other)
        h = self.n3(x)
        return x + self.wo(F.gelu(self.wi0(h), approximate="tanh") * self.wi1(h))


class EncoderDecoder(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.words = nn.Embedding(99, 32)
        self.encoder = nn.ModuleList(Step(False) for _ in range(depth))
        self.decoder = nn.ModuleList(Step(True) for _ in range(depth))

    def forward(self, given, wanted):
        x, y = self.words(given), self.words(wanted)
        for step in self.encoder:
            x = step(x)
        for step in self.decoder:
            y = step(y, x)
        return y


class ImageLayer(nn.Module):
    """ViT's layer: one linear layer for all three, the softmax written out."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.n1, self.n2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.o, self.drop = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(self.n1(x)).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.mT) * (q.shape[-1] ** -0.5)
        e = torch.exp(scores - scores.amax(-1, keepdim=True))
        y = self.drop(e / e.sum(-1, keepdim=True)) @ v
        x = x + self.o(y.transpose(1, 2).reshape(b, n, w))
        return x + self.mlp(self.n2(x))


class Images(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, 32, 4, 4), nn.Parameter(torch.randn(1, 1, 32))
        self.blocks, self.norm = nn.Sequential(*(ImageLayer() for _ in range(depth))), nn.LayerNorm(32)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
        return self.norm(self.blocks(x))[:, 0]


class Residual(nn.Module):
    """ResNet's block."""

    def __init__(self, n, m, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n, m, 3, stride, 1, bias=False), nn.BatchNorm2d(m)
        self.conv2, self.bn2 = nn.Conv2d(m, m, 3, 1, 1, bias=False), nn.BatchNorm2d(m)
        self.short = None if n == m else nn.Sequential(nn.Conv2d(n, m, 1, stride, bias=False), nn.BatchNorm2d(m))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.short is None else self.short(x)))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.stages, self.head = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2)), nn.Linear(16, 5)

    def forward(self, images):
        return self.head(self.stages(self.stem(images)).mean((2, 3)))
