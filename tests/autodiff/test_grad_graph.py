"""`p.grad_graph`: the gradient of a program as a graph that prints, parses, runs and has a gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smelt
from smelt.autodiff import joint_graph
from smelt.diag import SmeltError
from smelt.ir import parse, verify
from smelt.ops.evaluate import evaluate


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * w).sum()


def test_of_inputs() -> None:
    x, w = torch.rand(3), torch.rand(3)
    graph = smelt.trace(program, (x, w)).grad_graph(wrt=("w",))
    verify(graph)
    assert parse(str(graph)) == graph
    assert [value.name for value in graph.inputs] == ["x", "w", "grad_0"]
    result, grad = evaluate(graph, [x, w, torch.tensor(2.0)])
    leaf = w.clone().requires_grad_()
    program(x, leaf).backward(torch.tensor(2.0))
    assert torch.equal(result, program(x, w))
    torch.testing.assert_close(grad, leaf.grad)
    again = joint_graph(graph, wrt=("x",))
    verify(again.graph)


def test_of_parameters() -> None:
    model, x = nn.Linear(4, 2), torch.rand(3, 4)
    traced = smelt.trace(model, (x,))
    graph = traced.grad_graph(wrt=("weight", "bias"))
    found = evaluate(graph, [x, torch.ones(3, 2)], lambda kind, path: model.get_parameter(path).detach())
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    torch.testing.assert_close(tuple(found[1:]), expected)


@pytest.mark.parametrize(("wrt", "match"), [("nothing", "has no input"), ("i", "i64")])
def test_names_without_a_gradient(wrt: str, match: str) -> None:
    traced = smelt.trace(lambda x, i: x[i].sum(), (torch.rand(3), torch.tensor([0, 1])))
    with pytest.raises(SmeltError, match=match):
        traced.grad_graph(wrt=(wrt,))


def test_a_result_that_does_not_depend_on_it() -> None:
    traced = smelt.trace(lambda x, y: x.sin(), (torch.rand(3), torch.rand(3)))
    assert traced.grad_graph(wrt=("y",)).outputs[1] is None
