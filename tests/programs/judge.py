"""A whole program through eager, compile, trace, script and the staged graph: the first difference, and how it was
captured. What is compared: `tests.programs.subject`.
"""

from __future__ import annotations

import copy
import io
import itertools
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch

import smelt
from smelt.capture import capture
from smelt.capture.staging.stage import stage
from smelt.diag import CaptureError, InternalError, Miss
from smelt.ops.evaluate import evaluate
from tests.programs.scripted import scripted
from tests.programs.subject import Seen, Subject, call, compare, load, parts, said

# What decides a way is exact in any order, so own kernels and library calls must come to the same.
OPTIONS = {"measure": False, "own_kernels": False}
OWN = {"measure": False}
WAYS = ("compile", "trace", "staged", "script")
_OBJECTS = itertools.count()
ORDERS = ((0, 0, 1, 1, 2, 2, 3, 3, 4, 4), (3, 1, 4, 0, 2, 2, 0, 4, 1, 3))


@dataclass
class Verdict:
    """difference: the first one, or nothing. captured: whole (no branch), staged, paths, eager or raises. why: of paths
    and eager, why it is not one graph. script: accepted, or why it is refused. seconds: of each way.
    """

    difference: str = ""
    captured: str = ""
    why: str = ""
    trace: str = ""
    staged: str = ""
    script: str = ""
    internal: str = ""
    calls: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


def judge(
    path: Path,
    ways: Sequence[str] = WAYS,
    options: dict[str, Any] = OPTIONS,
    orders: Sequence[Sequence[int]] = ORDERS,
    vary: int | None = None,
) -> Verdict:
    """Run the program every way and compare with eager. vary: compiled calls are made otherwise, by this seed."""
    verdict, before = Verdict(), set(sys.modules)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for way in ways:
                begun = time.process_time()
                found = _judged(way, path, options, verdict, orders, vary)
                verdict.seconds[way] = round(time.process_time() - begun, 3)
                if found:
                    verdict.difference = f"{way}: {found}"
                    break
    finally:
        for name in set(sys.modules) - before:
            if name.startswith(f"{path.stem}_"):
                del sys.modules[name]
    return verdict


def _judged(
    way: str,
    path: Path,
    options: dict[str, Any],
    verdict: Verdict,
    orders: Sequence[Sequence[int]],
    vary: int | None,
) -> str:
    match way:
        case "compile" | "dynamic":
            return _compiled(path, options, verdict, orders, True if way == "dynamic" else None, vary)
        case "grad":
            return _compiled(path, options, verdict, orders, None, vary, with_grad=True)
        case "train":
            trained = {**options, "train": True, "adaptive": False}
            return _compiled(path, trained, verdict, orders, None, vary, with_grad=True)
        case "trace":
            return _traced(path, options, verdict)
        case "staged":
            return _staged(path, verdict)
        case "script":
            verdict.script, found = scripted(path, options)
            return found
    raise ValueError(f"there is no way {way!r}")


def _eager_seen(path: Path, order: Sequence[int], vary: int | None = None, with_grad: bool = False) -> Iterator[Seen]:
    subject = _keeping(load(path))
    for at, number in enumerate(order):
        yield call(subject.fn, subject, number, _random(vary, at), _random(0, at) if with_grad else None)


def _keeping(subject: Subject) -> Subject:
    """The subject; what its calls give is looked at after later calls, too."""
    subject.earlier = []
    return subject


def _random(vary: int | None, at: int) -> Random | None:
    return None if vary is None else Random(1000 * vary + at)


def _compiled(
    path: Path,
    options: dict[str, Any],
    verdict: Verdict,
    orders: Sequence[Sequence[int]],
    dynamic: bool | None = None,
    vary: int | None = None,
    with_grad: bool = False,
) -> str:
    for order in orders:
        subject = _keeping(load(path))
        compiled = smelt.compile(subject.fn, options=options, dynamic=dynamic)
        for at, want in enumerate(_eager_seen(path, order, vary, with_grad)):
            got = call(compiled, subject, order[at], _random(vary, at), _random(0, at) if with_grad else None)
            verdict.calls += 1
            text = compare(want, got)
            if text:
                return f"call {at} of {order}: {text}"
        if not with_grad:
            _note_capture(compiled, verdict)
    return ""


def _note_capture(compiled: Any, verdict: Verdict) -> None:
    stats = compiled.stats()
    rows = stats.rows
    reasons = [row.reason for row in rows if row.reason] + list(stats.fallbacks)
    internal = [r for r in reasons if "InternalError" in r or "defect" in r or "Error:" in r or "failed" in r]
    why = [row.entry.why_paths for row in rows if row.entry is not None]
    internal += [w for w in why if "staging failed" in w or "Internal" in w]
    verdict.internal = verdict.internal or (internal[0] if internal else "")
    if not rows and not stats.fallbacks:
        verdict.captured = "raises"
    elif any(row.entry is None for row in rows) or not rows:
        verdict.captured, verdict.why = "eager", (reasons or [""])[0]
    elif any(row.paths is not None for row in rows):
        verdict.captured, verdict.why = "paths", next((w for w in why if w), "")
    elif any(row.entry.captured.conversions for row in rows):
        verdict.captured = "staged"
    else:
        verdict.captured = "whole"


