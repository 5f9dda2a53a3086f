"""One captured program on its way to native code: graphs, passes, plan, executable, and how long each took."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from time import perf_counter
from typing import Any, Self

import torch

from smelt._torch.autocast import no_autocast
from smelt.analysis.devices import devices_of
from smelt.analysis.gradients import enables_grad
from smelt.capture import Captured
from smelt.capture.dynamic.spec import Spot
from smelt.capture.staging.counters import expects_counts
from smelt.capture.structure.entangled_memory import entangled
from smelt.codegen.llvm.walkers.executor import executor_object
from smelt.codegen.lower import Lowered, lower
from smelt.codegen.lower.products.packs import packs
from smelt.codegen.lower.report import Report
from smelt.codegen.lower.result import Either, Fresh, OfKind, Same, Spent, StateName
from smelt.compiler import kept_plans
from smelt.compiler.copies import copies_of
from smelt.compiler.deciding.ledger import Ledger
from smelt.compiler.kept_plans import KeptPlans
from smelt.compiler.object.compiled_types import Undelivered
from smelt.compiler.object.entry_code import Deliver, Extract, deliverer, extractor
from smelt.compiler.object.old_gradients import letting_go
from smelt.compiler.object.originals import Moved, release
from smelt.compiler.object.output_replay import SHOWING, muted, prints
from smelt.compiler.paths import (
    Outcome,
    check_path,
    draws,
    draws_in_python,
    exchanges,
    expectations,
    is_path,
    other_path,
    outcomes,
)
from smelt.compiler.pipeline import functional_graph, optimized_graph
from smelt.compiler.programs.narrow_layers import (
    NARROW,
    Narrowed,
    allowed_error,
    can_measure,
    narrowed,
    narrowed_alike,
    relative_error,
)
from smelt.compiler.programs.precision import OutputError, Precision, output_errors, why_not_repeatable
from smelt.compiler.sizes.guard_forms import checks_of, forms_of, free_spots
from smelt.compiler.sizes.size_conditions import symbols_in, with_conditions
from smelt.compiler.training.histories import has_history
from smelt.diag import CaptureError, InternalError, Miss, Options, SmeltError, SmeltWarning
from smelt.diag.idle_memory import give_back_freed_memory
from smelt.diag.logs import tell, wants
from smelt.diag.records import record
from smelt.ir import STATE_OPS, DType, Graph, TensorType, Type, Value, values_in
from smelt.ir.types import contiguous_strides
from smelt.ops.convert import type_of
from smelt.ops.effects import effects
from smelt.ops.evaluate import evaluate
from smelt.ops.python.python_draws import Generators
from smelt.passes.layers.explicit_casts import is_casting
from smelt.passes.manager import PassReport
from smelt.passes.sized import Sizes as Symbols
from smelt.runtime.executable import Executable
from smelt.runtime.guarding.guards import Form, SizeCheck
from smelt.runtime.machine.cache import code_cache
from smelt.runtime.plan import PyCall, uses_of

Lookup = Callable[[str, str], torch.Tensor]
_CONTROL = ("if", "for", "while")


@dataclass
class Unit:
    """A captured program. `graph` is made at once; `finish` makes the rest, `run` the answer.

    lookup: (kind, path) -> the live tensor of a parameter, buffer or captured value.
    stages_ms: wall time of each stage of the compilation.
    sample: copies of the inputs of the first call, kept where the program computes in another precision than written.
    narrowed: which of its linear layers are over few bits, where that was asked for and is decided.
    why_paths: why a program whose way depends on data is not one graph for all ways. why_fixed: why sizes and numbers
    that were to be free are not. background: what is left to do when calls are answered already is done in another
    thread. ledger: what plans for further sizes may take.
    why_not_kept: why the plan is not on disk for later processes.
    moved, released_nbytes: what became of the originals of packed weights, where their release was asked for.
    """

    captured: Captured
    options: Options
    lookup: Lookup
    graph: Graph
    passes: list[PassReport] = field(default_factory=list)
    stages_ms: dict[str, float] = field(default_factory=dict)
    optimized: Graph | None = None
    lowered: Lowered | None = None
    sample: list[torch.Tensor] | None = None
    narrowed: Narrowed | None = None
    why_paths: str = ""
    why_fixed: str = ""
    why_not_kept: str = ""
    background: bool = False
    ledger: Ledger | None = None
    moved: Moved | None = None
    released_nbytes: int = 0
    _executable: Executable | None = None
    _ready: _Ready | None = None
    _lowered_before: tuple[Graph | None, Lowered | None] = (None, None)
    _histories: dict[Any, bool] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, captured: Captured, options: Options, lookup: Lookup | None = None) -> Self:
        """The functional graph of a capture that has no error. Raises: the capture's error; SmeltError of a pass."""
        if captured.error is not None:
            raise captured.error
        if captured.graph is None or captured.signature is None:
            raise InternalError(f"the capture of {captured.name} has neither a graph nor an error")
        start = perf_counter()
        symbols = symbols_in(captured)
        with no_autocast():
            graph, records = functional_graph(captured.graph, options, captured.entangled, symbols)
            captured = with_conditions(captured, symbols)
            check_path(graph)
        unit = cls(captured, options, lookup or captured.state.lookup, graph, list(records))
        unit.stages_ms["functionalize"] = _since(start)
        return unit

    @property
    def signature(self) -> Any:
        """How arguments become inputs, and outputs the result."""
        return self.captured.signature

    @property
    def constants(self) -> tuple[torch.Tensor, ...]:
        """State tensors whose contents were baked in; complete after `finish`."""
        if self.lowered is None:
            return ()
        return tuple(self.lookup(name.kind, name.path) for name in self.lowered.constants)

    @property
    def originals(self) -> tuple[torch.Tensor, ...]:
        """State tensors that were folded or packed and that no call reads; complete after lowering."""
        if self.lowered is None:
            return ()
        plan = self.lowered.plan
        used = {slot for instruction in plan.instructions for slot in uses_of(instruction)} | set(plan.outputs)
        read = {t.data_ptr() for slot, t in plan.held if slot in used and t.layout == torch.strided}
        baked = [self.lookup(name.kind, name.path) for name in self.lowered.constants]
        return tuple(tensor for tensor in baked if tensor.data_ptr() not in read)

    @property
    def state(self) -> tuple[torch.Tensor, ...]:
        """All tensors from outside the arguments that the program uses."""
        return tuple(entry.tensor for entry in self.captured.state.entries.values())

    @cached_property
    def places(self) -> tuple[tuple[str, str, Type], ...]:
        """Kind, path and captured type of each tensor of the state that the graph reads."""
        read = (n for n in self.graph.walk() if n.op in STATE_OPS)
        return tuple((n.op, str(n.args[0]), n.result.type) for n in read)

    @cached_property
    def forms(self) -> Mapping[str, Form]:
        """The arguments with free sizes, or that are free numbers, by place."""
        return forms_of(self.captured)

    @cached_property
    def free(self) -> frozenset[Spot]:
        """The sizes and numbers of the arguments that may differ from call to call."""
        return free_spots(self.captured)

    @cached_property
    def checks(self) -> Sequence[SizeCheck]:
        """What free sizes and numbers must fulfil."""
        return checks_of(self.captured)

    @cached_property
    def symbols(self) -> Symbols | None:
        """The symbols in the graph's types, of which passes are to know."""
        return None

    def optimize(self) -> Graph:
        """The graph that runs, after all passes."""
        if self.optimized is None:
            start = perf_counter()
            with no_autocast():
                graph, records = optimized_graph(self.graph, self.options, self.lookup, self.symbols)
                self.optimized = self.narrow(graph)
            self.passes.extend(records)
            self.stages_ms["passes"] = _since(start)
        return self.optimized

    def narrow(self, graph: Graph) -> Graph:
        """An optimized graph with layers over few bits, where these were asked for: decided once, on the sample."""
        if self.options.dtype not in NARROW:
            return graph
        if self.narrowed is not None:
            return narrowed_alike(graph, self.options, self.narrowed)
        made, self.narrowed = narrowed(self.captured.name, graph, self.options, self.lookup, self.sample, self._planned)
        return made

    def _planned(self, graph: Graph) -> Sequence[Any] | None:
        """What the plan of a graph gives for the first call's inputs; the plan is kept for when it is lowered. None
        where it has none by itself, or a run would be seen.
        """
        if self.symbols is not None or self.sample is None or self.is_on_gpu or self.writes:
            return None
        try:
            lowered = lower(graph, self.lookup, self.options, later=True)
            lowered.fills.finish()
            found = self._run_on_sample(Executable(lowered.plan, machine_code(self.options)), lowered)
        except Exception:  # whatever it is, it comes again where the graph that runs is lowered
            return None
        self._lowered_before = graph, lowered
        return found

    @property
    def executable(self) -> Executable | None:
        """What runs the plan, its weights packed; None before it is prepared."""
        if self._executable is not None and self.lowered is not None:
            self.lowered.fills.finish()
        return self._executable

    def prepare(self) -> None:
        """Optimize, lower and load; weights may still have to be packed, which waits for the first run.

        Raises: SmeltError where the graph cannot be lowered (S0303) or a pass fails.
        """
        with self._lock, no_autocast():
            if self._executable is not None:
                return
            self.lowered = letting_go(with_very_tensors(self._kept_or_lowered(), self.captured), self.captured)
            _tell_kernels(self.captured.name, self.lowered)
            start = perf_counter()
            self._executable = Executable(self.lowered.plan, machine_code(self.options))
            self.stages_ms["load"] = _since(start)
            self.let_originals_go()

    def let_originals_go(self) -> None:
        """Where that was asked for, pack one weight after another, and hand back the memory of its original at once."""
        if not self.options.release_originals or self.lowered is None:
            return
        originals = self.originals
        going = {tensor.data_ptr() for tensor in originals}
        self.lowered.fills.finish_by_parts(lambda ts: release(t for t in ts if t.data_ptr() in going))
        # With those that were read for copies of several.
        self.released_nbytes = release(originals)

    def _kept_or_lowered(self) -> Lowered:
        """The plan from disk, where a process has lowered this graph before, else made now and kept there."""
        start = perf_counter()
        # Of sizes that are known at run time only, plans are made from one that is for many.
        is_told = self.symbols is None and self.optimized is None
        kept = KeptPlans.of(self.options) if is_told else None
        key = None if kept is None else kept.key(self.graph)
        if kept is not None and key is not None:
            found = self._kept(kept, key)
            self.stages_ms["plan from disk"] = _since(start)
            if found is not None:
                return found
        start = perf_counter()
        graph = self.optimize()
        lowering = perf_counter()
        before, made = self._lowered_before
        if made is None or before is not graph:
            made = lower(graph, self.lookup, self.options, later=True)
        self._lowered_before = None, None
        self.stages_ms["lower"] = _since(lowering)
        if kept is not None and key is not None and _since(start) >= kept_plans.WORTH_MS:
            start = perf_counter()
            self.why_not_kept = kept.keep(key, made, self.narrowed)
            self.stages_ms["plan to disk"] = _since(start)
        # What it holds on to is not needed any more.
        return replace(made, how_made=None)

    def _kept(self, kept: KeptPlans, key: str) -> Lowered | None:
        """The plan from disk; with layers over few bits only if this process's first call has no greater error."""
        if self.options.dtype not in NARROW:
            return kept.load(key, partial(_optimized, self.graph, self.options, self.lookup), self.lookup)
        known = kept.narrowed(key)
        if known is None or not can_measure(self.graph, self.sample):
            return None
        again = partial(_optimized, self.graph, self.options, self.lookup, known)
        found = kept.load(key, again, self.lookup)
        if found is None:
            return None
        found.fills.finish()
        executable = Executable(found.plan, machine_code(self.options))
        reached = self._greatest_error(executable, found)
        if not reached <= allowed_error(self.options):
            return None
        self.narrowed = replace(known, reached=reached)
        return found

    def _greatest_error(self, executable: Executable, lowered: Lowered) -> float:
        """Of an output on the first call's inputs; infinity where a run fails."""
        try:
            errors = self._errors(executable, lowered)
        except (SmeltError, RuntimeError):  # what the data makes an operator raise
            return inf
        return max((relative_error(one.rms, one.scale, one.nonfinite) for one in errors), default=0.0)

    def _errors(self, executable: Executable, lowered: Lowered) -> tuple[OutputError, ...]:
        """Of the outputs on the first call's inputs, against the program as written."""
        assert self.sample is not None
        inputs = self.sample
        with torch.no_grad():
            expected = evaluate(self.graph, inputs, self.lookup, silent=True)
        found = self._run_on_sample(executable, lowered)
        tensors = [(a, b) for a, b in zip(expected, found, strict=True) if isinstance(a, torch.Tensor)]
        return output_errors(*zip(*tensors, strict=True)) if tensors else ()

    def _run_on_sample(self, executable: Executable, lowered: Lowered) -> Sequence[Any]:
        """The outputs for the first call's inputs."""
        assert self.sample is not None
        with torch.no_grad(), muted():
            return lowered.rebuild(executable.run(self.sample), self.sample, self.lookup)

    @property
    def is_from_disk(self) -> bool:
        """Whether passes and lowering were done by an earlier process; `optimize` then does the passes when asked."""
        return self.lowered is not None and not isinstance(self.lowered.reported, Report)

    def finish(self) -> None:
        """Do all that is to be done before the first run. Raises: as `prepare`."""
        self.prepare()
        assert self.lowered is not None
        start = perf_counter()
        with no_autocast():
            self.lowered.fills.finish()
        self.stages_ms["pack"] = _since(start)

    def pause(self) -> None:
        """Have no thread work at it between calls."""
        if self.lowered is not None:
            self.lowered.fills.pause()

    def with_plan(self, lowered: Lowered, executable: Executable) -> Self:
        """The same program, run by a plan that was made elsewhere."""
        other = copy(self)  # with all that was found out about the graph
        other.lowered, other._executable = with_very_tensors(lowered, self.captured), executable
        other.passes, other.stages_ms, other._ready, other._lock = [], {}, None, threading.Lock()
        return other

    def on_constants(self, watch: Callable[[], bool]) -> None:
        """Nothing to do: `constants` are complete after `finish`."""

    def refresh(self) -> None:
        """Fold and pack anew from the present contents of the state."""
        with self._lock:
            self._executable = self._ready = None
            packs().forget(self.state)
        self.finish()

    @cached_property
    def writes(self) -> bool:
        """Whether a call writes into memory that others see, so that it matters which inputs share some."""
        return any(node.op == "write" or effects(node).writes for node in self.graph.walk())

    @cached_property
    def acts(self) -> bool:
        """Whether a call leaves more than its answer, so that it must not be done twice."""
        leaves = self.writes or self.draws or self.draws_in_python or self.prints
        return leaves or (self.captured.signature is not None and self.captured.signature.puts is not None)

    @property
    def kept_casts(self) -> tuple[torch.Tensor, ...]:
        """Of the state, what only casts are used of that autocast keeps while its caller's region lasts."""
        return tuple(self.lookup(*key) for key in self._kept_casts)

    @cached_property
    def _kept_casts(self) -> tuple[tuple[str, str], ...]:
        if not self.captured.autocast or self.captured.graph is None:
            return ()
        nodes = list(self.captured.graph.walk())
        states = {n.result: (n.op, str(n.args[0])) for n in nodes if n.op in STATE_OPS}
        other = {value for arg in self.captured.graph.outputs for value in values_in(arg)}
        other |= {value for node in nodes if not is_casting(node) for value in node.operands()}
        return tuple(key for value, key in states.items() if value not in other)

    @cached_property
    def enables_grad(self) -> bool:
        """Whether a call may have gradients that its caller did not switch on."""
        return self.captured.graph is not None and enables_grad(self.captured.graph)

    @property
    def nbytes(self) -> int:
        """What its plan holds."""
        return 0 if self.executable is None else self.executable.nbytes

    @property
    def has_gradients(self) -> bool:
        """Whether a result has a history through which autograd goes back to a plan."""
        return False

    def has_history(self, is_enabled: bool, inputs: frozenset[str], state: frozenset[tuple[str, str]]) -> bool:
        """Whether autograd gives a result, or what a call leaves behind, a history.

        is_enabled: the caller's grad mode. inputs, state: names of inputs, and kind and path of state, that require
        gradients.
        """
        key = is_enabled, inputs, state
        if key not in self._histories:
            self._histories[key] = has_history(self.captured, is_enabled, inputs, state)
        return self._histories[key]

    @cached_property
    def is_path(self) -> bool:
        """Whether it holds only for what Python read of data in the recorded run."""
        return is_path(self.graph)

    @cached_property
    def draws(self) -> bool:
        """Whether a call draws random numbers."""
        return draws(self.graph)

    @cached_property
    def draws_in_python(self) -> bool:
        """Whether a call draws from a generator of Python's or NumPy's."""
        return draws_in_python(self.graph)

    @property
    def goes_through_python(self) -> bool:
        """Whether Python goes through parts of the graph: sizes or lists that follow data, draws of its generators."""
        if self.lowered is None or not (self.is_staged or self.draws_in_python):
            return False
        return any(isinstance(step, PyCall) for step in self.lowered.plan.instructions)

    @cached_property
    def is_staged(self) -> bool:
        """Whether the graph has all ways that data may choose, so that paths could stand in its place."""
        return bool(self.captured.conversions) and not (self.is_path or self.prints)

    @cached_property
    def is_on_gpu(self) -> bool:
        """Whether a call computes on a GPU, which may be at work still when it returns."""
        return any(device.startswith("cuda") for device in devices_of(self.graph))

    @cached_property
    def exchanges(self) -> bool:
        """Whether a call talks to other processes."""
        return exchanges(self.graph)

    @cached_property
    def expects_counts(self) -> bool:
        """Whether the graph holds while counters that were one number are."""
        return expects_counts(self.graph)

    @cached_property
    def prints(self) -> bool:
        """Whether a call prints something, or gives a warning."""
        return prints(self.graph)

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What Python read of data in the recorded run, in order."""
        return outcomes(self.captured) if self.is_path else ()

    @cached_property
    def repeats_errors(self) -> bool:
        """Whether the graph raises the program's own errors, and nothing but prints and warnings is seen of it before.

        The program has by then written what it writes first, here all is written last. An operator's error comes to
        that, too.
        """
        nodes = list(self.graph.walk())
        raises = any(node.op in ("py.raise", "py.assert") for node in nodes)
        found = {node: effects(node) for node in nodes if node.op not in (*_CONTROL, "write")}
        raises = raises or any(e.may_throw for e in found.values())
        # What it has printed is not shown again.
        return raises and not any((e.io and node.op not in SHOWING) or e.writes for node, e in found.items())

    @cached_property
    def expectations(self) -> Graph:
        """The part of the graph that tells whether the path holds."""
        return expectations(self.graph)

    def check_sizes(self, inputs: Sequence[Any]) -> None:
        """Raises: CaptureError (S0107) for other sizes than those of the capture."""
        for value, given, place in zip(self.graph.inputs, inputs, self.signature.inputs, strict=True):
            type_ = value.type
            if isinstance(type_, TensorType) and type_.is_static and tuple(given.shape) != type_.sizes:
                raise CaptureError(
                    f"{place} has sizes {list(given.shape)}, the program was captured for {list(type_.sizes)}",
                    why="the captured graph holds for the sizes it was captured with",
                    fix="capture it again for these sizes, or use smelt.compile, which does so by itself",
                    code="S0107",
                )

    def check_inputs(self, inputs: Sequence[Any]) -> None:
        """Whether the graph itself, as captured, holds for so many inputs. Raises: CaptureError (S0107).

        Strides along sizes of 1 may be any.
        """
        wanted = self.graph.inputs
        if len(inputs) != len(wanted):
            names = ", ".join(f"{value.name} ({value.type})" for value in wanted) or "none"
            raise CaptureError(
                f"{len(inputs)} inputs are passed, and the graph takes {len(wanted)}: {names}",
                why="its inputs are the tensors and free numbers of the arguments; all else is part of it",
                fix="give these, or call the program, which takes the arguments themselves",
                code="S0107",
            )
        for value, given, place in zip(wanted, inputs, self.signature.inputs, strict=True):
            type_ = value.type
            # One of unknown rank may be a parameter that a source does not say anything of.
            if isinstance(type_, TensorType) and type_.shape is not None and not isinstance(given, torch.Tensor):
                raise _other(f"{place} is {given!r}", type_, "tensors where it was captured with tensors")
        self.check_sizes(inputs)
        for value, given, place in zip(wanted, inputs, self.signature.inputs, strict=True):
            type_ = value.type
            if not isinstance(type_, TensorType) or not isinstance(given, torch.Tensor):
                continue
            found = type_of(given)
            if type_.dtype not in (DType.UNKNOWN, found.dtype):
                raise _other(f"{place} has dtype {given.dtype}", type_, "the dtypes it was captured with")
            if type_.shape is None:
                continue
            if found.layout != type_.layout:
                raise _other(f"{place} has layout {given.layout}", type_, "the layouts it was captured with")
            if found.layout != "strided" or not given.numel():
                continue
            steps = contiguous_strides(given.shape) if type_.strides is None else self.steps(type_, inputs)
            if any(b not in (None, a) and n != 1 for n, a, b in zip(given.shape, given.stride(), steps, strict=True)):
                has = f"{place} has strides {list(given.stride())}"
                raise _other(has, type_, "tensors with the memory layout of the capture")
        self.check_apart(inputs)

    def steps(self, type_: TensorType, inputs: Sequence[Any]) -> tuple[int | None, ...]:
        """The strides that a tensor of this type has where these are the inputs; None for one that may be any."""
        return tuple(step if isinstance(step, int) else None for step in type_.strides or type_.steps)

    def check_apart(self, inputs: Sequence[Any]) -> None:
        """Raises: CaptureError (S0107) where inputs, or state, share memory that did not, and one is written."""
        written = {n.args[0].name for n in self.graph.walk() if n.op == "write" and isinstance(n.args[0], Value)}
        if written and written & (entangled(self.graph, inputs, self.lookup) - self.captured.entangled):
            raise CaptureError(
                "the graph is of other arguments: here tensors share memory, and the program writes to one",
                why="the graph has writes where they end, which is right for tensors apart",
                fix="call the program itself, which takes any arguments",
                code="S0107",
            )

    def check_outcomes(self, inputs: Sequence[torch.Tensor]) -> None:
        """Compute what Python would read of these inputs, operation by operation, and change nothing.

        Raises: CaptureError (S0101, S0102) where it is not what it read in the recorded run.
        """
        if not self.is_path:
            return
        before = Generators() if self.draws else None
        try:
            with torch.no_grad():
                evaluate(self.expectations, inputs, self.lookup)
        except Miss as miss:
            raise other_path(miss, self.outcomes) from None
        finally:
            if before is not None:
                before.restore()

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The program's answer for arguments that fit.

        Raises: SmeltError (S0401, S0403) where a native call fails; Miss where this is a path and the call takes
            another one: then nothing has happened; Undelivered where all has.
        """
        if not (
            self.is_path or self.repeats_errors or (self.draws and self.captured.conversions) or self.draws_in_python
        ):
            return self._run(args, kwargs)
        before = Generators() if self.draws else None
        try:
            return self._run(args, kwargs)
        except Undelivered:  # all of it has happened, draws too
            raise
        except Exception as error:
            # On data of another path an operator may fail before it is known that the path does not fit.
            if before is not None:
                before.restore()
            if isinstance(error, Miss) or not self.is_path:
                raise
            raise Miss("a run to its end", f"{type(error).__name__}: {error}") from error

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        ready, is_first = self._ready, self._ready is None
        if ready is None:
            ready = self._make_ready(args, kwargs)
            self.keep_sample(ready.extract(args, kwargs))
        inputs = ready.extract(args, kwargs)
        results = ready.executable.run(inputs)
        if is_first:
            give_back_freed_memory()  # what eager's calls left is of no use to the calls that follow
        try:
            return ready.deliver(results, inputs, args, kwargs)
        except Exception as error:
            if self.acts:
                raise Undelivered(error) from error
            raise

    def keep_sample(self, inputs: Sequence[torch.Tensor]) -> None:
        """Remember the inputs of the first call where its errors may be asked for."""
        if self.options.dtype != "default" and self.sample is None:
            self.sample = copies_of(inputs)

    def precision(self) -> Precision | None:
        """The errors against the program as written, on the first call's inputs, measured now; None where nothing was
        called yet or the program computes as written.
        """
        if self.sample is None or self.executable is None or self.lowered is None:
            return None
        why_not = why_not_repeatable(self.graph)
        if why_not:
            return Precision(why_not=why_not)
        try:
            return Precision(self._errors(self.executable, self.lowered))
        except (SmeltError, RuntimeError) as error:  # what the data makes an operator raise
            return Precision(why_not=f"running it again failed: {error}")

    def _make_ready(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Ready:
        self.finish()
        with self._lock:
            assert self.executable is not None and self.lowered is not None and self.captured.signature is not None
            signature = self.captured.signature
            self._ready = _Ready(
                extractor(signature, args, kwargs),
                self.executable,
                deliverer(signature, self.lowered, self.lookup),
            )
            return self._ready


@record
class _Ready:
    """What a call needs, replaced as a whole so that threads never see half of it."""

    extract: Extract
    executable: Executable
    deliver: Deliver


def _other(has: str, type_: TensorType, what: str) -> CaptureError:
    return CaptureError(
        f"{has}, the program was captured for {type_}",
        why=f"the captured graph holds for {what}",
        fix="call the program, or smelt.compile's result, which is captured again for others",
        code="S0107",
    )


def _optimized(graph: Graph, options: Options, lookup: Lookup, known: Narrowed | None = None) -> Graph:
    """As `Unit.optimize`, for what must not hold the unit."""
    found = optimized_graph(graph, options, lookup)[0]
    return found if known is None else narrowed_alike(found, options, known)


def with_very_tensors(lowered: Lowered, captured: Captured) -> Lowered:
    """Outputs that were the very objects of inputs or state in the recorded run are so in each run, and those that
    were inference tensors by the program's own mode are such.
    """
    outputs = list(lowered.outputs)
    for number, source in captured.returned.items():
        outputs[number] = Same(source if isinstance(source, int) else StateName(*source))
    for number, inference in captured.kinds.items():
        recipe = outputs[number]
        if isinstance(recipe, (Fresh, Either)):
            outputs[number] = OfKind(recipe, inference)
    for number in captured.spent:
        recipe = outputs[number]
        if isinstance(recipe, (Fresh, Either)):
            outputs[number] = Spent(recipe)
    return replace(lowered, outputs=tuple(outputs))


def _tell_kernels(name: str, lowered: Lowered) -> None:
    """Log each kernel that a plan launches (SMELT_LOGS)."""
    if wants("kernels"):
        for kernel in lowered.report.kernels:
            what = kernel.label or ", ".join(kernel.nodes)
            where = f", {', '.join(kernel.where)}" if kernel.where else ""
            tell("kernels", f"{name}: {what}, {kernel.nbytes:,} bytes, {kernel.flops:,} operations{where}")


def machine_code(options: Options) -> bytes | None:
    """The executor's object code; None, with a warning, where it cannot be built: plans then run in Python.

    Raises: the failure itself in strict mode.
    """
    try:
        return executor_object(code_cache(options.cache_dir, options.cache_limit_mb), profile=options.profile)
    except Exception as error:  # whatever LLVM or its absence raises, the answer must still come
        if options.strict:
            raise
        warnings.warn(
            f"native code cannot be made here ({type(error).__name__}: {error}); plans run in Python, with the same "
            "results",
            SmeltWarning,
            stacklevel=2,
        )
        return None


def _since(start: float) -> float:
    return round((perf_counter() - start) * 1000, 3)
