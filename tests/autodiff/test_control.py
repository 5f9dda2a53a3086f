"""Gradients of programs with branches and loops: graphs with branches and loops, equal to autograd's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.autodiff import joint_graph
from smelt.diag import SmeltError
from smelt.ir import Graph, parse, verify
from smelt.ops.evaluate import evaluate
from tests.autodiff.gradient_harness import compare

Tensor = torch.Tensor
F64 = torch.float64


def branch(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    if y.sum() > 0:
        y = torch.tanh(y) * x[:, :4]
    else:
        y = y * 2 + w[0]
    return y.sum()


def one_arm(x: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        w = w * x[0, 0]
    return (x @ w).sum()


def loop(x: Tensor, w: Tensor) -> Tensor:
    h = x[:, :4]
    for i in range(70):
        h = torch.tanh(h @ w[:4] + i * 0.01) * x[:, 1:5]
        if h.sum() > 1:
            h = h * 0.5
    return h.sum()


def counted(x: Tensor, w: Tensor) -> Tensor:
    h = x[:, :4]
    for i in range(int(x.abs().sum())):
        h = torch.tanh(h @ w[:4] + i * 0.01) * x[:, 1:5]
    return h.sum()


def in_steps(x: Tensor, w: Tensor) -> Tensor:
    n = int(x.abs().sum())
    h = x[:, :4]
    for i in range(n, -n, -3):
        h = torch.tanh(h @ w[:4] + i * 0.01)
    return h.sum()


def no_iteration(x: Tensor, w: Tensor) -> Tensor:
    h = x[:, :4] * w[0]
    for _ in range(int(x.sum() * 0)):
        h = h @ w[:4]
    return h.sum()


def until(x: Tensor, w: Tensor) -> Tensor:
    h, n = x[:, :4], 0
    while h.abs().sum() > 0.5:
        h = torch.tanh(h @ w[:4] * 0.1) * 0.8
        n += 1
    return h.sum() * n


def nested(x: Tensor, w: Tensor) -> Tensor:
    h = x[:, :4]
    for i in range(int(x.abs().sum())):
        for _ in range(i % 3):
            h = torch.tanh(h @ w[:4])
        if h[0, 0] > 0:
            h = h * x[:, 1:5]
    return h.sum()


def two(x: Tensor, w: Tensor) -> Tensor:
    a, b = x[:, :4], w[:3]
    for _ in range(int(x.abs().sum())):
        a, b = torch.sin(b), a * 0.9
    return (a * w[1:4]).sum() + b.sum() * 2


PROGRAMS: tuple[Callable[..., Any], ...] = (
    branch, one_arm, loop, counted, in_steps, no_iteration, until, nested, two,
)  # fmt: skip


@pytest.mark.spread(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_gradients(program: Callable[..., Any]) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        x, w = torch.randn(3, 5, dtype=F64), torch.randn(5, 4, dtype=F64)
        joint = joint_graph(smelt.trace(program, (x, w)).graph)
        verify(joint.graph)
        assert parse(str(joint.graph)) == joint.graph
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        result = program(a, b)
        expected = torch.autograd.grad(result, (a, b), allow_unused=True)
        found = evaluate(joint.graph, [x, w, torch.ones((), dtype=F64)])
        torch.testing.assert_close(found[0], result.detach())
        compare(found[1:], expected, 1e-12)


def test_a_loop_stays_one() -> None:
    x, w = torch.randn(3, 5), torch.randn(5, 4)
    for program, count in ((loop, 2), (counted, 2), (until, 1)):
        text = str(joint_graph(smelt.trace(program, (x, w)).graph).graph)
        assert text.count("= for %") == count


def test_gradients_of_gradients() -> None:
    x, w = torch.rand(3, 5, dtype=F64), torch.rand(5, 4, dtype=F64)
    for program in (branch, counted):
        once = joint_graph(smelt.trace(program, (x, w)).graph, wrt=("x",))
        once.graph.body.set_yields(once.graph.outputs[1:])
        twice = joint_graph(once.graph, wrt=("x", "w"))
        verify(twice.graph)
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        (first,) = torch.autograd.grad(program(a, b), a, create_graph=True)
        direction = torch.randn_like(first)
        expected = torch.autograd.grad(first, (a, b), direction, allow_unused=True)
        found = evaluate(twice.graph, [x, w, torch.ones((), dtype=F64), direction])
        compare(found[1:], expected, 1e-10)


def down(x: Tensor, w: Tensor) -> Tensor:
    h = x[:, :4]
    for i in range(200, -100, -3):
        h = torch.tanh(h @ w[:4] + i * 0.001) * x[:, 1:5]
        if h.sum() > 1:
            h = h * 0.5
    return h.sum()


def gathered(x: Tensor, w: Tensor) -> Tensor:
    h, found = x[:, :4], []
    for i in range(40):
        h = torch.tanh(h @ w[:4] + i * 0.01)
        found.append(h.sum())
    return torch.stack(found).square().sum() + h.sum()


def alternating(x: Tensor, w: Tensor) -> Tensor:
    a, b = x[:, :4], w[:3]
    for _ in range(49):
        a, b = torch.sin(b), a * 0.9
    return (a * w[1:4]).sum() + b.sum() * 2


@pytest.mark.parametrize("program", [loop, down, gathered, alternating], ids=lambda p: p.__name__)
def test_long_loops_go_back_from_checkpoints(program: Callable[..., Any]) -> None:
    """Their gradients save about twice the root of what each iteration began with, and are those of the loop."""
    torch.manual_seed(0)
    x, w = torch.randn(3, 5, dtype=F64), torch.randn(5, 4, dtype=F64)
    graph = smelt.trace(program, (x, w)).graph
    nested = joint_graph(graph, memory_budget=0.5)
    verify(nested.graph)
    assert parse(str(nested.graph)) == nested.graph
    a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
    result = program(a, b)
    found = evaluate(nested.graph, [x, w, torch.ones((), dtype=F64)])
    torch.testing.assert_close(found[0], result.detach())
    compare(found[1:], torch.autograd.grad(result, (a, b)), 1e-12)
    if program is not gathered:  # what it gathers is its own result, as long as the loop
        stacks = [_stacked(one.graph) for one in (nested, joint_graph(graph))]
        assert max(stacks[0]) <= 12 < min(stacks[1])


def _stacked(graph: Graph) -> list[int]:
    """How long the tensors are in which iterations put something aside, but for what is a result of the program's."""
    empty = [node.args[0] for node in graph.walk() if node.op == "aten.empty.memory_format"]
    return [sizes[0] for sizes in empty if isinstance(sizes, tuple) and len(sizes) > 1 and isinstance(sizes[0], int)]


