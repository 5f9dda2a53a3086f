"""What torch's argument parsers take for what only a run knows: a mark, by which the recorder finds the slot."""

from __future__ import annotations

from typing import Any

import torch

from smelt.capture.scripting.domain import Open
from smelt.capture.staging.fakes.symbols import StagedBool, is_staged, slot_of
from smelt.ir import ANY, STR, ListType, OptionalType, TensorType


def mark(domain: Open, value: Any) -> Any:
    """What torch's argument parsers take for a value."""
    if isinstance(value, StagedBool):
        return bool(value)
    if is_staged(value):
        slot = slot_of(value)
        found = domain.operators.marks.of(slot)
        if found is not None:
            return found
        return _object_mark(domain, value, slot)
    if type(value) in (list, tuple, torch.Size):
        items = [mark(domain, item) for item in value]
        return items if type(value) is list else tuple(items)
    if isinstance(value, slice):
        return slice(*(mark(domain, b) for b in (value.start, value.stop, value.step)))
    return value


def _object_mark(domain: Open, value: Any, slot: Any) -> object:
    type_ = slot.type
    if isinstance(type_, ListType) and (isinstance(type_.element, TensorType) or type_.element == ANY):
        return domain.tensors_mark(slot)
    if type_ == ANY or isinstance(type_, OptionalType):
        return domain.as_tensor(value)
    if type_ == STR:
        return domain.specialize(slot)
    return domain.cannot(f"torch receives a {type_} that is not known until run time")


def marked(domain: Open, kwargs: dict[str, object]) -> dict[str, Any]:
    return {name: mark(domain, value) for name, value in kwargs.items()}
