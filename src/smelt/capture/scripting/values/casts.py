"""Calls in which torch's C code would take an element type from the stand-in of a tensor that has none yet.

Invariant: what is recorded names the tensor itself, or its `dtype` as a value of the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from smelt.capture.scripting.domain import Open
from smelt.capture.scripting.making import holds_staged
from smelt.ir import DType

if TYPE_CHECKING:
    from smelt.capture.scripting.runtime import OpenRuntime


def _is_open(domain: Open, value: object) -> bool:
    return isinstance(value, torch.Tensor) and domain.type_of(value).dtype == DType.UNKNOWN


def cast(
    domain: Open,
    runtime: OpenRuntime,
    name: str,
    tensor: Any,
    rest: tuple[object, ...],
    kwargs: dict[str, Any],
) -> Any:
    """`tensor.name(*rest, **kwargs)`, or the same function of torch's; NotImplemented for all other calls."""
    match name:
        case "to":
            other = rest[0] if rest else kwargs.get("other")
            if isinstance(other, torch.Tensor) and (_is_open(domain, tensor) or _is_open(domain, other)):
                return torch.ops.aten.to.other(tensor, *(rest or (other,)), **_without(kwargs, "other"))
        case "type" if _is_open(domain, tensor) and not rest and kwargs.get("dtype") is None:
            return domain.emit("py.call", "Tensor.type", tensor)
        case "new_tensor" if _is_open(domain, tensor) or holds_staged((*rest, kwargs.get("data"))):
            dtype = kwargs.get("dtype")
            if dtype is None:
                dtype = domain.attribute(tensor, "dtype") if _is_open(domain, tensor) else tensor.dtype
            return runtime.call(0, torch.tensor, rest, {**kwargs, "dtype": dtype})
        case "tensor" | "as_tensor" | "asarray" if _is_open(domain, tensor) and not rest:
            return _made(domain, runtime, name, tensor, **kwargs)
    return NotImplemented


def _made(
    domain: Open, runtime: OpenRuntime, name: str, data: torch.Tensor, dtype: object = None,
    device: object = None, requires_grad: bool = False, **others: object,
) -> object:  # fmt: skip
    """A tensor of another: the same where nothing is to be changed, a copy where `torch.tensor` makes it."""
    if requires_grad or any(value is not None for value in others.values()):
        domain.cannot(f"torch.{name} of a tensor of which nothing is said, with {', '.join(others) or 'gradients'}")
    found = data.detach().clone() if name == "tensor" else data
    for wanted in (dtype, device):
        if wanted is not None:
            found = runtime.call(0, found.to, (wanted,), {})
    return found


def _without(kwargs: dict[str, object], name: str) -> dict[str, object]:
    return {k: v for k, v in kwargs.items() if k != name}


def is_legacy(kind: object) -> bool:
    """Whether a class is one of torch's own of an element type and a device (`torch.FloatTensor`), of which every such
    tensor is an instance.
    """
    return isinstance(kind, type(torch.FloatTensor)) and kind is not torch.Tensor
