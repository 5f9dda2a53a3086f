"""What a capture leaves: the graph, and what it is about."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from types import CodeType
from typing import Any

import torch

from smelt._torch.seen.dispatch import Level
from smelt._torch.seen.record_modes import Modes
from smelt._torch.state import autocast, default_dtype
from smelt.capture.dynamic.spec import SizeFacts
from smelt.capture.recording.tensor_slots import Conversion, StateSlot, slot_type
from smelt.capture.structure.roots import Entry, Roots, StateTensor
from smelt.capture.structure.signature import Signature
from smelt.capture.structure.state import STATE, Place, argument
from smelt.capture.structure.tree import tensors_at
from smelt.diag import InternalError, SmeltError, Span
from smelt.diag.records import distinct_record
from smelt.ir import Graph


@distinct_record
class State:
    """The tensors behind a graph's `param`, `buffer` and `captured` nodes, by (kind, path)."""

    entries: Mapping[tuple[str, str], StateTensor] = field(default_factory=dict)

    @classmethod
    def of(cls, slots: Iterable[StateSlot]) -> State:
        """The tensors of a recorder's slots. Raises: InternalError where two of them have one name."""
        holders: dict[str, Entry] = {}
        for slot in slots:
            entry = slot.entry
            if holders.setdefault(entry.path, entry).tensor is not entry.tensor:
                raise InternalError(
                    f"two tensors have the name {entry.path!r}",
                    why=f"a graph tells them apart by name; one of them is {slot_type(slot)}",
                    fix="report this with the program",
                )
        return cls({(entry.kind, path): entry.freeze() for path, entry in holders.items()})

    def lookup(self, kind: str, path: str) -> torch.Tensor:
        """The tensor as it was at capture; what `smelt.ops.evaluate` takes. Raises: KeyError."""
        return self.entries[kind, path].tensor

    def current(self, kind: str, path: str) -> torch.Tensor:
        """The tensor that stands at the place now. Raises: KeyError; LookupError where the place is gone."""
        return self.entries[kind, path].current()


