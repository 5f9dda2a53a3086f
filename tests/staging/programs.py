"""Runs a program natively and staged, and its graph and eager on inputs that take every side."""

from __future__ import annotations

import copy
import io
from contextlib import redirect_stdout
from typing import Any

import torch

from smelt.capture import capture
from smelt.capture.result import Captured
from smelt.capture.staging.stage import stage
from smelt.ir import parse, verify
from smelt.ops.evaluate import evaluate


def staged(fn: Any, args: tuple[Any, ...], **options: Any) -> Captured:
    """The program staged after one native run on copies of the arguments."""
    with redirect_stdout(io.StringIO()):
        native = capture(fn, copy.deepcopy(args), specialize=True, **options)
    return stage(fn, args, {}, target=None, name=None, native=native)


def outcome(run: Any) -> tuple[Any, str]:
    """What a call gives or raises, and what it prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        try:
            found: Any = run()
        except Exception as error:
            found = (type(error), error.args)
    return found, out.getvalue()


def same(a: Any, b: Any) -> bool:
    """Whether two results are the same, tensors bit by bit with their types and strides."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        alike = a.dtype == b.dtype and a.shape == b.shape and (a.numel() < 2 or a.stride() == b.stride())
        return alike and torch.equal(a.detach().nan_to_num(7.5), b.detach().nan_to_num(7.5))
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return repr(a) == repr(b)


def check(fn: Any, *inputs: tuple[Any, ...], has: tuple[str, ...] = ()) -> str:
    """Stage on the first inputs: on each the graph gives, raises, prints and writes what eager does. Its text."""
    first = copy.deepcopy(inputs[0])
    before = copy.deepcopy(first)
    random = torch.get_rng_state()
    captured = staged(fn, first)
    assert captured.error is None, captured.error
    assert captured.graph is not None and captured.signature is not None
    assert same(first, before), "staging wrote to an argument"
    assert torch.equal(random, torch.get_rng_state()), "staging drew random numbers"
    verify(captured.graph)
    text = str(captured.graph)
    assert parse(text, captured.graph.constants) == captured.graph
    ops = {node.op for node in captured.graph.walk()}
    assert set(has) <= ops, (has, ops)
    for args in inputs:
        mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
        want = outcome(lambda given=mine: fn(*given))
        graph, signature = captured.graph, captured.signature

        def run(given: Any = theirs, graph: Any = graph, signature: Any = signature) -> Any:
            flat = evaluate(graph, signature.flatten(given), captured.state.lookup)
            return signature.rebuild(flat, given)

        got = outcome(run)
        assert same(want, got), f"{text}\n for {args}:\n{want}\n{got}"
        assert same(mine, theirs), f"{text}\n for {args}: arguments are {theirs}, not {mine}"
    return text


def refused(fn: Any, *args: Any) -> str:
    """Why a program cannot be staged."""
    captured = staged(fn, args)
    assert captured.error is not None, captured.graph
    return str(captured.error)


def raises(x: torch.Tensor) -> torch.Tensor:
    """A program that asserts and raises."""
    assert x.max() < 100, f"too large: {x.max().item():.1f}"
    assert x.min() > -1000
    if x.sum() < 0:
        raise ValueError("negative", 3)
    return x.sqrt()
