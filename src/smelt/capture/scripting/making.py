"""Tensors made of Python's data (`torch.tensor([1, n])`), of which only a run knows some: of scalars, stacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.capture.scripting.domain import Open
from smelt.capture.scripting.marking import mark, marked
from smelt.capture.staging.fakes.symbols import StagedBool, is_staged, slot_of
from smelt.ir import BOOL, FLOAT, INT, ListType

Mapped = Callable[[Callable[[Any], Any], Any], Any]
"""A function of each item of a list that a run knows."""

_MAKERS = (torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor)


def made(domain: Open, mapped: Mapped, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`fn(data, ...)` where it makes a tensor of what only a run knows; NotImplemented for all other calls."""
    if not any(fn is maker for maker in _MAKERS):
        return NotImplemented
    named = dict(kwargs)
    data = args[0] if args else named.pop("data", named.pop("obj", named.pop("s", None)))
    if holds_staged(data):
        named.pop("copy", None)  # it is a new one
        if fn is torch.scalar_tensor and named.get("dtype") is None:
            named["dtype"] = torch.get_default_dtype()  # whatever the number is
        return _tensor_of(domain, mapped, data, *args[1:], **named)
    is_constant = isinstance(data, (bool, int, float, complex, list, tuple))
    if fn in (torch.tensor, torch.as_tensor) and is_constant and is_staged(kwargs.get("dtype")):
        return _constant_of(fn, data, **marked(domain, named))
    return NotImplemented


def holds_staged(value: object) -> bool:
    """Whether only a run knows a value, or an item of it."""
    return is_staged(value) or (isinstance(value, (list, tuple)) and any(map(holds_staged, value)))


def _tensor_of(
    domain: Open,
    mapped: Mapped,
    data: object,
    dtype: object = None,
    device: object = None,
    requires_grad: bool = False,
) -> Any:
    if isinstance(data, (list, tuple)):
        parts = [_tensor_of(domain, mapped, item, dtype, device) for item in data]
        kinds = {domain.type_of(p).dtype for p in parts}
        if len(kinds) > 1:
            domain.cannot("a tensor is made of numbers of several kinds", "its element type follows from all of them")
        return torch.stack(parts)
    if isinstance(data, torch.Tensor):
        return data.to(mark(domain, dtype)) if dtype is not None else data
    if is_staged(data) and isinstance(slot_of(data).type, ListType):
        return _tensor_of_list(domain, mapped, data, dtype, device)
    kinds_of = {"int": torch.int64, "float": torch.get_default_dtype(), "bool": torch.bool}
    kind = str(slot_of(data).type) if is_staged(data) else type(data).__name__
    if (dtype is None and kind not in kinds_of) or requires_grad:
        domain.cannot(f"a tensor is made of a value {kind}", "its element type is known to a run only")
    if isinstance(data, StagedBool):
        data = domain.emit("py.int", data)
    value = mark(domain, data)
    if isinstance(value, torch.Tensor):
        domain.cannot(
            f"a tensor is made of a value {kind}",
            "which kind of number it is, or whether it is None, is not known until run time",
        )
    return torch.scalar_tensor(value, dtype=mark(domain, dtype) or kinds_of[kind], device=mark(domain, device))


def _constant_of(fn: Any, data: Any, dtype: Any, device: object = None, **rest: Any) -> object:
    """`torch.tensor(data, dtype=...)` of an element type that only a run knows: of the widest one, cast there."""
    made = fn(data, **rest)
    if made.is_floating_point() or made.is_complex():
        made = fn(data, dtype=torch.float64 if made.is_floating_point() else torch.complex128, **rest)
    return made.to(dtype=dtype) if device is None else made.to(device=device, dtype=dtype)


def _tensor_of_list(domain: Open, mapped: Mapped, data: object, dtype: object, device: object) -> object:
    """`torch.tensor(numbers)` of as many as a run knows."""

    def one(number: object) -> Any:
        return _tensor_of(domain, mapped, number, dtype, device)

    kinds = {INT: torch.int64, FLOAT: torch.get_default_dtype(), BOOL: torch.bool}
    element = slot_of(data).type.element
    if element not in kinds:
        domain.cannot(
            f"a tensor is made of a {slot_of(data).type}", "its element type or its rank is known to a run only"
        )
    if not domain.fork(slot_of(domain.emit("py.gt", domain.emit("py.len", data), 0))):
        # Of no numbers, it is a tensor of floats.
        return torch.zeros(0, dtype=mark(domain, dtype), device=mark(domain, device))
    return torch.stack(mark(domain, mapped(one, data)))
