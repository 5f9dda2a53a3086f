"""How what an operator gives lies, known from an earlier call on operands that lie alike.

A model calls the same operators on the same sizes in each of its layers, an optimizer in each of its parameters, and
torch's kernels for data-free tensors take a tenth of a millisecond, or a whole one for symbolic sizes. What they give
follows from types, modes and Python's arguments; of numbers that data decide, an operator that goes element by element
asks no more than the kind.

Invariant: only a call that taught the trace nothing is remembered, and only until the trace learns something. A result
that was a view of an operand is one of this call's operand; one that was the operand, which the operator wrote, is this
call's operand, which counts one more write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from smelt._torch.library.schemas import OpArgs
from smelt._torch.seen.staged_fakes import FakeTensors, is_fake
from smelt._torch.storage import storage_key
from smelt.capture.dynamic.nodes import node_of
from smelt.capture.dynamic.trace import CaptureTrace
from smelt.capture.dynamic.values import sized
from smelt.capture.recording.opinfo import OpInfo
from smelt.capture.staging.fakes.symbols import is_staged, slot_of
from smelt.ir.size_numbers import Size, SizeFloat
from smelt.ops.record import Trait
from smelt.ops.sets import bases_where, is_by_elements

Key: TypeAlias = Any
_Laid: TypeAlias = "tuple[torch.dtype, list[Any], list[Any], torch.device, int | None]"
"""Dtype, sizes, strides and device; the position of the operand that it is a view of, None for memory of its own."""

_LIKE_ROW_MAJOR = bases_where(Trait.PERMUTES) | {"view", "reshape", "linear", "matmul"}
"""Operators that may give a view whose memory is all that the operand's elements lie in."""
_PLAIN = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class _Unknown(Exception):
    """An argument whose part in the result is not known."""


