"""Save the two programs that the C examples run: a sentence embedder with real weights, and a small GPT.

Run: python examples/c/models.py build [--steps 300]
Then: smelt export build/minilm.ingot --out build; smelt export build/gpt.ingot --out build
`build/sentences.ids` gets the tokens of some sentences, a line each, `build/alphabet.txt` the GPT's characters.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from smelt.cli.demos.demo_model import BatchShape, find_corpus, find_model, load_model, make_batches, read_corpus

LENGTH = 64  # characters that the GPT looks back, and writes
TOKENS = 64  # of a sentence, at most
SENTENCES, SPACING = 12, 9  # so many of the corpus, which has its topics one after the other


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
    """Characters in, the scores of each next one out."""

    def __init__(self, vocabulary: int, layers: int = 2, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, text: Tensor) -> Tensor:
        h = self.characters(text) + self.positions.weight[: text.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Writer(nn.Module):
    """Goes on with a text until the page is full, or a line ends: the loop is a part of the graph."""

    def __init__(self, gpt: Gpt, stop: int) -> None:
        super().__init__()
        self.gpt, self.stop = gpt, stop

    def forward(self, page: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """i64[64], i64[] (how much of it is written) -> the page, and how much of it is written then."""
        here = torch.arange(LENGTH)
        last = torch.full((), -1)
        while length < LENGTH and last != self.stop:
            scores = self.gpt(page[None])[0]
            at = (here == length - 1)[:, None].to(scores.dtype)
            last = (scores * at).sum(0).argmax()
            page = torch.where(here == length, last, page)
            length = length + 1
        return page, length


def trained(text: str, steps: int) -> tuple[Gpt, str]:
    """A GPT that has read the text, and its alphabet."""
    alphabet = "".join(sorted(set(text)))
    data = torch.tensor([alphabet.index(c) for c in text])
    gpt = Gpt(len(alphabet))
    optimizer = torch.optim.AdamW(gpt.parameters(), 3e-3)
    for _ in range(steps):
        starts = torch.randint(0, len(data) - LENGTH - 1, (8,))
        batch = torch.stack([data[s : s + LENGTH + 1] for s in starts.tolist()])
        loss = F.cross_entropy(gpt(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return gpt.eval(), alphabet


def save_gpt(folder: Path, steps: int) -> None:
    text = (Path(__file__).parent.parent / "sentences.txt").read_text(encoding="utf-8")
    gpt, alphabet = trained("".join(c for c in text if c.isascii()), steps)
    writer = Writer(gpt, alphabet.index("\n"))
    page, length = torch.zeros(LENGTH, dtype=torch.int64), torch.tensor(LENGTH - 3)
    with torch.no_grad():
        smelt.trace(writer, (page, length)).save(folder / "gpt.ingot")
    (folder / "alphabet.txt").write_text(alphabet, encoding="ascii")


def save_minilm(folder: Path) -> None:
    model, tokenizer = load_model(find_model())
    sentences = read_corpus(find_corpus(None))[::SPACING][:SENTENCES]
    batches = make_batches(tokenizer, sentences, BatchShape(1, TOKENS))
    size = {1: smelt.Dim("tokens", max=TOKENS)}
    with torch.no_grad():
        given = {"ids": batches[0].ids, "mask": batches[0].mask}
        program = smelt.trace(model, (), given, dynamic_shapes={"ids": size, "mask": size})
        program.save(folder / "minilm.ingot", sizes=[{"tokens": range(1, TOKENS + 1)}])
    lines = [" ".join(str(n) for n in batch.ids[batch.mask.bool()].tolist()) for batch in batches]
    (folder / "sentences.ids").write_text("\n".join(lines) + "\n")
    (folder / "sentences.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", choices=["gpt", "minilm"])
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    if args.only != "minilm":
        save_gpt(args.folder, args.steps)
    if args.only != "gpt":
        save_minilm(args.folder)


if __name__ == "__main__":
    main()
