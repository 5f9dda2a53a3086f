"""Operators that have another form in a differentiated graph: numbers, draws, first and second gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import smelt
from smelt.autodiff import joint_graph
from smelt.ops.catalogue import record_of
from smelt.ops.evaluate import evaluate
from smelt.ops.record import Sample, sample
from smelt.ops.samples import floats, strided
from tests.autodiff.gradient_harness import check_gradients, check_program

Tensor = torch.Tensor

LAYOUTS: dict[str, Tensor] = {
    "row-major": floats(4, 6),
    "transposed": floats(6, 4).t(),
    "strided": strided(4, 6),
    "expanded": floats(4, 1).expand(4, 6),
    "channels last": floats(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "permuted": floats(2, 3, 4, 1).permute(2, 0, 3, 1),
    "0-d": torch.tensor(2.0),
    "nothing": torch.empty(0, 3),
    "bf16": floats(4, 6, dtype=torch.bfloat16),
    "f64": floats(4, 6, dtype=torch.float64),
}
DROPOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    **{f"dropout {p}": (lambda x, p=p: F.dropout(x, p)) for p in (0.0, 0.021, 0.1, 0.5, 1.0)},
    "two": lambda x: F.dropout(x, 0.3) * F.dropout(x, 0.6),
    "not in training": lambda x: F.dropout(x, 0.3, False),
    "alpha": lambda x: F.alpha_dropout(x, 0.3, True),
    "alpha, nothing left": lambda x: F.alpha_dropout(x, 1.0, True),
}
FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "channels": lambda x: F.dropout2d(x, 0.4),
    "alpha by channels": lambda x: F.feature_alpha_dropout(x, 0.3, True),
}


def _same_draws(program: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Bits of the result and of the gradient, and where the generator stands, as in eager."""
    graph = joint_graph(smelt.trace(program, (x,)).graph).graph
    grad = torch.ones_like(program(x))
    torch.manual_seed(3)
    leaf = x.detach().requires_grad_()
    y = program(leaf)
    state = torch.get_rng_state()
    (expected,) = torch.autograd.grad(y, leaf, grad)
    torch.manual_seed(3)
    found, own = evaluate(graph, [x, grad])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(found, y.detach()) and found.stride() == y.stride()
    torch.testing.assert_close(own, expected)


@pytest.mark.spread(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dropout_draws_as_eager(layout: str) -> None:
    x = LAYOUTS[layout]
    for program in (*DROPOUTS.values(), *(FEATURES.values() if x.dim() == 4 else ())):
        _same_draws(program, x)


@pytest.mark.parametrize("name", [*DROPOUTS, *FEATURES])
def test_gradients_of_dropout(name: str) -> None:
    x = floats(2, 3, 2, 2, dtype=torch.float64)
    program = {**DROPOUTS, **FEATURES}[name]
    assert check_program(lambda x: program(x.exp()), x) == 0


_ATTENTION = "aten.scaled_dot_product_attention.default"
_Q, _K = floats(2, 4, 5, 4, dtype=torch.float64), floats(2, 2, 5, 4, dtype=torch.float64)
_M = torch.tensor([[True, False, True, True, False], [False] * 5, *[[True] * 5] * 3])


def _math() -> sdpa_kernel:
    # The kernel's own backward has no gradient in torch.
    return sdpa_kernel(SDPBackend.MATH)


ATTENTIONS = [
    sample(_Q, _Q, _Q, _M),
    sample(_Q, _Q, _Q, floats(4, 5, 5)),
    sample(_Q, _K, _K, None, 0.0, True, enable_gqa=True),
    sample(_Q, _K, _K, _M, scale=0.7, enable_gqa=True),
    sample(_Q, _Q, _Q, scale=-0.5),
    sample(_Q[0], _Q[1], _Q[0], is_causal=True),
    sample(_Q[:, :, :0], _Q, _Q),
]


def test_gradients_of_attention() -> None:
    record = record_of(_ATTENTION)
    assert record is not None
    for call in (*record.samples(), *ATTENTIONS):
        assert check_gradients(_ATTENTION, call, rtol=1e-6, around=_math) == 0


def test_gradient_of_an_attention_mask() -> None:
    def program(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, mask)

    assert check_program(program, _Q, _Q.flip(0), floats(5, 5, dtype=torch.float64)) == 0


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_dropout_draws_as_eager(causal: bool) -> None:
    for x in (floats(2, 3, 5, 4), floats(2, 5, 3, 4).transpose(1, 2), floats(3, 5, 4), _Q.bfloat16()):
        _same_draws(lambda x: F.scaled_dot_product_attention(x, x, x, None, 0.3, causal), x)


LAYERS: list[tuple[str, Sample]] = [
    ("avg_pool2d.default", sample(floats(2, 3, 7, 8), [3, 2], [2, 1], [1, 0], True, False)),
    ("avg_pool2d.default", sample(floats(3, 7, 8), [2, 2], [2, 2], [1, 1], False, True, 3)),
    ("max_pool2d.default", sample(torch.ones(2, 3, 6, 6), [3, 3], [2, 2], [1, 1])),
    ("max_pool2d.default", sample(floats(3, 7, 8), [2, 3], [], [1, 1], [2, 1], True)),
    ("max_pool2d_with_indices.default", sample(floats(2, 3, 6, 6), [2, 2])),
    ("adaptive_avg_pool2d.default", sample(floats(3, 7, 5), [2, 3])),
    ("adaptive_avg_pool2d.default", sample(strided(2, 3, 4, 5), [1, 1])),
    ("adaptive_avg_pool2d.default", sample(floats(2, 3, 2, 2), [4, 3])),
    ("adaptive_avg_pool1d.default", sample(floats(3, 8), [1])),
    ("upsample_nearest2d.vec", sample(floats(2, 3, 2, 4), [6, 4], None)),
]


@pytest.mark.parametrize(("name", "call"), LAYERS, ids=lambda c: c if isinstance(c, str) else "")
def test_layers(name: str, call: Sample) -> None:
    assert check_gradients(f"aten.{name}", call) == 0


def test_upsampling_by_parts_of_pixels() -> None:
    assert check_gradients("aten.upsample_nearest2d.vec", sample(floats(1, 2, 4, 4), None, [1.5, 1.5])) == 0
    assert check_gradients("aten.upsample_nearest2d.vec", sample(floats(1, 2, 4, 4), [5, 7], None)) == 0
