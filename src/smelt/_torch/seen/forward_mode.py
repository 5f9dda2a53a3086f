"""Levels of forward-mode gradients (`torch.autograd.forward_ad`): tensors in them carry tangents that no graph has.

Adapter for the module's `_current_level`; where torch has no such name, nothing is known of levels. Native code is told
of them as of recordings: while one is open, calls go through Python, which asks `is_forward_mode`.
"""

from __future__ import annotations

from typing import Any

from torch.autograd import forward_ad

from smelt._torch.seen.busy import count

_enter, _exit = forward_ad.enter_dual_level, forward_ad.exit_dual_level


def is_forward_mode() -> bool:
    """Whether a level is open, in any thread."""
    return bool(getattr(forward_ad, "_current_level", -1) >= 0)


def watch_levels() -> None:
    """Have native code know of the levels that are opened from now on.

    What is put there stays, for taking it away could undo what others have set.
    """
    if forward_ad.enter_dual_level is _enter:
        forward_ad.enter_dual_level, forward_ad.exit_dual_level = _entering, _exiting


def _entering() -> Any:
    level = _enter()
    count(1)
    return level


def _exiting(*, level: int | None = None) -> None:
    _exit(level=level)
    count(-1)
