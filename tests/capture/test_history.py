"""Results that require gradients by what the program did itself: their history begins in it."""

from __future__ import annotations

import pytest
import torch

import smelt


def leaf(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    w = torch.ones(3, requires_grad=True)
    return (w * x).sum(), w


def set_on(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).requires_grad_()


def parameter(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(x.clone(), requires_grad=False)


def on_one_way(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        y = x.clone().requires_grad_() if x.sum() > 0 else x.clone()
        return y * 2


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("f", [leaf, set_on, parameter, on_one_way])
def test_a_history_that_begins_inside_is_there_at_every_call(f: object, grad: bool) -> None:
    compiled = smelt.compile(f)
    with torch.set_grad_enabled(grad):
        for x in (-torch.ones(3), torch.ones(3), torch.ones(3), -torch.ones(3), torch.ones(3)):
            want, got = (torch.utils._pytree.tree_leaves(g(x.clone())) for g in (f, compiled))
            for a, b in zip(want, got, strict=True):
                assert torch.equal(a, b)
                assert (type(a), a.requires_grad, a.is_leaf) == (type(b), b.requires_grad, b.is_leaf)
    if f is leaf and grad:
        loss, w = compiled(torch.full((3,), 5.0))
        loss.backward()
        assert torch.equal(w.grad, torch.full((3,), 5.0))


@pytest.mark.parametrize("make", [lambda f: smelt.trace(f, (torch.ones(3),)), smelt.script])
def test_a_program_of_one_graph_says_where_it_begins(make: object) -> None:
    with pytest.raises(
        smelt.CaptureError, match="a result requires gradients, which begin inside the program"
    ) as error:
        make(set_on)
    assert error.value.where.line == set_on.__code__.co_firstlineno + 1
    assert "detach" in error.value.fix


def test_a_way_back_that_is_not_recorded_says_so() -> None:
    def slope(x: torch.Tensor) -> torch.Tensor:
        w = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((w.tanh() * w).sum(), w)
        return g

    with pytest.raises(smelt.CaptureError, match=r"gradients are computed from f32.*, which autograd kept or made"):
        smelt.trace(slope, (torch.ones(3),))


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_a_nested_tensor_is_refused_and_no_defect() -> None:
    def padded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.nested.nested_tensor([x, y]) * 2).to_padded_tensor(-1.0)

    with pytest.raises(smelt.CaptureError, match="a nested tensor was used") as error:
        smelt.trace(padded, (torch.ones(2), torch.ones(3)))
    assert error.value.code == "S0104"
