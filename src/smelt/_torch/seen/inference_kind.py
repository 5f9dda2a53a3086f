"""A tensor over the memory of another one, as an inference tensor or as none.

Nothing changes the kind of a tensor that exists: a new one is made in the mode that makes the kind.
"""

from __future__ import annotations

import torch


def of_kind(tensor: torch.Tensor, inference: bool) -> torch.Tensor:
    """The same elements, in the same memory where the layout is strided, as an inference tensor or as none."""
    if tensor.is_inference() == inference:
        return tensor
    with torch.inference_mode(inference), torch.no_grad():
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            return tensor.clone()
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
