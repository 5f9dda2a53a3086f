"""Interception of every ATen call of a block of code, below autograd.

Adapter for `torch.utils._python_dispatch.TorchDispatchMode`. Where that name is missing, `AVAILABLE` is False and
`intercepting` runs the block untouched, so that results stay right and only the observation is lost.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

try:
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:  # pragma: no cover - another torch
    TorchDispatchMode = None

AVAILABLE = TorchDispatchMode is not None

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Takes the overload, its arguments and keyword arguments; runs it and returns its result."""


def intercepting(handler: Handler) -> contextlib.AbstractContextManager[Any]:
    """A context in which `handler` runs each ATen overload; inside the handler nothing is intercepted."""
    if not AVAILABLE:
        return contextlib.nullcontext()

    class Interceptor(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Whether torch keeps its compiler out of the handler, for which it would load it: a second and more."""
            return "torch._dynamo" in sys.modules

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            return handler(func, args, kwargs or {})

    return Interceptor()
