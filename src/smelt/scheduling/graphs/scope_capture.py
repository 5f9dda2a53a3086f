"""The graph of one module's own forward, for one call: what graph steps of that module edit.

Invariant: the module's forward runs once, natively; afterwards its state and the random numbers are what they were.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from smelt._torch.seen.dispatch import suspended
from smelt._torch.seen.record_modes import Modes, modes
from smelt.capture import Captured, capture
from smelt.capture.reads.reads import ReadLog, RecorderBusy, record_reads
from smelt.capture.reads.reads_facts import Read
from smelt.compiler.pipeline import functional_graph
from smelt.diag import Options, ScheduleError, SmeltError, Span
from smelt.diag.records import distinct_record
from smelt.ir import Graph, Value
from smelt.runtime.guarding.guards import GuardSet
from smelt.scheduling.modules.copying import has_hooks
from smelt.scheduling.modules.functions import Gradients
from smelt.scheduling.modules.module_steps_forward import Checkpointed, arounds

_Forward = Callable[..., Any]
T = TypeVar("T")


class RanAsIs(ScheduleError):
    """A module's forward has run, and its graph is of no use. result: the answer of that run."""

    def __init__(self, why: ScheduleError, result: Any) -> None:
        super().__init__(why.what, why.where, why.why, why.fix, why.code)
        self.result = result


@distinct_record
class ScopeCapture:
    """One captured call of a module's forward.

    graph: functional, with state by its path from the module. reads: what the run read; guards: what later calls must
    fulfil. None where that could not be recorded: then it holds for this call alone.
    """

    captured: Captured
    graph: Graph
    guards: GuardSet | None = None
    reads: Sequence[Read] | None = None

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The tensors behind the graph's `param`, `buffer` and `captured`, by path."""
        return {path: entry.tensor for (_, path), entry in self.captured.state.entries.items()}


def capture_scope(
    module: torch.nn.Module,
    forward: _Forward,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    guarded: bool = True,
) -> ScopeCapture:
    """Run a module's forward on these arguments and record it, with what later calls must fulfil, if `guarded`.

    Raises: RanAsIs (S0613) where it is not one straight graph that repeats all that the run did: then the run stands,
        with its effects and its result.
    """
    with _kept() as restore:
        log: ReadLog | None = None

        def observed(*given: Any, **named: Any) -> Any:
            nonlocal log
            with contextlib.ExitStack() as stack:
                with contextlib.suppress(RecorderBusy):
                    log = stack.enter_context(record_reads({"self": module}, given, named))
                return forward(*given, **named)

        # Whoever counts what autograd saves (a checkpoint around this call) shall see the steps' run, not this one.
        unseen = torch.autograd.graph.saved_tensors_hooks(_same, _same)
        with unseen, (own := Gradients()).watched():
            captured = capture(observed, args, kwargs, target=module, keep_written=True, specialize=True)
        try:
            graph = _graph_of(captured, module, log, own.why)
        except ScheduleError as why:
            raise RanAsIs(why, captured.result) from why
        restore(captured)
    guards = None
    if log is not None and guarded:
        entries = captured.state.entries.values()
        writes = any(node.op == "write" for node in graph.walk())
        guards = GuardSet(log.reads, args, kwargs, state=[e.tensor for e in entries], writes=writes)
    return ScopeCapture(captured, graph, guards, None if log is None else log.reads)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def capture_within(
    module: torch.nn.Module, forward: _Forward, args: tuple[Any, ...], kwargs: Mapping[str, Any],
    use: Callable[[ScopeCapture], T],
) -> T:  # fmt: skip
    """The same while a program around it is recorded: in a thread of its own, which that recording does not see.

    The forward runs a second time in this thread, unrecorded, so that the recording around it learns what it reads.
    use: what to make of the capture, in that thread, too.
    """
    made: list[T] = []
    failed: list[BaseException] = []
    now = modes()
    with suspended(), _kept() as restore:

        def work() -> None:
            try:
                with _entered(now), (own := Gradients()).watched():
                    captured = capture(forward, args, kwargs, target=module, keep_written=True, specialize=True)
                    restore(captured)
                    made.append(use(ScopeCapture(captured, _graph_of(captured, module, None, own.why))))
                    again.append(captured)
            except BaseException as error:
                failed.append(error)

        again: list[Captured] = []
        thread = threading.Thread(target=work, name="smelt schedule", daemon=True)
        thread.start()
        thread.join()
        for error in failed:
            raise error
        forward(*args, **kwargs)
        restore(again[0])
    return made[0]


@contextlib.contextmanager
def _kept() -> Iterator[Callable[[Captured], None]]:
    """The function puts back what a captured run changed: its state, and the random numbers."""
    # Not by torch's own function, which a recording of what the program reads would take for the program's.
    rng = torch.default_generator.get_state()

    def restore(captured: Captured) -> None:
        torch.default_generator.set_state(rng)
        with torch.no_grad():
            for entry in captured.state.entries.values():
                before = captured.written.get(id(entry.tensor))
                if before is not None:
                    # No new version: who has kept it for a gradient finds what it was.
                    entry.tensor.data.copy_(before)

    yield restore


@contextlib.contextmanager
def _entered(now: Modes) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if now.inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(now.grad))
        for device, dtype in now.autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        yield


def _graph_of(captured: Captured, module: torch.nn.Module, log: ReadLog | None, why: str) -> Graph:
    """The functional graph. Raises: ScheduleError (S0613)."""
    name = type(module).__name__
    hooked = [path for path, part in module.named_modules() if path and has_hooks(part)]
    fix = f"remove the hooks of {', '.join(hooked)}, or select a smaller module" if hooked else ""
    if captured.error is not None:
        raise _refused(name, captured.error.what, captured.error.where, captured.error.why)
    assert captured.graph is not None
    if why:
        raise _refused(name, why, None, fix=fix)
    if captured.conversions:
        first = captured.conversions[0]
        raise _refused(
            name, f"its path depends on data: {first.what}", first.site.span if first.site is not None else None
        )
    is_replayable = log is None or log.is_replayable
    for path, part in module.named_modules():
        for around in arounds(part) if path else ():
            # What a checkpoint computes again is no fact of a functional graph.
            is_lost = isinstance(around, Checkpointed) or not is_replayable
            if around.surrounds and around.what and is_lost:
                raise _refused(name, f"{path} has {around.what}, which would be lost in it", None)
    if log is not None and not log.is_replayable:
        raise _refused(name, f"a graph does not repeat all that it does: {log.why_not()}", log.where, fix=fix)
    try:
        graph, _ = functional_graph(captured.graph, Options(), captured.entangled)
    except SmeltError as error:
        raise _refused(name, error.what, error.where, error.why) from error
    own = set(graph.inputs)
    for node in graph.walk():
        if node.op == "write" and isinstance(node.args[0], Value) and node.args[0] in own:
            raise _refused(name, "it writes into its arguments", node.span)
        if node.regions or node.op == "expect":
            raise _refused(name, "its path depends on data", node.span)
    return graph


def _refused(name: str, what: str, where: Span | None, why: str = "", fix: str = "") -> ScheduleError:
    return ScheduleError(
        f"no step can be applied to the graph of the forward of {name}: {what}", where,
        why=why or "such a step replaces the forward by one straight graph",
        fix=fix or "select a smaller module, in which this does not happen", code="S0613",
    )  # fmt: skip
