"""Tensors of a run made into Python's numbers: `int(x)`, `float(x)`, `complex(x)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from smelt.capture.staging.texts import is_data
from smelt.ir import DType

if TYPE_CHECKING:
    from smelt.capture.scripting.domain import Open
    from smelt.capture.scripting.runtime import OpenRuntime


def _conversion(kind: Any) -> Any:
    """`int(tensor)` and its kin, which say other than `item()` of what they do not take."""

    def make(domain: Open, runtime: OpenRuntime, args: Any, kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor) or not is_data(domain.session, args[0]):
            return NotImplemented
        type_ = domain.type_of(args[0])
        if type_.dtype != DType.UNKNOWN and (type_.rank == 0 or (type_.is_static and type_.numel == 1)):
            return NotImplemented
        return domain.emit(f"py.{kind.__name__}", args[0])

    return make


HANDLERS: dict[object, Callable[..., object]] = {kind: _conversion(kind) for kind in (int, float, complex)}
