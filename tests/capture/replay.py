"""Capture a program, run its raw graph with the reference evaluator, and compare with eager bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from smelt._torch.seen.dispatch import Level
from smelt.capture import Captured, capture
from smelt.capture.structure.tree import Flattener
from smelt.ir import parse, verify
from smelt.ops.convert import strided_copy
from smelt.ops.evaluate import evaluate


def tensors_of(value: Any) -> list[torch.Tensor]:
    flattener = Flattener()
    flattener.flatten(value, "value")
    return flattener.tensors


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits, sizes, strides and dtype; NaN equals NaN."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and (a.layout != torch.strided or a.stride() == b.stride())
        and torch.equal(a.detach().nan_to_num(7), b.detach().nan_to_num(7))
        and torch.equal(a.detach().isnan(), b.detach().isnan())
    )


def check(
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]], level: Level | None = None
) -> Captured:
    """Three fresh copies of one program: eager, captured, and replayed from the graph; all must agree.

    Results, arguments after the call, module state and the random state are compared.
    """
    torch.manual_seed(11)
    fn, args, kwargs = make()
    torch.manual_seed(12)
    expected = copy_of(fn(*args, **kwargs))
    after, random = copy_of((args, kwargs)), torch.get_rng_state()
    state = module_state(fn)

    torch.manual_seed(11)
    fn, args, kwargs = make()
    before, start = copy_of((args, kwargs)), module_state(fn)
    torch.manual_seed(12)
    captured = capture(fn, args, kwargs, level=level)
    assert captured.error is None, captured.error
    assert captured.graph is not None and captured.signature is not None
    compare(expected, captured.result)
    compare(after, (args, kwargs))
    compare(state, module_state(fn))
    assert torch.equal(random, torch.get_rng_state())

    verify(captured.graph)
    assert parse(str(captured.graph), constants=captured.graph.constants) == captured.graph
    if isinstance(fn, torch.nn.Module):
        fn.load_state_dict(start)
    torch.manual_seed(12)
    args, kwargs = before
    outputs = evaluate(captured.graph, captured.signature.flatten(args, kwargs), captured.state.lookup)
    replayed = captured.signature.rebuild(outputs, args, kwargs)
    compare(expected, replayed)
    compare(after, (args, kwargs))
    compare(state, module_state(fn))
    assert torch.equal(random, torch.get_rng_state())
    return captured


def compare(expected: Any, found: Any) -> None:
    assert type(expected) is type(found)
    a, b = tensors_of(expected), tensors_of(found)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert same(x, y), (x, y)


def module_state(fn: Any) -> dict[str, torch.Tensor]:
    if not isinstance(fn, torch.nn.Module):
        return {}
    return {name: tensor.clone() for name, tensor in fn.state_dict().items()}


def copy_of(value: Any) -> Any:
    """A copy with tensors cloned, whether they are leaves or not; strides kept."""
    memo = {id(t): strided_copy(t.detach()).requires_grad_(t.requires_grad and t.is_leaf) for t in tensors_of(value)}
    return copy.deepcopy(value, memo)
