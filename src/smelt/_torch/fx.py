"""How a `torch.fx` graph is told to take and give nested structures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Graph

try:
    from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
except ImportError:  # another torch: the graph takes and gives flat lists
    _PyTreeCodeGen = _PyTreeInfo = None


def take_structures(graph: Graph, names: Sequence[str], in_spec: Any, out_spec: Any) -> bool:
    """Have a graph over leaves take `(args, kwargs)` and give a result of these specs of torch's pytree.

    names: of the positional, then of the named arguments. False where this torch has no way to say so.
    """
    if _PyTreeCodeGen is None:
        return False
    graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(list(names), in_spec, out_spec)))
    return True
