"""Gradients that the program itself computes: one node for each call of `backward` or `autograd.grad`.

    loss.backward()      ==>      %g: (f32[8, 4], f32[8]) = py.gradient([%loss], [None], [%weight, %bias])

What autograd does inside is not recorded: the gradient follows from the graph so far, and `autodiff` writes it out. The
results become the `.grad` of leaves, or are added to it, as autograd does.

Invariant: nothing but autograd runs meanwhile. A hook, or a backward in Python, may do anything, so it is refused.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Signature, signature
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.seen.dispatch import suspended
from smelt._torch.seen.leaves import GRAD_SLOT, gradient, has_hooks, history, is_leaf
from smelt.capture.reads.reads_effects import file_kind
from smelt.capture.recording.earlier_gradients import let_go
from smelt.capture.recording.opinfo import OpInfo, op_info
from smelt.diag.idle_memory import give_back_freed_memory
from smelt.ops.torch_gradients import GRADIENT

if TYPE_CHECKING:
    from smelt.capture.recording.recorder import Recorder

INFO = OpInfo(GRADIENT, "gradient", True, 1, False, True, False, (), None, -1, False, None)
BACKWARD, GRAD = signature(torch.autograd.backward), signature(torch.autograd.grad)
_ADD, _ADD_IN_PLACE = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor
_DETACH = torch.ops.aten.detach.default
_WHY = "autograd calls it, in an order of its own, and it may do anything"


@dataclass
class Spent:
    """The nodes of autograd that a run went back through, of which nothing is left to go back through again."""

    _nodes: dict[int, object] = field(default_factory=dict)

    def add(self, nodes: Iterable[object]) -> None:
        """Note nodes, and hold them: an identity is another's once its object is gone."""
        self._nodes.update((id(node), node) for node in nodes)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether going back from a tensor is an error by now."""
        return id(history(tensor)) in self._nodes


def nodes_behind(roots: Iterable[torch.Tensor]) -> list[object]:
    """The nodes of autograd that going back from these tensors passes, each once."""
    found: dict[int, Any] = {}
    left = [history(root) for root in roots]
    while left:
        node = left.pop()
        if node is None or id(node) in found:
            continue
        found[id(node)] = node
        left += [after for after, _ in node.next_functions]
    return list(found.values())


def leaves_behind(roots: Sequence[torch.Tensor], nodes: Iterable[Any]) -> list[torch.Tensor]:
    """The leaves that get a gradient where autograd goes back from these tensors."""
    found = {id(root): root for root in roots if is_leaf(root) and root.requires_grad}
    for node in nodes:
        if type(node).__name__ == "AccumulateGrad":
            found.setdefault(id(node.variable), node.variable)
    return list(found.values())


class _Foreign:
    """Notes Python code that runs beside autograd's own."""

    def __init__(self) -> None:
        self.name = ""

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event != "call" or self.name:
            return
        code, caller = frame.f_code, frame.f_back
        if code.co_filename == "<string>" and caller is not None:
            code = caller.f_code  # a constructor that `dataclasses` wrote is whose who calls it
        if file_kind(code.co_filename) == "user":
            self.name = frame.f_code.co_qualname


def _watched(call: Callable[[], object]) -> tuple[Any, str]:
    """What a call gives, and the first function of somebody else's that ran in it."""
    foreign, before = _Foreign(), sys.getprofile()
    # Garbage may have functions of anybody's that are called as it goes; it has nothing to do with the call.
    collects = gc.isenabled()
    gc.disable()
    with suspended():
        sys.setprofile(foreign)
        try:
            found = call()
        finally:
            sys.setprofile(before)
            if collects:
                gc.enable()
    return found, foreign.name


