"""A random program scripted: accepted with the same answers, or refused with an error that a user can act on.

Nothing may run while it is scripted. A graph is evaluated on all calls; what every run is said to end with must be what
eager ends with; an error is one of the documented ones, at a line of the program.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

import smelt
from smelt.diag import CaptureError, InternalError, Miss, SmeltError
from smelt.ops.evaluate import evaluate
from tests.programs.subject import Subject, call, compare, load

_CALLS = (0, 1, 2, 3, 4)
# What cannot be scripted or recorded (NumPy on a tensor's data), what no run gets past, and kinds of arguments;
# `docs/script.md`.
_DOCUMENTED = ("S0109", "S0104", "S0110", "S0106")


def scripted(path: Path, options: dict[str, Any]) -> tuple[str, str]:
    """How it was scripted, and the first difference: annotated where a parameter is no tensor, then with the types of
    a call.
    """
    told = path.with_name(f"{path.stem}_annotated.py")
    told.write_text(annotated(path.read_text(), load(path)))
    try:
        how, found = _scripted(told, options, None)
    finally:
        told.unlink()
    if found or load(path).kwargs(0):
        return how, found
    typed, found = _scripted(path, options, load(path).args(0))
    return f"{how}; typed: {typed}", found and f"typed: {found}"


def annotated(text: str, subject: Subject) -> str:
    """The program with annotations of all parameters that are no tensors at some call."""
    function = getattr(subject.fn, "forward", subject.fn)
    signature = inspect.signature(function)
    seen: dict[str, list[str]] = {}
    for number in _CALLS:
        bound = signature.bind(*subject.args(number), **subject.kwargs(number))
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                seen.setdefault(name, []).append(_annotation(value))
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in ("program", "forward") and node.args.args[-1].arg in seen:
            for arg in (*node.args.args, *node.args.kwonlyargs):
                kinds = sorted(set(seen.get(arg.arg, ["torch.Tensor"])))
                if kinds != ["torch.Tensor"] and "" not in kinds:
                    arg.annotation = ast.parse(" | ".join(kinds), mode="eval").body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _annotation(value: Any) -> str:
    """The annotation of a parameter that gets this; empty where there is none for it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return "None" if value is None else type(value).__name__
    if isinstance(value, torch.Tensor):
        return "torch.Tensor"
    if type(value) is list and len(kinds := {_annotation(item) for item in value}) == 1:
        return f"list[{kinds.pop()}]" if all(kinds) else ""
    if type(value) is dict:
        return "dict[str, torch.Tensor]"
    if type(value) is tuple:
        parts = list(map(_annotation, value))
        return f"tuple[{', '.join(parts)}]" if parts and all(parts) else ""
    return type(value).__name__ if dataclasses.is_dataclass(value) else ""


def _scripted(path: Path, options: dict[str, Any], example: tuple[Any, ...] | None) -> tuple[str, str]:
    subject = load(path)
    before, drawn = subject.state_text(), torch.get_rng_state()
    out = io.StringIO()
    error: Exception | None = None
    program: Any = None
    with redirect_stdout(out), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            program = smelt.script(subject.fn, example_inputs=example, options=options)
        except Exception as raised:
            error = raised
    if out.getvalue() or subject.state_text() != before or not torch.equal(drawn, torch.get_rng_state()):
        return "", f"something ran while it was scripted: {out.getvalue()!r} {subject.state_text()}"
    if error is not None:
        return _refused(path, error, _CALLS if example is None else _CALLS[:1])
    ends = [str(w.message) for w in caught if "every run of" in str(w.message)]
    if ends:
        found = _ends(path, [n for n in _CALLS if _is_of(program, subject, n)], ends[0])
        if found:
            return "", found
    graph = program.graph
    if str(smelt.parse(str(graph), dict(graph.constants))) != str(graph):
        return "", "its graph does not parse back"
    return _evaluated(path, subject, program)


def _refused(path: Path, error: Exception, numbers: Sequence[int]) -> tuple[str, str]:
    """How, or what is wrong with the error."""
    if not isinstance(error, CaptureError) or isinstance(error, InternalError):
        return "", f"scripting raised {type(error).__name__}: {error}"
    if error.code not in _DOCUMENTED:
        return "", f"scripting raised {error.code}: {error.what}"
    if error.where is None or error.where.file != str(path) or not _is_line(path, error.where.line):
        return "", f"an error at no line of the program: {error.where}: {error.what}"
    if error.code == "S0110":
        found = _ends(path, numbers, "")
        if found:
            return "", f"{error.what.splitlines()[0]}: {found}"
    return f"{error.code} {error.what.splitlines()[0]}", ""


def _is_line(path: Path, line: int) -> bool:
    """Whether it is a line of some function or class of the file."""
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    return any(n.lineno <= line <= (n.end_lineno or 0) for n in ast.walk(tree) if isinstance(n, kinds))


def _ends(path: Path, numbers: Sequence[int], text: str) -> str:
    """What is wrong with saying that every run raises; text: what was said, which may be of the present state only."""
    eager = load(path)
    for number in numbers:
        if "current state" in text:
            eager = load(path)
        outcome = call(eager.fn, eager, number).outcome
        if outcome.error is None:
            return f"input {number} returns, and every run was said to raise {text}"
    return ""


def _evaluated(path: Path, subject: Subject, program: Any) -> tuple[str, str]:
    """Each call by the graph of the source, as far as it does not act on Python's objects."""
    eager, unit = load(path), program.unit
    start = eager.effects()
    compared = unfit = 0

    def run(*args: Any, **kwargs: Any) -> Any:
        inputs = program.inputs_for(*args, **kwargs)
        return unit.signature.rebuild(evaluate(program.graph, inputs, unit.lookup), args, kwargs)

    for number in _CALLS:
        got = call(run, subject, number)
        error = got.outcome.error
        if error is not None and _does_not_fit(error, got.outcome.text):
            unfit += 1
            break  # it left no trace, and eager would leave some
        want = call(eager.fn, eager, number)
        if want.effects != start:
            break
        text = compare(want, got, effects=False, aliases=False)
        if text:
            return "", f"input {number} by the graph: {text}"
        compared += 1
        if want.outcome.error is not None and eager.state_text() != subject.state_text():
            break  # a graph writes when it has come to its end, a program that raises has written before
    return f"accepted, {compared} compared{', then none that fits' if unfit else ''}", ""


def _is_of(program: Any, subject: Subject, number: int) -> bool:
    """Whether the graph of a program is of a call."""
    try:
        program.inputs_for(*subject.args(number), **subject.kwargs(number))
    except CaptureError:
        return False
    return True


def _does_not_fit(error: type[BaseException], text: str) -> bool:
    """Whether a graph was asked for a call that it is not of, and said so."""
    return issubclass(error, Miss) or (issubclass(error, SmeltError) and "S0107" in text)
