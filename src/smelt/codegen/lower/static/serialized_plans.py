"""A lowered program as bytes, and back: what a later process needs in the place of passes and lowering.

    Lowered(plan, outputs, ...)  -- written -->  [plan and recipes][report]  -- read, given the state -->  Lowered

Tensors are never written. What the plan holds is there as the way to make it again (`held`), overloads are there by
name, and where an instruction has its computation in torch there stands a `LaterEager`, which lowers the graph anew in
the rare case that it is asked for. Invariant: what has no such form is refused (`CannotKeep`), so that nothing of one
process's state can come to stand in another's plan.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from smelt.codegen.llvm.isa import Isa
from smelt.codegen.lower.lowering import lower
from smelt.codegen.lower.products.weight_packing import Fills
from smelt.codegen.lower.report import Report
from smelt.codegen.lower.result import Lookup, Lowered, Mutation, OutputRecipe, StateName
from smelt.codegen.lower.static.plan_tensors import Made, made_again
from smelt.codegen.lower.static.static_program import OtherState
from smelt.diag import Options, SmeltError
from smelt.diag.records import record
from smelt.ir import Graph
from smelt.ops.registry import overload
from smelt.runtime.plan import Call, Launch, Plan, PyCall, Scalar, Word

_PROTOCOL = 5
# What a kept plan may name besides Smelt's own classes.
_NAMES = frozenset(
    (("torch", "device"), ("torch", "Size"), ("builtins", "complex"), ("builtins", "frozenset"), ("builtins", "set"))
)
_OVERLOAD = type(torch.ops.aten.add.Tensor)
_TORCH_VALUES = (torch.dtype, torch.layout, torch.memory_format)


class CannotKeep(Exception):
    """A plan that is for this process alone. The text says why."""


# --- eager, when it is asked for --------------------------------------------------------------------------------------


class Again:
    """The lowering that a kept plan was once the result of; done when something of it is needed that is not kept.

    known_by: the digest of that plan.
    """

    known_by: str = ""

    def __init__(self, optimize: Callable[[], Graph], state: Lookup, options: Options) -> None:
        self._optimize, self._state, self._options = optimize, state, options
        self._plan: Plan | None = None
        self._lock = threading.Lock()

    def eager(self, index: int) -> Callable[..., Any]:
        """The computation of an instruction in torch.

        Raises: SmeltError (S0401) where another plan comes of the same graph.
        """
        with self._lock:
            if self._plan is None:
                plan = lower(self._optimize(), self._state, self._options, build=False).plan
                if digest_of(plan) != self.known_by:
                    raise SmeltError(
                        "the plan that was cached on disk is not what lowering gives now",
                        why="something of it is needed that is not cached: its computation in torch",
                        fix="run `smelt cache clear`, or set the option keep_plans to False",
                        code="S0401",
                    )
                self._plan = plan
        found: Callable[..., Any] = self._plan.instructions[index].eager  # type: ignore[union-attr]
        return found


@record
class LaterEager:
    """An instruction's computation in torch, found when it is first called."""

    again: Again
    index: int

    def __call__(self, *args: Any) -> Any:
        return self.again.eager(self.index)(*args)


@record
class _Eager:
    """Stands for the eager computation of an instruction in what is written."""

    index: int

    def __call__(self, *args: Any) -> Any:
        raise NotImplementedError


_WITH_EAGER = (Call, Launch, Scalar)


def digest_of(plan: Plan) -> str:
    """What a plan does, without its tensors, its code and its eager computations."""
    shown = [repr(replace(i, eager=_Eager(0)) if isinstance(i, _WITH_EAGER) else i) for i in plan.instructions]
    shown += [
        repr((plan.nslots, plan.inputs, plan.outputs, plan.arena, sorted(plan.fixed), sorted(plan.kinds.items())))
    ]
    return hashlib.sha256("\n".join(shown).encode()).hexdigest()


# --- bytes ------------------------------------------------------------------------------------------------------------


@record
class _Kept:
    plan: Plan
    outputs: tuple[OutputRecipe, ...]
    mutations: tuple[Mutation, ...]
    handles: tuple[StateName, ...]
    constants: tuple[StateName, ...]
    held: Mapping[int, Made]
    layouts: Mapping[int, tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]]
    known_by: str
    report: bytes


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, _PROTOCOL)
        # Classes of which all objects are written as they are: pickle asks for each object, numbers and texts too.
        self._plain: set[type] = set()

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in self._plain:
            return None
        if kind is _Eager:
            return ("eager", obj.index)
        if kind is _OVERLOAD:
            name = str(obj)
            if overload(name) is not obj:
                raise CannotKeep(f"{name} is not found by its name")
            return ("op", name)
        if isinstance(obj, _TORCH_VALUES):
            return ("torch", str(obj).removeprefix("torch."))
        if isinstance(obj, (torch.Tensor, FunctionType, BuiltinFunctionType, MethodType)) or kind is Word:
            raise CannotKeep(f"a {kind.__name__} stands in it")
        self._plain.add(kind)
        return None


