"""Do two tensors share memory, and how much of it does one span?

Adapter for the identity of a tensor's storage (`UntypedStorage._cdata`, which also tells meta tensors apart); where
that name is missing `torch._C._is_alias_of` answers the same, and Python's object for a storage, of which torch makes
one, stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _same_by_storage(a: Any, b: Any) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _same_by_query(a: Any, b: Any) -> bool:
    return bool(torch._C._is_alias_of(a, b))


same_storage: Callable[[Any, Any], bool] = (
    _same_by_storage if hasattr(torch.UntypedStorage, "_cdata") else _same_by_query
)
"""Whether two strided tensors, possibly meta ones, live in one storage."""


def _key_of_storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _key_of_object(tensor: Any) -> int:
    return id(tensor.untyped_storage())


storage_key: Callable[[Any], int] = _key_of_storage if hasattr(torch.UntypedStorage, "_cdata") else _key_of_object
"""A number for the storage of a strided tensor, possibly a meta one, while the storage lives."""


def nbytes_spanned(tensor: torch.Tensor) -> int:
    """The bytes from a strided tensor's first element to the end of its last."""
    count = tensor.numel()
    if count == 0:
        return 0
    if tensor.is_contiguous():
        return int(count * tensor.element_size())
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


is_zero: Callable[[torch.Tensor], bool] = getattr(torch.Tensor, "_is_zerotensor", lambda tensor: False)
"""Whether it is a tensor of zeros without memory, as `torch._efficientzerotensor` makes them."""


def without_elements(tensor: torch.Tensor) -> str:
    """What a tensor is whose elements are not at its address, one for each index; "" for all others."""
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout}"
    return "a tensor of zeros without memory" if is_zero(tensor) else ""


def is_sole_owner(tensor: torch.Tensor) -> bool:
    """Whether no other tensor, array or buffer holds this tensor's storage; False where torch does not tell.

    Adapter for `torch._C._storage_Use_Count`.
    """
    count = getattr(torch._C, "_storage_Use_Count", None)
    if count is None or storage_key is not _key_of_storage:
        return False
    storage = tensor.untyped_storage()
    # The tensor's own reference, and the one of the object asked here.
    return bool(count(storage._cdata) == 2)