LISTED = 26  # iterations that are one loop of the graph, and not many more


def listed(read: Callable[[list[Tensor]], Tensor], element: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def program(x: Tensor, w: Tensor) -> Tensor:
        h, found = x[:, :4], []
        for i in range(LISTED):
            h = torch.tanh(h @ w[:4] + i * 0.01)
            found.append(element(h))
        return read(found)

    return program


def summed(found: list[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=F64)
    for one in found:
        total = total * 0.9 + one.sum()
    return total


def neighbours(found: list[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=F64)
    for i in range(1, len(found)):
        total = total + (found[i] * found[i - 1]).sum()
    return total


READS: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "stack": lambda found: torch.stack(found).square().sum(),
    "stacked last": lambda found: (torch.stack(found, -1) * torch.arange(LISTED)).sum(),
    "one": lambda found: found[-1].sum() + found[3].sum() * found[7].sum(),
    "summed": summed,
    "neighbours": neighbours,
    "twice": lambda found: torch.stack([one * 2 for one in found]).sum(),
    "python's sum": lambda found: sum(one.sum() for one in found),
}


@pytest.mark.parametrize("read", READS)
def test_what_a_loop_gathers_in_a_list_has_its_gradient(read: str) -> None:
    """As one tensor. Of a list that is more than its elements no gradient is said to be there."""
    torch.manual_seed(0)
    x, w = torch.randn(3, 5, dtype=F64), torch.randn(5, 4, dtype=F64)
    program = listed(READS[read], lambda h: h)
    graph = smelt.trace(program, (x, w)).graph
    if read == "python's sum":
        with pytest.raises(SmeltError, match="may hold tensors that have gradients"):
            joint_graph(graph)
        return
    a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
    found = evaluate(joint_graph(graph).graph, [x, w, torch.ones((), dtype=F64)])
    compare(found[1:], torch.autograd.grad(program(a, b), (a, b)), 1e-12)


@pytest.mark.parametrize("read", ["stack", "python's sum"])
def test_a_compiled_program_gives_what_it_gathers_its_gradient(read: str) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(3, 5, dtype=F64, requires_grad=True), torch.randn(5, 4, dtype=F64, requires_grad=True)
    program = listed(READS[read], lambda h: h[0])
    expected = torch.autograd.grad(program(x, w), (x, w))
    compiled = smelt.compile(program, options={"adaptive": False})
    for _ in range(3):
        compare(torch.autograd.grad(compiled(x, w), (x, w)), expected, 1e-12)


def by_a_number(x: Tensor, c: Tensor) -> Tensor:
    for _ in range(70):
        x = torch.tanh(x) * c[0].item()
    return x


def by_a_number_in_an_arm(x: Tensor, c: Tensor) -> Tensor:
    return x * c[0].item() if x.sum() > 0 else x.sin()


@pytest.mark.parametrize("program", [by_a_number, by_a_number_in_an_arm], ids=lambda program: program.__name__)
def test_what_is_read_as_a_number_has_no_gradient(program: Callable[..., Any]) -> None:
    """None, as in eager, and not zeros, which an optimizer would take for one."""
    compiled = smelt.compile(program, options={"adaptive": False})
    for sign in (1, 1, -1):
        x, c = (sign * torch.rand(3)).requires_grad_(), torch.ones(2, requires_grad=True)
        wanted, found = (torch.autograd.grad(f(x, c).sum(), (x, c), allow_unused=True) for f in (program, compiled))
        torch.testing.assert_close(found[0], wanted[0])
        assert found[1] is None and wanted[1] is None
    assert compiled.stats().builds == 1 and not compiled.stats().fallbacks
