"""Loops that fill lists and may be left early (`break`, `continue`): rows of buffers, against eager, with no Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.runtime.plan import PyCall


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def boxes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, generator=made) * 20
    sizes = torch.rand(count, 2, generator=made) * 15 + 1
    return torch.cat([corners, corners + sizes], 1), torch.rand(count, generator=made)


def overlap(one: Tensor, others: Tensor) -> Tensor:
    low, high = torch.maximum(one[:2], others[:, :2]), torch.minimum(one[2:], others[:, 2:])
    inter = (high - low).clamp(min=0).prod(1)
    return inter / ((one[2:] - one[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(1) - inter)


# --- programs of (boxes, scores)


def of_tensors(x: Tensor, scores: Tensor) -> Tensor:
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:
        i = order[0]
        keep.append(i)
        if order.numel() == 1:
            break
        order = order[1:][overlap(x[i], x[order[1:]]) <= 0.3]
    return torch.stack(keep) if keep else torch.zeros(0, dtype=torch.long)


def of_numbers(x: Tensor, scores: Tensor) -> Tensor:
    order, keep = scores.argsort(descending=True), []
    while len(order):
        i = int(order[0])
        keep.append(i)
        if len(order) == 1:
            break
        order = order[1:][overlap(x[i], x[order[1:]]) <= 0.3]
    return torch.tensor(keep, dtype=torch.long)


def from_the_end(x: Tensor, scores: Tensor) -> Tensor:
    order, keep = scores.argsort(), []
    while order.numel() > 0:
        i = order[-1]
        keep.append(i)
        if order.shape[0] == 1:
            break
        order = order[:-1]
        order = order[overlap(x[i], x[order]) <= 0.3]
    return torch.stack(keep) if len(keep) > 0 else order


def so_many(x: Tensor, scores: Tensor) -> Tensor:
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:
        keep.append(order[0])
        if len(keep) == 3:
            break
        order = order[overlap(x[order[0]], x[order]) <= 0.3]
        if order.numel() > 0 and int(order[0]) == 5:
            order = order[1:]
            continue
    return torch.stack(keep) if keep else order


def counted(x: Tensor, scores: Tensor) -> Tensor:
    found = []
    for i in range(len(x)):
        found.append(x[i] * 2)
        if scores[i] > 0.9:
            break
    return torch.stack(found, 1) if found else torch.zeros(4, 0)


def suppressed(x: Tensor, scores: Tensor) -> Tensor:
    order, keep = scores.argsort(descending=True), []
    x, gone = x[order], torch.zeros(len(scores), dtype=torch.bool)
    for i in range(len(x)):
        if gone[i]:
            continue
        keep.append(order[i])
        if len(keep) >= 4:
            break
        gone |= overlap(x[i], x) > 0.3
    return torch.stack(keep) if keep else torch.zeros(0, dtype=torch.long)


def alive(x: Tensor, scores: Tensor) -> Tensor:
    order, keep = scores.argsort(descending=True), []
    x, there = x[order], torch.ones(len(scores), dtype=torch.bool)
    for i in range(len(x)):
        if not there[i]:
            continue
        keep.append(int(order[i]))
        if len(keep) == 4:
            break
        there[i + 1 :] &= overlap(x[i], x[i + 1 :]) <= 0.3
    return torch.tensor(keep, dtype=torch.long)


def for_ever(x: Tensor, scores: Tensor) -> Tensor:
    order, keep = scores.argsort(descending=True), []
    while True:
        if order.numel() == 0:
            break
        i = order[0]
        keep.append(i.item())
        order = order[1:]
        order = order[overlap(x[i], x[order]) <= 0.3]
    return x[keep]


def or_a_view(x: Tensor, scores: Tensor) -> Tensor:
    """What a loop made, or memory from outside: which of them it is, is told by the branch."""
    found = []
    for i in range(len(x)):
        found.append(x[i] * 2)
        if scores[i] > 0.9:
            break
    return torch.stack(found) if found else x[:0]


WHILES = [of_tensors, of_numbers, from_the_end, counted, suppressed, alive, for_ever]


def repeated(x: Tensor, scores: Tensor) -> Tensor:
    """More turns than there were rows: one stays until the level is reached."""
    order, keep, level = scores.argsort(), [], 0.0
    while order.numel() > 0:
        keep.append(order[0])
        level = level + 0.05
        if scores[order[0]] < level:
            order = order[1:]
    return torch.stack(keep) if keep else order


def nothing_left(x: Tensor, scores: Tensor) -> Tensor:
    """What is taken away of comes to nothing, and the loop goes on."""
    order, keep, level = scores.argsort(), [], scores.sum() * 0
    while level < 3:
        keep.append(level)
        level = level + 0.1
        order = order[1:]
        order = order[scores[order] > 0.2]
    return torch.stack(keep) + order.numel()


def python_calls(compiled: Any) -> int:
    return sum(isinstance(i, PyCall) for row in compiled.stats().rows for i in row.entry.lowered.plan.instructions)


@pytest.mark.spread(8)
@pytest.mark.parametrize("program", WHILES, ids=lambda f: f.__name__)
def test_as_in_eager_and_natively(program: Callable[..., Tensor]) -> None:
    compiled = smelt.compile(program)
    for seed in range(6):
        call = boxes(12, seed)
        got, expected = compiled(*call), program(*call)
        assert torch.equal(got, expected) and got.stride() == expected.stride()
    assert compiled.stats().builds == 1
    assert python_calls(compiled) == 0


@pytest.mark.spread(12)
@pytest.mark.parametrize("program", [so_many, or_a_view, *WHILES, repeated, nothing_left], ids=lambda f: f.__name__)
def test_any_number_of_rows(program: Callable[..., Tensor]) -> None:
    compiled = smelt.compile(program)
    for seed, count in enumerate((12, 7, 12, 2, 1, 0, 30)):
        call = boxes(count, seed)
        assert torch.equal(compiled(*call), program(*call))


class Cell(torch.nn.Module):
    """Looked at for the first time inside the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(9, 8), torch.nn.Linear(8, 9)

    def forward(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.tanh(self.embed(token) + state)
        return self.out(state), state


class Greedy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()

    def forward(self, state: Tensor) -> Tensor:
        token, found = torch.zeros(1, dtype=torch.long), []
        for _ in range(20):
            logits, state = self.cell(token, state)
            token = logits.argmax(-1)
            found.append(token)
            if token.item() == 4:
                break
        return torch.cat(found)


def test_words_until_one_ends_it() -> None:
    torch.manual_seed(0)
    model = Greedy()
    compiled, lengths = smelt.compile(model), set()
    for seed in range(8):
        state = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed)) * 9
        expected = model(state)
        assert torch.equal(compiled(state), expected)
        lengths.add(len(expected))
    assert len(lengths) > 2
    assert compiled.stats().builds == 1
    assert python_calls(compiled) == 0


def test_a_tensor_is_indexed_by_a_list_that_a_script_made() -> None:
    scripted = smelt.script(for_ever, example_inputs=boxes(12, 0))
    for seed in range(3):
        call = boxes(12, seed)
        assert torch.equal(scripted(*call), for_ever(*call))
