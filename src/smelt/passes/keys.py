"""Arguments as dictionary keys that tell 1, 1.0, True and -0.0 apart."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable

from smelt.ir import Arg, Value
from smelt.ir.sizes import SizeFloat


def arg_key(arg: Arg, value_key: Callable[[Value], Hashable] = id) -> Hashable:
    """A hashable stand-in for an argument; values by `value_key`."""
    if isinstance(arg, Value):
        return ("%", value_key(arg))
    if isinstance(arg, tuple):
        return ("(", *(arg_key(a, value_key) for a in arg))
    if type(arg) is SizeFloat:
        return ("float", arg)
    if isinstance(arg, float):
        return ("float", struct.pack("<d", arg))
    if isinstance(arg, complex):
        return ("complex", struct.pack("<dd", arg.real, arg.imag))
    return (type(arg).__name__, arg)
