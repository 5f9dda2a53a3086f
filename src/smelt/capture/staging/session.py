"""One staged run: what records Python's operators, answers for values that Python insists on, and explores paths.

A *region* is a stretch of the program that is run as often as it takes: where Python insists on a truth value that
depends on data (`decide`), the region runs again with the other answer, and the outcomes become an `if` whose arms
hold what followed. The whole program is a region, so is each arm and each loop body.

Invariant: between two runs of a region nothing of the first is left: containers are restored, what was recorded inside
is known inside only.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import thread_time
from typing import Any

import torch

from smelt._torch.dispatch import unseen
from smelt.capture.dynamic.slots import SizeSlot
from smelt.capture.dynamic.trace import CaptureTrace
from smelt.capture.dynamic.values import is_sized, is_symbolic, number_of, own
from smelt.capture.recorder import Family, Slot, slot_type
from smelt.capture.spans import Site
from smelt.capture.staging import symbols
from smelt.capture.staging.heap import Change, Snapshot
from smelt.capture.staging.records import RegionRecords, Structured, plain_info
from smelt.capture.staging.shadows import ShadowRecorder
from smelt.capture.staging.stops import Again, CannotStage
from smelt.capture.staging.symbols import DEAD, WORLDS, ScalarSlot, StagedObject, is_staged, slot_of, wrap
from smelt.capture.staging.unify import unify
from smelt.capture.staging.watch import Watch, unwatched
from smelt.ir import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    STR,
    Device,
    DictType,
    ListType,
    OptionalType,
    ScalarType,
    TensorType,
    TupleType,
    Type,
    UnknownDim,
    Value,
)
from smelt.ops.convert import dtype_to_torch
from smelt.ops.python_ops import infer_python, python_op

MOST_PATHS = 64
_ITEM_TYPES: dict[str, Type] = {"bool": BOOL, "int": INT, "uint": INT, "float": FLOAT, "complex": COMPLEX}
_EXAMPLES: dict[str, tuple[Any, ...]] = {
    "bool": (True, False, True, False, True),
    "int": (2, 0, 1, 7, 1_000_003),
    "float": (1.5, 0.0, 1.0, 7.5, 1000003.5),
    "complex": (1.5 + 1j, 0j, 1 + 0j, 7.5 - 2j, 1000003j),
}
_NUMBERS = (bool, int, float, complex)
# What a function calls that, converted, leaves a size free where Python's own wants its value.
_ASKING = frozenset((
    "range", "len", "int", "float", "math", "sqrt", "ceil", "floor", "log", "log2", "enumerate", "zip", "exp",
    "tensor", "as_tensor", "divmod", "sum",
))  # fmt: skip
_STATEMENTS = ("py.raise", "py.assert", "py.print")


@dataclass
class Outcome:
    """What a region ends with: values, places of containers that changed, or an exception that nobody catches."""

    value: Any = None
    writes: Mapping[tuple[int, Any], Change] = field(default_factory=dict)
    is_raised: bool = False
    test: Any = None


class Ended(BaseException):
    """The rest of a region is never reached."""


@dataclass
class Region:
    """One run of a region: answers given so far, and the records between them."""

    prefix: tuple[bool, ...]
    taken: list[bool] = field(default_factory=list)
    segments: list[tuple[list[Any], Any, Site | None]] = field(default_factory=list)
    outcome: Outcome = field(default_factory=Outcome)
    known: dict[Slot, bool] = field(default_factory=dict)
    asked: dict[tuple[str, int, str], int] = field(default_factory=dict)


class Session:
    """The staged run of one thread."""

    def __init__(self, native: Any, convertible: Callable[[Any], bool], roots: Any, scope: Any) -> None:
        self.recorder = ShadowRecorder(roots, scope, self)
        self.size_trace: CaptureTrace | None = None
        self.size_slots: dict[Any, SizeSlot] = {}
        self.streams = (sys.stdout, sys.stderr)
        self.regions: list[Region] = []
        self.aliases: dict[Slot, Slot] = {}
        self.paths = 0
        self.forked: set[object] = set()
        self.peeled: dict[object, int] = {}
        self.whole: set[object] = set()
        self.rolled: set[object] = set()
        self.refused: list[BaseException] = []
        self.raised: list[BaseException] = []
        self.convertible = convertible
        self.keep: list[Any] = []
        self.heap_roots: list[Any] = []
        self.base_frame: Any = None
        self._hints = _native_values(native)
        self._asked: dict[tuple[str, int, str], int] = {}
        self._primes = itertools.count(1_000_003, 18)
        self.merge: Any = None
        self.is_catchable: Callable[[], bool] = lambda: True
        self.snapshots: list[Snapshot] = []
        self.stopped: BaseException | None = None
        self.negations: dict[Slot, Slot] = {}
        self.watch: Watch | None = None
        self.deadline: float | None = None

    # --- stops -------------------------------------------------------------------------------------------------------

    def site(self) -> Site | None:
        """Where the program stands."""
        return self.recorder._find_site(2)

    def cannot(self, what: str, why: str = "it has no form in a graph") -> Any:
        """End the staged run. Raises: CannotStage."""
        raise CannotStage(what, why, self.site())

    def check_time(self) -> None:
        """Raises: CannotStage where the run has had its time (of this thread, however busy the machine is)."""
        if self.deadline is not None and thread_time() > self.deadline:
            self.cannot("staging took too long", "the program has too many ways, or too long ones")

    def unmerge(self, why: object) -> None:
        """Start again without merging at a place, because what was merged is not one value. Raises: Again."""
        kind, key = why if isinstance(why, tuple) and len(why) == 2 else ("", None)
        if kind == "fork":
            raise Again(fork=key)
        if kind == "loop" and self.peeled.get(key, 0) < 3:
            raise Again(peel=key)
        self.cannot("a variable or tensor means one thing on one path and another on the other", "no graph holds both")

    def widened(self, before: Type, after: Type) -> Type | None:
        """The type of what a loop carries that is of two, where this run allows more than the staged one."""
        return None

    def note_refused(self, error: BaseException) -> None:
        """An error that types alone decided."""
        self.refused.append(error)

    # --- recording ---------------------------------------------------------------------------------------------------

    def append(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        results: Sequence[Any],
        site: Site | None = None,
    ) -> None:
        """Record an operator that no dispatcher shows."""
        recorder = self.recorder
        recorder.records.append(
            (plain_info(name), list(args), dict(kwargs), tuple(results), site or self.site(), recorder.scope.path,
             recorder._modes_now())
        )  # fmt: skip

    def encode(self, value: Any) -> Any:
        """A value as an argument of a record: a slot, or a literal. Raises: CannotStage."""
        if is_staged(value):
            return slot_of(value)
        if is_sized(value):
            return self.size_slot(value)
        if isinstance(value, torch.Tensor):
            slot = self.recorder.slot_of(value)
            if slot.kind == "unknown":
                self.recorder.unknown(slot)
                raise CannotStage("", "", None)
            return slot
        if value is None or type(value) in (bool, int, float, complex, str):
            return value
        if isinstance(value, (list, tuple, dict)) and type(value) in (list, tuple, dict, torch.Size):
            return slot_of(self.container(value))
        return self.cannot(f"a {type(value).__qualname__} is used together with values that depend on data")

    def size_slot(self, value: Any) -> Any:
        """The slot of a size or number that has an expression; a literal where nothing is left of it."""
        number = number_of(value)
        if self.size_trace is None or not is_symbolic(number):
            return number
        key = (type(number), self.size_trace.expr(number))
        found = self.size_slots.get(key)
        if found is None:
            found = self.size_slots[key] = SizeSlot(self.size_trace, number)
        return found

    def shown(self, sizes: Sequence[Any]) -> Any:
        """Sizes as torch tells them, for the program."""
        return sizes if self.size_trace is None else [own(size) for size in sizes]

    def want_free(self, value: Any) -> None:
        """A size is asked for as a plain number; where the function that asks may do without it is converted.

        Raises: Again.
        """
        site = self.site()
        if site is not None and not _ASKING.isdisjoint(site.code.co_names) and self.convertible(site.code):
            raise Again(convert=site.code)

    def container(self, value: Any) -> StagedObject:
        """A Python container as a staged one."""
        if isinstance(value, dict):
            parts = [part for item in value.items() for part in item]
            return self.emit("py.dict", *parts)
        return self.emit("py.list" if isinstance(value, list) else "py.tuple", *value)

    def emit(self, op: str, *args: Any, **kwargs: Any) -> Any:
        """Record an operator of Python's; the value it gives (a tuple of values where it gives several)."""
        operands = [self.encode(arg) for arg in args]
        named = {k: self.encode(v) for k, v in kwargs.items()}
        typed = [_typed(o) for o in operands]
        types = infer_python(op, typed)
        found = python_op(op)
        assert found is not None
        if op not in _STATEMENTS and found.throws(typed) and self.is_catchable():
            self.cannot(f"{op} may raise", "the program handles exceptions there, which a graph does not")
        results: list[Any] = []
        slots: list[Slot] = []
        worlds = [_in_world(found.run, operands, named, w) for w in range(WORLDS)] if len(types) == 1 else []
        is_native = all(getattr(o, "is_native", True) for o in operands if isinstance(o, ScalarSlot))
        for i, type_ in enumerate(types):
            examples = tuple(worlds) if worlds else (DEAD,) * WORLDS
            if len(types) > 1:
                pairs = [_in_world(found.run, operands, named, w) for w in range(WORLDS)]
                examples = tuple(p if p is DEAD else p[i] for p in pairs)
            value, slot = self.value_of(type_, examples, is_native)
            results.append(value)
            slots.append(slot)
        self.append(op, operands, named, slots)
        if op == "py.not_" and isinstance(operands[0], Slot):
            self.negations[slots[0]] = operands[0]
        return results[0] if len(results) == 1 else tuple(results)

    def value_of(self, type_: Type, examples: tuple[Any, ...], is_native: bool = False) -> tuple[Any, Slot]:
        """A new value of a type: what Python sees, and its slot."""
        if isinstance(type_, TensorType):
            like = examples[0].ref() if isinstance(examples[0], Slot) else None
            return self.tensor_of(type_, like)
        slot = ScalarSlot(type_, examples, is_native)
        return (None if type_ == NONE else wrap(slot)), slot

    @unwatched
    def tensor_of(self, type_: TensorType, like: torch.Tensor | None = None) -> tuple[torch.Tensor, Slot]:
        """A new shadow of a type, on which nothing is known but that; sizes of `like` in the program's world."""
        with unseen():
            return self._tensor_of(type_, like)

    def _tensor_of(self, type_: TensorType, like: torch.Tensor | None) -> tuple[torch.Tensor, Slot]:
        if type_.shape is None or type_.layout != "strided":
            self.cannot(f"a tensor {type_} has no shadow")
        recorder = self.recorder
        worlds = []
        sizes_like = None if like is None or like.dim() != len(type_.shape or ()) else tuple(like.shape)
        strides_like = None if sizes_like is None else like.stride()  # type: ignore[union-attr]
        is_varied = any(isinstance(d, UnknownDim) for d in (*type_.shape, *(type_.strides or ())))  # type: ignore[misc]
        for world in range(WORLDS if is_varied else 1):
            number = (5, 0, 1, 7, next(self._primes))[world]
            sizes = [
                d if isinstance(d, int) else sizes_like[i] if world == 0 and sizes_like else number
                for i, d in enumerate(type_.shape or ())
            ]
            strides = _strides(type_, sizes, strides_like if world == 0 else None)
            worlds.append(recorder.shadows.fresh(dtype_to_torch(type_.dtype), sizes, strides, type_.device))
        slot = Slot(worlds[0], _tainted(), "result")
        recorder._slots[id(worlds[0])] = slot
        self.keep.append(worlds[0])
        if is_varied:
            recorder.vary(slot, worlds)
            slot.type = type_
            recorder.varied.setdefault(slot, tuple(worlds))
        return worlds[0], slot

    def binary(self, op: str, a: Any, b: Any) -> Any:
        """An operator between two operands of which one is staged."""
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            return NotImplemented
        simple = (*_NUMBERS, str, list, tuple, dict, type(None))
        if not all(is_staged(v) or isinstance(v, simple) for v in (a, b)):
            return NotImplemented
        return self.emit(op, a, b)

    def getitem(self, container: Any, key: Any) -> Any:
        """An element or a slice of a staged container."""
        if isinstance(key, slice):
            return self.emit("py.slice", container, key.start, key.stop, key.step)
        return self.emit("py.getitem", container, key)

    # --- values of tensors -------------------------------------------------------------------------------------------

    def item(self, tensor: torch.Tensor) -> Any:
        """The element of a one-element tensor as a staged number."""
        slot = self.recorder.slot_of(tensor)
        type_ = slot_type(slot)
        kind = type_.dtype.kind
        if type_.is_static and type_.numel != 1:
            self.cannot(f"the value of a tensor {type_} was asked for", "it has not exactly one element")
        examples = _EXAMPLES["int" if kind == "uint" else kind]
        known = self.known_value(tensor)
        if known is not None:
            return known
        native = self._hint("item")
        is_native = native is not None and type(native) is type(examples[0])
        if is_native:
            examples = (native, *examples[1:])
        found = ScalarSlot(_ITEM_TYPES[kind], examples, is_native)
        self.append("aten.item.default", [slot], {}, [found])
        return wrap(found)

    def known_value(self, tensor: torch.Tensor) -> Any:
        """The element of a tensor that follows from sizes alone, which the graph expects; None for any other."""
        if self.size_trace is None or len(self.regions) > 1:
            return None
        slot = self.recorder.slot_of(tensor)
        value = self.recorder.known.of(slot)
        if value is None or value.numel() != 1:
            return None
        with unseen():
            found = value.item()
        read = ScalarSlot(_ITEM_TYPES[slot_type(slot).dtype.kind], (found,) * WORLDS, True)
        self.append("aten.item.default", [slot], {}, [read])
        self.append("expect", [read, found], {}, [])
        return found

    def knows(self, slot: Slot) -> bool:
        """Whether a tensor follows from sizes alone, and Python may read it."""
        return self.size_trace is not None and len(self.regions) == 1 and self.recorder.known.of(slot) is not None

    def scalar_call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], kind: type) -> ScalarSlot:
        """Record an operator of torch's that gives a number."""
        type_, examples = {bool: (BOOL, _EXAMPLES["bool"]), int: (INT, _EXAMPLES["int"])}[kind]
        found = ScalarSlot(type_, examples)
        operands = [self.encode(a) for a in args]
        self.append(name, operands, {k: self.encode(v) for k, v in kwargs.items()}, [found])
        return found

    def size(self, tensor: torch.Tensor, dim: int, what: str = "size") -> Any:
        """A size (or stride) of a tensor: a plain number where types tell, else read when the graph runs."""
        with unseen():
            return self._size(tensor, dim, what)

    def _size(self, tensor: torch.Tensor, dim: int, what: str) -> Any:
        slot = self.recorder.slot_of(tensor)
        type_ = slot_type(slot)
        worlds = self.recorder.varied.get(slot)
        dim = dim + tensor.dim() if dim < 0 else dim
        known = type_.shape[dim] if what == "size" else (type_.strides[dim] if type_.strides else None)
        if worlds is None or not isinstance(known, UnknownDim):
            return own((tensor.shape if what == "size" else tensor.stride())[dim])
        examples = tuple(t if t is DEAD else (tuple(t.shape) if what == "size" else t.stride())[dim] for t in worlds)
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
            found = ScalarSlot(INT, tuple(t if t is DEAD else t.numel() for t in worlds))
        self.append("aten.sym_numel.default", [slot], {}, [found])
        return wrap(found)

    def fresh_numbers(self, what: str) -> tuple[int, ...]:
        """A number that depends on data, in each world."""
        native = self._hint(what)
        first = native[0] if isinstance(native, (list, tuple)) and native and isinstance(native[0], int) else 5
        return (first, 0, 1, 7, next(self._primes))

    def _hint(self, what: str) -> Any:
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

    # --- what Python insists on --------------------------------------------------------------------------------------

    def truth(self, value: Any) -> bool:
        """The truth of a staged value, for Python itself."""
        slot = slot_of(value)
        return self.decide(slot if slot.type == BOOL else slot_of(self.emit("py.bool", value)))

    def decide(self, slot: Slot) -> bool:
        """An answer to a question that depends on data; the other one is explored as well.

        Raises: Again where the function that asks can be converted; CannotStage where there are too many paths.
        """
        self.want_converted()
        return self.fork(slot)

    def fork(self, slot: Slot, site: Site | None = None) -> bool:
        """Answer a question; what follows in the region is explored for both answers."""
        region = self.regions[-1]
        known = self.known(slot)
        if known is not None:
            return known
        number = len(region.taken)
        if number >= MOST_PATHS:
            self.cannot("the program has too many paths", f"more than {MOST_PATHS} continuations")
        answer = region.prefix[number] if number < len(region.prefix) else True
        region.segments.append((self.recorder.records, slot, site or self.site()))
        region.taken.append(answer)
        region.known[slot] = answer
        self.recorder.records = []
        return answer

    def known(self, slot: Slot) -> bool | None:
        """The answer that a question has already had on this path; None where it had none, or data changed since."""
        if slot.family.written:
            return None
        for region in reversed(self.regions):
            if slot in region.known:
                return region.known[slot]
        inner = self.negations.get(slot)
        answer = None if inner is None else self.known(inner)
        return None if answer is None else not answer

    def specialize(self, slot: ScalarSlot) -> Any:
        """The value that the native run had: the graph then holds for this value only. Raises: CannotStage."""
        self.want_converted()
        if not slot.is_native or slot.type not in (INT, FLOAT, BOOL) or slot.worlds[0] is DEAD:
            self.cannot(f"Python needs the value of a staged {slot.type}", "code that is not converted asks for it")
        if len(self.regions) > 1:
            self.cannot(f"Python needs the value of a staged {slot.type}", "on one path only")
        value = slot.worlds[0]
        self.append("expect", [slot, value], {}, [])
        return value

    # --- regions -----------------------------------------------------------------------------------------------------

    def trace(
        self,
        thunk: Callable[[], Outcome],
        names: Sequence[str] = (),
        why: object = None,
        known: Mapping[Slot, bool] | None = None,
    ) -> tuple[list[Any], Outcome]:
        """Run a region along all its paths: its records, with the paths merged, and the merged outcome.

        known: questions that have an answer throughout the region.
        """
        given = dict(known or {})
        return self._combine(self._explore(thunk, (), given), 0, (thunk, names, why, given))

    def _explore(self, thunk: Callable[[], Outcome], prefix: tuple[bool, ...], known: dict[Slot, bool]) -> Region:
        self.paths += 1
        if self.paths > MOST_PATHS * 4:
            self.cannot("the program has too many paths", f"more than {MOST_PATHS} continuations")
        self.check_time()
        region = Region(prefix, known=dict(known), asked=dict(self._asked))
        saved = self.recorder.enter()
        self.regions.append(region)
        try:
            try:
                region.outcome = thunk()
            except Ended:
                region.outcome = Outcome(is_raised=True)
            region.segments.append((self.recorder.records, None, None))
        finally:
            self.regions.pop()
            self.recorder.leave(saved)
        return region

    def _combine(self, region: Region, number: int, part: Any) -> tuple[list[Any], Outcome]:
        thunk, names, why, known = part
        records, slot, site = region.segments[number]
        if slot is None:
            return list(records), region.outcome
        mine, my_outcome = self._combine(region, number + 1, part)
        saved_asked, self._asked = self._asked, dict(region.asked)
        other = self._explore(thunk, (*region.taken[:number], not region.taken[number]), known)
        self._asked = saved_asked
        for ours, theirs in zip(region.segments[: number + 1], other.segments[: number + 1], strict=True):
            unify(ours, theirs, self.aliases, self.recorder.constants)
        theirs_, their_outcome = self._combine(other, number + 1, part)
        arms = [(mine, my_outcome), (theirs_, their_outcome)]
        if not region.taken[number]:
            arms.reverse()
        saved = self.recorder.enter()
        try:
            merged = self.branch(slot, arms, site, why, names)
            tail = self.recorder.records
        finally:
            self.recorder.leave(saved)
        return [*records, *tail], merged

    def branch(
        self,
        slot: Slot,
        arms: Sequence[tuple[list[Any], Outcome]],
        site: Site | None,
        why: object = None,
        names: Sequence[str] = (),
    ) -> Outcome:
        """Record an `if` over two traced arms; the outcome that holds after either. Raises: CannotMerge."""
        (then, then_out), (other, other_out) = arms
        merger = self.merge(self, site, why, names)
        outcome = merger.outcomes(then_out, other_out)
        for arm, records, yields in ((then_out, then, merger.left), (other_out, other, merger.right)):
            if arm.is_raised:
                # Never reached; a value of the type stands there all the same.
                yields[:] = [slot_type(r) for r in merger.results]
            yields[:] = [self.placeholder(y, records, site) for y in yields]
        self.structured(
            "if",
            [slot],
            [
                RegionRecords((), then, merger.left),
                RegionRecords((), other, merger.right),
            ],
            merger.results,
            site,
        )
        return outcome

    def structured(
        self, op: str, args: Sequence[Any], regions: Sequence[RegionRecords], results: Sequence[Slot], site: Site | None
    ) -> None:
        """Record an operator with regions."""
        recorder = self.recorder
        recorder.records.append(
            Structured(op, args, regions, results, site, recorder.scope.path, recorder._modes_now())
        )

    def placeholder(self, value: Any, records: list[Any], site: Site | None) -> Any:
        """Any value of a type, recorded at the end of a list, where a type stands; else the value itself."""
        if not isinstance(value, (TensorType, ScalarType, ListType, TupleType, DictType, OptionalType)):
            return value
        literals: dict[Any, Any] = {INT: 0, FLOAT: 0.0, BOOL: False, STR: "", COMPLEX: 0j}
        if value in literals:
            return literals[value]
        saved, self.recorder.records = self.recorder.records, records
        try:
            if isinstance(value, TensorType):
                return self._some_tensor(value, site)
            if isinstance(value, (ListType, DictType)):
                found = ScalarSlot(value, ([],) * WORLDS if isinstance(value, ListType) else ({},) * WORLDS)
                self.append("py.list" if isinstance(value, ListType) else "py.dict", [], {}, [found], site)
                return found
        finally:
            self.recorder.records = saved
        return None

    @unwatched
    def _some_tensor(self, type_: TensorType, site: Site | None) -> Slot:
        with unseen():
            return self._new_tensor(type_, site)

    def _new_tensor(self, type_: TensorType, site: Site | None) -> Slot:
        sizes = [d if isinstance(d, int) else 0 for d in type_.shape or ()]
        strides = [d if isinstance(d, int) else 1 for d in type_.strides or _strides(type_, sizes, None)]
        tensor = self.recorder.shadows.fresh(dtype_to_torch(type_.dtype), sizes, strides, type_.device)
        slot = Slot(tensor, _tainted(), "result")
        slot.type = TensorType.of(type_.dtype, sizes, strides, type_.device)
        self.keep.append(tensor)
        kwargs: dict[str, Any] = {"dtype": type_.dtype, "device": Device(type_.device)}
        if type_.strides is None:
            self.append("aten.zeros.default", [sizes], kwargs, [slot], site)
        else:
            self.append("aten.empty_strided.default", [sizes, strides], kwargs, [slot], site)
        return slot

    def is_outer(self, container: Any) -> bool:
        """Whether a container was there before the innermost region that is being explored."""
        return bool(self.snapshots) and self.snapshots[-1].holds(container)

    def outer_families(self) -> set[int]:
        """The memory that tensors known outside the region lie in."""
        return {id(s.family) for s in self.recorder._slots.values() if s.ref() is not None}

    def inner_slot(self, tensor: torch.Tensor) -> Slot:
        """The slot of a tensor that a region left."""
        return self.recorder.slot_of(tensor)

    def want_converted(self) -> None:
        """The function that runs now must be converted for the run to go on. Raises: Again where it can be."""
        site = self.site()
        if site is not None and self.convertible(site.code):
            raise Again(convert=site.code)

    def end(self) -> Any:
        """The program never gets further on this path. Raises: Ended."""
        raise Ended

    def statement(self, op: str, *args: Any, **kwargs: Any) -> None:
        """Record an operator without a result."""
        self.emit(op, *args, **kwargs)

    def held_by_callers(self, value: Any) -> bool:
        """Whether a variable of a function that runs now holds a value."""
        frame = self.site_frame()
        while frame is not None and frame is not self.base_frame:
            is_ours = frame.f_globals.get("__name__", "").startswith("smelt.capture")
            if not is_ours and any(held is value for held in frame.f_locals.values()):
                return True
            frame = frame.f_back
        return False

    @unwatched
    def snapshot(self, without: Sequence[Any] = (), more: Sequence[Any] = ()) -> Snapshot:
        """Copies of all containers that the program can reach from where it stands."""
        return Snapshot([*self.heap_roots, *self._locals(), *more], [*without, self])

    def _locals(self) -> list[Any]:
        found: list[Any] = []
        frame = self.site_frame()
        while frame is not None and frame is not self.base_frame:
            if not frame.f_globals.get("__name__", "").startswith("smelt.capture"):
                found.extend(v for v in frame.f_locals.values())
            frame = frame.f_back
        return found

    def site_frame(self) -> Any:
        """The frame that runs now."""
        return symbols.sys_frame(1)

    def resolved(self, slot: Slot) -> Slot:
        """The slot that stands for a slot: runs of one region repeat what came before they part."""
        while slot in self.aliases:
            slot = self.aliases[slot]
        return slot


