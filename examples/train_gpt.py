"""Train a small GPT on this repository's own documentation, eagerly and compiled, from one seed.

Run: python examples/train_gpt.py [--steps 200] [--plot train_gpt.png]
Both trainings see the same batches in the same order, so the two curves of losses coincide; a line at the end
says how far apart they are, and what a step cost each.
"""

import argparse
import copy
import importlib.util
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import Progress
from torch import Tensor, nn

import smelt

LENGTH, BATCH = 64, 8


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Characters in, the cross entropy of each next one out."""

    def __init__(self, vocabulary: int, layers: int = 4, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, text: Tensor) -> Tensor:
        x, wanted = text[:, :-1], text[:, 1:]
        h = self.characters(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), wanted.flatten())


def corpus() -> tuple[Tensor, int]:
    """All pages of `docs` as numbers of characters, and how many different characters there are."""
    pages = sorted((Path(__file__).parent.parent / "docs").rglob("*.md"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    numbers = {character: i for i, character in enumerate(sorted(set(text)))}
    return torch.tensor([numbers[character] for character in text]), len(numbers)


def batches(text: Tensor, steps: int) -> list[Tensor]:
    """The same for every training: rows of `LENGTH` characters and the one after them."""
    generator = torch.Generator().manual_seed(1)
    starts = torch.randint(len(text) - LENGTH - 1, (steps, BATCH), generator=generator)
    return [torch.stack([text[s : s + LENGTH + 1] for s in row.tolist()]) for row in starts]


def train(model: nn.Module, data: list[Tensor], name: str) -> tuple[list[float], float]:
    """The loss of each step, and CPU seconds of a step: the median."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, seconds = [], []
    with Progress() as bar:
        task = bar.add_task(name, total=len(data))
        for batch in data:
            start = time.process_time()
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            optimizer.step()
            seconds.append(time.process_time() - start)
            losses.append(loss.item())
            bar.update(task, advance=1, description=f"{name}: loss {losses[-1]:.3f}")
    return losses, sorted(seconds)[len(seconds) // 2]


def draw(curves: dict[str, list[float]], path: Path) -> None:
    """Both curves in one picture, the second one dashed: where they agree it covers the first."""
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed (pip install matplotlib)")
        return
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        axes.plot(losses, style, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats a character)")
    axes.legend()
    figure.savefig(path, dpi=120)
    print(f"plot: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on the documentation, eagerly and compiled.")
    parser.add_argument("--steps", type=int, default=int(os.environ.get("ROUNDS", "200")))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--plot", type=Path, default=Path("train_gpt.png"))
    args = parser.parse_args()
    text, vocabulary = corpus()
    data = batches(text, args.steps)
    torch.manual_seed(0)
    eager = Gpt(vocabulary, args.layers, args.width)
    compiled = smelt.compile(copy.deepcopy(eager))
    curves, cost = {}, {}
    for name, model in (("eager", eager), ("compiled", compiled)):
        curves[name], cost[name] = train(model, data, name)
    apart = max(abs(a - b) / a for a, b in zip(curves["eager"], curves["compiled"], strict=True))
    for name, losses in curves.items():
        print(f"{name}: loss {losses[0]:.3f} to {losses[-1]:.3f}, {cost[name] * 1e3:.1f} ms of CPU a step")
    print(f"the losses differ by at most {apart:.1e} of their size")
    draw(curves, args.plot)


if __name__ == "__main__":
    main()
