"""Writes to memory that the same operator reads: torch's kernels without data do not see what eager refuses.

    x[1:].add_(x[:-1])      eager: "some elements of the input tensor and the written-to tensor refer to ..."

Which overlap an operator takes differs between operators, so it is tried, on zeros that lie as the operands do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs, Overload, raw_schema
from smelt._torch.seen.dispatch import unseen
from smelt._torch.storage import storage_key
from smelt.capture.dynamic.arithmetic import at_hand
from smelt.capture.dynamic.values import number_of
from smelt.capture.recording.opinfo import OpInfo
from smelt.capture.staging.fakes.refused_kernels import Doubt
from smelt.ops.meta import MOST_TRIED

_REFUSED = "unsupported operation"


def check_overlap(info: OpInfo, overload: Overload, args: OpArgs, kwargs: OpKwargs) -> None:
    """Raises: what eager raises where a written operand shares elements with another; Doubt where they are too many."""
    places = info.written(args, kwargs)
    if not places:
        return
    every = list(_tensors([*args, *kwargs.values()]))
    written = list(_tensors([args[i] if i is not None and i < len(args) else kwargs.get(n) for n, i in places]))
    if len(every) < 2 or not any(_overlap(w, t, overload) for w, t in _in_one_memory(every, written)):
        return
    with unseen(), torch.no_grad():
        alike = _Alike(every)
        try:
            overload(*map(alike.of, args), **{name: alike.of(arg) for name, arg in kwargs.items()})
        except RuntimeError as error:
            if str(error).startswith(_REFUSED):
                raise
        except Exception:  # what zeros are refused for tells nothing of the program's data
            return


def _tensors(values: Sequence[object]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _in_one_memory(
    every: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each written operand with each other one in its memory; it may itself be given once more
    (`y.index_put_((i,), y)`).
    """
    first: dict[int, int] = {}
    together: dict[object, list[int]] = {}
    for i, tensor in enumerate(every):
        first.setdefault(id(tensor), i)
        if tensor.layout == torch.strided:
            together.setdefault(storage_key(tensor), []).append(i)
    for tensor in written:
        alike = together.get(storage_key(tensor), ()) if tensor.layout == torch.strided else ()
        yield from ((tensor, every[i]) for i in alike if i != first[id(tensor)])


def _lies(tensor: torch.Tensor) -> tuple[int, list[int], list[int]]:
    """Offset, sizes and steps, in elements."""
    numbers = [[at_hand(number_of(n)) for n in found] for found in (tensor.shape, tensor.stride())]
    return at_hand(number_of(tensor.storage_offset())), *numbers


def _end(tensor: torch.Tensor) -> int:
    offset, sizes, steps = _lies(tensor)
    return offset + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True)) + 1


def _overlap(written: torch.Tensor, other: torch.Tensor, overload: Overload) -> bool:
    """Whether operands in one memory share elements in a way that an operator may refuse."""
    one, two = _lies(written), _lies(other)
    if 0 in one[1] or 0 in two[1]:
        return False
    if one == two and written.dtype == other.dtype:
        # Element by element: each is read before it is written.
        return torch.Tag.pointwise not in overload.tags and raw_schema(overload).name != "aten::copy_"
    a, b = written.element_size(), other.element_size()
    return one[0] * a < _end(other) * b and two[0] * b < _end(written) * a


class _Alike:
    """Zeros in memory of their own that lie as tensors do. Raises: Doubt where they are too many."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._nbytes: dict[object, int] = {}
        for tensor in tensors:
            if tensor.layout != torch.strided:
                raise Doubt("an operand is not strided")
            if 0 not in _lies(tensor)[1]:
                nbytes = _end(tensor) * tensor.element_size()
                self._nbytes[storage_key(tensor)] = max(nbytes, self._nbytes.get(storage_key(tensor), 0))
        if sum(self._nbytes.values()) > 8 * MOST_TRIED:
            raise Doubt("operands that overlap are too large to try")
        self._made: dict[Any, Any] = {}

    def of(self, value: object) -> Any:
        """What stands for an argument."""
        if isinstance(value, (list, tuple)):
            return [self.of(item) for item in value]
        if not isinstance(value, torch.Tensor):
            return value
        key = storage_key(value)
        if key not in self._made:
            self._made[key] = torch.zeros(self._nbytes.get(key, 0), dtype=torch.uint8).untyped_storage()
        offset, sizes, steps = _lies(value)
        empty = 0 in sizes
        return torch.empty(0, dtype=value.dtype).set_(self._made[key], 0 if empty else offset, sizes, steps)
