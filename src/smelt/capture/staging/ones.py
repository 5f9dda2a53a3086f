"""How results lie of operands along whose dimensions of one element no row-major stride stands.

Such a stride is never stepped by, but torch chooses a result's layout by it, and its kernels without data choose
otherwise than the CPU's: `x + 1` of f32[4, 1]{1, 4} is {1, 4} on the CPU, and {1, 1} on the device meta; `relu`, `sort`
and `zeros_like` differ, too, each in its own way. So the CPU's own kernel is asked, on zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt._torch.dispatch import unseen
from smelt.capture.opinfo import OpInfo
from smelt.ops.shapes.views import row_major

_MOST_ELEMENTS = 1 << 14
"""Of all operands together: a call on zeros costs next to nothing then."""
_PLAIN = (int, float, bool, complex, str, type(None), torch.dtype, torch.layout, torch.memory_format)


_KEEPING_FORMAT = frozenset(("roll", "channel_shuffle", "native_channel_shuffle"))
"""Their results keep the memory format of their operand on the CPU, and are row-major without data."""


class _Unaskable(Exception):
    """The CPU is not asked."""


def otherwise_on_cpu(
    overload: Any, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> list[tuple[torch.Tensor, tuple[int, ...]]]:
    """The results of a call on shadows that lie otherwise on the CPU, with the strides that they have there."""
    results = [result] if isinstance(result, torch.Tensor) else result
    if info.writes or info.is_random or info.sized_by is not None or not isinstance(results, (list, tuple)):
        return []
    operands = (*args, *kwargs.values())
    is_kept = info.short in _KEEPING_FORMAT and _is_plain(args[0]) and not args[0].is_contiguous()
    if not (is_kept or any(map(_is_odd, operands))) or any(r is arg for r in results for arg in operands):
        return []
    with unseen(), torch.no_grad():
        try:
            spent = [0]
            named = dict(zip(kwargs, _zeros(list(kwargs.values()), spent), strict=True))
            found = overload(*_zeros(args, spent), **named)
        except (_Unaskable, RuntimeError, IndexError, TypeError, ValueError):
            return []  # zeros may be refused where data are not
    pairs = zip(results, [found] if isinstance(found, torch.Tensor) else found, strict=True)
    return [(r, f.stride()) for r, f in pairs if _is_plain(r) and r.shape == f.shape and r.stride() != f.stride()]


def _is_plain(arg: Any) -> bool:
    """Whether it is a strided tensor on the CPU, all of whose sizes and strides are numbers."""
    is_strided = isinstance(arg, torch.Tensor) and arg.layout is torch.strided and arg.device.type == "cpu"
    return is_strided and all(type(n) is int for n in (*arg.shape, *arg.stride()))


def _is_odd(arg: Any) -> bool:
    if isinstance(arg, (list, tuple)):
        return any(map(_is_odd, arg))
    return _is_plain(arg) and 1 in arg.shape and arg.stride() != row_major(arg.shape)


def _zeros(args: Sequence[Any], spent: list[int]) -> list[Any]:
    made: list[Any] = []
    for arg in args:
        if isinstance(arg, (list, tuple)):
            made.append(_zeros(arg, spent))
        elif isinstance(arg, torch.Tensor):
            spent[0] += arg.numel() if _is_plain(arg) else _MOST_ELEMENTS + 1
            if spent[0] > _MOST_ELEMENTS:
                raise _Unaskable
            made.append(torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype).zero_())
        elif type(arg) in _PLAIN:
            made.append(arg)
        else:
            raise _Unaskable
    return made