class KnownLayouts:
    """The layouts of one run's results. trace: of its symbolic sizes, None where it has none."""

    def __init__(self, trace: CaptureTrace | None, fakes: FakeTensors) -> None:
        self._trace, self._fakes = trace, fakes
        # None: the result is the first operand.
        self._found: dict[Key, tuple[list[_Laid], bool] | None] = {}
        self._at = self._state()

    def key(self, info: OpInfo, args: Sequence[object], kwargs: Mapping[str, object], modes: object) -> Key | None:
        """What the layouts of the results follow from; None where that is not known."""
        if info.undeclared is not None or info.sized_by is not None:
            return None
        may_share = info.shares >= 0 or info.may_share
        if info.writes:
            if not self._is_updated(info, args, kwargs):
                return None
            may_share = False
        elif may_share and info.short not in _LIKE_ROW_MAJOR:
            return None
        try:
            given = tuple([self._part(a, may_share) for a in args])
            named = tuple([(k, self._part(v, may_share)) for k, v in kwargs.items()])
            shared = self._shared((*args, *kwargs.values())) if info.writes else ()
        except _Unknown:
            return None
        return info.name, given, named, shared, modes, torch.get_default_dtype()

    def _is_updated(self, info: OpInfo, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Whether a call does nothing but write the elements of its first operand, one by one."""
        if [position for _, position in info.writes] != [0] or not is_by_elements(info.name) or not args:
            return False
        target = args[0]
        if not isinstance(target, torch.Tensor) or not self._fakes.counts_writes(target):
            return False
        # Where gradients are enabled, what is written has another history.
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        return not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))

    def _shared(self, args: Sequence[object]) -> Key:
        """Which operands are one tensor. Raises: _Unknown where others share memory with what is written."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if any(type(a) in (list, tuple) for a in args):
            raise _Unknown
        memory = self._fakes.memory_of(tensors[0])
        for other in tensors[1:]:
            if other is not tensors[0] and self._fakes.memory_of(other) == memory:
                raise _Unknown
        return tuple([i for i, other in enumerate(tensors) if other is tensors[0]])

    def find(self, key: Key, args: Sequence[object]) -> object:
        """Results that lie so, or views of these operands; None where no call was alike."""
        if self._at != self._state():
            self._found.clear()
            self._at = self._state()
        if key not in self._found:
            return None
        known = self._found[key]
        if known is None:
            self._fakes.note_write(args[0])
            return args[0]
        laid, is_one = known
        made = [self._made(one, args) for one in laid]
        return made[0] if is_one else tuple(made)

    def _made(self, laid: _Laid, args: Sequence[object]) -> object:
        dtype, sizes, steps, device, of = laid
        if of is None:
            return self._fakes.direct(dtype, self._shown(sizes), self._shown(steps), device)
        return self._fakes.view(self._fakes.of(args[of]), self._shown(sizes), self._shown(steps))

    def note(self, key: Key, args: OpArgs, result: Any, writes: bool) -> None:
        """Remember what a call gave, unless the trace has learnt something since `find`."""
        if writes:
            if self._at == self._state() and result is args[0]:
                self._found[key] = None
            return
        results = [result] if isinstance(result, torch.Tensor) else result
        if self._at != self._state() or type(results) not in (list, tuple):
            return
        is_given = any(r is a for r in results for a in args)
        if is_given or not all(isinstance(r, torch.Tensor) and _is_plain_fake(r) for r in results):
            return
        try:
            laid = [
                (r.dtype, self._numbers(r.shape), self._numbers(r.stride()), r.device, self._viewed(r, args))
                for r in results
            ]
        except _Unknown:
            return
        self._found[key] = laid, isinstance(result, torch.Tensor)

    def _viewed(self, result: torch.Tensor, args: Sequence[object]) -> int | None:
        """The position of the operand that a result is a view of."""
        if not result._is_view():
            return None
        memory = storage_key(result)
        for position, arg in enumerate(args):
            if isinstance(arg, torch.Tensor) and storage_key(self._fakes.of(arg)) == memory:
                if arg.dtype != result.dtype:
                    break
                return position
        raise _Unknown

    def _state(self) -> tuple[int, ...]:
        trace = self._trace
        if trace is None:
            return ()
        return len(trace.guards), len(trace.known), len(trace.known_floats), len(trace.examples)

    def _part(self, arg: Any, at_start: bool) -> object:
        if isinstance(arg, torch.Tensor):
            if not _is_plain(arg) or (at_start and not _is_at_start(arg)):
                raise _Unknown
            sizes, steps = self._numbers_key(arg.shape), self._numbers_key(arg.stride())
            return arg.dtype, sizes, steps, arg.device, arg.requires_grad
        if type(arg) in (list, tuple, torch.Size):
            return type(arg), tuple([self._part(a, at_start) for a in arg])
        return self._number_key(arg)

    def _numbers_key(self, numbers: Sequence[object]) -> Key:
        return tuple([n if type(n) is int else self._number_key(n) for n in numbers])

    def _number_key(self, value: object) -> Key:
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if is_staged(value):
            return is_staged, str(slot_of(value).type)  # of a function in a key there is no other
        number = self._number(value)
        if type(number) is Size:
            return Size, number.poly
        return (SizeFloat, number.expr) if type(number) is SizeFloat else (type(number), number)

    def _number(self, value: object) -> Any:
        if type(value) is int:
            return value
        node = node_of(value)
        if node is None or node.trace is not self._trace or not (node.is_int() or node.is_float()):
            raise _Unknown
        return node.number

    def _numbers(self, numbers: Sequence[object]) -> list[Any]:
        return [self._number(n) for n in numbers]

    def _shown(self, numbers: list[object]) -> list[Any]:
        trace = self._trace
        return numbers if trace is None else [sized(trace, n) for n in numbers]


def _is_plain(tensor: torch.Tensor) -> bool:
    is_known = type(tensor) in (torch.Tensor, torch.nn.Parameter) or is_fake(tensor)
    if not is_known or tensor.layout is not torch.strided or tensor.is_neg():
        return False
    return not (tensor.dtype.is_complex and tensor.is_conj())


def _is_plain_fake(tensor: torch.Tensor) -> bool:
    return is_fake(tensor) and _is_plain(tensor) and not tensor.requires_grad and _is_at_start(tensor)


def _is_at_start(tensor: torch.Tensor) -> bool:
    offset = tensor.storage_offset()
    return type(offset) is int and offset == 0
