"""Programs that people write, with the control flow that they have: decoding, searching, packing, recursing.

Each is ordinary PyTorch. `CASES` gives a program with inputs that take different ways through it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, END = 17, 0


class TinyDecoder(nn.Module):
    """One layer of attention with a cache that grows by a step at each token."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(VOCABULARY, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def step(self, token: Tensor, cache: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Logits (batch, vocabulary) for the next token, and the grown cache."""
        x = self.embed(token)
        batch, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, 3, self.heads, 1, width // self.heads).unbind(1)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.reshape(batch, width))
        return self.head(x), (k, v)


class Greedy(TinyDecoder):
    """Greedy decoding until the end-of-sequence token, or `limit` tokens."""

    limit = 12

    def forward(self, token: Tensor) -> Tensor:
        out, cache = [token], None
        for _ in range(self.limit):
            logits, cache = self.step(token, cache)
            token = logits.argmax(-1)
            out.append(token)
            if (token == END).all():
                break
        return torch.stack(out, 1)


class Beam(TinyDecoder):
    """Beam search over one sentence; it ends where the best beam ends."""

    width, limit = 3, 8

    def forward(self, token: Tensor) -> tuple[Tensor, Tensor]:
        tokens = token.expand(self.width).clone()
        scores = torch.full((self.width,), -math.inf)
        scores[0] = 0.0
        sequences = tokens[:, None]
        cache = None
        for _ in range(self.limit):
            logits, cache = self.step(tokens, cache)
            total = scores[:, None] + logits.log_softmax(-1)
            scores, flat = total.flatten().topk(self.width)
            beam, tokens = flat // VOCABULARY, flat % VOCABULARY
            cache = (cache[0][beam], cache[1][beam])
            sequences = torch.cat([sequences[beam], tokens[:, None]], 1)
            if tokens[0] == END:
                break
        return sequences, scores


class TopKSampling(TinyDecoder):
    """Sampling from the k likeliest tokens, with a temperature."""

    def forward(self, token: Tensor, k: int = 4, temperature: float = 0.8) -> Tensor:
        out, cache = [], None
        for _ in range(10):
            logits, cache = self.step(token, cache)
            top, index = (logits / temperature).topk(k, -1)
            drawn = torch.multinomial(top.softmax(-1), 1)
            token = index.gather(-1, drawn).squeeze(-1)
            out.append(token)
            if bool((token == END).any()):
                break
        return torch.stack(out)


