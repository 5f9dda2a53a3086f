"""Results that autograd knows more of than a graph of values tells.

    w = torch.ones(3, requires_grad=True)      a leaf that the program makes
    return (w * x).sum()                       its caller may go backward from here

A graph holds what is computed. That a result requires grad follows from what goes in, as long as something that goes in
does and gradients are on: then the program itself runs, under autograd. Gradients that begin inside are seen by nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt._torch.leaves import is_leaf
from smelt._torch.record_modes import Modes
from smelt._torch.record_patches import is_plain_tensor_type
from smelt.capture.recorder import Recorder
from smelt.capture.spans import Site

WHY = (
    "a graph holds values: the result would have no history that begins in the program, and backward() would find none"
)
FIX = "return it detached (y.detach()), or make the tensor that requires gradients outside and pass it as an argument"

_KINDS = (torch.nn.Parameter, torch.nn.Buffer)


def begun_inside(tensors: Sequence[torch.Tensor], recorder: Recorder, caller: Modes) -> tuple[str, Site | None]:
    """What a result is that no graph repeats, and where it was made: one that requires gradients, or is a parameter, by
    what the program did itself. "" where there is none.
    """
    odd = [t for t in tensors if t.requires_grad or isinstance(t, _KINDS)]
    if not odd:
        return "", None
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
        if not isinstance(tensor, _KINDS) and is_leaf(tensor) and tensor._base is not None and is_outside(tensor._base):
            # A view that is made without gradients requires them where its base does.
            continue
        if isinstance(tensor, _KINDS):
            return f"a {type(tensor).__qualname__} that the program made is among its results", _site_of(
                tensor, recorder
            )
        if tensor.requires_grad and not from_outside:
            return "a result requires gradients, which begin inside the program", _site_of(tensor, recorder)
    return "", None


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
