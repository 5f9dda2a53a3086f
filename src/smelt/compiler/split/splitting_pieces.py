"""A piece of a split program: compiled like a program of its own, or refused, with the places that are to blame.

Invariant: what a piece hands over is what the statements themselves would: tensors, numbers, texts, and containers that
were made in it. Where it is something else (an object of the outside world, a container that somebody else holds), the
piece is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, TracebackType
from typing import Any

import torch

from smelt.capture.reads.reads import ReadLog
from smelt.capture.reads.reads_effects import file_kind
from smelt.capture.structure.tree import has_parts, parts
from smelt.compiler.object.compiled import CompiledFunction
from smelt.compiler.object.compiled_dispatch import DISPATCHER, Dispatcher
from smelt.compiler.object.compiled_types import Entry, ObservedProgram, Row, Settings, Unmade
from smelt.compiler.paths import ManyWays
from smelt.diag import CaptureError, Options, SmeltError, Span
from smelt.diag.records import record
from smelt.runtime.guarding.guards import Guard

MIN_OPERATORS = 3
"""A piece of fewer operators costs more to enter than it saves."""

Refused = Callable[[ReadLog, Exception | None, bool], None]
"""What is told that a piece cannot be compiled: what its run did, the error, whether it is merely too small."""

_HEIGHT = 256
_STORM = 3  # entries that one value that the piece reads kept from serving


@record
class Break:
    """Something that runs in Python: what it does, in a sentence, and where."""

    what: str
    where: Span | None


class TooSmall(CaptureError):
    """A piece that does not pay."""


class Piece(CompiledFunction[..., Any]):
    """A compiled object for a function, method or module that only a split program calls."""

    __slots__ = (DISPATCHER,)

    def __init__(self, target: Callable[..., Any], name: str, settings: Settings, refused: Refused) -> None:
        def split(log: ReadLog, error: Exception | None, entry: Entry | Unmade | None) -> None:
            try:
                refused(log, error, isinstance(error, TooSmall))
            except Exception:  # whatever is wrong here, the piece runs as it is
                if settings.options.strict:
                    raise

        builder = _Builder(settings.builder)
        own = dataclasses.replace(
            settings, builder=builder, fullgraph=False, dynamic_shapes=None, split=None, refused=split
        )
        dispatcher = Dispatcher(target, name, own)
        builder.rows = lambda: dispatcher.stats().rows
        object.__setattr__(self, DISPATCHER, dispatcher)
        dispatcher.serve(self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return object.__getattribute__(self, DISPATCHER)(args, kwargs)


class _Builder:
    """The builder of the program, for a piece. rows: those that its dispatcher has."""

    def __init__(self, build: Any) -> None:
        self._build = build
        self.rows: Callable[[], tuple[Row, ...]] = tuple

    def __call__(
        self, fn: ObservedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
    ) -> Entry:
        storm = _storm(self.rows(), args, kwargs)
        if storm is not None:
            fn(*args, **kwargs)
            raise CaptureError(f"{storm.expr} differs at each call", storm.span, code="S0104")
        entry: Entry = self._build(fn, args, kwargs, options)
        if fn.log is not None and fn.log.is_replayable:
            count = operators(entry)
            if count is not None and count < MIN_OPERATORS:
                raise TooSmall(f"it has {count} operator{'s' * (count != 1)}, too few to pay", code="S0104")
            why_not = _why_not_handed_over(fn.result, fn.log, (args, kwargs))
            if why_not:
                raise CaptureError(f"it gives {why_not}", code="S0104")
        return entry


def _storm(rows: tuple[Row, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Guard | None:
    """What a piece reads, if it was another value each time that the piece was compiled."""
    built = [row for row in rows if row.entry is not None]
    if len(built) < _STORM or sum(row.hits for row in built) >= 2 * len(built):
        return None
    found: dict[tuple[str, str], Guard] = {}
    for row in built:
        failed = row.guards.check(args, kwargs)
        if failed is None:
            return None
        guard = row.guards.guards[failed]
        found[guard.kind, guard.expr] = guard
    guard = next(iter(found.values()))
    return guard if len(found) == 1 and guard.span is not None else None


def operators(entry: Entry | Unmade | None) -> int | None:
    """How many operators the graph of an entry has; None where that is not known."""
    graph = getattr(entry, "graph", None)
    if graph is None:
        return None
    return sum(1 for node in graph.walk() if "." in node.op and not node.op.startswith(("py.", "prim.")))


# -------------------------------------------------------------------- results

_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device,
    torch.layout, torch.memory_format, torch.Size, slice, range, type,
)  # fmt: skip


def _why_not_handed_over(result: Any, log: ReadLog, given: Any) -> str:
    """What of a result is not the statements' own each time; empty where all is."""
    arguments = {id(value) for value in _all_in(given)}
    known: set[int] | None = None
    seen: set[int] = set()
    for value in _all_in(result):
        kind = type(value)
        if kind in _PLAIN or isinstance(value, type) or id(value) in arguments:
            continue
        if kind is tuple or (isinstance(value, tuple) and not hasattr(value, "__dict__")):
            continue
        if known is None:
            known = set(_reached(log))
        is_open = isinstance(value, (list, dict)) or (has_parts(value) and any(_tensors_in(value)))
        if is_open and id(value) not in known and id(value) not in seen:
            seen.add(id(value))
            continue
        if not is_open and id(value) in known:
            continue  # an object of the outside world, the same as long as the guards hold
        return f"a {kind.__qualname__} that is not its own"
    return ""


