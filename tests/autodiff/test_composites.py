"""Composites without a gradient of their own are differentiated as what torch's own code makes of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from smelt.ops.samples import floats
from tests.autodiff.gradient_harness import check_program

Tensor = torch.Tensor
A, B = floats(4, 3, dtype=torch.float64), floats(4, 3, seed=1, dtype=torch.float64)


def test_no_node_runs_torchs_backward() -> None:
    def program(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        sign = torch.ones(4, dtype=torch.float64)
        return (
            F.poisson_nll_loss(a, b),
            F.margin_ranking_loss(a[:, 0], b[:, 0], sign),  # torch's code works in place on what it made
            F.hinge_embedding_loss(a, sign[:, None].expand(4, 3)),
            F.cosine_embedding_loss(a, b, sign),
            torch.kron(a[:2, :2], b[:2, :2]),
            torch.diff(a),
        )

    assert check_program(program, A, B) == 0


def test_what_torch_does_without_gradients_stays_constant() -> None:
    a = A.clone()
    a[1] = 1e-3  # a norm below eps is raised to it, unseen by autograd
    assert check_program(lambda a, b: F.cosine_similarity(a, b, eps=0.1), a, B) == 0
    # The norms are those of what is broadcast.
    assert check_program(lambda a, b: F.cosine_similarity(a[None], b[:, None], dim=-2), a, B) == 0
