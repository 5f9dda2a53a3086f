"""A graph as one node of autograd: its forward half runs natively when it is called, its backward half on the way back.

    loss = program(x, weight)     forward plan; what the smallest cut saves goes to autograd's own keeping
    loss.backward()               backward plan; the gradients of inputs and parameters

Because autograd keeps what is saved, it frees it, checks versions, and raises its own errors, for the inputs and
outputs that eager would save and no others. With `create_graph` the gradients come from a graph that is such a node,
too: from the inputs on, since what was saved has no history.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from smelt._torch.autocast import no_autocast
from smelt._torch.plain import is_plain_anywhere
from smelt._torch.seen.leaves import is_leaf
from smelt._torch.storage import same_storage
from smelt.autodiff import Joint, Watched, certain_values, extract, halves, joint_graph, watched
from smelt.codegen.lower import Lowered, lower
from smelt.codegen.lower.result import EAGER, Fresh, Layouts
from smelt.compiler.pipeline import optimized_graph
from smelt.compiler.training.histories import requires_gradients
from smelt.diag import Options, SmeltError, Span
from smelt.ir import UNKNOWN_DIM, Graph, TensorType, Value
from smelt.ops.convert import dtype_to_torch
from smelt.ops.effects import effects
from smelt.ops.evaluate import evaluate, no_state
from smelt.ops.record import tensor_type
from smelt.runtime.executable import Executable

Tensors = Sequence[Any]

LENT_NBYTES: Final = 4 << 20
"""An arena of as many bytes is freed behind each run: while the other half runs, and between steps, the memory serves
what that half and the optimizer make."""


class Native:
    """A graph without state, compiled: takes and gives flat lists. Raises: SmeltError where it cannot be lowered."""

    def __init__(self, graph: Graph, options: Options, code: bytes | None, layouts: Layouts = EAGER) -> None:
        self.graph = graph
        with no_autocast():
            self.optimized, self.passes = optimized_graph(graph, options, no_state)
            self.lowered: Lowered = lower(self.optimized, no_state, options, layouts=layouts)
        plan = self.lowered.plan
        self.executable = Executable(plan, code, keeps_arena=plan.arena_nbytes < LENT_NBYTES)

    def __call__(self, inputs: Tensors) -> list[Any]:
        """The graph's outputs."""
        given = list(inputs)
        return list(self.lowered.rebuild(self.executable.run(given), given, no_state))

    def is_fresh(self, number: int) -> bool:
        """Whether an output has memory of its own."""
        return isinstance(self.lowered.outputs[number], Fresh)

    @property
    def nbytes(self) -> int:
        """What the plan holds."""
        return self.executable.nbytes

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes of the plan's arena, and the most of what its runs make besides."""
        memory = self.lowered.report.memory
        return memory.arena_nbytes, memory.peak_nbytes - memory.arena_nbytes

    @property
    def strides(self) -> Mapping[int, tuple[int, ...]]:
        """Of outputs that are given in another order of memory than their types say, by number."""
        return self.lowered.strides


