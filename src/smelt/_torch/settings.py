"""Settings of the process that torch keeps, each read and put back by a pair of functions.

Adapter for the pairs `torch._C._get_NAME` and `_set_NAME`, and for the table of print options. What this torch lacks is
no setting of it. `torch.export` switches libraries off while it runs, and on again: `is_exporting_elsewhere` tells a
thread that another one is about to.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

try:
    from torch._tensor_str import PRINT_OPTS
except ImportError:  # pragma: no cover - another torch
    PRINT_OPTS = None

_NAMES = (
    "deterministic_fill_uninitialized_memory", "float32_matmul_precision", "cudnn_allow_tf32", "cudnn_benchmark",
    "cudnn_deterministic", "cudnn_enabled", "cublas_allow_tf32", "mkldnn_deterministic", "mkldnn_enabled",
    "nnpack_enabled", "warnAlways", "math_sdp_allow_fp16_bf16_reduction", "cpu_allow_fp16_reduced_precision_reduction",
    "qengine",
)  # fmt: skip
_OF_EXPORT = ("_get_cudnn_enabled", "_get_mkldnn_enabled", "_get_nnpack_enabled")
_EXPORT = "torch.export._trace"
_SDP = ("flash", "mem_efficient", "math", "cudnn", "overrideable")
Pair = tuple[Callable[[], Any], Callable[[Any], object]]


def builtin(name: str) -> Any:
    """The function of this name that torch has in C, or None."""
    return getattr(torch._C, name, None)


def pairs() -> list[Pair]:
    """What reads a setting and what puts it, for each one that this torch has; the modes of a thread are none."""
    names = [(f"_get_{name}", f"_set_{name}") for name in _NAMES]
    names += [(f"_get_{name}_sdp_enabled", f"_set_sdp_use_{name}") for name in _SDP]
    known = [(builtin(read), builtin(put)) for read, put in names]
    found = [(read, put) for read, put in known if read is not None and put is not None]
    return [*found, (_deterministic, _determine_so), *([] if PRINT_OPTS is None else [(_printing, _print_so)])]


def is_of_export(read: Callable[[], Any]) -> bool:
    """Whether `torch.export` changes a setting while it runs."""
    return getattr(read, "__name__", "") in _OF_EXPORT


def is_exporting_elsewhere() -> bool:
    """Whether another thread exports a program: what it has changed, it changes back."""
    module = sys.modules.get(_EXPORT)
    if module is None:
        return False
    here, file = threading.get_ident(), module.__file__
    for thread, frame in sys._current_frames().items():
        at = None if thread == here else frame
        while at is not None:
            if at.f_code.co_filename == file:
                return True
            at = at.f_back
    return False


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _determine_so(old: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(old[0], warn_only=old[1])


def _printing() -> tuple[Any, ...]:
    return tuple(vars(PRINT_OPTS).items())


def _print_so(old: tuple[Any, ...]) -> None:
    vars(PRINT_OPTS).update(old)
