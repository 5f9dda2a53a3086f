"""`trace`: run a program once, record it, check the record, and return it as a `Program`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from smelt.capture import Captured, capture, conversion_error, tensors_of
from smelt.capture.reads.reads import ReadLog, RecorderBusy, record_reads
from smelt.capture.reads.reads_arguments import ArgumentHeap
from smelt.capture.reads.reads_effects import LOGGING, MODES_ASKED
from smelt.capture.structure.tree import tensors_at
from smelt.compiler.copies import copies_of
from smelt.compiler.deciding.generalisation import Freedom
from smelt.compiler.long_loops import with_long_loops
from smelt.compiler.object.compiled import Compiled
from smelt.compiler.object.compiled_types import attempt
from smelt.compiler.object.interrupts import SignalsWait
from smelt.compiler.object.originals import move_originals
from smelt.compiler.paths import lines_of, other_path, outcomes
from smelt.compiler.pipeline import check_options
from smelt.compiler.profile_hook import watch_natively
from smelt.compiler.programs.narrow_layers import NARROW
from smelt.compiler.programs.numeric_comparison import disagreement
from smelt.compiler.programs.program import Program
from smelt.compiler.programs.program_modules import is_uninitialized
from smelt.compiler.raised_run import RaisedRun, seen_only
from smelt.compiler.replayable import is_repeatable, without_repeated
from smelt.compiler.sizes.sized_capture import sized_capture, wished
from smelt.compiler.staged import staged_capture
from smelt.compiler.unit import Unit
from smelt.diag import CaptureError, Miss, Options, SmeltError, SmeltWarning, Span
from smelt.diag.collector import full_collections_later
from smelt.ir import Graph
from smelt.ops.evaluate import evaluate
from smelt.ops.python.python_draws import Generators


def trace(
    f: Callable[..., Any],
    args: torch.Tensor | Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    check: bool = True,
    check_inputs: Iterable[Any] | None = None,
    options: Mapping[str, Any] | Options | None = None,
) -> Program:
    """Run `f(*args, **kwargs)` once and return what it did as a `Program`.

    f: a function or an nn.Module. args: a tuple, or one tensor. The run's effects (buffers, random numbers, in-place
    writes) happen once, as in one eager call.
    dynamic_shapes: sizes and numbers that are dynamic, by parameter: {"x": {0: "B"}}, as torch.export spells it; the
    program then runs at all that its graph holds for. names, or `smelt.Dim`s with bounds.
    check: evaluate the graph on copies of the same inputs and state, and compare with what the run returned.
    check_inputs: more arguments (tuples, or single tensors) to compare with eager, on copies; `f` runs once for each,
    and buffers and random state are restored afterwards. Data-dependent control flow becomes branches and loops of the
    graph. If that is impossible, the graph holds for the recorded path, with a warning at each line that reads data;
    other outcomes raise when it is called.
    Raises: CaptureError: S0101 and S0102 where Python reads data that cannot be compared, or in strict mode, at that
        line; S0103 and S0104 where something cannot be recorded; S0105 where the graph differs from eager; S0106 for
        arguments that cannot be captured; S0111 where the program fixes what `dynamic_shapes` names. SmeltError (S0304)
        for dynamic_shapes that do not fit, before anything runs. Whatever `f` raises.
    """
    chosen = Options.make(options)
    check_options(chosen)
    target = f.smelt_target if isinstance(f, Compiled) else f
    if not callable(target):
        raise CaptureError(
            f"{target!r} cannot be traced",
            why="it is not callable",
            fix="give a function or an nn.Module",
            code="S0106",
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise CaptureError(
            f"kwargs is a {type(kwargs).__name__}, where a dict of arguments by name is meant",
            why="trace takes the positional arguments as one tuple",
            fix="write smelt.trace(f, (x, y)), and smelt.trace(f, (x,), {'y': y}) for arguments by name",
            code="S0106",
        )
    if is_uninitialized(target):
        raise CaptureError(
            f"{getattr(target, '__name__', type(target).__name__)} has parameters without sizes",
            why="a lazy module gets them in its first call",
            fix="call it once before it is traced",
            code="S0106",
        )
    given, named = as_args(args), dict(kwargs or {})
    free = wished(dynamic_shapes, target, given, named)
    before = copies_of(tensors_of((given, named))) if check else []
    rng = Generators()
    watch_natively(chosen)
    with SignalsWait(), full_collections_later():
        observed = _Observed(target)
        moved = move_originals(target, chosen)
        captured = observed.recorded(given, named, keep_written=check)
        if captured.error is not None:
            raise captured.error
        if observed.log is not None:
            captured = replace(captured, drawers=observed.log.drawers, class_askers=observed.log.class_askers)
            if captured.not_put:
                observed.log.keep_mutations()
        asked = observed.log.asked if observed.log is not None else {}
        if any(what.startswith(MODES_ASKED) for what in asked.values()):
            captured = replace(captured, asks_modes=True)
        for where, what in (*captured.flags.items(), *asked.items()):
            _warn_at(f"the program traced from {captured.name} holds for one path: {what}", where, stacklevel=3)
        results = captured.result_tensors
        asks = bool(captured.conversions) or observed.acts or (observed.log is not None and observed.log.warned)
        program = None
        with observed.as_before():
            if free:
                program = _with_free_sizes(target, captured, given, named, chosen, free, before if check else None, rng)
            else:
                looped = captured if asks else with_long_loops(captured, observed.log)
                if looped is not None:
                    program = _staged(target, looped, given, named, chosen, before if check else None, rng)
            left_out = observed.left_out(program.unit.captured.graph if program is not None else captured.graph)
            if left_out is not None:
                what = f"the program traced from {captured.name} does not repeat all that the run did"
                for why, where in left_out.reasons().items():
                    _warn_at(f"{what}: {why}", where, stacklevel=3)
            is_way = program is None or program.unit.captured.is_way
            if is_way:
                if captured.conversions and chosen.strict:
                    raise conversion_error(captured.conversions[0])
                _warn_of_bakes(captured if program is None else program.unit.captured)
            if program is None:
                program = Program(target, captured, chosen)
                if check:
                    _check(program.unit, results, before, rng)
        program.unit.moved = moved
        if program.unit.signature is not None and chosen.dtype in NARROW:
            program.unit.keep_sample(program.unit.signature.flatten(given, named))
        for more in check_inputs or ():
            _check_on(program.unit, target, as_args(more))
        return program


def _staged(
    target: Callable[..., Any],
    native: Captured,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Options,
    before: Sequence[torch.Tensor] | None,
    rng: Generators,
) -> Program | None:
    """The program with all its ways, where data decide and a second run on fake tensors gives one graph.

    before: copies of the inputs as they were, where the graph is to be checked on them.
    """
    captured = staged_capture(native, target, args, kwargs)
    if captured.error is not None:
        return None
    try:
        program = Program(target, captured, options)
        if before is not None:
            _check(program.unit, native.result_tensors, copies_of(before), rng)
        if native.rangers:
            program.unit.finish()
    except Exception:  # whatever is wrong with it, the recorded way stands
        return None
    return program


def _with_free_sizes(
    target: Callable[..., Any],
    native: Captured,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Options,
    free: Freedom,
    before: Sequence[torch.Tensor] | None,
    rng: Generators,
) -> Program:
    """The program with its free sizes and numbers. Raises: CaptureError (S0111) where they cannot be free."""
    captured = sized_capture(native, target, args, kwargs, free)
    program = Program(target, captured, options, free)
    if before is not None and captured.signature is not None:
        tensors = iter(copies_of(before))
        inputs = captured.signature.flatten(args, kwargs)
        copies = [next(tensors) if isinstance(value, torch.Tensor) else value for value in inputs]
        _check(program.unit, native.result_tensors, copies, rng)
    return program


def _warn_of_bakes(captured: Captured) -> None:
    """One warning for each line that read data, at that line: the program holds for what it read there."""
    for where, what in lines_of(outcomes(captured)):
        text = f"the program traced from {captured.name} holds for one path: {what}. smelt.compile keeps one for each"
        _warn_at(text, where, stacklevel=4)


def _warn_at(text: str, where: Span | None, stacklevel: int) -> None:
    if where is None:
        warnings.warn(text, SmeltWarning, stacklevel=stacklevel)
    else:
        warnings.warn_explicit(text, SmeltWarning, where.file, where.line)


class _Observed:
    """A program that, when called, runs natively and notes what of it a graph cannot repeat."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self.target = target
        self.log: ReadLog | None = None
        self._raised = RaisedRun(target)

    def recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, keep_written: bool) -> Captured:
        """One recorded run. Raises: what the program raises; CaptureError (S0104) for what it raises only here."""
        run = partial(
            capture, self, args, kwargs,
            keep_written=keep_written, target=self.target, specialize=True, changed=lambda: self.heap,
            raised=self._raised.note,
        )  # fmt: skip
        captured: Captured | None
        captured, error = attempt(run)
        if captured is not None:
            return captured
        assert error is not None
        if isinstance(error, SmeltError):
            raise error
        self._raised.answer(error, args, kwargs)
        raise CaptureError(
            f"{getattr(self.target, '__name__', type(self.target).__name__)} cannot be recorded",
            why=seen_only(error),
            fix="report it with the program, which must not see that it is recorded",
            code="S0104",
        ) from error

    @property
    def acts(self) -> bool:
        """Whether it printed something or drew numbers, as a graph of all ways can."""
        return self.log is not None and any(map(is_repeatable, self.log.effects))

    @property
    def heap(self) -> ArgumentHeap | None:
        """The objects of the arguments, after the run, of which some may be known by structure alone."""
        return None if self.log is None else self.log.heap

    def as_before(self) -> AbstractContextManager[None]:
        """What the run changed, and the program changes at each call, as it was before the run."""
        return nullcontext() if self.log is None else self.log.as_before()

    def left_out(self, graph: Graph | None) -> ReadLog | None:
        """Such things that this graph does not do; None where there are none.

        A log message is no part of an answer, nor what its handlers do to stamp and write it.
        """
        if self.log is None:
            return None
        logged = {effect.span for effect in self.log.effects if effect.what == LOGGING}  # which reads the clock, too
        handled = {"uses a file"} if logged else set()
        log = self.log if graph is None else without_repeated(self.log, graph)
        effects = [e for e in log.effects if e.span not in logged and e.what not in handled]
        left = ReadLog([], effects, log.mutations)
        return None if left.is_replayable else left

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        heap = ArgumentHeap(args, kwargs)
        recording = record_reads({getattr(self.target, "__name__", "self"): self.target}, args, kwargs, heap)
        try:
            log = recording.__enter__()
        except RecorderBusy:
            return self.target(*args, **kwargs)
        self._raised.log = log
        try:
            result = self.target(*args, **kwargs)
        except BaseException as error:
            recording.__exit__(type(error), error, error.__traceback__)
            raise
        recording.__exit__(None, None, None)
        self.log = log
        return result


