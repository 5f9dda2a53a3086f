"""The thread's torch state that a program's meaning depends on, and the contexts in which nothing may be replayed.

Public functions where torch has them; each private name is probed once, at import, and has a second way to the same
answer. Every reader here is called on each call of a compiled program, so they are the bare builtins where possible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as _module
from torch.utils import _python_dispatch

from smelt._torch.seen.forward_mode import is_forward_mode

is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
is_inference: Callable[[], bool] = torch.is_inference_mode_enabled
default_dtype: Callable[[], torch.dtype] = torch.get_default_dtype
thread_count: Callable[[], int] = torch.get_num_threads


def _any_autocast_by_device() -> bool:
    return any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))


def _has_function_mode_by_override() -> bool:
    return bool(torch.overrides.has_torch_function((0,)))


def _has_dispatch_mode_by_utils() -> bool:
    return bool(_python_dispatch.is_in_torch_dispatch_mode())


def _in_functorch_by_interpreter() -> bool:
    return bool(torch._functorch.pyfunctorch.retrieve_all_functorch_interpreters())


def _private(name: str) -> Any:
    """The named attribute of torch._C, or None where this torch has none."""
    found: Any = torch._C
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


is_deterministic: Callable[[], bool] = (
    _private("_get_deterministic_algorithms") or torch.are_deterministic_algorithms_enabled
)
matmul_precision: Callable[[], str] = _private("_get_float32_matmul_precision") or torch.get_float32_matmul_precision
is_any_autocast: Callable[[], bool] = _private("_is_any_autocast_enabled") or _any_autocast_by_device
has_function_mode: Callable[[], bool | int] = _private("_len_torch_function_stack") or _has_function_mode_by_override
has_dispatch_mode: Callable[[], bool | int] = _private("_len_torch_dispatch_stack") or _has_dispatch_mode_by_utils
in_functorch: Callable[[], object] = _private("_functorch.peek_interpreter_stack") or _in_functorch_by_interpreter
is_jit_tracing: Callable[[], object] = _private("_get_tracing_state") or torch.jit.is_tracing

_HOOK_TABLES = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)


def global_hooks() -> tuple[dict[int, Any], ...]:
    """The tables of hooks that run for every module's call, live; a table that this torch lacks is left out."""
    return tuple(getattr(_module, name) for name in _HOOK_TABLES if hasattr(_module, name))


def autocast() -> tuple[tuple[str, torch.dtype], ...]:
    """The devices for which autocast is on, each with its dtype; empty when it is off."""
    if not is_any_autocast():
        return ()
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind))


class TorchState(NamedTuple):
    """What the thread's torch settings were; two equal states let one recorded program stand for both."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    default_dtype: torch.dtype
    deterministic: bool
    matmul_precision: str


def torch_state() -> TorchState:
    """The calling thread's settings, about 0.6 us."""
    return TorchState(
        is_grad_enabled(), is_inference(), autocast(), default_dtype(), is_deterministic(), matmul_precision()
    )


def foreign_context() -> str | None:
    """Why the program must run as it stands now (someone else is watching or rewriting its operators), or None."""
    if has_function_mode():
        return "a torch function mode is active"
    if has_dispatch_mode():
        return "a torch dispatch mode is active"
    if in_functorch():
        return "the call is inside a torch.func transform"
    if is_forward_mode():
        return "forward-mode gradients are computed"
    if is_jit_tracing():
        return "torch.jit.trace is running"
    if torch.compiler.is_compiling():
        return "another compiler is tracing this call"
    return None
