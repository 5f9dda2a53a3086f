"""What `x[9]` says that is out of range, which is not what the `select` says that it is made of."""

from __future__ import annotations

from torch import Tensor


def words_of_brackets(x: Tensor, dim: int, index: int, indexed: int) -> str:
    """The text of the IndexError of an index in brackets. indexed: dimensions that numbers before it took out."""
    if not x.dim():
        if indexed:
            return f"too many indices for tensor of dimension {indexed}"
        use = "Use `tensor.item()` in Python or `tensor.item<T>()` in C++ to convert a 0-dim tensor to a number"
        return f"invalid index of a 0-dim tensor. {use}"
    return f"index {index} is out of bounds for dimension {indexed + dim % x.dim()} with size {x.shape[dim]}"
