"""Every sample of the catalogue through a plan: the same bits as eager, natively and in Python.

But where own kernels sum in another order: those are held against float64 in their own tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from smelt.diag import SmeltError
from smelt.ir import Arg, Builder, Graph, TensorType
from smelt.ops.catalogue import CATALOGUE
from smelt.ops.convert import from_torch, type_of
from smelt.ops.evaluate import evaluate
from smelt.ops.record import OpRecord, Sample
from smelt.ops.registry import normalize
from smelt.ops.typing import infer
from tests.codegen.harness import assert_same, call, executables, lowered

OTHER_SUMS = frozenset(
    f"aten.{name}.default"
    for name in (
        "scaled_dot_product_attention",
        "linear",
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "mv",
        "dot",
        "conv2d",
    )
) | {"aten.conv1d.padding", "aten.conv2d.padding", "aten.conv_transpose2d.input"}


def sample_graph(record: OpRecord, sample: Sample) -> tuple[Graph, list[torch.Tensor]]:
    tensors: list[torch.Tensor] = []
    builder = Builder(Graph("sample"))

    def place(item: Any) -> Arg:
        if isinstance(item, torch.Tensor):
            tensors.append(item)
            return builder.add_param(builder.graph.body, f"x{len(tensors)}", type_of(item))
        if isinstance(item, (list, tuple)):
            return tuple(place(i) for i in item)
        return from_torch(item)

    args, kwargs = normalize(
        record.name, tuple(place(a) for a in sample.args), {k: place(v) for k, v in sample.kwargs.items()}
    )
    node = builder.add(record.name, args, infer(record.name, args, kwargs), kwargs)
    outputs = list(node.results)
    if not all(isinstance(r.type, TensorType) for r in outputs):
        (packed,) = outputs
        elements = getattr(packed.type, "elements", ())
        outputs = builder.add("unpack", (packed,), elements).results
    builder.finish(tuple(outputs))
    return builder.graph, tensors


@pytest.mark.parametrize("record", [r for r in CATALOGUE if not r.uninitialised], ids=lambda r: r.name)
def test_samples_equal_eager(record: OpRecord) -> None:
    for sample in record.samples():
        graph, tensors = sample_graph(record, sample)
        try:
            plan = lowered(graph)
        except SmeltError as error:
            assert error.code == "S0303"
            continue
        torch.manual_seed(3)
        with torch.no_grad():  # in which a plan runs: recurrent layers have other kernels for it, and other last bits
            expected = evaluate(graph, tensors)
        for executable in executables(plan.plan):
            torch.manual_seed(3)
            found = call(plan, executable, tensors, {})
            if record.name in OTHER_SUMS:
                assert_near(found, expected)
            else:
                assert_same(found, expected, exact=True)


def assert_near(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Equal within roundings of the results' scale: eager rounds on the way, too."""
    for a, b in zip(found, expected, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        scale = float(b.nan_to_num().abs().max()) if b.numel() else 0.0
        torch.testing.assert_close(a, b, rtol=0, atol=8 * torch.finfo(b.dtype).eps * scale, equal_nan=True)
