"""Gradients of graphs of one call against those of autograd: first and second ones, in f64, the layouts kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

import smelt
from smelt.autodiff import Joint, joint_graph
from smelt.autodiff.activity import may_depend
from smelt.ir import Arg, Builder, Graph, Value, parse, verify
from smelt.ops.convert import from_torch, type_of
from smelt.ops.evaluate import evaluate
from smelt.ops.record import Sample
from smelt.ops.registry import arguments_of, normalize, overload, schema_of
from smelt.ops.torch_gradients import NAME
from smelt.ops.typing import infer

Tensor = torch.Tensor


IN_F32 = frozenset(("aten._grouped_mm.default",))
"""What torch computes in f32 and less only."""


def in_f64(item: Tensor) -> Tensor:
    """A tensor in f64 where it has real floating-point numbers, with its strides."""
    if not item.is_floating_point() or item.dtype is torch.float64:
        return item
    made = torch.empty_strided(item.shape, item.stride(), dtype=torch.float64)
    if any(size > 1 and step == 0 for size, step in zip(item.shape, item.stride(), strict=True)):
        return item.double()
    return made.copy_(item)


def graph_of(name: str, sample: Sample) -> tuple[Graph, list[Tensor]]:
    """A graph of one call, its tensors as inputs."""
    tensors: list[Tensor] = []
    builder = Builder(Graph("call"))

    def place(item: Any) -> Arg:
        if isinstance(item, Tensor):
            tensors.append(item)
            return builder.add_param(builder.graph.body, f"x{len(tensors)}", type_of(item))
        return tuple(map(place, item)) if isinstance(item, (list, tuple)) else from_torch(item)

    args, kwargs = normalize(name, tuple(map(place, sample.args)), {k: place(v) for k, v in sample.kwargs.items()})
    node = builder.add(name, args, infer(name, args, kwargs), kwargs)
    outputs = list(node.results)
    if len(outputs) == 1 and hasattr(outputs[0].type, "elements"):
        outputs = builder.add("unpack", (outputs[0],), outputs[0].type.elements).results
    builder.finish(tuple(outputs))
    return builder.graph, tensors


def flat(result: Any) -> list[Tensor]:
    """The tensors of an operator's result."""
    return [t for r in result for t in flat(r)] if isinstance(result, (list, tuple)) else [result]


def tensors_of(sample: Sample) -> list[Tensor]:
    """A sample's tensors, in order."""
    found: list[Tensor] = []
    with_tensors(sample, lambda tensor: found.append(tensor) or tensor)
    return found


def with_tensors(sample: Sample, change: Callable[[Tensor], Tensor]) -> Sample:
    """The sample with other tensors, asked for in order."""

    def swapped(item: Any) -> Any:
        if isinstance(item, Tensor):
            return change(item)
        return type(item)(map(swapped, item)) if type(item) in (list, tuple) else item

    return Sample(tuple(map(swapped, sample.args)), {k: swapped(v) for k, v in sample.kwargs.items()})


