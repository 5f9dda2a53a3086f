"""A program through eager, trace and compile: the first difference, told with how it came about.

A program without products must agree bit for bit. One with products may lie within the roundings of its dtypes; what
lies further off is a difference unless eager's own answer moves as far when the same roundings fall otherwise.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

import smelt
from tests.differential.compare import Outcome, difference, observe, snapshot, tensor_difference
from tests.differential.envelope import Envelope
from tests.differential.programs import Program, make_inputs, make_subject

# Eager's own operators, so that every bit can be asked for; own kernels have tests/fusion/test_random.py.
FAST = {"measure": False, "own_kernels": False}
OWN = {"measure": False}
# How often eager runs with other roundings: an element that none of them moves must be eager's.
_RUNS = 8
# Values and layout of a call's inputs.
Call = tuple[int, str | None]
# Recorded; the same values again; others; other strides; others again; on memory that the caller scribbled on.
_CALLS: tuple[Call, ...] = ((0, None), (0, None), (1, None), (2, "transposed"), (3, None), (0, None))


def judge(
    program: Program, ways: Sequence[str] = ("trace", "compile"), options: dict[str, object] = FAST
) -> str | None:
    """What differs from eager, or None. Warnings count as a difference only if they are ours and name a fault."""
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for way in ways:
            found = _trace(program, options) if way == "trace" else _compile(program, options)
            if found is not None:
                return f"{way}: {found}"
    faults = [str(w.message) for w in caught if issubclass(w.category, smelt.SmeltWarning) and _is_fault(w.message)]
    return f"warned: {faults[0]}" if faults else None


def _is_fault(message: object) -> bool:
    text = str(message)
    return "falls back to eager" in text and any(word in text for word in ("InternalError", "failed", "Error:"))


def _trace(program: Program, options: dict[str, object]) -> str | None:
    eager, traced = make_subject(program), make_subject(program)
    expected = observe(eager.fn, make_inputs(program, 0), eager.state)
    args = make_inputs(program, 0)
    torch.manual_seed(0)
    try:
        graph = smelt.trace(traced.fn, tuple(args), options=options)
    except smelt.CaptureError as error:
        if expected.error is not None or error.code in ("S0101", "S0102"):
            return None
        return f"cannot be traced: {type(error).__name__}: {error}"
    except smelt.SmeltError as error:
        return f"cannot be traced: {type(error).__name__}: {error}"
    except Exception as error:
        # What the program itself raises comes out as it is.
        return None if type(error) is expected.error else f"raised {error!r} instead of {expected.error}"
    if expected.error is not None:
        return f"did not raise {expected.error}"
    after = [*args, *traced.state]
    for i, (a, b) in enumerate(zip(expected.after, after, strict=True)):
        text = tensor_difference(a, snapshot(b), is_exact=True)
        if text is not None:
            return f"input or state {i}, after tracing, {text}"
    if str(smelt.parse(str(graph.graph))) != str(graph.graph):
        return "its graph does not parse back"
    for call in (1, 2):
        expected = observe(eager.fn, make_inputs(program, call), eager.state)
        found = observe(graph, make_inputs(program, call), traced.state)
        text = beyond(program, [(at, None) for at in range(call + 1)], expected, found)
        if text is not None:
            return f"call {call}: {text}"
    if graph.native_failure is not None and "cannot be lowered" not in graph.native_failure:
        return f"did not run natively: {graph.native_failure}"
    return None


def _compile(program: Program, options: dict[str, object]) -> str | None:
    eager, other = make_subject(program), make_subject(program)
    compiled = smelt.compile(other.fn, options=options)
    kept: list[tuple[Outcome, list[torch.Tensor | None]]] = []
    for call, (seed, layout) in enumerate(_CALLS):
        args = make_inputs(program, seed, layout)
        expected = observe(eager.fn, make_inputs(program, seed, layout), eager.state)
        found = observe(compiled, args, other.state)
        text = beyond(program, _CALLS[: call + 1], expected, found)
        if text is not None:
            return f"call {call}: {text}"
        for earlier, copies in kept:
            for leaf, copy in zip(earlier.leaves, copies, strict=True):
                if copy is not None and tensor_difference(copy, snapshot(leaf), is_exact=True) is not None:
                    return f"call {call} changed an output of an earlier call"
        if found.error is None:
            kept.append((found, [_if_new(found, i) for i in range(len(found.leaves))]))
        if call == 4:
            for outcome, copies in kept:
                for leaf, copy in zip(outcome.leaves, copies, strict=True):
                    if copy is not None and not _overlaps(leaf):
                        leaf.fill_(1)
            kept.clear()
    return None


def beyond(program: Program, calls: Sequence[Call], expected: Outcome, found: Outcome) -> str | None:
    """How the last of some calls differs from eager's, by more than what roundings of products decide."""
    text = difference(expected, found, is_exact=program.is_exact, least=program.rounding)
    if text is None or program.is_exact:
        return text

    def run() -> Outcome:
        # From the first call on: what a call leaves in the state has been rounded, too.
        subject = make_subject(program)
        for seed, layout in calls:
            outcome = observe(subject.fn, make_inputs(program, seed, layout), subject.state)
        return outcome

    envelope = Envelope(run, _RUNS)
    return None if envelope.is_unstable else envelope.difference(found)


def _if_new(outcome: Outcome, index: int) -> torch.Tensor | None:
    """A copy of an output that is nobody else's and lies in memory of its own, so that no later call may change it."""
    leaf = outcome.leaves[index]
    if not isinstance(leaf, torch.Tensor):
        return None
    number = sum(isinstance(x, torch.Tensor) for x in outcome.leaves[:index])
    outside = len(outcome.after)
    if any(i < outside for i in (*outcome.same[number], *(i for i, _ in outcome.shares[number]))):
        return None
    return snapshot(leaf)


def _overlaps(t: torch.Tensor) -> bool:
    return not t.is_contiguous() and any(stride == 0 for stride in t.stride())
