"""What a staging run with free sizes must not leave, and what one graph cannot say: default dtypes, lent memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensor

import smelt


@pytest.mark.spread(2)
@pytest.mark.parametrize("maxsize", [None, 4])
def test_a_cached_function_keeps_no_fake(maxsize: int | None) -> None:
    @functools.lru_cache(maxsize=maxsize)
    def mask(n: int) -> torch.Tensor:
        return torch.ones(n, n).tril().bool()

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.T).masked_fill(~mask(x.shape[0]), 0.0)

    compiled = smelt.compile(f)
    with torch.no_grad():
        for n in (3, 4, 3, 5, 4, 6):
            x = torch.randn(n, 2)
            assert torch.allclose(compiled(x), f(x))
            assert mask.cache_info().currsize <= 4
    assert not any(isinstance(mask(n), FakeTensor) for n in range(3, 7))


class Rotary(torch.nn.Module):
    """Tables that grow with the longest input, one an attribute and one a buffer, as rotary embeddings keep them."""

    def __init__(self) -> None:
        super().__init__()
        self.cos: torch.Tensor | None = None
        self.length = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.cos is None or x.shape[1] > self.length or self.cos.dtype != x.dtype:
            self.length = x.shape[1]
            angles = torch.outer(torch.arange(self.length), torch.ones(4) / 3)
            self.cos = angles.cos().to(x.dtype)
            self.register_buffer("sin", angles.sin().to(x.dtype), persistent=False)
        return x * self.cos[: x.shape[1]] + self.sin[: x.shape[1]]


def test_tables_that_grow_in_attributes_and_buffers() -> None:
    plain, module = Rotary(), Rotary()
    compiled = smelt.compile(module)
    with torch.no_grad():
        for n in (3, 5, 4, 5, 8, 2, 7):
            x = torch.randn(1, n, 4)
            assert torch.allclose(compiled(x), plain(x), rtol=1e-6, atol=1e-6)
            assert module.length == plain.length and torch.equal(module.sin, plain.sin)


def set_default_inside(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        steps = torch.linspace(0, 1, 5)
    finally:
        torch.set_default_dtype(before)
    return x * steps.sum(), steps


def over_lent_memory(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    array = x.numpy()
    return torch.from_numpy(array), float(array.mean())


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize(
    ("f", "message"),
    [
        (set_default_inside, "sets torch's default dtype, torch.float64 in place of torch.float32"),
        (over_lent_memory, "a tensor was made over memory that Python got by numpy"),
    ],
)
def test_what_one_graph_cannot_say_runs_as_it_is(f: Callable[..., Any], message: str) -> None:
    compiled = smelt.compile(f)
    for _ in range(3):
        x = torch.arange(4.0)
        want, got = f(x), compiled(x)
        assert torch.equal(want[0], got[0]) and want[0].dtype == got[0].dtype
        assert (want[0].data_ptr() == x.data_ptr()) == (got[0].data_ptr() == x.data_ptr())
    with pytest.raises(smelt.CaptureError, match=message) as error:
        smelt.trace(f, (torch.arange(4.0),), check=False)
    assert error.value.where is not None and error.value.fix
