"""Gradients that the program computes, and the `.grad` of tensors from outside, in a staged run.

Fake tensors have no history. Which leaves get a gradient is what the recorded run found at the same line; the graph is
asked later whether that is so on all paths (`autodiff.write_gradients`). What the program stores in `.grad` stands in a
table of the session, for the tensors are the user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.seen.dispatch import unseen
from smelt._torch.seen.leaves import has_hooks
from smelt._torch.seen.staged_fakes import FakeTensors, is_fake
from smelt.capture.recording.gradients import BACKWARD, GRAD, INFO, bound, listed
from smelt.capture.recording.spans import Spans
from smelt.capture.recording.tensor_slots import Family, slot_type
from smelt.diag import Span
from smelt.ir import STATE_OPS, Node, TensorType, Value
from smelt.ops.convert import dtype_to_torch
from smelt.ops.effects import alias_of, effects
from smelt.ops.torch_gradients import GRADIENT

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session

_WHY = "the recorded run has not shown which tensors get a gradient here"
_ONE_PATH = "autograd would give gradients on one path only"


class Gradients:
    """What tensors from outside have as `.grad`, as far as the program has changed it. native: the recorded run."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._held: dict[int, tuple[torch.Tensor, Any]] = {}
        self._spans = Spans()

    def begin(self) -> None:
        """The program starts, maybe once more."""
        self._held.clear()

    def of(self, tensor: torch.Tensor, found: Callable[[], Any]) -> Any:
        """`tensor.grad`; found: what torch has there."""
        held = self._held.get(id(tensor))
        return found() if held is None else held[1]

    def put(self, session: Session, tensor: torch.Tensor, value: object) -> None:
        """The program sets `tensor.grad`. Raises: CannotStage on one path only."""
        if not session.paths.is_on_all:
            session.cannot("`grad` of a tensor from outside is set on one path only")
        self._held[id(tensor)] = tensor, value

    def check_left(self, session: Session) -> None:
        """Raises: CannotStage where the run would leave another `.grad` than it found."""
        put = {id(place.space) for place in self._native.outer}
        for number, (tensor, value) in self._held.items():
            with unseen():
                if number not in put and not is_fake(tensor) and tensor.grad is not value:
                    session.cannot("the program leaves gradients in `.grad`", "the graph changes elements, and no more")

    # --- backward and grad

    def backward(self, session: Session, args: Any, kwargs: Any) -> None:
        """`torch.autograd.backward`. Raises: CannotStage."""
        named = bound(BACKWARD, args, kwargs)
        roots, create = listed(named["tensors"]), bool(named["create_graph"])
        node = self._recorded(session, roots)
        every = [self._tensor(session, value) for value in _wrt(node)]
        leaves = [leaf for leaf in every if leaf is not None]
        kinds = [value for leaf, value in zip(every, _gradients(node), strict=True) if leaf is not None]
        given = None if named["inputs"] is None else listed(named["inputs"])
        if given is not None and [id(t) for t in given] != [id(t) for t in leaves]:
            session.cannot("gradients are computed of other tensors than in the recorded run")
        made = self._note(session, kinds, roots, named["grad_tensors"], leaves, create)
        with torch.set_grad_enabled(create):
            for leaf, new in zip(leaves, made, strict=True):
                before = leaf.grad
                if before is None:
                    self.put(session, leaf, new)
                elif create:
                    self.put(session, leaf, before + new)
                else:
                    before.add_(new)

    def grad(self, session: Session, args: Any, kwargs: Any) -> tuple[torch.Tensor, ...]:
        """`torch.autograd.grad`. Raises: CannotStage."""
        named = bound(GRAD, args, kwargs)
        roots, inputs = listed(named["outputs"]), listed(named["inputs"])
        node = self._recorded(session, roots)
        if len(_wrt(node)) != len(inputs):
            session.cannot("torch.autograd.grad gives no gradient of some tensor", _WHY)
        made = self._note(session, _gradients(node), roots, named["grad_outputs"], inputs, bool(named["create_graph"]))
        return tuple(made)

    def _recorded(self, session: Session, roots: Sequence[torch.Tensor]) -> Node:
        """The node that the recorded run has for this line. Raises: CannotStage where there is none, or several."""
        if not session.paths.is_on_all:
            session.asks_natively = True  # a graph of the recorded path may say it
            session.cannot("gradients are computed on one path only", _ONE_PATH)
        site = session.site()
        span: Span | None = None if site is None else self._spans.of(site)
        graph = self._native.graph
        found = [n for n in graph.walk() if n.op == GRADIENT and n.span == span] if graph is not None else []
        wanted = {tuple(_leaf(v).name for v in _wrt(node)) for node in found}
        if not found or len(wanted) > 1 or len(listed(found[0].args[0])) != len(roots):
            session.cannot("gradients are computed in the program", _WHY)
        return found[0]

    def _tensor(self, session: Session, value: Value) -> torch.Tensor | None:
        """The tensor that a leaf of the recorded run is here; None for one that is gone."""
        value, native = _leaf(value), self._native
        node = value.node
        found: torch.Tensor | None
        if node is not None and node.op in STATE_OPS:
            found = native.state.lookup(node.op, str(node.args[0]))
        elif node is None:
            found = session.recorder.inputs[native.graph.inputs.index(value)].ref()
        else:
            found = self._made(session, node)
        if found is not None and has_hooks(found):
            session.cannot("a hook runs while gradients are computed")
        return found

    def _made(self, session: Session, node: Node) -> torch.Tensor | None:
        """The tensor that the program has made where the recorded run has a node."""
        found = [
            one[3] for one in session.recorder.records
            if isinstance(one, tuple) and one[0].name == node.op and one[4] is not None
            and self._spans.of(one[4]) == node.span
        ]  # fmt: skip
        if len(found) != 1 or len(found[0]) != 1 or self._twins(node) > 1:
            session.cannot("a gradient is computed of a tensor that the program made", _WHY)
        made: torch.Tensor | None = found[0][0].ref()
        return made

    def _twins(self, node: Node) -> int:
        return sum(one.op == node.op and one.span == node.span for one in self._native.graph.walk())

    def _note(
        self, session: Session, kinds: Sequence[Value], roots: Sequence[torch.Tensor], grads: object,
        wrt: Sequence[torch.Tensor], create: bool,
    ) -> list[torch.Tensor]:  # fmt: skip
        """Record the gradients, which are of the types of these values of the recorded run."""
        recorder = session.recorder
        first = [None] * len(roots) if grads is None else listed(grads)
        operands: list[Any] = []
        noted = [recorder._encode(arg, operands) for arg in (list(roots), first, list(wrt))]
        if any(map(recorder.is_varied, operands)) or any(not slot_type(s).is_static for s in operands):
            session.cannot("gradients are computed of tensors whose sizes depend on data, or are free")
        made = []
        for value in kinds:
            type_ = value.type
            assert isinstance(type_, TensorType)
            made.append(_made(recorder.fakes, type_, create))
        slots = [recorder._define(one, Family(True)) for one in made]
        named = {"create_graph": True} if create else {}
        recorder.records.append(
            (INFO, noted, named, (slots,), recorder._find_site(2), recorder.scope.path, recorder._modes_now())
        )
        return made


def _made(fakes: FakeTensors, type_: TensorType, requires_grad: bool) -> torch.Tensor:
    """The fake tensor of a gradient: there is one for each parameter, so it is made in the shortest way."""
    dtype, device = dtype_to_torch(type_.dtype), torch.device(type_.device)
    with unseen():
        made = None if requires_grad else fakes.direct(dtype, type_.sizes, type_.steps, device)
    return fakes.fresh(dtype, type_.sizes, type_.steps, device, requires_grad) if made is None else made


def _leaf(value: Value) -> Value:
    """The tensor that a value was before operators wrote to it in place."""
    while value.node is not None and effects(value.node).writes and alias_of(value.node) is not None:
        value = alias_of(value.node) or value
    return value


def _wrt(node: Node) -> list[Value]:
    wrt = node.args[2]
    assert isinstance(wrt, tuple)
    return [value for value in wrt if isinstance(value, Value)]


def _gradients(node: Node) -> Sequence[Value]:
    return next(user for user in node.result.users if isinstance(user, Node) and user.op == "unpack").results
