"""Of torch's recurrent layers: what pads packed sequences, and the lists that a layer makes anew of its weights.

`pad_packed_sequence` calls a function that takes the number of steps as a plain int only. A layer's lists are its own:
`Module.to`, `torch.export.export` and the like put equal ones in their place.
"""

from __future__ import annotations

from typing import Any

import torch


def _absent(*args: Any, **kwargs: Any) -> Any:
    """Stands where this torch has none: nothing calls it, and what depends on data is kept as recorded paths."""
    raise NotImplementedError("this torch pads packed sequences otherwise")


pad_packed: Any = getattr(getattr(torch, "_VF", None), "_pad_packed_sequence", _absent)

MADE_ANEW = frozenset({"_flat_weights", "_flat_weight_refs", "_flat_weights_names"})
"""Attributes of a layer with lists of its weights, and of their names, that nothing else has: an equal list will do."""
