"""What `torch.nn.utils.rnn.pad_packed_sequence` calls: it takes the number of steps as a plain int only."""

from __future__ import annotations

from typing import Any

import torch


def _absent(*args: Any, **kwargs: Any) -> Any:
    """Stands where this torch has none: nothing calls it, and what depends on data is kept as recorded paths."""
    raise NotImplementedError("this torch pads packed sequences otherwise")


pad_packed: Any = getattr(getattr(torch, "_VF", None), "_pad_packed_sequence", _absent)
