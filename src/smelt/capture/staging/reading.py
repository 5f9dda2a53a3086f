"""What Python hears of tensors' memory and of sizes that are free, and what the recorded run read at the same place.

Invariant: a number that depends on data is one of the graph; a plain one follows from types, or is expected.
"""

from __future__ import annotations

import dis
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.seen.dispatch import unseen
from smelt._torch.storage import storage_key
from smelt.capture.dynamic.values import own
from smelt.capture.recording.spans import Spans, is_smelts
from smelt.capture.recording.tensor_slots import Record, Slot, StateSlot, slot_type
from smelt.capture.staging.fakes.symbols import DEAD, WORLDS, ScalarSlot, wrap
from smelt.capture.staging.flow.assumptions import converted
from smelt.capture.staging.flow.stops import Again
from smelt.capture.staging.objects.cached import calls_cache
from smelt.diag import Span
from smelt.ir import BOOL, COMPLEX, FLOAT, INT, Type
from smelt.ops.convert import from_torch

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session

ITEM_TYPES: dict[str, Type] = {"bool": BOOL, "int": INT, "uint": INT, "float": FLOAT, "complex": COMPLEX}
# What a function calls that, converted, leaves a size free where Python's own wants its value.
_ASKING = frozenset((
    "range", "len", "int", "float", "math", "sqrt", "ceil", "floor", "log", "log2", "enumerate", "zip", "exp",
    "tensor", "as_tensor", "new_tensor", "LongTensor", "FloatTensor", "divmod", "sum", "format",
))  # fmt: skip


