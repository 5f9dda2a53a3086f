"""A whole program through eager, compile, trace and the staged graph: the first difference, and how it was captured.

Compared: results (structure, exact numbers, views of what), exceptions (type and text), writes to arguments and
buffers, Python's effects, printed text, torch's random state.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import smelt
from smelt.capture import capture
from smelt.capture.staging.stage import stage
from smelt.diag import CaptureError, InternalError
from smelt.ops.evaluate import evaluate
from tests.differential.compare import difference, leaves_of, observe, snapshot, tensor_difference

# What decides a way is exact in any order, so own kernels and library calls must come to the same.
OPTIONS = {"measure": False, "own_kernels": False}
OWN = {"measure": False}
WAYS = ("compile", "trace", "staged")
ORDERS = ((0, 0, 1, 1, 2, 2, 3, 3, 4, 4), (3, 1, 4, 0, 2, 2, 0, 4, 1, 3))


@dataclass
class Subject:
    """A program's live object and what can be seen of it outside."""

    space: dict[str, Any]
    fn: Any = None

    def __post_init__(self) -> None:
        self.fn = self.space["make"]()

    def args(self, number: int) -> tuple[Any, ...]:
        return tuple(self.space["calls"]()[number])

    @property
    def holder(self) -> Any:
        return self.space.get("STATE", self.fn)

    def tensors(self) -> list[torch.Tensor]:
        return [self.holder.buffer, self.holder.steps]

    def effects(self) -> tuple[Any, ...]:
        holder = self.holder
        return holder.count, holder.flag, list(holder.log)


@dataclass
class Verdict:
    """difference: the first one, or nothing. captured: whole (no branch), staged, paths, eager or raises. why: of paths
    and eager, why it is not one graph.
    """

    difference: str = ""
    captured: str = ""
    why: str = ""
    trace: str = ""
    internal: str = ""
    calls: int = 0


