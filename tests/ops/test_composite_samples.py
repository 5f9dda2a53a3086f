"""Operators that became simpler ones, over torch's own samples of them: each bit as eager computes it, and natively."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import smelt
from smelt.ops.evaluate import evaluate
from smelt.passes.layers.decompose import decompose
from smelt.passes.manager import run_passes
from tests.differential.judge import FAST
from tests.differential.test_operators import operators, sample_difference

NAMES = {
    "einsum": ("aten.einsum.default",),
    "linalg.norm": ("aten.linalg_norm.default",),
    "scatter": ("aten.scatter.value",),
    "index_add": ("aten.index_add.default",),
    "nn.functional.conv1d": ("aten.conv1d.padding",),
    "nn.functional.conv2d": ("aten.conv2d.padding",),
    "histc": ("aten.histc.default",),
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


def _program(op: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
    return lambda *args: op(*args, **kwargs)


def _inputs(args: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]


# torch warns of some samples (a padding that costs a copy, a reduction under its old name).
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_samples_of_torch(name: str) -> None:
    for dtype in DTYPES:
        if dtype in operators()[name].supported_dtypes("cpu"):
            _check(name, dtype)


def _check(name: str, dtype: torch.dtype) -> None:
    is_product = name == "einsum" or "conv" in name
    torch.manual_seed(0)
    for sample in operators()[name].sample_inputs("cpu", dtype, requires_grad=False):
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        assert not _inputs(kwargs)
        call = _program(operators()[name].op, kwargs)
        graph = smelt.trace(call, args, options=FAST, check=False).graph.clone()
        if any(node.op in NAMES[name] for node in graph.walk()):
            run_passes(graph, [decompose])
            expected = call(*args)
            (found,) = evaluate(graph, _inputs(args))
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
            assert found.stride() == expected.stride()
        told = sample_difference(operators()[name].op, args, kwargs, not is_product)
        assert told is None, f"{told}\n{graph}"
