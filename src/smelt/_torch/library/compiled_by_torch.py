"""What `torch.compile` was given: seen from the object that it returned, and from within a backend that it calls.

Adapter for an attribute and a local name of `torch._dynamo.eval_frame`. Where torch has others, nothing is found, and
nothing is said of graphs that are there.
"""

from __future__ import annotations

import os
import sys
from types import FrameType, FunctionType
from typing import Any

import torch

_DYNAMO = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "")
_CALLS = os.path.join(_DYNAMO, "eval_frame.py")
_GIVEN = "_torchdynamo_orig_callable"


def given_to_torch(compiled: Any) -> Any:
    """The function or module behind what `torch.compile` returned, or the object itself."""
    return _owner(getattr(compiled, _GIVEN, compiled))


def being_compiled() -> Any:
    """What the nearest call of such an object on this thread's stack is of; None where nothing is found."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _CALLS and callable(frame.f_locals.get("fn")):
            return _owner(frame.f_locals["fn"])
        frame = frame.f_back
    return None


def _owner(fn: Any) -> Any:
    """The object of a method, and what a wrapper of torch's is around; other functions are themselves."""
    while isinstance(fn, FunctionType) and fn.__code__.co_filename.startswith(_DYNAMO):
        held = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)).get("fn")
        if held is None:
            break
        fn = held.cell_contents
    return getattr(fn, "__self__", None) or fn
