"""Captures of programs whose caller says what is free: all of it is, or there is an error with the line that is why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.capture import Captured
from smelt.compiler.deciding.call_profile import unfit, violation
from smelt.compiler.deciding.generalisation import Freedom, freedom
from smelt.compiler.deciding.seen_calls import seen_call
from smelt.compiler.sizes.dims import bad_shapes
from smelt.compiler.sizes.dynamic_shapes import wishes
from smelt.compiler.staged import staged_capture
from smelt.diag import CaptureError


def wished(shapes: Any, target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Freedom:
    """What is to be free in a capture of this call. Raises: SmeltError (S0304) where the call is not as wished."""
    found = wishes(shapes, target, args, kwargs)
    problem = unfit(found)
    if problem:
        raise bad_shapes(problem, "what is captured is one call, and this one is outside", "correct one of the two")
    return freedom(seen_call(args, kwargs), (), False, found, {})


def sized_capture(
    native: Captured,
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    free: Freedom,
    *,
    is_first: bool = True,
) -> Captured:
    """The capture with free sizes and numbers, and the native run's answer.

    is_first: none of them may be fixed; later captures of a program hold for the sizes of 0 or 1 that others do not.
    Raises: CaptureError (S0111) where something that is named is not free.
    """
    captured = native
    for spec, is_wide in free.specs:
        captured = staged_capture(native, target, args, kwargs, spec, is_wide=is_wide)
        if captured.error is None:
            break
    if captured.error is not None:
        names = ", ".join(entry.name or "a size" for entry in free.entries.values())
        raise CaptureError(
            f"{names} cannot stay free: {captured.error.what}",
            captured.error.where,
            why=captured.error.why,
            fix=captured.error.fix or "leave it out of dynamic_shapes",
            code="S0111",
        )
    broken = violation(free, captured, is_for_one=is_first)
    if broken is not None:
        raise broken
    return captured
