"""The records of one staged run: operators of Python's, values that they give, and fake tensors of what they stand for.

Invariant: what has no form in a graph ends the run; nothing is recorded in its place.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import thread_time
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch

from smelt._torch.seen.dispatch import unseen
from smelt._torch.seen.staged_fakes import names_of_fakes
from smelt.capture.convert import runtime
from smelt.capture.dynamic.arithmetic import at_hand
from smelt.capture.dynamic.slots import SizeSlot
from smelt.capture.dynamic.trace import CaptureTrace
from smelt.capture.dynamic.values import is_sized, is_symbolic, number_of, sized
from smelt.capture.recording.scopes import Scope
from smelt.capture.recording.spans import Site, Spans
from smelt.capture.recording.tensor_slots import Family, Slot, slot_type
from smelt.capture.staging.fakes.examples import Examples
from smelt.capture.staging.fakes.fake_tensors import FakeRecorder
from smelt.capture.staging.fakes.symbols import DEAD, WORLDS, ScalarSlot, StagedObject, is_staged, slot_of, wrap
from smelt.capture.staging.flow.data_slices import affine_of
from smelt.capture.staging.flow.stops import NO_FORM, TOO_LONG, Again, CannotStage, Exhausted
from smelt.capture.staging.gradients import Gradients
from smelt.capture.staging.objects.changed_since import Settled
from smelt.capture.staging.objects.copies import Copies
from smelt.capture.staging.objects.heap import Snapshot
from smelt.capture.staging.objects.unconverted_code import Watch, unwatched
from smelt.capture.staging.records import plain_info
from smelt.capture.staging.texts import text_of
from smelt.capture.staging.warned import showing
from smelt.capture.structure.roots import Roots
from smelt.ir import (
    BOOL,
    FLOAT,
    INT,
    NONE,
    DictType,
    ListType,
    TensorType,
    TupleType,
    Type,
    UnknownDim,
    Value,
    contiguous_strides,
)
from smelt.ops.convert import dtype_to_torch
from smelt.ops.python.python_draws import put_back_after
from smelt.ops.python.python_ops import infer_python, python_op

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session

_NUMBERS = (bool, int, float, complex)
_HOLDING = frozenset(("py.append", "py.setitem", "py.insert", "py.list", "py.tuple", "py.dict"))
_STATEMENTS = ("py.raise", "py.assert", "py.print", "py.warn")
_MOST_BITS, _MOST_FACTORS = 1 << 16, 1 << 10


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


class Recording:
    """What records one staged run. stages_growth: containers that grow on one path only become values of the graph.

    fixes_texts: a size or number has one value where a text is made of it. has_texts: the graph makes some.
    """

    stages_growth = False
    fixes_texts = has_texts = False
    resized = 0  # how often a staged container got another length

    def __init__(self, native: Any, convertible: Callable[[CodeType], bool], roots: Roots, scope: Scope) -> None:
        names_of_fakes()
        self.recorder = FakeRecorder(roots, scope, self._session)
        self.size_trace: CaptureTrace | None = None
        self.size_slots: dict[object, SizeSlot] = {}
        self.streams = (sys.stdout, sys.stderr)
        self.showing = showing()
        self.reruns, self.has_caught = native is not None and native.reruns, False
        self.regions: list[Any] = []
        self.aliases: dict[Slot, Slot] = {}
        self.paths = 0
        self.once = (0, 0)  # steps and regions of merging what could not be merged
        self.forked: set[object] = set()
        self.write_only: Sequence[Any] = ()  # places outside that the native run wrote and did not read
        self.grew: set[object] = set()  # those of them in which a container grew
        self.asks_natively = False  # whether a branch on every way asks what the recorded run has found
        self.learnt = False  # whether this run found some of these itself
        self.peeled: dict[object, int] = {}
        self.whole: set[object] = set()
        self.trials: frozenset[str] = frozenset()
        self.cached: dict[object, tuple[object, object]] = {}  # what caches gave for sizes that are free
        # The branches before which dictionaries were staged.
        self.staged_at: list[object] = []
        self.rolled: set[object] = set()
        self.unrolled: dict[object, int] = {}  # how many operators the iterations of a loop came to, in all runs
        self.refused: list[BaseException] = []
        self.raised: list[BaseException] = []
        # Why, and of which two, a value of a branch is.
        self.sides_of: dict[Slot, tuple[object, object, object]] = {}
        # The same of what a loop carries (what it begins with, and what a turn gives), and of elements of containers.
        self.turns_of: dict[Slot, tuple[object, ...]] = {}
        self.told_apart: list[tuple[Slot, Slot]] = []  # tensors that a program was told to be two
        self.convertible = convertible
        self.keep: list[object] = []
        self.heap_roots: list[object] = []
        self.callers: Mapping[int, int] = {}  # the arguments' objects, by id
        # What was reachable from there when it was first looked at.
        self._settled: Settled | None = None
        self.base_frame: Any = None
        self._hints = _native_values(native)
        # How often a value was asked for, by the place; kept for each way.
        self._asked: dict[tuple[str, int, str], int] = {}
        self._guarding: dict[tuple[CodeType, int], int] = {}  # how often a line asked how large a size is
        self.merge: Any = None
        self.raised_at: Site | None = None  # where the program was that an exception has just ended
        self.is_catchable: Callable[[], bool] = lambda: True
        self.snapshots: list[Snapshot] = []
        # What there was before each branch and loop that runs, and what their variables held.
        self.befores: list[tuple[Snapshot, tuple[object, ...]]] = []
        self.loops: list[Any] = []  # those being staged, outermost first
        self.gradients = Gradients(native)
        self.stopped: BaseException | None = None
        self.negations: dict[Slot, Slot] = {}
        self.watch: Watch | None = None
        self.budget: Budget | None = None
        self.questions: list[ScalarSlot] | None = None  # that operators ask, where answers to them may be staged ones
        self.gone_over: list[
            tuple[object, list[list[object]]]
        ] = []  # loops that Python unrolls, and lists they go over
        self.picked: dict[int, tuple[Any, Any, object]] = {}  # containers of which there may be copies, by id
        self.copies = Copies(self._session)

    @property
    def examples(self) -> Examples:
        """Examples of values that depend on data."""
        return Examples(self._asked)

    def will_fork(self, key: object) -> None:
        """A branch that could not be merged is explored both ways from now on."""
        self.forked.add(key)
        self.learnt = True

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
        kind, key = why if isinstance(why, tuple) and len(why) == 2 else ("", None)
        if kind == "fork":
            raise Again(fork=key)
        if kind == "join":
            raise Again(unjoin=key)
        if kind == "loop" and self.peeled.get(key, 0) < 3:
            raise Again(peel=key)
        self.cannot("a variable or tensor means one thing on one path and another on the other", "no graph holds both")

    def widened(self, before: Type, after: Type) -> Type | None:
        """The type of what a loop carries that is of two, where this run allows more than the staged one."""
        return None

    def opened(self, items: tuple[object, ...], type_: ListType) -> object:
        """A tuple as one of any length, where this run has such."""
        return self.cannot("a tuple gets longer in a loop")

    def is_number(self, operand: object) -> bool:
        """Whether an operand of any kind is a number for sure, where this run allows any kind."""
        return False

    @property
    def _session(self) -> Session:
        """Itself: whatever records is a session."""
        return cast("Session", self)

    def taken_apart(self, container: object) -> object:
        """Code that is not converted iterates over a staged container. Raises: CannotStage."""
        return self.cannot("code that is not converted unpacks a traced container")

    def printed(self, value: object) -> object:
        """What `print` shows of a value that is none of the graph's."""
        return text_of(self._session, runtime.current(), value, "str")

    def left_by(self, values: tuple[object, ...], before: Sequence[object]) -> tuple[object, ...]:
        """What the variables of an arm hold at its end, as far as the run knows it there. before: what they held."""
        return values

    def as_in_program(self, value: object) -> object:
        """A value of the graph with the class that it has in the program."""
        return value

    def is_older(self, container: object) -> bool:
        """Whether a dictionary was there before a branch or loop that runs: staged, it is one value before that."""
        return type(container) is dict and any(
            snapshot.holds(container) or any(value is container for value in values)
            for snapshot, values in self.befores
        )

    def listed(self, items: object) -> Any:
        """What a staged list can take in of items that are no list."""
        return items

    def check_change(self, container: object) -> None:
        """A container is going to be changed. Raises: CannotStage where others would have to see that."""
        self.copies.check_change(container)

    def caught(self, op: str) -> None:
        """The same of an operator that leaves nothing behind. Raises: CannotStage where no call is run again."""
        if not self.reruns:
            self.handled(op)
        self.has_caught = True

    def handled(self, op: str) -> Any:
        """An operator may raise where the program catches. Raises: CannotStage."""
        self.cannot(f"{op} may raise", "the program handles exceptions there, which a graph does not")

    def note_held(self, items: Sequence[object]) -> None:
        """Values are put into a staged container. Raises: CannotStage."""
        self.copies.note(items)

    def note_merged(self, parts: Sequence[Sequence[Any]], results: Sequence[Slot]) -> None:
        """Values become those of an `if` or a loop."""
        self.copies.note_merged(parts, results)

    def note_refused(self, error: BaseException) -> None:
        """An error that types alone decided."""
        self.refused.append(error)

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

    def encode(self, value: object) -> Any:
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

    def spread_names(self, table: StagedObject) -> NoReturn:
        """The names of arguments that only a run knows. Raises: Again where a branch made them so; CannotStage."""
        if self.staged_at and self.staged_at[-1] not in self.forked:
            raise Again(fork=self.staged_at[-1])
        self.cannot("a call's keyword arguments are a dictionary with dynamic keys")

    def container(self, value: Any) -> StagedObject:
        """A Python container as a staged one."""
        if isinstance(value, dict):
            parts = [part for item in value.items() for part in item]
            return self.emit("py.dict", *parts)
        return self.emit("py.list" if isinstance(value, list) else "py.tuple", *value)

    @unwatched
    def emit(self, op: str, *args: object, **kwargs: object) -> Any:
        """Record an operator of Python's; the value it gives (a tuple of values where it gives several)."""
        self.copies.note_operands(op, args)
        operands = [self.encode(arg) for arg in args]
        named = {k: self.encode(v) for k, v in kwargs.items()}
        typed = [_typed(o) for o in operands]
        types = infer_python(op, typed)
        found = python_op(op)
        assert found is not None
        if op not in _STATEMENTS and found.throws(typed) and self.is_catchable():
            self.handled(op)
        results: list[object] = []
        slots: list[Slot] = []
        with put_back_after() if found.rng else contextlib.nullcontext():
            worlds = [_in_world(op, found.run, operands, named, w) for w in range(WORLDS)] if len(types) == 1 else []
        of_tensors = any(isinstance(o, Slot) and _is_tensor(o) for o in operands)
        if worlds and types[0] in (BOOL, INT, FLOAT) and of_tensors:
            worlds = list(self.examples.of(types[0]))  # a tensor has no elements here
        is_native = not (found.rng or of_tensors) and all(o.is_native for o in operands if isinstance(o, ScalarSlot))
        for i, type_ in enumerate(types):
            examples = tuple(worlds) if worlds else (DEAD,) * WORLDS
            if len(types) > 1:
                pairs = [_in_world(op, found.run, operands, named, w) for w in range(WORLDS)]
                examples = tuple(p if p is DEAD else p[i] for p in pairs)
            value, slot = self.value_of(type_, examples, is_native)
            results.append(value)
            slots.append(slot)
            if isinstance(type_, (TensorType, TupleType, ListType, DictType)):
                self.turns_of[slot] = (("element", op), *operands)
        self.copies.note_results(op, operands, slots)
        if len(slots) == 1 and isinstance(slots[0], ScalarSlot):
            slots[0].affine = affine_of(op, operands)
        self.append(op, operands, named, slots)
        if op == "py.not_" and isinstance(operands[0], Slot):
            self.negations[slots[0]] = operands[0]
        return results[0] if len(results) == 1 else tuple(results)

    def value_of(self, type_: Type, examples: tuple[object, ...], is_native: bool = False) -> tuple[object, Slot]:
        """A new value of a type: what Python sees, and its slot."""
        if isinstance(type_, TensorType):
            like = examples[0].ref() if isinstance(examples[0], Slot) else None
            return self.tensor_of(type_, like)
        slot = ScalarSlot(type_, examples, is_native)
        return (None if type_ == NONE else wrap(slot)), slot

    @unwatched
    def tensor_of(
        self, type_: TensorType, like: torch.Tensor | None = None, other: torch.Tensor | None = None,
        numbers: tuple[int, ...] | None = None,
    ) -> tuple[torch.Tensor, Slot]:  # fmt: skip
        """A new fake tensor of a type, on which nothing is known but that; sizes of `like` in the program's world.

        other: what it may be besides `like`, on another way. numbers: its unknown sizes in each world.
        """
        with unseen():
            return self._tensor_of(type_, like, other, numbers)

    def _tensor_of(
        self, type_: TensorType, like: torch.Tensor | None, other: torch.Tensor | None,
        numbers: tuple[int, ...] | None,
    ) -> tuple[torch.Tensor, Slot]:  # fmt: skip
        if type_.shape is None or type_.layout != "strided":
            self.cannot(f"a tensor {type_} has no fake tensor")
        recorder = self.recorder
        worlds = []
        sizes_like = None if like is None or like.dim() != len(type_.shape or ()) else tuple(like.shape)
        strides_like = None if sizes_like is None else like.stride()  # type: ignore[union-attr]
        is_varied = any(isinstance(d, UnknownDim) for d in (*type_.shape, *(type_.strides or ())))
        if numbers is None or not is_varied:
            numbers = self.examples.ints(5) if is_varied else (5,)
        for world in range(WORLDS if is_varied else 1):
            number = numbers[world]
            sizes = [
                d
                if isinstance(d, int)
                else number
                if not sizes_like or (world and isinstance(d, UnknownDim))
                else self._as_example(sizes_like[i])
                if isinstance(d, UnknownDim)
                else sizes_like[i]
                for i, d in enumerate(type_.shape or ())
            ]
            lies = strides_like if world == 0 else self._lies_in(type_, (like, other), world)
            strides = strides_of(type_, sizes, lies, world)
            worlds.append(recorder.fakes.fresh(dtype_to_torch(type_.dtype), sizes, strides, type_.device))
        slot = Slot(worlds[0], tainted(), "result")
        recorder._slots[id(worlds[0])] = slot
        self.keep.append(worlds[0])
        if is_varied:
            recorder.vary(slot, worlds)
            slot.type = type_
            recorder.varied.setdefault(slot, tuple(worlds))
        return worlds[0], slot

    def _as_example(self, size: object) -> Any:
        """A size that differs from turn to turn, as it is in this one: what is asked of it leaves no guard."""
        trace, number = self.size_trace, number_of(size)
        return size if trace is None or not is_symbolic(number) else sized(trace, trace.example(at_hand(number)))

    def _lies_in(
        self, type_: TensorType, ways: tuple[torch.Tensor | None, torch.Tensor | None], world: int
    ) -> Sequence[int] | None:
        """The strides in a world that one of two ways has left; None where not both are known."""
        found = ways[world % 2]
        if found is None or ways[1] is None or any(isinstance(d, UnknownDim) for d in type_.shape or ()):
            return None
        worlds = self.recorder.varied.get(self.recorder.slot_of(found))
        shown = found if worlds is None or worlds[world] is DEAD else worlds[world]
        return tuple(shown.stride())

    def binary(self, op: str, a: object, b: object) -> object:
        """An operator between two operands of which one is staged."""
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            return NotImplemented
        simple = (*_NUMBERS, str, list, tuple, dict, type(None))
        if not all(is_staged(v) or isinstance(v, simple) for v in (a, b)):
            return NotImplemented
        if op == "py.pow" and self.is_real_power(a, b):
            return self.emit("py.call", "math.pow", a, b)
        return self.emit(op, a, b)

    def is_real_power(self, base: object, exponent: object) -> bool:
        """Whether a power is a float by what its base was in the native run, which the graph then expects.

        On one path only nothing can be expected; there the graph raises where Python gives a complex number.
        """
        return False

    def getitem(self, container: object, key: object) -> Any:
        """An element or a slice of a staged container."""
        if isinstance(key, slice):
            return self.emit("py.slice", container, key.start, key.stop, key.step)
        return self.emit("py.getitem", container, key)