def as_args(args: Any) -> tuple[Any, ...]:
    """Positional arguments as given to the public functions: a tuple or list of them, or one tensor or other value."""
    return tuple(args) if isinstance(args, tuple | list) else (args,)


def _check(unit: Unit, result: Sequence[torch.Tensor], before: Sequence[torch.Tensor], rng: Generators) -> None:
    """Evaluate the functional graph from the state before the run. Raises: CaptureError (S0105)."""
    captured = unit.captured
    if (
        unit.writes
        and not captured.entangled.isdisjoint(v.name for v in unit.graph.inputs)
        and not (captured.entangled <= {v.name for v in unit.graph.inputs})
    ):
        return  # an argument lay in written state: copies of the two apart would tell nothing

    def lookup(kind: str, path: str) -> torch.Tensor:
        # Copies, because the graph writes to its state, too.
        found = captured.state.lookup(kind, path)
        return captured.written.get(id(found), found)

    if not rng.has_numpys and any(n.op == "py.draw" and "numpy" in str(n.args[0]) for n in unit.graph.walk()):
        return  # the run itself loaded it, and nobody knows how it began

    with _rng_kept(), torch.no_grad():
        rng.restore()
        try:
            outputs = evaluate(unit.graph, before, lookup, silent=True)
        except Miss as miss:
            raise _disagrees(captured.name, "the arguments it was traced with", f"{miss}") from None
    if unit.signature.puts is not None:
        # What is put in objects comes after what is returned.
        outputs = [value for value in outputs if isinstance(value, torch.Tensor)][: len(result)]
    _compare(result, outputs, captured.name, "the arguments it was traced with")


