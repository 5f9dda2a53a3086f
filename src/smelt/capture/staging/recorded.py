"""What is known of values in the run of a program that was recorded: what each was, and how tensors lie.

Each value has an example for each of a few *worlds* (`fakes/symbols`): the first is what it was in the recorded run,
where that is known. A tensor has a fake tensor in each world in which its sizes are others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs, Overload
from smelt._torch.seen.dispatch import unseen
from smelt.capture.convert import runtime
from smelt.capture.dynamic.arithmetic import at_hand
from smelt.capture.dynamic.slots import SizeSlot
from smelt.capture.dynamic.values import is_symbolic, number_of, own, sized
from smelt.capture.recording.spans import Site
from smelt.capture.recording.tensor_slots import Family, Slot, slot_type
from smelt.capture.staging.counters import step_of
from smelt.capture.staging.fakes.symbols import DEAD, WORLDS, ScalarSlot, is_staged, slot_of, wrap
from smelt.capture.staging.flow.data_slices import affine_of
from smelt.capture.staging.flow.merge import Merger
from smelt.capture.staging.flow.paths import MOST_PATHS
from smelt.capture.staging.objects.handlers import is_catchable
from smelt.capture.staging.objects.unconverted_code import unwatched
from smelt.capture.staging.reading import ITEM_TYPES
from smelt.capture.staging.texts import text_of
from smelt.ir import (
    BOOL,
    FLOAT,
    INT,
    NONE,
    Device,
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

_STATEMENTS = ("py.raise", "py.assert", "py.print", "py.warn")
_MOST_BITS, _MOST_FACTORS = 1 << 16, 1 << 10


class Recorded:
    """The domain of a program that was recorded."""

    session: Session
    most_explored = most_regions = MOST_PATHS * 4
    knows_what_goes_on = False

    # --- values ------------------------------------------------------------------------------------------------------

    @unwatched
    def emit(self, op: str, *args: object, **kwargs: object) -> Any:
        """Record an operator of Python's; what is computed of counters is computed once."""
        paths = self.session.paths
        counters = paths.regions[-1].counters if paths.regions else None
        key = counters.key(op, args) if counters is not None and not kwargs else None
        if counters is None or key is None or not paths.is_on_all or self.may_be_caught():
            return self._emit(op, args, kwargs)
        known = counters.made(key)
        if known is not None:
            return wrap(known)
        found = self._emit(op, args, {})
        if is_staged(found):
            counters.note(key, slot_of(found))
        return found

    def _emit(self, op: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
        session = self.session
        session.copies.note_operands(op, args)
        operands = [self.encode(arg) for arg in args]
        named = {k: self.encode(v) for k, v in kwargs.items()}
        typed = [_typed(o) for o in operands]
        types = infer_python(op, typed)
        found = python_op(op)
        assert found is not None
        if op not in _STATEMENTS and found.throws(typed) and self.may_be_caught():
            session.handled(op)
        results: list[object] = []
        slots: list[Slot] = []
        with put_back_after() if found.rng else contextlib.nullcontext():
            worlds = [_in_world(op, found.run, operands, named, w) for w in range(WORLDS)] if len(types) == 1 else []
        of_tensors = any(isinstance(o, Slot) and _is_tensor(o) for o in operands)
        if worlds and types[0] in (BOOL, INT, FLOAT) and of_tensors:
            worlds = list(session.examples.of(types[0]))  # a tensor has no elements here
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
                session.paths.turns_of[slot] = (("element", op), *operands)
        session.copies.note_results(op, operands, slots)
        if len(slots) == 1 and isinstance(slots[0], ScalarSlot):
            slots[0].affine = affine_of(op, operands)
        session.append(op, operands, named, slots)
        if op == "py.not_" and isinstance(operands[0], Slot):
            session.paths.negations[slots[0]] = operands[0]
        return results[0] if len(results) == 1 else tuple(results)

    def may_be_caught(self) -> bool:
        return is_catchable(self.session, False)

    def encode(self, value: object) -> Any:
        return self.session.encoded(value)

    def value_of(self, type_: Type, examples: tuple[object, ...], is_native: bool) -> tuple[object, Slot]:
        if isinstance(type_, TensorType):
            like = examples[0].ref() if isinstance(examples[0], Slot) else None
            return self.session.tensor_of(type_, like)
        slot = ScalarSlot(type_, examples, is_native)
        return (None if type_ == NONE else wrap(slot)), slot

    def specialize(self, slot: ScalarSlot) -> Any:
        """The value that the native run had: the graph then holds for this value only. Raises: CannotStage."""
        session = self.session
        session.want_converted()
        if not slot.is_native or slot.type not in (INT, FLOAT, BOOL) or slot.worlds[0] is DEAD:
            session.cannot(f"Python needs the value of a traced {slot.type}", "code that is not converted reads it")
        if not session.paths.is_on_all:
            session.cannot(f"Python needs the value of a traced {slot.type}", "on one path only")
        value = slot.worlds[0]
        session.append("expect", [slot, value], {}, [])
        return value

    def hashed(self, slot: ScalarSlot) -> object:
        return self.specialize(slot)

    def is_number(self, operand: object) -> bool:
        return False

    def is_real_power(self, base: object, exponent: object) -> bool:
        """Whether a power is a float by what its base was in the native run, which the graph then expects.

        On one path only nothing can be expected; there the graph raises where Python gives a complex number.
        """
        kind = slot_of(exponent).type if is_staged(exponent) else FLOAT if type(exponent) is float else None
        if kind != FLOAT or not is_staged(base) or slot_of(base).type not in (INT, FLOAT):
            return False
        op = "py.lt" if type(exponent) is float and exponent > 0 else "py.le"
        if type(exponent) is float and exponent.is_integer():
            return False
        asked = slot_of(self.emit(op, base, 0))
        if asked.is_native and asked.worlds[0] is not DEAD and self.session.paths.is_on_all:
            if asked.worlds[0]:
                return False
            self.session.paths.expect(asked, False)
        return True

    def as_in_program(self, value: object) -> object:
        return value

    def printed(self, value: object) -> object:
        return text_of(self.session, runtime.current(), value, "str")

    def as_native(self, slot: Slot) -> bool | None:
        """What the recorded run found of a question, where the graph is to hold for that only.

        A question about numbers makes a run of its own for that worth it, one about a tensor where sizes are free: else
        what was recorded is a graph for its answer.
        """
        session = self.session
        if not session.paths.is_on_all:
            return None
        if not isinstance(slot, ScalarSlot):
            session.asks_natively |= session.size_trace is not None
            native = session.reading.hint("is_nonzero") if session.assumed.as_native else None
            return None if native is None else session.paths.expect(slot, bool(native))
        if not slot.is_native or slot.worlds[0] is DEAD:
            return None
        session.asks_natively = True
        return session.paths.expect(slot, bool(slot.worlds[0])) if session.assumed.as_native else None

    # --- types -------------------------------------------------------------------------------------------------------

    def tensor_of(
        self, type_: TensorType, like: torch.Tensor | None, other: torch.Tensor | None,
        numbers: tuple[int, ...] | None,
    ) -> tuple[torch.Tensor, Slot]:  # fmt: skip
        session, recorder = self.session, self.session.recorder
        if type_.shape is None or type_.layout != "strided":
            session.cannot(f"a tensor {type_} has no fake tensor")
        worlds = []
        sizes_like = None if like is None or like.dim() != len(type_.shape or ()) else tuple(like.shape)
        strides_like = None if sizes_like is None else like.stride()  # type: ignore[union-attr]
        is_varied = any(isinstance(d, UnknownDim) for d in (*type_.shape, *(type_.strides or ())))
        if numbers is None or not is_varied:
            numbers = session.examples.ints(5) if is_varied else (5,)
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
        session.keep.append(worlds[0])
        if is_varied:
            recorder.vary(slot, worlds)
            slot.type = type_
            recorder.varied.setdefault(slot, tuple(worlds))
        return worlds[0], slot

    def _as_example(self, size: object) -> Any:
        """A size that differs from turn to turn, as it is in this one: what is asked of it leaves no guard."""
        trace, number = self.session.size_trace, number_of(size)
        return size if trace is None or not is_symbolic(number) else sized(trace, trace.example(at_hand(number)))

    def _lies_in(
        self, type_: TensorType, ways: tuple[torch.Tensor | None, torch.Tensor | None], world: int
    ) -> Sequence[int] | None:
        """The strides in a world that one of two ways has left; None where not both are known."""
        found = ways[world % 2]
        if found is None or ways[1] is None or any(isinstance(d, UnknownDim) for d in type_.shape or ()):
            return None
        worlds = self.session.recorder.varied.get(self.session.recorder.slot_of(found))
        shown = found if worlds is None or worlds[world] is DEAD else worlds[world]
        return tuple(shown.stride())

    def new_tensor(self, type_: TensorType, site: Site | None) -> Slot:
        session = self.session
        sizes = [d if isinstance(d, int) else 0 for d in type_.shape or ()]
        strides = [d if isinstance(d, int) else 1 for d in type_.strides or strides_of(type_, sizes, None)]
        tensor = session.recorder.fakes.fresh(dtype_to_torch(type_.dtype), sizes, strides, type_.device)
        slot = Slot(tensor, tainted(), "result")
        slot.type = TensorType.of(type_.dtype, sizes, strides, type_.device)
        session.keep.append(tensor)
        kwargs: dict[str, Any] = {"dtype": type_.dtype, "device": Device(type_.device)}
        if type_.strides is None:
            session.append("aten.zeros.default", [sizes], kwargs, [slot], site)
        else:
            session.append("aten.empty_strided.default", [sizes, strides], kwargs, [slot], site)
        return slot

    def item(self, tensor: torch.Tensor) -> Any:
        session, recorder = self.session, self.session.recorder
        slot = recorder.slot_of(tensor)
        type_ = slot_type(slot)
        kind = type_.dtype.kind
        if type_.is_static and type_.numel != 1:
            session.cannot(f"the value of a tensor {type_} was read", "it has not exactly one element")
        known = session.reading.known_value(tensor)
        if known is not None:
            return known
        batch = recorder.packed.first(slot, recorder.elements)
        if batch is not None:
            return batch
        native = session.reading.hint("item")
        examples = self._examples_of(slot, native)
        is_native = native is not None and type(native) is type(examples[0])
        found = ScalarSlot(ITEM_TYPES[kind], examples, is_native)
        found.within = recorder.ranges.of(slot, recorder.records)
        step = step_of(slot, recorder.records) if is_native else None
        session.append("aten.item.default", [slot], {}, [found])
        return wrap(found if step is None else self._as_counted(found, step))

    def _as_counted(self, found: ScalarSlot, step: float) -> ScalarSlot:
        """The number of the first counter that is where this one is, which the graph then expects."""
        paths = self.session.paths
        if not self.session.assumed.counts or not paths.is_on_all:
            return found
        first = paths.regions[-1].counters.first(found, step)
        if first is not found:
            paths.expect(slot_of(self.emit("py.eq", wrap(found), wrap(first))), True)
        return first

    def _examples_of(self, slot: Slot, native: object) -> tuple[object, ...]:
        type_, examples = slot_type(slot), self.session.examples
        if type_.shape == () and type_.dtype.kind != "complex":
            return self.session.recorder.elements.of(slot, examples, native)
        return examples.of(ITEM_TYPES[type_.dtype.kind], native)

    def size(self, tensor: torch.Tensor, dim: Any, what: str) -> object:
        slot = self.session.recorder.slot_of(tensor)
        type_ = slot_type(slot)
        worlds = self.session.recorder.varied.get(slot)
        dim = dim + tensor.dim() if dim < 0 else dim
        known = type_.shape[dim] if what == "size" else _step(type_, dim)
        if worlds is None or not isinstance(known, UnknownDim):
            return own((tensor.shape if what == "size" else tensor.stride())[dim])
        shown = (t if t is DEAD else (tuple(t.shape) if what == "size" else t.stride())[dim] for t in worlds)
        examples = tuple(n if n is DEAD else at_hand(number_of(n)) for n in shown)
        found = ScalarSlot(INT, examples)
        self.session.append(f"aten.sym_{what}.int", [slot, dim], {}, [found])
        return wrap(found)

    def numel(self, tensor: torch.Tensor) -> Any:
        slot = self.session.recorder.slot_of(tensor)
        worlds = self.session.recorder.varied.get(slot)
        with unseen():
            if worlds is None:
                return own(tensor.numel())
            found = ScalarSlot(INT, tuple(t if t is DEAD else at_hand(number_of(t.numel())) for t in worlds))
        self.session.append("aten.sym_numel.default", [slot], {}, [found])
        return wrap(found)

    def widened(self, before: Type, after: Type) -> Type | None:
        return None

    # --- containers --------------------------------------------------------------------------------------------------

    def getitem(self, container: Any, key: Any) -> Any:
        return element(self, container, key)

    def listed(self, items: object) -> Any:
        return items

    def opened(self, items: tuple[object, ...], type_: ListType) -> object:
        return self.session.cannot("a tuple gets longer in a loop")

    def taken_apart(self, container: Any) -> NoReturn:
        self.session.cannot(TAKES_APART)

    def note_held(self, items: Sequence[object]) -> None:
        self.session.copies.note(items)

    def note_merged(self, parts: Sequence[Sequence[Any]], results: Sequence[Slot]) -> None:
        self.session.copies.note_merged(parts, results)

    def check_change(self, container: object) -> None:
        self.session.copies.check_change(container)

    # --- paths -------------------------------------------------------------------------------------------------------

    def check_fork(self) -> None:
        """Paths go on by themselves, each to the program's end."""

    def merger(self, slot: Slot, site: Site | None, why: object, names: Sequence[str]) -> Merger:
        return Merger(self.session, site, why, names)

    def check_unmerge(self, why: object) -> None:
        """What stands in a container is one value or another by the path; which one, the session tells."""

    def left_by(self, values: tuple[object, ...], before: Sequence[object]) -> tuple[object, ...]:
        return values

    # --- operators ---------------------------------------------------------------------------------------------------

    def record(self, overload: Overload, args: OpArgs, kwargs: OpKwargs) -> Any:
        return self.session.recorder.run_in_worlds(overload, args, kwargs)

    def argument(self, arg: object) -> object:
        return arg

    def check_lifted(self, slot: Slot) -> None:
        """Numbers that data make are no plain ones here."""

    def check_write(self, targets: Sequence[object]) -> None:
        """Of each tensor it is known whether it is a view."""


TAKES_APART = "code that is not converted unpacks a traced container"


def element(domain: Any, container: object, key: object) -> Any:
    """An element or a slice of a staged container, as the operator of the graph's that gives it."""
    if isinstance(key, slice):
        return domain.emit("py.slice", container, key.start, key.stop, key.step)
    return domain.emit("py.getitem", container, key)


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


def _step(type_: TensorType, dim: int) -> Any:
    """A stride as the type tells it; of rows one behind the other it is unknown where a size behind it is."""
    if type_.strides is not None:
        return type_.strides[dim]
    return next((size for size in (type_.shape or ())[dim + 1 :] if isinstance(size, UnknownDim)), None)