class Trainable:
    """A graph without state that autograd sees as one operator. requires: which of its inputs need gradients.
    recomputed: the lines of what is not to be saved. unseen: inputs that it writes to without telling autograd.
    captured: of one that gives gradients of another, the names of the program's own values. finish:
    rewrites the graph with its gradients.

    Raises: SmeltError where a part of it has no gradient, or no plan.
    """

    def __init__(
        self,
        graph: Graph,
        requires: Sequence[bool],
        options: Options,
        code: bytes | None,
        *,
        recomputed: Collection[Span] = (),
        unseen: Collection[str] = (),
        captured: Collection[str] | None = None,
        finish: Callable[[Joint], None] | None = None,
    ) -> None:
        self.graph, self.requires, self.options, self._code = graph, tuple(requires), options, code
        self._wrt = [value.name for value, is_wanted in zip(graph.inputs, requires, strict=True) if is_wanted]
        is_backward, self._captured = captured is not None, captured
        budget = options.memory_budget
        self._joint: Joint = joint_graph(graph, self._wrt, tells=True, memory_budget=budget, captured=captured)
        if finish is not None:
            finish(self._joint)
        self.differentiated = self._joint.differentiated
        if not is_backward:
            self._check_results()
        # In gradients of gradients the node itself looks after its inputs.
        watch = None if is_backward else self._watched(unseen)
        found = halves(self._joint, options.memory_budget, recomputed, watch)
        self.halves = found
        saved = range(found.count, len(found.forward.outputs))
        self.forward = self._made(found.forward, Layouts(free=tuple(saved)))
        self._absent: dict[tuple[int, ...], list[bool]] = {}
        aliased = [i for i in self.differentiated if not self.forward.is_fresh(i)]
        if aliased:
            raise SmeltError(
                f"result {aliased[0]} of {graph.name} shares memory with what comes in", code="S0303",
                why="its history would be a view's", fix="return a copy (clone)",
            )  # fmt: skip
        shift = len(found.kept) - found.count
        lies = {number + shift: strides for number, strides in self.forward.strides.items()}
        self.backward = self._made(found.backward, Layouts(given=lies))
        joint = self._joint
        given = joint.graph.inputs[joint.given : joint.given + len(self.differentiated)]
        types = [tensor_type(value) for value in given]
        self._layouts = [
            (type_.sizes, type_.steps, dtype_to_torch(type_.dtype), torch.device(type_.device)) for type_ in types
        ]
        kept = set(found.kept)
        self.others = tuple(i for i in range(len(graph.inputs)) if i not in kept)
        inputs, outputs = (frozenset(), frozenset()) if watch is None else (watch.inputs, watch.outputs)
        self.watched_inputs = tuple(i for i in self.others if graph.inputs[i].name in inputs)
        self.watched_outputs = tuple(sorted(outputs))
        self._again: dict[tuple[bool, ...], Trainable | None] = {}

    def _made(self, graph: Graph, layouts: Layouts) -> Native:
        """What runs a half. Raises: SmeltError where nothing can."""
        return Native(graph, self.options, self._code, layouts)

    @property
    def nbytes(self) -> int:
        """What the plans hold."""
        return self.forward.nbytes + self.backward.nbytes

    def _watched(self, unseen: Collection[str]) -> Watched:
        """What eager would refuse a write to."""
        given = {v for v, is_wanted in zip(self.graph.inputs, self.requires, strict=True) if is_wanted}
        return watched(self.graph, given.__contains__, unseen)

    def _check_results(self) -> None:
        given = (v for v, is_wanted in zip(self.graph.inputs, self.requires, strict=True) if is_wanted)
        certain = certain_values(self.graph, given)
        for i in self.differentiated:
            output = self.graph.outputs[i]
            type_ = output.type if isinstance(output, Value) else None
            if isinstance(type_, TensorType) and (type_.shape is None or UNKNOWN_DIM in type_.shape):
                raise SmeltError(f"the size of result {i} of {self.graph.name} follows from data", code="S0303")
            if output not in certain:
                raise SmeltError(
                    f"result {i} of {self.graph.name} has gradients on some of its paths only", code="S0303"
                )

    def __call__(self, inputs: Tensors) -> list[Any]:
        """The graph's outputs, with a history where gradients are on."""
        outputs: list[Any] = [None] * self.halves.count
        if not self.differentiated:
            self.run_forward(inputs, outputs, inputs)
            return outputs
        found = _Node.apply(self, outputs, *inputs)
        for number, tensor in zip(self.differentiated, found, strict=True):
            outputs[number] = tensor
        return outputs

    # --- what the node does

    def run_forward(self, inputs: Tensors, outputs: list[Any], given: Tensors) -> tuple[tuple[Any, ...], list[Any]]:
        """The results that have gradients, and what the backward half takes; the others go into `outputs`.

        given: the inputs without their histories.
        """
        found = self.forward(given)
        count = self.halves.count
        outputs[:] = found[:count]
        return tuple(found[i] for i in self.differentiated), [*(inputs[i] for i in self.halves.kept), *found[count:]]

    def run_backward(self, saved: Tensors, grads: Tensors) -> list[Any]:
        """A gradient for each input that needs one; None where it depends on no result that has a gradient."""
        given = [*saved, *self._laid_out(grads), *self._there(grads)]
        run = self.backward if _are_plain(grads) else partial(evaluate, self.halves.backward)
        return self._present(list(run(given)), grads)

    def _there(self, grads: Tensors) -> list[bool]:
        return [grad is not None for grad in grads] if self._joint.tells else []

    def _present(self, found: list[Any], grads: Tensors) -> list[Any]:
        """Gradients, without those of paths that were not taken, or that come from results without a gradient alone."""
        if self._joint.tells:
            count = len(self._wrt)
            return [g if there else None for g, there in zip(found[:count], found[count:], strict=True)]
        if all(grad is not None for grad in grads):
            return found
        given = tuple(i for i, grad in zip(self.differentiated, grads, strict=True) if grad is not None)
        if given not in self._absent:
            partly = joint_graph(self.graph, self._wrt, given, captured=self._captured)
            self._absent[given] = [grad is None for grad in partly.graph.outputs[partly.count :]]
        return [None if absent else grad for grad, absent in zip(found, self._absent[given], strict=True)]

    def run_backward_again(self, inputs: Tensors, grads: Tensors) -> list[Any]:
        """The same with a history of their own."""
        if not _are_plain(grads):
            return self._by_torch(inputs, grads)
        given = tuple(map(requires_gradients, grads))
        if given not in self._again:
            self._again[given] = self._gradient(given)
        again = self._again[given]
        if again is None:
            return self._by_torch(inputs, grads)
        return self._present(again([*inputs, *self._laid_out(grads), *self._there(grads)]), grads)

    def _gradient(self, given: tuple[bool, ...]) -> Trainable | None:
        """The gradient's graph as a node of autograd; None where there is none. given: which of the gradients that it
        takes have histories."""
        joint = self._joint
        graph = joint.graph.clone()
        graph.name = f"{self.graph.name}_gradient"
        graph.body.set_yields(graph.outputs[joint.count :])
        requires = (*self.requires, *given, *(False for _ in given if joint.tells))
        try:
            own = self._captured
            if own is None:
                own = frozenset(result.name for node in self.graph.walk() for result in node.results)
            return Trainable(graph, requires, self.options, self._code, captured=own)
        except SmeltError:
            return None

    def _by_torch(self, inputs: Tensors, grads: Tensors) -> list[Any]:
        """Gradients with a history, where the gradient's graph is no node of autograd: operator by operator, as eager
        does, from the inputs on. Raises: SmeltError where other random numbers would be drawn."""
        graph = self.graph
        if any(effects(node).rng for node in graph.walk()):
            raise SmeltError(
                f"{graph.name} draws random numbers, and its gradients cannot be computed with a history of their own",
                why="they would have to be drawn a second time", code="S0303",
                fix="compile it with options={'train': False}, so that eager computes them",
            )  # fmt: skip
        outputs = [graph.outputs[i] for i in self.differentiated]
        pure = extract(graph, graph.name, graph.inputs, outputs, ())
        given = [x.view_as(x) if wanted else x for x, wanted in zip(inputs, self.requires, strict=True)]
        pairs = zip(evaluate(pure, given), grads, strict=True)
        results, cotangents = zip(*((r, g) for r, g in pairs if g is not None and r.requires_grad), strict=True)
        leaves = [x for x, wanted in zip(given, self.requires, strict=True) if wanted]
        return list(torch.autograd.grad(results, leaves, cotangents, create_graph=True, allow_unused=True))

    def _laid_out(self, grads: Tensors) -> list[Any]:
        """Gradients of results as the plan takes them: row-major ones, mostly; zeros where a result has none."""
        found = []
        for grad, (sizes, steps, dtype, device) in zip(grads, self._layouts, strict=True):
            if grad is None:
                grad = torch.zeros(sizes, dtype=dtype, device=device)
            elif grad.stride() != steps and grad.numel() and is_plain_anywhere(grad):
                made = torch.empty_strided(sizes, steps, dtype=grad.dtype, device=device)
                grad = made.copy_(grad)  # of one with a history the copy has it, too
            found.append(grad)
        return found