class _Unpickler(pickle.Unpickler):
    """Reads Smelt's own records and nothing else."""

    def __init__(self, data: bytes, again: Callable[[int], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._again = again

    def persistent_load(self, pid: Any) -> Any:
        what, which = pid
        match what:
            case "eager":
                return self._again(which)
            case "op":
                found = overload(which)
                if found is None:
                    raise pickle.UnpicklingError(f"there is no {which}")
                return found
            case "torch":
                value = getattr(torch, which)
                if isinstance(value, _TORCH_VALUES):
                    return value
        raise pickle.UnpicklingError(f"unknown reference {what!r}")

    def find_class(self, module: str, name: str) -> Any:
        is_known = module.startswith("smelt.") or (module, name) in _NAMES
        found = super().find_class(module, name) if is_known else None
        # dataclasses and enums are made by their classes; no function is ever called.
        if not isinstance(found, type):
            raise pickle.UnpicklingError(f"{module}.{name} has no form in a cached plan")
        return found


def write(lowered: Lowered) -> bytes:
    """A lowered program as bytes. Raises: CannotKeep."""
    plan, how = lowered.plan, lowered.how_made
    if how is None:
        raise CannotKeep("it follows from what the state holds")
    if any(isinstance(i, PyCall) for i in plan.instructions):
        raise CannotKeep("Python is called in it")
    if any(isinstance(i, Launch) and not i.kernel.object for i in plan.instructions):
        raise CannotKeep("a kernel of it could not be built")
    if any(choice.reason == "measured" for choice in lowered.report.choices):
        raise CannotKeep("something in it was chosen by measuring")
    held: dict[int, Made] = {}
    for slot, _ in plan.held:
        made = how[slot]() if slot in how else None
        if made is None:
            raise CannotKeep(f"it is not known how the tensor in slot {slot} was made")
        held[slot] = made
    instructions = tuple(
        replace(i, eager=_Eager(index)) if isinstance(i, _WITH_EAGER) else i
        for index, i in enumerate(plan.instructions)
    )
    report = zlib.compress(_dumped(lowered.report), 1)
    kept = _Kept(
        replace(plan, held=(), instructions=instructions), lowered.outputs, lowered.mutations, lowered.handles,
        lowered.constants, held, {slot: _layout(tensor) for slot, tensor in plan.held}, digest_of(plan), report,
    )  # fmt: skip
    return _dumped(kept)


def _layout(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]:
    # oneDNN's own tensors have no strides; such a plan is not kept.
    return tensor.dtype, tuple(tensor.shape), tensor.stride()


def _dumped(value: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise CannotKeep(str(error)) from error
    return buffer.getvalue()


def read(data: bytes, optimize: Callable[[], Graph], state: Lookup, isa: Isa | None, options: Options) -> Lowered:
    """The lowered program, for the state as it is; its fills have begun.

    optimize: the graph that it was lowered from. Raises: OtherState; any exception where the bytes are not a plan.
    """
    # The digest that tells eager computations apart is known at the end only.
    later = Again(optimize, state, options)
    kept = _Unpickler(data, lambda index: LaterEager(later, index)).load()
    if type(kept) is not _Kept:
        raise pickle.UnpicklingError(f"a {type(kept).__name__} is no plan")
    later.known_by = kept.known_by
    fills = Fills()
    found = made_again(kept.held, state, isa, options, fills)
    if {slot: _layout(tensor) for slot, tensor in found.items()} != kept.layouts:
        raise OtherState("a tensor that the plan retains has another memory layout")
    if not options.release_originals:  # these go one after the other
        fills.start()
    plan = replace(kept.plan, held=tuple(found.items()))

    @lru_cache(maxsize=1)
    def report() -> Report:
        shown = _Unpickler(zlib.decompress(kept.report), _Eager).load()
        assert isinstance(shown, Report)
        return replace(shown, stages_ms=())

    return Lowered(plan, kept.outputs, kept.mutations, kept.handles, kept.constants, report, fills)
