"""Do two tensors share memory?

Adapter for the identity of a tensor's storage (`UntypedStorage._cdata`, which also tells meta tensors apart); where
that name is missing `torch._C._is_alias_of` answers the same.
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
