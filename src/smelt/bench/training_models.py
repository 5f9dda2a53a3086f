"""Training steps that are benchmarked: losses of small and middle models, with the gradients of their parameters.

A program's target is `Gradients`: called, it gives the loss and the gradient of every parameter, so that eager, the run
in float64 and each system are compared on both. None draws random numbers: no dropout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smelt.bench.models import Built, Model, transformer
from smelt.bench.programs import LstmLoop


class Gradients(nn.Module):
    """`loss` as `inputs -> loss, gradients of its parameters`."""

    loss: nn.Module

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            loss = self.loss(*args)
            return loss.detach(), *torch.autograd.grad(loss, list(self.loss.parameters()))


# --- programs


class MlpLoss(nn.Module):
    """Mean squared error of 32-64-64-1 with ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.net(x), y)


class LstmLoss(nn.Module):
    """Mean squared error of the last state of an LSTM cell in a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = LstmLoop(), nn.Linear(128, 1)

    def forward(self, x: Tensor, h: Tensor, c: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.head(self.cell(x, h, c)[0]), y)


class Block(nn.Module):
    """A transformer's block, norms first, causal."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, w = x.shape
        q, k, v = (p.view(b, s, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, w))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class NanoGptLoss(nn.Module):
    """Cross entropy of a small GPT's next characters."""

    def __init__(self, layers: int = 6, width: int = 192, heads: int = 6, vocabulary: int = 96, length: int = 128):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x, y = tokens[:, :-1], tokens[:, 1:]
        h = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


class Labelled(nn.Module):
    """The loss of a `transformers` model that is given its labels."""

    def __init__(self, model: nn.Module, keyword: str) -> None:
        super().__init__()
        self.model, self.keyword = model, keyword

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.model(**{self.keyword: x, "labels": labels}).loss
        return loss


class OdeLoss(nn.Module):
    """Distance of a neural ODE's state after 100 steps of Runge-Kutta of fourth order."""

    def __init__(self, steps: int = 100) -> None:
        super().__init__()
        self.steps = steps
        self.field = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        step = 1.0 / self.steps
        for _ in range(self.steps):
            a = self.field(x)
            b = self.field(x + step / 2 * a)
            c = self.field(x + step / 2 * b)
            d = self.field(x + step * c)
            x = x + step / 6 * (a + 2 * b + 2 * c + d)
        return F.mse_loss(x, y)


class PinnLoss(nn.Module):
    """Residual of the heat equation u_t = u_xx, whose derivatives are gradients of the network."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, points: Tensor) -> Tensor:
        points = points.detach().requires_grad_()
        u = self.net(points)
        first = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)[0][:, 0]
        residual = first[:, 1] - second
        return residual.square().mean() + (u[:, 0] - torch.sin(math.pi * points[:, 0])).square().mean()


def _nano(batch: int) -> Built:
    return Gradients(NanoGptLoss()), (torch.randint(0, 96, (batch, 129)),)


def _labelled(keyword: str, config: str, model: str, options: Mapping[str, Any]) -> Gradients:
    return Gradients(Labelled(transformer(config, model, options)[0], keyword))


_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_CLASSES = {"num_labels": 1000, "problem_type": "single_label_classification"}


def _bert(batch: int = 4, **changes: Any) -> Built:
    options = {"num_hidden_layers": 4, "problem_type": "single_label_classification", **_NO_DROPOUT, **changes}
    target = _labelled("input_ids", "BertConfig", "BertForSequenceClassification", options)
    return target, (torch.randint(0, 30522, (batch, 128)), torch.randint(0, 2, (batch,)))


def _gpt2() -> Built:
    options = {"n_layer": 4, "use_cache": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    target = _labelled("input_ids", "GPT2Config", "GPT2LMHeadModel", options)
    target.loss.model.loss_type = "ForCausalLM"  # its class has a name from which transformers cannot tell, and says so
    tokens = torch.randint(0, 50257, (4, 128))
    return target, (tokens, tokens.clone())


def _vit() -> Built:
    options = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6, **_CLASSES, **_NO_DROPOUT}
    target = _labelled("pixel_values", "ViTConfig", "ViTForImageClassification", options)
    return target, (torch.randn(4, 3, 224, 224), torch.randint(0, 1000, (4,)))


def _resnet(**options: Any) -> Built:
    target = _labelled("pixel_values", "ResNetConfig", "ResNetForImageClassification", {**_CLASSES, **options})
    return target, (torch.randn(4, 3, 128, 128), torch.randint(0, 1000, (4,)))


_RESNET18 = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
_HF = ("transformers",)


def _model(name: str, summary: str, make: Callable[[], Built], needs: tuple[str, ...] = ()) -> Model:
    return Model(name, summary, make, needs, trains=True)


def _mlp() -> Built:
    return Gradients(MlpLoss()), (torch.randn(64, 32), torch.randn(64, 1))


def _lstm() -> Built:
    return Gradients(LstmLoss()), (torch.randn(32, 8, 64), torch.randn(8, 128), torch.randn(8, 128), torch.randn(8, 1))


def _ode() -> Built:
    return Gradients(OdeLoss()), (torch.randn(16, 4), torch.randn(16, 4))


TRAINING_MODELS: tuple[Model, ...] = (
    _model("mlp_step", "MLP 32-64-64-1, 64 rows", _mlp),
    _model("lstm_step", "LSTM cell 64 to 128, Python loop of 32 steps, b8", _lstm),
    _model("ode_step", "neural ODE, 100 steps of RK4, 16 rows", _ode),
    _model("pinn_step", "heat equation, 2nd derivatives", lambda: (Gradients(PinnLoss()), (torch.rand(256, 2),))),
    _model("nano_gpt_step", "GPT 6 x 192, b16, 128 tokens", lambda: _nano(16)),
    _model("nano_gpt_b2_step", "the same, b2", lambda: _nano(2)),
    _model("bert_step", "BERT 4 layers, b4, 128 tokens", _bert, _HF),
    _model("gpt2_step", "GPT-2 4 layers with language head, b4, 128 tokens", _gpt2, _HF),
    _model("vit_step", "ViT-small 12 x 384, four 224x224 images", _vit, _HF),
    _model("resnet18_step", "ResNet-18, four 128x128 images", lambda: _resnet(**_RESNET18), _HF),
    _model("resnet50_step", "ResNet-50, four 128x128 images", _resnet, _HF),
)
