"""Gradients in f32 and bf16 are as near to those in f64 as autograd's are: at most 1.5 times its rms error."""

from __future__ import annotations

import pytest
import torch

from smelt.autodiff import joint_graph
from smelt.ops.evaluate import evaluate
from smelt.ops.record import Sample, sample
from smelt.ops.samples import floats, ints, positives
from tests.autodiff.gradient_harness import called, graph_of

X, ROWS = floats(64, 48), (floats(48, seed=1), floats(48, seed=2))
CALLS: dict[str, Sample] = {
    "gelu.default": sample(X),
    "silu.default": sample(X),
    "elu.default": sample(X),
    "softplus.default": sample(X),
    "tanh.default": sample(X),
    "div.Tensor": sample(X, positives(48)),
    "pow.Tensor_Scalar": sample(X.abs() + 0.1, 1.5),
    "mean.dim": sample(X, [0]),
    "softmax.int": sample(X, -1),
    "log_softmax.int": sample(X, -1),
    "logsumexp.default": sample(X, [1]),
    "linalg_vector_norm.default": sample(X, 2, [1]),
    "std.correction": sample(X, [1]),
    "layer_norm.default": sample(X, [48], *ROWS),
    "rms_norm.default": sample(X, [48], ROWS[0], 1e-6),
    "group_norm.default": sample(floats(4, 48, 16), 6, *ROWS),
    "batch_norm.default": sample(floats(4, 48, 16), *ROWS, None, None, True, 0.1, 1e-5, False),
    "cross_entropy_loss.default": sample(X, ints(64, low=0, high=48)),
    "mse_loss.default": sample(X, floats(64, 48, seed=1)),
    "binary_cross_entropy_with_logits.default": sample(X, floats(64, 48, seed=1).sigmoid()),
}


def gradients(name: str, call: Sample, dtype: torch.dtype, *, own: bool) -> list[torch.Tensor]:
    call = Sample(tuple(a.to(torch.bfloat16).to(dtype) if _is_float(a) else a for a in call.args), call.kwargs)
    graph, tensors = graph_of(name, call)
    leaves = [t.requires_grad_() if t.is_floating_point() else t for t in tensors]
    (result,) = called(name, call, leaves)
    direction = floats(*result.shape, seed=9).to(torch.bfloat16).to(dtype)
    if own:
        return evaluate(joint_graph(graph).graph, [*(t.detach() for t in leaves), direction])[1:]
    return list(torch.autograd.grad(result, [t for t in leaves if t.requires_grad], direction))


def _is_float(arg: object) -> bool:
    return isinstance(arg, torch.Tensor) and arg.is_floating_point()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms(dtype: torch.dtype) -> None:
    worse = {}
    for name, call in CALLS.items():
        name = f"aten.{name}"
        reference = gradients(name, call, torch.float64, own=False)
        pairs = (gradients(name, call, dtype, own=True), gradients(name, call, dtype, own=False))
        for i, (exact, mine, theirs) in enumerate(zip(reference, *pairs, strict=True)):
            errors = [float((g.double() - exact).square().mean().sqrt()) for g in (mine, theirs)]
            scale = float(exact.abs().max()) * torch.finfo(dtype).eps / 8  # an error of none has no ratio
            if errors[0] > 1.5 * errors[1] + scale:
                worse[name, i] = errors[0] / max(errors[1], 1e-300)
    assert not worse