def record_backward(recorder: Recorder, original: Callable[..., None], args: Any, kwargs: Any) -> None:
    """`torch.autograd.backward` in a recorded run. Raises: what it raises."""
    named = bound(BACKWARD, args, kwargs)
    roots = listed(named["tensors"])
    inputs = None if named["inputs"] is None else listed(named["inputs"])
    create = bool(named["create_graph"])
    keeps = create if named["retain_graph"] is None else bool(named["retain_graph"])
    nodes = nodes_behind(roots)
    leaves = leaves_behind(roots, nodes) if inputs is None else inputs
    let_go(recorder)
    before = [gradient(leaf) for leaf in leaves]
    _, foreign = _watched(lambda: original(*args, **kwargs))
    give_back_freed_memory()  # all that was saved, before the update makes temporaries
    after = [leaf.grad for leaf in leaves if leaf.grad is not None]
    if _begins_outside(recorder, nodes) or not _is_recordable(recorder, foreign, [*roots, *leaves], after):
        return
    if not keeps and inputs is None:
        recorder.spent.add(nodes)
    for leaf, old in zip(leaves, before, strict=True):
        recorder.leaves.setdefault(id(leaf), (leaf, old))
    pairs = [(leaf, old, leaf.grad) for leaf, old in zip(leaves, before, strict=True) if leaf.grad is not None]
    made = [now if old is None else _like(leaf) for leaf, old, now in pairs]
    grads = named["grad_tensors"]
    _note(recorder, roots, None if grads is None else listed(grads), [leaf for leaf, *_ in pairs], made, create)
    with torch.set_grad_enabled(create):
        for (_, old, now), new in zip(pairs, made, strict=True):
            if old is now:
                recorder.note(op_info(_ADD_IN_PLACE), (old, new), {}, old)
            elif old is not None:
                recorder.note(op_info(_ADD), (old, new), {}, now)


def record_grad(recorder: Recorder, original: Callable[..., Any], args: Any, kwargs: Any) -> object:
    """`torch.autograd.grad` in a recorded run. Raises: what it raises."""
    named = bound(GRAD, args, kwargs)
    roots, inputs = listed(named["outputs"]), listed(named["inputs"])
    create = bool(named["create_graph"])
    is_outside = _begins_outside(recorder, nodes_behind(roots))
    result, foreign = _watched(lambda: original(*args, **kwargs))
    pairs = [(x, g) for x, g in zip(inputs, result, strict=True) if g is not None]
    if named["is_grads_batched"] or named["materialize_grads"]:
        recorder.fail("torch.autograd.grad has is_grads_batched or materialize_grads on", _WHY, _FIX, "S0104")
    elif pairs and not is_outside and _is_recordable(recorder, foreign, [*roots, *inputs], [g for _, g in pairs]):
        grads = named["grad_outputs"]
        first = None if grads is None else listed(grads)
        _note(recorder, roots, first, [x for x, _ in pairs], [g for _, g in pairs], create)
    return result


_FIX = "take the gradient outside the captured program"


def _note(
    recorder: Recorder, roots: Sequence[torch.Tensor], grads: Sequence[object] | None, wrt: Sequence[torch.Tensor],
    made: Sequence[torch.Tensor], create: bool,
) -> None:  # fmt: skip
    first = [None] * len(roots) if grads is None else list(grads)
    recorder.note(INFO, (list(roots), first, list(wrt)), {"create_graph": True} if create else {}, list(made))


def _begins_outside(recorder: Recorder, nodes: Iterable[object]) -> bool:
    """Whether going back leads out of the program, by a tensor that came in with a history: the recorder's error."""
    passed = set(map(id, nodes))
    tensors = [slot.ref() for slot in recorder.inputs] + [entry.tensor for entry in recorder.roots.entries.values()]
    if not any(tensor is not None and id(history(tensor)) in passed for tensor in tensors):
        return False
    why = "what they follow from outside is no part of the graph"
    recorder.fail("gradients go back through a tensor that came in with a history", why, _FIX, "S0104")
    return True


