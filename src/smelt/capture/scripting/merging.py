"""Where paths meet and loops turn, with types that may be open: two tensors are one, whatever they are made of."""

from __future__ import annotations

from typing import Any

import torch

from smelt.capture.recorder import slot_type
from smelt.capture.staging.merge import Merger, _type
from smelt.capture.staging.symbols import DEAD, WORLDS, ScalarSlot, is_staged, slot_of, wrap
from smelt.ir import ANY, BOOL, FLOAT, INT, DType, ListType, TensorType, Type, join

_NUMBERS = (BOOL, INT, FLOAT)


def join_open(a: Type, b: Type) -> Type:
    """The least type that holds both; of two tensors always one of tensors."""
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype != b.dtype:
        a = TensorType(DType.UNKNOWN, a.shape, a.strides, a.device, a.layout)
    if isinstance(a, ListType) and isinstance(b, ListType):
        return ListType(join_open(a.element, b.element))
    return join(a, b)


class ScriptMerger(Merger):
    """The merging of two outcomes; who they were is remembered, for `is`."""

    def __init__(self, session: Any, *args: Any) -> None:
        super().__init__(session, *args)
        self.condition = session.condition

    def _tensors(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        session = self.session
        left, right = (session.recorder.slot_of(t) for t in (a, b))
        if session.resolved(left) is session.resolved(right):
            return a
        type_ = join_open(slot_type(left), slot_type(right))
        if not isinstance(type_, TensorType):
            self._fail(f"a tensor {slot_type(left)} meets a tensor {slot_type(right)}")
        result, slot = session.tensor_of(type_, a)
        self._yield(self._slot(a), self._slot(b), slot)
        self._entwine(a, b, slot)
        self.session.merged[id(result)] = (self.condition, a, b)
        return result

    def _merge(self, a: Any, b: Any) -> Any:
        for one, other in ((a, b), (b, a)):
            if isinstance(one, torch.Tensor) and is_staged(other) and slot_of(other).type == ANY:
                return self._tensors(*((a, self.session.as_tensor(b)) if one is a else (self.session.as_tensor(a), b)))
        return super()._merge(a, b)

    def _scalars(self, a: Any, b: Any) -> Any:
        first, second = _type(a), _type(b)
        if first != second and {first, second} <= {*_NUMBERS, ANY}:
            # Numbers of two kinds: which one it is, a run knows.
            found = ScalarSlot(ANY, (DEAD,) * WORLDS)
            self._yield(self.session.encode(a), self.session.encode(b), found)
            return wrap(found)
        return super()._scalars(a, b)


def widened(before: Type, after: Type) -> Type | None:
    """What a loop carries that is of two types: a tensor of either, a number of either."""
    type_ = join_open(before, after)
    if isinstance(type_, (TensorType, ListType)):
        return type_
    return ANY if before != after and {before, after} <= {*_NUMBERS, ANY} else None