def called(name: str, sample: Sample, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The operator's results for other tensors than the sample's."""
    left = iter(tensors)
    call = with_tensors(sample, lambda _: next(left))
    return flat(overload(name)(*call.args, **call.kwargs))  # type: ignore[misc]


def check_gradients(
    name: str, sample: Sample, *, second: bool = True, rtol: float = 1e-9, fixed: Sequence[str] = (),
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> int:  # fmt: skip
    """Compare with autograd; how many nodes of torch's own backward the gradient's graph has.

    second: gradients of gradients, too. fixed: arguments that torch wants without gradients, beside moving averages.
    around: what eager runs in.
    A call that has no gradients is not compared: -1.
    """
    sample = sample if name in IN_F32 else with_tensors(sample, in_f64)
    graph, tensors = graph_of(name, sample)
    given = given_names(graph, ("running_mean", "running_var", *fixed))
    leaves = [
        t.detach().requires_grad_() if t.is_floating_point() and f"x{i + 1}" not in given else t
        for i, t in enumerate(tensors)
    ]
    torch.manual_seed(0)
    with around():
        results = called(name, sample, leaves)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    outputs = [r for r in results if r.requires_grad]
    if not wanted or not outputs:
        return -1
    # Moving averages depend on what they are made of, and torch gives them no gradient.
    needed = [i for i, r in enumerate(results) if r.requires_grad]
    joint = joint_graph(graph, _wrt(graph, given), needed)
    verify(joint.graph)
    assert parse(str(joint.graph)) == joint.graph
    assert list(joint.differentiated) == needed
    cotangents = [_direction(r, i).requires_grad_() for i, r in enumerate(outputs)]
    expected = torch.autograd.grad(outputs, wanted, cotangents, create_graph=True, allow_unused=True)
    _check(joint, tensors, cotangents, results, expected, rtol)
    if second:
        _check_second(joint, leaves, wanted, cotangents, expected, rtol, given)
    return torch_nodes(joint.graph)


def given_names(graph: Graph, names: Sequence[str]) -> frozenset[str]:
    """Inputs that are these arguments of the call."""
    node = next(iter(graph.body))
    schema = schema_of(node.op)
    call = {} if schema is None else arguments_of(schema, node.args, node.kwargs)
    found = (call.get(name) for name in names)
    return frozenset(value.name for value in found if isinstance(value, Value))


def _wrt(graph: Graph, fixed: frozenset[str]) -> list[str]:
    return [value.name for value in graph.inputs if value.name not in fixed and may_depend(value.type)]


def torch_nodes(graph: Graph) -> int:
    """Library nodes in which torch's own backward runs."""
    return sum(node.op == NAME for node in graph.walk())


def _check(
    joint: Joint, tensors: Sequence[Tensor], cotangents: Sequence[Tensor], results: Sequence[Tensor],
    expected: Sequence[Tensor | None], rtol: float,
) -> None:  # fmt: skip
    torch.manual_seed(0)
    found = evaluate(joint.graph, [*tensors, *(c.detach() for c in cotangents)])
    for result, own in zip(results, found[: joint.count], strict=True):
        torch.testing.assert_close(own, result.detach(), equal_nan=True)
    compare(found[joint.count :], expected, rtol)


def _check_second(
    joint: Joint, leaves: Sequence[Tensor], wanted: Sequence[Tensor], cotangents: Sequence[Tensor],
    expected: Sequence[Tensor | None], rtol: float, fixed: frozenset[str] = frozenset(),
) -> None:  # fmt: skip
    firsts = [(i, e) for i, e in enumerate(expected) if e is not None and e.requires_grad]
    if not firsts:
        return
    once = joint.graph
    once.body.set_yields(tuple(once.outputs[joint.count + i] for i, _ in firsts))
    twice = joint_graph(once, _wrt(once, fixed))
    verify(twice.graph)
    directions = [_direction(e, 7 + i) for i, (_, e) in enumerate(firsts)]
    sources = [*wanted, *cotangents]
    more = torch.autograd.grad([e for _, e in firsts], sources, directions, allow_unused=True)
    given = [directions[i] for i in twice.differentiated]
    torch.manual_seed(0)
    found = evaluate(twice.graph, [t.detach() for t in (*leaves, *cotangents)] + given)
    compare(found[twice.count :], more, rtol)


def compare(found: Sequence[Tensor | None], expected: Sequence[Tensor | None], rtol: float) -> None:
    """Equal gradients; one that autograd leaves out is none or zeros here, and one that is zeros there may be none."""
    assert len(found) == len(expected)
    for own, other in zip(found, expected, strict=True):
        if own is None or other is None:
            present = other if own is None else own
            assert present is None or not present.detach().any(), f"{own} for {other}"
            continue
        assert own.shape == other.shape and own.dtype == other.dtype
        torch.testing.assert_close(own, other.detach(), rtol=rtol, atol=rtol, equal_nan=True)


def _direction(like: Tensor, seed: int) -> Tensor:
    made = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(like.dtype)


def check_program(program: Callable[..., Any], *tensors: Tensor, rtol: float = 1e-9, second: bool = True) -> int:
    """Compare a program's gradients with autograd's; how many nodes of torch's own backward they have."""
    with torch.no_grad():
        graph = smelt.trace(program, tensors).graph
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
    torch.manual_seed(0)
    results = flat(program(*leaves))
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    joint = joint_graph(graph)
    verify(joint.graph)
    cotangents = [_direction(results[i], i).requires_grad_() for i in joint.differentiated]
    outputs = [results[i] for i in joint.differentiated]
    expected = torch.autograd.grad(outputs, wanted, cotangents, create_graph=True, allow_unused=True)
    _check(joint, tensors, cotangents, results, expected, rtol)
    if second:
        _check_second(joint, leaves, wanted, cotangents, expected, rtol)
    return torch_nodes(joint.graph)
