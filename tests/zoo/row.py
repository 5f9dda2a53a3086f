"""One row of the table: an architecture run in eager mode, by Smelt, and by the other ways to capture a program.

Each answer is compared with eager on inputs that differ in their data and in what is masked, from the same random
state. A peer is credited with a capture where it returns one, and with equality only where all inputs agree.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import smelt
from smelt.capture import tensors_of
from smelt.compiler.programs.numeric_comparison import disagreement
from tests.zoo.build import Sample, build

Call = tuple[int, int | None]
CALLS: tuple[Call, ...] = (
    (0, 0),
    (0, 0),
    (1, 0),
    (1, 1),
    (2, 2),
    (0, 0),
)  # what is compiled is called with: data, mask
PLAIN: tuple[Call, ...] = ((0, None), (0, None), (1, None), (0, None))
OTHERS: tuple[Call, ...] = ((0, 0), (1, 0), (1, 1), (2, 2))
SECONDS = 120  # for each column
OWN = ("compile", "plain", "trace")
PEERS = ("export", "dynamo", "jit")


class Late(Exception):
    """A column took longer than it may."""


def measure(name: str, columns: tuple[str, ...]) -> dict[str, Any]:
    """The row of an architecture with these columns beside those of the build and of eager mode."""
    row: dict[str, Any] = {"name": name}
    with warnings.catch_warnings(), _limit(SECONDS), torch.no_grad():
        warnings.simplefilter("ignore")  # of transformers and torch, while the model is built
        try:
            sample = build(name)
            row |= {
                "class": type(sample.model).__name__,
                "parameters": sum(p.numel() for p in sample.model.parameters()),
                "inputs": {key: _shape(value) for key, value in sample.other().items()},
            }
            expected = _eager(sample)
            if not expected:
                raise ValueError("its result has no tensors")
        except (Exception, Late) as error:
            return row | {"built": False, "why": sentence(error)}
        row["built"] = True
        row["deterministic"] = disagreement(expected, _eager(sample)) is None
        row["uses_random_numbers"] = _draws(sample)
    for column in columns:
        row[column] = _column(column, sample)
    return row


def _column(column: str, sample: Sample) -> dict[str, Any]:
    found: dict[str, Any] = {"captured": False, "equal": None}
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        try:
            with _limit(SECONDS):
                COLUMNS[column](sample, found)
        except (Exception, Late) as error:
            found["error"] = sentence(error)
            found["at"] = _where(error)
    found["seconds"] = round(time.perf_counter() - started, 3)
    if column in OWN:
        said = sorted({str(w.message).split("\n")[0][:300] for w in caught if "melt" in str(w.category)})
        found["warnings"] = said
    return found


# --- columns


def _compile(sample: Sample, found: dict[str, Any], calls: tuple[Call, ...] = CALLS) -> None:
    compiled = smelt.compile(sample.model, options={"measure": False})
    found["differs"] = {}
    for number, (data, mask) in enumerate(calls):
        expected, state = _answer(sample, sample.model, data, mask)
        started = time.perf_counter()
        answer, after = _answer(sample, compiled, data, mask)
        if number == 0:
            found["first_call_s"] = round(time.perf_counter() - started, 3)
        difference = disagreement(expected, answer)
        if difference is None and not torch.equal(state, after):
            difference = "leaves another random state"
        if difference is not None:
            found["differs"][f"call {number}, data {data}, mask {mask}"] = difference
    found["equal"] = not found["differs"]
    stats = compiled.stats()
    found["builds"], found["fallbacks"] = stats.builds, dict(stats.fallbacks)
    found["misses"] = dict(stats.guard_failures)
    entries: list[Any] = [row.entry for row in stats.rows if row.entry is not None]
    found["native"] = all(entry.executable is None or entry.executable.is_native for entry in entries)
    found["python_ops"] = sorted({op for entry in entries for op in _python_ops(entry)})
    found["graphs"] = len(entries)
    found["python_nodes"] = sum(_python_calls(entry) for entry in entries)
    found["captured"] = bool(entries) and not stats.fallbacks and len(entries) == len(stats.rows)


def _plain(sample: Sample, found: dict[str, Any]) -> None:
    _compile(sample, found, PLAIN)


def _trace(sample: Sample, found: dict[str, Any]) -> None:
    program = smelt.trace(sample.model, (), sample.other())
    found["captured"] = True
    found["nodes"] = len(list(program.graph.walk()))
    found["native_failure"] = program.native_failure
    _judge(sample, program, found)


def _export(sample: Sample, found: dict[str, Any]) -> None:
    flat, values = Flat.of(sample)
    exported = torch.export.export(flat, values).module()
    found["captured"] = True
    _judge(sample, flat.calling(exported), found)


def _dynamo(sample: Sample, found: dict[str, Any]) -> None:
    torch._dynamo.reset()
    flat, values = Flat.of(sample)
    compiled = torch.compile(flat, backend="eager", fullgraph=True)
    compiled(*values)
    found["captured"] = True
    _judge(sample, flat.calling(compiled), found)


def _jit(sample: Sample, found: dict[str, Any]) -> None:
    flat, values = Flat.of(sample)
    traced = torch.jit.trace(flat, values, check_trace=False, strict=False)
    found["captured"] = True
    _judge(sample, flat.calling(traced), found)


COLUMNS: dict[str, Callable[[Sample, dict[str, Any]], None]] = {
    "compile": _compile, "plain": _plain, "trace": _trace, "export": _export, "dynamo": _dynamo, "jit": _jit
}  # fmt: skip


class Flat(torch.nn.Module):
    """A model with tensors as arguments and a tuple of tensors as result, which every way of capture can take."""

    def __init__(self, model: torch.nn.Module, names: list[str], rest: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.names, self.rest = model, names, rest

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self.model(**dict(zip(self.names, values, strict=True)), **self.rest)
        found: list[torch.Tensor] = []
        _collect(result, found)
        return tuple(found)

    @staticmethod
    def of(sample: Sample) -> tuple[Flat, tuple[torch.Tensor, ...]]:
        inputs = sample.other()
        tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        rest = {name: value for name, value in inputs.items() if name not in tensors}
        return Flat(sample.model, list(tensors), rest).eval(), tuple(tensors.values())

    def calling(self, captured: Callable[..., Any]) -> Callable[..., Any]:
        """The captured program with the model's own keyword arguments."""
        return lambda **inputs: captured(*(inputs[name] for name in self.names))


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, found)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, found)