def _is_recordable(
    recorder: Recorder, foreign: str, tensors: Iterable[torch.Tensor], grads: Iterable[torch.Tensor]
) -> bool:
    """Whether a graph can say what autograd has done; else that is the recorder's error."""
    what, why = "", _WHY
    hooked = foreign or ("a hook" if any(map(has_hooks, tensors)) else "")
    if hooked:
        what = f"{hooked} ran while gradients were computed"
    elif torch.is_anomaly_enabled():
        what = "gradients are computed with torch.autograd.set_detect_anomaly on"
        why = "autograd names its own operators then"
    elif torch.distributed.is_available() and torch.distributed.is_initialized() and not recorder.is_rank:
        what, why = "gradients are computed while processes work together", "they may be exchanged behind the program"
    elif any(id(t) in recorder.unset for t in tensors):
        what, why = "`requires_grad` of a tensor was switched off before", "only some uses of it have gradients"
    elif any(t.layout is not torch.strided for t in grads):
        what, why = "a gradient is sparse", "a graph holds strided ones"
    if what:
        recorder.fail(what, why, _FIX, "S0104")
    return not what


def flag_set(recorder: Recorder, tensor: torch.Tensor, value: bool) -> None:
    """A tensor requires gradients from now on, or none any more.

    What the program computed from it before has no gradient by it: what it is from now on is another value.
    """
    slot = recorder.slot_of(tensor)
    if not value:
        recorder.unset[id(tensor)] = tensor
        return
    uses = [record for record in recorder.records if _uses(record[1:3], slot)]
    if any(one.family is slot.family for record in uses for one in _slots(record[3])):
        why = "the views require gradients from then on, too"
        recorder.fail("a tensor that has views becomes one that requires gradients", why, _FIX, "S0104")
    elif uses:
        recorder.note(op_info(_DETACH), (tensor,), {}, tensor)


def _slots(results: Any) -> Iterator[Any]:
    for one in results:
        if isinstance(one, list):
            yield from _slots(one)
        elif one is not None:
            yield one


def _uses(arg: object, slot: object) -> bool:
    if isinstance(arg, (list, tuple)):
        return any(_uses(one, slot) for one in arg)
    return any(_uses(one, slot) for one in arg.values()) if isinstance(arg, dict) else arg is slot


def bound(function: Signature, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
    """The arguments of a call by their names. Raises: TypeError where they do not fit."""
    given = function.bind(*args, **kwargs)
    given.apply_defaults()
    return given.arguments


def listed(value: Any) -> list[Any]:
    """The tensors of an argument that takes one, or several."""
    return [value] if isinstance(value, torch.Tensor) or value is None else list(value)


def _like(leaf: torch.Tensor) -> torch.Tensor:
    """A stand-in for a gradient that autograd added to another one at once."""
    return torch.empty_like(leaf, memory_format=torch.preserve_format)


def check_gradients_left(recorder: Recorder, heap: Any) -> None:
    """Have it be the recorder's error where a run leaves gradients that no call can leave.

    heap: the places where a call does.
    """
    outers = [] if heap is None else [outer for outer in heap.outer if outer.place.key is GRAD_SLOT]
    put = {id(outer.place.space) for outer in outers}
    outside = {*recorder.roots.entries, *(id(slot.ref()) for slot in recorder.inputs)}
    for number, (leaf, before) in recorder.leaves.items():
        if number not in put and gradient(leaf) is not before and number in outside:
            why = "the tensor has no name by which a call could find it"
            recorder.fail("the program leaves gradients in `.grad`", why, _FIX, "S0104")
    read = {id(slot.entry.tensor) for slot in recorder.states}
    replaced = [outer.place for outer in outers if id(outer.before) in read]
    if replaced:
        heap.replaced = replaced
        why = "each call would read another tensor"
        recorder.fail("a gradient is read and replaced by another tensor, or by none", why, _FIX, "S0104")


def begins_bare(recorder: Recorder, heap: Any) -> bool:
    """Whether a run let go of all gradients that it replaces before its first operator.

    heap: the places where it put others.
    """
    bare = recorder.bare
    outers = [] if heap is None else [outer for outer in heap.outer if outer.place.key is GRAD_SLOT]
    return (
        bare is not None
        and bool(bare)
        and all(outer.before is None or id(outer.place.space) in bare for outer in outers)
    )
