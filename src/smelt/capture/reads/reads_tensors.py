"""What a run may read, or leave changed, of tensors beside their data: whether they require gradients, the gradient,
and attributes that somebody gave them. Nothing of it passes the dispatcher, or a class that could be watched.

Invariant: a tensor is met before the run can change it. What it is like is a fact only where code that ran names it;
that it is another afterwards is always a change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from smelt._torch.exact import MISSING, same
from smelt._torch.seen.leaves import GRAD_SLOT, gradient, is_leaf
from smelt.capture.reads.reads_effects import file_kind
from smelt.capture.reads.reads_facts import Change, Read
from smelt.capture.reads.reads_values import raw_lookup
from smelt.capture.recording.earlier_gradients import Earlier
from smelt.capture.structure.state import Place

if TYPE_CHECKING:
    from types import CodeType

    from smelt.capture.reads.reads_facts import Site

_KINDS = frozenset({torch.Tensor, torch.nn.Parameter})
_OPTIMIZERS = os.path.join(os.path.dirname(torch.__file__), "optim", "")
_ASSIGN, _REGISTER = torch.nn.Module.__setattr__.__code__, torch.nn.Module.register_buffer.__code__
_FLAGS: dict[str, Callable[[torch.Tensor], bool]] = {
    "requires_grad": lambda tensor: tensor.requires_grad,
    "is_leaf": is_leaf,
}


# What recorders of other threads set for a while.
_RECORDED = frozenset((
    "shape", "size", "stride", "numel", "nelement", "item", "tolist", "is_contiguous", "contiguous", "storage_offset",
    "requires_grad_", "register_hook", "retain_grad", "register_post_accumulate_grad_hook", "data", "numpy",
    "untyped_storage", "data_ptr", "requires_grad", "grad", "is_leaf", "backward", "dim", "ndim", "dtype", "device",
))  # fmt: skip


def methods_of_tensors(names: Collection[str]) -> Iterator[tuple[str, object, bool]]:
    """What `torch.Tensor` holds under these names, which somebody may set to other functions, and whether it is
    somebody's already."""
    for name in names:
        if name in _RECORDED or name.startswith("__"):
            continue
        held = raw_lookup(torch.Tensor, name)
        kind = file_kind(held.__code__.co_filename) if type(held) is FunctionType else ""
        if held is not MISSING and kind != "smelt":
            yield name, held, kind == "user" or (not kind and name in torch.Tensor.__dict__)


def steps_by_gradients(code: CodeType) -> bool:
    """Whether a function is one of torch's own that read the gradients of parameters."""
    return code.co_filename.startswith(_OPTIMIZERS) or "clip_grad" in code.co_filename


class _Met(NamedTuple):
    tensor: torch.Tensor
    name: Callable[[], str]
    site: Site | None
    requires_grad: bool
    grad: Earlier
    own: dict[str, Any]


