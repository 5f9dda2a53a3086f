"""Container classes that somebody registered with torch's pytree, looked up without registering anything.

Adapter for `torch.utils._pytree.SUPPORTED_NODES`; where that name is missing no class counts as registered, and the
caller treats such objects as plain Python objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.utils._pytree as _pytree

_nodes: Mapping[type, Any] = getattr(_pytree, "SUPPORTED_NODES", {})


@dataclass(frozen=True, slots=True)
class NodeKind:
    """How a registered class comes apart and together.

    flatten: object -> (children, context); unflatten: (children, context) -> object. Two objects have one structure
    when their contexts compare equal.
    """

    flatten: Callable[[Any], tuple[Sequence[Any], Any]]
    unflatten: Callable[[Sequence[Any], Any], Any]


def registered(cls: type) -> NodeKind | None:
    """The registered way of exactly this class, or None."""
    node = _nodes.get(cls)
    if node is None:
        return None

    def unflatten(children: Sequence[Any], context: Any) -> Any:
        return node.unflatten_fn(list(children), context)

    return NodeKind(node.flatten_fn, unflatten)
