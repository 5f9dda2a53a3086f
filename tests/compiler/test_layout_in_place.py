"""Results that get another layout in place are compiled, with eager's sizes, strides and elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import smelt

Tensor = torch.Tensor
PROGRAMS: dict[str, Callable[[Tensor], object]] = {
    "transpose_": lambda x: (x * 2).transpose_(0, 1) + 1, "t_": lambda x: (x * 2).t_() + 1,
    "swapaxes_": lambda x: (x * 2).swapaxes_(0, 1), "swapdims_": lambda x: (x * 2).swapdims_(0, -1),
    "squeeze_": lambda x: (x * 2)[None].clone().squeeze_(), "squeeze_ of one": lambda x: (x * 2)[None].squeeze_(0),
    "squeeze_ of none": lambda x: (x * 2).squeeze_(1) + 1, "unsqueeze_": lambda x: (x * 2).unsqueeze_(1),
    "as_strided_": lambda x: (x * 2).as_strided_((2,), (3,)) + 1, "detach_": lambda x: (x * 2).detach_() + 1,
    "resize_": lambda x: (x * 2).resize_(x.shape) + 1, "resize_as_": lambda x: (x * 2).resize_as_(x) + 1,
    "written behind it": lambda x: _written(x * 2),
    "again and again": lambda x: (x * 2).t_().unsqueeze_(0).squeeze_(0).t_(),
}  # fmt: skip


def _written(y: Tensor) -> object:
    flat = y.view(-1)
    y.transpose_(0, 1)
    y.add_(1)
    y[0] = 5
    return flat, y, y.stride(), flat._version, y._base is None


@pytest.mark.parametrize("dynamic", [None, True])
def test_layouts_in_place(dynamic: bool | None) -> None:
    for name, program in PROGRAMS.items():
        compiled = smelt.compile(program, dynamic=dynamic)
        with torch.no_grad():
            for n in (3, 3, 4, 5):
                x = torch.arange(n * 3.0).reshape(n, 3)
                found, wanted = compiled(x), program(x)
                assert str(found) == str(wanted), name
                if isinstance(found, Tensor) and isinstance(wanted, Tensor):
                    assert found.stride() == wanted.stride(), name
        assert not compiled.stats().fallbacks and compiled.stats().builds <= 2, name


def test_a_tensor_gets_fewer_elements_in_place() -> None:
    compiled = smelt.compile(lambda x: (x * 2).resize_(2) + 1)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(3, 3)), torch.full((2,), 3.0))
    assert not compiled.stats().fallbacks


@pytest.mark.filterwarnings("ignore:.*falls back to eager")
@pytest.mark.parametrize("dynamic", [None, True])
def test_an_argument_gets_its_layout_in_place(dynamic: bool | None) -> None:
    """With free sizes torch's kernels for that recurse without end where nothing is to be done."""
    for program in (lambda x: x.squeeze_(0) * 2, lambda x: x.squeeze_(-1) * 2, lambda x: x.t_() * 2):
        compiled = smelt.compile(program, dynamic=dynamic)
        for n in (3, 4, 4):
            mine, eagers = torch.ones(n, 4), torch.ones(n, 4)
            assert torch.equal(compiled(mine), program(eagers)) and mine.shape == eagers.shape


@pytest.mark.filterwarnings("ignore:.*falls back to eager")
def test_a_reduction_into_its_own_operand_clears_it_first() -> None:
    def program(x: Tensor) -> Tensor:
        y = (x * 2).sum()
        torch.sum(y, 0, out=y)
        return y

    compiled = smelt.compile(program)
    for _ in range(3):
        assert compiled(torch.ones(3)) == program(torch.ones(3))
