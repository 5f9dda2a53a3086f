"""Tensors made of Python's numbers hold what the run has, by whatever function of torch's; what cannot is refused."""

from __future__ import annotations

import pytest
import torch

from smelt.diag import CaptureError
from tests.script.checking import agrees

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def of_the_same_kind(x, n: int):
    return x.new_tensor([1, 2, n, 4]), torch.ones(4).new_tensor([n]), x.new_tensor(n), x.new_tensor(data=(n, 2.5))


def of_another_kind(x, n: int):
    return x.new_tensor([n, 0], dtype=torch.bool), torch.tensor([[1, 2], [n, 4]], dtype=torch.int32)


def as_arrays(x, n: int):
    return torch.asarray([1, n]), torch.asarray(n, dtype=torch.float64), torch.asarray([n], copy=True)


def by_name(x, n: int):
    return torch.tensor(data=[n], dtype=torch.float16), torch.as_tensor(data=n), torch.asarray(obj=[n])


@pytest.mark.parametrize("is_typed", [False, True], ids=["open", "typed"])
@pytest.mark.parametrize("program", [of_the_same_kind, of_another_kind, as_arrays, by_name])
def test_made(program, is_typed):
    options = {"example_inputs": (X, 3)} if is_typed else {}
    agrees(program, (X, 3), (X, 0), **options)


def old_constructor(x, n: int):
    return x.new([1, 2, n])


def sparse(x, n: int):
    return torch.sparse_coo_tensor([[0], [1]], [n], (2, 3)).to_dense()


@pytest.mark.parametrize("program", [old_constructor, sparse])
def test_what_asks_python_for_numbers_is_refused(program):
    with pytest.raises(CaptureError, match="of a number that is not known until run time"):
        agrees(program, (X, 3))


def of_what_may_be_a_tensor(x, n: int):
    numbers = [number + x[0, n].item() for number in range(n)]
    return torch.tensor(numbers[-1] % 7 if numbers else 0.5, dtype=torch.bfloat16)


def test_what_may_be_a_tensor_is_no_number():
    with pytest.raises(CaptureError, match="a tensor is made of a value any") as caught:
        agrees(of_what_may_be_a_tensor, (X, 3))
    assert caught.value.code == "S0109"
    agrees(of_what_may_be_a_tensor, (X, 3), (X, 0), example_inputs=(X, 3))
