"""Who calls a compiled program writes to what went in or came out before going back: eager's error, or its gradients.

y = program(x, w); x.mul_(2); y.backward()      an error if eager saved x, and if it saved y alone the gradient at the
                                                old x, whatever the compiled program saves
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.training.harness import is_compiled

Tensor = torch.Tensor
Program = Callable[[Tensor, Tensor], Any]


def _and_its(function: Callable[[Tensor], Tensor]) -> Program:
    """What is computed first, and what follows from it."""

    def program(x: Tensor, w: Tensor) -> Any:
        y = x @ w + 1
        return y, function(y)

    return program


def _and_its_transpose(x: Tensor, w: Tensor) -> Any:
    y = (x + w).sigmoid()
    return y.t(), (y * w).relu()


def _written_itself(x: Tensor, w: Tensor) -> Any:
    y = w.tanh()
    x.detach()[0] = 0.5
    return y * x.detach(), (y + x.detach()).exp()


PROGRAMS: dict[str, Program] = {
    "result": lambda x, w: (x * w).exp(),
    "result alone": lambda x, w: x.exp() * 2,
    "sums": lambda x, w: ((x + w).relu(), (x + w) * 2),
    "nothing": lambda x, w: x * 3 + w.sum(),
    "small operands": lambda x, w: (x[:, None] + w).exp(),
    "one operand": lambda x, w: x.sigmoid() + w,
    "quotient": lambda x, w: x / w,
    "product": lambda x, w: F.linear(x, w).relu(),
    "transposed": lambda x, w: (x.t() @ w).tanh(),
    "softmax": lambda x, w: (x + w).softmax(-1),
    "parts": lambda x, w: (x[:, ::2] + w[:, ::2]).abs(),
    "where": lambda x, w: torch.where(x > 0, x, w),
    "layer norm": lambda x, w: F.layer_norm(x, (4,), w[0]),
    "batch norm": lambda x, w: F.batch_norm(x @ w, None, None, w[0], w[1], True).relu(),
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None, None], w[None, None], (x + w)[None, None]),
    "and its square": _and_its(lambda y: y * y),
    "and its relu": _and_its(torch.relu),
    "and its gelu": _and_its(F.gelu),
    "and its transpose": _and_its_transpose,
    "written itself": _written_itself,
}
ACTS: dict[str, Callable[[Tensor, Tensor, list[Tensor]], Any]] = {
    "nothing": lambda x, w, results: None,
    "x": lambda x, w, results: x.mul_(2),
    "w": lambda x, w, results: w[1:].mul_(2),
    "x, detached": lambda x, w, results: x.detach().mul_(2),
    "result": lambda x, w, results: results[0].mul_(2),
    "last result, detached": lambda x, w, results: results[-1].detach().mul_(2),
}


def _gradients(run: Program, act: str, needs: tuple[bool, bool]) -> Any:
    torch.manual_seed(0)
    leaves = [torch.randn(4, 4).requires_grad_(need) for need in needs]
    # A leaf's own numbers are never written to.
    x, w = (leaf * 1 if leaf.requires_grad else leaf for leaf in leaves)
    found = run(x, w)
    results = [found] if isinstance(found, Tensor) else list(found)
    with torch.no_grad():
        ACTS[act](x, w, results)
    total = sum((r * torch.arange(1.0, r.numel() + 1).reshape(r.shape)).sum() for r in results)
    assert isinstance(total, Tensor)
    try:
        total.backward()
    except RuntimeError as error:
        return str(error).partition(":")[0]
    return [leaf.grad for leaf in leaves]


@pytest.mark.spread(2)
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)], ids=["both", "x", "w"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_errors_and_gradients_are_eagers(name: str, needs: tuple[bool, bool]) -> None:
    program = PROGRAMS[name]
    compiled = smelt.compile(program, options={"adaptive": False})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for act in ("nothing", *ACTS):
            want, got = _gradients(program, act, needs), _gradients(compiled, act, needs)
            if isinstance(want, str) or isinstance(got, str):
                assert got == want, act
                continue
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, msg=lambda m, act=act: f"{act}: {m}")
    # A write under `detach` to what has a history is eager's.
    assert is_compiled(compiled) or (name == "written itself" and needs[0])
