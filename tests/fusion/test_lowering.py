"""Own kernels in plans: every sample of the catalogue natively and in Python, beside eager."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt.codegen.llvm.isa import host_isa
from smelt.diag import Options, SmeltError
from smelt.ops.catalogue import CATALOGUE
from smelt.ops.evaluate import evaluate
from smelt.ops.record import OpRecord
from tests.codegen.harness import call, executables, lowered
from tests.fusion.exact import difference
from tests.fusion.harness import sample_graph

OWN = Options(deterministic=True)

pytestmark = pytest.mark.skipif(host_isa() is None, reason="there are no own kernels for this machine")


@pytest.mark.spread(22)
@pytest.mark.parametrize("record", [r for r in CATALOGUE if not r.uninitialised], ids=lambda r: r.name)
def test_samples_equal_eager(record: OpRecord) -> None:
    for sample in record.samples():
        graph, tensors = sample_graph(record.name, sample)
        try:
            plan = lowered(graph, options=OWN)
        except SmeltError as error:
            assert error.code == "S0303"
            continue
        torch.manual_seed(3)
        expected = evaluate(graph, tensors)
        for executable in executables(plan.plan):
            torch.manual_seed(3)
            for a, b in zip(expected, call(plan, executable, tensors, {}), strict=True):
                assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
                assert difference(record.name, a, b) is None, (sample.args, dict(sample.kwargs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_an_extreme_is_the_element_at_its_index(dtype: torch.dtype, dim: int) -> None:
    compiled = smelt.compile(lambda x: (*x.max(dim), *x.min(dim)), options={"measure": False})
    torch.manual_seed(0)
    signs = torch.randn(17, 40, dtype=dtype)
    for x in (signs * 0, signs.relu() * signs.sign(), -signs * 0, torch.where(signs > 0, signs, -0.0)):
        with torch.no_grad():
            largest, first, least, second = compiled(x)
        for found, (values, indices) in ((largest, first), x.max(dim)), ((least, second), x.min(dim)):
            assert torch.equal(found[0], values) and torch.equal(found[1], indices)
            assert torch.equal(found[0].signbit(), values.signbit())
