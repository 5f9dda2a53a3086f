"""Scripting checked against eager: the graph by the evaluator, the program by its calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

import smelt
from smelt.compiler.programs.scripting import ScriptedProgram, script
from smelt.ir import Graph, verify
from smelt.ops.check import check as check_node
from smelt.ops.evaluate import evaluate


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal to the bit, structure and types included."""
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and torch.equal(a.nan_to_num(), b.nan_to_num())
            and torch.equal(a.isnan(), b.isnan())
        )
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and same(vars(a), vars(b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def ended(run: Callable[[], Any]) -> tuple[str, Any]:
    """What a call ends with: its result, or its exception."""
    try:
        return "returned", run()
    except Exception as error:
        return "raised", (type(error), str(error))


def well_formed(graph: Graph) -> None:
    """The graph is what the verifier says a graph is, and its text is complete."""
    verify(graph, check_node)
    assert str(smelt.parse(str(graph), constants=dict(graph.constants))) == str(graph)


def by_evaluator(program: ScriptedProgram, *args: Any, **kwargs: Any) -> Any:
    """The result of the graph from source, operator by operator."""
    unit = program.unit
    inputs = program.inputs_for(*args, **kwargs)
    outputs = evaluate(program.graph, inputs, unit.lookup)
    return unit.signature.rebuild(outputs, args, kwargs)


def agrees(fn: Callable[..., Any], *calls: tuple[Any, ...], runs: bool = True, **options: Any) -> ScriptedProgram:
    """Script `fn`, and compare graph and program with eager on each call; the program."""
    program = script(fn, **options)
    well_formed(program.graph)
    for args in calls:
        expected = ended(lambda a=args: fn(*copy.deepcopy(a)))
        found = ended(lambda a=args: by_evaluator(program, *copy.deepcopy(a)))
        assert found[0] == expected[0], (expected, found, str(program.graph))
        if expected[0] == "raised":
            assert found[1][0] is expected[1][0], (expected, found)
        else:
            assert same(expected[1], found[1]), (expected, found, str(program.graph))
        if runs:
            with torch.no_grad():
                ran = ended(lambda a=args: program(*copy.deepcopy(a)))
            assert ran[0] == expected[0], (expected, ran)
            if expected[0] == "returned":
                assert close(expected[1], ran[1]), (expected, ran)
            else:
                assert ran[1][0] is expected[1][0]
    return program


def close(a: Any, b: Any) -> bool:
    """Whether results are equal but for the rounding of another order of sums."""
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        return (
            torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) if a.is_floating_point() else torch.equal(a, b)
        )
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(close(a[k], b[k]) for k in a)
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and close(vars(a), vars(b))
    return same(a, b)
