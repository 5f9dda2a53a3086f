"""What `x[...] = value` writes: torch drops leading sizes of 1 and expands the value, before it copies.

Invariant: a value that does not fit is refused in the words of `expand`, as eager refuses it.
"""

from __future__ import annotations

import torch

from smelt.capture.scripting.domain import Open
from smelt.capture.scripting.marking import mark
from smelt.ir import TensorType
from smelt.ir.dims import UnknownDim


def put(domain: Open, view: torch.Tensor, value: torch.Tensor) -> None:
    """Write a tensor to all of a view, as an assignment to items does."""
    target, source = domain.type_of(view), domain.type_of(value)
    if source.rank != 0 and not _same_sizes(target, source):
        for _ in range((source.rank or 0) - target.rank if target.rank is not None else 0):
            value = torch.ops.aten.squeeze.dim(value, 0)
        value = torch.ops.aten.expand.default(value, mark(domain, domain.sizes(view)))
    torch.ops.aten.copy_.default(view, value)


def _same_sizes(a: TensorType, b: TensorType) -> bool:
    return a.shape is not None and a.shape == b.shape and not any(isinstance(d, UnknownDim) for d in a.shape)