def nms(boxes: Tensor, scores: Tensor, limit: float = 0.5) -> Tensor:
    """Non-maximum suppression: indices of the boxes (n, 4) kept, best first."""
    order = scores.argsort(descending=True)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    keep = []
    while order.numel() > 0:
        best = order[0]
        keep.append(best)
        rest = order[1:]
        low = torch.maximum(boxes[best, :2], boxes[rest, :2])
        high = torch.minimum(boxes[best, 2:], boxes[rest, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        order = rest[shared / (area[best] + area[rest] - shared) <= limit]
    return torch.stack(keep)


class EarlyExit(nn.Module):
    """A transformer that stops at the layer after which it is sure enough."""

    def __init__(self, width: int = 16, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.heads = nn.ModuleList(nn.Linear(width, 3) for _ in range(layers))

    def forward(self, x: Tensor, sure: float = 0.45) -> tuple[Tensor, int]:
        depth = 0
        logits = x.new_zeros(x.shape[0], 3)
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = layer(x)
            logits = head(x.mean(1))
            depth += 1
            if logits.softmax(-1).max(-1).values.min() > sure:
                break
        return logits, depth


class AdaptiveRnn(nn.Module):
    """Adaptive computation time: each step ponders until its halting probability is used up."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.cell = nn.GRUCell(width, width)
        self.halt = nn.Linear(width, 1)

    def forward(self, xs: Tensor) -> tuple[Tensor, Tensor]:
        h = xs.new_zeros(xs.shape[1], xs.shape[2])
        pondered = xs.new_zeros(())
        outs = []
        for x in xs:
            left = xs.new_ones(())
            state = torch.zeros_like(h)
            for _ in range(6):
                h = self.cell(x, h)
                p = self.halt(h).sigmoid().mean()
                pondered = pondered + 1
                if p >= left:
                    state = state + left * h
                    break
                state = state + p * h
                left = left - p
            outs.append(state)
        return torch.stack(outs), pondered


def newton(x: Tensor, tolerance: float = 1e-6) -> tuple[Tensor, int]:
    """Square roots by Newton's iteration, until no element moves by more than `tolerance`."""
    root, steps = x.clone(), 0
    while True:
        following = 0.5 * (root + x / root)
        steps += 1
        if (following - root).abs().max() < tolerance or steps >= 60:
            return following, steps
        root = following


class Router(nn.Module):
    """A mixture of experts: each token goes to its best two; experts without a token do nothing."""

    def __init__(self, width: int = 12, experts: int = 5) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, weights[token, place, None] * expert(x[token]))
        return out


class Ragged(nn.Module):
    """Padded sentences (batch, time, width) packed to their real tokens, transformed, and padded again."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, int]:
        mask = torch.arange(x.shape[1]) < lengths[:, None]
        packed = x[mask]
        out = torch.zeros_like(x)
        out[mask] = self.layer(packed)
        longest = int(lengths.max())
        return out[:, :longest], len(packed)


@dataclass
class Tree:
    """A binary tree: a leaf has a word, an inner node two children."""

    word: Tensor | None = None
    left: Tree | None = None
    right: Tree | None = None


class TreeLstm(nn.Module):
    """A binary tree-LSTM (Tai, Socher, Manning 2015), by recursion."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.leaf = nn.Linear(width, 2 * width)
        self.inner = nn.Linear(2 * width, 5 * width)

    def visit(self, tree: Tree) -> tuple[Tensor, Tensor]:
        """The state (h, c) of a node, each (1, width)."""
        if tree.word is not None:
            h, c = self.leaf(tree.word).chunk(2, -1)
            return h.tanh(), c
        assert tree.left is not None and tree.right is not None
        (hl, cl), (hr, cr) = self.visit(tree.left), self.visit(tree.right)
        i, fl, fr, o, u = self.inner(torch.cat([hl, hr], -1)).chunk(5, -1)
        c = i.sigmoid() * u.tanh() + fl.sigmoid() * cl + fr.sigmoid() * cr
        return o.sigmoid() * c.tanh(), c

    def forward(self, tree: Tree) -> Tensor:
        h, _ = self.visit(tree)
        if h.abs().max() > 0.2:
            h = h / h.abs().max()
        return h


class StackTreeLstm(TreeLstm):
    """The same with its tree in tensors: a shift-reduce parse, so that the way depends on data."""

    def forward(self, words: Tensor, moves: Tensor) -> Tensor:  # type: ignore[override]
        states: list[tuple[Tensor, Tensor]] = []
        word = 0
        for move in moves:
            if move == 0:
                h, c = self.leaf(words[word : word + 1]).chunk(2, -1)
                states.append((h.tanh(), c))
                word += 1
            else:
                (hr, cr), (hl, cl) = states.pop(), states.pop()
                i, fl, fr, o, u = self.inner(torch.cat([hl, hr], -1)).chunk(5, -1)
                c = i.sigmoid() * u.tanh() + fl.sigmoid() * cl + fr.sigmoid() * cr
                states.append((o.sigmoid() * c.tanh(), c))
        return states[-1][0]


@dataclass(frozen=True)
class Case:
    """A program and calls of it: `make()` the program, `calls()` the arguments of each call."""

    make: Callable[[], Any]
    calls: Callable[[], list[tuple[Any, ...]]]


def _module(cls: type[nn.Module], seed: int = 3) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(seed)
        return cls().eval()

    return make


def _tokens() -> list[tuple[Any, ...]]:
    return [(torch.tensor([n]),) for n in range(1, 9)]


def _boxes() -> list[tuple[Any, ...]]:
    calls = []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        corner = torch.rand(12, 2, generator=generator) * (1 + seed)
        calls.append((torch.cat([corner, corner + 1], 1), torch.rand(12, generator=generator)))
    return calls


def _random(*shape: int, count: int = 6, scale: float = 1.0) -> list[tuple[Any, ...]]:
    return [
        (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale * (seed + 1),)
        for seed in range(count)
    ]


def _magnitudes() -> list[tuple[Any, ...]]:
    return [(x.abs() * 100.0**power + 1e-7,) for power, (x,) in enumerate(_random(16), -3)]


def _sentences() -> list[tuple[Any, ...]]:
    return [
        (torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(i)), torch.tensor(lengths))
        for i, lengths in enumerate(([6, 2, 3], [1, 1, 1], [2, 6, 6], [4, 4, 5]))
    ]


def _parses() -> list[tuple[Any, ...]]:
    moves = ([0, 0, 1, 0, 1], [0, 0, 0, 1, 1], [0, 0, 1, 0, 1])
    return [
        (torch.randn(3, 8, generator=torch.Generator().manual_seed(i)), torch.tensor(m)) for i, m in enumerate(moves)
    ]


def _trees() -> list[tuple[Any, ...]]:
    def leaf(seed: int) -> Tree:
        return Tree(torch.randn(1, 8, generator=torch.Generator().manual_seed(seed)))

    one = Tree(None, Tree(None, leaf(0), leaf(1)), leaf(2))
    return [(one,), (Tree(None, leaf(3), Tree(None, leaf(4), leaf(5))),), (leaf(6),), (one,)]


CASES = {
    "greedy": Case(_module(Greedy, 153), _tokens),
    "beam": Case(_module(Beam, 84), _tokens),
    "top_k_sampling": Case(_module(TopKSampling, 122), _tokens),
    "nms": Case(lambda: nms, _boxes),
    "early_exit": Case(_module(EarlyExit, 57), lambda: _random(2, 5, 16, scale=3.0)),
    "adaptive_rnn": Case(_module(AdaptiveRnn), lambda: _random(5, 2, 8)),
    "newton": Case(lambda: newton, _magnitudes),
    "router": Case(_module(Router), lambda: _random(6, 12)),
    "ragged": Case(_module(Ragged), _sentences),
    "tree_lstm": Case(_module(TreeLstm), _trees),
    "stack_tree_lstm": Case(_module(StackTreeLstm), _parses),
}
