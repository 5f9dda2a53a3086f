"""Own kernels in plans: every sample of the catalogue natively and in Python, beside eager."""

from __future__ import annotations

import pytest
import torch

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