def _check_on(unit: Unit, f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Compare the graph with eager on other arguments; state and arguments are left as they were."""
    state = [entry.tensor for entry in unit.captured.state.entries.values()]
    saved = copies_of(state)
    inputs = unit.signature.flatten(args)
    before = copies_of(inputs)

    def restore() -> None:
        with torch.no_grad():
            for tensor, copy in zip((*state, *inputs), (*saved, *before), strict=True):
                tensor.copy_(copy)

    with _rng_kept(), torch.no_grad():
        rng = Generators()
        try:
            expected = copies_of(tensors_at(unit.signature.result, f(*args)))
            restore()
            rng.restore()
            outputs = evaluate(unit.graph, copies_of(inputs), unit.captured.state.lookup, silent=True)
        except Miss as miss:
            raise other_path(miss, unit.outcomes) from None
        finally:
            restore()
    _compare(expected, outputs, unit.captured.name, "check_inputs")


@contextmanager
def _rng_kept() -> Iterator[None]:
    now = Generators()
    try:
        yield
    finally:
        now.restore()


def _compare(expected: Sequence[torch.Tensor], found: Sequence[Any], name: str, where: str) -> None:
    # Numbers that follow data are results of a graph; those of a native run are no tensors, and not among the expected.
    difference = disagreement(expected, [value for value in found if isinstance(value, torch.Tensor)])
    if difference is not None:
        raise _disagrees(name, where, difference)


def _disagrees(name: str, where: str, difference: str) -> CaptureError:
    return CaptureError(
        f"the trace of {name} disagrees with eager on {where}: {difference}",
        why="the program depends on something that the trace does not show, or draws random numbers unseen",
        fix="make the dependence an argument; check=False leaves this test out",
        code="S0105",
    )
