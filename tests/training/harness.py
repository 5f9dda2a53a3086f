"""A model or a function, eager and compiled for training: the same gradients, and whether it was compiled at all."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import smelt

Tensor = torch.Tensor


def pair(make: Callable[[], nn.Module], **options: Any) -> tuple[nn.Module, nn.Module, Any]:
    """A model, its copy, and the copy compiled."""
    torch.manual_seed(0)
    model = make()
    other = copy.deepcopy(model)
    return model, other, smelt.compile(other, options=options)


def same_gradients(model: nn.Module, other: nn.Module) -> None:
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None and q.grad is not None:
            torch.testing.assert_close(q.grad, p.grad, rtol=2e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
            assert q.grad.stride() == p.grad.stride(), name


def is_compiled(compiled: Any) -> bool:
    stats = compiled.stats()
    return stats.builds > 0 and not stats.fallbacks


def same_as_eager(
    program: Callable[..., Any],
    given: Sequence[Sequence[Tensor]],
    *,
    ends: Callable[[Any], Any] = lambda result: result,
    compiled: Any = None,
) -> Any:
    """Call a program and its compiled form with tensors that need gradients; what is compiled.

    The loss (`ends` of the result), each tensor's gradient or that there is none, or the error, are eager's.
    """
    compiled = smelt.compile(program) if compiled is None else compiled
    for inputs in given:
        found: list[Any] = []
        for run in (program, compiled):
            leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", smelt.SmeltWarning)
                try:
                    loss = ends(run(*leaves))
                    wanted = [leaf for leaf in leaves if leaf.requires_grad]
                    found.append((loss.detach(), torch.autograd.grad(loss, wanted, allow_unused=True)))
                except RuntimeError as error:
                    found.append(str(error).splitlines()[0])
        if isinstance(found[0], str) or isinstance(found[1], str):
            assert found[0] == found[1]
            continue
        (loss, grads), (own_loss, own_grads) = found
        torch.testing.assert_close(own_loss, loss, rtol=1e-5, atol=1e-6)
        assert [g is None for g in own_grads] == [g is None for g in grads]
        for own, grad in zip(own_grads, grads, strict=True):
            if grad is not None:
                torch.testing.assert_close(own, grad, rtol=1e-4, atol=1e-6)
    return compiled