def load(path: Path) -> Subject:
    """A new subject of the program in this file."""
    text = path.read_text()
    space: dict[str, Any] = {"__name__": f"program_{path.stem}", "__file__": str(path)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(compile(text, str(path), "exec"), space)
    return Subject(space)


@dataclass
class Seen:
    """What one call did. given: the arguments afterwards."""

    outcome: Any
    given: tuple[Any, ...]
    printed: str
    effects: tuple[Any, ...]
    state: list[torch.Tensor]


def call(run: Callable[..., Any], subject: Subject, number: int) -> Seen:
    """Call with fresh arguments, and note all that can be seen."""
    args = subject.args(number)
    out = io.StringIO()
    tensors = [a for a in leaves_of(list(args)) if isinstance(a, torch.Tensor)]

    def program(*_: Any) -> Any:
        return run(*args)

    with redirect_stdout(out):
        outcome = observe(program, tensors, subject.tensors(), seed=number)
    state = [snapshot(t) for t in subject.tensors()]
    return Seen(outcome, args, out.getvalue(), subject.effects(), state)


def compare(want: Seen, got: Seen, *, effects: bool = True, aliases: bool = True, random: bool = True) -> str:
    """The first difference as a sentence; empty where there is none. aliases: memory and versions are compared too."""
    a, b = want.outcome, got.outcome
    if a.error is None and b.error is None and not aliases:
        b.shares, b.same, b.written = a.shares, a.same, a.written
    if not random:
        b.generator = a.generator
    text = difference(a, b, is_exact=False)
    if text is None and a.error is not None and a.text != b.text:
        text = f"raised {a.error.__name__}({b.text!r}) instead of ({a.text!r})"
    if text is not None:
        return text
    found = [*_parts(got.given), *got.state]
    for i, (x, y) in enumerate(zip([*_parts(want.given), *want.state], found, strict=False)):
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            text = tensor_difference(x, y, is_exact=False)
            if text is not None:
                return f"argument or state {i}, after the call, {text}"
        elif type(x) is not type(y) or (not isinstance(x, torch.Tensor) and x != y and x == x):
            return f"argument {i}, after the call, is {y!r} instead of {x!r}"
    if len(_parts(want.given)) != len(_parts(got.given)):
        return "a list among the arguments has another length after the call"
    if want.printed != got.printed:
        return f"printed {got.printed!r} instead of {want.printed!r}"
    if effects and repr(want.effects) != repr(got.effects):
        return f"effects: {got.effects} instead of {want.effects}"
    return ""


def _parts(given: tuple[Any, ...]) -> list[Any]:
    return list(leaves_of(list(given)))


def judge(
    path: Path,
    ways: Sequence[str] = WAYS,
    options: dict[str, Any] = OPTIONS,
    orders: Sequence[Sequence[int]] = ORDERS,
) -> Verdict:
    """Run the program every way and compare with eager."""
    verdict = Verdict()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for way in ways:
            if way in ("compile", "dynamic"):
                found = _compiled(path, options, verdict, orders, dynamic=True if way == "dynamic" else None)
            else:
                found = {"trace": _traced, "staged": _staged, "script": _scripted}[way](path, options, verdict)
            if found:
                verdict.difference = f"{way}: {found}"
                return verdict
    return verdict


def _eager_seen(path: Path, order: Sequence[int]) -> Iterator[Seen]:
    subject = load(path)
    for number in order:
        yield call(subject.fn, subject, number)


def _compiled(
    path: Path,
    options: dict[str, Any],
    verdict: Verdict,
    orders: Sequence[Sequence[int]],
    dynamic: bool | None = None,
) -> str:
    for order in orders:
        subject = load(path)
        compiled = smelt.compile(subject.fn, options=options, dynamic=dynamic)
        for at, want in enumerate(_eager_seen(path, order)):
            got = call(compiled, subject, order[at])
            verdict.calls += 1
            text = compare(want, got)
            if text:
                return f"call {at} of {order}: {text}"
        _note_capture(compiled, verdict)
    return ""


def _note_capture(compiled: Any, verdict: Verdict) -> None:
    stats = compiled.stats()
    rows = stats.rows
    reasons = [row.reason for row in rows if row.reason] + list(stats.fallbacks)
    internal = [r for r in reasons if "InternalError" in r or "defect" in r or "Error:" in r or "failed" in r]
    why = [getattr(row.entry, "why_paths", "") for row in rows if row.entry is not None]
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

    def run(*args: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            programs.append(smelt.trace(subject.fn, args, options=options))
            left_out.extend(w for w in caught if "does not repeat" in str(w.message))
        return None

    got = call(run, subject, 0)
    if not programs:
        error = got.outcome.error
        if want.outcome.error is not None:
            return "" if (error, got.outcome.text) == (want.outcome.error, want.outcome.text) or issubclass(
                error, CaptureError) else f"tracing raised {error} ({got.outcome.text})"  # fmt: skip
        if issubclass(error, CaptureError) and not issubclass(error, InternalError):
            verdict.trace = f"refused: {got.outcome.text.splitlines()[0]}"
            return ""
        return f"tracing raised {error.__name__}: {got.outcome.text}"
    if want.outcome.error is not None:
        return f"tracing did not raise {want.outcome.error}"
    got.outcome = copy.copy(want.outcome)
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
        before = _state_copy(subject)
        got = call(program, subject, number)
        if got.outcome.error is not None and issubclass(got.outcome.error, CaptureError):
            missed += 1
            if _state_copy(subject) != before:  # nothing may have happened
                return f"input {number}: a refused call left another state"
            continue
        want = call(eager.fn, eager, number)
        text = compare(want, got)
        if text:
            return f"input {number}: {text}"
    verdict.trace = f"{missed} of 5 inputs refused"
    return ""


def _state_copy(subject: Subject) -> list[Any]:
    return [[t.tolist().__repr__() for t in subject.tensors()], subject.effects().__repr__()]


def _staged(path: Path, options: dict[str, Any], verdict: Verdict) -> str:
    subject, eager = load(path), load(path)
    first = call(eager.fn, eager, 0)
    if first.outcome.error is not None:
        return ""
    args = subject.args(0)
    torch.manual_seed(0)
    with redirect_stdout(io.StringIO()):
        native = capture(subject.fn, args, specialize=True)
    if native.error is not None or not native.conversions:
        return ""
    before = (_state_copy(subject), repr(_parts(args)), torch.get_rng_state().tolist())
    out = io.StringIO()
    fresh = subject.args(0)
    kept = repr(_parts(fresh))
    with redirect_stdout(out):
        staged = stage(subject.fn, fresh, {}, target=None, name=None, native=native)
    if (_state_copy(subject), repr(_parts(args)), torch.get_rng_state().tolist()) != before or repr(
        _parts(fresh)
    ) != kept:
        return "staging changed state, arguments or random numbers"
    if out.getvalue():
        return f"staging printed {out.getvalue()!r}"
    if isinstance(staged.error, InternalError):
        verdict.internal = verdict.internal or str(staged.error.what)
        return ""
    if staged.error is not None or staged.graph is None or staged.signature is None:
        return ""
    graph, signature = staged.graph, staged.signature
    if str(smelt.parse(str(graph), graph.constants)) != str(graph):
        return "the staged graph does not parse back"
    if first.effects != Subject(load(path).space).effects():
        return ""  # a graph alone does not act on Python's objects, nor see them change

    def run(*given: Any) -> Any:
        return signature.rebuild(evaluate(graph, signature.flatten(given), staged.state.lookup), given)

    for number in (0, 1, 2, 3, 4):
        want = call(eager.fn, eager, number)
        if want.effects != first.effects:
            break
        if any(isinstance(a, int | float) for a in subject.args(number)) and repr(
            [a for a in subject.args(number) if isinstance(a, int | float)]
        ) != repr([a for a in args if isinstance(a, int | float)]):
            break  # Python's numbers among the arguments are guarded, not part of the graph
        got = call(run, subject, number)
        text = compare(want, got, effects=False, aliases=False)
        if text:
            return f"input {number}: {text}"
    return ""


def _scripted(path: Path, options: dict[str, Any], verdict: Verdict) -> str:
    script = getattr(smelt, "script", None)
    if script is None:
        return ""
    subject, eager = load(path), load(path)
    try:
        program = script(subject.fn)
    except CaptureError:
        return ""
    for number in (0, 1, 2, 3, 4):
        want = call(eager.fn, eager, number)
        got = call(program, subject, number)
        text = compare(want, got)
        if text:
            return f"input {number}: {text}"
    return ""


__all__ = ["OPTIONS", "OWN", "Verdict", "judge", "load"]
