"""Whether an argument is one that a scripted graph is of: a graph holds for the types of its inputs, and no others.

misfit(f32[B, 4], torch.ones(2, 3), sizes)  ==>  "f32[2, 3], and the graph takes f32[B, 4]"
"""

from __future__ import annotations

import torch

from smelt.capture.scripting.annotations import TENSOR
from smelt.ir import (
    ANY,
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    STR,
    DictType,
    DType,
    ListType,
    OptionalType,
    Sym,
    TensorType,
    Type,
)
from smelt.ops.convert import type_of

_CLASSES: dict[Type, type] = {BOOL: bool, INT: int, FLOAT: float, COMPLEX: complex, STR: str, NONE: type(None)}


def misfit(type_: Type, value: object, sizes: dict[str, int]) -> str:
    """What is wrong with an argument, empty where nothing is. sizes: of the names that earlier arguments had."""
    if type_ == ANY:
        return ""
    if type_ == TENSOR:
        is_tensor = isinstance(value, torch.Tensor)
        return "" if is_tensor else f"a {type(value).__name__}, and the graph takes a tensor"
    if isinstance(type_, OptionalType):
        return "" if value is None else misfit(type_.element, value, sizes)
    if isinstance(type_, TensorType):
        if not isinstance(value, torch.Tensor):
            return f"a {type(value).__name__}, and the graph takes {type_}"
        given = type_of(value)
        return "" if _holds_for(type_, given, sizes) else f"{given}, and the graph takes {type_}"
    if isinstance(type_, ListType) and isinstance(value, (list, tuple)):
        return next(filter(None, (misfit(type_.element, item, sizes) for item in value)), "")
    if isinstance(type_, DictType) and isinstance(value, dict):
        items = ((type_.key, key) for key in value), ((type_.value, item) for item in value.values())
        return next(filter(None, (misfit(t, v, sizes) for pairs in items for t, v in pairs)), "")
    kind = (
        (list, tuple) if isinstance(type_, ListType) else dict if isinstance(type_, DictType) else _CLASSES.get(type_)
    )
    is_fit = kind is None or (type(value) is kind if isinstance(kind, type) else isinstance(value, kind))
    return "" if is_fit else f"a {type(value).__name__}, and the graph takes {type_}"


def _holds_for(type_: TensorType, given: TensorType, sizes: dict[str, int]) -> bool:
    """Whether a tensor of a static type is one of those that a type may be of."""
    if type_.layout != given.layout or type_.dtype not in (DType.UNKNOWN, given.dtype):
        return False
    if type_.shape is None:
        return True
    if type_.rank != given.rank:
        return False
    for dim, size in zip(type_.shape, given.sizes, strict=True):
        if isinstance(dim, Sym):
            dim = sizes.setdefault(dim.name, size)
        if isinstance(dim, int) and dim != size:
            return False
    return not type_.is_static or (type_.device == given.device and type_.steps == given.steps)
