"""The architectures of the atlas: small ones of random weights, written out, each with the form that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, scaled_dot_product_attention, softmax

from smelt.diag.records import record

Built = tuple[Callable[..., Any], tuple[Tensor, ...]]
_SEED = 7
swish = nn.SiLU()


@record
class Architecture:
    """A name, what tells it from the others, and how to build it."""

    name: str
    summary: str
    make: Callable[[], Built]

    def build(self) -> Built:
        """The program in evaluation mode, and its arguments; the same ones at every call."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(_SEED)
            target, args = self.make()
            return (target.eval() if isinstance(target, nn.Module) else target), args


class Attention(nn.Module):
    """Attention of `heads` queries on `kv` keys and values; causal or to another sequence."""

    def __init__(self, width: int, heads: int, kv: int | None = None, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.kv, self.size, self.causal = heads, kv or heads, width // heads, causal
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, self.kv * self.size)
        self.v, self.out = nn.Linear(width, self.kv * self.size), nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        source = x if memory is None else memory
        q = self.q(x).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        k = self.k(source).unflatten(-1, (self.kv, self.size)).transpose(1, 2)
        v = self.v(source).unflatten(-1, (self.kv, self.size)).transpose(1, 2)
        if self.kv != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv, 1) for t in (k, v))
        found = scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=self.causal and bias is None)
        return self.out(found.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, causal=causal)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(gelu(self.up(self.norm2(x))))


class Bert(nn.Module):
    def __init__(self, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1000, width), nn.Embedding(64, width)
        self.layers, self.norm = nn.ModuleList(Layer(width, 4) for _ in range(layers)), nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class GptDecode(nn.Module):
    """One token, with the keys and values of those before it."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        x = x + self.out(scaled_dot_product_attention(q, keys, values).transpose(1, 2).flatten(2))
        return self.head(x + self.down(gelu(self.up(x)))), keys, values


class Rms(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Llama(nn.Module):
    """Root-mean-square norms, grouped queries, a gated product."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.norm1, self.norm2 = Rms(width), Rms(width)
        self.attention = Attention(width, 8, kv=2, causal=True)
        self.gate, self.up = nn.Linear(width, 344, bias=False), nn.Linear(width, 344, bias=False)
        self.down = nn.Linear(344, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        h = self.norm2(x)
        return x + self.down(swish(self.gate(h)) * self.up(h))


class T5(nn.Module):
    """An encoder with a bias by distance, and a decoder that attends to it."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.near = nn.Embedding(32, 4)
        self.encoder, self.decoder, self.cross = (
            Attention(width, 4),
            Attention(width, 4, causal=True),
            Attention(width, 4),
        )
        self.norms = nn.ModuleList(Rms(width) for _ in range(3))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        at = torch.arange(source.shape[1])
        bias = self.near((at[:, None] - at).abs().clamp(max=31)).permute(2, 0, 1)
        memory = source + self.encoder(self.norms[0](source), bias=bias)
        x = target + self.decoder(self.norms[1](target))
        return x + self.cross(self.norms[2](x), memory)


class Vit(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, width, 8, 8), nn.Parameter(torch.randn(1, 1, width))
        self.layers, self.head = nn.Sequential(Layer(width, 4), Layer(width, 4)), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1)
        return self.head(self.layers(x)[:, 0])


class ResNet(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(4))
        self.norms, self.head = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(4)), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.norm(self.stem(x)))
        for i in (0, 2):
            h = relu(self.norms[i](self.convs[i](x)))
            x = relu(x + self.norms[i + 1](self.convs[i + 1](h)))
        return self.head(x.mean((2, 3)))


class MobileNet(nn.Module):
    """Wide, by depth, narrow again."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem, blocks = nn.Conv2d(3, width, 3, 2, 1), []
        for _ in range(2):
            wide = 4 * width
            blocks.append(nn.Sequential(
                nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish(),
                nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.Hardswish(),
                nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width),
            ))  # fmt: skip
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return x.mean((2, 3))


class Diffusion(nn.Module):
    """A small U-Net, and the loop that takes noise away with it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.time, self.into = nn.Linear(1, width), nn.Conv2d(3, width, 3, padding=1)
        self.down, self.middle = nn.Conv2d(width, 2 * width, 3, 2, 1), nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up, self.out = nn.Conv2d(3 * width, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.norm = nn.GroupNorm(4, 2 * width)

    def noise(self, x: Tensor, t: Tensor) -> Tensor:
        first = swish(self.into(x) + self.time(t)[:, :, None, None])
        deep = self.middle(swish(self.norm(self.down(first))))
        wide = nn.functional.interpolate(deep, scale_factor=2.0)
        return self.out(swish(self.up(torch.cat([wide, first], 1))))

    def forward(self, x: Tensor) -> Tensor:
        for step in range(4):
            x = x - 0.25 * self.noise(x, torch.full((x.shape[0], 1), 1.0 - step / 4))
        return x


class LstmLoop(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.cell, self.head, self.width = nn.LSTMCell(32, width), nn.Linear(width, 5), width

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[0], self.width)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h)


class Mamba(nn.Module):
    """A state that each token moves, by how much it says itself."""

    def __init__(self, width: int = 64, state: int = 8) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.conv = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.select, self.step = nn.Linear(width, 2 * state), nn.Linear(width, width)
        self.a = nn.Parameter(-torch.rand(width, state))

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.into(x).chunk(2, -1)
        x = swish(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        b, c = self.select(x).chunk(2, -1)
        step = nn.functional.softplus(self.step(x))
        h, found = torch.zeros(x.shape[0], *self.a.shape), []
        for t in range(x.shape[1]):
            d = step[:, t, :, None]
            h = torch.exp(d * self.a) * h + d * b[:, t, None] * x[:, t, :, None]
            found.append((h * c[:, t, None]).sum(-1))
        return self.out(torch.stack(found, 1) * swish(gate))


class Moe(nn.Module):
    """Two of four experts for each token."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = softmax(self.router(x), -1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            out = out + share * expert(x)
        return out


