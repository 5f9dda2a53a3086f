"""Random programs of the kinds that models nobody tuned for are made of: images, sequences, attention, graphs.

A program is drawn from a seed: a few layers of one kind, each of which takes and gives what its kind holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Step: TypeAlias = "Callable[[Tensor], Tensor]"
Program: TypeAlias = "Callable[..., Any]"


class Layers(nn.Module):
    """Steps in turn, some beside a path around them."""

    def __init__(self, steps: list[Step], skips: list[bool]) -> None:
        super().__init__()
        self.steps, self.skips = steps, skips
        self.held = nn.ModuleList(s for s in steps if isinstance(s, nn.Module))

    def forward(self, x: Tensor) -> Tensor:
        for step, skips in zip(self.steps, self.skips, strict=True):
            y = step(x)
            x = y + x if skips and y.shape == x.shape else y
        return x


def _numbers(r: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(r.randrange(2**31))


def _random(r: random.Random, *sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=_numbers(r))


# --- images: f32[batch, channels, height, width]


def _convolution(r: random.Random, channels: int) -> tuple[Step, int]:
    groups = r.choice([g for g in (1, 1, 1, 2, 3, channels) if channels % g == 0])
    out = groups * r.randint(1, max(1, 24 // groups))
    size, dilation = r.choice(((1, 1), (3, 1), (3, 2), (5, 1), (7, 1), (2, 1)))
    if r.random() < 0.25:
        return nn.ConvTranspose2d(channels, out, size, r.choice((1, 2)), size // 2, groups=groups), out
    modes = ("zeros", "zeros", "reflect", "replicate", "circular")
    return nn.Conv2d(
        channels, out, size, r.choice((1, 1, 2)), dilation * (size - 1) // 2, dilation, groups,
        r.random() < 0.7, r.choice(modes),
    ), out  # fmt: skip


def _norm(r: random.Random, channels: int) -> nn.Module:
    groups = r.choice([g for g in (1, 2, 4, channels) if channels % g == 0])
    affine = r.random() < 0.7
    kinds = (nn.GroupNorm(groups, channels, affine=affine), nn.InstanceNorm2d(channels, affine=affine),
             nn.BatchNorm2d(channels))  # fmt: skip
    return r.choice(kinds)


def _pool(r: random.Random) -> nn.Module:
    size = r.choice((2, 3, 5, 40))
    pad, ceil = r.randint(0, size // 2), r.random() < 0.5
    if size == 40:
        ceil = True
    if r.random() < 0.5:
        return nn.MaxPool2d(size, r.choice((1, 2)), pad, ceil_mode=ceil)
    return nn.AvgPool2d(size, r.choice((1, 2)), pad, ceil, r.random() < 0.5)


def _resampled(r: random.Random) -> Step:
    mode = r.choice(("nearest", "bilinear", "bicubic", "nearest-exact"))
    more: dict[str, Any] = {"align_corners": r.random() < 0.5} if mode in ("bilinear", "bicubic") else {}
    size = (r.randint(1, 14), r.randint(1, 14))
    how: dict[str, Any] = {"size": size} if r.random() < 0.5 else {"scale_factor": r.choice((2.0, 1.5, 0.7))}
    return lambda x: F.interpolate(x, mode=mode, **how, **more)


def _activation(r: random.Random) -> nn.Module:
    kinds: tuple[nn.Module, ...] = (
        nn.ReLU(), nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Hardswish(), nn.LeakyReLU(0.1), nn.Mish(), nn.Sigmoid()
    )  # fmt: skip
    return r.choice(kinds)


def _excited(channels: int) -> Step:
    scale = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1), nn.Sigmoid())
    return _Scaled(scale)


class _Scaled(nn.Module):
    def __init__(self, scale: nn.Module) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x * self.scale(x)
        return found


def image(r: random.Random) -> tuple[Program, tuple[Tensor, ...]]:
    """Convolutions, norms, pools, resampling."""
    channels = r.choice((3, 4, 6, 8, 12, 16))
    x = _random(r, r.choice((1, 2)), channels, r.randint(5, 12), r.randint(5, 12))
    if r.random() < 0.4:
        x = x.to(memory_format=torch.channels_last)
    steps: list[Step] = []
    for _ in range(r.randint(2, 5)):
        kind = r.choice(
            ("convolution", "convolution", "norm", "activation", "activation", "pool", "resample", "excite")
        )
        if kind == "convolution":
            step, channels = _convolution(r, channels)
            steps.append(step)
        elif kind == "norm":
            steps.append(_norm(r, channels))
        elif kind == "excite":
            steps.append(_excited(channels))
        else:
            steps.append({"activation": _activation, "pool": _pool, "resample": _resampled}[kind](r))
    return Layers(steps, [r.random() < 0.4 for _ in steps]).eval(), (x,)


# --- sequences: f32[batch, steps, width]


class _Recurrent(nn.Module):
    def __init__(self, r: random.Random, width: int, out: int) -> None:
        super().__init__()
        kind = r.choice((nn.LSTM, nn.GRU, nn.RNN))
        both = r.random() < 0.5
        more: dict[str, Any] = {"nonlinearity": r.choice(("tanh", "relu"))} if kind is nn.RNN else {}
        self.layer = kind(width, out, r.choice((1, 2)), bidirectional=both, batch_first=True, **more)
        self.out = out * (2 if both else 1)
        self.lengths: list[int] = []
        self.sorts = False

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor
        if not self.lengths or max(self.lengths) > x.shape[1]:
            found = self.layer(x)[0]
            return found
        packed = pack_padded_sequence(x, torch.tensor(self.lengths), True, not self.sorts)
        found = pad_packed_sequence(self.layer(packed)[0], batch_first=True, total_length=x.shape[1])[0]
        return found


def _scanned(r: random.Random) -> Step:
    kinds: tuple[Step, ...] = (
        lambda x: x.cumsum(1), lambda x: x.cumsum(-1), lambda x: x.sigmoid().cumprod(1), lambda x: x.cummax(1)[0],
        lambda x: x.logcumsumexp(1), lambda x: x.sort(1)[0], lambda x: x.topk(2, -1)[0], lambda x: x.flip(1),
        lambda x: x.softmax(1), lambda x: x.roll(1, 1), lambda x: x.diff(dim=1),
    )  # fmt: skip
    return r.choice(kinds)


class _Timed(nn.Module):
    """A convolution over time of rows."""

    def __init__(self, r: random.Random, width: int, out: int) -> None:
        super().__init__()
        size, dilation = r.choice(((1, 1), (3, 1), (3, 4), (5, 2)))
        self.pad = dilation * (size - 1)
        self.layer = nn.Conv1d(width, out, size, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(F.pad(x.transpose(1, 2), (self.pad, 0)))
        return found.transpose(1, 2)


def sequence(r: random.Random) -> tuple[Program, tuple[Tensor, ...]]:
    """Recurrent layers, packed ones too, convolutions over time, scans."""
    width, batch, length = r.randint(2, 20), r.randint(1, 5), r.randint(4, 12)
    x, steps = _random(r, batch, length, width), list[Step]()
    for _ in range(r.randint(1, 4)):
        kind = r.choice(("recurrent", "recurrent", "time", "scan", "linear"))
        if kind == "recurrent":
            layer = _Recurrent(r, width, r.randint(1, 20))
            if r.random() < 0.5:
                lengths = [r.randint(1, length) for _ in range(batch)]
                layer.sorts = r.random() < 0.5
                layer.lengths = lengths if layer.sorts else sorted(lengths, reverse=True)
            steps.append(layer)
            width = layer.out
        elif kind == "scan":
            step = _scanned(r)
            steps.append(step)
            with torch.no_grad():
                _, length, width = step(torch.zeros(batch, length, width)).shape
        else:
            out = r.randint(2, 20)
            steps.append(nn.Linear(width, out) if kind == "linear" else _Timed(r, width, out))
            width = out
    return Layers(steps, [r.random() < 0.3 for _ in steps]).eval(), (x,)


# --- attention


def attention(r: random.Random) -> tuple[Program, tuple[Tensor, ...]]:
    """Scores with biases of positions, windows, caps, masks of any broadcast, grouped heads."""
    batch, heads, size = r.randint(1, 2), r.choice((1, 2, 4)), r.choice((8, 16, 24, 64))
    queries, keys = r.randint(1, 20), r.randint(2, 40)
    groups = r.choice([g for g in (1, 2, 4) if heads % g == 0])
    q = _random(r, batch, heads, queries, size)
    k, v = (_random(r, batch, heads // groups, keys, size) for _ in range(2))
    kind = r.choice(("plain", "alibi", "window", "cap", "mask", "table", "gathered"))
    bias = _random(r, *(r.choice((1, n)) for n in (batch, heads, queries, keys)))
    table = _random(r, 2 * max(queries, keys) + 1, heads)
    cap, window, spelled = r.choice((5.0, 30.0)), r.randint(1, keys), r.random() < 0.5

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        apart = torch.arange(queries)[:, None] - torch.arange(keys)[None]
        mask = torch.zeros(queries, keys)
        if kind == "alibi":
            mask = -apart.abs() * torch.tensor([2.0**-h for h in range(heads)])[:, None, None]
        elif kind == "window":
            mask = torch.where((apart.abs() < window), 0.0, -torch.inf)
        elif kind == "mask":
            mask = bias
        elif kind == "table":
            mask = table[apart + max(queries, keys)].permute(2, 0, 1)
        if kind in ("cap", "gathered") or spelled:
            scores = q @ k.mT * size**-0.5
            if kind == "cap":
                scores = cap * torch.tanh(scores / cap)
            elif kind == "gathered":
                at = apart.clamp(0, keys - 1).expand(*scores.shape[:2], -1, -1)
                scores = scores + torch.gather(scores, -1, at)
            return (scores + mask).softmax(-1).nan_to_num() @ v
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(batch, heads, queries, keys))

    return program, (q, k, v)


# --- graphs, bags, spectra


def graph(r: random.Random) -> tuple[Program, tuple[Tensor, ...]]:
    """Gather, scatter, segment softmax, bags of embeddings."""
    nodes, edges, width = r.randint(2, 20), r.randint(1, 60), r.choice((1, 3, 8, 17))
    x = _random(r, nodes, width)
    ends = torch.randint(0, nodes, (2, edges), generator=_numbers(r))
    weight = _random(r, width, width)
    kinds = [r.choice(("add", "amax", "amin", "mean", "prod", "softmax", "bag", "count")) for _ in range(2)]
    mode = r.choice(("sum", "mean", "max"))

    def program(x: Tensor, ends: Tensor) -> Tensor:
        source, target = ends[0], ends[1]
        at = target[:, None].expand(-1, width)
        for kind in kinds:
            sent = x[source]
            if kind == "add":
                x = torch.zeros_like(x).index_add(0, target, sent)
            elif kind == "softmax":
                most = torch.full_like(x, -torch.inf).scatter_reduce(0, at, sent, "amax")
                e = (sent - most[target]).exp()
                x = x + torch.zeros_like(x).scatter_add(
                    0, at, sent * e / torch.zeros_like(x).index_add(0, target, e)[target]
                )
            elif kind == "bag":
                x = x[:1] + F.embedding_bag(target.view(1, -1), x, mode=mode)
                x = x.expand(nodes, width).contiguous()
            elif kind == "count":
                x = x / torch.bincount(target, minlength=nodes).clamp(min=1)[:, None]
            else:
                x = torch.zeros_like(x).scatter_reduce(0, at, sent.tanh(), kind, include_self=kind == "amax")
            x = (x @ weight).tanh()
        return x

    return program, (x, ends)


def spectrum(r: random.Random) -> tuple[Program, tuple[Tensor, ...]]:
    """Fourier transforms of rows and of windows."""
    rows, length = r.randint(1, 4), r.choice((16, 20, 32, 50, 64))
    x, window = _random(r, rows, 4 * length), torch.hann_window(length)
    kind, step = r.choice(("rfft", "stft", "irfft", "fft2")), r.choice((4, 8, length // 2))

    def program(x: Tensor) -> Tensor:
        match kind:
            case "stft":
                return torch.stft(x, length, step, window=window, return_complex=True).abs().square()
            case "rfft":
                return torch.view_as_real(torch.fft.rfft(x, norm="ortho"))
            case "irfft":
                return torch.fft.irfft(torch.fft.rfft(x) * 2)
            case _:
                return torch.fft.fft2(x.view(rows, 4, length)).abs()

    return program, (x,)


KINDS = (image, image, image, sequence, sequence, attention, attention, graph, spectrum)


def drawn(seed: int) -> tuple[Program, tuple[Tensor, ...]]:
    """The program of a seed and its arguments."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    return r.choice(KINDS)(r)
