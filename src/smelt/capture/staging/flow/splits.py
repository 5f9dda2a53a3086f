"""Tensors split into parts whose sizes depend on data: together they are as long as what is split, or eager raises.

    a, b, c = x.split([n, m, k])    x: f32[64, 8]  ->  f32[_, 8] each; torch.cat([a, b, c]): f32[64, 8]

In each world the parts have lengths that make up the whole, and no other sum of them is the same in all worlds. They
are not always the examples of the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs
from smelt._torch.seen.dispatch import unseen
from smelt._torch.seen.staged_fakes import FakeTensors
from smelt.capture.dynamic.arithmetic import at_hand
from smelt.capture.dynamic.trace import CaptureTrace
from smelt.capture.dynamic.values import number_of
from smelt.capture.staging.fakes.examples import Examples
from smelt.capture.staging.fakes.symbols import DEAD, is_staged, slot_of
from smelt.capture.staging.flow.data_slices import Cut
from smelt.diag.records import record

_SPLITTING = frozenset((
    "aten.split_with_sizes.default", "aten.split.sizes", "aten.split_with_sizes_copy.default",
    "aten.unsafe_split_with_sizes.default",
))  # fmt: skip
_EVEN, _FIRST, _LAST, _RISING, _FALLING = range(5)
# The roles of the worlds, in another order for each split: two of them have nothing to do with each other.
_ROLES = [(_EVEN, *order) for order in permutations((_FIRST, _LAST, _RISING, _FALLING))]
_SLICE = torch.ops.aten.slice.Tensor


@record
class Split:
    """One split of a dimension. sizes: of the parts, some of which depend on data. roles: what each world shows."""

    dim: int
    sizes: Sequence[Any]
    roles: Sequence[int]

    def fakes(self, fakes: FakeTensors, trace: CaptureTrace | None, x: torch.Tensor, world: int) -> Any:
        """The parts of the fake tensor `x` in a world; DEAD where the whole is too short there."""
        with unseen():
            total = at_hand(number_of(x.shape[self.dim]))
        lengths = self._lengths(total, world)
        if lengths is None:
            return DEAD
        cut = Cut(self.dim, 0, None, 1, None)
        parts = [cut.fake(fakes, trace, _SLICE, [x], world, length) for length in lengths]
        return DEAD if any(part is DEAD for part in parts) else parts

    def told_apart(self, worlds: Sequence[Any]) -> bool:
        """Whether no part that depends on data has the same length in all worlds, unless it has none in any."""
        if sum(map(is_staged, self.sizes)) == 1:
            return True
        alive = [parts for parts in worlds if parts is not DEAD]
        with unseen():
            for i, size in enumerate(self.sizes):
                lengths = {at_hand(number_of(parts[i].shape[self.dim])) for parts in alive}
                rest = [sum(at_hand(number_of(p.shape[self.dim])) for p in parts) for parts in alive]
                if is_staged(size) and len(lengths) == 1 and max(rest) > self._known():
                    return False
        return True

    def _known(self) -> int:
        return sum(at_hand(number_of(size)) for size in self.sizes if not is_staged(size))

    def _lengths(self, total: int, world: int) -> list[int] | None:
        found = [slot_of(size).worlds[world] if is_staged(size) else at_hand(number_of(size)) for size in self.sizes]
        if not any(n is DEAD or n < 0 for n in found) and sum(found) == total:
            return found
        places = [i for i, size in enumerate(self.sizes) if is_staged(size)]
        rest = total - self._known()
        if rest < 0:
            return None
        for place, length in zip(places, _shares(rest, len(places), self.roles[world]), strict=True):
            found[place] = length
        return found


def _shares(total: int, count: int, role: int) -> list[int]:
    """A number as a sum of others.

    All of it is the first in one role and the last in another, and where there is enough of it all have some in the
    rest: so that the sum of some but not all of them comes to different numbers.
    """
    if role in (_FIRST, _LAST):
        return [total if i == (0 if role == _FIRST else count - 1) else 0 for i in range(count)]
    weights = {_RISING: [*range(1, count + 1)], _FALLING: [*range(count, 0, -1)]}.get(role, [1] * count)
    weights = weights if total >= count * count else [1] * count
    found = [total * weight // sum(weights) for weight in weights]
    left = total - sum(found)
    # What is left over goes to the first, or to the last ones.
    taking = range(left) if role == _RISING else range(count - left, count)
    return [n + (i in taking) for i, n in enumerate(found)]


def split_of(name: str, args: OpArgs, kwargs: OpKwargs, examples: Examples) -> Split | None:
    """The split that an operator makes by numbers that depend on data; None for any other operator."""
    if name not in _SPLITTING:
        return None
    given = dict(zip(("self", "sizes", "dim"), args, strict=False)) | {
        "sizes" if key in ("split_sizes", "split_size") else key: value for key, value in kwargs.items()
    }
    sizes, dim, x = given["sizes"], given.get("dim", 0), given["self"]
    if type(dim) is not int or not any(map(is_staged, sizes)):
        return None
    rank = x.dim()
    if not -rank <= dim < rank:
        return None
    return Split(dim % rank, list(sizes), _ROLES[examples.turn(len(_ROLES))])


_PARTS = frozenset((
    "aten.split.Tensor", "aten.unsafe_split.Tensor", "aten.split_copy.Tensor", "aten.unbind.int",
    "aten.unbind_copy.int",
))  # fmt: skip


def number_of_parts(name: str, args: OpArgs, kwargs: OpKwargs) -> int:
    """How many tensors an operator gives that takes one apart into parts of one size; 0 for any other operator."""
    if name not in _PARTS:
        return 0
    x, *rest = args
    named = "unbind" not in name
    size = kwargs.get("split_size", rest.pop(0) if named and rest else 1)
    dim = kwargs.get("dim", rest[0] if rest else 0)
    with unseen():
        size = 1 if is_staged(size) else max(at_hand(number_of(size)), 1)
        return int(at_hand(number_of(x.shape[dim])) // size) if x.dim() and not is_staged(dim) else 0
