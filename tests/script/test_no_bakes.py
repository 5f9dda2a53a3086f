"""What a recording or TorchScript would fix silently, or answer otherwise than eager, is asked at run time."""

import warnings

import pytest
import torch

import smelt
from tests.script.checking import agrees, by_evaluator

A, B = torch.randn(3, 4), torch.randn(7, 4)


def over_range_of_size(x):
    total = x[0] * 0
    for i in range(x.size(0)):
        total = total + x[i] * i
    return total


def over_rows(x):
    return torch.stack([row * 2 for row in x][:1])


def by_rank(x):
    return x + 1 if x.dim() == 1 else x - 1


def by_dtype(x):
    return x * 2 if x.dtype == torch.float64 else x * 3


def by_length(x):
    return x / len(x)


def by_item(x):
    return x + int(x.sum().item() * 10)


@pytest.mark.spread(6)
@pytest.mark.parametrize("fn", [over_range_of_size, by_rank, by_dtype, by_length, by_item])
def test_one_graph_for_all(fn):
    agrees(fn, (A,), (B,), (A[0],), (B.double(),))


def test_mutation_of_a_list_argument_is_no_copy():
    def f(xs: list[torch.Tensor], y):
        z = xs + [y]  # noqa: RUF005
        return z[-1] + z[0]

    agrees(f, ([A], A), ([A, A], A))


def test_no_grad_decorators_count(monkeypatch):
    @torch.no_grad()
    def f(x):
        return x * 2

    program = smelt.script(f)
    x = A.clone().requires_grad_()
    assert by_evaluator(program, x).requires_grad is False
    monkeypatch.setattr(type(program), "_by_op", None)  # it is run natively, and the program itself not at all
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            result = program(x)
            assert torch.equal(result, A * 2) and result.requires_grad is False and result.is_leaf
        assert torch.is_grad_enabled()
    assert '"no_grad"' in str(program.graph)


def test_promotion_is_kept():
    def f(x):
        return (x + 0, x * 1, 1.0 / (x + 0))

    agrees(f, (torch.tensor([True, False]),), (torch.tensor([-0.0, 1.0]),))


def test_errors_keep_their_kinds():
    def f(x, d: dict[str, torch.Tensor], xs: list[torch.Tensor], i: int):
        if i == 0:
            return d["missing"]
        return xs[i]

    agrees(f, (A, {"a": A}, [A], 0), (A, {"a": A}, [A], 9), (A, {"a": A}, [A, B], 1))


def test_a_number_where_torch_takes_a_float_is_the_value_of_the_run():
    def f(x, n: int):
        return torch.nn.functional.leaky_relu(x, n), torch.nn.functional.pad(x, (n, 1))

    agrees(f, (A, 2), (A, 5))


def test_scripted_inside_scripted():
    def inner(x):
        return x + 1 if x.sum() > 0 else x - 1

    scripted = smelt.script(inner)

    def outer(x):
        return scripted(x) * 2

    agrees(outer, (A,), (-A.abs(),))
