"""Operators of a scripted run: they run on nothing; what they give follows from what they are given.

Python's numbers that only a run knows reach torch's own argument parsers as *marks*: numbers, dtypes and devices that
nobody writes, each of which stands for one value of the graph. So torch itself chooses the overload, as in a run.

Invariant: an operator computes only where everything it is given is known to Python (`torch.zeros(3)`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs, Overload, read_schema
from smelt._torch.seen.dispatch import unseen
from smelt._torch.seen.record_patches import is_plain_tensor_type
from smelt.capture.recording.build import no_argument
from smelt.capture.recording.opinfo import METADATA, OpInfo, op_info, targets_of
from smelt.capture.recording.recorder import _CONSTANT_MAKERS
from smelt.capture.recording.tensor_slots import Family, Slot, slot_type
from smelt.capture.staging.fakes.fake_tensors import CHANGING_METADATA, FakeRecorder, give_back
from smelt.capture.staging.fakes.overlaps import check_overlap
from smelt.capture.staging.fakes.raising import OF_ALL_ELEMENTS
from smelt.capture.staging.fakes.refused_kernels import Doubt, given_all_the_same, in_eagers_words
from smelt.capture.staging.fakes.symbols import DEAD, WORLDS, ScalarSlot, is_staged, slot_of, wrap
from smelt.capture.staging.flow.stops import CannotMerge
from smelt.capture.staging.objects.handlers import is_caught
from smelt.ir import (
    ANY,
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    STR,
    DType,
    ListType,
    TensorType,
    TupleType,
    Type,
    Value,
)
from smelt.ops.convert import from_torch, type_of
from smelt.ops.meta import COPYING
from smelt.ops.registry import tags_of
from smelt.ops.typing import infer_unranked

if TYPE_CHECKING:
    from smelt.capture.scripting.domain import Open
    from smelt.capture.staging.session import Session

_SCALARS: dict[str, Type] = {
    "int": INT, "SymInt": INT, "float": FLOAT, "bool": BOOL, "SymBool": BOOL, "complex": COMPLEX, "str": STR,
    "number": ANY, "List[int]": ListType(INT),
}  # fmt: skip
_DEAD = (DEAD,) * WORLDS
_LISTS = (ListType(INT), ListType(FLOAT))
_FIRST = 0x5AFE_0000_0000
# dtypes without operators, which programs do not name.
_MARK_DTYPES = tuple(
    d for n in (
        "uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "bits1x8", "bits2x4", "bits4x2", "bits8",
        "bits16", "int1", "int2", "int3", "int4", "int5", "int6", "int7", "quint4x2", "quint2x4", "qint32", "qint8",
        "quint8",
    ) if (d := getattr(torch, n, None)) is not None
)  # fmt: skip


class Marks:
    """What stands for staged values in calls of torch's."""

    def __init__(self) -> None:
        self.slots: dict[object, ScalarSlot] = {}
        self._known: dict[int, object] = {}
        self._keep: list[ScalarSlot] = []
        self._dtypes = 0
        self.numbers: set[ScalarSlot] = set()

    def of(self, slot: ScalarSlot) -> Any:
        """The mark of a value; None where torch's parsers take nothing that could stand for it."""
        if id(slot) not in self._known:
            mark = self._new(slot)
            if mark is None:
                return None
            key = self.key(mark[0] if isinstance(mark, list) else mark)
            if key in self.slots:
                # Marks of element types and devices are few: the oldest is given anew, no call still has it.
                self._known.pop(id(self.slots[key]), None)
            self._known[id(slot)] = mark
            self._keep.append(slot)
            self.slots[key] = slot
        return self._known[id(slot)]

    def may_hold(self, data: torch.Tensor) -> bool:
        """Whether Python's data that became a tensor were a mark, as far as a tensor's elements tell."""
        if not self._keep or data.dtype in (torch.bool, torch.uint8) or data.is_complex() or not data.numel():
            return False
        sizes = data.double().abs()
        return bool(((sizes >= _FIRST) & (sizes < 8 * _FIRST)).any())

    def _new(self, slot: ScalarSlot) -> object:
        number = len(self._keep)
        if slot.type == INT:
            return _FIRST + 1 + 2 * number
        if slot.type == FLOAT or slot in self.numbers:
            return _FIRST + number + 0.015625
        if slot.type == COMPLEX:
            return complex(_FIRST + number, 0.015625)
        if slot.type == ListType(INT):
            return [_FIRST + 0x8000_0001 + 2 * number]
        if slot.type == ListType(FLOAT):
            return [_FIRST + number + 0.015625]
        if str(slot.type) == "device":
            return torch.device("meta", number % 100)
        if str(slot.type) == "dtype":
            self._dtypes += 1
            return _MARK_DTYPES[self._dtypes % len(_MARK_DTYPES)]
        return None

    @staticmethod
    def key(mark: object) -> Any:
        """The key of a mark in `slots`."""
        return (type(mark), str(mark) if isinstance(mark, torch.device) else mark)

    def slot(self, value: Any) -> ScalarSlot | None:
        """The value that a mark stands for; None for anything else."""
        if type(value) is float and value.is_integer() and value >= _FIRST:
            value = int(value)  # a parser made a float of an int
        if type(value) in (int, float, complex, torch.dtype, torch.device):
            return self.slots.get(self.key(value))
        if type(value) in (list, tuple, torch.Size) and len(value) == 1:
            found = self.slot(value[0]) if type(value[0]) in (int, float) else None
            return found if found is not None and found.type in _LISTS else None
        return None

    @staticmethod
    def is_broken(value: Any) -> bool:
        """Whether a number was a mark before someone calculated with it."""
        return type(value) in (int, float) and _FIRST <= abs(value) < 8 * _FIRST