# --- helpers


def _judge(sample: Sample, captured: Callable[..., Any], found: dict[str, Any]) -> None:
    """Where the captured program is not equal to eager, and where it raises."""
    found["differs"], found["refuses"] = {}, {}
    for data, mask in OTHERS:
        expected, _ = _answer(sample, sample.model, data, mask, flat=True)
        try:
            difference = disagreement(expected, _answer(sample, captured, data, mask, flat=True)[0])
        except Exception as error:
            found["refuses"][f"data {data}, mask {mask}"] = sentence(error)
            continue
        if difference is not None:
            found["differs"][f"data {data}, mask {mask}"] = difference
    found["equal"] = not found["differs"] and not found["refuses"]


def _answer(
    sample: Sample, program: Callable[..., Any], data: int, mask: int | None, flat: bool = False
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The tensors of a program's answer, and the random state after it."""
    inputs = sample.other(data, mask)
    torch.manual_seed(7)
    result = program(**inputs)
    found: list[torch.Tensor] = []
    if flat:
        _collect(result, found)
    else:
        found = list(tensors_of(result))
    return found, torch.get_rng_state()


def _eager(sample: Sample) -> list[torch.Tensor]:
    return _answer(sample, sample.model, 0, 0)[0]


def _draws(sample: Sample) -> bool:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    sample.model(**sample.other())
    return not torch.equal(before, torch.get_rng_state())


def _python_calls(entry: Any) -> int:
    executable = getattr(entry, "executable", None)
    return 0 if executable is None else int(executable.counts.python)


def _python_ops(entry: Any) -> list[str]:
    lowered = getattr(entry, "lowered", None)
    return [] if lowered is None else [node.op for node in lowered.report.python_nodes]


def _shape(value: Any) -> Any:
    return list(value.shape) if isinstance(value, torch.Tensor) else repr(value)[:40]


def sentence(error: BaseException) -> str:
    """An error in one line."""
    what = " ".join(str(getattr(error, "what", error)).split())
    code = getattr(error, "code", "")
    where = getattr(error, "where", None)
    at = f" at {where}" if where is not None else ""
    return f"{type(error).__name__}{f' {code}' if code else ''}: {re.sub('0x[0-9a-f]+', '0x', what)[:400]}{at}"


def _where(error: BaseException) -> str:
    """The innermost line of this project or of `transformers` in an error's traceback."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if "transformers" in f.filename or "smelt" in f.filename
    ]
    return f"{'/'.join(frames[-1].filename.split('/')[-2:])}:{frames[-1].lineno}" if frames else ""


@contextlib.contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise Late(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
