"""Layers that `torch.nn` runs as one operator: spelled out they are as exact as eager, and masks mean the same."""

from __future__ import annotations

import copy
import warnings
from math import inf
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.diag import Options

_DIM, _HEADS, _LENGTH = 16, 2, 7
_PADDING = torch.arange(_LENGTH).expand(3, _LENGTH) >= torch.tensor([[4], [7], [1]])
_CAUSAL = torch.full((_LENGTH, _LENGTH), -inf).triu(1)
_NOTHING = torch.ones(3, _LENGTH, dtype=torch.bool)


class _Self(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(_DIM, _HEADS, batch_first=True)
        self.how = how

    def forward(self, x: torch.Tensor) -> Any:
        return self.attention(x, x, x, **self.how)


class _Masked(nn.Module):
    """A layer, or several, with its masks."""

    def __init__(self, layer: nn.Module, **how: Any) -> None:
        super().__init__()
        self.layer, self.how = layer, how

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x, **self.how)


def _layer(activation: str = "relu", norm_first: bool = False) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(_DIM, _HEADS, 24, batch_first=True, activation=activation, norm_first=norm_first)


MODULES = {
    "weights": lambda: _Self(),
    "no weights": lambda: _Self(need_weights=False),
    "weights of each head": lambda: _Self(average_attn_weights=False),
    "padding": lambda: _Self(need_weights=False, key_padding_mask=_PADDING),
    "nothing to see": lambda: _Self(need_weights=False, key_padding_mask=_NOTHING),
    "weights, causal": lambda: _Self(attn_mask=_CAUSAL),
    "causal": lambda: _Self(need_weights=False, attn_mask=_CAUSAL),
    "layer": lambda: _Masked(_layer()),
    "layer, gelu": lambda: _Masked(_layer("gelu")),
    "layer, norm first": lambda: _Masked(_layer(norm_first=True)),
    "layer, padding": lambda: _Masked(_layer(), src_key_padding_mask=_PADDING),
    "layer, causal": lambda: _Masked(_layer("gelu", True), src_mask=_CAUSAL),
    "two layers": lambda: _Masked(nn.TransformerEncoder(_layer(), 2, enable_nested_tensor=False)),
}
# Those that eager runs as one operator.
WHOLE = tuple(name for name in MODULES if "causal" not in name or "layer" in name)


def _made(name: str) -> nn.Module:
    torch.manual_seed(3)
    module: nn.Module = MODULES[name]().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def _tensors(result: Any) -> list[torch.Tensor]:
    return [t for t in (result if isinstance(result, tuple) else (result,)) if t is not None]


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).nan_to_num().square().mean().sqrt())


@pytest.mark.spread(6)
@pytest.mark.parametrize("own_kernels", (True, False))
@pytest.mark.parametrize("name", MODULES)
def test_as_exact_as_eager(name: str, own_kernels: bool) -> None:
    module, x = _made(name), torch.randn(3, _LENGTH, _DIM)
    compiled = smelt.compile(module, options={"own_kernels": own_kernels})
    doubled = copy.deepcopy(module).double()
    if isinstance(doubled, _Self | _Masked) and "causal" in name:
        doubled.how = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in doubled.how.items()}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", smelt.SmeltWarning)
        expected, exact = module(x), doubled(x.double())
        found = [compiled(x), compiled(x)][1]
    assert isinstance(found, tuple) == isinstance(expected, tuple)
    assert len(_tensors(found)) == len(_tensors(expected))
    for ours, eager, truth in zip(*map(_tensors, (found, expected, exact)), strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (eager.dtype, eager.shape, eager.stride())
        assert torch.equal(ours.isnan(), eager.isnan())
        ulp = float(truth.nan_to_num().abs().max()) * torch.finfo(ours.dtype).eps
        assert _error(ours, truth) <= 1.5 * _error(eager, truth) + ulp


@pytest.mark.parametrize("name", WHOLE)
def test_spelled_out(name: str) -> None:
    x = torch.randn(3, _LENGTH, _DIM)
    with torch.no_grad():
        program = smelt.trace(_made(name), (x,))
        optimized = str(program.graph_for(x))
    assert "aten._native_multi" in str(program.graph) or "aten._transformer" in str(program.graph)
    assert "aten._native_multi" not in optimized and "aten._transformer" not in optimized


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", WHOLE)
def test_eager_library_keeps_the_operator(name: str) -> None:
    module, x = _made(name), torch.randn(3, _LENGTH, _DIM)
    compiled = smelt.compile(module, options=Options(numerics="eager-library"))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", smelt.SmeltWarning)
        expected, found = module(x), [compiled(x), compiled(x)][1]
    for ours, eager in zip(_tensors(found), _tensors(expected), strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)


def test_weights_that_nobody_reads_cost_nothing() -> None:
    attention, x = _made("weights"), torch.randn(3, _LENGTH, _DIM)
    with torch.no_grad():
        program = smelt.trace(lambda x: attention(x)[0], (x,))
        assert "scaled_dot_product_attention" in str(program.graph_for(x))


def test_empty_batches() -> None:
    module, x = _made("layer"), torch.empty(0, _LENGTH, _DIM)
    compiled = smelt.compile(module)
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))
