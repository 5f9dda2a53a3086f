"""One run of the benchmark: for each dtype and model, start-ups in fresh processes, then all systems side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from pathlib import Path

import torch
from torch import Tensor

from smelt.bench import floors, measure
from smelt.bench.accuracy import compare, reference
from smelt.bench.competing import competing_process
from smelt.bench.harvest import Product, harvest, total_flops
from smelt.bench.measure import BudgetExceededError, Plan, Timing, deadline, describe_error
from smelt.bench.models import Model, Target, flatten
from smelt.bench.quiet import quiet
from smelt.bench.rows import Row, machine
from smelt.bench.startup import startup_pair
from smelt.bench.systems import DTYPES, PRODUCTS, Context, Ready, System, load_modules, missing
from smelt.codegen.llvm.fma_peak import FmaPeak, measure_fma_peak
from smelt.diag.records import record

EAGER = "eager"
_READY_S = {
    EAGER: 0.1, "smelt": 1.5, "onnxruntime": 6.0, "openvino": 4.0, "inductor": 25.0, "inductor-max": 90.0,
    "zentorch": 25.0, "ctranslate2": 3.0,
}  # fmt: skip
_READY_ELSE_S, _PROCESS_S, _ROUND_S = 20.0, 8.0, 0.2
"""Seconds: until systems are ready for a model, of a process that starts, of a round of a model of middle size."""
_ONE_THREAD_REPEATS = 5
_WARM_UP_CALLS = 3
_LEAST_LEFT = 0.4  # of a run's limit: what must be left for another model


@record
class Suite:
    """What to run. `cold` are the names of the systems whose start-up is measured; `one_thread` adds that column.

    `prepare_budget_s` bounds each preparation and each start-up process; `limit_s` the whole run: a model that may not
    be done by then is not begun. `competing` keeps one core busy with another
    process while systems are timed (with all threads; start-ups and one thread are measured undisturbed).
    """

    models: tuple[Model, ...]
    systems: tuple[System, ...]
    dtypes: tuple[str, ...] = ("f32",)
    threads: int = 2
    plan: Plan = field(default_factory=Plan)
    cold: frozenset[str] = frozenset()
    one_thread: bool = True
    prepare_budget_s: float = 300.0
    competing: bool = False
    limit_s: float | None = None

    def systems_for(self, dtype: str) -> tuple[System, ...]:
        """The systems that take part in the rows of a dtype."""
        return tuple(s for s in self.systems if dtype in s.dtypes)

    def estimate_s(self) -> float:
        """About how long it takes, in seconds, from what systems have been seen to take to get ready."""
        seconds = 0.0
        for dtype in self.dtypes:
            for system in self.systems_for(dtype):
                ready = _READY_S.get(system.name, _READY_ELSE_S)
                round_s = 1e-3 * self.plan.rest_ms + max(2e-3 * self.plan.sample_ms, _ROUND_S)
                timing = min(self.plan.budget_s, self.plan.repeats * round_s)
                each = ready + timing * (1.25 if self.plan.blocks else 1)
                each += ready + timing / 4 if self.one_thread else 0.0
                each += 2 * (ready + _PROCESS_S) if system.name in self.cold else 0.0
                seconds += each * len(self.models)
        return seconds if self.limit_s is None else min(seconds, self.limit_s)

    def steps_per_model(self) -> int:
        """At most so many times `Watch.step` is called for one model and dtype."""
        cold = sum(s.name in self.cold for s in self.systems)
        steps = cold + len(self.systems) + 2
        return steps + len(self.systems) + 1 if self.one_thread else steps


@record
class Watch:
    """Who follows a run: `step(text)` before each step with what it is about to do, `left_out(model)` for each model
    that the run's limit leaves no time for.
    """

    step: Callable[[str], None] = lambda text: None
    left_out: Callable[[str], None] = lambda model: None


def run(suite: Suite, watch: Watch | None = None) -> Iterator[list[Row]]:
    """Measure, yielding the rows of one model at a time so that what is done can be kept.

    The thread count of torch is set, and put back at the end.
    """
    watch, peaks = watch or Watch(), _PeakMeter()
    threads_before = torch.get_num_threads()
    begin, longest = time.monotonic(), 0.0
    with quiet():
        load_modules(suite.systems)
    try:
        for dtype in suite.dtypes:
            for model in suite.models:
                start = time.monotonic()
                if suite.limit_s is not None:
                    left_s = suite.limit_s - (start - begin)
                    if left_s < max(_LEAST_LEFT * suite.limit_s, longest):
                        watch.left_out(model.name)
                        continue
                    budget_s = left_s / (len(suite.systems) + 1)
                    suite = dataclasses.replace(suite, prepare_budget_s=min(suite.prepare_budget_s, budget_s))
                with torch.no_grad():
                    yield _ModelRun(suite, model, dtype, watch, peaks).rows()
                longest = max(longest, time.monotonic() - start)
                gc.collect()
    finally:
        torch.set_num_threads(threads_before)


@record
class _Inputs:
    """A model built, with eager's outputs and those of float64."""

    target: Target
    args: tuple[Tensor, ...]
    eager: tuple[Tensor, ...]
    exact: tuple[Tensor, ...]