def _traced(path: Path, options: dict[str, Any], verdict: Verdict) -> str:
    subject, eager = load(path), load(path)
    want = call(eager.fn, eager, 0)
    programs: list[Any] = []
    left_out: list[Any] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            programs.append(smelt.trace(subject.fn, args, kwargs, options=options))
            left_out.extend(w for w in caught if "does not repeat" in str(w.message))
        return None

    got = call(run, subject, 0)
    if not programs:
        error = got.outcome.error
        assert error is not None
        if want.outcome.error is not None:
            is_told = said(got.outcome) == said(want.outcome) or issubclass(error, CaptureError)
            return "" if is_told else f"tracing raised {error} ({got.outcome.text})"
        if issubclass(error, CaptureError) and not issubclass(error, InternalError):
            verdict.trace = f"refused: {got.outcome.text.splitlines()[0]}"
            return ""
        return f"tracing raised {error.__name__}: {got.outcome.text}"
    if want.outcome.error is not None:
        return f"tracing did not raise {want.outcome.error}"
    got.outcome, got.objects = copy.copy(want.outcome), want.objects
    text = compare(want, got)
    if text:
        return f"the traced run: {text}"
    program = programs[0]
    if str(smelt.parse(str(program.graph))) != str(program.graph):
        return "its graph does not parse back"
    if left_out:
        verdict.trace = "leaves out effects, and says so"
        return ""
    missed = 0
    for number in range(5):
        before = subject.state_text()
        got = call(program, subject, number)
        if got.outcome.error is not None and issubclass(got.outcome.error, CaptureError):
            missed += 1
            if subject.state_text() != before:  # nothing may have happened
                return f"input {number}: a refused call left another state"
            continue
        want = call(eager.fn, eager, number)
        text = compare(want, got)
        if text:
            return f"input {number}: {text}"
    verdict.trace = f"{missed} of 5 inputs refused"
    return ""


def _staged(path: Path, verdict: Verdict) -> str:
    subject, eager = load(path), load(path)
    first = call(eager.fn, eager, 0)
    if first.outcome.error is not None:
        verdict.staged = "raises"
        return ""
    args, kwargs = subject.args(0), subject.kwargs(0)
    torch.manual_seed(0)
    with redirect_stdout(io.StringIO()):
        native = capture(subject.fn, args, kwargs, specialize=True)
    if native.error is not None or not native.conversions:
        verdict.staged = "not captured" if native.error is not None else "no branch"
        return ""
    before = (subject.state_text(), repr(parts(args)), torch.get_rng_state().tolist())
    out = io.StringIO()
    fresh, named = subject.args(0), subject.kwargs(0)
    kept = repr([parts(fresh), parts(named)])
    with redirect_stdout(out):
        staged = stage(subject.fn, fresh, named, target=None, name=None, native=native)
    if (subject.state_text(), repr(parts(args)), torch.get_rng_state().tolist()) != before or repr(
        [parts(fresh), parts(named)]
    ) != kept:
        return "staging changed state, arguments or random numbers"
    if out.getvalue():
        return f"staging printed {out.getvalue()!r}"
    verdict.staged = "no graph"
    if isinstance(staged.error, InternalError):
        verdict.internal = verdict.internal or str(staged.error.what)
        return ""
    if staged.error is not None or staged.graph is None or staged.signature is None:
        return ""
    graph, signature = staged.graph, staged.signature
    if str(smelt.parse(str(graph), graph.constants)) != str(graph):
        return "the staged graph does not parse back"
    verdict.staged = "acts on Python"
    if first.effects != Subject(load(path).space).effects() or _acts(subject, 0, first):
        return ""  # a graph alone does not act on Python's objects, nor see them change

    def run(*given: Any, **more: Any) -> Any:
        outputs = evaluate(graph, signature.flatten(given, more), staged.state.lookup)
        return signature.rebuild(outputs, given, more)

    verdict.staged = "compared"
    for number in (0, 1, 2, 3, 4):
        want = call(eager.fn, eager, number)
        changes = want.effects != first.effects or _acts(subject, number, want)
        if changes or _plain(subject, number) != _plain(subject, 0):
            break  # Python's values among the arguments are guarded, not part of the graph
        got = call(run, subject, number)
        if got.outcome.error is Miss:
            # Where code that is not converted needs a number, a graph holds for that number only, and says so. It may
            # have written before: only the functional graph, which is the one that runs, writes at its end.
            break
        text = compare(want, got, effects=False, aliases=False)
        if text:
            return f"input {number}: {text}"
    return ""


def _acts(subject: Subject, number: int, seen: Seen) -> bool:
    """Whether a call changed Python's values in its arguments' objects."""
    fresh = (*subject.args(number), *subject.kwargs(number).values())
    return repr(_looks(seen.given)) != repr(_looks(fresh))


def _plain(subject: Subject, number: int) -> str:
    """All about a call's arguments that a graph is made for: Python's values, and what tensors look like."""
    named = subject.kwargs(number)
    return repr([_looks(a) for a in parts(subject.args(number))]) + repr({n: _looks(a) for n, a in named.items()})


def _looks(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride()
    if isinstance(value, (list, tuple, dict)):
        return [_looks(item) for item in parts((value,))]
    # An object of a class of the program's own is another one at each call.
    return value if value is None or isinstance(value, (bool, int, float, str)) else next(_OBJECTS)


__all__ = ["OPTIONS", "OWN", "Verdict", "judge", "load"]
