"""Results of which autograd, or Python, knows more than a graph of values tells.

    w = torch.ones(3, requires_grad=True)      a leaf that the program makes
    return (w * x).sum()                       its caller may go backward from here
    y.note = "mine"; return y                  its caller may ask for it

A graph holds what is computed. That a result requires grad follows from what goes in, as long as something that goes in
does and gradients are on (`Histories` tells): then the program itself runs, under autograd. Gradients that begin inside
are seen by nobody.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from smelt._torch.seen.leaves import history, is_leaf
from smelt._torch.seen.record_modes import Modes
from smelt._torch.seen.record_patches import is_plain_tensor_type
from smelt._torch.seen.staged_fakes import attributes
from smelt.capture.recording.gradients import Spent
from smelt.capture.recording.recorder import Recorder
from smelt.capture.recording.spans import Site

_WHY = (
    "a graph holds values: the result would have no history that begins in the program, and backward() would find none"
)
_FIX = "return it detached (y.detach()), or make the tensor that requires gradients outside and pass it as an argument"
_WHY_NAMED = "a graph holds values: the result would have no attributes"
_FIX_NAMED = "return what the attribute holds beside the tensor"

_KINDS = (torch.nn.Parameter, torch.nn.Buffer)


class Odd(NamedTuple):
    """A result that no graph repeats: what it is, why, what to do, where it was made."""

    what: str
    why: str
    fix: str
    site: Site | None


class Histories:
    """What autograd knew of the tensors that were there before a run."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        # Not held: a run may let go of gradients, and what is gone has no history.
        self._before = [(weakref.ref(tensor), tensor.requires_grad, history(tensor)) for tensor in tensors]

    @property
    def _known(self) -> set[int]:
        return {id(tensor) for ref, *_ in self._before if (tensor := ref()) is not None}

    @property
    def matter(self) -> bool:
        """Whether one of them requires gradients, so that what follows from it may."""
        return any(requires for _, requires, _ in self._before)

    def have_grown(self, results: Iterable[torch.Tensor], spent: Spent) -> bool:
        """Whether the run gave a result, or a tensor that was there, a history that it had not, and that is not spent.

        A view of one of these that was made without gradients requires them as that does, and has none.
        """
        known = self._known
        new = (tensor for tensor in results if id(tensor) not in known and tensor.requires_grad)
        new = (tensor for tensor in new if not spent.has(tensor))
        if any(not is_leaf(tensor) or id(tensor._base) not in known for tensor in new):
            return True
        return any(
            (tensor := ref()) is not None and tensor.requires_grad and not (requires and history(tensor) is before)
            for ref, requires, before in self._before
        )


def begun_inside(tensors: Sequence[torch.Tensor], recorder: Recorder, caller: Modes) -> Odd | None:
    """A result that requires gradients, is a parameter, or has attributes by what the program did itself."""
    odd = [t for t in tensors if t.requires_grad or isinstance(t, _KINDS) or _given_by_name(t)]
    if not odd:
        return None
    inputs = {id(t): t for t in (slot.ref() for slot in recorder.inputs) if t is not None}
    from_outside = caller.grad and (
        any(t.requires_grad for t in inputs.values()) or any(s.entry.tensor.requires_grad for s in recorder.states)
    )

    def is_outside(tensor: torch.Tensor) -> bool:
        entry = recorder.roots.entries.get(id(tensor))
        return id(tensor) in inputs or (entry is not None and entry.tensor is tensor)

    for tensor in odd:
        if is_outside(tensor):
            continue
        what = f"a {type(tensor).__qualname__} that the program made is among its results"
        if not isinstance(tensor, _KINDS):
            given = _given_by_name(tensor)
            if given:
                what = f"a result has an attribute that the program gave it, `{given[0]}`"
                return Odd(what, _WHY_NAMED, _FIX_NAMED, _site_of(tensor, recorder))
            base = recorder.base_of(tensor)
            if is_leaf(tensor) and base is not None and is_outside(base):
                # A view that is made without gradients requires them where its base does.
                continue
            if not tensor.requires_grad or from_outside:
                continue
            what = "a result requires gradients, which begin inside the program"
        return Odd(what, _WHY, _FIX, _site_of(tensor, recorder))
    return None


def _given_by_name(tensor: torch.Tensor) -> list[str]:
    """The attributes that a program gave a tensor; what torch notes there for its own compiler is none."""
    return [name for name in attributes(tensor) if not name.startswith("_dynamo_")]


def check_classes(tensors: Sequence[torch.Tensor], recorder: Recorder) -> None:
    """Have a result of a tensor subclass be the recorder's error."""
    for tensor in tensors:
        if not is_plain_tensor_type(type(tensor)):
            recorder.fail(
                f"a {type(tensor).__qualname__}, a tensor subclass, is among the results",
                "a graph makes plain tensors, and operators may do something else with the subclass",
                "return it as a plain tensor: y.as_subclass(torch.Tensor)",
                "S0104",
                _site_of(tensor, recorder),
            )


def _site_of(tensor: torch.Tensor, recorder: Recorder) -> Site | None:
    record = recorder.maker_of(recorder.slot_of(tensor))
    return None if record is None else record.site
