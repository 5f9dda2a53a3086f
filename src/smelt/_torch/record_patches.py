"""Attributes of torch's classes and modules replaced for the time of a recording, and what is found by type.

Invariant: a patch is shared by all threads that want it at once and undone by the last; a replacement looks at the
thread itself, so that other threads get torch's own behaviour.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

# Under this name a wrapper that stands in a class while a run is recorded keeps the function it stands for.
TRACKS: Final = "__smelt_tracks__"
_MISSING = object()


class Patches:
    """Counted replacements of attributes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: dict[tuple[int, str], list[Any]] = {}

    @contextlib.contextmanager
    def replaced(self, owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
        """Have `owner.name` be `make(original)` in the block; nested and concurrent uses share the first one."""
        key = (id(owner), name)
        with self._lock:
            entry = self._active.get(key)
            if entry is None:
                own = vars(owner).get(name, _MISSING)
                setattr(owner, name, make(getattr(owner, name) if own is _MISSING else own))
                self._active[key] = [1, own]
            else:
                entry[0] += 1
        try:
            yield
        finally:
            with self._lock:
                entry = self._active[key]
                entry[0] -= 1
                if entry[0] == 0:
                    del self._active[key]
                    if entry[1] is _MISSING:
                        delattr(owner, name)
                    else:
                        setattr(owner, name, entry[1])


_disabled_function = getattr(torch._C, "_disabled_torch_function_impl", None)
_disabled_dispatch = getattr(torch._C, "_disabled_torch_dispatch_impl", None)
_default_function = torch.Tensor.__torch_function__


def is_plain_tensor_type(cls: type) -> bool:
    """Whether tensors of the class behave as torch's own: Tensor, Parameter, Buffer and subclasses without hooks."""
    if cls is torch.Tensor or cls is torch.nn.Parameter:
        return True
    function = getattr(cls, "__torch_function__", None)
    dispatch = getattr(cls, "__torch_dispatch__", _disabled_dispatch)
    return function is _disabled_function and dispatch is _disabled_dispatch


def has_override(args: Any) -> bool:
    """Whether an argument's own class overrides torch's functions, function modes left aside."""
    for arg in args:
        function = getattr(type(arg), "__torch_function__", None)
        if isinstance(arg, torch.Tensor) and getattr(function, "__func__", function) is _default_function.__func__:
            if type(arg) is not torch.Tensor:
                return True
        elif function is not None and function is not _disabled_function:
            return True
    return False


def higher_order_operator() -> type | None:
    """The class of `torch.cond` and its kin, or None where this torch has none under that name."""
    found: type | None = getattr(getattr(torch, "_ops", None), "HigherOrderOperator", None)
    return found


def eager_stance() -> contextlib.AbstractContextManager[Any]:
    """A context in which functions compiled by torch.compile run as plain Python; free where nothing is compiled."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def is_transform_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of torch.func's wrappers, which mean nothing outside their transform."""
    check = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", None)
    return bool(check is not None and check(tensor))
