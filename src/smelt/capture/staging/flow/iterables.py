"""What a staged loop may go over: ranges with staged bounds, staged lists, rows of tensors, and these zipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from smelt.capture.dynamic.values import computed, is_sized, plain
from smelt.capture.recording.tensor_slots import slot_type
from smelt.capture.staging.fakes.symbols import StagedObject, is_staged, slot_of
from smelt.capture.staging.flow.stops import TAKEN_APART
from smelt.ir import ANY, ListType

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session


class StagedSequence:
    """Something with a length and items by number, of which one at least depends on data."""

    def length(self) -> Any:
        """The number of items."""
        raise NotImplementedError

    def item(self, number: object) -> Any:
        """An item by number."""
        raise NotImplementedError

    def bounds(self) -> tuple[Any, Any, Any]:
        """Start, stop and step of the index that `item_at` takes."""
        return (0, self.length(), 1)

    def item_at(self, index: object) -> object:
        """The item at an index of `bounds`."""
        return self.item(index)

    def known_length(self) -> int | None:
        """The number of items where sizes alone tell it, which is then fixed; None where it depends on data."""
        return None


class StagedRange(StagedSequence):
    """`range` with staged bounds."""

    def __init__(self, session: Session, start: Any, stop: Any, step: Any) -> None:
        self.session, self.start, self.stop, self.step = session, start, stop, step

    def length(self) -> Any:
        if type(self.step) is int and self.step and not any(map(is_staged, self.bounds())):
            count = self._count()
            return computed("py.max", count, 0) if is_sized(count) else max(count, 0)
        if self.start == 0 and not is_staged(self.start) and self.step == 1 and not is_staged(self.step):
            return self.session.emit("py.max", self.stop, 0)
        return self.session.emit("py.len", self.session.emit("py.call", "builtins.range", *self.bounds()))

    def item(self, number: Any) -> Any:
        if not is_staged(self.start) and self.start == 0 and not is_staged(self.step) and self.step == 1:
            return number
        return self.start + number * self.step

    def bounds(self) -> tuple[Any, Any, Any]:
        return (self.start, self.stop, self.step)

    def item_at(self, index: object) -> object:
        return index

    def known_length(self) -> int | None:
        if any(map(is_staged, self.bounds())):
            return None
        self.start, self.stop, self.step = map(plain, self.bounds())
        return len(range(self.start, self.stop, self.step))

    # What Python may ask of any range.

    __class__ = property(lambda self: range)

    def whole(self) -> range:
        """The range itself, whose bounds are fixed. Raises: CannotStage where they depend on data."""
        if self.known_length() is None:
            self.session.cannot("Python unpacks a range whose bounds depend on data", TAKEN_APART)
        return range(self.start, self.stop, self.step)

    def __getitem__(self, key: Any) -> Any:
        if any(map(is_staged, (*self.bounds(), key))):
            if isinstance(key, slice):
                return self.whole()[key]
            return self.session.getitem(self.listed(), key)
        if isinstance(key, slice) or type(self.step) is not int or self.step < 1:
            return self.whole()[key]
        length = (self.stop - self.start + self.step - 1) // self.step
        place = key + length if key < 0 else key
        if not 0 <= place < length:
            raise IndexError("range object index out of range")
        return self.start + place * self.step

    def __bool__(self) -> bool:
        return bool(self.length() > 0)

    def __len__(self) -> int:
        return len(self.whole())

    def __iter__(self) -> Any:
        return iter(self.whole())

    def __reversed__(self) -> object:
        return Once(self.session, self.backward(), lambda: reversed(self.whole()))

    def backward(self) -> StagedRange | None:
        """The same numbers from the last one on, where the step is known."""
        if type(self.step) is not int or not self.step:
            return None
        last = self.start + (self._count() - 1) * self.step
        return StagedRange(self.session, last, self.start - self.step, -self.step)

    def _count(self) -> Any:
        """The number of items, by a known step; less than none where there is none."""
        reach = self.stop - self.start if self.step > 0 else self.start - self.stop
        by = abs(self.step)
        return reach if by == 1 else (reach + by - 1) // by

    def numbers(self) -> Any:
        """Its numbers as a value of the graph."""
        return self.session.emit("py.call", "builtins.range", *self.bounds())

    def itself(self) -> Any:
        """The range as a value of the graph."""
        return self.session.emit("py.call", "range", *self.bounds())

    def equals(self, other: object) -> object:
        """`self == other`, asked in the graph."""
        if not isinstance(other, range) and (not is_staged(other) or slot_of(other).type != ANY):
            return False
        return self.session.emit("py.bool", self.session.emit("py.eq", self, other))

    def listed(self) -> Any:
        """Its numbers as a staged list."""
        return self.session.emit("py.call", "builtins.list", self.numbers())

    def __contains__(self, item: object) -> bool:
        return item in self.whole()

    def __eq__(self, other: object) -> Any:
        return self.whole() == (other.whole() if isinstance(other, StagedRange) else other)

    def __hash__(self) -> int:
        return hash(self.whole())

    def __repr__(self) -> str:
        return repr(self.whole())

    def index(self, item: Any) -> int:
        return self.whole().index(item)

    def count(self, item: Any) -> int:
        return self.whole().count(item)


class KnownRange(StagedSequence):
    """A `range` that does not depend on data, gone over by one loop of the graph."""

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers

    def length(self) -> int:
        return len(self.numbers)

    def item(self, number: Any) -> Any:
        if isinstance(number, int) and not is_staged(number):
            return self.numbers[number]
        step, start = self.numbers.step, self.numbers.start
        scaled = number if step == 1 else number * step
        return scaled if start == 0 else scaled + start

    def bounds(self) -> tuple[int, int, int]:
        return (self.numbers.start, self.numbers.stop, self.numbers.step)

    def item_at(self, index: object) -> object:
        return index


class StagedList(StagedSequence):
    """A staged list."""

    def __init__(self, session: Session, items: StagedObject) -> None:
        self.session, self.items = session, items

    def length(self) -> Any:
        return self.session.emit("py.len", self.items)

    def item(self, number: object) -> Any:
        return self.session.getitem(self.items, number)


class Rows(StagedSequence):
    """The rows of a tensor whose first size depends on data."""

    def __init__(self, session: Session, tensor: torch.Tensor) -> None:
        self.session, self.tensor = session, tensor

    def length(self) -> Any:
        return self.session.size(self.tensor, 0)

    def item(self, number: object) -> Any:
        return torch.select(self.tensor, 0, number)

    def known_length(self) -> int | None:
        size = self.length()
        return None if is_staged(size) else plain(size)


class Once(StagedSequence):
    """What `reversed` gives: gone over once, by one loop of the graph, or item by item by Python.

    sequence: its items, None where there is no such sequence. plain: makes Python's own iterator.
    """

    def __init__(self, session: Session, sequence: StagedSequence | None, plain: Callable[[], Iterator[Any]]) -> None:
        self.session, self.sequence, self.plain = session, sequence, plain
        self.level = len(session.paths.regions)
        self.iterator: Iterator[object] | None = None
        self.is_taken = self.is_spent = False

    def take(self) -> StagedSequence | None:
        """All items, which who asks goes over; None where Python has begun to, or is to."""
        if self.is_taken or self.iterator is not None or self.sequence is None:
            return None
        self._check_level()
        self.is_taken = True
        return self.sequence

    def _check_level(self) -> None:
        if len(self.session.paths.regions) != self.level:
            self.session.cannot("an iterator is advanced on one path only")

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> object:
        self._check_level()
        if self.is_spent:
            raise StopIteration
        if self.is_taken:
            self.session.cannot("an iterator is gone on with", "its position is not known until run time")
        self.iterator = self.plain() if self.iterator is None else self.iterator
        return next(self.iterator)


class Zipped(StagedSequence):
    """`zip` and `enumerate`."""

    def __init__(self, session: Session, parts: list[Any]) -> None:
        self.session, self.parts = session, parts

    def length(self) -> Any:
        sized = [p for p in self.parts if not isinstance(p, Count)]
        lengths = [p.length() if isinstance(p, StagedSequence) else len(p) for p in sized]
        return lengths[0] if len(lengths) == 1 else self.session.emit("py.min", *lengths)

    def item(self, number: object) -> Any:
        return tuple(_item(self.session, p, number) for p in self.parts)

    def known_length(self) -> int | None:
        sized = [p for p in self.parts if not isinstance(p, Count)]
        lengths = [p.known_length() if isinstance(p, StagedSequence) else len(p) for p in sized]
        known = [length for length in lengths if length is not None]
        return min(known) if len(known) == len(lengths) else None


class Count:
    """`itertools.count` from a start."""

    def __init__(self, start: Any) -> None:
        self.start = start


def _item(session: Session, part: Any, number: Any) -> object:
    if isinstance(part, list) and not is_staged(number):
        return part[number]
    if isinstance(part, Count):
        return number if part.start == 0 and not is_staged(part.start) else number + part.start
    if isinstance(part, StagedSequence):
        return part.item(number)
    return session.getitem(session.container(list(part)), number)


def lists_in(sequence: StagedSequence) -> list[StagedObject]:
    """The staged lists that a sequence is made of."""
    if isinstance(sequence, StagedList):
        return [sequence.items]
    parts = sequence.parts if isinstance(sequence, Zipped) else []
    return [items for part in parts if isinstance(part, StagedSequence) for items in lists_in(part)]


_ITERATORS: tuple[type, ...] = (enumerate, zip, type(iter([])), type(reversed([])))


def lists_under(iterable: object) -> list[list[object]]:
    """Python's own lists that going over this takes items from."""
    if type(iterable) is list:
        return [iterable]
    if not isinstance(iterable, _ITERATORS):
        return []
    return [found for part in iterable.__reduce__()[1] for found in lists_under(part)]


def sequence_of(session: Session, iterable: object) -> StagedSequence | None:
    """What a loop goes over, None where Python knows how often it turns."""
    if isinstance(iterable, Once):
        return iterable.take()
    if isinstance(iterable, StagedSequence):
        return iterable
    if isinstance(iterable, StagedObject) and isinstance(slot_of(iterable).type, ListType):
        return StagedList(session, iterable)
    if isinstance(iterable, StagedObject):
        return StagedList(session, session.emit("py.call", "builtins.list", iterable))
    if isinstance(iterable, torch.Tensor) and iterable.dim() > 0:
        type_ = slot_type(session.recorder.slot_of(iterable))
        if type_.shape is None or not isinstance(type_.shape[0], int):
            return Rows(session, iterable)
    return None
