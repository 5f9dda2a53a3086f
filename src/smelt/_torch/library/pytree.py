"""Container classes that somebody registered with torch's pytree, looked up without registering anything.

Adapter for `torch.utils._pytree`: where `SUPPORTED_NODES` is missing no class counts as registered, and the caller
treats such objects as plain Python objects; where there are no functions on trees, those here raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.diag import CaptureError
from smelt.diag.records import record

try:
    import torch.utils._pytree as _pytree
except ImportError:  # pragma: no cover - another torch
    _pytree = None

_nodes: Mapping[type, Any] = getattr(_pytree, "SUPPORTED_NODES", {})


def _absent(*args: Any, **kwargs: Any) -> Any:
    """Raises: CaptureError."""
    raise CaptureError(
        "this torch has no pytree", why="structures of arguments and results reach torch.fx in its form",
        fix="smelt.compile and smelt.trace accept the unchanged program", code="S0108",
    )  # fmt: skip


tree_flatten: Any = getattr(_pytree, "tree_flatten", _absent)
tree_leaves: Any = getattr(_pytree, "tree_leaves", _absent)
tree_unflatten: Any = getattr(_pytree, "tree_unflatten", _absent)


@record
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
