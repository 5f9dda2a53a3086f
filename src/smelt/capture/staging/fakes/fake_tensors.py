"""The recorder of a staged run: operators run on fake tensors, in a few worlds where sizes depend on data.

A tensor that the program sees is real where it depends on no data (then operators run on it as always) or was there
before the run (then its fake tensor stands for it in every operator); all results that depend on data are fake tensors.

A size that depends on data has another value in each world (see `symbols`): a size of a result that is equal in all
worlds follows from types, any other one is unknown, printed `_`, and read at run time.

Invariant: no operator that depends on data computes, and none writes to a tensor that was there before the run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs, Overload, read_schema
from smelt._torch.seen.dispatch import unseen
from smelt._torch.seen.record_patches import is_plain_tensor_type
from smelt._torch.seen.staged_fakes import FakeTensors, has_no_kernel, pythons_kernels, wants_numbers
from smelt._torch.storage import same_storage
from smelt.capture.dynamic.arithmetic import at_hand
from smelt.capture.dynamic.dims import dim_of, row_major
from smelt.capture.dynamic.known import KnownValues
from smelt.capture.dynamic.rules import PACKED_LAYERS, TURNS, by_rule, has_rule
from smelt.capture.dynamic.values import for_torch, is_sized, number_of
from smelt.capture.recording.nested import NAMES as NESTED
from smelt.capture.recording.nested import PaddedInstead
from smelt.capture.recording.opinfo import GIVING_BACK_BY_SIZE, METADATA, OpInfo, apart, op_info, targets_of
from smelt.capture.recording.recorder import _CONSTANT_MAKERS, Recorder
from smelt.capture.recording.scopes import Scope
from smelt.capture.recording.tensor_slots import Family, Slot, StateSlot, slot_type
from smelt.capture.staging.fakes.by_trial import by_trial, is_doubtful
from smelt.capture.staging.fakes.elements import Elements
from smelt.capture.staging.fakes.known_layouts import KnownLayouts
from smelt.capture.staging.fakes.laid_out import laid_as_on_cpu
from smelt.capture.staging.fakes.overlaps import check_overlap
from smelt.capture.staging.fakes.raising import may_raise
from smelt.capture.staging.fakes.refusals import refusal_of_kinds
from smelt.capture.staging.fakes.refused_kernels import Doubt, given_all_the_same, has_symbols, in_eagers_words
from smelt.capture.staging.fakes.sizes import rule_of
from smelt.capture.staging.fakes.symbols import DEAD, WORLDS, ScalarSlot, is_staged, slot_of
from smelt.capture.staging.flow.data_slices import CUTTING, Cut, cut_of
from smelt.capture.staging.flow.ranges import Ranges
from smelt.capture.staging.flow.splits import number_of_parts, split_of
from smelt.capture.staging.flow.stops import CannotStage
from smelt.capture.staging.objects.handlers import is_caught
from smelt.capture.staging.objects.packed import Packed
from smelt.capture.staging.objects.unconverted_code import unwatched
from smelt.capture.structure.roots import Roots
from smelt.ir import BOOL, FLOAT, INT, UNKNOWN_DIM, TensorType, UnknownDim, contiguous_strides
from smelt.ops.catalogue.packed import PACK, PAD
from smelt.ops.convert import dtype_from_torch, dummy_of
from smelt.ops.in_place_views import view_of
from smelt.ops.meta import COPYING, ROW_MAJOR
from smelt.ops.registry import overload as found_overload
from smelt.ops.sets import is_by_elements
from smelt.ops.shapes.symbolic import CannotTell

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session

CHANGING_METADATA = frozenset((
    "t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_", "resize_", "resize_as_",
    "set_", "swapaxes", "rename_", "sparse_resize_", "_resize_output_",
))  # fmt: skip


_MOST_TURNS = 10_000  # and parts of a tensor, at some 0.1 ms each without data


class FakeRecorder(Recorder):
    """Records one staged run; `session` answers for values that Python asks for."""

    is_native = False

    def __init__(self, roots: Roots, scope: Scope, session: Session) -> None:
        super().__init__(roots, scope)
        self.session = session
        self.fakes = FakeTensors()
        self.known = KnownValues(self)
        self.layouts: KnownLayouts | None = None
        self.is_indexing = False
        self.varied: dict[Slot, tuple[Any, ...]] = {}
        self.inner: dict[int, Slot] = {}
        self.known_states: dict[int, StateSlot] = {}
        self.spread: dict[int, tuple[ScalarSlot, torch.Tensor]] = {}
        self.entwined: dict[int, tuple[Family, object]] = {}
        self.elements = Elements()
        self.ranges = Ranges()
        self.packed = Packed()
        self.depth = 0
        self._padded = PaddedInstead()

    # --- scopes: what is recorded inside a region is known there only ------------------------------------------------

    def enter(self) -> object:
        """Record into a new list; what `leave` takes."""
        saved = self.records, dict(self._slots)
        self.records = []
        return saved

    def leave(self, saved: Any) -> None:
        """Go back to the list that was recorded into before."""
        records, slots = saved
        for key, slot in self._slots.items():
            # An entry from before may be a dead tensor's, whose id one of an inner region's has now.
            if slots.get(key) is not slot:
                self.inner[key] = slot
        self.records, self._slots = records, slots

    def knows(self, tensor: torch.Tensor, saved: Any = None) -> bool:
        """Whether a tensor was there before the regions that were left; saved: before what `enter` gave that for."""
        known = (self._slots if saved is None else saved[1]).get(id(tensor))
        return (known is not None and known.ref() is tensor) or id(tensor) in self.roots.entries

    def marked(self) -> dict[int, Slot]:
        """What tensors stand for by now; what `back` takes."""
        return dict(self._slots)

    def back(self, known: dict[int, Slot]) -> None:
        """Let tensors stand for what they did (one that an operator gave back as it is stood for its result)."""
        self._slots = known

    def _adopt(self, tensor: torch.Tensor) -> Slot:
        # What a region left is found again where outcomes are merged; the graph's builder refuses any other use.
        left = self.inner.get(id(tensor))
        if left is not None and left.ref() is tensor:
            state = self.known_states.get(id(tensor))
            if state is not None and state.ref() is tensor:
                # An operator of that region wrote the very tensor, or gave it back: it is still what it was before.
                return state
            return left
        with unseen():
            found = super()._adopt(tensor)
        if isinstance(found, StateSlot):
            self.known_states[id(tensor)] = found
        return found

    def base_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A real tensor, where the view is one of its fake tensor."""
        return self.fakes.base_of(tensor)

    def read(self, tensor: torch.Tensor, what: str) -> None:
        if self.slot_of(tensor).family.tainted:
            self.session.cannot(f"Python reads all elements of a tensor by {what}")

    # --- operators ---------------------------------------------------------------------------------------------------

    def _encode(self, arg: object, operands: list[Slot]) -> Any:
        arg = self.session.domain.argument(arg)
        if isinstance(arg, ScalarSlot):
            operands.append(arg)
            return arg
        spread = self.spread_of(arg)
        if self.session.size_trace is not None and is_sized(arg):
            slot = self.session.size_slot(arg)
            if isinstance(slot, Slot):
                operands.append(slot)
            return slot
        if spread is not None or is_staged(arg):
            operands.append(slot_of(arg) if spread is None else spread)
            return operands[-1]
        return super()._encode(arg, operands)

    def _lift(self, tensor: torch.Tensor, slot: Slot) -> None:
        super()._lift(tensor, slot)
        self.session.domain.check_lifted(slot)

    def _write(self, targets: Sequence[object], tainted: bool, info: OpInfo) -> None:
        self.session.domain.check_write(targets)
        super()._write(targets, tainted, info)

    def record(self, overload: Overload, args: OpArgs, kwargs: OpKwargs) -> Any:
        """Note an operator, as what is known of values tells its results. Raises: what eager does; CannotStage."""
        return self.session.domain.record(overload, args, kwargs)

    @unwatched
    def run_in_worlds(self, overload: Overload, args: OpArgs, kwargs: OpKwargs) -> Any:
        """Note an operator whose results tell the fake tensors of all worlds. Raises: what eager does; CannotStage."""
        info = op_info(overload)
        self.session.spend()
        if info.short in NESTED and self._is_tainted(args[:2]):
            found = self._padded.call(self, self.session.decide, info.short, args)
            if found is not NotImplemented:
                return found
        if self.is_indexing and _takes_all(info.name, args):
            return args[0]
        operands: list[Slot] = []
        noted = [self._encode(arg, operands) for arg in args]
        named = {k: self._encode(v, operands) for k, v in kwargs.items()}
        writes = info.written(args, kwargs)
        tainted = info.is_random or any(slot.family.tainted for slot in operands)
        if not tainted and writes and self.depth:
            # Written on one path only: what it holds afterwards depends on data.
            tainted = True
        if not tainted:
            for slot in operands if writes else ():
                if slot.kind == "unknown" and info.short not in _CONSTANT_MAKERS:
                    self.unknown(slot)  # before it is written
            self._check()
            result = overload(*args, **kwargs)
            self._note(info, args, kwargs, result)
            self._check()
            return result
        for slot in operands:
            if slot.kind == "unknown" and not slot.family.tainted and info.short not in _CONSTANT_MAKERS:
                self.unknown(slot)
            tensor = slot.ref()
            if tensor is not None and not is_plain_tensor_type(type(tensor)) and not self._is_ours(tensor):
                self.session.cannot(f"a {type(tensor).__qualname__} was used")
        self._check()
        if may_raise(overload, info, args, operands, self.is_varied) and is_caught(self.session):
            self.session.caught(info.name)
        if not info.returns_tensors:
            return self._scalar(overload, info, args, kwargs, noted, operands)
        if info.short in CHANGING_METADATA:
            self._check_relaid(info, operands[0])
        for one in writes:
            targets = targets_of(one, noted, named)
            self._write(targets, True, info)
            self._check_entwined(targets)
        if writes and (not self.session.paths.is_on_all or any(map(self.is_lazy, operands))):
            # Through what shows the conjugates of its memory a fake tensor is written more often.
            for slot in operands:
                slot.family.is_written_apart = True
        results = self._run_once(overload, info, args, kwargs, operands)
        family = self._family(info, noted, operands, True)
        slots = self._define_worlds(results, family, info)
        if self.session.size_trace is not None:
            self.known.note(overload, info, args, kwargs, operands, slots, results[0])
        if not writes and isinstance(results[0], torch.Tensor) and results[0].dim() == 0:
            self.elements.note(overload, info, noted, named, slots[0])
        self.ranges.note(info.name, args, noted, slots, self.records)
        self.packed.note(info.name, args, slots, self.session.size)
        if info.is_kept:
            self.records.append((info, noted, named, slots, self._find_site(2), self.scope.path, self._modes_now()))
        self._check()
        return results[0]

    def _is_ours(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._slots

    def _check(self) -> None:
        if self.error is not None:
            raise CannotStage("", "", None)

    def _check_sized(self, overload: object, result: object, back: dict[int, Any]) -> None:
        """Raises: CannotStage where a result has given the empty tensor that it was written into its own size."""
        if not any(argument.is_out for argument in read_schema(overload).arguments):
            return
        for fake in result if isinstance(result, (list, tuple)) else (result,):
            given = back.get(id(fake))
            if given is not None and not self.is_varied(self.slot_of(given)) and fake.shape != given.shape:
                self.session.cannot("a result is written into an empty tensor, and gives it a size")

    def _check_relaid(self, info: OpInfo, slot: Slot) -> None:
        """Raises: CannotStage where a tensor gets another layout in place on one path only, or is from outside."""
        if self.depth:
            self.session.cannot(f"{info.name} changes a tensor's sizes on one path only")
        if isinstance(slot, StateSlot) or slot.kind == "input":
            self.session.cannot(f"{info.name} changes the sizes of a tensor from outside", "the graph changes elements")

    def _check_entwined(self, targets: Sequence[object]) -> None:
        """Raises: Again where a write reaches tensors that may share memory with others on some paths."""
        for slot in targets:
            if isinstance(slot, Slot) and id(slot.family) in self.entwined:
                self.session.unmerge(self.entwined[id(slot.family)][1])

    def entwine(self, families: Sequence[Family], why: object) -> None:
        """Note that tensors of these families may share memory, on some paths."""
        for family in families:
            self.entwined.setdefault(id(family), (family, why))

    def spread_of(self, arg: Any) -> ScalarSlot | None:
        """The staged list that a list with one tensor stands for."""
        if type(arg) in (list, tuple) and len(arg) == 1 and id(arg[0]) in self.spread:
            return self.spread[id(arg[0])][0]
        return None

    # --- worlds ------------------------------------------------------------------------------------------------------

    def is_varied(self, slot: Slot) -> bool:
        """Whether what a slot stands for differs between worlds."""
        return slot in self.varied or isinstance(slot, ScalarSlot)

    def is_lazy(self, value: object) -> bool:
        """Whether a value is a tensor that shows the conjugates, or the negatives, of what its memory holds.

        No type says so: what regions hand on and what containers hold is taken to show its memory as it is.
        """
        tensor = value.ref() if isinstance(value, Slot) else value
        if not isinstance(tensor, torch.Tensor):
            return False
        with unseen():
            return tensor.is_neg() or (tensor.dtype.is_complex and tensor.is_conj())

    def becomes(self, cls: type) -> None:
        if cls is not torch.Tensor:
            self.session.cannot(
                f"a tensor becomes a {cls.__qualname__}", "a subclass may give operators another meaning"
            )

    def _is_tainted(self, args: Sequence[object]) -> bool:
        return any(self.slot_of(arg).family.tainted for arg in args if isinstance(arg, torch.Tensor))

    def in_world(self, arg: Any, world: int, back: dict[int, Any] | None = None) -> Any:
        """What stands for an argument in a world. Raises: _DeadWorldError."""
        if isinstance(arg, torch.Tensor):
            slot = self.slot_of(arg)
            found = self.fakes.of(arg) if world == 0 or slot not in self.varied else self.varied[slot][world]
        elif is_staged(arg):
            found = slot_of(arg).worlds[world]
        elif self.spread_of(arg) is not None:
            found = self.spread_of(arg).worlds[world]  # type: ignore[union-attr]
            if found is not DEAD:
                return [self.in_world(arg[0], world)] * len(found)
        elif isinstance(arg, (list, tuple)):
            return [self.in_world(item, world, back) for item in arg]
        else:
            return for_torch(arg)
        if found is DEAD:
            raise _DeadWorldError
        if back is not None and isinstance(arg, torch.Tensor):
            back[id(found)] = arg
        return found

    def _run_once(
        self, overload: object, info: OpInfo, args: OpArgs, kwargs: OpKwargs, operands: list[Slot]
    ) -> list[Any]:
        """As `_run`, from what is known where the operator ran on operands that lie alike."""
        varied = [slot for slot in operands if self.is_varied(slot)]
        if varied and not self._takes_any_number(info, varied):
            return self._run(overload, info, args, kwargs, operands)
        layouts = self.layouts = self.layouts or KnownLayouts(self.session.size_trace, self.fakes)
        with unseen():
            key = layouts.key(info, args, kwargs, self._modes_now())
            found = None if key is None else layouts.find(key, args)
        if found is not None:
            return [found]
        results = self._run(overload, info, args, kwargs, operands, differ=False)
        if key is not None and len(results) == 1:
            with unseen():
                layouts.note(key, args, results[0], bool(info.writes))
        return results

    def _takes_any_number(self, info: OpInfo, varied: Sequence[Slot]) -> bool:
        """Whether no more than numbers differ between worlds, on which nothing depends but elements."""
        are_numbers = all(isinstance(slot, ScalarSlot) and slot.type in (BOOL, INT, FLOAT) for slot in varied)
        return are_numbers and not info.is_random and is_by_elements(info.name)

    def _run(
        self, overload: object, info: OpInfo, args: OpArgs, kwargs: OpKwargs, operands: list[Slot],
        *, differ: bool = True,
    ) -> list[Any]:  # fmt: skip
        """The results in each world, or in the only one. differ: those in other worlds may lie otherwise, unless the
        first one has none."""
        numbers: tuple[object, ...] | None = None
        rule = None
        if info.sized_by is not None and self._is_sized_by_data(info, args, kwargs):
            rule, numbers = rule_of(info.name), self._fresh_numbers(info.name, args)
            if rule is None:
                self.session.cannot(f"the sizes of what {info.name} gives follow from data")
        differ = differ and any(self.is_varied(slot) for slot in operands)
        varied = numbers is not None or differ
        if info.sized_by is not None and not varied and len(info.sized_by(args, kwargs)) > 0:
            return [self._sized_by_known(overload, info, args, kwargs)]
        cut = self._cut(info.name, args, kwargs) if varied else None
        split = split_of(info.name, args, kwargs, self.session.examples) if varied else None
        results, reason = [], ""
        backs: list[dict[int, object]] = []
        for world in range(WORLDS if varied else 1):
            back: dict[int, object] = {}
            backs.append(back)
            try:
                own_args = [self.in_world(a, world, back) for a in args]
                own_kwargs = {k: self.in_world(v, world, back) for k, v in kwargs.items()}
                if info.name == "aten.select.int" and is_staged(args[2]):
                    # Which one it is does not show in the type; where there is none, eager raises.
                    own_args[2] = 0
                self._check_overlap(info, overload, own_args, own_kwargs, varied)
                self._check_kinds(info, overload, own_args, own_kwargs, varied)
                if varied and number_of_parts(info.name, own_args, own_kwargs) > _MOST_TURNS:
                    self.session.cannot(f"{info.name} gives a number of tensors that depends on data")
                if cut is not None:
                    results.append(cut.fake(self.fakes, self.session.size_trace, overload, own_args, world))
                    continue
                if split is not None:
                    results.append(split.fakes(self.fakes, self.session.size_trace, own_args[0], world))
                    continue
                found = self._by_rule(info, own_args, own_kwargs)
                if found is not None:
                    results.append(found)
                    continue
                with self.fakes.running():
                    if rule is None or numbers is None:
                        result = self._run_symbolic(overload, info, own_args, own_kwargs)
                        if info.name in COPYING:
                            result = result.clone()
                        if info.short in ROW_MAJOR:
                            result = result.contiguous()
                        if overload in GIVING_BACK_BY_SIZE and varied:
                            result = apart(result, own_args)
                    else:
                        result = rule(overload, own_args, own_kwargs, numbers[world], self._make)
                result = self._as_on_cpu(info, own_args, own_kwargs, result)
            except _DeadWorldError:
                result = DEAD
            except Exception as refused:
                if not differ and any(map(self.is_varied, operands)):
                    return self._run(overload, info, args, kwargs, operands)  # by the numbers of another world, maybe
                # Where no call is left, to doubt would be one more.
                is_deep = isinstance(refused, RecursionError)
                result = DEAD if is_deep else self._doubted(refused, info, own_args, own_kwargs)
                if result is DEAD and not varied:
                    said = refused if info.is_random else in_eagers_words(overload, own_args, own_kwargs, refused)
                    if is_caught(self.session) and any(map(has_symbols, (*own_args, *own_kwargs.values()))):
                        self.session.cannot(f"{info.name} raises what is caught", "its text names sizes that are free")
                    self._refused(said, info)
                reason = f"{type(refused).__name__}: {refused}"
            results.append(result)
        if results[0] is DEAD and not differ and any(map(self.is_varied, operands)):
            return self._run(overload, info, args, kwargs, operands)
        # Where the numbers of the program's world do not fit together, it goes on with those of another one.
        seen = next((world for world, result in enumerate(results) if result is not DEAD), None)
        if seen is None:
            return self.session.cannot(
                f"{info.name} has no fake tensor", reason or "no assignment of sizes fits its operands"
            )
        if cut is not None:
            operands_in = [DEAD if r is DEAD else self.in_world(args[0], world) for world, r in enumerate(results)]
            results = cut.told_apart(self.fakes, self.session.size_trace, overload, results, operands_in)
        if split is not None and not split.told_apart(results):
            self.session.cannot("a tensor is split into more slices than it has items, by sizes that depend on data")
        if info.writes:
            self._check_sized(overload, results[seen], backs[seen])
        self._check_given_back(results, backs, operands)
        # The program sees the operand itself; what stands for it in other worlds keeps the sizes of these.
        results[0] = give_back(results[seen], backs[seen])
        if varied and sum(r is not DEAD for r in results[1:]) == 0:
            results[1:] = [DEAD] * (WORLDS - 1)
        return results

    def _is_sized_by_data(self, info: OpInfo, args: OpArgs, kwargs: OpKwargs) -> bool:
        """Whether data tell the sizes of an operator's results, or sizes do of which no expression is known."""
        deciding = info.sized_by(args, kwargs) if info.sized_by is not None else ()
        if self._deciding(deciding) is not None:
            return True
        is_open = any(not slot_type(self.slot_of(a)).is_static for a in args if isinstance(a, torch.Tensor))
        return len(deciding) > 0 and is_open and rule_of(info.name) is not None

    def _fresh_numbers(self, name: str, args: Sequence[object]) -> tuple[object, ...]:
        """The numbers of each world that decide sizes of an operator's results."""
        numbers: tuple[int, ...] = self.session.reading.fresh_numbers(name)
        if name not in (PACK, PAD):
            return numbers
        batch = self.packed.batch(self.slot_of(args[1])) if name == PAD else None
        if batch is None:
            return tuple(zip(numbers, self.session.reading.fresh_numbers(name), strict=True))
        return tuple((number, self.in_world(batch, world)) for world, number in enumerate(numbers))

    def _check_given_back(self, results: list[Any], backs: list[dict[int, object]], operands: list[Slot]) -> None:
        """Raises: Again where a branch decides whether an operand is given back, as it lies (`x.contiguous()`)."""
        given = {id(result) in back for result, back in zip(results, backs, strict=True) if result is not DEAD}
        if len(given) == 2:
            why, *_ = self.session.paths.sides_of.get(operands[0], (None,))
            if why is not None:
                self.session.unmerge(why)

    def _check_overlap(self, info: OpInfo, overload: object, args: list[Any], kwargs: OpKwargs, varied: bool) -> None:
        """Raises: what eager does for an operand that is written and read in part."""
        try:
            check_overlap(info, overload, args, kwargs)
        except Doubt as doubt:
            self.session.cannot(f"{info.name} writes what it reads", str(doubt))
        except RuntimeError as refused:
            if varied:
                self.session.cannot(
                    f"{info.name} refused a fake tensor: {refused}", "for some sizes, which follow from data"
                )
            raise

    def _check_kinds(self, info: OpInfo, overload: object, args: list[Any], kwargs: OpKwargs, varied: bool) -> None:
        """Raises: what eager says to operands of these kinds."""
        refusal = refusal_of_kinds(overload, info.name, args, kwargs, bool(info.writes))
        if refusal is None:
            return
        if not refusal.of_empty:
            # It raises for elements only, and there may be none.
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
            if varied or any(type(size) is not int for t in tensors for size in t.shape):
                self.session.cannot(f"{info.name} refuses its operands unless they are empty: {refusal.text}")
            if any(t.numel() == 0 for t in tensors):
                return
        raise refusal.kind(refusal.text)

    def _sized_by_known(self, overload: Overload, info: OpInfo, args: OpArgs, kwargs: OpKwargs) -> Any:
        """The result where all that decides its sizes depends on no data: of the operator on that, the rest zeros."""

        def stand_in(arg: object) -> object:
            if isinstance(arg, (list, tuple)):
                return [stand_in(item) for item in arg]
            if not isinstance(arg, torch.Tensor) or not self.slot_of(arg).family.tainted:
                return arg
            type_ = tensor_type_of(self.slot_of(arg))
            if not type_.is_static:
                self.session.cannot(f"the sizes of what {info.name} gives follow from known data and from sizes")
            return dummy_of(type_).zero_()

        with unseen(), torch.no_grad():
            found = overload(*map(stand_in, args), **{k: stand_in(v) for k, v in kwargs.items()})
            return tuple(map(self.fakes.of, found)) if isinstance(found, tuple) else self.fakes.of(found)

    def _cut(self, name: str, args: OpArgs, kwargs: OpKwargs) -> Cut | None:
        if name not in CUTTING:
            return None
        slot = self.slot_of(args[0])
        with unseen():
            shape = slot_type(slot).shape
            dims = (
                None
                if shape is None
                else [
                    None if isinstance(d, UnknownDim) else number_of(n)
                    for d, n in zip(shape, args[0].shape, strict=True)
                ]
            )
            return cut_of(name, args, kwargs, dims)

    def _run_symbolic(self, overload: Overload, info: OpInfo, args: list[Any], kwargs: OpKwargs) -> Any:
        trace = self.session.size_trace
        if trace is None:
            return overload(*args, **kwargs)
        if info.name == "aten.resize_as_.default" and len(args) == 2 and not kwargs:
            return args[0].resize_(args[1].shape)  # torch's own kernel takes numbers only
        view = view_of(info.name)
        if view is not None and info.short != "detach_":
            # torch's own kernels for these recurse without end where a size is a symbol and nothing is to be done.
            laid = self._run_symbolic(found_overload(view), op_info(found_overload(view)), args, kwargs)
            return args[0].as_strided_(laid.shape, laid.stride(), laid.storage_offset())
        before = trace.mark()
        try:
            found = overload(*args, **kwargs)
            if trace.fixed_since(before) == 0:
                return found
        except RuntimeError as error:
            if has_no_kernel(error):
                trace.back(before)  # what it has asked of sizes until then led to nothing
            if not wants_numbers(error):
                raise
            found = None
        first = trace.mark()
        # C's kernel fixed a size, or takes none that is a symbol: torch's Python kernel may do without.
        trace.back(before)
        try:
            with pythons_kernels():
                other = overload(*args, **kwargs)
        except Exception:
            if found is None:
                raise
            other = None
        if found is not None and (other is None or trace.fixed_since(before) >= trace.fixed_since(before, first)):
            trace.back(before)
            return overload(*args, **kwargs)
        return other

    def _by_rule(self, info: OpInfo, args: list[Any], kwargs: OpKwargs) -> Any:
        if not has_rule(info.name, self.session.size_trace):
            return None
        with unseen():
            found = by_rule(self.fakes, self.session.size_trace, info.name, args, kwargs)
        if found is None and info.name in PACKED_LAYERS:  # torch's kernel reads the lengths' data, which are not there
            self.session.cannot(f"{info.name} has no kernel without data", "with gradients")
        if found is None and info.name in TURNS and max(args[0].shape) > _MOST_TURNS:
            self.session.cannot(
                f"{info.name} takes a number of steps that depends on data", "with gradients or dropout"
            )
        return found

    def _as_on_cpu(self, info: OpInfo, args: list[Any], kwargs: OpKwargs, said: object) -> Any:
        """What the operator gives on the CPU: what its kernel without data said in the CPU's layout, or, where that
        is in doubt, what trials tell. (They cannot tell of views.)
        """
        if (info.name in self.session.assumed.trials or is_doubtful(said)) and not _is_view(said):
            tried = self._tried(info, args, kwargs)
            return said if tried is DEAD else tried
        with unseen():
            return laid_as_on_cpu(self.fakes, self.session.size_trace, info, args, kwargs, said)

    def _tried(self, info: OpInfo, args: list[Any], kwargs: OpKwargs, refused: bool = False) -> object:
        """What the operator gives on the CPU, DEAD where trials do not tell."""
        if info.writes or info.sized_by is not None:
            return DEAD
        try:
            return by_trial(self.fakes, self.session.size_trace, info.name, args, kwargs, is_refused=refused)
        except CannotTell:
            return DEAD

    def _doubted(self, refused: Exception, info: OpInfo, args: list[Any], kwargs: OpKwargs) -> Any:
        """What the operator gives although its kernel without data refused; DEAD where eager raises, too."""
        if has_no_kernel(refused):
            tried = self._tried(info, args, kwargs, refused=True)
            if tried is DEAD:
                self.session.cannot(f"{info.name} has no kernel without data", str(refused))
            return tried
        try:
            found = given_all_the_same(self.fakes, info.name, args, kwargs, refused)
        except Doubt as doubt:
            self.session.cannot(f"{info.name} refused a fake tensor: {refused}", str(doubt))
        return DEAD if found is None else found

    def _refused(self, refused: Exception, info: OpInfo) -> NoReturn:
        if not isinstance(refused, (RuntimeError, IndexError, TypeError, ValueError)):
            self.session.cannot(f"{info.name} refused a fake tensor: {type(refused).__name__}: {refused}")
        # Types alone decided, as in eager: the program may expect it.
        self.session.note_refused(refused)
        raise refused

    @staticmethod
    def _make(dtype: torch.dtype, sizes: Sequence[int]) -> torch.Tensor:
        return torch.empty(tuple(sizes), dtype=dtype)

    def _define_worlds(self, results: list[Any], family: Family, info: OpInfo) -> tuple[Any, ...]:
        if not info.result_count:
            return ()
        if info.result_count == 1:
            return (self._define_one(results, family),)
        return tuple(
            self._define_one([r if r is DEAD else r[i] for r in results], family) for i in range(info.result_count)
        )

    def _define_one(self, results: list[Any], family: Family) -> object:
        first = results[0]
        if isinstance(first, (list, tuple)):
            if any(r is not DEAD and len(r) != len(first) for r in results):
                self.session.cannot("the number of tensors that an operator gives follows from data")
            if len(results) > 1 and all(r is DEAD for r in results[1:]):
                self.session.cannot("the number of tensors that an operator gives may follow from data")
            return [self._define_one([r if r is DEAD else r[i] for r in results], family) for i in range(len(first))]
        slot = self._define(first, family)
        if isinstance(slot, Slot) and len(results) > 1:
            self.vary(slot, results)
        return slot

    def vary(self, slot: Slot, worlds: Sequence[object]) -> None:
        """Give a tensor's slot its fake tensors in the other worlds, and the type that holds for all of them."""
        found = type_in_worlds(worlds)
        if found is not None:
            slot.type = found
            self.varied[slot] = tuple(worlds)

    # --- numbers that Python asks for --------------------------------------------------------------------------------

    def _scalar(
        self, overload: Overload, info: OpInfo, args: OpArgs, kwargs: OpKwargs, noted: list[Any],
        operands: list[Slot],
    ) -> object:  # fmt: skip
        session = self.session
        if info.short in ("item", "_local_scalar_dense"):
            return session.item(args[0])
        if info.short == "is_nonzero":
            return session.answer(operands[0] if session.questions is None else _truth(session, args[0]))
        if info.short in ("equal", "allclose"):
            return session.answer(session.reading.scalar_call(info.name, args, kwargs, bool))
        if info.short == "is_set_to" and not any(self.is_varied(slot) for slot in operands):
            with unseen():
                return _is_set_to(*[self.in_world(a, 0) for a in args])
        if info.short in METADATA and not any(self.is_varied(slot) for slot in operands):
            with self.fakes.running():
                return overload(*[self.in_world(a, 0) for a in args], **kwargs)
        session.cannot(f"{info.name} gives Python what depends on data")


def _is_set_to(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors show the same memory alike, which torch denies of sizes that are free."""
    if one.dim() != other.dim() or not same_storage(one, other):
        return False
    shown = [(t.storage_offset(), *t.shape, *t.stride()) for t in (one, other)]
    return all(bool(number_of(a) == number_of(b)) for a, b in zip(*shown, strict=True))


def _is_view(result: object) -> bool:
    return isinstance(result, torch.Tensor) and result._is_view()


def _truth(session: Session, tensor: torch.Tensor) -> Slot:
    """The truth of a tensor as a number of the graph."""
    return slot_of(session.emit("py.bool", tensor))


def _takes_all(name: str, args: Sequence[object]) -> bool:
    """Whether a slice is of the whole."""
    bounds = args[2:]
    return (
        name == "aten.slice.Tensor" and all(type(b) is int for b in bounds) and [*bounds, 1][:3] == [0, sys.maxsize, 1]
    )


class _DeadWorldError(Exception):
    """An operand has no value in this world."""


def give_back(result: Any, back: dict[int, object]) -> Any:
    """Results with the operands themselves where an operator gave these."""
    if isinstance(result, torch.Tensor):
        return back.get(id(result), result)
    if type(result) in (list, tuple):
        return type(result)(give_back(item, back) for item in result)
    return result


def type_in_worlds(worlds: Sequence[Any]) -> TensorType | None:
    """The type that holds in all worlds; None where the first one's own type does."""
    alive = [t for t in worlds if t is not DEAD]
    first = alive[0]
    shapes = [tuple(map(dim_of, t.shape)) for t in alive]
    strides = [tuple(map(dim_of, t.stride())) for t in alive]
    is_open = any(isinstance(d, UnknownDim) for d in (*shapes[0], *strides[0]))
    if len(alive) > 1 and all(s == shapes[0] for s in shapes) and all(s == strides[0] for s in strides) and not is_open:
        return None
    rank = first.dim()
    if any(t.dim() != rank for t in alive):
        return TensorType(dtype_from_torch(first.dtype), None, None, str(first.device))

    def dims(found: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        if len(alive) == 1:
            return (UNKNOWN_DIM,) * rank
        return tuple(d[0] if all(e == d[0] for e in d) else UNKNOWN_DIM for d in zip(*found, strict=True))

    shape = dims(shapes)
    plain = len(alive) > 1 and all(map(_is_row_major, alive))
    steps = None if plain else dims(strides)
    return TensorType(dtype_from_torch(first.dtype), shape, steps, str(first.device))


def _is_row_major(tensor: torch.Tensor) -> bool:
    sizes = tuple(map(dim_of, tensor.shape))
    if tuple(map(dim_of, tensor.stride())) != row_major(tensor.shape, sizes):
        return False
    # Of sizes that data decide no expression is known, only what they are in this world.
    shape, steps = ([at_hand(number_of(n)) for n in numbers] for numbers in (tensor.shape, tensor.stride()))
    return 0 in shape or tuple(steps) == contiguous_strides(tuple(shape))


def tensor_type_of(slot: Slot) -> TensorType:
    """The type of a tensor's slot."""
    found: TensorType = slot_type(slot)
    return found
