"""Lowering a graph, running its plan natively and in Python, and comparing both with the reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from smelt.codegen.llvm.walkers.executor import executor_object
from smelt.codegen.lower import Lowered, lower
from smelt.diag import Options
from smelt.ir import Graph, parse, verify
from smelt.ops.evaluate import evaluate
from smelt.runtime.executable import Executable
from smelt.runtime.machine.cache import CodeCache
from smelt.runtime.plan import Plan

State = Mapping[str, torch.Tensor]
RULE = Options(deterministic=True, own_kernels=False)


@lru_cache(maxsize=1)
def machine_code() -> bytes:
    """The native executor, built once per test process."""
    return executor_object(CodeCache(""))


def executables(plan: Plan) -> tuple[Executable, Executable]:
    """The plan in Python and natively."""
    return Executable(plan, None), Executable(plan, machine_code())


def lowered(text: str | Graph, state: State | None = None, options: Options = RULE) -> Lowered:
    """The plan of a graph or its text."""
    graph = parse(text) if isinstance(text, str) else text
    verify(graph)
    return lower(graph, lookup_in(state or {}), options)


def lookup_in(state: State) -> Callable[[str, str], torch.Tensor]:
    return lambda kind, path: state[path]


def call(plan: Lowered, executable: Executable, inputs: Sequence[torch.Tensor], state: State) -> list[Any]:
    """One run, with the outputs as the program's caller sees them."""
    return plan.rebuild(executable.run(inputs), inputs, lookup_in(state))


def check(
    text: str | Graph,
    inputs: Sequence[torch.Tensor],
    state: State | None = None,
    options: Options = RULE,
    *,
    exact: bool = True,
) -> Lowered:
    """Both forms of the plan give what the evaluator gives: bits (or `exact=False`: close), dtypes, sizes, strides."""
    graph = parse(text) if isinstance(text, str) else text
    known = state or {}
    plan = lowered(graph, known, options)
    expected = evaluate(graph, list(inputs), lookup_in(known))
    for executable in executables(plan.plan):
        for _ in range(2):
            found = call(plan, executable, inputs, known)
            assert_same(found, expected, exact=exact)
    return plan


def assert_same(found: Sequence[Any], expected: Sequence[Any], *, exact: bool) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        if exact:
            assert_bits(a, b)
        else:
            torch.testing.assert_close(a, b, equal_nan=True)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def assert_bits(a: torch.Tensor, b: torch.Tensor) -> None:
    """Equal bit for bit; any NaN equals any other."""
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if a.is_floating_point():
        nan = a.isnan()
        assert torch.equal(nan, b.isnan())
        a, b = torch.where(nan, 0, a), torch.where(nan, 0, b)
        a, b = (t.contiguous().view(_BITS[t.element_size()]) for t in (a, b))
    assert torch.equal(a, b)


def rms_ratio(found: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> float:
    """RMS error against float64 over eager's, one ulp of the output's scale forgiven (docs/decisions/0004-numerics)."""
    scale = reference.abs().max().item()
    ulp = scale * torch.finfo(eager.dtype).eps
    ours = (found.double() - reference).square().mean().sqrt().item()
    theirs = (eager.double() - reference).square().mean().sqrt().item()
    return max(ours - ulp, 0.0) / max(theirs, 1e-300)
