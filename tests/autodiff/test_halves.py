"""What is put aside between forward and backward: the fewest bytes, and both halves compute what the whole does."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.autodiff import Halves, halves, joint_graph, state_as_inputs
from smelt.autodiff.flow import Network
from smelt.bench.training_models import NanoGptLoss
from smelt.ir import verify
from smelt.ops.evaluate import evaluate
from tests.autodiff.gradient_harness import compare

FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.down(self.norm(F.gelu(self.up(x)))), target)


def split(module: nn.Module, *args: torch.Tensor) -> tuple[Halves, list[torch.Tensor]]:
    graph, places = state_as_inputs(smelt.trace(module, args).graph)
    names = [value.name for value in graph.inputs[len(args) :]]
    found = halves(joint_graph(graph, names))
    verify(found.forward)
    verify(found.backward)
    return found, [module.get_parameter(path) for _, path in places]


def test_both_halves_give_what_autograd_gives() -> None:
    torch.manual_seed(0)
    block, x, target = Block(), torch.randn(5, 8), torch.randn(5, 4)
    found, parameters = split(block, x, target)
    given = [x, target, *parameters]
    with torch.no_grad():
        loss, *saved = evaluate(found.forward, given)
        grads = evaluate(found.backward, [*(given[i] for i in found.kept), *saved, torch.ones(())])
    expected = block(x, target)
    torch.testing.assert_close(loss, expected.detach())
    compare(grads, torch.autograd.grad(expected, parameters), 1e-6)


def test_what_is_cheap_is_not_saved() -> None:
    found, _ = split(Block(), torch.randn(5, 8), torch.randn(5, 4))
    # What the first product gives, what the norm gives, and what the loss reads: not what the activation gives.
    assert found.nbytes <= 4 * (5 * 16 + 5 * 16 + 2 * 5 * 4)


def test_reshaped_operands_are_not_saved_twice() -> None:
    found, _ = split(nn.GroupNorm(2, 4), torch.randn(3, 4, 5))
    assert found.nbytes == 4 * (3 * 2 + 3 * 2)  # mean and variance: the operand is an input


def test_what_is_computed_again_is_so_right_before_it_is_used() -> None:
    """A stack of layers has one activation at a time that way, and not all of them from the beginning on."""
    layers = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(8, 8), nn.GELU())))
    graph, places = state_as_inputs(smelt.trace(layers, (torch.randn(5, 8),)).graph)
    found = halves(joint_graph(graph, [value.name for value in graph.inputs[-len(places) :]]))
    nodes = list(found.backward.body)
    again = [i for i, node in enumerate(nodes) if "gelu" in node.op and "backward" not in node.op]
    used = [min(nodes.index(user) for user in nodes[i].result.users) for i in again]
    assert len(again) == 3
    assert all(use < following for use, following in zip(used, again[1:], strict=False))


def test_random_numbers_are_not_drawn_twice() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * torch.rand(4)).sin().sum()

    graph = smelt.trace(program, (torch.rand(4),)).graph
    found = halves(joint_graph(graph))
    assert "aten.rand" in str(found.forward) and "aten.rand" not in str(found.backward)


def gpt_halves(*budgets: float) -> list[Halves]:
    torch.manual_seed(0)
    module, tokens = NanoGptLoss(layers=4, width=16, heads=2, length=8), torch.randint(0, 96, (2, 9))
    graph, places = state_as_inputs(smelt.trace(module, (tokens,)).graph)
    joint = joint_graph(graph, [value.name for value in graph.inputs[1:]])
    made = [halves(joint, budget) for budget in budgets]
    given = [tokens, *(module.get_parameter(path) for _, path in places)]
    loss = module(tokens)
    expected = torch.autograd.grad(loss, given[1:])
    for found in made:
        with torch.no_grad():
            got, *saved = evaluate(found.forward, given)
            grads = evaluate(found.backward, [*(given[i] for i in found.kept), *saved, torch.ones(())])
        torch.testing.assert_close(got, loss.detach())
        compare(grads, expected, 1e-6)
    return made


def products(graph: smelt.Graph) -> int:
    return sum(node.op in ("aten.linear.default", FLASH) for node in graph.body)


def test_a_budget_of_memory_computes_products_again_as_far_as_it_takes() -> None:
    whole, half, third, least = gpt_halves(1.0, 0.5, 0.3, 0.0)
    layer = 4 * 2 * 8 * 16  # bytes of what flows along the layers
    # Of each layer its two operands of norms, queries, keys and values, attention and its sums, and the wide product.
    moments, logits = 9 * 2 * 4 * 2 * 8, 4 * 2 * 8 * 96
    assert whole.nbytes <= 4 * (10 * layer + 4 * 2 * 8 * 2) + layer + moments + logits + 100
    assert [products(found.backward) for found in (whole, least)] == [0, products(least.forward)]
    assert least.nbytes < third.nbytes < half.nbytes < whole.nbytes
    assert 0 < products(half.backward) < products(third.backward) < products(least.backward)
    assert third.nbytes <= 0.4 * whole.nbytes / 0.62


def test_draws_and_loops_are_done_once_whatever_the_budget() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(int(x.shape[0])):
            x = torch.tanh(x @ w) * torch.rand(4)
        return x.sum()

    graph = smelt.trace(program, (torch.rand(4, 4), torch.rand(4, 4))).graph
    found = halves(joint_graph(graph), 0.0)
    assert "aten.rand" in str(found.forward)
    assert "aten.rand" not in str(found.backward)


# The first path takes 2 -> 3, which the second one has to give back.
GIVEN_BACK = [(0, 2, 1), (2, 3, 1), (3, 1, 1), (0, 4, 1), (4, 3, 1), (2, 5, 1), (5, 1, 1)]


def _edges(seed: int, count: int) -> list[tuple[int, int, int]]:
    rng = random.Random(seed)
    return [(a, b, rng.randint(1, 9)) for a in range(count) for b in range(count) if a != b and rng.random() < 0.5]


@pytest.mark.parametrize("edges", [GIVEN_BACK, *(_edges(seed, 6) for seed in range(20))])
def test_the_smallest_cut(edges: list[tuple[int, int, int]]) -> None:
    """Against all cuts of a small network."""
    count = 6
    net = Network()
    for _ in range(count):
        net.vertex()
    for edge in edges:
        net.edge(*edge)
    total, side = net.cut(0, 1)

    def capacity(chosen: set[int]) -> int:
        return sum(c for a, b, c in edges if a in chosen and b not in chosen)

    sides = [{0, *(v for v in range(2, count) if mask >> v & 1)} for mask in range(1 << count)]
    assert total == min(map(capacity, sides)) == capacity(side)
    assert len(side) == max(len(other) for other in sides if capacity(other) == total)


class Sorted(nn.Module):
    """Rows go through one product or the other, as their first number says."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = int((x[:, 0] > 0).sum())
        rows = x.cos()[x[:, 0].argsort(descending=True)]
        left, right = rows.split([count, 8 - count])
        return torch.cat([self.first(left), self.second(right)])


@pytest.mark.parametrize("shift", [0.0, 9.0, -9.0])
def test_a_product_whose_rows_follow_from_data_is_computed_again(shift: float) -> None:
    """A tensor of unknown size cannot be put aside; a gradient of known size is put together of such."""
    torch.manual_seed(0)
    module, x = Sorted(), torch.randn(8, 4)
    found, parameters = split(module, x)
    x = x + shift
    given, grad = [x, *parameters], torch.randn(8, 6)
    with torch.no_grad():
        out, *saved = evaluate(found.forward, given)
        grads = evaluate(found.backward, [*(given[i] for i in found.kept), *saved, grad])
    expected = module(x)
    torch.testing.assert_close(out, expected.detach())
    compare(grads, torch.autograd.grad(expected, parameters, grad), 1e-6)
