"""Tensors in nested values, changed one by one."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A nested value with its tensors changed; what has nothing to change in it stays the object that it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        parts = [mapped(part, change) for part in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        changed = {key: mapped(part, change) for key, part in value.items()}
        if all(changed[key] is value[key] for key in changed):
            return value
        copied: Any = copy.copy(value)
        for key, part in changed.items():
            copied[key] = part
        return copied
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        moved = {name: mapped(part, change) for name, part in fields.items()}
        if all(moved[name] is part for name, part in fields.items()):
            return value
        copied = copy.copy(value)
        for name, part in moved.items():
            object.__setattr__(copied, name, part)
        return copied
    return value
