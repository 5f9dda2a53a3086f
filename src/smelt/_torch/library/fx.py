"""What `torch.fx` graphs are made of beside operators: nested structures, assertions, the gradient mode.

Adapter for the code generator for pytrees (without it a graph takes and gives flat lists), `torch._assert`, the setter
of the gradient mode that exported programs call, and the class of higher-order operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph

from smelt._torch import settings
from smelt._torch.seen.record_patches import higher_order_operator

try:
    from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
except ImportError:  # another torch: the graph takes and gives flat lists
    _PyTreeCodeGen = _PyTreeInfo = None


def _holds(condition: Any, message: str) -> None:
    if not condition:
        raise AssertionError(message)


assert_that: Callable[..., Any] = getattr(torch, "_assert", _holds)
"""What a graph calls with a condition and a message. Raises: AssertionError."""

GRAD_MODE: tuple[Any, ...] = tuple(
    setter for setter in (settings.builtin("_set_grad_enabled"), torch.set_grad_enabled) if setter is not None
)
"""What sets the gradient mode in a graph."""


def higher_order_name(target: Any) -> str | None:
    """The name of a higher-order operator; None for anything else."""
    kind: Any = higher_order_operator()
    return str(target.name()) if kind is not None and isinstance(target, kind) else None


def take_structures(graph: Graph, names: Sequence[str], in_spec: Any, out_spec: Any) -> bool:
    """Have a graph over leaves take `(args, kwargs)` and give a result of these specs of torch's pytree.

    names: of the positional, then of the named arguments. False where this torch has no way to say so.
    """
    if _PyTreeCodeGen is None:
        return False
    graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(list(names), in_spec, out_spec)))
    return True
