"""The modes that an operator was called under, and how they differ from those of the program's caller."""

from __future__ import annotations

from typing import Any, NamedTuple

from smelt._torch.state import autocast, is_any_autocast, is_grad_enabled, is_inference


class Modes(NamedTuple):
    """Grad mode, inference mode, and autocast as (device, dtype name) pairs.

    is_set: the program itself set the grad or inference mode, even if to what its caller had. without_autocast: the
    devices for which the program itself switched autocast off. cache: where autocast keeps the casts of weights, a
    number that is another one each time that it forgets them; 0: the caller's own region; -1: it keeps none.
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, Any], ...]
    is_set: bool = False
    without_autocast: frozenset[str] = frozenset()
    cache: int = -1


def modes() -> Modes:
    """The calling thread's modes, about 0.3 us."""
    return Modes(is_grad_enabled(), is_inference(), autocast() if is_any_autocast() else ())


def caller_modes() -> Modes:
    """The modes that a graph takes for granted: those of the calling thread but for autocast, which is written out."""
    return Modes(is_grad_enabled(), is_inference(), ())
