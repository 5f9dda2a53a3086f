"""Where paths meet and loops turn, with types that may be open: two tensors are one, whatever they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from smelt.capture.convert.runtime import UNDEF
from smelt.capture.recording.spans import Site
from smelt.capture.recording.tensor_slots import Slot, slot_type
from smelt.capture.scripting.values.sequences import OpenTuple, as_list
from smelt.capture.staging.fakes.symbols import DEAD, WORLDS, ScalarSlot, class_of, is_staged, slot_of, wrap, wrap_as
from smelt.capture.staging.flow.growing import container_type
from smelt.capture.staging.flow.merge import Merger, Pending
from smelt.capture.staging.records import Listed
from smelt.ir import (
    ANY,
    BOOL,
    FLOAT,
    INT,
    NONE,
    DictType,
    DType,
    ListType,
    OptionalType,
    ScalarType,
    TensorType,
    TupleType,
    Type,
    join,
    type_of_arg,
)

if TYPE_CHECKING:
    from smelt.capture.scripting.domain import Open

_NUMBERS = (BOOL, INT, FLOAT)
_PLAIN = (bool, int, float, complex, str)


def join_open(a: Type, b: Type) -> Type:
    """The least type that holds both; of two tensors always one of tensors."""
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype != b.dtype:
        a = TensorType(DType.UNKNOWN, a.shape, a.strides, a.device, a.layout)
    if isinstance(a, ListType) and isinstance(b, ListType):
        return ListType(join_open(a.element, b.element))
    if NONE not in (a, b) and OptionalType in (type(a), type(b)):
        present = join_open(*(t.element if isinstance(t, OptionalType) else t for t in (a, b)))
        return ANY if present == ANY else OptionalType(present)
    if isinstance(a, TupleType) and isinstance(b, TupleType) and len(a.elements) == len(b.elements):
        return TupleType(tuple(map(join_open, a.elements, b.elements)))
    if isinstance(a, DictType) and isinstance(b, DictType):
        return DictType(join_open(a.key, b.key), join_open(a.value, b.value))
    return join(a, b)


class OpenMerger(Merger):
    """The merging of two outcomes; who they were is remembered, for `is`."""

    def __init__(self, domain: Open, condition: Slot, site: Site | None, why: object, names: Sequence[str]) -> None:
        super().__init__(domain.session, site, why, names)
        self.domain, self.condition = domain, condition
        # Results that are None or something else, each with whether both ways have come to a `return`.
        self._maybe: dict[str, bool] = {}

    def _none_returned(self, name: str, is_settled: bool) -> None:
        if self.why is not None:
            super()._none_returned(name, is_settled)
        self._maybe[name] = is_settled

    def named(self, name: str, a: object, b: object) -> Any:
        if name not in self._maybe:
            return super().named(name, a, b)
        left, right = (v.value if isinstance(v, Pending) else v for v in (a, b))
        if left is UNDEF or right is UNDEF:
            return None  # and nobody asks where nothing is returned
        found = self._or_none(left if right is None else right, is_left=right is None)
        if found is NotImplemented:
            super()._none_returned(name, self._maybe[name])
        return found if self._maybe[name] else Pending(found)

    def _tensors(self, a: torch.Tensor, b: torch.Tensor) -> object:
        domain = self.domain
        left, right = (domain.recorder.slot_of(t) for t in (a, b))
        if domain.session.paths.resolved(left) is domain.session.paths.resolved(right):
            return a
        type_ = join_open(slot_type(left), slot_type(right))
        if not isinstance(type_, TensorType):
            self._fail(f"a tensor {slot_type(left)} meets a tensor {slot_type(right)}")
        result, slot = domain.session.tensor_of(type_, a)
        self._yield(self._slot(a), self._slot(b), slot)
        self._entwine(a, b, slot)
        self.domain.merged[id(result)] = (self.condition, a, b)
        return result

    def _merge(self, a: object, b: object) -> object:
        if a is not b and (self._was_there_staged(a) or self._was_there_staged(b)):
            # What is changed in it later is changed for who holds it since before the branch, too.
            self._fail("a list or dict that was there before meets another")
        for one, other in ((a, b), (b, a)):
            if isinstance(one, torch.Tensor) and is_staged(other) and slot_of(other).type == ANY:
                return self._of_type(ANY, a, b)
            if isinstance(one, torch.Tensor) and is_staged(other) and isinstance(slot_of(other).type, OptionalType):
                type_ = join_open(value_type(self.domain, one), slot_of(other).type)
                if isinstance(type_, OptionalType):
                    return self._of_type(type_, a, b)
        if class_of(a) is not class_of(b) and (class_of(a) or type(a)) is (class_of(b) or type(b)):
            return self._tuples(a, b)
        if self.why is None and type(a) is type(b) is tuple and len(a) != len(b):
            if not self.names and all(map(_is_simple, (*a, *b))):
                return self._of_type(ANY, a, b)  # it is returned, and no more
            return self._tuples(a, b)
        if any(_is_plain_tuple(v) for v in (a, b)) and any(is_staged(v) for v in (a, b)):
            type_ = join_open(*(value_type(self.domain, v) for v in (a, b)))
            is_returned = type_ == ANY and not self.names  # and no more
            if is_returned or isinstance(type_.element if isinstance(type_, OptionalType) else type_, TupleType):
                return self._of_type(type_, a, b)
        if self.why is None and (a is None or b is None) and a is not b:
            # Where a loop's body or the program ends no way goes on by itself.
            found = self._or_none(b if a is None else a, is_left=b is None)
            if found is not NotImplemented:
                return found
        if self.why is None and any(type(v) is list for v in (a, b)):
            found = self._lists(a, b)
            if found is not NotImplemented:
                return found
        return super()._merge(a, b)

    def _tuples(self, a: Any, b: Any) -> object:
        """Two tuples of other lengths; those of one or both only a run of the graph knows."""
        type_ = container_type(self.session, list(map(as_list, (a, b))))
        known = [item for v in (a, b) if class_of(v) is None for item in v]
        if not isinstance(type_, ListType) or not all(map(_is_simple, known)):
            return self._fail("tuples of other lengths meet")
        parts: list[object] = [
            Listed([self.domain.encode(i) for i in v], type_) if class_of(v) is None else slot_of(v) for v in (a, b)
        ]
        found = ScalarSlot(type_, (DEAD,) * WORLDS)
        self._yield(parts[0], parts[1], found)
        like = next((v for v in (a, b) if class_of(v) is not None), None)
        return OpenTuple(found) if like is None else wrap_as(found, like)

    def _was_there_staged(self, value: object) -> bool:
        """Whether a value is a list or dict of the graph's that the program had before the branch."""
        is_container = is_staged(value) and isinstance(slot_of(value).type, (ListType, DictType))
        return is_container and class_of(value) is None and self.domain.session.heap.is_outer(value)

    def _lists(self, a: Any, b: Any) -> object:
        """Lists of other lengths, or of one that a run knows, as one of the graph's."""
        if not all(type(v) is list or (is_staged(v) and isinstance(slot_of(v).type, ListType)) for v in (a, b)):
            return NotImplemented
        if type(a) is type(b) and len(a) == len(b):
            return NotImplemented
        type_ = container_type(self.session, [a, b])
        if any(not _is_simple(i) for v in (a, b) if type(v) is list for i in v):
            return NotImplemented
        if type_ is None or any(type(v) is list and self.domain.session.heap.is_outer(v) for v in (a, b)):
            return NotImplemented
        parts: list[object] = [slot_of(v) if is_staged(v) else self._listed(v) for v in (a, b)]
        found = ScalarSlot(type_, (DEAD,) * WORLDS)
        self._yield(parts[0], parts[1], found)
        return wrap(found)

    def _listed(self, items: list[object]) -> object:
        type_ = container_type(self.session, [items])
        assert isinstance(type_, ListType)
        self.domain.note_held(items)
        return Listed([self.domain.encode(item) for item in items], type_)

    def _or_none(self, value: object, is_left: bool) -> object:
        """A value that is None on the other path; NotImplemented where it is no value of the graph's."""
        if not _is_simple(value) and not _is_plain_tuple(value):
            return NotImplemented
        slot, type_ = self._operand(value), value_type(self.domain, value)
        if type_ == ANY and not self.names:
            return self._of_type(ANY, *((value, None) if is_left else (None, value)))  # it is returned, and no more
        if isinstance(type_, (OptionalType, ScalarType)) and type_ in (ANY, NONE):
            self._fail("a value of unknown kind meets None")
        found = ScalarSlot(type_ if isinstance(type_, OptionalType) else OptionalType(type_), (DEAD,) * WORLDS)
        self._yield_one(slot, None, found, is_left)
        return wrap(found)

    def _of_type(self, type_: Type, a: object, b: object) -> object:
        found = ScalarSlot(type_, (DEAD,) * WORLDS)
        self._yield(self._operand(a), self._operand(b), found)
        return wrap(found)

    def _operand(self, value: object) -> object:
        """A value as an `if` yields it."""
        if type(value) is not tuple:
            return self.domain.encode(value)
        return Listed([self.domain.encode(item) for item in value], _tuple_type(self.domain, value))

    def _scalars(self, a: object, b: object) -> object:
        first, second = value_type(self.domain, a), value_type(self.domain, b)
        if first != second and ({first, second} <= {*_NUMBERS, ANY} or (ANY in (first, second) and not self.names)):
            # Numbers of two kinds, or what is returned and no more: which one it is, a run knows.
            return self._of_type(ANY, a, b)
        if first != second and (isinstance(first, OptionalType) or isinstance(second, OptionalType)):
            type_ = join(first, second)
            if isinstance(type_, OptionalType):
                return self._of_type(type_, a, b)
        type_ = join_open(first, second)
        if first != second and isinstance(type_, DictType):
            return self._of_type(type_, a, b)
        return super()._scalars(a, b)


