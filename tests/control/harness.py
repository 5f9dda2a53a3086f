"""Graphs with regions through the lowering, natively and in Python, against the evaluator."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from smelt.codegen.lower import Lowered, lower
from smelt.diag import Miss, Options, SmeltError
from smelt.ir import Graph, parse, verify
from smelt.ops.evaluate import evaluate
from smelt.runtime.executable import Executable
from tests.codegen.harness import assert_bits, executables, lookup_in

OWN = Options(deterministic=True)
LIBRARY = Options(deterministic=True, own_kernels=False)
State = Mapping[str, torch.Tensor]


def compare(
    text: str | Graph,
    *calls: Sequence[torch.Tensor],
    state: State | None = None,
    exact: bool = True,
    python: int | None = None,
    options: Sequence[Options] = (OWN, LIBRARY),
) -> Lowered:
    """For each call the plan, run natively and in Python, gives what the evaluator gives, or raises what it raises.

    python: how many nodes may need Python. Returns the first plan.
    """
    graph = parse(text) if isinstance(text, str) else text
    verify(graph)
    known = dict(state or {})
    before = str(graph)
    plans = []
    for option in options:
        made = lower(graph, lookup_in(known), option)
        plans.append(made)
        assert str(graph) == before
        if python is not None and option is OWN:
            assert made.report.counts.get("python", 0) == python, made.report.python_nodes
        runs = [_answer(made, executable, known) for executable in executables(made.plan)]
        for _ in range(2):
            for inputs in calls:
                wanted = outcome(partial(evaluate, graph, _copies(inputs), lookup_in(known)))
                for run in runs:
                    assert_outcome(outcome(partial(run, _copies(inputs))), wanted, exact=exact)
    return plans[0]


def _answer(made: Lowered, executable: Executable, state: State) -> Callable[[Sequence[torch.Tensor]], list[Any]]:
    """A run as the program's caller sees it."""

    def run(inputs: Sequence[torch.Tensor]) -> list[Any]:
        return made.rebuild(executable.run(inputs), inputs, lookup_in(state))

    return run


def _copies(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [copy.deepcopy(t) for t in inputs]


def outcome(run: Any) -> Any:
    """What a run gives, or the exception that it raises."""
    try:
        return run()
    except (Miss, ArithmeticError, LookupError, ValueError, RuntimeError, AssertionError, TypeError) as error:
        return error


def assert_outcome(found: Any, wanted: Any, *, exact: bool) -> None:
    if isinstance(wanted, SmeltError) or isinstance(found, SmeltError):
        raise AssertionError(f"{found!r} for {wanted!r}")
    if isinstance(wanted, Exception):
        assert type(found) is type(wanted), (found, wanted)
        assert isinstance(wanted, Miss) or str(found) == str(wanted)
        return
    if isinstance(found, Exception):
        raise found
    if isinstance(wanted, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert (found.dtype, found.shape, found.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
        if exact:
            assert_bits(found, wanted)
        else:
            torch.testing.assert_close(found, wanted, equal_nan=True)
    elif isinstance(wanted, list | tuple):
        assert type(found) is type(wanted) and len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            assert_outcome(a, b, exact=exact)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        assert_outcome(list(found.values()), list(wanted.values()), exact=exact)
    else:
        assert repr(found) == repr(wanted)