class Gnn(nn.Module):
    """Messages along edges, summed where they arrive."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.GRUCell(width, width)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for _ in range(2):
            sent = relu(self.message(torch.cat([x[edges[0]], x[edges[1]]], -1)))
            x = self.update(torch.zeros_like(x).index_add(0, edges[1], sent), x)
        return x


class Dlrm(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(500, width, mode="sum") for _ in range(4))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width))
        self.top = nn.Sequential(nn.Linear(width + 10, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        x = self.bottom(dense)
        found = torch.stack([x, *(bag(ids[:, i]) for i, bag in enumerate(self.bags))], 1)
        pairs = found @ found.transpose(1, 2)
        rows, columns = torch.tril_indices(5, 5, -1).unbind()
        return self.top(torch.cat([x, pairs[:, rows, columns]], 1))


class EarlyExit(nn.Module):
    """It stops at the first layer that is sure."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.heads = nn.ModuleList(nn.Linear(width, 5) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        out = self.heads[0](x)
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = relu(layer(x))
            out = softmax(head(x), -1)
            if out.max() > 0.9:
                break
        return out


class GreedySearch(nn.Module):
    """Tokens until one says stop, or there are many."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(50, width), nn.GRUCell(width, width), nn.Linear(width, 50)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        token, count = torch.zeros(h.shape[0], dtype=torch.long), torch.zeros((), dtype=torch.long)
        total = torch.zeros(h.shape[0])
        while (token != 1).any() and count < 12:
            h = self.cell(self.words(token), h)
            best, token = self.head(h).log_softmax(-1).max(-1)
            total, count = total + best, count + 1
        return token, total


def _ffnn() -> Built:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)), (
        torch.randn(16, 64),
    )


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("ffnn", "products with activations between", _ffnn),
    Architecture("attention", "one pre-norm layer", lambda: (Layer(128, 4), (torch.randn(2, 32, 128),))),
    Architecture("bert", "3 layers on 32 tokens", lambda: (Bert(), (torch.randint(0, 1000, (2, 32)),))),
    Architecture(
        "gpt-decode", "one token, a cache of keys and values",
        lambda: (GptDecode(), (torch.randn(1, 1, 128), torch.randn(1, 4, 64, 32), torch.randn(1, 4, 64, 32))),
    ),
    Architecture("llama", "grouped queries, gated product", lambda: (Llama(), (torch.randn(2, 32, 128),))),
    Architecture(
        "t5", "encoder with a bias by distance, decoder",
        lambda: (T5(), (torch.randn(2, 24, 64), torch.randn(2, 8, 64))),
    ),
    Architecture("vit", "patches of an image as tokens", lambda: (Vit(), (torch.randn(2, 3, 32, 32),))),
    Architecture("resnet", "convolutions, batch norms, residuals", lambda: (ResNet(), (torch.randn(2, 3, 32, 32),))),
    Architecture("mobilenet", "convolutions by depth", lambda: (MobileNet(), (torch.randn(2, 3, 32, 32),))),
    Architecture("diffusion", "a U-Net in a loop of 4 steps", lambda: (Diffusion(), (torch.randn(1, 3, 16, 16),))),
    Architecture("lstm-loop", "a cell over 12 steps", lambda: (LstmLoop(), (torch.randn(4, 12, 32),))),
    Architecture("mamba", "a selective scan over 12 steps", lambda: (Mamba(), (torch.randn(2, 12, 64),))),
    Architecture("moe", "2 of 4 experts", lambda: (Moe(), (torch.randn(16, 64),))),
    Architecture(
        "gnn", "messages on a graph of 64 nodes", lambda: (Gnn(), (torch.randn(64, 32), torch.randint(0, 64, (2, 256))))
    ),
    Architecture(
        "dlrm", "tables of embeddings, products of pairs",
        lambda: (Dlrm(), (torch.randn(32, 13), torch.randint(0, 500, (32, 4, 3)))),
    ),
    Architecture("early-exit", "data decide where it stops", lambda: (EarlyExit(), (torch.randn(1, 64),))),
    Architecture("greedy-search", "data decide how long it runs", lambda: (GreedySearch(), (torch.randn(4, 48),))),
)  # fmt: skip