class OpenOperators:
    """Operators of one scripted run.

    marks: what stands for values of the graph in calls of torch's; listed: the tensors that stand for lists of tensors,
    by id. makers: the record that made a value. unsure: memory of which types do not tell whether it is another's.
    is_named: whether the program itself names the operator that is called.
    """

    def __init__(self, domain: Open) -> None:
        self.domain = domain
        self.marks = Marks()
        self.listed: dict[int, ScalarSlot] = {}
        self.makers: dict[Slot, Any] = {}
        self.unsure: dict[int, Family] = {}
        self.is_named = False

    @property
    def session(self) -> Session:
        """The run."""
        return self.domain.session

    @property
    def recorder(self) -> FakeRecorder:
        """What they are recorded by."""
        return self.domain.session.recorder

    # --- operands ----------------------------------------------------------------------------------------------------

    def argument(self, arg: object) -> object:
        """What an argument of torch's stands for. Raises: CannotStage for what was made of a mark."""
        marked = self.marks.slot(arg)
        if marked is not None:
            return marked
        if self.marks.is_broken(arg):
            self.domain.cannot("torch calculates with a number that is not known until run time")
        if isinstance(arg, torch.Size):
            return list(arg)
        if isinstance(arg, (list, tuple)) and len(arg) == 1 and id(arg[0]) in self.listed:
            return self.listed[id(arg[0])]
        return arg

    def check_lifted(self, slot: Slot) -> None:
        """Python's data became a tensor. Raises: CannotStage where a mark was among them."""
        constants = self.recorder.constants
        if slot in constants and self.marks.may_hold(constants[slot]):
            self.domain.cannot(
                "torch makes a tensor of a number that is not known until run time", "it needs the number in Python"
            )

    def check_write(self, targets: Sequence[object]) -> None:
        """Slots are about to be written. Raises: CannotStage where that may be a write to others, too."""
        if any(isinstance(slot, Slot) and id(slot.family) in self.unsure for slot in targets):
            self.domain.cannot(
                "a tensor is written that is a view of another or a copy of its own",
                "types do not tell which: annotate the index",
            )

    # --- operators ---------------------------------------------------------------------------------------------------

    def record(self, overload: Overload, args: OpArgs, kwargs: OpKwargs) -> Any:
        """Note an operator, and give what stands for its results. Raises: what eager does; CannotStage."""
        session = self.session
        try:
            return self._record(overload, args, kwargs)
        except Exception as error:
            if not any(error is known for known in (*session.refused, *session.raised)):
                # torch makes "unsupported operand" of a TypeError.
                self.domain.broken(error)
            raise

    def _record(self, overload: Overload, args: OpArgs, kwargs: OpKwargs) -> object:
        info = op_info(overload)
        if info.name == "aten.to.dtype_layout" and not self.is_named and self._is_unknown(args[0]):
            # It keeps its element type, which torch takes from what stands for it.
            kwargs = {name: value for name, value in kwargs.items() if name not in ("dtype", "layout")}
        self.session.spend()
        operands: list[Slot] = []
        noted = [self.recorder._encode(arg, operands) for arg in args]
        named = {k: self.recorder._encode(v, operands) for k, v in kwargs.items()}
        writes = info.written(args, kwargs)
        tainted = info.is_random or any(slot.family.tainted for slot in operands)
        if not tainted and not (writes and self.recorder.depth):
            try:
                result = overload(*args, **kwargs)
            except Exception as error:
                self.session.raised.append(error)
                raise
            self.recorder._note(info, args, kwargs, result)
            self.recorder._check()
            return result
        self._check_operands(info, operands)
        if not info.returns_tensors:
            return self._number(overload, info, args, kwargs, noted, named, operands)
        if info.short in CHANGING_METADATA and self.recorder.depth:
            self.domain.cannot(f"{info.name} changes a tensor's sizes on one path only")
        for one in writes:
            targets = targets_of(one, noted, named)
            self.recorder._write(targets, True, info)
            self.recorder._check_entwined(targets)
        family = self.recorder._family(info, noted, operands, True)
        types, made = self._types(overload, info, args, kwargs, noted, named, operands)
        schema = read_schema(overload)
        results, slots = [], []
        for i, returned in enumerate(schema.returns):
            given = self._written_operand(schema, returned, args, kwargs)
            is_out = isinstance(given, torch.Tensor) and any(a.is_out for a in schema.arguments)
            value, slot = self._result(types[i], None if made is None else made[i], given, family, is_out)
            results.append(value)
            slots.append(slot)
        if info.is_kept:
            self.recorder.records.append(
                (
                    info,
                    noted,
                    named,
                    tuple(slots),
                    self.recorder._find_site(2),
                    self.recorder.scope.path,
                    self.recorder._modes_now(),
                )
            )
            for slot in slots:
                if isinstance(slot, Slot):
                    self.makers[slot] = self.recorder.records[-1]
        return None if not results else results[0] if len(results) == 1 else tuple(results)

    def _is_unknown(self, tensor: object) -> bool:
        type_ = slot_type(self.recorder.slot_of(tensor))
        return isinstance(type_, TensorType) and type_.dtype == DType.UNKNOWN

    def _check_operands(self, info: OpInfo, operands: Sequence[Slot]) -> None:
        for slot in operands:
            if isinstance(slot, ScalarSlot):
                continue
            if slot.kind == "unknown" and not slot.family.tainted and info.short not in _CONSTANT_MAKERS:
                self.recorder.unknown(slot)
            tensor = slot.ref()
            if tensor is not None and not is_plain_tensor_type(type(tensor)) and not self.recorder._is_ours(tensor):
                self.domain.cannot(f"a {type(tensor).__qualname__} was used")
        self.recorder._check()

    @staticmethod
    def _written_operand(schema: Any, returned: Any, args: OpArgs, kwargs: Any) -> object:
        """The operand that an operator writes and gives back."""
        if not (returned.alias and returned.is_write):
            return None
        for i, argument in enumerate(schema.arguments):
            if argument.is_write and argument.alias & returned.alias:
                return args[i] if i < len(args) and not argument.kwarg_only else kwargs.get(argument.name)
        return None

    def _result(self, type_: Type, made: Any, given: Any, family: Family, is_out: bool = False) -> tuple[Any, Any]:
        if isinstance(given, torch.Tensor):
            old = self.recorder.slot_of(given)
            slot = Slot(given, old.family, "result")
            slot.type = old.type
            if is_out and _is_empty(old) and not _is_empty_type(type_):
                self._resize(given, slot, type_)
            elif old in self.recorder.varied:
                self.recorder.varied[slot] = self.recorder.varied[old]
            self.recorder._slots[id(given)] = slot
            return given, slot
        if isinstance(type_, TensorType):
            if isinstance(made, torch.Tensor):
                slot = self.recorder._define(made, family)
                self.session.keep.append(made)
                return made, slot
            value, slot = self.session.tensor_of(type_)
            slot.family = family
            return value, slot
        if isinstance(type_, TupleType):
            parts = [
                self._result(t, None if made is None else made[i], None, family) for i, t in enumerate(type_.elements)
            ]
            return [p[0] for p in parts], [p[1] for p in parts]
        if type_ == NONE:
            return None, None
        slot = ScalarSlot(type_, _DEAD)
        if not isinstance(type_, ListType) or not isinstance(type_.element, TensorType):
            return self.domain.cannot(f"an operator gives a {type_}")
        marker, _ = self.session.tensor_of(type_.element)
        self.session.keep.append(marker)
        self.listed[id(marker)] = slot
        return [marker], slot

    def _resize(self, given: torch.Tensor, slot: Slot, type_: Type) -> None:
        """An empty tensor that a result is written into: torch gives it the result's size."""
        if self.recorder.depth:
            what = "a result is written into an empty tensor, and gives it a size, on one path only"
            if self.recorder.slot_of(given).kind == "result":
                # A path of its own makes the tensor anew.
                raise CannotMerge(what, "no graph holds both sizes", self.session.site())
            self.domain.cannot(what)
        shape = type_.shape if isinstance(type_, TensorType) else None
        slot.type = TensorType(slot_type(slot).dtype, shape, None, slot_type(slot).device)
        like, as_made = self.session.tensor_of(slot.type)
        with unseen():
            given.resize_(like.shape)
        if as_made in self.recorder.varied:
            self.recorder.varied[slot] = (given,) * WORLDS

    # --- types -------------------------------------------------------------------------------------------------------

    def _types(
        self, overload: object, info: OpInfo, args: Sequence[object], kwargs: OpKwargs, noted: list[Any],
        named: OpKwargs, operands: Sequence[Slot],
    ) -> tuple[Sequence[Type], Any]:  # fmt: skip
        if info.sized_by is None and all(_is_static(slot) for slot in operands):
            found = self._on_fakes(overload, info, args, kwargs)
            if found is not None:
                return found
        values: dict[Slot, Value] = {}
        if not _is_safe(info, noted) and is_caught(self.session):
            if info.is_random or info.written(args, kwargs):
                self.domain.cannot(
                    f"{info.name} stands where an exception is caught, and may raise one",
                    "types do not tell whether it does: annotate the parameters",
                )
            self.domain.attempt(info.name, noted, {**named, **self._in_brackets(info, noted)})
        arguments = [self._argument(info, a, values) for a in noted]
        keywords = {k: self._argument(info, v, values) for k, v in named.items()}
        with unseen():
            return infer_unranked(info.name, arguments, keywords), None

    def _in_brackets(self, info: OpInfo, noted: Sequence[Any]) -> dict[str, int]:
        """Whether an operator is the `select` of an index in brackets, and how many numbers stand before it there."""
        site = self.recorder._find_site(2)
        if info.name != "aten.select.int" or site is None or not site.is_subscript:
            return {}
        indexed, maker = 0, self.makers.get(noted[0])
        while maker is not None and maker[0] is info and maker[4] == site:
            indexed, maker = indexed + 1, self.makers.get(maker[1][0])
        return {"indexed": indexed}

    def _argument(self, info: OpInfo, arg: object, values: dict[Slot, Value]) -> Any:
        """An argument as the graph's. Raises: what stops the session, where no graph holds it."""
        try:
            return _argument(arg, values)
        except TypeError as unfit:
            self.recorder.fail(*no_argument(info.name, arg, unfit), "S0104")
            return self.domain.cannot(*no_argument(info.name, arg, unfit)[:2])

    def _on_fakes(self, overload: Overload, info: OpInfo, args: Sequence[object], kwargs: dict[str, object]) -> Any:
        """Types and results on fake tensors, None where these cannot tell. Raises: what eager would for these."""
        back: dict[int, object] = {}
        own = [self.recorder.in_world(a, 0, back) for a in args]
        named = {k: self.recorder.in_world(v, 0, back) for k, v in kwargs.items()}
        try:
            check_overlap(info, overload, own, named)
            with self.recorder.fakes.running():
                result = overload(*own, **named)
                if info.name in COPYING:
                    result = result.clone()
        except (NotImplementedError, Doubt):
            return None
        except (RuntimeError, IndexError, TypeError, ValueError) as refused:
            if type(refused).__module__.startswith("torch._subclasses"):
                return None
            try:
                result = given_all_the_same(self.recorder.fakes, info.name, own, named, refused)
            except Doubt:
                return None
            if result is None:
                self._refuse(
                    refused if info.is_random else in_eagers_words(overload, own, named, refused), info, args, kwargs
                )
        results = _each(result, info)
        if not all(map(_is_fresh, results)):
            return None
        # Before they are given back: an `out=` may have got its size just now, which what it stands for has not.
        return [_type_of(r) for r in results], _each(give_back(result, back), info)

    def _refuse(self, error: Exception, info: OpInfo, args: Sequence[object], kwargs: dict[str, object]) -> NoReturn:
        self.domain.refuse(error, info, args, kwargs)
        raise error

    # --- numbers -----------------------------------------------------------------------------------------------------

    def _number(
        self, overload: Overload, info: OpInfo, args: OpArgs, kwargs: OpKwargs, noted: list[object],
        named: dict[str, object], operands: Sequence[Slot],
    ) -> Any:  # fmt: skip
        domain = self.domain
        if info.short in ("item", "_local_scalar_dense"):
            return domain.item(args[0])
        if info.short in METADATA and all(_is_static(slot) for slot in operands):
            with self.recorder.fakes.running():
                return overload(*[self.recorder.in_world(a, 0) for a in args], **kwargs)
        schema = read_schema(overload)
        if len(schema.returns) != 1 or schema.returns[0].type not in _SCALARS:
            domain.cannot(f"{info.name} gives Python what depends on data")
        found = ScalarSlot(_SCALARS[schema.returns[0].type], _DEAD)
        self.recorder.records.append(
            (
                info,
                noted,
                named,
                (found,),
                self.recorder._find_site(2),
                self.recorder.scope.path,
                self.recorder._modes_now(),
            )
        )
        return domain.session.answer(found) if found.type == BOOL else wrap(found)