class TensorMarks:
    """The tensors that a run has reached, as they were then."""

    def __init__(self) -> None:
        self._met: dict[int, _Met] = {}

    def meet(self, tensor: Any, name: Callable[[], str], site: Site | None) -> bool:
        """Note a tensor; whether it is met for the first time."""
        is_new = id(tensor) not in self._met and type(tensor) in _KINDS
        if is_new:
            before = Earlier(gradient(tensor))
            self._met[id(tensor)] = _Met(tensor, name, site, tensor.requires_grad, before, own_of(tensor))
        return is_new

    def forget(self) -> None:
        """Hold none of them any longer."""
        self._met.clear()

    def changes(self) -> Iterator[Change]:
        """What is different now."""
        for met in self._met.values():
            tensor = met.tensor
            if tensor.requires_grad != met.requires_grad:
                yield Change(
                    (id(tensor), "requires_grad"),
                    f"{met.name()}.requires_grad",
                    met.requires_grad,
                    tensor.requires_grad,
                    met.site,
                )
            if not met.grad.is_(now := gradient(tensor)):
                yield Change((id(tensor), "grad"), f"{met.name()}.grad", met.grad.value, now, met.site)
            own = own_of(tensor)
            if not same(met.own, own):
                yield Change((id(tensor), None), f"the attributes of {met.name()}", met.own, own, met.site)

    def new_gradients(self, without: Collection[int]) -> Iterator[tuple[Place, object, object]]:
        """Where a run has left another gradient: what was there before it, and what is there now.

        without: ids of tensors that are not looked at: arguments, and those whose gradients are.
        """
        for met in self._met.values():
            now = gradient(met.tensor)
            if not met.grad.is_(now) and id(met.tensor) not in without:
                place = Place("slot", met.tensor, GRAD_SLOT, f"{met.name()}.grad", None, met.site)
                yield place, met.grad.value, now

    def _of_gradients(self, names: Collection[str], put: Collection[int], passed: Collection[int]) -> Iterator[Read]:
        """Facts of all tensors at once: which of those whose gradient is put had one, and that no hook is called."""
        met = [met for met in self._met.values() if id(met.tensor) not in passed]
        changed = [one for one in met if id(one.tensor) in put]
        if changed:
            had = tuple(not one.grad.is_(None) for one in changed)
            yield self._of_all("given", changed, "grad", had, "whether there are gradients")
        if "backward" in names:
            leaves = [one for one in met if one.requires_grad]
            yield self._of_all("hooked", leaves, None, False, "hooks on tensors")

    def _of_all(self, kind: str, met: Sequence[_Met], key: object, value: object, label: str) -> Read:
        tensors = tuple(one.tensor for one in met)
        return Read(kind, tensors, key, value, met[0].site if met else None, label, tensors, lambda number: label)

    def facts(
        self,
        names: Collection[str],
        passed: Collection[int],
        namer: Callable[[int], str],
        put: Collection[int] = (),
        given: Collection[int] = (),
    ) -> Iterator[Read]:
        """What must hold again, of what these names could have read; passed: ids of arguments, others at each call.

        put: ids of tensors whose gradients are put at each call, so that only whether they have one can be read; given:
        of those whose gradients are arguments.
        """
        yield from self._of_gradients(names, put, passed)
        for met in self._met.values():
            tensor = met.tensor
            if id(tensor) in passed:
                continue
            for flag, ask in _FLAGS.items():
                if flag in names:
                    yield self._fact(met, "attr", tensor, flag, ask(tensor), namer)
            if "grad" in names and id(tensor) not in put and id(tensor) not in given:
                yield self._fact(met, "attr", tensor, "grad", gradient(tensor), namer)
            for key, value in met.own.items():
                if key in names:
                    yield self._fact(met, "item", tensor.__dict__, key, value, namer)

    def attributes_of(self, names: Collection[str], passed: Collection[int]) -> Iterator[tuple[str, Site | None]]:
        """Attributes of arguments that could have been read."""
        for met in self._met.values():
            if id(met.tensor) in passed:
                yield from ((f"{met.name()}.{key}", met.site) for key in met.own if key in names)

    def _fact(self, met: _Met, kind: str, owner: object, key: str, value: object, namer: Callable[[int], str]) -> Read:
        return Read(kind, owner, key, value, met.site, f"{met.name()}.{key}", owner, namer)


def own_of(tensor: object) -> dict[str, object]:
    """The attributes that a tensor was given, but for marks that tell torch's own compiler how to treat it."""
    own = tensor.__dict__
    return {key: value for key, value in own.items() if not key.startswith("_dynamo_")} if own else {}


def is_assigning_buffer(name: str, frame: FrameType) -> bool:
    """Whether torch reads a module's buffers to assign one of them."""
    if name != "_buffers" or frame.f_code is not _REGISTER or frame.f_back is None:
        return False
    return frame.f_back.f_code is _ASSIGN