def _is_simple(item: object) -> bool:
    """Whether the graph has values for it, and of its own kind."""
    return isinstance(item, (torch.Tensor, *_PLAIN)) or (is_staged(item) and class_of(item) is None)


def _is_plain_tuple(value: object) -> bool:
    """Whether a value is a tuple that the run knows, of what the graph has values for."""
    return type(value) is tuple and all(map(_is_simple, value))


def value_type(domain: Open, value: Any) -> Type:
    """The type of a tensor, a staged value, a number or a tuple of these."""
    if type(value) is tuple:
        return _tuple_type(domain, value)
    if isinstance(value, torch.Tensor):
        found: Type = slot_type(domain.recorder.slot_of(value))
        return found
    return slot_of(value).type if is_staged(value) else type_of_arg(value)


def _tuple_type(domain: Open, value: tuple[object, ...]) -> TupleType:
    return TupleType(tuple(value_type(domain, item) for item in value))


def widened(before: Type, after: Type) -> Type | None:
    """What a loop carries that is of two types: a tensor of either, a number of either, what may be None."""
    type_ = join_open(before, after)
    if isinstance(type_, (TensorType, ListType, DictType)):
        return type_
    if isinstance(type_, OptionalType) and OptionalType in (type(before), type(after)):
        # Where only a first turn differs it is taken out of the loop, and nothing is asked in each one.
        return type_
    return ANY if before != after and {before, after} <= {*_NUMBERS, ANY} else None