def _is_safe(info: OpInfo, noted: Sequence[object]) -> bool:
    """Whether an operator takes every tensor: one operand, each element for itself, or all together."""
    tensors = [a for a in noted if isinstance(a, Slot) and not isinstance(a, ScalarSlot)]
    others = [a for a in noted if isinstance(a, (ScalarSlot, list, tuple))]
    takes_all = "pointwise" in tags_of(info.name) or info.name in OF_ALL_ELEMENTS
    return len(tensors) == 1 and takes_all and not others


def _is_static(slot: Slot) -> bool:
    if isinstance(slot, ScalarSlot):
        return False
    type_ = slot_type(slot)
    return isinstance(type_, TensorType) and type_.is_static and type_.dtype != DType.UNKNOWN


def _is_empty(slot: Slot) -> bool:
    return _is_static(slot) and _is_empty_type(slot_type(slot))


def _is_empty_type(type_: Type | None) -> bool:
    return isinstance(type_, TensorType) and type_.is_static and 0 in type_.sizes


def _each(result: Any, info: OpInfo) -> list[object]:
    return [result] if info.result_count == 1 else list(result or ())


def _is_fresh(result: object) -> bool:
    if isinstance(result, (list, tuple)):
        return all(map(_is_fresh, result))
    return result is None or isinstance(result, torch.Tensor)


def _type_of(result: Any) -> Type:
    if isinstance(result, torch.Tensor):
        return type_of(result)
    if result is None:
        return NONE
    return TupleType(tuple(map(_type_of, result)))


def _argument(arg: object, values: dict[Slot, Value]) -> Any:
    """An argument as the graph's: values of the slots' types."""
    if isinstance(arg, Slot):
        if arg not in values:
            values[arg] = Value(f"v{len(values)}", slot_type(arg), None)  # type: ignore[arg-type]
        return values[arg]
    if isinstance(arg, (list, tuple)):
        return tuple(_argument(a, values) for a in arg)
    if is_staged(arg):
        return _argument(slot_of(arg), values)
    return from_torch(arg)
