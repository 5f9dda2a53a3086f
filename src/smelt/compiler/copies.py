"""Copies of tensors for runs that must not touch the originals."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt._torch.storage import without_elements


def copies_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Detached copies with the same values, strides and offsets; tensors that share memory share it in the copies."""
    storages: dict[int, torch.UntypedStorage] = {}
    copied: list[torch.Tensor] = []
    for tensor in tensors:
        plain = tensor.detach()
        if without_elements(plain) or plain.device.type == "meta":
            copied.append(plain.clone())
            continue
        storage = plain.untyped_storage()
        address = storage.data_ptr()
        if address not in storages or not address:
            storages[address] = storage.clone()
        target = torch.empty(0, dtype=plain.dtype, device=plain.device)
        target.set_(storages[address], plain.storage_offset(), plain.shape, plain.stride())
        copied.append(target)
    return copied
