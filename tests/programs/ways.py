"""The calls of a random program made otherwise: other strides, shared memory, dtypes and modes; state that changes.

Invariant: the same seed and call number change both subjects' calls alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor

MODES: tuple[Callable[[], Any], ...] = (torch.no_grad, torch.no_grad, torch.inference_mode, torch.enable_grad)


@contextlib.contextmanager
def mode(rng: Random) -> Iterator[None]:
    """One of the modes that a caller may be in."""
    with rng.choice(MODES)():
        yield


def laid_out(tensor: Tensor, rng: Random) -> Tensor:
    """The tensor with other strides, offset or base; now and then with other values."""
    match rng.randint(0, 9):
        case 0 if tensor.dim() == 2:
            return tensor.t().contiguous().t()
        case 1 if tensor.dim():
            return tensor.repeat_interleave(2, -1)[..., ::2]
        case 2 if tensor.dim():
            return tensor[:1].expand_as(tensor)
        case 3:
            return torch.cat([tensor.new_zeros(3), tensor.flatten()])[3:].view(tensor.shape)
        case 4 if tensor.dim() == 2:
            return torch.stack([tensor, tensor], 2)[:, :, 1]
        case 5:
            return tensor.expand(2, *tensor.shape)[1]
        case 6 if tensor.dtype == torch.float32:
            return tensor.double()
        case 7 if tensor.is_floating_point():
            return tensor.detach().requires_grad_()
        case 8:
            with torch.inference_mode():
                return tensor.clone()
    return tensor


def shared(args: tuple[Any, ...], rng: Random) -> tuple[Any, ...]:
    """The arguments with one tensor in another's memory, where shapes allow it."""
    found = list(args)
    tensors = [(i, a) for i, a in enumerate(args) if isinstance(a, Tensor)]
    rng.shuffle(tensors)
    for i, small in tensors:
        for j, large in tensors:
            if i == j or small.dtype != large.dtype or small.dim() >= large.dim():
                continue
            view = large
            while view.dim() > small.dim() and view.numel():
                view = view[rng.randrange(view.shape[0])] if rng.random() < 0.7 else view.select(-1, 0)
            if view.shape == small.shape:
                found[i] = view
                return tuple(found)
    return args


def arguments(args: tuple[Any, ...], rng: Random) -> tuple[Any, ...]:
    """The arguments of a call, changed."""
    if rng.random() < 0.25:
        return shared(args, rng)
    return tuple(laid_out(a, rng) if isinstance(a, Tensor) and rng.random() < 0.5 else a for a in args)


def between(holder: Any, rng: Random) -> None:
    """What happens to a program's state before a call."""
    linear = getattr(holder, "linear", None)
    with torch.no_grad():
        match rng.randint(0, 11):
            case 0:
                holder.scale = rng.choice([0.5, -2.0, 1.5])
            case 1:
                holder.flag = not holder.flag
            case 2:
                holder.buffer = torch.tensor([2.0, -1.0, 0.0, 1.5])
            case 3 if not holder.buffer.is_inference():
                holder.buffer.mul_(-1)
            case 4 if linear is not None:
                linear.weight.mul_(-1)
            case 5 if linear is not None:
                linear.weight = torch.nn.Parameter(linear.weight.clone().round())
            case 6 if linear is not None:
                holder.train(not holder.training)
            case 7:
                holder.count = rng.randint(0, 4)
            case 8 if linear is not None:
                holder.requires_grad_(not linear.weight.requires_grad)
