"""Modules of the wide suite that no configuration of `transformers` makes, written as people write them."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_act = nn.SiLU()


class _Residual(nn.Module):
    """Two convolutions, each behind a norm of groups and SiLU, beside a path around them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(_act(self.norm1(x)))
        return self.conv2(_act(self.norm2(y))) + self.skip(x)


class _PixelAttention(nn.Module):
    """Self-attention of all pixels, `f32[batch, channels, height, width]` to the same."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        qkv = self.qkv(self.norm(x)).reshape(batch, 3 * self.heads, channels // self.heads, height * width)
        q, k, v = qkv.transpose(-1, -2).chunk(3, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2)
        return x + self.out(mixed.reshape(batch, channels, height, width))


class UNet(nn.Module):
    """A U-Net as diffusion models have it: `f32[batch, 3, n, n]` to the same; widths 64, 128, 256."""

    def __init__(self, attends: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.down1, self.down2 = _Residual(64, 64), _Residual(128, 128)
        self.shrink1 = nn.Conv2d(64, 128, 3, stride=2, padding=1)
        self.shrink2 = nn.Conv2d(128, 256, 3, stride=2, padding=1)
        self.middle = nn.Sequential(_Residual(256, 256), _PixelAttention(256) if attends else nn.Identity())
        self.up2, self.up1 = _Residual(256 + 128, 128), _Residual(128 + 64, 64)
        self.norm, self.last = nn.GroupNorm(8, 64), nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(self.first(x))
        two = self.down2(self.shrink1(one))
        y = self.middle(self.shrink2(two))
        y = self.up2(torch.cat((F.interpolate(y, scale_factor=2.0, mode="nearest"), two), dim=1))
        y = self.up1(torch.cat((F.interpolate(y, scale_factor=2.0, mode="nearest"), one), dim=1))
        return self.last(_act(self.norm(y)))


class StyleNet(nn.Module):
    """Style transfer with instance norms: reflecting pads, stride 2, five residual blocks, upsampling."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()

        def layer(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
            return nn.Sequential(
                nn.ReflectionPad2d(size // 2), nn.Conv2d(inputs, outputs, size, stride),
                nn.InstanceNorm2d(outputs, affine=True), nn.ReLU(),
            )  # fmt: skip

        self.into = nn.Sequential(
            layer(3, width, 9), layer(width, 2 * width, 3, 2), layer(2 * width, 4 * width, 3, 2)
        )  # fmt: skip
        self.blocks = nn.ModuleList(layer(4 * width, 4 * width, 3) for _ in range(5))
        self.up1, self.up2 = layer(4 * width, 2 * width, 3), layer(2 * width, width, 3)
        self.last = nn.Conv2d(width, 3, 9, padding=4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x)
        for block in self.blocks:
            y = y + block(y)
        y = self.up1(F.interpolate(y, scale_factor=2.0))
        return self.last(self.up2(F.interpolate(y, scale_factor=2.0)))


class Recurrent(nn.Module):
    """A recurrent module of torch over `f32[batch, steps, 128]`: its outputs."""

    def __init__(self, kind: type[nn.RNNBase], bidirectional: bool, layers: int) -> None:
        super().__init__()
        self.layer = kind(128, 128, layers, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)[0]
        return found


class Tcn(nn.Module):
    """Dilated causal convolutions over time with residuals: `f32[batch, 64, time]` to the same."""

    def __init__(self, width: int = 64, size: int = 3, layers: int = 8) -> None:
        super().__init__()
        self.pads = [(size - 1) * 2**i for i in range(layers)]
        self.layers = nn.ModuleList(nn.Conv1d(width, width, size, dilation=2**i) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for pad, layer in zip(self.pads, self.layers, strict=True):
            x = x + F.relu(layer(F.pad(x, (pad, 0))))
        return x


class GraphNet(nn.Module):
    """Message passing by gather and `index_add`: nodes f32[n, 64], edges i64[2, m] to f32[n, 64]."""

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.updates = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = F.relu(message(torch.cat((nodes[source], nodes[target]), dim=1)))
            gathered = torch.zeros_like(nodes).index_add(0, target, sent)
            nodes = F.relu(update(torch.cat((nodes, gathered), dim=1)))
        return nodes


class Dlrm(nn.Module):
    """Recommendation: bags of embeddings, their products pair by pair, two MLPs. Indices i64[batch, tables, 4]."""

    def __init__(self, tables: int = 8, rows: int = 5000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid())
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        every = torch.stack([x, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(every, every.transpose(1, 2))
        first, second = self.get_buffer("pairs")
        found: Tensor = self.top(torch.cat((x, products[:, first, second]), dim=1))
        return found


class _Inverted(nn.Module):
    """A block of MobileNetV3: wide, by channel, squeezed and excited, narrow."""

    def __init__(self, inputs: int, wide: int, outputs: int, size: int, stride: int, excites: bool) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.by_channel = nn.Sequential(
            nn.Conv2d(wide, wide, size, stride, size // 2, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
        )
        inner = wide // 4
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, inner, 1), nn.ReLU(), nn.Conv2d(inner, wide, 1), nn.Hardsigmoid()
        )
        self.excites, self.has_residual = excites, stride == 1 and inputs == outputs
        self.narrow = nn.Sequential(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.by_channel(self.wide(x))
        y = self.narrow(y * self.excite(y) if self.excites else y)
        return x + y if self.has_residual else y


class MobileNetV3(nn.Module):
    """MobileNetV3 small, `f32[batch, 3, 224, 224]` to f32[batch, 1000]. Source: arXiv:1905.02244, table 2."""

    _BLOCKS = (
        (16, 16, 3, 2, True), (72, 24, 3, 2, False), (88, 24, 3, 1, False), (96, 40, 5, 2, True), (240, 40, 5, 1, True),
        (240, 40, 5, 1, True), (120, 48, 5, 1, True), (144, 48, 5, 1, True), (288, 96, 5, 2, True),
        (576, 96, 5, 1, True), (576, 96, 5, 1, True),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()]
        inputs = 16
        for wide, outputs, size, stride, excites in self._BLOCKS:
            layers.append(_Inverted(inputs, wide, outputs, size, stride, excites))
            inputs = outputs
        layers += [nn.Conv2d(inputs, 576, 1, bias=False), nn.BatchNorm2d(576), nn.Hardswish(), nn.AdaptiveAvgPool2d(1)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(576, 1024), nn.Hardswish(), nn.Linear(1024, 1000))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.features(x).flatten(1))
        return found


class Video(nn.Module):
    """Three-dimensional convolutions over f32[batch, 3, 8, 56, 56] to f32[batch, 100]."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Conv3d(inputs, outputs, 3, stride=(1, 2, 2), padding=1), nn.BatchNorm3d(outputs), nn.ReLU()]
        self.features, self.head = nn.Sequential(*layers), nn.Linear(128, 100)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.features(x).mean((2, 3, 4)))
        return found


class Generator(nn.Module):
    """Transposed convolutions from f32[batch, 100, 1, 1] to f32[batch, 3, 64, 64]."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 100
        for factor, stride, pad in ((8, 1, 0), (4, 2, 1), (2, 2, 1), (1, 2, 1)):
            layers += [nn.ConvTranspose2d(inputs, factor * width, 4, stride, pad, bias=False)]
            layers += [nn.BatchNorm2d(factor * width), nn.ReLU()]
            inputs = factor * width
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(inputs, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


class Spectrogram(nn.Module):
    """Logarithms of mel bands of a wave f32[batch, samples], and one convolution over them."""

    def __init__(self, size: int = 400, step: int = 160, bands: int = 80) -> None:
        super().__init__()
        self.size, self.step = size, step
        self.register_buffer("window", torch.hann_window(size))
        self.register_buffer("bands", torch.rand(bands, size // 2 + 1))
        self.conv = nn.Conv1d(bands, 128, 3, padding=1)

    def forward(self, wave: Tensor) -> Tensor:
        window = self.get_buffer("window")
        made = torch.stft(wave, self.size, self.step, window=window, return_complex=True)
        power = made.real.square() + made.imag.square()
        found: Tensor = F.gelu(self.conv((self.get_buffer("bands") @ power).clamp(min=1e-10).log10()))
        return found


class Experts(nn.Module):
    """Two of eight experts a token, all computed and weighted: f32[batch, tokens, 256] to the same."""

    def __init__(self, width: int = 256, experts: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up, self.down = (nn.Parameter(torch.randn(experts, width, width) * 0.05) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = torch.topk(self.gate(x), 2, dim=-1)
        weights = torch.zeros_like(self.gate(x)).scatter(-1, chosen, torch.softmax(scores, dim=-1))
        y = torch.einsum("bti,eio->bteo", x, self.up)
        return torch.einsum("bteo,eoi,bte->bti", _act(y), self.down, weights)
