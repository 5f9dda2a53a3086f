"""Whole training steps in C: forward, backward and the optimizer's update, with the state of each context."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from smelt.package.c.export import export
from smelt.runtime.ingot.natives import targets
from tests.ingots_c.client import Library
from tests.ingots_c.test_calls import alike


class Decoder(nn.Module):
    """A small language model: an embedding, attention, an MLP, norms, a head."""

    def __init__(self, width: int = 16, words: int = 32) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.first(h)).chunk(3, -1))
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return self.head(h + self.down(F.gelu(self.up(self.second(h)))))


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], Tensor]:
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_steps_go_on_in_c_as_in_python(tmp_path: Path) -> None:
    torch.manual_seed(3)
    mlp, decoder = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), Decoder()
    optimizers = torch.optim.SGD(mlp.parameters(), 0.1, momentum=0.9), torch.optim.AdamW(decoder.parameters(), 0.01)
    given: dict[str, tuple[Any, ...]] = {
        "mlp": (stepped(mlp, optimizers[0]), torch.randn(6, 8), torch.randint(4, (6,))),
        "decoder": (stepped(decoder, optimizers[1]), torch.randint(32, (2, 8)), torch.randint(32, (2, 8))),
    }
    for name, (step, *batch) in given.items():
        compiled = smelt.compile(step)
        for _ in range(3):
            compiled(*batch)
        path = tmp_path / f"{name}.ingot"
        smelt.save({"step": compiled}, path, targets=[targets()[0]])
        loaded, exported = smelt.load(path), export(path, tmp_path / name)
        context = Library(exported).open(exported.weights).context()
        names, losses = [kind.name for kind in exported.signatures[0].outputs.values()], []
        for _ in range(3):
            wanted = loaded(*batch)
            made = dict(zip(names, context.call("step", *batch), strict=True))
            assert alike([made["out"]], wanted), name
            losses.append(float(made["out"]))
            for key, value in loaded.named_state():
                assert torch.equal(context.state(key), value), (name, key)
            for key, parameter in loaded.named_parameters():
                assert alike([made[f"grad_{key.replace('.', '_')}"]], parameter.grad), (name, key)
        assert losses == sorted(losses, reverse=True)