def _are_plain(grads: Tensors) -> bool:
    """Whether a plan can read them: batches of `vmap` and sparse ones are for torch's operators."""
    return all(grad is None or is_plain_anywhere(grad) for grad in grads)


class _Node(torch.autograd.Function):
    """What autograd sees."""

    @staticmethod
    def forward(ctx: Any, program: Trainable, outputs: list[Any], *inputs: Any) -> Any:
        given = [x.detach() if requires_gradients(x) else x for x in inputs]
        results, saved = program.run_forward(inputs, outputs, given)
        ctx.program = program
        ctx.set_materialize_grads(False)
        # For gradients of gradients alone: no reason to complain where they are written to meanwhile.
        others = [(i, inputs[i]) for i in program.others]
        ctx.others = [(i, x, x._version) for i, x in others if isinstance(x, torch.Tensor)]
        # Autograd keeps a leaf as it is. Where `leaf.data` is set meanwhile, the gradient is that of the old numbers.
        ctx.leaves = {
            i: bare for i, (x, bare) in enumerate(zip(inputs, given, strict=True)) if bare is not x and is_leaf(x)
        }
        # With what is saved stands what eager would save: autograd looks whether somebody wrote to it.
        watch = [*(inputs[i] for i in program.watched_inputs), *(outputs[i] for i in program.watched_outputs)]
        ctx.save_for_backward(*[x for x in (*saved, *watch) if isinstance(x, torch.Tensor)])
        ctx.numbers = [None if isinstance(x, torch.Tensor) else (x,) for x in saved]
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        program: Trainable = ctx.program
        tensors = iter(ctx.saved_tensors)
        saved = [next(tensors) if number is None else number[0] for number in ctx.numbers]
        if all(grad is None for grad in grads):
            return (None, None, *(None for _ in program.requires))
        if torch.is_grad_enabled():
            inputs: list[Any] = [None] * len(program.requires)
            for number, tensor, version in ctx.others:
                if tensor._version != version:
                    raise RuntimeError(
                        "one of the variables needed for gradient computation has been modified by an inplace "
                        f"operation: an input of the compiled {program.graph.name}, [{tensor.type()} "
                        f"{list(tensor.shape)}], is at version {tensor._version}; expected version {version} instead"
                    )
                inputs[number] = tensor
            for number, tensor in zip(program.halves.kept, saved, strict=False):
                inputs[number] = tensor
            for number, was in ctx.leaves.items():
                if not _has_memory_of(inputs[number], was):
                    raise RuntimeError(
                        "one of the variables needed for gradient computation has other data than in the forward pass: "
                        f"an input of the compiled {program.graph.name}, [{was.type()} {list(was.shape)}]"
                    )
            found = program.run_backward_again(inputs, grads)
        else:
            for position, number in enumerate(program.halves.kept):
                saved[position] = ctx.leaves.get(number, saved[position])
            found = program.run_backward(saved, grads)
        left = iter(found)
        return (None, None, *(next(left) if is_wanted else None for is_wanted in program.requires))


def _has_memory_of(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a tensor lies where another one does, and as that."""
    is_alike = tensor.shape == other.shape and tensor.stride() == other.stride()
    return is_alike and tensor.storage_offset() == other.storage_offset() and same_storage(tensor, other)
