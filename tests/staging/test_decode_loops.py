"""Loops of `generate`: one loop of the graph, whatever the number of its iterations, with the answers of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt

WORDS, WIDTH, MOST = 13, 8, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def attend(self, h: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = query @ key.mT / WIDTH**0.5
        if mask is not None:
            scores = scores.masked_fill(mask, -torch.inf)
        h = h + torch.softmax(scores, -1) @ value
        return h + self.down(torch.relu(self.up(self.norm(h))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        h, length = self.words(ids), ids.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        for block in self.blocks:
            h = block.attend(h, *block.mix(h).chunk(3, -1), later)
        return self.head(h[:, -1])


model = Model().eval()


def growing(ids: Tensor, count: int) -> Tensor:
    for _ in range(count):
        ids = torch.cat([ids, model(ids).argmax(-1, keepdim=True)], 1)
    return ids


def in_place(ids: Tensor, count: int) -> tuple[Tensor, int]:
    """A cache of constant size, written at a place that Python counts up."""
    caches = [(torch.zeros(len(ids), MOST, WIDTH), torch.zeros(len(ids), MOST, WIDTH)) for _ in model.blocks]
    word, found, at = ids[:, 0], [], 0
    for _ in range(count):
        h = model.words(word)[:, None]
        for (keys, values), block in zip(caches, model.blocks, strict=True):
            query, key, value = block.mix(h).chunk(3, -1)
            keys[:, at % MOST], values[:, at % MOST] = key[:, 0], value[:, 0]
            h = block.attend(h, query, keys, values, torch.arange(MOST) > at)
        word = model.head(h[:, 0]).argmax(-1)
        found.append(word)
        at += 1
    assert len(found) == count
    return torch.stack(found, 1), at


class Cache:
    """Keys and values that grow, as those of transformers do."""

    def __init__(self) -> None:
        self.layers: list[Any] = [None] * len(model.blocks)

    def update(self, number: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if self.layers[number] is not None:
            keys, values = self.layers[number]
            key, value = torch.cat([keys, key], 1), torch.cat([values, value], 1)
        self.layers[number] = key, value
        return key, value


def cached(ids: Tensor, count: int) -> tuple[Tensor, list[Any]]:
    cache = Cache()
    word, found = ids[:, 0], [ids[:, 0]]
    for _ in range(count):
        h = model.words(word)[:, None]
        for number, block in enumerate(model.blocks):
            query, key, value = block.mix(h).chunk(3, -1)
            h = block.attend(h, query, *cache.update(number, key, value))
        word = model.head(h[:, 0]).argmax(-1)
        found.append(word)
    return torch.stack(found, 1), cache.layers


def stopping(ids: Tensor, count: int) -> Tensor:
    for _ in range(count):
        word = model(ids).argmax(-1, keepdim=True)
        ids = torch.cat([ids, word], 1)
        if (word == 3).all():
            break
    return ids


def _check(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def _ids() -> Tensor:
    return torch.randint(0, WORDS, (2, 3), generator=torch.Generator().manual_seed(1))


@pytest.mark.nightly
@pytest.mark.parametrize("program", (growing, in_place, cached), ids=lambda p: p.__name__)
def test_the_graph_is_the_same_for_any_number_of_iterations(program: Callable[..., Any]) -> None:
    sizes = set()
    with torch.no_grad():
        for count in (8, 40, 200):
            traced = smelt.trace(program, (_ids(), count))
            ops = [node.op for node in traced.graph.walk()]
            assert ops.count("for") == 1
            sizes.add(len(ops))
            _check(traced(_ids(), count), program(_ids(), count))
            other = (_ids() + 1) % WORDS
            _check(traced(other, count), program(other, count))
    assert len(sizes) == 1


@pytest.mark.parametrize(
    "program", (growing, pytest.param(in_place, marks=pytest.mark.nightly), cached), ids=lambda p: p.__name__
)
def test_one_build_for_a_number_of_iterations(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program)
    with torch.no_grad():
        for step in range(3):
            ids = (_ids() + step) % WORDS
            _check(compiled(ids, 24), program(ids, 24))
    stats = compiled.stats()
    assert stats.builds == 1
    assert not stats.fallbacks
    (row,) = stats.rows
    assert row.entry is not None
    assert sum(node.op == "for" for node in row.entry.captured.graph.walk()) == 1


@pytest.mark.spread(2)
@pytest.mark.parametrize("count", (8, 24))
def test_a_loop_that_data_end(count: int) -> None:
    with torch.no_grad():
        traced = smelt.trace(stopping, (_ids(), count))
        lengths = set()
        for step in range(WORDS):
            ids = (_ids() + step) % WORDS
            wanted = stopping(ids, count)
            lengths.add(wanted.shape[1])
            _check(traced(ids, count), wanted)
    assert len(lengths) > 1


def test_what_python_knows_behind_a_loop() -> None:
    """Lengths of lists, counters, the number of the last iteration; items that numbers pick."""
    weights = [torch.randn(4, 4) / 4 for _ in range(24)]

    def program(x: Tensor) -> Any:
        found, twice, count = [x], [], 0
        for number in range(46, -2, -2):
            y = torch.tanh(found[-1] @ weights[number // 2]) + found[count // 3] / 4
            found.append(y)
            twice.append(y[0])
            twice.append(y.sum(0))
            count += 3
        assert (len(found), len(twice), count, number) == (25, 48, 72, 0)
        return sum(found), torch.stack(twice), found, count + number

    compiled = smelt.compile(program)
    with torch.no_grad():
        traced = smelt.trace(program, (torch.ones(3, 4),))
        for _ in range(3):
            x = torch.randn(3, 4)
            wanted = program(x)
            _check(compiled(x), wanted)
            _check(traced(x), wanted)


def test_layers_are_no_iterations() -> None:
    """Layers that a number picks are each a body of their own."""
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(60))

    def program(x: Tensor) -> Tensor:
        for number in range(len(layers)):
            x = torch.tanh(layers[number](x)) + x
        return x

    x = torch.randn(3, 4)
    with torch.no_grad():
        traced = smelt.trace(program, (x,))
        assert not any(node.op in ("for", "if") for node in traced.graph.walk())
        _check(traced(-x), program(-x))
