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


def test_the_gradient_of_a_leaf_that_the_program_makes_is_part_of_its_graph() -> None:
    def slope(x: torch.Tensor) -> torch.Tensor:
        w = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((w.tanh() * w).sum(), w)
        return g

    x = torch.linspace(-1.0, 2.0, 3)
    assert torch.equal(smelt.trace(slope, (torch.ones(3),))(x), slope(x))


def test_a_hook_that_runs_on_the_path_back_is_named() -> None:
    def slope(x: torch.Tensor) -> torch.Tensor:
        w = x.detach().requires_grad_()
        y = w * 2
        y.register_hook(lambda grad: grad + 1)
        (g,) = torch.autograd.grad(y.sum(), w)
        return g

    with pytest.raises(smelt.CaptureError, match=r"<lambda> ran while gradients were computed"):
        smelt.trace(slope, (torch.ones(3),))


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_a_nested_tensor_is_refused_and_no_defect() -> None:
    def padded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.nested.nested_tensor([x, y]) * 2).to_padded_tensor(-1.0)

    with pytest.raises(smelt.CaptureError, match="a nested tensor was used") as error:
        smelt.trace(padded, (torch.ones(2), torch.ones(3)))
    assert error.value.code == "S0104"


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_a_gradient_that_the_program_brings_is_taken_by_what_holds_its_graph() -> None:
    def quantized(x: torch.Tensor) -> torch.Tensor:
        return (Rounded.apply(x * 2) * x).sum()

    def branching(x: torch.Tensor) -> torch.Tensor:
        return quantized(x) if x.sum() > 0 else -quantized(x)

    for program in (quantized, branching):
        made = [smelt.trace(program, (torch.ones(3),)), smelt.script(program), smelt.compile(program)]
        for given in (torch.tensor([0.3, 1.6, -0.2]), torch.tensor([0.3, 1.6, -4.2])):
            want = given.clone().requires_grad_()
            loss = program(want)
            loss.backward()
            for f in made:
                if program is branching and f is made[0] and f.unit.is_path:
                    continue
                got = given.clone().requires_grad_()
                result = f(got)
                assert result.requires_grad and torch.equal(result, loss)
                result.backward()
                assert torch.equal(got.grad, want.grad)
                assert torch.equal(f(given), loss)


class Marked(torch.Tensor):
    pass


def marks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.as_subclass(Marked)
    return (y * 2).as_subclass(torch.Tensor), y + 1


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_a_result_of_a_subclass_is_one_at_every_call() -> None:
    compiled = smelt.compile(marks)
    for x in (torch.ones(3), torch.zeros(3), torch.ones(2, 2), torch.ones(3)):
        for a, b in zip(marks(x), compiled(x), strict=True):
            assert type(a) is type(b)
            assert torch.equal(a, b)
    with pytest.raises(smelt.CaptureError, match="a Marked, a tensor subclass, is among the results") as error:
        smelt.trace(marks, (torch.ones(3),))
    assert "as_subclass(torch.Tensor)" in error.value.fix
    with pytest.raises(smelt.CaptureError, match="a tensor becomes a Marked") as error:
        smelt.script(marks)
    assert error.value.where.line == marks.__code__.co_firstlineno + 1


def test_a_view_of_a_parameter_by_a_free_size_requires_gradients_as_its_base_does() -> None:
    table = torch.nn.Parameter(torch.randn(20, 3))

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return table[x.shape[0] :], x * 2

    with torch.no_grad():
        traced = smelt.trace(program, torch.ones(3), dynamic_shapes={"x": {0: smelt.Dim("N", min=2)}})
        for size in (3, 5):
            (view, twice), x = traced(torch.ones(size)), torch.ones(size)
            assert torch.equal(view, table[size:]) and torch.equal(twice, 2 * x)
            assert view.requires_grad and view.is_leaf and view.data_ptr() == table[size:].data_ptr()
