"""Which values leave the graph as the tensor objects they are, so that nobody may put another object in their place."""

from __future__ import annotations

from smelt.ir import Region, Value, may_hold_container
from smelt.ops.effects import alias_of
from smelt.ops.record import Trait
from smelt.ops.sets import where

# Views of the whole operand when the types agree. Not as_strided (which names a place), not conj (which sets a bit).
WHOLE_VIEWS = tuple(sorted(where(Trait.WHOLE_VIEW)))


def is_returned(value: Value) -> bool:
    """Whether the very tensor object may be among the graph's outputs: a loop that begins with it, or a container that
    holds it, may hand it on.
    """
    return any(
        isinstance(user, Region)
        or bool(user.regions)
        or user.op.startswith("py.")
        or (
            (user.op not in WHOLE_VIEWS and alias_of(user) is value and user.result.type == value.type)
            and is_returned(user.result)
        )
        for user in value.users
    )


def is_own_container(value: Value) -> bool:
    """Whether a value may be, or hold, a list or dictionary that is returned: each run of its node makes another."""
    return may_hold_container(value.type) and is_returned(value)
