"""One run of a program on fake tensors: what it is made of, and what of it is the same in every run.

    session.paths      the regions that are open, and what is known in each
    session.domain     what a value is: `Recorded` for a program that was recorded, `Open` for a script
    session.recorder   what is recorded, and the fake tensors
    session.heap       what the program can reach of Python's objects, and how it is put back
    session.assumed    what earlier runs have found, with which this one began
    session.reading    what Python hears of a tensor's memory, and of sizes that are free

Invariant: what has no form in a graph ends the run; nothing is recorded in its place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import thread_time
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from smelt._torch.seen.dispatch import unseen
from smelt._torch.seen.staged_fakes import names_of_fakes
from smelt.capture.dynamic.slots import SizeSlot
from smelt.capture.dynamic.trace import CaptureTrace
from smelt.capture.dynamic.values import is_sized, is_symbolic, number_of
from smelt.capture.recording.scopes import Scope
from smelt.capture.recording.spans import Site
from smelt.capture.recording.tensor_slots import Slot
from smelt.capture.staging.domain import Domain
from smelt.capture.staging.fakes.examples import Examples
from smelt.capture.staging.fakes.fake_tensors import FakeRecorder
from smelt.capture.staging.fakes.symbols import (
    DEAD,
    WORLDS,
    ScalarSlot,
    StagedObject,
    is_real,
    is_staged,
    slot_of,
    wrap,
)
from smelt.capture.staging.flow.assumptions import Assumptions, converted, forked, peeled
from smelt.capture.staging.flow.paths import Ended, Paths
from smelt.capture.staging.flow.stops import NO_FORM, PARTLY, TOO_LONG, Again, CannotStage, Exhausted
from smelt.capture.staging.gradients import Gradients
from smelt.capture.staging.objects.copies import Copies
from smelt.capture.staging.objects.heap import Change, Heap
from smelt.capture.staging.objects.unconverted_code import Watch, unwatched
from smelt.capture.staging.reading import Reading
from smelt.capture.staging.records import Listed, RegionRecords, Structured, plain_info
from smelt.capture.staging.warned import showing
from smelt.capture.structure.roots import Roots
from smelt.ir import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    STR,
    DictType,
    ListType,
    OptionalType,
    ScalarType,
    TensorType,
    TupleType,
    Type,
)

if TYPE_CHECKING:
    from smelt.capture.staging.flow.loops import Loop

_OF_FLOATS = frozenset(("py.truediv",))
"""Operators that give a float of whole numbers, too."""
_NUMBERS = (bool, int, float, complex)
_HOLDING = frozenset(("py.append", "py.setitem", "py.insert", "py.list", "py.tuple", "py.dict"))


@dataclass(slots=True)
class Budget:
    """What all runs of a program on fake tensors may take together.

    steps: operators and paths, a number that the machine's load does not change. until: of the thread's own time, for
    programs that do little else than compute in Python. asked: places whose containers nothing else was found to hold.
    """

    steps: int
    until: float
    asked: set[Any] = field(default_factory=set)

    def spend(self) -> bool:
        """Take one step; whether there was one left."""
        self.steps -= 1
        return self.steps >= 0 and thread_time() <= self.until


class Session:
    """The run of one thread.

    assumed: what earlier runs have found, and this one since. stages_growth: containers that grow on one path only
    become values of the graph. has_texts: the graph makes texts of sizes. native: the recorded run, if there was one.
    """

    def __init__(
        self, domain: Domain, convertible: Callable[[CodeType], bool], roots: Roots, scope: Scope,
        assumed: Assumptions, native: Any = None,
    ) -> None:  # fmt: skip
        names_of_fakes()
        self.domain = domain
        domain.session = self
        self.paths = Paths(self)
        self.recorder = FakeRecorder(roots, scope, self)
        self.reading = Reading(self, native)
        self.size_trace: CaptureTrace | None = None
        self.size_slots: dict[object, SizeSlot] = {}
        self.streams = (sys.stdout, sys.stderr)
        self.showing = showing()
        self.reruns, self.has_caught = native is not None and native.reruns, False
        self.stages_growth = self.has_texts = False
        self.resized = 0  # how often a staged container got another length
        self.write_only: Sequence[Any] = ()  # places outside that the native run wrote and did not read
        self.asks_natively = False  # whether a branch on every way asks what the recorded run has found
        self.assumed = assumed
        self.has_learnt = False  # whether this run found some of that itself
        self.cached: dict[object, tuple[object, object]] = {}  # what caches gave for sizes that are free
        # The branches before which dictionaries were staged.
        self.staged_at: list[object] = []
        self.rolled: set[object] = set()
        self.unrolled: dict[object, int] = {}  # how many operators the iterations of a loop came to, in all runs
        self.refused: list[BaseException] = []
        self.raised: list[BaseException] = []
        self.convertible = convertible
        self.keep: list[object] = []
        self.base_frame: Any = None
        self.raised_at: Site | None = None  # where the program was that an exception has just ended
        self.loops: list[Loop] = []  # those being staged, outermost first
        self.gradients = Gradients(native)
        self.stopped: BaseException | None = None
        self.watch: Watch | None = None
        self.budget: Budget | None = None
        self.questions: list[ScalarSlot] | None = None  # that operators ask, where answers to them may be staged ones
        self.copies = Copies(self)
        self.heap = Heap(self)

    @property
    def examples(self) -> Examples:
        """Examples of values that depend on data."""
        return Examples(self.paths.asked)

    def learn(self, more: Assumptions) -> None:
        """This run has found something itself, and goes on with it."""
        self.assumed |= more
        self.has_learnt = True

    def will_fork(self, key: object, *, grew: bool = False) -> None:
        """A branch that could not be merged is explored both ways from now on. grew: since a container grew in it."""
        self.learn(forked(key) | Assumptions(grew=frozenset((key,) if grew else ())))

    # --- stops -------------------------------------------------------------------------------------------------------

    def site(self) -> Site | None:
        """Where the program stands."""
        return self.raised_at or self.recorder._find_site(2)

    def cannot(self, what: str, why: str = NO_FORM) -> NoReturn:
        """End the staged run. Raises: CannotStage."""
        raise CannotStage(what, why, self.site())

    def spend(self, site: Site | None = None) -> None:
        """One step of the run is done, at a place. Raises: CannotStage where there have been too many."""
        if self.budget is not None and not self.budget.spend():
            why = "the program has too many paths, or paths that are too long"
            raise Exhausted(TOO_LONG, why, site or self.site())

    def unmerge(self, why: object) -> NoReturn:
        """Start again without merging at a place, because what was merged is not one value. Raises: Again."""
        self.domain.check_unmerge(why)
        kind, key = why if isinstance(why, tuple) and len(why) == 2 else ("", None)
        if kind == "fork":
            raise Again(forked(key))
        if kind == "join":
            raise Again(Assumptions(unjoined=frozenset((key,))))
        if kind == "loop" and self.assumed.peeled.get(key, 0) < 3:
            raise Again(peeled(key))
        self.cannot("a variable or tensor means one thing on one path and another on the other", "no graph holds both")

    def caught(self, op: str) -> None:
        """An operator that leaves nothing behind may raise where the program catches.

        Raises: CannotStage where no call is run again.
        """
        if not self.reruns:
            self.handled(op)
        self.has_caught = True

    def handled(self, op: str) -> NoReturn:
        """An operator may raise where the program catches. Raises: CannotStage."""
        self.cannot(f"{op} may raise", "the program handles exceptions there, which a graph does not")

    def note_refused(self, error: BaseException) -> None:
        """An error that types alone decided."""
        self.refused.append(error)

    def raising(self, error: Exception) -> Exception:
        """An error that the program itself raises, noted as such."""
        self.raised.append(error)
        return error

    def end(self) -> NoReturn:
        """The program never gets further on this path. Raises: Ended."""
        raise Ended

    def check_partly(self, change: Change) -> None:
        """A place outside is written on some ways only. Raises: CannotStage where what it held before is not known."""
        if any(place.is_at(change.container, change.key) for place in self.write_only):
            self.cannot(PARTLY, "it keeps its value from before the call on the others")

    def spread_names(self, table: StagedObject) -> NoReturn:
        """The names of arguments that only a run knows. Raises: Again where a branch made them so; CannotStage."""
        if self.staged_at and self.staged_at[-1] not in self.assumed.forked:
            raise Again(forked(self.staged_at[-1]))
        self.cannot("a call's keyword arguments are a dictionary with dynamic keys")

    def want_converted(self) -> None:
        """The function that runs now must be converted for the run to go on. Raises: Again where it can be."""
        site = self.site()
        if site is None:
            return
        if self.convertible(site.code):
            raise Again(converted(site.code))
        # Some functions of torch's can be, too.
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code is not site.code and frame is not self.base_frame:
            if self.convertible(frame.f_code):
                raise Again(converted(frame.f_code))
            frame = frame.f_back

    # --- what Python insists on --------------------------------------------------------------------------------------

    def truth(self, value: object) -> bool:
        """The truth of a staged value, for Python itself."""
        slot = slot_of(value)
        return self.decide(slot if slot.type == BOOL else slot_of(self.emit("py.bool", value)))

    def decide(self, slot: Slot) -> bool:
        """An answer to a question that depends on data; the other one is explored as well.

        Raises: Again where the function that asks can be converted; CannotStage where there are too many paths.
        """
        self.want_converted()
        return self.paths.fork(slot)

    def answer(self, slot: Any) -> bool:
        """What an operator that asks a question of data gives Python: any answer where `asked` takes the question."""
        if self.questions is None:
            return self.decide(slot)
        self.questions.append(slot)
        return True

    def asked(self, ask: Callable[[], object]) -> Any:
        """What a call of such an operator gives converted code: a staged answer, of which it makes what it likes."""
        before, self.questions = self.questions, []
        try:
            found = ask()
            return wrap(self.questions[0]) if self.questions else found
        finally:
            self.questions = before

    # --- values ------------------------------------------------------------------------------------------------------

    def emit(self, op: str, *args: object, **kwargs: object) -> Any:
        """Record an operator of Python's; the value it gives (a tuple of values where it gives several)."""
        return self.domain.emit(op, *args, **kwargs)

    def encode(self, value: object) -> Any:
        """A value as an argument of a record: a slot, or a literal. Raises: CannotStage."""
        return self.domain.encode(value)

    def value_of(self, type_: Type, examples: tuple[object, ...]) -> tuple[object, Slot]:
        """A new value of a type: what Python sees, and its slot."""
        return self.domain.value_of(type_, examples, False)

    @unwatched
    def tensor_of(
        self, type_: TensorType, like: torch.Tensor | None = None, other: torch.Tensor | None = None,
        numbers: tuple[int, ...] | None = None,
    ) -> tuple[torch.Tensor, Slot]:  # fmt: skip
        """A new fake tensor of a type, on which nothing is known but that; sizes of `like` in the program's world.

        other: what it may be besides `like`, on another way. numbers: its unknown sizes in each world.
        """
        with unseen():
            return self.domain.tensor_of(type_, like, other, numbers)

    def item(self, tensor: torch.Tensor) -> Any:
        """The element of a one-element tensor as a staged number."""
        return self.domain.item(tensor)

    def size(self, tensor: torch.Tensor, dim: Any, what: str = "size") -> Any:
        """A size (or stride) of a tensor: a plain number where types tell, else read when the graph runs."""
        with unseen():
            return self.domain.size(tensor, dim, what)

    def numel(self, tensor: torch.Tensor) -> Any:
        """The number of elements."""
        return self.domain.numel(tensor)

    def getitem(self, container: Any, key: Any) -> Any:
        """An element or a slice of a staged container."""
        return self.domain.getitem(container, key)

    def specialize(self, slot: ScalarSlot) -> Any:
        """The value that a slot has, which the graph then expects. Raises: CannotStage where none is known."""
        return self.domain.specialize(slot)

    def binary(self, op: str, a: object, b: object) -> object:
        """An operator between two operands of which one is staged."""
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            return NotImplemented
        simple = (*_NUMBERS, str, list, tuple, dict, type(None))
        if not all(is_staged(v) or isinstance(v, simple) for v in (a, b)):
            return NotImplemented
        if op in _OF_FLOATS and is_real(a) and is_real(b):
            a, b = self._as_float(a), self._as_float(b)
        if op == "py.pow" and self.domain.is_real_power(a, b):
            return self.emit("py.call", "math.pow", a, b)
        return self.emit(op, a, b)

    def _as_float(self, value: Any) -> Any:
        """A number that is a float or an int, as data tell (`max(1, x)`), as that float; others as they are."""
        picked = slot_of(value).picked if is_staged(value) else None
        if picked is None:
            return value
        op, values = picked
        return self.emit(op, *(self._as_float(v) if is_staged(v) else float(v) for v in values))

    def encoded(self, value: object) -> Any:
        """What `encode` gives for what every domain takes. Raises: CannotStage."""
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
        if isinstance(value, range):
            return slot_of(self.emit("py.call", "range", value.start, value.stop, value.step))
        return self.cannot(f"a {type(value).__qualname__} is used together with values that depend on data")

    def size_slot(self, value: object) -> object:
        """The slot of a size or number that has an expression; a literal where nothing is left of it."""
        number = number_of(value)
        if self.size_trace is None or not is_symbolic(number):
            return number
        key = (type(number), self.size_trace.expr(number))
        found = self.size_slots.get(key)
        if found is None:
            found = self.size_slots[key] = SizeSlot(self.size_trace, number)
        return found

    def container(self, value: Any) -> StagedObject:
        """A Python container as a staged one."""
        if isinstance(value, dict):
            parts = [part for item in value.items() for part in item]
            return self.emit("py.dict", *parts)
        return self.emit("py.list" if isinstance(value, list) else "py.tuple", *value)

    # --- recording ---------------------------------------------------------------------------------------------------

    def append(
        self,
        name: str,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        results: Sequence[object],
        site: Site | None = None,
    ) -> None:
        """Record an operator that no dispatcher shows."""
        recorder = self.recorder
        if name in _HOLDING and any(map(recorder.is_lazy, args)):
            self.cannot("a traced container receives a conjugate or negative view", "its type does not tell")
        recorder.records.append(
            (plain_info(name), list(args), dict(kwargs), tuple(results), site or self.site(), recorder.scope.path,
             recorder._modes_now())
        )  # fmt: skip

    def statement(self, op: str, *args: object, **kwargs: object) -> None:
        """Record an operator without a result."""
        self.emit(op, *args, **kwargs)

    def structured(
        self,
        op: str,
        args: Sequence[object],
        regions: Sequence[RegionRecords],
        results: Sequence[Slot],
        site: Site | None,
    ) -> None:
        """Record an operator with regions."""
        recorder = self.recorder
        recorder.records.append(
            Structured(op, args, regions, results, site, recorder.scope.path, recorder._modes_now())
        )

    def placeholder(self, value: object, records: list[Any], site: Site | None) -> object:
        """Any value of a type, recorded at the end of a list, where a type stands; a list or tuple; else the value."""
        if isinstance(value, Listed):
            saved, self.recorder.records = self.recorder.records, records
            found = ScalarSlot(value.type, (DEAD,) * WORLDS)
            self.append("py.list" if isinstance(value.type, ListType) else "py.tuple", value.items, {}, [found], site)
            self.recorder.records = saved
            return found
        if not isinstance(value, (TensorType, ScalarType, ListType, TupleType, DictType, OptionalType)):
            return value
        literals: dict[object, object] = {INT: 0, FLOAT: 0.0, BOOL: False, STR: "", COMPLEX: 0j}
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
            return self.domain.new_tensor(type_, site)

    def outer_families(self) -> set[int]:
        """The memory that tensors known outside the region lie in."""
        return {id(s.family) for s in self.recorder._slots.values() if s.ref() is not None}

    def inner_slot(self, tensor: torch.Tensor) -> Slot:
        """The slot of a tensor that a region left."""
        return self.recorder.slot_of(tensor)
