"""Keys and values that were repeated for the query heads that share them, and what they were before.

%1 = unsqueeze %k, 2; %2 = expand %1, [b, h, g, t, d]; %3 = reshape %2, [b, h * g, t, d]        # %k: [b, h, t, d]
%3 = repeat_interleave %k, g, 1
"""

from __future__ import annotations

from collections.abc import Collection

from smelt.ir import Value
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.passes.base import call_of
from smelt.passes.matching import same_sizes, static_tensor

_VIEWS = where(Trait.TO_SIZES)
_COPIES = ("aten.clone.default", "aten.contiguous.default")


def shared_heads(value: Value, query_heads: int) -> Value | None:
    """[b, h, t, d] that `value` [b, query_heads, t, d] repeats, each head as often in a row; None if it does not."""
    type_ = static_tensor(value)
    if type_ is None or len(type_.sizes) != 4 or type_.sizes[1] != query_heads:
        return None
    node = value.node
    if node is not None and node.op == "aten.repeat_interleave.self_int":
        call = call_of(node)
        return _checked(call["self"], value) if call["dim"] in (1, -3) and isinstance(call["repeats"], int) else None
    spread = _source(value, _VIEWS)
    if spread is None:
        return None
    while (before := _source(spread, _COPIES)) is not None:
        spread = before
    single = _source(spread, ("aten.expand.default",))
    base = None if single is None else _source(single, ("aten.unsqueeze.default",))
    found, wide, narrow = _checked(base, value), static_tensor(spread), static_tensor(single)
    if found is None or wide is None or narrow is None:
        return None
    (b, h, t, d), (_, heads, _, _) = _sizes(found), type_.sizes
    fits = same_sizes(narrow.sizes, (b, h, 1, t, d)) and same_sizes(wide.sizes, (b, h, heads // h, t, d))
    return found if fits else None


def _source(value: Value | None, ops: Collection[str]) -> Value | None:
    """The first operand of the node that makes a value, if that is one of `ops`."""
    node = None if value is None else value.node
    return next(node.operands(), None) if node is not None and node.op in ops else None


def _checked(base: object, value: Value) -> Value | None:
    """The value before it was repeated, if sizes and dtype say that it may be."""
    before, after = static_tensor(base) if isinstance(base, Value) else None, static_tensor(value)
    if before is None or after is None or before.dtype is not after.dtype or len(before.sizes) != 4:
        return None
    (b, h, t, d), (batch, heads, keys, size) = before.sizes, after.sizes
    assert isinstance(base, Value)
    return base if same_sizes((b, t, d), (batch, keys, size)) and 0 < h < heads and heads % h == 0 else None


def _sizes(value: Value) -> tuple[int, ...]:
    type_ = static_tensor(value)
    assert type_ is not None
    return type_.sizes
