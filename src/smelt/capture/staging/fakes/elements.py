"""What the element of a tensor may be in each world, where it is one number: the same one however often it is read.

    most = lengths.max()                   zeros(2, most, 8) and zeros(most): of one size in each world
    x.narrow(-1, most, n - most)           n = most + 9: nine, in all worlds

What is computed of such tensors by operators on single elements is computed of their examples, once it is asked for.

Invariant: nothing of the program's is run on its data, and a tensor that was written has no example here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.library.schemas import OpKwargs, Overload
from smelt._torch.seen.dispatch import unseen
from smelt.capture.dynamic.slots import SizeSlot
from smelt.capture.recording.opinfo import OpInfo
from smelt.capture.recording.tensor_slots import Slot, slot_type
from smelt.capture.staging.fakes.symbols import DEAD, WORLDS, ScalarSlot
from smelt.ir import BOOL, FLOAT, INT, Type
from smelt.ops.convert import dtype_to_torch

if TYPE_CHECKING:
    from smelt.capture.staging.fakes.examples import Examples

_TYPES: dict[str, Type] = {"bool": BOOL, "int": INT, "uint": INT, "float": FLOAT}
# Besides those that torch calls pointwise.
_SINGLE = frozenset(("aten.to.dtype", "aten.detach.default", "aten.alias.default", "aten.clone.default"))
_DEEPEST = 64


class Elements:
    """Of one staged run."""

    def __init__(self) -> None:
        self._found: dict[object, tuple[object, ...]] = {}
        self._made: dict[Slot, tuple[Any, str, list[Any], dict[str, Any]]] = {}

    def note(self, overload: Overload, info: OpInfo, args: list[object], kwargs: dict[str, object], slot: Slot) -> None:
        """An operator that writes nothing gave a tensor without dimensions."""
        if info.is_random or info.sized_by is not None or info.result_count != 1:
            return
        if info.name == "aten.select.int" or info.name in _SINGLE or torch.Tag.pointwise in overload.tags:
            self._made[slot] = (overload, info.name, args, kwargs)

    def of(self, slot: Slot, examples: Examples, first: object = None) -> tuple[Any, ...]:
        """The examples of a tensor's only element. first: what the native run had, None where that is not known."""
        found = self._of(slot, examples, _DEEPEST)
        if found is None:
            return examples.of(_type(slot), first)
        if type(first) in (bool, int, float) and any(type(first) is type(n) for n in found):
            found = (first, *found[1:])
        return found

    def item_of(self, slot: Slot) -> tuple[Slot, int, int] | None:
        """The tensor, dimension and place of which this is the item, where nothing wrote it; None for all else."""
        key = self._key(slot)
        return key if isinstance(key, tuple) and isinstance(key[0], Slot) else None

    def _of(self, slot: Slot, examples: Examples, depth: int) -> tuple[object, ...] | None:
        """Raises nothing; None for what is no plain number."""
        if slot_type(slot).dtype.kind not in _TYPES or depth == 0:
            return None
        if slot.family.written:
            return None
        key = self._key(slot)
        if key not in self._found:
            made = self._made.get(key) if isinstance(key, Slot) else None
            found = None if made is None else self._computed(slot, made, examples, depth)
            self._found[key] = examples.of(_type(slot)) if found is None else found
        return self._found[key]

    def _key(self, slot: Slot) -> object:
        """What stands for a tensor: items of one that is not written are the same whenever they are taken."""
        made = self._made.get(slot)
        if made is None or made[1] != "aten.select.int" or made[3]:
            return slot
        base, dim, index = made[2]
        is_plain = isinstance(base, Slot) and not base.family.written and type(dim) is int and type(index) is int
        return (self._key(base), dim, index) if is_plain else slot

    def _computed(
        self, slot: Slot, made: tuple[object, str, list[object], dict[str, object]], examples: Examples, depth: int
    ) -> tuple[object, ...] | None:
        overload, name, args, kwargs = made
        if name == "aten.select.int":
            return None
        operands = [self._operand(arg, examples, depth) for arg in args]
        named = {key: self._operand(arg, examples, depth) for key, arg in kwargs.items()}
        every = (*operands, *named.values())
        if any(operand is None for operand in every):
            return None
        with unseen(), torch.no_grad():
            found = tuple(_run(overload, operands, named, world) for world in range(WORLDS))
        return None if all(number is DEAD for number in found) else found

    def _operand(self, arg: object, examples: Examples, depth: int) -> tuple[object, ...] | None:
        """An operand in each world; None where it is more than a number, or not known."""
        if isinstance(arg, ScalarSlot):
            return arg.worlds
        if isinstance(arg, SizeSlot):
            return arg.in_worlds(WORLDS)
        if not isinstance(arg, Slot):
            return None if isinstance(arg, (list, tuple)) else (arg,) * WORLDS
        tensor = arg.ref()
        if tensor is None or tensor.dim():
            return None
        if not arg.family.tainted:
            return None if arg.family.written else (tensor,) * WORLDS
        numbers = self._of(arg, examples, depth - 1)
        if numbers is None:
            return None
        dtype = dtype_to_torch(slot_type(arg).dtype)
        with unseen():
            return tuple(_tensor(number, dtype) for number in numbers)


def _type(slot: Slot) -> Type:
    return _TYPES[slot_type(slot).dtype.kind]


def _tensor(number: object, dtype: torch.dtype) -> Any:
    """A tensor of one example; none where the dtype has no such number."""
    if number is not DEAD and not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool:
        info = torch.iinfo(dtype)
        if not info.min <= number <= info.max:
            return DEAD
    return number if number is DEAD else torch.tensor(number, dtype=dtype)


def _run(overload: Overload, operands: list[Any], named: OpKwargs, world: int) -> Any:
    args = [operand[world] for operand in operands]
    own = {key: operand[world] for key, operand in named.items()}
    if any(arg is DEAD for arg in (*args, *own.values())):
        return DEAD
    try:
        return overload(*args, **own).item()
    except Exception:
        # Examples need not fit together.
        return DEAD
