"""Every kernel of the models of `smelt bench`, forward and as gradients, compiles for three architectures."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt.bench.models import MODELS, Model
from smelt.codegen.lower.gpu import gpu_program
from smelt.codegen.triton.compile import ARCHITECTURES, compile_cuda


@pytest.mark.nightly
@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_kernels_of_a_model(model: Model, gradients: bool) -> None:
    target, args = model.build()
    if gradients:
        if isinstance(target, torch.nn.Module):
            target.requires_grad_(True)
        elif not any(a.is_floating_point() for a in args):
            pytest.fail("a model without floating-point numbers has no gradients")
    program = smelt.trace(target, args)
    graph = program.grad_graph() if gradients else program.graph_for(*args)
    found = gpu_program(graph)
    assert found.kernels
    refused = {node.op for node, _ in found.refused}
    assert refused <= (_LOOPS if gradients else set()), refused
    sources = {one.kernel.source.name: one.kernel.source for one in found.kernels}
    for arch in ARCHITECTURES:
        assert set(compile_cuda(sources.values(), arch)) == set(sources)


_LOOPS = {"for", "aten.empty.memory_format"}
"""Of a recurrent model's gradients."""