@distinct_record
class Captured:
    """What one run of a program left.

    graph, signature: None where `error` is set before they could be made. result: the program's own answer.
    conversions: every place where data reached Python, in order; with `specialize`, those that can be compared are
        `expect` nodes of the graph. level: how the run was recorded. caller: the modes
        that the program was called under, to which the nodes' modes are relative. roots: what it could reach.
    written: by id of a state tensor, what it held before the run first wrote to it (with `keep_written`).
    entangled: names of the inputs and state values that lay in each other's memory; writes to them must stay in order.
    returned: for each output that was the very object of an input or of state: the input's number, or (kind, path).
    sizes: the symbols in the graph's types and among its inputs, and the guards on them; None where it has none.
    opened: places of the arguments' objects that the run changed, or that lead there: known by structure, and changed
        by `signature.puts` at each call. not_put: why it cannot be so although the run changed some. known: ids of
        what the run reached from outside, while its log is kept. outer: places outside the arguments that the run
        changed: put by `signature.puts`, too.
    own_backward: the name of a `torch.autograd.Function` that the program applies; "" where there is none. own_line:
        where it does so first. recomputed: the lines of what is to be computed again for gradients (checkpoints).
    kinds: which outputs are inference tensors, or are none, otherwise than the caller's mode makes them.
    reruns: the graph may raise where the program catches that; catches: an operator stands there that does so for some
        data. is_way: it holds for what it expects, and for no more.
    drawers: functions that draw numbers of Python's or NumPy's global generator. class_askers: those of the run that
        may ask what class a thing is of; None where nobody looked. rangers: those that are staged only for their long
        loops over ranges (see `compiler.long_loops`).
    flags: by source line, what the program read of its tensors that another call may find otherwise.
    has_history: whether autograd has given a result, or a tensor that was there before, a history that follows from
        what is outside: then only the program itself gives the same.
    spent: outputs whose history the program itself went back through: to do so again is an error.
    begins_bare: before its first operator the program lets go of all gradients that it replaces.
    is_elsewhere: it tells of a call with other sizes than those that are staged now.
    autocast, default_dtype: what the run found set.
    asks_modes: whether the program asks for grad or inference mode, or makes inference tensors: it is captured again
        where it is called in other ones.
    """

    name: str
    result: Any
    graph: Graph | None
    signature: Signature | None
    state: State
    error: SmeltError | None
    conversions: tuple[Conversion, ...]
    warnings: tuple[str, ...]
    level: Level
    caller: Modes
    roots: Roots
    written: Mapping[int, torch.Tensor] = field(default_factory=dict)
    entangled: frozenset[str] = frozenset()
    returned: Mapping[int, int | tuple[str, str]] = field(default_factory=dict)
    sizes: SizeFacts | None = None
    opened: frozenset[str] = frozenset()
    not_put: str = ""
    known: frozenset[int] = frozenset()
    outer: tuple[Place, ...] = ()
    kinds: Mapping[int, bool] = field(default_factory=dict)
    own_backward: str = ""
    own_line: Span | None = None
    recomputed: frozenset[Span] = frozenset()
    flags: Mapping[Span | None, str] = field(default_factory=dict)
    reruns: bool = False
    catches: bool = False
    is_way: bool = False
    drawers: Sequence[CodeType] = ()
    class_askers: Sequence[CodeType] | None = None
    rangers: Sequence[CodeType] = ()
    asks_modes: bool = False
    has_history: bool = False
    spent: frozenset[int] = frozenset()
    begins_bare: bool = False
    is_elsewhere: bool = False
    autocast: tuple[tuple[str, torch.dtype], ...] = field(default_factory=autocast)
    default_dtype: torch.dtype = field(default_factory=default_dtype)

    @property
    def constants(self) -> Mapping[str, Any]:
        """The arguments that are no tensors, by path; part of what the graph holds for."""
        return {} if self.signature is None else self.signature.constants

    @property
    def result_tensors(self) -> list[torch.Tensor]:
        """The distinct tensors of the run's answer, in the order of the graph's outputs."""
        return [] if self.signature is None else tensors_at(self.signature.result, self.result)


def returned_objects(
    tensors: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], state: State
) -> dict[int, int | tuple[str, str]]:
    """For each output that is an input or state itself: the input's number, or (kind, path)."""
    known: dict[int, int | tuple[str, str]] = {id(entry.tensor): key for key, entry in state.entries.items()}
    known.update((id(tensor), i) for i, tensor in enumerate(inputs))
    return {i: known[id(tensor)] for i, tensor in enumerate(tensors) if id(tensor) in known}


def name_of(fn: Callable[..., object]) -> str:
    """A graph's name after its program."""
    found = getattr(fn, "__name__", None) or type(fn).__name__
    text = "".join(c if c.isalnum() or c == "_" else "_" for c in str(found))
    return text if text[:1].isalpha() or text[:1] == "_" else f"f_{text}"


def input_names(fn: Callable[..., object], paths: Sequence[str], state: Sequence[Place] = ()) -> list[str]:
    """Names of the graph's inputs after the program's own parameters: `args[0]['mask']` is `x_mask`."""
    places = {argument(i): place.name for i, place in enumerate(state)}
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names: list[str] = []
    for path in paths:
        root, _, rest = path.partition("[")
        first, _, rest = rest.partition("]")
        if root == "args" and first.isdigit() and int(first) < len(plain):
            base = plain[int(first)]
        else:
            base = first.strip("'\"") if root == "kwargs" else f"arg{first}"
        if root == "kwargs" and base == STATE:
            number, _, rest = rest.removeprefix("[").partition("]")
            base = places.get(argument(int(number)), "state") if number.isdigit() else "state"
        words = "".join(c if c.isalnum() else " " for c in f"{base} {rest}").split()
        text = "_".join(words) or "arg"
        names.append(text if not text[0].isdigit() else f"arg_{text}")
    return names