def tainted() -> Any:
    return Family(True)


def strides_of(type_: TensorType, sizes: Sequence[int], like: Sequence[int] | None, world: int = 0) -> Sequence[int]:
    """Strides that a type allows. Where it leaves them open they are otherwise in each world, as what the ways give."""
    if type_.strides is None:
        return contiguous_strides(sizes)
    steps = like if like is not None else _lying(sizes, world)
    return [d if isinstance(d, int) else steps[i] for i, d in enumerate(type_.strides)]


def _lying(sizes: Sequence[int], world: int) -> Sequence[int]:
    """Row-major, turned, spread, with the last two turned, and with the channels last."""
    order = list(range(len(sizes)))
    match world:
        case 1:
            order.reverse()
        case 3:
            order[-2:] = reversed(order[-2:])
        case 4:
            order = [*order[:1], *order[2:], *order[1:2]]
    dense = contiguous_strides([sizes[d] for d in order])
    return [dense[order.index(d)] * (2 if world == 2 else 1) for d in range(len(sizes))]


def _is_tensor(slot: Slot) -> bool:
    return isinstance(slot_type(slot), TensorType)


def _typed(operand: object) -> Any:
    return Value("", slot_type(operand), None) if isinstance(operand, Slot) else operand  # type: ignore[arg-type]


def _in_world(op: str, run: Any, operands: Sequence[Any], named: Mapping[str, Any], world: int) -> Any:
    values = []
    for operand in operands:
        value = operand.worlds[world] if isinstance(operand, ScalarSlot) else operand
        if isinstance(operand, SizeSlot):
            value = operand.in_worlds(WORLDS)[world]
        if value is DEAD:
            return DEAD
        values.append(value)
    if _is_endless(op, values):
        return DEAD
    try:
        return run(*values, **named)
    except Exception:
        # Examples need not fit together.
        return DEAD


def _is_endless(op: str, values: Sequence[object]) -> bool:
    """Whether an example would take long: the examples of a number are up to millions."""
    match op, *values:
        case "py.pow", int(a), int(b):
            return abs(a).bit_length() * b > _MOST_BITS
        case "py.lshift", int(), int(by):
            return by > _MOST_BITS
        case "py.mul", int(count), str() | bytes() | list() | tuple() as items:
            return count * len(items) > _MOST_BITS
        case "py.mul", str() | bytes() | list() | tuple() as items, int(count):
            return count * len(items) > _MOST_BITS
        case "py.call", "math.factorial" | "math.perm" | "math.comb", int(n), *_:
            return n > _MOST_FACTORS
    return False


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
