"""Forward and backward of a batch in the order that a pipeline has them."""

from __future__ import annotations

from typing import Any

import torch

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
