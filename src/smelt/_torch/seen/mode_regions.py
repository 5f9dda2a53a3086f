"""Which modes of the thread a program set itself, in regions that it enters and leaves.

    with torch.no_grad():                     the caller's
        f(x)
    def f(x):
        with torch.no_grad(): y = x * 2       the program's: it holds whatever mode a later caller is in
        return y * x                          the caller's again

The mode alone does not tell the two apart. So the context managers of torch are watched for the time of a recording:
a region that ends gives back what stood before it, the program's own setting or none.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch

from smelt._torch.seen.record_patches import TRACKS, Patches
from smelt._torch.state import is_any_autocast

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_REGIONS_FILE = os.path.join(_TORCH, "autograd", "grad_mode.py")


class Regions:
    """What one recorded run has set so far. is_set: the grad or inference mode; without_autocast: see `Modes`.

    times_cleared: how often autocast has forgotten the casts that it keeps; 0 while they may be those of a region that
    began before the run.
    """

    __slots__ = ("_autocast_before", "_set_before", "_set_in", "is_set", "times_cleared", "without_autocast")

    def __init__(self) -> None:
        self.is_set = False
        self.times_cleared = 0 if is_any_autocast() else 1
        self.without_autocast: frozenset[str] = frozenset()
        # By id of a region, as torch keeps it there: what stood before it was entered last.
        self._set_before: dict[int, bool] = {}
        self._autocast_before: dict[int, frozenset[str]] = {}
        self._set_in: dict[tuple[int, CodeType], bool] = {}

    def set(self, frame: FrameType) -> None:
        """The mode is set without a region, by this frame. Functions of torch's do it twice: the second time they put
        back what they found."""
        before, self.is_set = self.is_set, True
        file = frame.f_code.co_filename
        if file.startswith(_TORCH) and file != _REGIONS_FILE:
            key = id(frame), frame.f_code
            if key in self._set_in:
                self.is_set = self._set_in.pop(key)
            else:
                self._set_in[key] = before

    def enter(self, region: object, before: bool) -> None:
        """A region of grad or inference mode begins; before: whether such a mode was set already."""
        self._set_before[id(region)], self.is_set = before, True

    def leave(self, region: object) -> None:
        """It ends. One that began before the recording leaves what is its own."""
        self.is_set = self._set_before.get(id(region), True)

    def enter_autocast(self, region: object, device: str, is_on: bool) -> None:
        """A region of autocast begins."""
        self._autocast_before[id(region)] = before = self.without_autocast
        self.without_autocast = before - {device} if is_on else before | {device}

    def leave_autocast(self, region: object) -> None:
        """It ends."""
        self.without_autocast = self._autocast_before.get(id(region), self.without_autocast)

    def clear(self) -> None:
        """Autocast forgets the casts that it keeps."""
        self.times_cleared += 1


Active = Callable[[], Regions | None]
"""What the calling thread's recorded run has set; None where nothing is recorded."""


def _tracking(make: Callable[[Any], Any], original: Any) -> Any:
    """A wrapper that counts as what it wraps where the program looks at it."""
    made = make(original)
    made.__dict__[TRACKS] = original
    return made


def _enter_autocast(regions: Regions, region: Any, caller: FrameType) -> None:
    regions.enter_autocast(region, str(getattr(region, "device", "cpu")), getattr(region, "_enabled", True))


@contextlib.contextmanager
def watching_regions(patches: Patches, active: Active) -> Iterator[None]:
    """Have the thread's regions be noted in the block."""

    def entering(original: Any, is_made: bool = False) -> Any:
        """is_made: the region is only made, and sets its mode by that."""

        def enter(self: Any, *args: Any, **kwargs: Any) -> Any:
            regions = active()
            if regions is None:
                return original(self, *args, **kwargs)
            before = regions.is_set
            result = original(self, *args, **kwargs)
            regions.enter(self, before)
            if is_made:
                regions.is_set = before
                regions.set(sys._getframe(1))
            return result

        return enter

    def noted(original: Any, note: Callable[[Regions, Any, FrameType], object]) -> Any:
        """note: is told of each call that has ended, its first argument and who called."""

        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            regions = active()
            if regions is not None:
                note(regions, args[0] if args else None, sys._getframe(1))
            return result

        return call

    leaving = partial(noted, note=lambda regions, region, _: regions.leave(region))
    setting = partial(noted, note=lambda regions, _, caller: regions.set(caller))
    entering_autocast = partial(noted, note=_enter_autocast)
    leaving_autocast = partial(noted, note=lambda regions, region, _: regions.leave_autocast(region))
    clearing = partial(noted, note=lambda regions, *_: regions.clear())
    grad_modes = (torch.no_grad, torch.enable_grad, torch.inference_mode)
    wrappers: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
        *((cls, "__enter__", entering) for cls in grad_modes),
        *((cls, "__exit__", leaving) for cls in grad_modes),
        # It sets the mode when it is made, for it may be called as a function; as a decorator it undoes that.
        (torch.set_grad_enabled, "__init__", partial(entering, is_made=True)),
        (torch.set_grad_enabled, "__enter__", setting),
        (torch.set_grad_enabled, "__exit__", leaving),
        (torch.set_grad_enabled, "__call__", leaving),
        (torch.autocast, "__enter__", entering_autocast),
        (torch.autocast, "__exit__", leaving_autocast),
        (torch, "clear_autocast_cache", clearing),
    )
    with contextlib.ExitStack() as stack:
        for owner, name, make in wrappers:
            stack.enter_context(patches.replaced(owner, name, partial(_tracking, make)))
        yield
