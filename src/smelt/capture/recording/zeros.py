"""Tensors of zeros without memory (`torch._efficientzerotensor`), which derivatives of functions of torch.func meet.

    z = _efficientzerotensor([3]); y = mul(z, x)      ==>   z = zeros([3]); y = zeros([3])
    y = add(x, z)                                     ==>   y = _to_copy(expand(x, [3]))

Operators on them give such zeros again whatever the other operand holds (infinities and NaN included), or the other
operand, minus zero included: a graph that computed with plain zeros would answer otherwise. That a tensor is one of
these follows from no data, and nothing can write to it.

Invariant: a graph has plain zeros in their places, and none of these comes out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs, Overload
from smelt._torch.storage import is_zero, nbytes_spanned
from smelt.capture.recording.opinfo import OpInfo, op_info

if TYPE_CHECKING:
    from smelt.capture.recording.recorder import Recorder

MAKER = "_efficientzerotensor"
_SIGNS = {"add": 1, "sub": -1}  # what has an answer of its own for them, and the second operand's sign


def note_zeros(recorder: Recorder, info: OpInfo, args: OpArgs, kwargs: OpKwargs, result: object) -> bool:
    """Note a call that gives, or takes, such zeros, as what it comes to; whether it was one that needs that."""
    results = result if isinstance(result, (list, tuple)) else (result,)
    tensors = [one for one in results if isinstance(one, torch.Tensor)]
    if any(map(is_zero, tensors)):
        if not all(map(is_zero, tensors)):
            recorder.fail(
                f"{info.name} gave zeros without memory (torch._efficientzerotensor) beside other tensors",
                "a graph has zeros in memory, from which it would compute the others",
                "give it clones of such tensors",
                "S0104",
            )
        for one in filter(is_zero, tensors):
            _note_plain(recorder, one)
        return True
    sign = _SIGNS.get(info.short)
    if sign is None or not all(isinstance(operand, torch.Tensor) for operand in args[:2]):
        return False
    first, second, *more = args
    if is_zero(first) == is_zero(second):
        return False
    times = kwargs["alpha"] if "alpha" in kwargs else more[0] if more else 1
    factor = sign * times if is_zero(first) else 1
    _note_copy(recorder, second if is_zero(first) else first, factor, result)
    return True


def _apply(recorder: Recorder, overload: Overload, *args: Any, **kwargs: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = overload(*args, **kwargs)
    recorder.note(op_info(overload), args, kwargs, result)
    return result


def _note_plain(recorder: Recorder, tensor: torch.Tensor) -> None:
    aten = torch.ops.aten
    kind = {"dtype": tensor.dtype, "device": tensor.device}
    if tensor.is_contiguous():
        made = _apply(recorder, aten.zeros.default, list(tensor.shape), **kind)
    else:
        count = nbytes_spanned(tensor) // tensor.element_size()
        flat = _apply(recorder, aten.zeros.default, [count], **kind)
        made = _apply(recorder, aten.as_strided.default, flat, list(tensor.shape), list(tensor.stride()))
    recorder.stands_for(tensor, made)


def _note_copy(recorder: Recorder, operand: torch.Tensor, factor: object, result: torch.Tensor) -> None:
    aten = torch.ops.aten
    spread = _apply(recorder, aten.expand.default, operand, list(result.shape))
    made = _apply(recorder, aten._to_copy.default, spread, dtype=result.dtype)
    if factor != 1:
        made = _apply(recorder, aten.mul.Scalar, made, factor)
    recorder.stands_for(result, made)


def check_results(tensors: Sequence[torch.Tensor], fail: Callable[..., None]) -> None:
    """Have a result without memory be the recorder's error."""
    if any(map(is_zero, tensors)):
        fail(
            "a tensor of zeros without memory (torch._efficientzerotensor) is among the results",
            "a graph makes tensors with memory, which can be written and tell otherwise what they are",
            "return its clone()",
            "S0104",
        )