def _all_in(value: Any, depth: int = 0) -> Iterator[Any]:
    yield value
    if depth < 16 and not isinstance(value, torch.Tensor) and has_parts(value):
        for _, part in parts(value):
            yield from _all_in(part, depth + 1)


def _tensors_in(value: Any) -> Iterator[bool]:
    return (isinstance(part, torch.Tensor) for part in _all_in(value))


def _reached(log: ReadLog) -> Iterator[int]:
    """The objects of the outside world that a run read, and what containers among them hold."""
    for read in log.reads:
        for value in (read.owner, read.value):
            yield id(value)
            if isinstance(value, (list, tuple, set, frozenset)):
                yield from map(id, value)
            elif isinstance(value, dict):
                yield from map(id, value.values())


# -------------------------------------------------------------------- places


def places_of(log: ReadLog, error: Exception | None) -> Iterator[tuple[str, list[Span]]]:
    """What a refused run did, in words, each with the line where, the line that called that function, and so on."""
    for effect in log.effects:
        yield f"it {effect.what} ({effect.name})", _stack(effect.span, log)
    for mutation in log.mutations:
        yield f"it changes {mutation.name}", _stack(mutation.span, log)
    if isinstance(error, ManyWays) and error.places:
        for place in error.places:
            yield error.what, _stack(place, log)
    elif isinstance(error, SmeltError):
        yield error.what, _stack(error.where, log)
    elif error is not None:
        yield f"{type(error).__name__}: {error}", []


def _stack(span: Span | None, log: ReadLog) -> list[Span]:
    found: list[Span] = []
    while span is not None and span not in found and len(found) < _HEIGHT:
        found.append(span)
        span = log.callers.get((span.file, span.function))
    return found


def without_pieces(traceback: TracebackType | None, around: Mapping[int, CodeType]) -> TracebackType | None:
    """A traceback as the program itself gives it: without Smelt's frames, each function once.

    around: the code of split functions; where a piece of one raised, the piece's frame stands for the function's.
    """
    frames: list[TracebackType] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if file_kind(code.co_filename) != "smelt":
            before = frames[-1].tb_frame.f_code if frames else None
            if before is not None and id(before) in around and id(code) not in around and _is_same(before, code):
                frames.pop()
            frames.append(traceback)
        traceback = traceback.tb_next
    rest: TracebackType | None = None
    for frame in reversed(frames):
        rest = TracebackType(rest, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return rest


def _is_same(a: CodeType, b: CodeType) -> bool:
    return (a.co_filename, a.co_qualname) == (b.co_filename, b.co_qualname)
