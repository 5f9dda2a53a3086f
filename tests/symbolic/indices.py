"""Random calls of advanced indexing: ints, slices, new dimensions, masks, and index tensors of every layout and place.

Some are empty, or index an empty tensor.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch

_SHAPES: tuple[tuple[int, ...], ...] = ((2,), (3,), (2, 3), (3, 2), (1, 2), (2, 1), (2, 3, 2), (1,), (3, 3))
_EMPTY: tuple[tuple[int, ...], ...] = ((0,), (2, 0), (1, 0))


def laid(rng: Random, tensor: torch.Tensor) -> torch.Tensor:
    """The same elements, laid out in one of several ways."""
    roll = rng.random()
    if roll < 0.35 or not tensor.dim():
        return tensor
    if roll < 0.65:
        order = rng.sample(range(tensor.dim()), tensor.dim())
        return tensor.permute(order).contiguous().permute([order.index(d) for d in range(tensor.dim())])
    if roll < 0.8:
        return tensor.repeat_interleave(2, -1)[..., ::2]
    return tensor[:1].expand(tensor.shape) if len(tensor) else tensor


def index(rng: Random, size: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Places among `size` items."""
    count = 1
    for n in shape:
        count *= n
    return laid(rng, torch.tensor([rng.randrange(size) for _ in range(count)], dtype=torch.int64).reshape(shape))


def mask(rng: Random, sizes: list[int], count: int) -> torch.Tensor:
    """A mask of these sizes with so many true elements, or one."""
    total = torch.Size(sizes).numel()
    chosen = rng.sample(range(total), count if count <= total else 1)
    plain = torch.tensor([i in chosen for i in range(total)], dtype=torch.bool).reshape(sizes)
    made = laid(rng, plain)
    return made if torch.equal(made, plain) else plain


def call(rng: Random) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """A tensor, and a key for it with an index tensor at least."""
    rank = rng.randint(1, 4)
    sizes = [rng.choice((2, 3, 4, 4, 1)) for _ in range(rank)]
    is_empty = rng.random() < 0.15
    if is_empty:
        sizes[rng.randrange(rank)] = 0
    x = laid(rng, torch.arange(float(torch.Size(sizes).numel())).reshape(sizes))
    shape = rng.choice(_EMPTY if is_empty or rng.random() < 0.1 else _SHAPES)
    key: list[Any] = []
    at = rng.randrange(rank)
    dim = 0
    while dim < rank:
        roll = rng.random()
        if (dim == at or roll < 0.3) and rng.random() < 0.2:
            more = rng.randint(1, min(2, rank - dim))
            key.append(mask(rng, sizes[dim : dim + more], shape[-1]))
            dim += more
            continue
        if dim == at or roll < 0.3:
            own = shape if rng.random() < 0.7 else rng.choice((shape[-1:], (1,) * len(shape), (1, *shape[1:])))
            key.append(index(rng, sizes[dim], own if sizes[dim] else shape))
        elif roll < 0.65:
            key.append(slice(None, None, rng.choice((1, 1, 2))))
        elif roll < 0.75 and dim > at:
            key.append(Ellipsis)
            break
        elif roll < 0.85:
            key.append(None)
            continue
        elif sizes[dim]:
            key.append(rng.randrange(sizes[dim]))
        else:
            key.append(slice(None))
        dim += 1
    return x, tuple(key)
