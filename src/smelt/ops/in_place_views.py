"""Operators that give their operand another layout in place, and the views that these are.

aten.transpose_.default(%x, 0, 1)   is   aten.transpose.int(%x, 0, 1), which %x is from then on
"""

from __future__ import annotations

from functools import lru_cache

from smelt.ops.registry import schema_of, siblings

_NAMES = frozenset(("squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "as_strided_", "detach_"))


@lru_cache(maxsize=1024)
def view_of(op: str) -> str | None:
    """The operator that gives as a view what this one makes of its operand; None for any other."""
    schema = schema_of(op) if op.startswith("aten.") and op.split(".")[1] in _NAMES else None
    if schema is None:
        return None
    _, name, variant = op.split(".")
    wanted = [a.type for a in schema.arguments]
    twin = f"aten.{name.removesuffix('_')}.{variant}"
    for found in (twin, *siblings(twin)):
        other = schema_of(found)
        if other is not None and [a.type for a in other.arguments] == wanted:
            return found
    return None
