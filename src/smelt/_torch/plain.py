"""Whether a tensor is nothing but elements in memory: no batch of `vmap`, no subclass, not sparse, not on meta.

Adapter for `torch._C._dispatch_keys`, which tells at once; where torch has no such function, the tensor is asked.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_keys = getattr(torch._C, "_dispatch_keys", None)


def _by_keys(tensor: torch.Tensor) -> bool:
    assert _keys is not None
    return _keys(tensor).raw_repr() in _PLAIN


def _by_asking(tensor: torch.Tensor, device: str = "cpu") -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    try:
        return tensor.device.type == device and tensor.untyped_storage().nbytes() >= 0
    except NotImplementedError:  # a batch has none
        return False


_PLAIN = frozenset() if _keys is None else frozenset({_keys(torch.zeros(1)).raw_repr()})
is_plain: Callable[[torch.Tensor], bool] = _by_asking if _keys is None else _by_keys


def is_plain_anywhere(tensor: torch.Tensor) -> bool:
    """The same of a tensor in the memory of the CPU or of a GPU."""
    return is_plain(tensor) or _by_asking(tensor, "cuda")
