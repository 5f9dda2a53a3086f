"""What loops ask of sizes that are known at run time only: what holds at all sizes is the right answer."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.ir.sizes import Size, equals, is_one


def at_most(a: int, b: int) -> bool:
    """a <= b, where False is right, if more general, for sizes of which some are larger."""
    difference = a - b
    return difference.trace.decide("<=", difference.poly) is True if type(difference) is Size else difference <= 0


def rest_of(size: int, unit: int) -> int:
    """What steps of `unit` leave of a size; where that is told at run time only, the most that it may be."""
    rest = size % unit
    return unit - 1 if type(rest) is Size else rest


def same_sizes(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes are equal at all sizes."""
    return len(shape) == len(other) and all(map(equals, shape, other))


def is_short_step(step: int) -> bool:
    """Whether lanes so far apart are picked from whole vectors rather than loaded one by one."""
    return type(step) is not Size and 2 <= step <= 4


def unit_loop(strides: Sequence[int]) -> int | None:
    """The first loop along which neighbours follow one another."""
    return next((loop for loop, stride in enumerate(strides) if is_one(stride)), None)
