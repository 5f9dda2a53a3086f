"""Two hundred steps of small forms of the benchmarks' models: the losses stay within the noise of eager's.

Training amplifies roundings, so the noise is measured: eager against itself with weights that differ in their last
bits, and with another number of threads. Dropout draws the same numbers.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.bench.models import transformer
from smelt.bench.training_models import Labelled, LstmLoss, MlpLoss, NanoGptLoss, OdeLoss, PinnLoss

Tensor = torch.Tensor
STEPS = 200
Batch = Callable[[torch.Generator], tuple[Tensor, ...]]


def _normal(*shapes: tuple[int, ...]) -> Batch:
    return lambda g: tuple(torch.randn(shape, generator=g) for shape in shapes)


def _tokens(vocabulary: int, *shape: int) -> Batch:
    return lambda g: (torch.randint(0, vocabulary, shape, generator=g),)


def _labelled(config: str, model: str, keyword: str, **options: Any) -> nn.Module:
    made = transformer(config, model, {"problem_type": "single_label_classification", "num_labels": 3, **options})[0]
    return Labelled(made.train(), keyword)


def _text(g: torch.Generator) -> tuple[Tensor, ...]:
    return torch.randint(0, 40, (3, 8), generator=g), torch.randint(0, 3, (3,), generator=g)


def _pictures(g: torch.Generator) -> tuple[Tensor, ...]:
    return torch.randn(4, 3, 16, 16, generator=g), torch.randint(0, 3, (4,), generator=g)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 16), nn.Dropout(0.4))
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.head(F.dropout(self.norm(self.net(x)), 0.1, self.training)), y)


_WIDTHS = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
MODELS: dict[str, tuple[Callable[[], nn.Module], Batch]] = {
    "mlp": (MlpLoss, _normal((16, 32), (16, 1))),
    "lstm": (LstmLoss, _normal((4, 2, 64), (2, 128), (2, 128), (2, 1))),
    "ode": (lambda: OdeLoss(5), _normal((8, 4), (8, 4))),
    "pinn": (lambda: PinnLoss(8), lambda g: (torch.rand(32, 2, generator=g),)),
    "nano gpt": (lambda: NanoGptLoss(2, 16, 2, 20, 12), _tokens(20, 3, 13)),
    "dropout": (Dropping, _normal((12, 8), (12, 1))),
    "bert": (
        lambda: _labelled("BertConfig", "BertForSequenceClassification", "input_ids", vocab_size=40, **_WIDTHS), _text
    ),
    "gpt2": (
        lambda: _labelled("GPT2Config", "GPT2ForSequenceClassification", "input_ids", vocab_size=40, n_embd=16,
                          n_layer=2, n_head=2, pad_token_id=0, use_cache=False),
        lambda g: (torch.randint(1, 40, (3, 8), generator=g), torch.randint(0, 3, (3,), generator=g)),
    ),
    "vit": (
        lambda: _labelled("ViTConfig", "ViTForImageClassification", "pixel_values", image_size=16, patch_size=8,
                          hidden_dropout_prob=0.1, **_WIDTHS), _pictures,
    ),
    "resnet": (
        lambda: _labelled("ResNetConfig", "ResNetForImageClassification", "pixel_values", layer_type="basic",
                          embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]), _pictures,
    ),
}  # fmt: skip


def _eager(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Callable[..., Tensor], Any]:
    def step(*args: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(*args)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, None


def _node(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Callable[..., Tensor], Any]:
    compiled = smelt.compile(model, options={"train": True, "adaptive": False})
    return _eager(compiled, optimizer)[0], compiled


def _whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Callable[..., Tensor], Any]:
    compiled = smelt.compile(_eager(model, optimizer)[0], options={"adaptive": False})
    return compiled, compiled


def _curve(model: nn.Module, batch: Batch, form: Any) -> Tensor:
    step, compiled = form(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
    generator = torch.Generator().manual_seed(7)
    losses = []
    for number in range(STEPS):
        torch.manual_seed(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", smelt.SmeltWarning)
            losses.append(step(*batch(generator)))
    assert compiled is None or compiled.stats().builds, compiled.stats()
    return torch.stack(losses).double()


def _nudged(model: nn.Module, seed: int) -> nn.Module:
    """The model with weights that differ in their last bits."""
    made, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(1 + torch.finfo(p.dtype).eps * (torch.rand(p.shape, generator=generator) - 0.5))
    return made


@pytest.mark.spread(20)
@pytest.mark.parametrize("form", [_node, _whole], ids=["node", "whole step"])
@pytest.mark.parametrize("name", MODELS)
def test_losses_are_eagers(name: str, form: Any) -> None:
    make, batch = MODELS[name]
    torch.manual_seed(0)
    model = make()
    eager = _curve(copy.deepcopy(model), batch, _eager)
    others = [_curve(_nudged(model, seed), batch, _eager) for seed in (1, 2)]
    threads = torch.get_num_threads()
    torch.set_num_threads(3 - min(threads, 2))
    try:
        others.append(_curve(copy.deepcopy(model), batch, _eager))
    finally:
        torch.set_num_threads(threads)
    found = _curve(model, batch, form)
    noise = torch.stack([(other - eager).abs().cummax(0)[0] for other in others]).max(0)[0]
    allowed = 4 * noise + 4 * torch.finfo(torch.float32).eps * eager.abs().cummax(0)[0]
    assert ((found - eager).abs() <= allowed).all(), ((found - eager).abs() / allowed).max()