def _tainted() -> Any:
    return Family(True)


def _strides(type_: TensorType, sizes: Sequence[int], like: Sequence[int] | None) -> Sequence[int]:
    if like is not None and type_.strides is not None:
        return [d if isinstance(d, int) else like[i] for i, d in enumerate(type_.strides)]
    steps: list[int] = []
    step = 1
    for size in reversed(sizes):
        steps.append(step)
        step *= max(size, 1)
    steps.reverse()
    if type_.strides is not None:
        return [d if isinstance(d, int) else steps[i] for i, d in enumerate(type_.strides)]
    return steps


def _typed(operand: Any) -> Any:
    return Value("", slot_type(operand), None) if isinstance(operand, Slot) else operand  # type: ignore[arg-type]


def _in_world(run: Any, operands: Sequence[Any], named: Mapping[str, Any], world: int) -> Any:
    values = []
    for operand in operands:
        value = operand.worlds[world] if isinstance(operand, ScalarSlot) else operand
        if isinstance(operand, SizeSlot):
            value = operand.in_worlds(WORLDS)[world]
        if value is DEAD:
            return DEAD
        values.append(value)
    try:
        return run(*values, **named)
    except Exception:
        # Examples need not fit together.
        return DEAD


def _native_values(native: Any) -> dict[tuple[str, int, str], list[Any]]:
    found: dict[tuple[str, int, str], list[Any]] = {}
    for conversion in getattr(native, "conversions", ()):
        value = getattr(conversion, "value", None)
        if conversion.site is None or value is None:
            continue
        span = conversion.site.span
        what = {"_local_scalar_dense": "item"}.get(conversion.what, conversion.what)
        found.setdefault((span.file, span.line, what), []).append(value)
    return found
