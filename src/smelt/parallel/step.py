"""A training step of a module that has a part of its parameters: backward in the pipeline's order, and the gradients'
norm over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite, prod
from typing import Any

import torch

from smelt.diag import SmeltError
from smelt.parallel.module import PartedForward, loss_of, tensors_in


def forward_backward(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """Call a module and go back from its loss: the first result that is one floating-point number.

    Gradients are added to `.grad`. A pipeline that `s.build(mesh=...)` made goes back with each microbatch as soon as
    its schedule says so ("1f1b"), so that few are stored at once; `module(...)` and `loss.backward()` run all of
    forward first. Any other module: just that. All ranks call this together. Returns what the module returns, without
    a history where it is a pipeline.
    Raises: SmeltError (S0641) where no result is a loss.
    """
    forward = module.__dict__.get("forward")
    if isinstance(forward, PartedForward):
        return forward.train(args, kwargs)
    result = module(*args, **kwargs)
    loss_of(tensors_in(result)).backward()
    return result


def clip_grad_norm_(
    module: torch.nn.Module, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
) -> torch.Tensor:
    """Scale a module's gradients so that their norm, over all of its parameters on all ranks, is at most `max_norm`.

    What `torch.nn.utils.clip_grad_norm_` does for one process: that sees the gradients of its own rank only, and would
    scale them otherwise than other ranks do. All ranks call this together. norm_type: above 0,
    or infinity. Returns the norm before scaling, the same on all ranks.
    Raises: RuntimeError of torch's where it is not finite and `error_if_nonfinite` is set, SmeltError (S0641) for
    another norm.
    """
    forward = module.__dict__.get("forward")
    parameters = list(module.parameters())
    if not isinstance(forward, PartedForward):
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)
    if not norm_type > 0:
        raise SmeltError(f"there is no norm {norm_type} over ranks", why="it is above 0, or infinity", code="S0641")
    total = _norm(forward, float(norm_type))
    if error_if_nonfinite and not isfinite(total.item()):
        raise RuntimeError(f"The total norm of order {norm_type} for gradients from `parameters` is non-finite")
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
    return total


def _norm(forward: PartedForward, order: float) -> torch.Tensor:
    """The norm of all gradients, each element of the whole model counted once."""
    total, dtype = torch.zeros((), dtype=torch.float64), torch.float32
    for grad, copies in _gradients(forward):
        dtype = grad.dtype
        one = torch.linalg.vector_norm(grad, order, dtype=torch.float64) if grad.numel() else torch.zeros_like(total)
        total = torch.maximum(total, one) if order == inf else total + one**order / copies
    for axis in forward.mesh.names:
        total = torch.ops.smelt_dist.all_reduce(total, "max" if order == inf else "sum", forward.axes[axis])
    return (total if order == inf else total ** (1 / order)).to(dtype)


def _gradients(forward: PartedForward) -> Iterator[tuple[torch.Tensor, int]]:
    """The gradients that this rank has, each with the number of ranks that have the same."""
    entry, mesh = forward.entries[-1], forward.mesh
    for name, parameter in forward.module.named_parameters():
        if parameter.grad is None:
            continue
        lies = entry.part.state_of(name)
        same = [mesh.extent(axis) for axis in mesh.names if axis not in lies]
        if entry.pipe is not None:
            stages = entry.pipe.plan.ties.get(entry.part.names.get(name, name), (0,))
            same = [mesh.extent(axis) for axis in mesh.names if axis not in lies and axis != entry.pipe.axis]
            same.append(len({stage % entry.pipe.ranks for stage in stages}))
        yield parameter.grad, prod(same)
