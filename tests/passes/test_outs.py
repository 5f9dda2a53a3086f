"""Operators that write their results into tensors given to them: `out=`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

OPTIONS = {"measure": False}


def compared_with_a_number(x: Tensor) -> Any:
    v = torch.zeros(4, dtype=torch.int64)
    torch.gt(x, 0.0, out=v)
    return v * 2


def resized(x: Tensor) -> Any:
    v = torch.empty(0)
    torch.add(x, 1, out=v)
    v.mul_(2)
    return v


def two_resized(x: Tensor) -> Any:
    values, order = torch.empty(0), torch.empty(0, dtype=torch.int64)
    torch.sort(x, out=(values, order))
    return values.add_(1), order


def laid_out_otherwise(x: Tensor) -> Any:
    v = torch.empty(0)
    torch.add(x.view(2, 2).t(), 1, out=v)
    return v, v.stride()


def on_one_way(x: Tensor) -> Any:
    v = torch.zeros(2, 4)
    if x.sum() > 0:
        torch.gt(x, 1, out=v[1])
    return v


@pytest.mark.parametrize("program", [compared_with_a_number, resized, two_resized, laid_out_otherwise, on_one_way])
def test_is_compiled(program: Callable[[Tensor], Any]) -> None:
    compiled = smelt.compile(program, options=OPTIONS)
    with torch.no_grad():
        for shift in (0, 1, 4):
            x = torch.tensor([3.0, -1.0, 2.0, 0.5]) - shift
            assert str(compiled(x)) == str(program(x))
    assert compiled.stats().fallbacks == {}


@pytest.mark.parametrize("size", [0, 4])
def test_an_argument_gets_its_size(size: int) -> None:
    def program(x: Tensor, out: Tensor) -> Tensor:
        torch.add(x, 1, out=out)
        return out * 2

    compiled = smelt.compile(program, options=OPTIONS)
    # One that does not fit is resized, and with that the program is not compiled.
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore" if size == 0 else "error", smelt.SmeltWarning)
        for _ in range(3):
            mine, eager = torch.zeros(size), torch.zeros(size)
            assert torch.equal(compiled(torch.ones(4), mine), program(torch.ones(4), eager))
            assert torch.equal(mine, eager)


OF_DTYPES = {
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "mean": lambda x, out: torch.mean(x, 0, out=out),
    "prod": lambda x, out: torch.prod(x, 0, out=out),
    "nansum": lambda x, out: torch.nansum(x, 0, out=out),
    "told": lambda x, out: torch.sum(x, 0, dtype=out.dtype, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out.expand(3).clone())[-1],
    "cumprod": lambda x, out: torch.cumprod(x, 0, out=out.expand(3).clone())[-1],
    "var": lambda x, out: torch.var(x, 0, out=out),
    "std": lambda x, out: torch.std(x, 0, out=out),
    "logsumexp": lambda x, out: torch.logsumexp(x, 0, out=out),
    "amax": lambda x, out: torch.amax(x, 0, out=out),
    "add": lambda x, out: torch.add(x[0], x[1], out=out),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", OF_DTYPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")  # `var` and its kin cannot be told the dtype: eager answers
def test_sums_are_computed_in_the_dtype_they_are_written_in(name: str, dtype: torch.dtype) -> None:
    program = OF_DTYPES[name]
    compiled = smelt.compile(program, options=OPTIONS)
    first = 1e8 if dtype == torch.float64 else 1.5  # in float32 the sum of the first three is 0
    for x in (torch.tensor([first, 1.0, -first]), torch.tensor([0.1, 1.7, 3.3]), torch.tensor([2.5, 1e-4, 1.0])):
        outs = [torch.zeros((), dtype=dtype) for _ in range(4)]
        try:
            want = program(x, outs[0])
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as raised:
                compiled(x, outs[1])
            assert str(raised.value) == str(error)
            continue
        for out in outs[1:]:
            torch.testing.assert_close(compiled(x, out), want)
            torch.testing.assert_close(out, outs[0])
