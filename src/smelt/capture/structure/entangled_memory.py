"""Which of a graph's inputs and state tensors lay in the same memory when it was captured.

Invariant: sharing is told by addresses, so that two storages over one memory (`torch.from_numpy` twice) count too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from smelt._torch.storage import nbytes_spanned
from smelt.ir import STATE_OPS, Graph


def entangled(graph: Graph, inputs: Sequence[object], lookup: Callable[[str, str], torch.Tensor]) -> frozenset[str]:
    """The names of the graph's inputs and state nodes whose memory reaches into that of another of them."""
    given = zip(graph.inputs, inputs, strict=False)  # numbers among them
    named = [(value.name, tensor) for value, tensor in given if isinstance(tensor, torch.Tensor)]
    for node in graph.walk():
        if node.op in STATE_OPS:
            named.append((node.result.name, lookup(node.op, str(node.args[0]))))
    extents = sorted(
        (start := tensor.data_ptr(), start + nbytes, name)
        for name, tensor in named
        if tensor.layout is torch.strided and not tensor.is_meta and (nbytes := nbytes_spanned(tensor))
    )
    found: set[str] = set()
    reach, holder = 0, ""
    for start, end, name in extents:
        if start < reach:
            found |= {name, holder}
        if end > reach:
            reach, holder = end, name
    return frozenset(found)
