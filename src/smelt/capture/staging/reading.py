"""What a staged run answers where Python asks for sizes and elements of tensors.

Invariant: a number that depends on data is one of the graph; a plain one follows from types, or is expected.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import torch

from smelt._torch.seen.dispatch import unseen
from smelt._torch.storage import storage_key
from smelt.capture.dynamic.arithmetic import at_hand
from smelt.capture.dynamic.values import number_of, own
from smelt.capture.recording.spans import is_smelts
from smelt.capture.recording.tensor_slots import Record, Slot, StateSlot, slot_type
from smelt.capture.staging.counters import step_of
from smelt.capture.staging.fakes.symbols import DEAD, WORLDS, ScalarSlot, wrap
from smelt.capture.staging.flow.stops import Again
from smelt.capture.staging.objects.cached import calls_cache
from smelt.capture.staging.recording import Recording
from smelt.ir import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    TensorType,
    Type,
    UnknownDim,
)
from smelt.ops.convert import from_torch

ITEM_TYPES: dict[str, Type] = {"bool": BOOL, "int": INT, "uint": INT, "float": FLOAT, "complex": COMPLEX}
# What a function calls that, converted, leaves a size free where Python's own wants its value.
_ASKING = frozenset((
    "range", "len", "int", "float", "math", "sqrt", "ceil", "floor", "log", "log2", "enumerate", "zip", "exp",
    "tensor", "as_tensor", "new_tensor", "LongTensor", "FloatTensor", "divmod", "sum", "format",
))  # fmt: skip


class Reading(Recording):
    """Answers of one staged run."""

    def item(self, tensor: torch.Tensor) -> Any:
        """The element of a one-element tensor as a staged number."""
        slot = self.recorder.slot_of(tensor)
        type_ = slot_type(slot)
        kind = type_.dtype.kind
        if type_.is_static and type_.numel != 1:
            self.cannot(f"the value of a tensor {type_} was read", "it has not exactly one element")
        known = self.known_value(tensor)
        if known is not None:
            return known
        batch = self.recorder.packed.first(slot, self.recorder.elements)
        if batch is not None:
            return batch
        native = self._hint("item")
        examples = self._examples_of(slot, native)
        is_native = native is not None and type(native) is type(examples[0])
        found = ScalarSlot(ITEM_TYPES[kind], examples, is_native)
        found.within = self.recorder.ranges.of(slot, self.recorder.records)
        step = step_of(slot, self.recorder.records) if is_native else None
        self.append("aten.item.default", [slot], {}, [found])
        return wrap(found if step is None else self.as_counted(found, step))

    def as_counted(self, found: ScalarSlot, step: float) -> ScalarSlot:
        """The number that stands for a counter's, which has just been advanced."""
        return found

    def _examples_of(self, slot: Slot, native: object) -> tuple[object, ...]:
        type_ = slot_type(slot)
        if type_.shape == () and type_.dtype.kind != "complex":
            return self.recorder.elements.of(slot, self.examples, native)
        return self.examples.of(ITEM_TYPES[type_.dtype.kind], native)

    @property
    def is_on_all_paths(self) -> bool:
        """Whether every run comes here: in no region of an arm or loop, and behind no question that forked the rest."""
        return len(self.regions) == 1 and not self.regions[0].taken

    def known_value(self, tensor: torch.Tensor) -> object:
        """The element of a tensor that follows from sizes alone, which the graph expects; None for any other.

        On one path only there is none: a graph holds or does not as a whole.
        """
        if self.size_trace is None or not self.is_on_all_paths:
            return None
        slot = self.recorder.slot_of(tensor)
        value = self.recorder.known.of(slot)
        if value is None or value.numel() != 1:
            return None
        with unseen():
            found = value.item()
        read = ScalarSlot(ITEM_TYPES[slot_type(slot).dtype.kind], (found,) * WORLDS, True)
        self.append("aten.item.default", [slot], {}, [read])
        self.append("expect", [read, found], {}, [])
        return found

    def knows(self, slot: Slot) -> bool:
        """Whether a tensor follows from sizes alone, and Python may read it."""
        return self.size_trace is not None and self.is_on_all_paths and self.recorder.known.of(slot) is not None

    def scalar_call(self, name: str, args: Sequence[object], kwargs: Mapping[str, object], kind: type) -> ScalarSlot:
        """Record an operator of torch's that gives a number."""
        type_ = {bool: BOOL, int: INT}[kind]
        found = ScalarSlot(type_, self.examples.of(type_))
        operands = [self.encode(a) for a in args]
        self.append(name, operands, {k: self.encode(v) for k, v in kwargs.items()}, [found])
        return found

    def size(self, tensor: torch.Tensor, dim: int, what: str = "size") -> Any:
        """A size (or stride) of a tensor: a plain number where types tell, else read when the graph runs."""
        with unseen():
            return self._size(tensor, dim, what)

    def _size(self, tensor: torch.Tensor, dim: int, what: str) -> object:
        slot = self.recorder.slot_of(tensor)
        type_ = slot_type(slot)
        worlds = self.recorder.varied.get(slot)
        dim = dim + tensor.dim() if dim < 0 else dim
        known = type_.shape[dim] if what == "size" else _step(type_, dim)
        if worlds is None or not isinstance(known, UnknownDim):
            return own((tensor.shape if what == "size" else tensor.stride())[dim])
        shown = (t if t is DEAD else (tuple(t.shape) if what == "size" else t.stride())[dim] for t in worlds)
        examples = tuple(n if n is DEAD else at_hand(number_of(n)) for n in shown)
        found = ScalarSlot(INT, examples)
        self.append(f"aten.sym_{what}.int", [slot, dim], {}, [found])
        return wrap(found)

    def numel(self, tensor: torch.Tensor) -> Any:
        """The number of elements."""
        slot = self.recorder.slot_of(tensor)
        worlds = self.recorder.varied.get(slot)
        with unseen():
            if worlds is None:
                return own(tensor.numel())
            found = ScalarSlot(INT, tuple(t if t is DEAD else at_hand(number_of(t.numel())) for t in worlds))
        self.append("aten.sym_numel.default", [slot], {}, [found])
        return wrap(found)

    def is_contiguous(self, tensor: torch.Tensor, memory_format: torch.memory_format) -> Any:
        """Whether a tensor of which types do not tell how it lies is dense in an order: read when the graph runs."""
        slot = self.recorder.slot_of(tensor)
        worlds = self.recorder.varied[slot]
        if memory_format is torch.contiguous_format and slot_type(slot).strides is None:
            return True
        with unseen():
            shown = tuple(t if t is DEAD else bool(t.is_contiguous(memory_format=memory_format)) for t in worlds)
        found = ScalarSlot(BOOL, shown)
        named = () if memory_format is torch.contiguous_format else (from_torch(memory_format),)
        self.append(f"aten.is_contiguous.{'memory_format' if named else 'default'}", [slot, *named], {}, [found])
        return wrap(found)

    def storage_offset(self, tensor: torch.Tensor) -> Any:
        """Where a result's elements begin in memory: what sizes tell, else read when the graph runs."""
        slot = self.recorder.slot_of(tensor)
        with unseen():
            at = tensor.storage_offset()
            if self._is_made_alike(slot, by_sizes=True):
                return own(at)
        found = ScalarSlot(INT, (at, *self.examples.ints()[1:]))
        self.append("aten.sym_storage_offset.default", [slot], {}, [found])
        return wrap(found)

    def base_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What a tensor is a view of. Raises: CannotStage where the path decides."""
        self.check_made_on_all_paths(tensor)
        return self.recorder.base_of(tensor)

    def version_of(self, tensor: torch.Tensor) -> int:
        """How often a tensor was written. Raises: CannotStage where the path decides."""
        self.check_made_on_all_paths(tensor)
        if self.recorder.slot_of(tensor).family.is_written_apart:
            self.cannot("the program reads how often a tensor was written", "it was written on one path, or in a loop")
        found: int = self.recorder.fakes.version_of(tensor)
        return found

    def check_made_on_all_paths(self, tensor: torch.Tensor) -> None:
        """Raises: CannotStage for a tensor that stands for one made on either path, or for a view of one."""
        slot = self.recorder.slot_of(tensor)
        if slot.family.tainted and not isinstance(slot, StateSlot) and slot.kind != "input":
            with unseen():
                is_made = self._is_made_alike(slot, by_sizes=False)
            if not is_made:
                self.cannot("the program reads a tensor's base or its version", "the path may decide it")

    def _is_made_alike(self, slot: Slot, *, by_sizes: bool) -> bool:
        """Whether a tensor, and what it is a view of, are made by operators of this region, on whatever path.

        by_sizes: and no data decide where it lies in that.
        """
        while not (by_sizes and self.recorder.is_varied(slot)):
            tensor, record = slot.ref(), self.recorder.maker_of(slot)
            if not slot.family.tainted and slot.kind == "result":
                return True
            if tensor is None or record is None or isinstance(record.info, str):
                return not by_sizes and (isinstance(slot, StateSlot) or slot.kind == "input")
            given = _leaves((record.args, tuple(record.kwargs.values())))
            if by_sizes and any(isinstance(value, ScalarSlot) for value in given):
                return False
            if not tensor._is_view():
                return True
            base = self._viewed_by(record, tensor)
            if base is None:
                return False
            slot = base
        return False

    def _viewed_by(self, record: Record, tensor: torch.Tensor) -> Slot | None:
        """The operand that a call gave a view of, or gave back."""
        of = self.recorder.fakes.of
        memory = storage_key(of(tensor))
        for value in _leaves((record.args, tuple(record.kwargs.values()))):
            operand = value.ref() if isinstance(value, Slot) else None
            if isinstance(operand, torch.Tensor) and storage_key(of(operand)) == memory:
                found: Slot = value
                return found
        return None

    def fresh_numbers(self, what: str) -> tuple[int, ...]:
        """A number that depends on data, in each world."""
        native = self._hint(what)
        first = native[0] if isinstance(native, (list, tuple)) and native and isinstance(native[0], int) else 5
        return self.examples.ints(first)

    def _hint(self, what: str) -> object:
        site = self.site()
        if site is None:
            return None
        span = site.span
        key = (span.file, span.line, what)
        values = self._hints.get(key)
        if not values:
            return None
        number = self._asked.get(key, 0)
        self._asked[key] = number + 1
        return values[min(number, len(values) - 1)]

    def shown(self, sizes: Sequence[object]) -> object:
        """Sizes as torch tells them, for the program."""
        return sizes if self.size_trace is None else [own(size) for size in sizes]

    def want_free(self, *, is_text: bool, is_key: bool = False) -> None:
        """A size is asked for as a plain number; where the function that asks may do without it is converted.

        is_text: for its text. is_key: for its hash. Raises: Again.
        """
        if is_key:
            frame = self._asking_frame()
            if frame is not None and calls_cache(frame) and self.convertible(frame.f_code):
                raise Again(convert=frame.f_code)
        if is_text and not self.fixes_texts:
            code = self._asking_code()
            if code is not None and self.convertible(code):
                raise Again(convert=code)
        site = self.site()
        codes = (self._asking_code(), None if site is None else site.code)
        for code in dict.fromkeys(code for code in codes if code is not None):
            if _may_do_without(code) and self.convertible(code):
                raise Again(convert=code)

    def asked_by(self) -> object:
        """Who asks how large a size is, which is a guard from now on. Where a line asks again and again, it may be the
        test of a loop (`while i < n`), which is one of the graph in converted code. Raises: Again.
        """
        site = self.site()
        if site is None or self._asking_code() is not site.code:
            return site
        line = (site.code, site.span.line)
        self._guarding[line] = self._guarding.get(line, 0) + 1
        if self._guarding[line] > 2 and _has_loop(site.code) and self.convertible(site.code):
            raise Again(convert=site.code)
        return site

    def _asking_code(self) -> CodeType | None:
        frame = self._asking_frame()
        return None if frame is None else frame.f_code

    def _asking_frame(self) -> FrameType | None:
        """What the program or torch runs now, behind our own functions."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and is_smelts(frame.f_code.co_filename):
            frame = frame.f_back
        return frame


def _leaves(value: object) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _may_do_without(code: CodeType) -> bool:
    """Whether a function, converted, may leave a size free where Python's own code wants its value."""
    return not _ASKING.isdisjoint(code.co_names) or any(type(c) is str and "%" in c for c in code.co_consts)


def _has_loop(code: CodeType) -> bool:
    return any("BACKWARD" in instruction.opname for instruction in dis.get_instructions(code))


def _step(type_: TensorType, dim: int) -> Any:
    """A stride as the type tells it; of rows one behind the other it is unknown where a size behind it is."""
    if type_.strides is not None:
        return type_.strides[dim]
    return next((size for size in (type_.shape or ())[dim + 1 :] if isinstance(size, UnknownDim)), None)
