"""First and second gradients of each operator of the catalogue against differences of its results, in f64.

What is checked are graphs of ours: a gradient's graph, and the gradient's graph of that. A new record is walked, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck

from smelt.autodiff import joint_graph
from smelt.diag import SmeltError
from smelt.ir import Graph
from smelt.ops.catalogue import record_of
from smelt.ops.catalogue.gradients import GRADIENTS
from smelt.ops.evaluate import evaluate
from smelt.ops.record import Sample
from tests.autodiff.gradient_harness import IN_F32, called, given_names, graph_of, in_f64, tensors_of, with_tensors
from tests.autodiff.uncatalogued import CALLS

Tensor = torch.Tensor
Program = Callable[..., tuple[Tensor, ...]]
# Functional forms of what writes in place, which torch itself does not differentiate; programs try them.
_OF_WRITES = frozenset(("aten.copy.default",))
OWN = [name for name in GRADIENTS if name not in _OF_WRITES]
# Compared elsewhere: of attention's kernel's backward torch has no gradient, and not all results of a convolution's are
# there; what torch has no f64 of is compared with its gradients in f32 (`test_vjps`).
_ELSEWHERE = IN_F32 | frozenset(n for n in GRADIENTS if "flash_attention" in n or "convolution_backward" in n)
# What torch wants without gradients.
_FIXED = {"aten.soft_margin_loss.default": "target", "aten.binary_cross_entropy.default": "weight"}
# torch has no gradient of this one's gradient.
_ONCE = frozenset(("aten._cdist_forward.default",))


class _Gradients:
    """A graph and, once it is asked for, that of its gradients by some of its inputs."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._made: dict[tuple[int, ...], tuple[_Gradients, tuple[int, ...], list[int]]] = {}

    def by(self, wanted: tuple[int, ...]) -> tuple[_Gradients, tuple[int, ...], list[int]]:
        """Their graph, of which results it takes the gradients, and of which inputs it gives them."""
        if wanted not in self._made:
            joint = joint_graph(self.graph, [self.graph.inputs[i].name for i in wanted])
            found = joint.graph.outputs[joint.count :]
            joint.graph.body.set_yields(tuple(grad for grad in found if grad is not None))
            there = [i for i, grad in zip(wanted, found, strict=True) if grad is not None]
            self._made[wanted] = _Gradients(joint.graph), joint.differentiated, there
        return self._made[wanted]


class _Run(torch.autograd.Function):
    """A graph, and on the way back its gradient's graph."""

    @staticmethod
    def forward(ctx: Any, own: _Gradients, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.own = own
        ctx.save_for_backward(*inputs)
        torch.manual_seed(0)
        # torch would have to be told of a result that is a view of an input.
        return tuple(t.clone() for t in evaluate(own.graph, [t.detach() for t in inputs]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, made = ctx.saved_tensors, [None] * len(ctx.needs_input_grad)
        own, taken, given = ctx.own.by(tuple(i for i, needs in enumerate(ctx.needs_input_grad[1:]) if needs))
        if given:
            for i, grad in zip(given, _Run.apply(own, *inputs, *(grads[i] for i in taken)), strict=True):
                made[1 + i] = grad
        return tuple(made)


def _transposed(t: Tensor) -> Tensor:
    return t.transpose(-1, -2).contiguous().transpose(-1, -2) if t.dim() > 1 else t.clone()


def _with_gaps(t: Tensor) -> Tensor:
    return torch.stack([t, t], -1)[..., 0]


def _error(check: Callable[..., bool], program: Program, leaves: Sequence[Tensor]) -> str:
    """What a check says is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check(program, leaves, fast_mode=True, nondet_tol=1e-12)
        except (GradcheckError, RuntimeError) as error:
            return str(error) or repr(error)
    return ""


class _Call:
    """A call with its floating-point tensors laid out in some manner; expanded: all rows of each are one.

    Raises: RuntimeError or SmeltError where torch refuses it.
    """

    def __init__(
        self, name: str, sample: Sample, layout: Callable[[Tensor], Tensor], *, expanded: bool = False
    ) -> None:
        self.name, self.sample, self.sizes = name, sample, list[Any]()
        self.leaves = [self._leaf(t, layout, expanded=expanded) for t in tensors_of(sample)]
        laid = iter(self._laid(self.leaves))
        self.graph, _ = graph_of(name, with_tensors(sample, lambda _: next(laid)))
        called(name, sample, self._laid(self.leaves))
        fixed = given_names(self.graph, ("running_mean", "running_var", _FIXED.get(name, "")))
        for value, leaf in zip(self.graph.inputs, self.leaves, strict=True):
            leaf.requires_grad_(leaf.is_floating_point() and value.name not in fixed)

    def _leaf(self, tensor: Tensor, layout: Callable[[Tensor], Tensor], *, expanded: bool) -> Tensor:
        is_float = tensor.is_floating_point()
        is_row = expanded and is_float and tensor.dim() > 0 and tensor.shape[0] > 1
        self.sizes.append(tensor.shape if is_row else None)
        return layout(tensor[:1] if is_row else tensor).detach() if is_float else tensor

    def _laid(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        return [leaf if size is None else leaf.expand(size) for leaf, size in zip(leaves, self.sizes, strict=True)]

    def _results(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        return called(self.name, self.sample, self._laid(leaves))

    def of_torch(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        return tuple(r for r in self._results(leaves) if r.requires_grad)

    def fault(self, check: Callable[..., bool]) -> str | None:
        """What is wrong with our gradients. None: at this point torch's are not those of the differences, either."""
        own = _Gradients(self.graph)
        results = self._results(self.leaves)
        at = [i for i, r in enumerate(results) if r.requires_grad]
        if not at:
            return None
        text = _error(check, lambda *leaves: tuple(_Run.apply(own, *self._laid(leaves))[i] for i in at), self.leaves)
        return None if text and _error(check, self.of_torch, self.leaves) else text


def _samples(name: str) -> list[Sample]:
    record = record_of(name)
    return [*(record.samples() if record is not None else ()), *CALLS.get(name, ())]


def _calls(name: str) -> Iterator[_Call]:
    for sample in _samples(name):
        sample = with_tensors(sample, in_f64)
        if not all(bool(t.isfinite().all()) for t in tensors_of(sample)):
            continue
        for layout, expanded in ((torch.clone, False), (_transposed, False), (_with_gaps, False), (torch.clone, True)):
            with suppress(RuntimeError, SmeltError):  # not every layout can be viewed
                yield _Call(name, sample, layout, expanded=expanded)


@pytest.mark.spread(28)
@pytest.mark.parametrize("name", [name for name in OWN if name not in _ELSEWHERE])
def test_gradients_are_those_of_differences(name: str) -> None:
    compared = dict.fromkeys((gradcheck, gradgradcheck)[: 1 if name in _ONCE else 2], 0)
    for call in _calls(name):
        for check in compared:
            text = call.fault(check)
            assert not text, f"{check.__name__} of {call.graph}: {text}"
            compared[check] += text is not None
    assert all(compared.values()), compared
