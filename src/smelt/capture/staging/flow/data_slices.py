"""Tensors cut at numbers that data decide: how long what is left is, without a question to the sizes at hand.

    x[:, :n]       x: f32[B, S]  ->  f32[B, _], in each world as long as its `n` says, clamped as Python's slices are
    x[:, t:t+2]    for t in range(S - 1)  ->  f32[B, 2]: both ends are known to lie inside

Invariant: a length is a number in the type only where it is the same for all data; examples alone do not show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt._torch.library.schemas import OpArgs, Overload
from smelt._torch.seen.dispatch import unseen
from smelt._torch.seen.staged_fakes import FakeTensors
from smelt.capture.dynamic.arithmetic import at_hand, is_symbolic
from smelt.capture.dynamic.trace import CaptureTrace
from smelt.capture.dynamic.values import number_of, sized
from smelt.capture.staging.fakes.symbols import DEAD, ScalarSlot, is_staged, slot_of
from smelt.diag.records import record

CUTTING = frozenset(("aten.slice.Tensor",))
_END = (1 << 63) - 1


@record
class Cut:
    """One cut of a dimension. length: of what is left, where all data give the same one."""

    dim: int
    start: object
    end: object
    step: int
    length: int | None

    def fake(
        self, fakes: FakeTensors, trace: CaptureTrace | None, overload: Overload, args: Sequence[object], world: int,
        length: int | None = None,
    ) -> Any:  # fmt: skip
        """What is left of the fake tensor `args[0]` in a world; DEAD where that world has no such numbers.

        length: another one than the world's.
        """
        x: torch.Tensor = args[0]
        with unseen():
            sizes = list(x.shape)
        size = at_hand(number_of(sizes[self.dim]))
        if length is None:
            length = self._length(world, size)
            if length is None:
                return DEAD
        if type(sizes[self.dim]) is int and length <= size:
            with fakes.running():
                return overload(x, self.dim, 0, length * self.step, *((self.step,) if self.step != 1 else ()))
        if trace is None:
            return DEAD
        with unseen():
            strides = [number_of(s) for s in x.stride()]
            sizes = [number_of(s) for s in sizes]
            sizes[self.dim] = length if self.length is not None else trace.example(length)
            strides[self.dim] = strides[self.dim] * self.step
            shown, steps = ([sized(trace, n) for n in numbers] for numbers in (sizes, strides))
            made = fakes.direct(x.dtype, shown, steps, x.device)
            return made.requires_grad_() if made is not None and x.requires_grad else made

    def _length(self, world: int, size: int) -> int | None:
        if self.length is not None:
            return self.length
        ends = [_in_world(end, world) for end in (self.start, self.end)]
        if any(end is DEAD for end in ends):
            return None
        start, end = (_clamped(end, size) for end in ends)
        return max(-(-(end - start) // self.step), 0)

    def told_apart(
        self, fakes: FakeTensors, trace: CaptureTrace | None, overload: Overload, worlds: Sequence[Any],
        operands: Sequence[Any],
    ) -> list[Any]:  # fmt: skip
        """The results in all worlds, in one of them of another length where all came to the same by chance, or to
        nothing and the whole, of which alone a cut lies row after row.

        operands: what is cut in each world.
        """
        found = list(worlds)
        alive = [world for world, result in enumerate(found) if result is not DEAD]
        with unseen():
            lengths = {at_hand(number_of(found[world].shape[self.dim])) for world in alive}
            most = [at_hand(number_of(operands[world].shape[self.dim])) for world in alive]
        if self.length is None and len(lengths) == 1 and max(most) > 0:
            world = next((world for world, size in zip(alive, most, strict=True) if world and size > 0), alive[-1])
            other = 0 if lengths != {0} else 1
            found[world] = self.fake(fakes, trace, overload, [operands[world]], world, other)
        elif self.length is None and len(lengths) == 2 and lengths <= {0, *most} and max(most) > 1:
            world = next(world for world, size in zip(reversed(alive), reversed(most), strict=True) if size > 1)
            found[world] = self.fake(fakes, trace, overload, [operands[world]], world, 1)
        return found


def _in_world(end: object, world: int) -> Any:
    return slot_of(end).worlds[world] if is_staged(end) else at_hand(number_of(end))


def _clamped(end: int, size: int) -> int:
    return min(max(end + size if end < 0 else end, 0), size)


def cut_of(name: str, args: OpArgs, kwargs: Mapping[str, object], dims: Sequence[object] | None) -> Cut | None:
    """The cut that an operator makes at numbers that data decide; None for any other.

    dims: the sizes of what is cut as numbers, None where one is not known.
    """
    if name not in CUTTING or kwargs or len(args) < 3:
        return None
    x, dim = args[:2]
    start, end, step = [*args[2:], *list[Any]((None, None, 1))[len(args) - 2 :]]
    if not (is_staged(start) or is_staged(end)) or type(step) is not int or step < 1 or type(dim) is not int:
        return None
    if not all(b is None or is_staged(b) or number_of(b) is not None for b in (start, end)):
        return None
    rank = x.dim()
    if not -rank <= dim < rank or x.is_conj() or x.is_neg():
        return None
    dim %= rank
    start, end = 0 if start is None else start, _END if end is None else end
    size = None if dims is None else dims[dim]
    return Cut(dim, start, end, step, None if size is None or step != 1 else _known_length(start, end, size))


def _known_length(start: object, end: object, size: object) -> int | None:
    """end - start where both follow from one number, and lie inside whatever that is."""
    if not (is_staged(start) and is_staged(end)):
        return None
    (base, times, first), (other, again, last) = (_affine(slot_of(bound)) for bound in (start, end))
    if base is not other or times != again or times < 0 or base.within is None or last < first:
        return None
    low, high = base.within
    inside = _at_most(0, low * times + first) and _at_most(high * times + last, size)
    return last - first if inside else None


def _at_most(a: Any, b: Any) -> bool:
    """Whether a <= b at all sizes."""
    if not is_symbolic(a) and not is_symbolic(b):
        return bool(a <= b)
    trace = (a if is_symbolic(a) else b).trace
    return trace.decide("<=", (a - b).poly) is True if is_symbolic(a - b) else bool(a - b <= 0)


def _affine(slot: ScalarSlot) -> tuple[ScalarSlot, int, int]:
    return slot.affine or (slot, 1, 0)


def affine_of(op: str, operands: Sequence[object]) -> tuple[ScalarSlot, int, int] | None:
    """(slot, times, plus) where an operator's result is that slot times a number plus another."""
    if op not in ("py.add", "py.sub", "py.mul") or len(operands) != 2:
        return None
    a, b = operands
    if isinstance(b, ScalarSlot) and op != "py.sub":
        a, b = b, a
    if not isinstance(a, ScalarSlot) or type(b) is not int:
        return None
    slot, times, plus = _affine(a)
    match op:
        case "py.add":
            return slot, times, plus + b
        case "py.sub":
            return slot, times, plus - b
    return slot, times * b, plus * b
