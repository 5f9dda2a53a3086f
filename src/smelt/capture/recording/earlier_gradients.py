"""The gradients that a run finds, held no longer than the program holds them.

A training step lets go of the gradients of the step before it and makes new ones. A recorded run that kept the old
ones, to put them back for a while when it is staged, would hold both: one more copy of all parameters. What is put back
then is a tensor of the same kind whose memory nobody has touched, for nothing reads what a program lets go of unread.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from smelt._torch.seen.dispatch import suspended
from smelt._torch.seen.leaves import gradient, unseen_layout

if TYPE_CHECKING:
    from smelt.capture.recording.recorder import Recorder


class Earlier:
    """A gradient, or None, as it was before a run."""

    __slots__ = ("_held", "_kind", "_ref")

    def __init__(self, found: torch.Tensor | None) -> None:
        self._held = found
        self._ref: weakref.ref[torch.Tensor] | None = None
        if found is not None and type(found) is torch.Tensor and found.is_cpu and found.layout is torch.strided:
            self._held, self._ref = None, weakref.ref(found)
            self._kind = *unseen_layout(found), found.dtype

    def is_(self, now: torch.Tensor | None) -> bool:
        """Whether this is that gradient."""
        if self._ref is None:
            return now is self._held
        return now is not None and now is self._ref()

    @property
    def value(self) -> torch.Tensor | None:
        """The gradient; where it is gone, one of its kind, the same one each time."""
        if self._ref is None:
            return self._held
        found = self._ref()
        if found is None:
            sizes, strides, requires_grad, dtype = self._kind
            with suspended(), torch.inference_mode(False), torch.no_grad():
                found = torch.empty_strided(sizes, strides, dtype=dtype, requires_grad=requires_grad)
            self._held, self._ref = found, None
        return found


def let_go(recorder: Recorder) -> None:
    """Have a recorder drop the gradients that tensors had before its run, where they have others now, or none.

    Those that somebody else holds stay, and those that the program has read, which are state.
    """
    entries = recorder.roots.entries
    read = {id(slot.entry) for slot in recorder.states}
    for number, entry in list(entries.items()):
        is_gradient = entry.key == "grad" and isinstance(entry.owner, torch.Tensor)
        if not is_gradient or id(entry) in read or gradient(entry.owner) is entry.tensor:
            continue
        reference, entry.tensor = weakref.ref(entry.tensor), None
        held = reference()
        if held is None:
            del entries[number]
        else:
            entry.tensor = held
        del held


def let_go_of(recorder: Recorder) -> frozenset[int]:
    """Ids of the tensors whose gradients a run has let go of by now; none where it still has one of those it found."""
    entries = recorder.roots.entries.values()
    owners = [e.owner for e in entries if e.key == "grad" and isinstance(e.owner, torch.Tensor)]
    return frozenset() if any(gradient(owner) is not None for owner in owners) else frozenset(map(id, owners))
