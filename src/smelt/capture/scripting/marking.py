"""What torch's argument parsers take for what only a run knows: a mark, by which the recorder finds the slot."""

from __future__ import annotations

from typing import Any

import torch

from smelt.capture.scripting.session import ScriptSession
from smelt.capture.staging.fakes.symbols import StagedBool, is_staged, slot_of
from smelt.ir import ANY, STR, ListType, OptionalType, TensorType


def mark(session: ScriptSession, value: Any) -> Any:
    """What torch's argument parsers take for a value."""
    if isinstance(value, StagedBool):
        return bool(value)
    if is_staged(value):
        slot = slot_of(value)
        found = session.recorder.marks.of(slot)
        if found is not None:
            return found
        return _object_mark(session, value, slot)
    if type(value) in (list, tuple, torch.Size):
        items = [mark(session, item) for item in value]
        return items if type(value) is list else tuple(items)
    if isinstance(value, slice):
        return slice(*(mark(session, b) for b in (value.start, value.stop, value.step)))
    return value


def _object_mark(session: ScriptSession, value: Any, slot: Any) -> object:
    type_ = slot.type
    if isinstance(type_, ListType) and (isinstance(type_.element, TensorType) or type_.element == ANY):
        return session.tensors_mark(slot)
    if type_ == ANY or isinstance(type_, OptionalType):
        return session.as_tensor(value)
    if type_ == STR:
        return session.specialize(slot)
    return session.cannot(f"torch receives a {type_} that is not known until run time")


def marked(session: ScriptSession, kwargs: dict[str, object]) -> dict[str, Any]:
    return {name: mark(session, value) for name, value in kwargs.items()}
