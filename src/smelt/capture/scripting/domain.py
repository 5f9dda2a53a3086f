"""What is known of values in a scripted run, the run of a program of which nothing was seen: types, which may be open.

What a tensor is made of is asked when the graph runs, where types do not tell it: its rank, sizes, element type.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs, Overload
from smelt.capture.convert import helpers
from smelt.capture.recording.spans import Site
from smelt.capture.recording.tensor_slots import Slot, slot_type
from smelt.capture.scripting.joining import Call, want_joined
from smelt.capture.scripting.merging import OpenMerger, widened
from smelt.capture.scripting.moving import HELD_VALUES, LISTING, WHOLE_VALUES, moved_by
from smelt.capture.scripting.recorder import OpenOperators
from smelt.capture.scripting.values.sequences import (
    OpenTuple,
    ShapeObject,
    Spread,
    as_list,
    of_tuples,
    tells_tuples,
)
from smelt.capture.staging.fakes.fake_tensors import FakeRecorder
from smelt.capture.staging.fakes.symbols import (
    DEAD,
    WORLDS,
    ScalarSlot,
    StagedObject,
    class_of,
    is_staged,
    slot_of,
    wrap,
)
from smelt.capture.staging.flow.merge import check_identity, sources
from smelt.capture.staging.flow.stops import MEMBERS, NO_FORM, Stop
from smelt.capture.staging.objects.handlers import is_caught
from smelt.capture.staging.reading import ITEM_TYPES
from smelt.capture.staging.recorded import TAKES_APART, element, strides_of, tainted
from smelt.diag import Span
from smelt.ir import (
    ANY,
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    STR,
    Device,
    DictType,
    DType,
    ListType,
    OptionalType,
    TensorType,
    TupleType,
    Type,
    Value,
)
from smelt.ops.convert import dtype_to_torch, from_torch
from smelt.ops.python.python_ops import ATTEMPT_KEYWORDS, infer_python, python_op
from smelt.ops.unknown_kinds import TENSOR, is_known

if TYPE_CHECKING:
    from smelt.capture.scripting.functions import Functions
    from smelt.capture.staging.session import Session

_DEAD = (DEAD,) * WORLDS
_RAISING = ("py.raise", "py.assert", "py.print", "py.warn", "py.attempt")
# Questions that have the same answer when they are asked again.
_ASKED = frozenset((
    "py.eq", "py.ne", "py.lt", "py.le", "py.gt", "py.ge", "py.is_none", "py.not_", "py.in_", "py.bool",
    "py.len",
))  # fmt: skip
_ARITHMETIC = frozenset((
    "py.add", "py.sub", "py.mul", "py.truediv", "py.floordiv", "py.mod", "py.pow", "py.neg", "py.pos", "py.abs",
    "py.min", "py.max",
))  # fmt: skip
_NUMBERS = (BOOL, INT, FLOAT, COMPLEX)
_LASTING = ("dtype", "device", "layout", "is_cuda", "itemsize")
_OF_TYPES = frozenset((
    "aten.dim.default", "aten.sym_size.int", "aten.sym_numel.default", "aten.is_floating_point.default",
    "aten.is_complex.default",
))  # fmt: skip
# What operators raise, the last one for all else.
_FAILURES = (IndexError, KeyError, ZeroDivisionError, ValueError, OverflowError, TypeError, RuntimeError)
# Operators that put values into a container, from which operand on; those that take one out; functions that do.
_HOLDING = {"py.append": 1, "py.setitem": 1, "py.insert": 1, "py.list": 0, "py.tuple": 0, "py.dict": 0}
_TAKING = frozenset(("py.getitem", "py.min", "py.max", "py.pop"))
_GIVING = frozenset(("dict.get",))
DEEP = "what ends the recursion depends on data, and a graph has no calls"
_LITERALS = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class Assume(Stop):
    """The run starts again: a parameter that says nothing of its type is used as one of this type."""

    def __init__(self, name: str, type_: Type) -> None:
        super().__init__("assume")
        self.name, self.type = name, type_


class Refused:
    """An operator that torch refuses for these types, whatever the data."""

    def __init__(
        self, error: Exception, name: str, site: Site | None, operands: Sequence[tuple[str, Span | None]]
    ) -> None:
        self.error, self.name, self.site, self.operands = error, name, site, operands


class Open:
    """The domain of a script.

    operators: what records torch's. params: what each input is called; assumable: the inputs of which nothing says a
    type. defaults: what an input is where nobody gives it. list_of, text_of: the items of anything as a list of the
    graph, and its text.
    """

    session: Session
    # Nothing is known of the parameters, so the ways multiply.
    most_explored = 2048
    most_regions = 3 * most_explored
    knows_what_goes_on = True

    def __init__(
        self, list_of: Callable[[Open, object], Any], text_of: Callable[[Open, object], object], functions: Functions
    ) -> None:
        self.operators = OpenOperators(self)
        self.list_of, self.text_of, self.functions = list_of, text_of, functions
        self.assumable: dict[Slot, str] = {}
        self.defaults: dict[Slot, object] = {}
        self.params: dict[Slot, tuple[str, Span]] = {}
        self.refusals: list[Refused] = []
        self.internal: Exception | None = None
        self.merged: dict[int, tuple[Any, Any, Any]] = {}
        self.arms: dict[tuple[str, int], tuple[int, int]] = {}
        self.depth = 0
        self.most_depth = 200
        # How often each function is running within itself, and how often it may.
        self.running: dict[CodeType, int] = {}
        # Where what was taken out of a container stood: containers of a graph are values.
        self.places: dict[Slot, object] = {}
        # What is a list in every run: what has a list's type may be a tuple.
        self.lists: set[Slot] = set()
        # Lists and dicts that stand in others, of the graph and of Python's: nobody changes them.
        self.held: set[Slot] = set()
        self.given: dict[int, Any] = {}
        # Iterators from outside, by id: what takes an item of one takes it for good.
        self.iterators: Mapping[int, object] = {}
        self.most_recursion = 20
        # How often one call from outside came as deep, and how often it may: where each level calls twice, ways double.
        self.too_deep, self.most_ends = 0, 32
        # Values of any kind that are numbers: a tensor of unknown element type has such items.
        self.numbers: set[Any] = self.operators.marks.numbers
        self.calls: list[Call] = []  # those that run

    @property
    def recorder(self) -> FakeRecorder:
        """What records the run."""
        return self.session.recorder

    def cannot(self, what: str, why: str = NO_FORM) -> NoReturn:
        """End the run. Raises: CannotStage."""
        self.session.cannot(what, why)

    def fork(self, slot: Slot) -> bool:
        """Answer a question; what follows is explored for both answers."""
        return self.session.paths.fork(slot)

    # --- errors ------------------------------------------------------------------------------------------------------

    def refuse(self, error: Exception, info: Any, args: Sequence[Any], kwargs: Any) -> None:
        """Note an error that types alone decided, with where its operands come from."""
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        operands = [(str(slot_type(s)), self.origin(s)) for s in map(self.recorder.slot_of, tensors)]
        self.session.refused.append(error)
        self.refusals.append(Refused(error, info.name, self.session.site(), operands))

    def origin(self, slot: Slot) -> Span | None:
        """The line that a value comes from."""
        if slot in self.params:
            return self.params[slot][1]
        record = self.operators.makers.get(slot)
        site = None if record is None else record[4]
        return None if site is None else site.span

    def assume(self, value: object, type_: Type) -> None:
        """A parameter without a type turns out to be of one by its use. Raises: Assume."""
        slot = self.recorder.slot_of(value) if isinstance(value, torch.Tensor) else None
        if slot in self.assumable:
            raise Assume(self.assumable[slot], type_)

    def widened(self, before: Type, after: Type) -> Type | None:
        return widened(before, after)

    def same_tensor(self, a: torch.Tensor, b: torch.Tensor) -> object:
        """`a is b`, where that may follow from the path that was taken."""
        mine, yours = self.merged.get(id(a)), self.merged.get(id(b))
        if a is b:
            return True
        if mine is None and yours is None:
            if self.is_one_item(self.recorder.slot_of(a), self.recorder.slot_of(b)):
                return True
            self.check_items(self.recorder.slot_of(a), self.recorder.slot_of(b))
            check_identity(self.session, a, b)
            return False
        condition = (mine or yours)[0]  # type: ignore[index]
        if mine is not None and yours is not None and mine[0] is not yours[0]:
            if any(self.same_tensor(x, y) is not False for x in mine[1:] for y in yours[1:]):
                self.cannot("whether two tensors are the same follows from several branches")
            return False
        left, right = ((v[1:] if v is not None else (t, t)) for v, t in ((mine, a), (yours, b)))
        answers = [self.same_tensor(x, y) for x, y in zip(left, right, strict=True)]
        if answers[0] is answers[1] and isinstance(answers[0], bool):
            return answers[0]
        if not all(isinstance(answer, bool) for answer in answers):
            self.cannot("whether two tensors are the same follows from several branches")
        test = wrap(condition) if isinstance(condition, ScalarSlot) else None
        if test is None:
            found = ScalarSlot(BOOL, _DEAD)
            self.session.append("py.bool", [condition], {}, [found])
            test = wrap(found)
        return test if answers[0] else self.emit("py.not_", test)

    def broken(self, error: Exception) -> NoReturn:
        """End the run for an error of Smelt's own steps. Raises: CannotStage."""
        if isinstance(error, RecursionError):
            # Python has no room left for them: the program's calls took it.
            self.cannot("calls are nested too deep", DEEP)
        self.internal = error
        self.cannot(f"scripting failed: {type(error).__name__}: {error}", "this is a defect of Smelt")

    def is_one_item(self, a: Slot, b: Slot) -> bool:
        """Whether two values were taken out of one container, at one place."""
        place = self.places.get(a)
        return place is not None and place == self.places.get(b)

    def check_items(self, a: Slot, b: Slot) -> None:
        """Raises: CannotStage where what a container of an argument holds may be another argument, or held by one."""
        behind = [self._arguments_behind(a), self._arguments_behind(b)]
        if all(behind) and any(slot not in self.params for slot in (a, b)):
            self.cannot("`is` on a container element is not supported", WHOLE_VALUES)

    def _arguments_behind(self, slot: Slot) -> set[Slot]:
        """The parameters that a value is, or out of which it was taken."""
        return {one for one, _ in sources(self.session, slot) if one in self.params}

    def check_unmerge(self, why: object) -> None:
        if isinstance(why, tuple) and why[0] == "element":
            self.cannot("`is` on a container element is not supported", WHOLE_VALUES)

    # --- paths -------------------------------------------------------------------------------------------------------

    def check_fork(self) -> None:
        want_joined(self)

    def merger(self, slot: Slot, site: Site | None, why: object, names: Sequence[str]) -> OpenMerger:
        return OpenMerger(self, slot, site, why, names)

    def may_be_caught(self) -> bool:
        return True  # types do not tell what an error comes of

    def as_native(self, slot: Slot) -> bool | None:
        return None

    # --- operators ---------------------------------------------------------------------------------------------------

    def record(self, overload: Overload, args: OpArgs, kwargs: OpKwargs) -> Any:
        return self.operators.record(overload, args, kwargs)

    def argument(self, arg: object) -> object:
        return self.operators.argument(arg)

    def check_lifted(self, slot: Slot) -> None:
        self.operators.check_lifted(slot)

    def check_write(self, targets: Sequence[object]) -> None:
        self.operators.check_write(targets)

    # --- values ------------------------------------------------------------------------------------------------------

    def encode(self, value: object) -> Any:
        if type(value) in (torch.dtype, torch.device, torch.layout, torch.memory_format):
            return value
        if isinstance(value, _LITERALS) and not is_staged(value) and not isinstance(value, torch.Tensor):
            return from_torch(value)
        if isinstance(value, torch.Size):
            return self.session.encoded(list(value))
        return self.session.encoded(value)

    def emit(self, op: str, *args: object, **kwargs: object) -> Any:
        if tells_tuples(op, args):
            return of_tuples(self, op, args, kwargs)
        operands = [self.encode(arg) for arg in args]
        named = {k: self.encode(v) for k, v in kwargs.items()}
        values = [_typed(o) for o in operands]
        found = python_op(op)
        if found is not None and op not in _RAISING and found.throws(values) and is_caught(self.session):
            self.attempt(op, operands, named, args)
        key = (op, tuple(map(_asked_of, operands))) if not named and _lasts(op, operands) else None
        again = self.session.paths.answered(key)
        if again is not None:
            return wrap(again)
        if op in _HOLDING:
            self.note_held(args[_HOLDING[op] :])
        types = infer_python(op, values)
        pairs = [self.value_of(t) for t in types]
        if op in _TAKING or (op == "py.call" and args[0] in _GIVING):
            self.held.update(s for _, s in pairs[-1:] if isinstance(slot_type(s), (ListType, DictType)))
        if op in _ARITHMETIC and all(map(self.is_number, operands)):
            self.numbers.update(slot for _, slot in pairs if slot_type(slot) == ANY)
        for _, slot in pairs:
            moved = moved_by(op, operands, slot)
            if moved:
                self.session.paths.turns_of[slot] = (("element", op), *moved)
            if op in LISTING:
                self.lists.add(slot)
        if op == "py.getitem":
            self.places[pairs[0][1]] = tuple(map(_asked_of, operands))
        self.session.append(op, operands, named, [slot for _, slot in pairs])
        self.session.paths.note_answer(key, pairs[0][1] if pairs else None)
        if op == "py.not_" and isinstance(operands[0], Slot):
            self.session.paths.negations[pairs[0][1]] = operands[0]
            self.session.paths.opposites[operands[0]] = pairs[0][1]
        return pairs[0][0] if len(pairs) == 1 else tuple(v for v, _ in pairs)

    def opened(self, items: tuple[object, ...], type_: ListType) -> object:
        slot = ScalarSlot(type_, _DEAD)
        self.note_held(items)
        self.session.append("py.list", [self.encode(item) for item in items], {}, [slot])
        self.lists.add(slot)
        return OpenTuple(slot)

    def taken_apart(self, container: Any) -> object:
        frame = sys._getframe(2)
        if frame.f_globals.get("__name__") != helpers.__name__ or not isinstance(slot_of(container).type, ListType):
            self.cannot(TAKES_APART)
        return iter([Spread(container)])

    def as_in_program(self, value: Any) -> object:
        of_class = class_of(value)
        if of_class is not None:
            return self.emit("py.call", "torch.Size" if of_class is torch.Size else "builtins.tuple", as_list(value))
        if type(value) in (list, tuple):
            return type(value)(map(self.as_in_program, value))
        return {k: self.as_in_program(v) for k, v in value.items()} if type(value) is dict else value

    def listed(self, items: Any) -> Any:
        is_open = isinstance(items, StagedObject) and not isinstance(slot_of(items).type, TupleType)
        return self.taken_in(items) if is_open else self.list_of(self, items)

    def taken_in(self, items: StagedObject) -> StagedObject:
        """What a list takes in of a value that a run knows, as a list: of tuples, strings and dictionaries, too."""
        slot = slot_of(items)
        is_parameter = slot in self.params and not isinstance(items, OpenTuple)
        if isinstance(slot.type, ListType) and (slot in self.lists or is_parameter or isinstance(items, ShapeObject)):
            return items
        found: StagedObject = self.emit("py.call", "builtins.list", items)
        return found

    def is_real_power(self, base: object, exponent: object) -> bool:
        return False  # nothing says what the base will be, and what it gives may be of any kind

    def printed(self, value: object) -> object:
        return self.text_of(self, value)

    # --- containers in containers ------------------------------------------------------------------------------------

    def note_held(self, items: Sequence[object]) -> None:
        for item in items:
            if is_staged(item):
                if isinstance(slot_of(item).type, (ListType, DictType)):
                    self.held.add(slot_of(item))
            elif type(item) in (list, dict):
                self.given[id(item)] = item
            elif type(item) is tuple:
                self.note_held(item)

    def note_merged(self, parts: Sequence[Sequence[object]], results: Sequence[Slot]) -> None:
        for values in parts:
            for value, result in zip(values, results, strict=True):
                if isinstance(value, Slot) and value in self.held:
                    self.held.add(result)
        for result, *values in zip(results, *parts, strict=True):
            if slot_type(result) == ANY and all(map(self.is_number, values)):
                self.numbers.add(result)

    def check_change(self, container: object) -> None:
        """Raises: CannotStage for a list in a list: the graph's containers are values, that would not be seen there."""
        held = slot_of(container) in self.held if is_staged(container) else id(container) in self.given
        if held:
            kind = type(container).__name__ if not is_staged(container) else str(slot_of(container).type)
            self.cannot(f"a {kind} is changed that stands in another container", HELD_VALUES)

    def check_iterator(self, value: object) -> None:
        """Raises: CannotStage where a value is an iterator from outside."""
        if value is not None and self.iterators.get(id(value)) is value:
            self.cannot(
                "an iterator from outside is advanced",
                "the program is not run by scripting, and an iterator cannot be rewound",
            )

    def attempt(
        self, op: str, operands: Sequence[object], named: Mapping[str, object], given: Sequence[object] = ()
    ) -> None:
        """An operator that may raise where the program catches: whether it does is asked first, and what it raises.

        Raises: what the operator would, on the path where it does.
        """
        if not ATTEMPT_KEYWORDS.issuperset(named.keys() - {"indexed"}):
            self.cannot(
                f"{op} stands where an exception is caught, and may raise one", "this is not known until run time"
            )
        found = ScalarSlot(ListType(STR), _DEAD)
        self.session.append("py.attempt", [op, *operands], named, [found])
        failure = wrap(found)
        if not self.session.paths.fork(slot_of(self.emit("py.gt", self._unsafe("py.len", failure), 0))):
            return
        kind, text = (self._unsafe("py.getitem", failure, i) for i in (0, 1))
        cls: type[Exception]
        for cls in _FAILURES[:-1]:
            if self.session.paths.fork(slot_of(self.emit("py.eq", kind, f"{cls.__module__}.{cls.__qualname__}"))):
                break
        else:
            cls = _FAILURES[-1]
        is_key = cls is KeyError and len(given) > 1
        error = cls(given[1] if is_key else text)
        self.session.raised.append(error)
        raise error

    def _unsafe(self, op: str, *args: object) -> object:
        """The same as `emit` for what is known not to raise."""
        operands = [self.encode(arg) for arg in args]
        (type_,) = infer_python(op, [_typed(o) for o in operands])
        value, slot = self.value_of(type_)
        self.session.append(op, operands, {}, [slot])
        return value

    def value_of(self, type_: Type, examples: tuple[object, ...] = _DEAD, is_native: bool = False) -> tuple[Any, Slot]:
        if isinstance(type_, TensorType):
            return self.session.tensor_of(type_)
        slot = ScalarSlot(type_, _DEAD)
        return (None if type_ == NONE else wrap(slot)), slot

    def read(self, name: str, tensor: torch.Tensor, type_: Type, *args: object) -> Any:
        """Record an operator of torch's that tells something of a tensor's type."""
        operands = [self.recorder.slot_of(tensor), *map(self.encode, args)]
        key = (name, tuple(map(_asked_of, operands))) if name in _OF_TYPES else None
        again = self.session.paths.answered(key)
        if again is not None:
            return again
        slot = ScalarSlot(type_, _DEAD)
        self.session.append(name, operands, {}, [slot])
        self.session.paths.note_answer(key, slot)
        return slot

    def tensor_of(
        self, type_: TensorType, like: torch.Tensor | None, other: torch.Tensor | None,
        numbers: tuple[int, ...] | None,
    ) -> tuple[torch.Tensor, Slot]:  # fmt: skip
        recorder = self.recorder
        shape = (
            (2, 3)
            if type_.shape is None
            else tuple(d if isinstance(d, int) else 5 + i for i, d in enumerate(type_.shape))
        )
        known = type_.is_static
        # Not row-major where nothing says so, or torch would think a copy needless.
        steps = strides_of(type_, shape, None) if known or type_.strides is not None else _transposed(shape)
        dtype = torch.float32 if type_.dtype == DType.UNKNOWN else dtype_to_torch(type_.dtype)
        made = recorder.fakes.fresh(dtype, shape, steps, type_.device)
        slot = Slot(made, tainted(), "result")
        slot.type = type_
        recorder._slots[id(made)] = slot
        self.session.keep.append(made)
        if not known:
            recorder.varied[slot] = (made,) * WORLDS
        return made, slot

    def new_tensor(self, type_: TensorType, site: Site | None) -> Slot:
        if type_.shape is None or type_.dtype == DType.UNKNOWN:
            dtype = DType.F32 if type_.dtype == DType.UNKNOWN else type_.dtype
            type_ = TensorType(dtype, (0,) * (type_.rank or 0), None, type_.device)
        sizes = [d if isinstance(d, int) else 0 for d in type_.shape or ()]
        _, slot = self.tensor_of(TensorType.of(type_.dtype, sizes, None, type_.device), None, None, None)
        kwargs: dict[str, Any] = {"dtype": type_.dtype, "device": Device(type_.device)}
        self.session.append("aten.zeros.default", [sizes], kwargs, [slot], site)
        return slot

    def tensors_mark(self, slot: ScalarSlot) -> list[torch.Tensor]:
        """What torch's argument parsers take for a list of tensors whose length a run knows."""
        element = slot.type.element if isinstance(slot.type, ListType) else ANY
        marker, _ = self.session.tensor_of(element if isinstance(element, TensorType) else TENSOR)
        self.operators.listed[id(marker)] = slot
        self.session.keep.append(marker)
        return [marker]

    def as_tensor(self, value: StagedObject) -> torch.Tensor:
        """A value that may be a tensor, as one."""
        type_ = slot_of(value).type
        if isinstance(type_, OptionalType) and isinstance(type_.element, TensorType):
            return self.present(slot_of(value))
        found, slot = self.session.tensor_of(TENSOR)
        self.session.paths.aliases[slot] = slot_of(value)
        return found

    def settled(self, value: object) -> object:
        """What is used as if it were not None, by a type without None; None on the way on which it is that."""
        if not isinstance(value, StagedObject) or not isinstance(slot_of(value).type, OptionalType):
            return value
        if self.session.paths.fork(slot_of(self.emit("py.is_none", value))):
            return None
        return self.present(slot_of(value))

    def left_by(self, values: tuple[object, ...], before: Sequence[object]) -> tuple[object, ...]:
        return tuple(v if v is old else self.narrowed(v) for v, old in zip(values, before, strict=True))

    def narrowed(self, value: object) -> Any:
        """An optional value of which this way knows whether it is None."""
        if not isinstance(value, StagedObject) or not isinstance(slot_of(value).type, OptionalType):
            return value
        asked = self.session.paths.answered(("py.is_none", (slot_of(value),)))
        is_none = None if asked is None else self.session.paths.known(asked)
        return value if is_none is None else None if is_none else self.present(slot_of(value))

    def present(self, slot: ScalarSlot, is_argument: bool = False) -> Any:
        """What an optional value holds, by a type without None. is_argument: nothing else holds it."""
        assert isinstance(slot.type, OptionalType)
        key = ("present", slot)
        known = self.session.paths.answered(key)
        if known is not None:
            return known
        value, inner = self.value_of(slot.type.element)
        self.session.append("py.getitem", [slot_of(self.emit("py.tuple", wrap(slot))), 0], {}, [inner])
        if not is_argument:
            self.session.paths.turns_of[inner] = (("element", "py.getitem"), slot)
            if isinstance(slot.type.element, (ListType, DictType)):
                self.held.add(inner)
        self.session.paths.note_answer(key, value)
        return value

    # --- what tensors tell -------------------------------------------------------------------------------------------

    def type_of(self, tensor: torch.Tensor) -> TensorType:
        """What is known of a tensor."""
        found: TensorType = slot_type(self.recorder.slot_of(tensor))
        return found

    def is_open(self, tensor: object) -> bool:
        """Whether a tensor's rank or element type is unknown."""
        return isinstance(tensor, torch.Tensor) and not is_known(self.type_of(tensor))

    def item(self, tensor: torch.Tensor) -> Any:
        slot = self.recorder.slot_of(tensor)
        type_ = slot_type(slot)
        if type_.is_static and type_.numel != 1:
            error = RuntimeError(f"a Tensor with {type_.numel} elements cannot be converted to Scalar")
            self.session.raised.append(error)
            raise error
        if not type_.is_static and is_caught(self.session):
            self.attempt("aten.item.default", [slot], {})
        found = self.read("aten.item.default", tensor, ITEM_TYPES.get(type_.dtype.kind, ANY))
        if found.type == ANY:
            self.numbers.add(found)
        return wrap(found)

    def is_number(self, operand: object) -> bool:
        """Whether an operand is a number for sure, of whatever kind."""
        if isinstance(operand, Slot):
            return slot_type(operand) in _NUMBERS or operand in self.numbers
        return isinstance(operand, (bool, int, float, complex))

    def index_of(self, value: object) -> object:
        """A value of unknown kind where Python needs an int; others as they are."""
        if is_staged(value) and slot_of(value).type == ANY:
            return self.emit("py.call", "operator.index", value)
        return value

    def rank(self, tensor: torch.Tensor) -> Any:
        """The number of dimensions."""
        type_ = self.type_of(tensor)
        return wrap(self.read("aten.dim.default", tensor, INT)) if type_.rank is None else type_.rank

    def size(self, tensor: torch.Tensor, dim: Any, what: str) -> object:
        type_ = self.type_of(tensor)
        dims = type_.shape if what == "size" else (type_.steps if type_.is_static else type_.strides)
        if not is_staged(dim):
            if dims is not None and not -len(dims) <= dim < len(dims):
                return (tensor.shape if what == "size" else tensor.stride())[dim]
            if dims is not None and isinstance(dims[dim], int):
                return dims[dim]
            dim = dim + type_.rank if dim < 0 and type_.rank is not None else dim
        if dims is None and is_caught(self.session):
            self.attempt(f"aten.sym_{what}.int", [self.recorder.slot_of(tensor), self.encode(dim)], {})
        return wrap(self.read(f"aten.sym_{what}.int", tensor, INT, dim))

    def sizes(self, tensor: torch.Tensor) -> Any:
        """`tensor.shape`: a tuple where the rank is known."""
        rank = self.type_of(tensor).rank
        if rank is None:
            return ShapeObject(self.read("aten.sym_size.default", tensor, ListType(INT)), tensor)
        return torch.Size([self.session.size(tensor, i) for i in range(rank)])

    def numel(self, tensor: torch.Tensor) -> Any:
        type_ = self.type_of(tensor)
        if type_.is_static:
            return type_.numel
        return wrap(self.read("aten.sym_numel.default", tensor, INT))

    def attribute(self, tensor: torch.Tensor, name: str) -> Any:
        """An attribute that `py.getattr` reads."""
        return self.emit("py.getattr", tensor, name)

    def getitem(self, container: Any, key: Any) -> Any:
        if isinstance(container, ShapeObject):
            if isinstance(key, slice):
                return type(container)(slot_of(self.emit("py.slice", container, key.start, key.stop, key.step)))
            if container.of is not None:
                return self.session.size(container.of, key)
        return element(self, container, key)

    # --- what Python insists on --------------------------------------------------------------------------------------

    def hashed(self, slot: ScalarSlot) -> object:
        """A parameter's default, as an item of a set or a key. Raises: CannotStage for any other value."""
        if slot not in self.defaults or len(self.session.paths.regions) > 1:
            what = self.params[slot][0] if slot in self.params else f"a value {slot.type}"
            self.cannot(f"{what} is put in a set, or is a key of a dict", MEMBERS)
        return self.specialize(slot)

    def specialize(self, slot: ScalarSlot) -> Any:
        """A parameter's default: the graph then holds for it only. Raises: CannotStage for any other value."""
        if slot not in self.defaults or len(self.session.paths.regions) > 1:
            what = f"parameter {self.params[slot][0]}" if slot in self.params else f"a value {slot.type}"
            self.cannot(f"Python needs to know {what}", "it is not known until run time")
        value = self.defaults[slot]
        self.session.append("expect", [slot, value], {}, [])
        return value


def _lasts(op: str, operands: Sequence[object]) -> bool:
    """Whether a question has the same answer later: elements of tensors may be written meanwhile."""
    if op == "py.getattr":
        return operands[1] in _LASTING
    return op in _ASKED and all(isinstance(o, ScalarSlot) or not isinstance(o, (Slot, list, tuple)) for o in operands)


def _asked_of(operand: object) -> Any:
    """An operand as part of a key: the value itself, or a literal with its kind."""
    if isinstance(operand, Slot):
        return operand
    return tuple(map(_asked_of, operand)) if isinstance(operand, (list, tuple)) else (type(operand), repr(operand))


def _transposed(shape: Sequence[int]) -> list[int]:
    steps, step = [], 2 if len(shape) == 1 else 1
    for size in shape:
        steps.append(step)
        step *= max(size, 1)
    return steps


def _typed(operand: object) -> Any:
    if isinstance(operand, Slot):
        return Value("", slot_type(operand), None)  # type: ignore[arg-type]
    if isinstance(operand, (list, tuple)):
        return tuple(map(_typed, operand))
    return from_torch(operand)
