"""The recorder: one record per operator, tensors by slot and held weakly, and what depends on data.

Invariant: a slot stands for one tensor object at one point of the program. A tensor is known by its identity *and* its
weak reference, so that an id which is used again after a tensor died never stands for the dead one. Whatever has no
slot and was not reachable before the run is an error, never a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from sys import setprofile
from typing import Any, ClassVar

import torch

from smelt._torch.collectives import is_functional, wait
from smelt._torch.library.schemas import OpArgs, OpKwargs, Overload
from smelt._torch.seen.mode_regions import Regions
from smelt._torch.seen.record_modes import Modes, modes
from smelt._torch.seen.record_patches import (
    is_going_backward,
    is_plain_tensor_type,
    is_transform_wrapper,
    is_uninitialized,
    takes_operators,
)
from smelt._torch.state import default_dtype, is_any_autocast, is_grad_enabled, is_inference
from smelt._torch.storage import is_zero
from smelt.capture.reads.filled_caches import is_filling
from smelt.capture.recording.earlier_gradients import let_go_of
from smelt.capture.recording.gradients import Spent
from smelt.capture.recording.lent_memory import LentMemory, is_comparable
from smelt.capture.recording.nested import NAMES as NESTED
from smelt.capture.recording.nested import NestedTensors
from smelt.capture.recording.opinfo import OpInfo, expectation, op_info, targets_of
from smelt.capture.recording.scopes import Scope
from smelt.capture.recording.spans import Site, SiteFinder, Spans, running_codes
from smelt.capture.recording.tensor_slots import (
    Conversion,
    Family,
    Record,
    Slot,
    StateSlot,
    UnknownSlot,
    conversion_error,
    slot_type,
)
from smelt.capture.recording.zeros import MAKER as ZEROS
from smelt.capture.recording.zeros import note_zeros
from smelt.capture.staging.objects.handlers import is_caught
from smelt.capture.structure.roots import Roots
from smelt.diag import CaptureError, InternalError, SmeltError, Span
from smelt.diag.events import watched
from smelt.ops.convert import strided_copy
from smelt.ops.python.python_ops import ATTEMPT_KEYWORDS
from smelt.ops.ranks.collectives import COLLECTIVES
from smelt.ops.registry import overload as found_overload

_TENSOR, _LIST, _OTHER = 1, 2, 0
# Operators that give Python a value which follows from data, and what the graph compares instead.
_EXPECTED = {
    "is_nonzero": "bool", "item": "item", "_local_scalar_dense": "item", "equal": "equal", "allclose": "allclose",
}  # fmt: skip
_READINGS = ("bool", "item", "equal", "allclose", "sizes", "offset", "elements", "error")
_EXPECT = {kind: expectation(kind) for kind in _READINGS}
# What reads elements past the dispatcher and can be compared; some give Python the very memory.
_ELEMENT_READS = frozenset(("tolist", "numpy", "__array__", "__repr__", "tensor", "as_tensor", "new_tensor"))
_LENDING = frozenset(("numpy", "__array__"))
_WRITING = frozenset((*_LENDING, "__dlpack__", "apply_", "map_", "map2_"))
_SHOWN = 16
_CONSTANT_MAKERS = frozenset(("lift_fresh", "lift", "lift_fresh_copy"))
_DUAL = frozenset(("_make_dual", "_unpack_dual"))
_BLANK_MAKERS = frozenset(("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted"))


@dataclass
class Recorder:
    """Records one run. `record` is what the dispatcher's hook calls; the rest is read afterwards.

    specialize: what Python read of data is recorded as an expectation, where it can be compared, and is no error.
    reruns: a call whose graph raises is run again natively, so that operators may raise where the program catches; else
        the graph expects what they raise there.
    flags: by source line, what the program read of its tensors that no operator tells and no input's type does.
    kept: for what the run made and a cache keeps, the last record that made it, and what a later call finds there.
    is_rank: it ran a rank's model, so that what is exchanged for its gradients stands in the graph.
    is_unseen: something may have been written where it is not seen: by torch's own compilers and tracers, by other
        processes, through memory that Python got, or by an operator that raised.
    own_backward: the first `torch.autograd.Function` that ran, if any: its gradient is no operator's; own_site: where.
    checkpoints: what was recorded in regions of `torch.utils.checkpoint`, as numbers of records.
    spent: the histories that the program itself went back through. leaves: those that got gradients there, by id, with
    the gradients that they had. unset: those that required gradients, and then none any more. bare: ids of those whose
    gradients were gone before the first operator, where all were.
    """

    is_native: ClassVar[bool] = True  # the run is on tensors with data, and its answer is the program's

    roots: Roots
    scope: Scope
    at_entry: bool = True
    specialize: bool = False
    reruns: bool = False
    has_caught: bool = False
    records: list[tuple[Any, ...]] = field(default_factory=list)
    inputs: list[Slot] = field(default_factory=list)
    states: list[StateSlot] = field(default_factory=list)
    constants: dict[Slot, torch.Tensor] = field(default_factory=dict)
    conversions: list[Conversion] = field(default_factory=list)
    error: SmeltError | None = None
    flags: dict[Span | None, str] = field(default_factory=dict)
    own_backward: str = ""
    own_site: Site | None = None
    checkpoints: list[tuple[int, int]] = field(default_factory=list)
    is_unseen: bool = False
    is_rank: bool = False
    drew_for_cache: bool = False
    kept: dict[Slot, tuple[int, StateSlot]] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)
    leaves: dict[int, tuple[torch.Tensor, object]] = field(default_factory=dict)
    unset: dict[int, torch.Tensor] = field(default_factory=dict)
    bare: frozenset[int] | None = None
    lent: LentMemory = field(default_factory=LentMemory)
    _dtype: torch.dtype = field(default_factory=default_dtype)
    regions: Regions = field(default_factory=Regions)
    _modes: dict[object, Modes] = field(default_factory=dict)
    _slots: dict[int, Slot] = field(default_factory=dict)
    _kinds: dict[type, int] = field(
        default_factory=lambda: {torch.Tensor: _TENSOR, torch.nn.Parameter: _TENSOR, list: _LIST, tuple: _LIST}
    )
    _find_site: SiteFinder = field(default_factory=SiteFinder)
    _spans: Spans = field(default_factory=Spans)
    _origins: dict[Slot, str] = field(default_factory=dict)
    base_frame: Any = None  # where the program is called from, while it runs
    _has_zeros: bool = False
    _nested: NestedTensors = field(default_factory=NestedTensors)

    def add_input(self, tensor: torch.Tensor) -> None:
        """Make a tensor the graph's next input."""
        slot = Slot(tensor, Family(True), "input")
        self.inputs.append(slot)
        self._slots[id(tensor)] = slot

    # --- the hot path: about 4 us an operator -----------------------------------------------------------------------

    def record(self, overload: Overload, args: OpArgs, kwargs: OpKwargs) -> Any:
        """Run an operator and note it. Raises: whatever the operator raises, and nothing else."""
        try:
            result = overload(*args, **kwargs)
        except Exception as error:
            self._quietly(self._note_error, overload, args, kwargs, error)
            raise
        self._quietly(self._note, overload, args, kwargs, result)
        return result

    def _quietly(
        self,
        note: Callable[..., None],
        overload: Overload,
        args: OpArgs,
        kwargs: OpKwargs,
        result: object,
    ) -> None:
        """Note what a call did, unseen by what watches the program."""
        resume = watched.resume
        if resume is not None:
            setprofile(None)
        try:
            note(op_info(overload), args, kwargs, result)
        except Exception as broken:
            # The program must go on as if nobody watched.
            self._broken(broken, overload, (*args, *kwargs.values(), result))
        finally:
            if resume is not None:
                resume()

    def noted(self, note: Callable[..., None], tensor: torch.Tensor, *args: object) -> None:
        """Note what Python did with a tensor. What fails there is the recorder's error, and the program goes on."""
        try:
            note(tensor, *args)
        except Exception as broken:
            self._broken(broken, getattr(note, "__name__", "a note"), (tensor,))

    def _note_error(self, info: OpInfo, args: tuple[object, ...], kwargs: OpKwargs, raised: Exception) -> None:
        """An operator raised: where data made it and the program catches that, it has read them."""
        writes = bool(info.written(args, kwargs))
        self.is_unseen |= writes
        if not (info.raises or writes):
            return  # for types and numbers, as it would in each run of the graph
        operands: list[Slot] = []
        noted = [self._encode(arg, operands) for arg in args]
        named = {k: self._encode(v, operands) for k, v in kwargs.items()}
        if writes and not is_inference():
            self._note_late_refusal(info, operands)
        if not info.raises:
            return
        slot = next((slot for slot in operands if slot.family.tainted), None)
        if slot is None:
            return
        text = f"{type(raised).__module__}.{type(raised).__qualname__}: {raised.args[0] if raised.args else ''}"
        if not self._expect_error(info, slot, noted, named, text):
            self.converted(slot, f"error of {info.short}")

    def _note_late_refusal(self, info: OpInfo, operands: Sequence[Slot]) -> None:
        """Fail where torch refused to write to an inference tensor: it does so when it counts the write, once done."""
        tensors = [slot.ref() for slot in operands]
        if any(tensor is not None and tensor.is_inference() for tensor in tensors):
            self.fail(
                f"{info.name} raised, and may have written to an inference tensor before that",
                "torch refuses such a write outside of inference mode only when it has been done",
                "write to a .clone() of the tensor, or in torch.inference_mode()",
                "S0104",
            )

    def _expect_error(self, info: OpInfo, slot: Slot, noted: list[Any], named: OpKwargs, text: str) -> bool:
        """Record what an operator raises here, or that it does not; whether it could be."""
        name = info.name
        if info.written(noted, named):
            base, _, variant = info.name.removeprefix("aten.").partition(".")
            name = f"aten.{base.removesuffix('_')}.{variant}"
            if not base.endswith("_") or found_overload(name) is None:
                return False
        if not self.specialize or info.is_random or not ATTEMPT_KEYWORDS.issuperset(named):
            return False
        self._expect("error", [name, *noted], named, text)
        self._note_conversion("S0101", slot, f"error of {info.short}", text)
        return True

    def _note(self, info: OpInfo, args: OpArgs, kwargs: OpKwargs, result: Any) -> None:
        if info.short == ZEROS or self._has_zeros:
            self._has_zeros = True
            if note_zeros(self, info, args, kwargs, result):
                return
        if info.short in _DUAL:
            self.fail(
                "forward-mode gradients are computed in the program (torch.autograd.forward_ad)",
                "a tensor then has a tangent beside its elements, and a graph cannot represent tangents",
                "use torch.func.jvp or torch.func.jacfwd, whose operators are recorded",
                "S0104",
            )
        if info.is_collective and not self._note_collective(info):
            return
        if info.short == "_add_batch_dim":
            self._fail_in_transform(None)
        if info.short in NESTED and self._nested.note(self, info.short, args, result):
            return
        operands: list[Slot] = []
        noted = []
        slots, kinds = self._slots, self._kinds
        for arg in args:
            if kinds.get(type(arg)) == _TENSOR:
                slot = slots.get(id(arg))
                if slot is None or slot.ref() is not arg:
                    slot = self._adopt(arg)
                operands.append(slot)
                noted.append(slot)
            else:
                noted.append(self._encode(arg, operands))
        named = {k: self._encode(v, operands) for k, v in kwargs.items()} if kwargs else kwargs
        tainted = info.is_random
        if tainted and is_filling(self.roots.fillers):
            self.drew_for_cache = True
        for slot in operands:
            if slot.family.is_foreign and self.lent:
                self.lent.check_unwritten(self)
            if slot.family.tainted:
                tainted = True
            elif slot.kind == "unknown" and info.short not in _CONSTANT_MAKERS:
                self.unknown(slot)
        if not info.returns_tensors:
            self._python_result(info, operands, noted, named, tainted, result)
            return
        if info.raises and is_caught(self):
            deciding = next((slot for slot in operands if slot.family.tainted), None)
            if self.reruns:
                self.has_caught = self.has_caught or deciding is not None
            elif deciding is not None:
                self._expect_error(info, deciding, noted, named, "")
        deciding = None
        if info.sized_by is not None and tainted:
            deciding = self._deciding(info.sized_by(args, kwargs))
            if deciding is not None and not self.specialize:
                self.converted(deciding, info.name, "S0102")
        for one in info.written(args, kwargs):
            self._write(targets_of(one, noted, named), tainted, info)
        if info.short in _CONSTANT_MAKERS:
            self._lift(args[0], operands[0])
        family = self._family(info, noted, operands, tainted)
        if not info.result_count:
            results: tuple[object, ...] = ()
        elif info.result_count == 1:
            results = (self._define(result, family),)
        else:
            results = tuple([self._define(r, family) for r in result])
        if info.is_kept:
            if self.bare is None:
                self.bare = let_go_of(self)
            # A plain tuple costs a third of a Record.
            self.records.append((info, noted, named, results, self._find_site(2), self.scope.path, self._modes_now()))
        if deciding is not None and self.specialize:
            self._expect_sizes(info, results, deciding)

    def note(self, info: OpInfo, args: tuple[object, ...], kwargs: OpKwargs, result: object) -> None:
        """Note a call that stands for what the program did. Raises: what noting it raises."""
        self._note(info, args, kwargs, result)

    def _modes_now(self) -> Modes:
        if default_dtype() is not self._dtype:
            self.fail(
                f"the program sets torch's default dtype, {default_dtype()} in place of {self._dtype}",
                "an operator without a dtype argument makes another dtype than it does in the graph",
                "give dtype= to what makes tensors here, or set the default before the call",
                "S0104",
            )
        regions = self.regions
        # Autograd itself sets the mode for what it computes.
        is_set = regions.is_set or is_going_backward()
        if self.at_entry and is_any_autocast():
            times = regions.times_cleared
            # Whether the caller's region keeps casts may be otherwise at the next call.
            cache = times if times == 0 or torch.is_autocast_cache_enabled() else -1
            return modes()._replace(is_set=is_set, without_autocast=regions.without_autocast, cache=cache)
        key = (is_grad_enabled(), is_inference(), (), is_set, regions.without_autocast)
        found = self._modes.get(key)
        if found is None:
            found = self._modes[key] = Modes(*key)
        return found

    def _broken(self, cause: Exception, overload: object, met: Sequence[object]) -> None:
        self.check_nested(value for value in met if isinstance(value, torch.Tensor))
        if self.error is None:
            site = self._find_site(2)
            self.error = InternalError(
                f"the recorder failed at {overload}: {type(cause).__name__}: {cause}",
                site.span if site else None,
                why="this is a defect of Smelt; the program itself ran as always",
                fix="report it with the program",
            )
            self.error.__cause__ = cause

    def check_nested(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Fail where a tensor is nested; whether one is."""
        if not any(tensor.is_nested for tensor in tensors):
            return False
        self.fail(
            "a nested tensor was used",
            "the rows of a nested tensor have sizes of their own, which no type of the graph tells",
            "pad the rows (torch.nn.utils.rnn.pad_sequence), or keep them in a list",
            "S0104",
        )
        return True

    def _encode(self, arg: Any, operands: list[Slot]) -> Any:
        cls = type(arg)
        kind = self._kinds.get(cls)
        if kind is None:
            kind = self._kinds[cls] = _TENSOR if isinstance(arg, torch.Tensor) else _OTHER
        if kind == _OTHER:
            return arg
        if kind == _LIST:
            return [self._encode(item, operands) for item in arg]
        slot = self._slots.get(id(arg))
        if slot is None or slot.ref() is not arg:
            slot = self._adopt(arg)
        operands.append(slot)
        return slot

    def _define(self, result: object, family: Family) -> Any:
        if isinstance(result, torch.Tensor):
            known = self._slots.get(id(result))
            if known is not None and known.ref() is result:
                # The operator gave an operand back (in place, or nothing to do): the same memory.
                family = known.family
            slot = Slot(result, family, "result")
            self._slots[id(result)] = slot
            return slot
        if isinstance(result, (list, tuple)):
            return [self._define(item, family) for item in result]
        return None

    def _family(self, info: OpInfo, noted: list[Any], operands: list[Slot], tainted: bool) -> Family:
        if info.shares >= 0:
            shared = noted[info.shares] if info.shares < len(noted) else None
            if isinstance(shared, Slot):
                # Data may tell which part of what is known a view shows.
                shared.family.tainted = shared.family.tainted or tainted
                return shared.family
        if info.may_share and operands:
            for slot in operands:
                if not slot.family.tainted:
                    slot.family.tainted = tainted
                    return slot.family
        family = Family(tainted)
        family.blank = info.short in _BLANK_MAKERS
        return family

    def _write(self, targets: Sequence[object], tainted: bool, info: OpInfo) -> None:
        """Note that a call writes these slots."""
        for slot in targets:
            if isinstance(slot, Slot) and info.short not in ("detach_", "requires_grad_"):
                slot.family.written = True
                slot.family.last_write = len(self.records)
                slot.family.written_later |= not is_filling(self.roots.fillers)
                slot.family.blank = False
                slot.family.tainted = slot.family.tainted or tainted
                if slot.family.is_foreign:
                    self.fail(
                        "a tensor that shares memory with a Python object was written",
                        "the object (a NumPy array, a buffer) changes with it, which the graph cannot repeat",
                        "write into a copy: torch.tensor(array)",
                        "S0104",
                    )

    def _lift(self, tensor: torch.Tensor, slot: Slot) -> None:
        """Python data became a tensor: keep the data as they are now, before anything writes into them."""
        if slot.kind != "unknown" and not slot.family.blank:
            return
        slot.family.is_constant = True
        # At the entry torch.tensor shows the `empty` that it fills; what shows nothing wraps another's memory.
        slot.family.is_foreign = self.at_entry and slot.kind == "unknown" and tensor.dim() > 0
        slot.family.blank = False
        slot.kind = "constant"
        if slot.family.is_foreign:
            self.lent.check_new(self, tensor)
        with torch.no_grad():
            self.constants[slot] = strided_copy(tensor.detach())

    # --- the rest is rare -------------------------------------------------------------------------------------------

    def _adopt(self, tensor: torch.Tensor) -> Slot:
        entry = self.roots.entries.get(id(tensor))
        slot: Slot
        if entry is not None and entry.tensor is tensor:
            slot = StateSlot(tensor, entry)
            self.states.append(slot)
            if is_zero(tensor):
                self.fail(
                    f"{entry.path} is a tensor of zeros without memory (torch._efficientzerotensor)",
                    "operators give other results for it than for zeros in memory",
                    "keep its clone()",
                    "S0104",
                )
        else:
            slot = UnknownSlot(tensor, self._find_site(3))
        self._slots[id(tensor)] = slot
        return slot

    def slot_of(self, tensor: torch.Tensor) -> Slot:
        """The slot of a tensor, a new one of kind `unknown` where its origin was not seen."""
        slot = self._slots.get(id(tensor))
        return slot if slot is not None and slot.ref() is tensor else self._adopt(tensor)

    def base_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What a view that autograd knows is one of; None for what is no such view."""
        return tensor._base

    def keep(self, tensors: Sequence[torch.Tensor], roots: Roots) -> str:
        """Have tensors that the run made for a cache be state from their last making on; why that cannot be.

        roots: all that can be reached after the run.
        """
        for tensor in tensors:
            slot, entry = self._slots.get(id(tensor)), roots.entries.get(id(tensor))
            if slot is None or slot.ref() is not tensor or isinstance(slot, StateSlot) or slot.kind == "input":
                continue
            if entry is None or slot.kind == "unknown" or slot.family.written_later or self.drew_for_cache:
                return "a tensor in a cache that Smelt does not know"
            # A cache that gave something up has something else under a name that was another's before the run.
            entry.path = self.roots.place_names.claim(entry.path, tensor)
            state = StateSlot(tensor, entry)
            self.kept[slot] = slot.family.last_write, state
            self.states.append(state)
        return ""

    def wraps_memory(self, tensor: torch.Tensor) -> None:
        """Note that a tensor shares memory with a Python object, so that a write to it is an error."""
        self.slot_of(tensor).family.is_foreign = True
        self.lent.check_new(self, tensor)

    @property
    def may_have_written(self) -> bool:
        """Whether the program wrote, or may have written, to tensors that were there before it."""
        return self.is_unseen or any(slot.family.written for slot in (*self.inputs, *self.states))

    def read_version(self, tensor: torch.Tensor) -> None:
        """Note that Python read how often a tensor was written, which goes on for those that outlive the call."""
        if self._is_from_outside(tensor):
            self.fail(
                "the version counter of a tensor from outside was read (_version)",
                "it moves with every write, by whomever, and no guard follows it",
                "keep a counter of your own for what the program is to know of",
                "S0104",
            )

    def read_base(self, tensor: torch.Tensor, what: str) -> None:
        """Note that Python read what a tensor is a view of: calls bring views, and tensors of their own, alike."""
        if self._is_from_outside(tensor):
            self.fail(
                f"what a tensor from outside is a view of was read ({what})",
                "another call may bring a view of something else, or none, and no guard tells",
                "decide by what the program itself makes of it, or tell it by an argument",
                "S0104",
            )

    def _is_from_outside(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in memory that was there before the run."""
        family = self.slot_of(tensor).family
        return any(slot.family is family for slot in (*self.inputs, *self.states))

    def read_flag(self, name: str, value: bool) -> None:
        """Note that the program read a tensor's flag, which another call's tensor may have otherwise."""
        site = self._find_site(2)
        self.flags.setdefault(site.span if site else None, f"{name} of a tensor was {value}")

    def becomes(self, cls: type) -> None:
        """A tensor is about to become one of another class."""

    def gives_address(self, tensor: torch.Tensor, what: str) -> None:
        """Note that Python got where a tensor's memory lies."""
        self.is_unseen = True
        self.converted(self.slot_of(tensor), what)

    def alias(self, source: torch.Tensor, result: torch.Tensor) -> None:
        """Note that `result` is `source` under another object, made where the dispatcher does not see it.

        Not of classes that answer for operators themselves, whose tensors are what these say, and of parameters without
        sizes: what is made of those is of unknown origin.
        """
        if source is result or takes_operators(type(result)) or is_uninitialized(result):
            return
        slot = self.slot_of(source)
        self._slots[id(result)] = new = Slot(result, slot.family, "result")
        info = op_info(torch.ops.aten.detach.default)
        self.records.append((info, [slot], {}, (new,), self._find_site(2), self.scope.path, self._modes_now()))

    def _note_collective(self, info: OpInfo) -> bool:
        """Note that the program talks to other processes; whether a graph can do so."""
        self.is_unseen = True  # a second run would talk to them twice
        is_ranks = info.name in COLLECTIVES
        self.is_rank |= is_ranks
        if is_ranks or is_functional(info.name):
            return True
        self.fail(
            f"a collective of torch.distributed was called, {info.name}",
            "it goes on while the program does, and writes into its arguments, which no operator of a graph does",
            "use a functional one (torch.distributed._functional_collectives), or call it outside",
            "S0104",
        )
        return False

    def waits_for(self, tensor: torch.Tensor, result: torch.Tensor) -> None:
        """Note that a tensor holds what a collective gives once that is over."""
        operator = wait()
        if operator is not None:
            self._note(op_info(operator), (tensor,), {}, result)

    def swaps(self, tensor: torch.Tensor) -> None:
        """Note that a tensor changes places with another one, which torch refuses where it is held weakly."""
        self.is_unseen = True
        slot = self.slot_of(tensor)
        self.fail(
            "a tensor was swapped with another one (torch.utils.swap_tensors)",
            "the object now refers to other memory, which a graph of values cannot express",
            "copy into it: tensor.copy_(other)",
            "S0104",
        )
        slot.ref = lambda: None

    def unknown(self, slot: Slot) -> None:
        """Note that a tensor of unknown origin takes part."""
        tensor = slot.ref()
        origin = slot.origin if isinstance(slot, UnknownSlot) else None
        if tensor is not None and is_transform_wrapper(tensor):
            self._fail_in_transform(origin)
            return
        if is_going_backward():
            self.fail(
                f"gradients are computed from {self.type_text(slot)}, which autograd saved or made",
                "no recorded operator made it, so that the graph cannot repeat the backward pass",
                "take the gradient outside the captured program, or compute it by its formula",
                "S0103",
                origin,
            )
            return
        subclass = tensor is not None and not is_plain_tensor_type(type(tensor))
        self.fail(
            f"a tensor {self.type_text(slot)} of unknown origin was used",
            "it is a tensor subclass, whose making was not seen"
            if subclass
            else "it is no argument, was not reachable before the run, and no recorded operator made it: it may come "
            "from another thread or from code outside torch, and change from call to call",
            "pass it as an argument, or keep it as a buffer",
            "S0103",
            origin,
        )

    def _fail_in_transform(self, origin: Site | None) -> None:
        self.fail(
            "a tensor inside a torch.func transform was used",
            "it means nothing outside its transform",
            "apply the transform to the captured program instead",
            "S0104",
            origin,
        )

    def _python_result(
        self,
        info: OpInfo,
        operands: list[Slot],
        args: Sequence[object],
        kwargs: OpKwargs,
        tainted: bool,
        result: object,
    ) -> None:
        if info.short == "_has_compatible_shallow_copy_type":
            if args[0] is args[1]:
                return  # as `module.to(dtype)` does with a parameter that is of this dtype: nothing changes
            self.is_unseen = True
            self.fail(
                "the data of a tensor were replaced (`tensor.data = other`)",
                "the tensor now refers to other memory, which a graph of values cannot express",
                "copy into it: tensor.copy_(other)",
                "S0104",
            )
        elif info.is_conversion and tainted:
            slot = next((s for s in operands if s.family.tainted), operands[0])
            kind = _EXPECTED.get(info.short) if self.specialize else None
            if kind is None:
                self.converted(slot, info.short)
            else:
                self._expect(kind, args, kwargs, result)
                self._note_conversion("S0101", slot, info.short, result)

    def _expect(self, kind: str, args: Sequence[object], kwargs: OpKwargs, value: object) -> None:
        """Record that Python read this value here; the tensor may be written later."""
        info, named = _EXPECT[kind], {**kwargs, "value": value}
        self.records.append((info, args, named, (), self._find_site(2), self.scope.path, self._modes_now()))

    def reads_truth(self, tensor: torch.Tensor, value: bool, what: str) -> None:
        """Note that Python read whether a tensor of one element is true, in a way of its own."""
        slot = self.slot_of(tensor)
        if not slot.family.tainted:
            return
        if self.specialize:
            self._expect("bool", [slot], {}, value)
            self._note_conversion("S0101", slot, what, value)
        else:
            self.converted(slot, what)

    def stands_for(self, tensor: torch.Tensor, made: torch.Tensor) -> None:
        """Let a tensor be what the graph makes as another one, the last that was recorded."""
        last = self.records[-1]
        family = self.slot_of(made).family
        self._slots[id(tensor)] = slot = Slot(tensor, family, "result")
        self.records[-1] = (*last[:3], (slot,), *last[4:])

    def _deciding(self, tensors: Sequence[object]) -> Slot | None:
        """The first tensor whose data decide the size of a result."""
        slots = (self.slot_of(t) for t in tensors if isinstance(t, torch.Tensor))
        return next((slot for slot in slots if slot.family.tainted), None)

    def _expect_sizes(self, info: OpInfo, results: Sequence[object], slot: Slot) -> None:
        found = [r for one in results for r in (one if isinstance(one, list) else (one,)) if isinstance(r, Slot)]
        if not all(isinstance(r.type, tuple) for r in found):
            self.converted(slot, info.name, "S0102")
            return
        sizes = [tuple(r.type[1]) for r in found]
        for one, size in zip(found, sizes, strict=True):
            if size:
                self._expect("sizes", [one], {}, size)
        self._note_conversion("S0102", slot, info.name, sizes[0] if len(sizes) == 1 else tuple(sizes))

    def read(self, tensor: torch.Tensor, what: str) -> None:
        """Note that Python reads all elements of a tensor where no operator tells of it."""
        self.is_unseen |= what in _WRITING
        slot = self.slot_of(tensor)
        if slot.kind == "unknown":
            self.unknown(slot)
            return
        if not slot.family.tainted:
            return
        if not (self.specialize and what in _ELEMENT_READS and is_comparable(tensor)):
            self.converted(slot, what)
            return
        with torch.no_grad():
            copy = strided_copy(tensor.detach())
        if what in _LENDING:
            slot.family.is_foreign = True
            self.lent.lend(tensor, copy, what, self._find_site(2))
        self._expect("elements", [slot], {}, copy)
        self._note_conversion("S0101", slot, what, copy.tolist() if copy.numel() <= _SHOWN else None)

    def _note_conversion(self, code: str, slot: Slot, what: str, value: object) -> None:
        kind, origin = self.type_text(slot), self.origin_text(slot)
        site = self._find_site(2)
        self.conversions.append(Conversion(code, what, kind, origin, site, value, True, running_codes(2)))

    def converted(self, slot: Slot, what: str, code: str = "S0101") -> None:
        """Note that data reached Python, or decided a size."""
        site = self._find_site(2)
        kind, origin = self.type_text(slot), self.origin_text(slot)
        found = Conversion(code, what, kind, origin, site, askers=running_codes(2))
        self.conversions.append(found)
        if self.error is None:
            self.error = conversion_error(found)

    def asked_for_offset(self, tensor: torch.Tensor, found: int) -> None:
        """Note that Python hears where a tensor begins, which calls decide where it lies in what was there before."""
        slot = self.slot_of(tensor)
        if not isinstance(slot, StateSlot) and all(slot.family is not given.family for given in self.inputs):
            return
        if self.specialize:
            self._expect("offset", [slot], {}, found)
            self._note_conversion("S0101", slot, "storage_offset", found)
        else:
            self.converted(slot, "storage_offset")

    def fail(self, what: str, why: str, fix: str, code: str, site: Site | None = None) -> None:
        """Note an error at a site (by default where the program stands); the first one is the one that counts."""
        if self.error is None:
            found = site or self._find_site(2)
            self.error = CaptureError(what, found.span if found else None, why, fix, code)

    @contextmanager
    def checkpointed(self) -> Iterator[None]:
        """What is recorded in this block is to be computed again for its gradients."""
        start = len(self.records)
        try:
            yield
        finally:
            self.checkpoints.append((start, len(self.records)))

    def recomputed(self) -> frozenset[Span]:
        """The lines of all that was recorded in such blocks."""
        sites = (record[4] for start, end in self.checkpoints for record in self.records[start:end])
        return frozenset(self._spans.of(site) for site in sites if site is not None)

    def note_own_backward(self, name: str) -> None:
        """Note that a `torch.autograd.Function` runs where the program stands."""
        if not self.own_backward:
            self.own_backward, self.own_site = name, self._find_site(2)

    def type_text(self, slot: Slot) -> str:
        """A slot's type as in the graph's text."""
        return str(slot_type(slot))

    def origin_text(self, slot: Slot) -> str:
        """Where a slot's tensor came from, for an error; looked for once: a loop may ask at each turn."""
        found = self._origins.get(slot)
        if found is None:
            found = self._origins[slot] = self._origin_text(slot)
        return found

    def _origin_text(self, slot: Slot) -> str:
        if isinstance(slot, StateSlot):
            return f"{slot.kind} {slot.entry.path}"
        if slot.kind == "input":
            return f"input {self.inputs.index(slot)}"
        record = self.maker_of(slot)
        if record is None:
            return "made outside torch's operators"
        where = f", {self._spans.of(record.site)}" if record.site else ""
        name = record.info if isinstance(record.info, str) else record.info.name  # a branch or a loop is its own record
        return f"result of {name}{where}"

    def maker_of(self, slot: Slot) -> Record | None:
        """The call that a slot's tensor is a result of; None where none was recorded."""
        for record in map(Record._make, reversed(self.records)):
            if any(slot is r or (isinstance(r, list) and slot in r) for r in record.results):
                return record
        return None
