"""Which calls are left to the original program: kinds of tensors that cannot be compiled, gradients that are wanted.

Invariant: looks at types and flags only; never at a tensor's elements.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from smelt._torch.storage import is_zero

ON_META = "an argument is on the meta device"
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in a nest of containers and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 32:
        if isinstance(value, Mapping):
            value = tuple(value.values())
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = tuple(getattr(value, f.name, None) for f in dataclasses.fields(value))
        if isinstance(value, (list, tuple)) or type(value) is deque:
            for inner in value:
                yield from tensors_in(inner, depth + 1)


def unsupported(tensor: torch.Tensor) -> str | None:
    """Why a program over this tensor is not compiled, or None."""
    if type(tensor) not in _PLAIN:
        return f"an argument is a {type(tensor).__name__}, a subclass of Tensor"
    if tensor.layout is not torch.strided:
        return f"an argument has layout {tensor.layout}"
    if is_zero(tensor):
        return "an argument is a tensor of zeros without memory"
    if tensor.is_quantized:
        return "an argument is quantized"
    if tensor.device.type == "meta":
        return ON_META
    if tensor.dtype.is_complex:
        return "an argument is complex"
    if tensor.is_neg():
        return "an argument's memory holds the negated elements"
    return None


def first_unsupported(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Why the call's tensors keep it from being compiled, or None."""
    for tensor in tensors_in((args, kwargs)):
        reason = unsupported(tensor)
        if reason is not None:
            return reason
    return None


def grad_witness(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """What may make this call need gradients: a parameter of the program's, an argument; "" if nothing is known."""
    if isinstance(target, torch.nn.Module) and any(parameter.requires_grad for parameter in target.parameters()):
        return "a parameter"
    return "an argument" if any(tensor.requires_grad for tensor in tensors_in((args, kwargs))) else ""