class Reading:
    """Of one session. native: the recorded run, if there was one."""

    def __init__(self, session: Session, native: object) -> None:
        self.session = session
        self._hints = _native_values(native)
        self._native = native
        self._guarding: dict[tuple[CodeType, int], int] = {}  # how often a line asked how large a size is

    @cached_property
    def times_of_lines(self) -> list[tuple[Span, int]]:
        """Where an operator of the recorded run was called, with how often; one of each line and operator."""
        graph = getattr(self._native, "graph", None)
        nodes = () if graph is None else graph.walk()
        times = Counter((node.span, node.op) for node in nodes if node.span is not None)
        return [(span, count) for (span, _), count in times.items()]

    def known_value(self, tensor: torch.Tensor) -> object:
        """The element of a tensor that follows from sizes alone, which the graph expects; None for any other.

        On one path only there is none: a graph holds or does not as a whole.
        """
        session, recorder = self.session, self.session.recorder
        if session.size_trace is None or not session.paths.is_on_all:
            return None
        slot = recorder.slot_of(tensor)
        value = recorder.known.of(slot)
        if value is None or value.numel() != 1:
            return None
        with unseen():
            found = value.item()
        read = ScalarSlot(ITEM_TYPES[slot_type(slot).dtype.kind], (found,) * WORLDS, True)
        session.append("aten.item.default", [slot], {}, [read])
        session.append("expect", [read, found], {}, [])
        return found

    def knows(self, slot: Slot) -> bool:
        """Whether a tensor follows from sizes alone, and Python may read it."""
        session = self.session
        return (
            session.size_trace is not None and session.paths.is_on_all and session.recorder.known.of(slot) is not None
        )

    def scalar_call(self, name: str, args: Sequence[object], kwargs: Mapping[str, object], kind: type) -> ScalarSlot:
        """Record an operator of torch's that gives a number."""
        session = self.session
        type_ = {bool: BOOL, int: INT}[kind]
        found = ScalarSlot(type_, session.examples.of(type_))
        operands = [session.encode(a) for a in args]
        session.append(name, operands, {k: session.encode(v) for k, v in kwargs.items()}, [found])
        return found

    def is_contiguous(self, tensor: torch.Tensor, memory_format: torch.memory_format) -> Any:
        """Whether a tensor of which types do not tell how it lies is dense in an order: read when the graph runs."""
        session, recorder = self.session, self.session.recorder
        slot = recorder.slot_of(tensor)
        worlds = recorder.varied[slot]
        if memory_format is torch.contiguous_format and slot_type(slot).strides is None:
            return True
        with unseen():
            shown = tuple(t if t is DEAD else bool(t.is_contiguous(memory_format=memory_format)) for t in worlds)
        found = ScalarSlot(BOOL, shown)
        named = () if memory_format is torch.contiguous_format else (from_torch(memory_format),)
        session.append(f"aten.is_contiguous.{'memory_format' if named else 'default'}", [slot, *named], {}, [found])
        return wrap(found)

    def storage_offset(self, tensor: torch.Tensor) -> Any:
        """Where a result's elements begin in memory: what sizes tell, else read when the graph runs."""
        session = self.session
        slot = session.recorder.slot_of(tensor)
        with unseen():
            at = tensor.storage_offset()
            if self._is_made_alike(slot, by_sizes=True):
                return own(at)
        found = ScalarSlot(INT, (at, *session.examples.ints()[1:]))
        session.append("aten.sym_storage_offset.default", [slot], {}, [found])
        return wrap(found)

    def base_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What a tensor is a view of. Raises: CannotStage where the path decides."""
        self.check_made_on_all_paths(tensor)
        return self.session.recorder.base_of(tensor)

    def version_of(self, tensor: torch.Tensor) -> int:
        """How often a tensor was written. Raises: CannotStage where the path decides."""
        session, recorder = self.session, self.session.recorder
        self.check_made_on_all_paths(tensor)
        if recorder.slot_of(tensor).family.is_written_apart:
            session.cannot(
                "the program reads how often a tensor was written", "it was written on one path, or in a loop"
            )
        found: int = recorder.fakes.version_of(tensor)
        return found

    def check_made_on_all_paths(self, tensor: torch.Tensor) -> None:
        """Raises: CannotStage for a tensor that stands for one made on either path, or for a view of one."""
        session = self.session
        slot = session.recorder.slot_of(tensor)
        if slot.family.tainted and not isinstance(slot, StateSlot) and slot.kind != "input":
            with unseen():
                is_made = self._is_made_alike(slot, by_sizes=False)
            if not is_made:
                session.cannot("the program reads a tensor's base or its version", "the path may decide it")

    def _is_made_alike(self, slot: Slot, *, by_sizes: bool) -> bool:
        """Whether a tensor, and what it is a view of, are made by operators of this region, on whatever path.

        by_sizes: and no data decide where it lies in that.
        """
        recorder = self.session.recorder
        while not (by_sizes and recorder.is_varied(slot)):
            tensor, record = slot.ref(), recorder.maker_of(slot)
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
        of = self.session.recorder.fakes.of
        memory = storage_key(of(tensor))
        for value in _leaves((record.args, tuple(record.kwargs.values()))):
            operand = value.ref() if isinstance(value, Slot) else None
            if isinstance(operand, torch.Tensor) and storage_key(of(operand)) == memory:
                found: Slot = value
                return found
        return None

    def fresh_numbers(self, what: str) -> tuple[int, ...]:
        """A number that depends on data, in each world."""
        native = self.hint(what)
        first = native[0] if isinstance(native, (list, tuple)) and native and isinstance(native[0], int) else 5
        return self.session.examples.ints(first)

    def hint(self, what: str) -> object:
        """What the recorded run read at the place where the program stands; None where it read nothing of this kind."""
        session = self.session
        site = session.site()
        if site is None:
            return None
        span = site.span
        key = (span.file, span.line, what)
        values = self._hints.get(key)
        if not values:
            return None
        number = session.paths.asked.get(key, 0)
        session.paths.asked[key] = number + 1
        return values[min(number, len(values) - 1)]

    def shown(self, sizes: Sequence[object]) -> object:
        """Sizes as torch tells them, for the program."""
        return sizes if self.session.size_trace is None else [own(size) for size in sizes]

    def want_free(self, *, is_text: bool, is_key: bool = False) -> None:
        """A size is asked for as a plain number; where the function that asks may do without it is converted.

        is_text: for its text. is_key: for its hash. Raises: Again.
        """
        session = self.session
        if is_key:
            frame = self._asking_frame()
            if frame is not None and calls_cache(frame) and session.convertible(frame.f_code):
                raise Again(converted(frame.f_code))
        if is_text and not session.assumed.fixes_texts:
            code = self._asking_code()
            if code is not None and session.convertible(code):
                raise Again(converted(code))
        site = session.site()
        codes = (self._asking_code(), None if site is None else site.code)
        for code in dict.fromkeys(code for code in codes if code is not None):
            if _may_do_without(code) and session.convertible(code):
                raise Again(converted(code))

    def asked_by(self) -> object:
        """Who asks how large a size is, which is a guard from now on. Where a line asks again and again, it may be the
        test of a loop (`while i < n`), which is one of the graph in converted code. Raises: Again.
        """
        session = self.session
        site = session.site()
        if site is None or self._asking_code() is not site.code:
            return site
        line = (site.code, site.span.line)
        self._guarding[line] = self._guarding.get(line, 0) + 1
        if self._guarding[line] > 2 and _has_loop(site.code) and session.convertible(site.code):
            raise Again(converted(site.code))
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


def _native_values(native: object) -> dict[tuple[str, int, str], list[object]]:
    found: dict[tuple[str, int, str], list[Any]] = {}
    spans = Spans()
    for conversion in getattr(native, "conversions", ()):
        value = getattr(conversion, "value", None)
        if conversion.site is None or value is None:
            continue
        span = spans.of(conversion.site)
        what = {"_local_scalar_dense": "item"}.get(conversion.what, conversion.what)
        found.setdefault((span.file, span.line, what), []).append(value)
    return found
