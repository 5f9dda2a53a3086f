"""Results whose strides torch's kernels for symbolic sizes tell otherwise than those that run: sizes stay fixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt

NORM = nn.BatchNorm1d(4).eval()


def powers(x: Tensor) -> Any:
    y = 2.0**x
    y.reshape(-1)[:3] = 5.0
    return y, y.is_contiguous(), y.stride()


def sigmoids(x: Tensor) -> Any:
    y = F.logsigmoid(x)
    y.flatten()[0] = 7.0
    return y.sum(0), y


def quotients(x: Tensor) -> Any:
    y = torch.floor_divide(x, x.contiguous() + 2.5)
    y.reshape(-1)[:2] = 3.0
    return y


def normed(x: Tensor) -> Any:
    y = NORM(x.unsqueeze(0).expand(4, *x.shape).transpose(0, 1).clone())
    y.reshape(-1)[:2] = 3.0
    return y


def in_a_branch(x: Tensor) -> Any:
    y = 2.0**x
    if x.sum() > 0:
        y = y + 1
    y.reshape(-1)[:3] = 5.0
    return y


@pytest.mark.spread(10)
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "program", [powers, sigmoids, quotients, normed, in_a_branch], ids=lambda program: program.__name__
)
def test_results_lie_as_in_eager(program: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = smelt.compile(program, dynamic=dynamic)
    with torch.no_grad():
        for n in range(5):
            torch.manual_seed(n)
            x = torch.randn(3 + n, 4 + n % 3).t()
            found, expected = compiled(x), program(x)
            torch.testing.assert_close(found, expected, check_stride=True)
