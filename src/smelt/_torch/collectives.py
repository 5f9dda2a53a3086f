"""Collectives of torch.distributed: which operators they are, and where the functional ones wrap their results.

Adapter for `torch.distributed._functional_collectives`: its `_maybe_wrap_tensor` gives an `AsyncCollectiveTensor`, but
where `_are_we_tracing` takes the recorder for one of torch's own. Both are probed; without them nothing is replaced.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
from torch import distributed

TRACING, WRAP = "_are_we_tracing", "_maybe_wrap_tensor"
_FUNCTIONAL = ("_c10d_functional.", "_c10d_functional_autograd.", "c10d_functional.")


def is_collective(operator: str) -> bool:
    """Whether an operator talks to other processes, by its name (`c10d.allreduce_.default`)."""
    return operator.startswith(("c10d.", *_FUNCTIONAL))


def is_functional(operator: str) -> bool:
    """Whether it gives its result as a new tensor, which is whole once it has been waited for."""
    return operator.startswith(_FUNCTIONAL)


def functional_collectives() -> ModuleType | None:
    """The module of the functional ones, where it is loaded and is as it is known here."""
    module = sys.modules.get("torch.distributed._functional_collectives")
    return module if module is not None and hasattr(module, TRACING) and hasattr(module, WRAP) else None


def wait() -> Any:
    """The operator that waits for a functional collective; None where this torch has none."""
    return getattr(getattr(torch.ops._c10d_functional, "wait_tensor", None), "default", None)


def all_gather_single(made: torch.Tensor, own: torch.Tensor, group: Any = None) -> None:
    """Gather tensors of one size from all processes into one: public, and named otherwise before torch 2.13."""
    name = "all_gather_single" if hasattr(distributed, "all_gather_single") else "all_gather_into_tensor"
    getattr(distributed, name)(made, own, group)


def default_store() -> Any:
    """Where the processes of the default group leave notes for each other; None where this torch hides it.

    Adapter for `torch.distributed.distributed_c10d._get_default_store`.
    """
    found = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_get_default_store", None)
    try:
        return None if found is None else found()
    except (RuntimeError, ValueError):
        return None