def _inputs(model: Model, dtype: str) -> _Inputs:
    target, args = model.build(DTYPES[dtype])
    eager = tuple(t.clone() for t in flatten(target(*args)))
    return _Inputs(target, args, eager, reference(model, DTYPES[dtype]))


class _PeakMeter:
    """The best peak of fused multiply-adds seen so far in a run, by thread count: what disturbs only lowers it."""

    def __init__(self) -> None:
        self.best: dict[int, FmaPeak] = {}

    def sample(self, threads: int) -> FmaPeak:
        """Measure once more (about 0.1 s); the best so far."""
        peaks = [measure_fma_peak(threads), *filter(None, [self.best.get(threads)])]
        self.best[threads] = max(peaks, key=lambda p: p.gflops)
        return self.best[threads]


class _ModelRun:
    """All measurements of one model in one dtype; `table` and `floor_rows` fill up as they are made."""

    def __init__(self, suite: Suite, model: Model, dtype: str, watch: Watch, peaks: _PeakMeter) -> None:
        self.suite, self.model, self.dtype, self.watch, self.peaks = suite, model, dtype, watch, peaks
        self.systems = suite.systems_for(dtype)
        self.table = {s.name: self._new_row(s.name) for s in self.systems}
        self.floor_rows = {name: self._new_row(name) for name in (floors.GEMM_LIBRARY, floors.FMA_FLOOR)}

    def _new_row(self, name: str) -> Row:
        return Row(self.model.name, name, self.dtype, competing=self.suite.competing)

    def rows(self) -> list[Row]:
        """Measure everything, in the order start-ups, all threads, one thread."""
        load = measure.load_average()
        if absent := missing(self.model.needs):
            self._fail_all(f"the model: {absent}")
            return self._finished(load)
        with tempfile.TemporaryDirectory(prefix="smelt-bench-", ignore_cleanup_errors=True) as scratch:
            self._startups(Path(scratch))
            try:
                with quiet():
                    inputs = _inputs(self.model, self.dtype)
            except Exception as error:
                self._fail_all(f"the model cannot be built: {describe_error(error)}")
                return self._finished(load)
            floor_ready = self._all_threads(inputs, Path(scratch))
            if self.suite.one_thread:
                self._one_thread(inputs, floor_ready, Path(scratch))
        return self._finished(max(load, measure.load_average()))

    def _fail_all(self, why: str) -> None:
        for row in (*self.table.values(), *self.floor_rows.values()):
            row.note(why)

    def _finished(self, load: float) -> list[Row]:
        rows = [*self.table.values(), *self.floor_rows.values()]
        plan = dataclasses.asdict(self.suite.plan)
        for row in rows:
            row.load_average = load
            row.settings = {
                "threads": self.suite.threads, "dtype": self.dtype, **row.settings,
                "timing": {"order": "interleaved", **plan}, "machine": machine(),
            }  # fmt: skip
        return rows

    def _startups(self, scratch: Path) -> None:
        for system in self.systems:
            if system.name not in self.suite.cold:
                continue
            self.watch.step(f"{self.model.name}: start-up of {system.name}")
            row, cache = self.table[system.name], _cache(scratch, system, self.suite.threads)
            if missing(system.packages):
                continue
            pair = startup_pair(
                self.model.name, system.name, self.suite.threads, self.dtype, cache, self.suite.prepare_budget_s
            )
            if pair.cold is not None:
                row.cold_s, row.cold_cpu_s, row.import_s = pair.cold.cold_s, pair.cold.cold_cpu_s, pair.cold.import_s
                row.peak_mb, row.base_mb = pair.cold.peak_mb, pair.cold.base_mb
            if pair.warm is not None:
                row.warm_start_s = pair.warm.cold_s
            if pair.error:
                row.note(pair.error)

    def _prepare(self, system: System, inputs: _Inputs, threads: int, scratch: Path) -> Ready | str:
        """The system ready and warmed up, or why it is not."""
        if absent := missing(system.packages):
            return absent
        context = Context(threads, self.dtype, _cache(scratch, system, threads))
        try:
            with quiet(), deadline(self.suite.prepare_budget_s):
                ready = system.prepare(inputs.target, inputs.args, context)
                for _ in range(_WARM_UP_CALLS):
                    ready.call(*ready.args)
            return ready
        except (Exception, BudgetExceededError) as error:
            return describe_error(error)

    def _prepare_all(self, systems: Sequence[System], inputs: _Inputs, threads: int, scratch: Path) -> dict[str, Ready]:
        """The systems that work; the rows of the others say why not."""
        torch.set_num_threads(threads)
        ready: dict[str, Ready] = {}
        for system in systems:
            self.watch.step(f"{self.model.name}: preparing {system.name}, {_threads_text(threads)}")
            prepared = self._prepare(system, inputs, threads, scratch)
            if isinstance(prepared, Ready):
                ready[system.name] = prepared
            else:
                self.table[system.name].note(prepared if threads == self.suite.threads else f"one thread: {prepared}")
        return ready

    def _all_threads(self, inputs: _Inputs, scratch: Path) -> dict[str, Ready]:
        """Interleaved times, errors and floors at the full thread count; the floors, to be timed again."""
        ready = self._prepare_all(self.systems, inputs, self.suite.threads, scratch)
        self._check_outputs(ready, inputs)
        self.watch.step(f"{self.model.name}: roofline bounds")
        flops, floor_ready = self._floors(inputs)
        self.watch.step(f"{self.model.name}: measuring, {_threads_text(self.suite.threads)}")
        inner = _inner(inputs, self.suite.plan)
        running = {**ready, **floor_ready}
        self.peaks.sample(self.suite.threads)
        disturbance = competing_process() if self.suite.competing else contextlib.nullcontext()
        with disturbance as core:
            timings = measure.interleave(running, self.suite.plan, inner)
        for name, timing in timings.items():
            row = self._row(name)
            _fill(row, timing, timings.get(EAGER))
            row.settings |= {**running[name].settings, "inner_calls": inner}
            row.settings |= {"competing_core": core} if self.suite.competing else {}
        if flops:
            self._fill_fma_floor(flops, timings.get(EAGER))
        self._forget()
        return floor_ready

    def _row(self, name: str) -> Row:
        return self.table[name] if name in self.table else self.floor_rows[name]

    def _check_outputs(self, ready: dict[str, Ready], inputs: _Inputs) -> None:
        """Compare every system's outputs with eager's and float64's; one with other shapes is taken out.

        A peer's export may have replaced what a module holds (the lists of a recurrent layer's weights) since a system
        was prepared: its next call compiles, and the one after that is what is measured.
        """
        for name in list(ready):
            try:
                ready[name].call(*ready[name].args)
                accuracy = compare(outputs_of(ready[name]), inputs.eager, inputs.exact)
            except Exception as error:
                self.table[name].note(describe_error(error))
                del ready[name]
                continue
            row = self.table[name]
            row.max_abs_err, row.rms_err = accuracy.max_abs_err, accuracy.rms_err
            row.eager_rms_err, row.rms_ratio = accuracy.eager_rms_err, accuracy.rms_ratio
        self._fill_training_facts(ready)

    def _fill_training_facts(self, ready: dict[str, Ready]) -> None:
        """What a step of training keeps for its backward, and its losses beside eager's."""
        facts = {name: one.facts() for name, one in ready.items() if one.facts is not None}
        for name, found in facts.items():
            row, losses = self.table[name], found["losses"]
            row.saved_mb, row.settings["losses"] = found["saved_mb"], losses
            if EAGER in facts:
                pairs = zip(losses, facts[EAGER]["losses"], strict=True)
                row.loss_gap = max(abs(a - b) / max(abs(b), 1e-30) for a, b in pairs)

    def _floors(self, inputs: _Inputs) -> tuple[int, dict[str, Ready]]:
        """The operations of the model's products, and the floors that are timed like systems."""
        try:
            products = harvest(inputs.target, inputs.args)
        except Exception as error:
            for row in self.floor_rows.values():
                row.note(describe_error(error))
            return 0, {}
        if products:
            flops = total_flops(products)
            return flops, {**self._library_floor(products), **self._read_floor(products, flops)}
        for row in self.floor_rows.values():
            row.note("no matrix product or convolution: see copy-floor")
        self.floor_rows[floors.COPY_FLOOR] = self._new_row(floors.COPY_FLOOR)
        return 0, {floors.COPY_FLOOR: floors.copy_of_same_bytes(inputs.args, inputs.eager)}

    def _read_floor(self, products: Sequence[Product], flops: int) -> dict[str, Ready]:
        """A pass over the weights, where a run reads more bytes of them than it does operations."""
        nbytes = floors.weight_nbytes(products, PRODUCTS[self.dtype])
        if flops > nbytes:
            return {}
        self.floor_rows[floors.READ_FLOOR] = self._new_row(floors.READ_FLOOR)
        return {floors.READ_FLOOR: floors.read_of_same_bytes(nbytes)}

    def _library_floor(self, products: Sequence[Product]) -> dict[str, Ready]:
        """The products as library calls; empty, with the reason in the row, where the library refuses one."""
        try:
            library = floors.gemm_library(products, PRODUCTS[self.dtype])
            outputs_of(library)
        except Exception as error:
            self.floor_rows[floors.GEMM_LIBRARY].note(describe_error(error))
            return {}
        return {floors.GEMM_LIBRARY: library}

    def _fill_fma_floor(self, flops: int, eager: Timing | None) -> None:
        """The operations at the peak rate, measured before and after the systems' own times."""
        for each in (*self.table.values(), *self.floor_rows.values()):
            each.gflop = flops / 1e9
        row = self.floor_rows[floors.FMA_FLOOR]
        if self.dtype != "f32":
            row.note("the peak is measured for f32 only")
            return
        peak = self.peaks.sample(self.suite.threads)
        row.median_ms = flops / peak.gflops / 1e6
        row.settings = {"peak_gflops": peak.gflops, "vector_lanes": peak.lanes}
        if self.suite.one_thread:
            single = self.peaks.sample(1)
            row.one_thread_ms = flops / single.gflops / 1e6
            row.settings["one_thread_peak_gflops"] = single.gflops
        if eager is not None and eager.median_ms:
            row.ratio_to_eager = eager.median_ms / row.median_ms

    def _one_thread(self, inputs: _Inputs, floor_ready: dict[str, Ready], scratch: Path) -> None:
        """The same systems prepared anew for one thread, fewer rounds; only what worked before."""
        working = [s for s in self.systems if self.table[s.name].median_ms is not None]
        repeats = min(_ONE_THREAD_REPEATS, self.suite.plan.repeats)
        plan = dataclasses.replace(self.suite.plan, repeats=repeats, blocks=False)
        ready = self._prepare_all(working, inputs, 1, scratch)
        self.watch.step(f"{self.model.name}: measuring, one thread")
        timings = measure.interleave({**ready, **floor_ready}, plan, _inner(inputs, plan))
        for name, timing in timings.items():
            row = self._row(name)
            row.one_thread_ms = timing.median_ms
            row.one_thread_ratio = timing.ratio_to(timings[EAGER]) if EAGER in timings else None
        self._forget()

    def _forget(self) -> None:
        """Drop what the systems hold in global state (code compiled for another thread count)."""
        for system in self.systems:
            if system.forget is not None:
                system.forget()
        gc.collect()


def outputs_of(ready: Ready) -> tuple[Tensor, ...]:
    """The tensors of one call."""
    return ready.outputs(ready.call(*ready.args))


def _threads_text(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def _cache(scratch: Path, system: System, threads: int) -> Path:
    """The cache directory of a system; apart by thread count, which compiled code may have baked in."""
    path = scratch / f"{system.name}-{threads}"
    path.mkdir(exist_ok=True)
    return path


def _inner(inputs: _Inputs, plan: Plan) -> int:
    """Calls per sample, the same for all systems, from eager's own time."""
    once = statistics.median(measure.call_ms(inputs.target, inputs.args, 1) for _ in range(3))
    return measure.inner_calls(once, plan.sample_ms)


def _fill(row: Row, timing: Timing, eager: Timing | None) -> None:
    """A row's times from its series."""
    row.median_ms, row.p20_ms, row.blocks_ms = timing.median_ms, timing.p20_ms, timing.blocks_ms
    row.faults_per_call = timing.faults_per_call
    row.ratio_to_eager = timing.ratio_to(eager) if eager is not None else None
    row.settings["rounds"] = len(timing.samples_ms)
    if timing.error:
        row.note(timing.error)
