"""How products, convolutions and attention of a GPU are computed: by which tile of our kernels, or by torch's operator.

    %1 = linear(%x, %w); %2 = gelu(%1)      ==>      rule 20.1 us; 128x128x64 17.4 us; torch's linear, then gelu 19.0 us

Each way is compiled, and timed by events on the GPU, for at most so many seconds of a compilation, the largest products
first; what no time is left for is computed as the rule says. A choice is kept in the cache of machine code, by all that
it depends on; sizes count up to the next power of two, so that a length that grows by one is not measured anew.
Invariant: no result depends on how long something took, but for the order of floating-point sums.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, Final, TypeAlias

import torch

from smelt._torch import gpu
from smelt.analysis import used_values
from smelt.autodiff.halves import extract
from smelt.codegen.lower.gpu.program import GpuKernel, GpuProgram
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.lower.report import CandidateReport, ChoiceReport
from smelt.codegen.triton.compile import TRITON, compile_cuda
from smelt.codegen.triton.contraction import Tile
from smelt.codegen.triton.kernel import TritonKernel
from smelt.codegen.triton.layout import power_of_two
from smelt.diag import InternalError, SmeltError
from smelt.diag.records import record
from smelt.ir import DType, Graph, Node, TensorType, Value
from smelt.ops.convert import dtype_to_torch
from smelt.ops.evaluate import evaluate, no_state
from smelt.runtime.cuda.code import CudaCode
from smelt.runtime.cuda.executable import CudaExecutable
from smelt.runtime.cuda.machine import Machine
from smelt.runtime.cuda.plan import CudaLaunch, CudaMemory, CudaPlan, predecessors
from smelt.runtime.cuda.timing import FAILURES, Stopwatch, Work, filled, filled_memory, said
from smelt.runtime.machine.cache import CodeCache

RULE: Final = "rule"
LIBRARY: Final = "library"
_BOUNDARY_US = 5.0
"""What an operator of torch between launches costs beside its own time: a call of Python, and one more launch."""
_VERSION = "1"

Blocks: TypeAlias = tuple[int, int, int, int]
CudaCodes: TypeAlias = dict[str, CudaCode]


@record
class Way:
    """How something is computed: by kernels with a tile, or with blocks of attention, by the rule where neither is
    given, or by torch's operator.
    """

    tile: Tile | None = None
    blocks: Blocks | None = None
    is_library: bool = False

    @property
    def name(self) -> str:
        """What a report calls it."""
        if self.is_library:
            return LIBRARY
        if self.tile is not None:
            return f"{self.tile.r}x{self.tile.b}x{self.tile.k}, {self.tile.warps} warps, {self.tile.stages} ahead"
        if self.blocks is not None:
            return "{}x{}, {} warps, {} ahead".format(*self.blocks)
        return RULE

    @staticmethod
    def read(data: Mapping[str, Any]) -> Way:
        """What `asdict` wrote. Raises: KeyError, TypeError."""
        tile, blocks = data["tile"], data["blocks"]
        r = Tile(**tile) if tile is not None else None
        return Way(r, tuple(blocks) if blocks is not None else None, bool(data["is_library"]))


BY_RULE: Final = Way()
BY_LIBRARY: Final = Way(is_library=True)


@record
class Launched:
    """A kernel of a trial: its buffers by name, their elements, and the positions of what it writes."""

    kernel: TritonKernel
    buffers: tuple[Any, ...]
    dtypes: tuple[DType, ...]
    writes: tuple[int, ...]


@record
class Trial:
    """What is to be chosen.

    shape: for people. nodes: what is computed, of `graph`. kernels: the launches for a way. ways: those worth timing
    beside the rule's. nbytes: of buffers, by name. library: the nodes that torch would compute; none if it cannot.
    rest: the kernels of a graph of the other nodes. work: operations, or what else says which trial counts most.
    """

    shape: str
    graph: Graph
    nodes: tuple[Node, ...]
    kernels: Callable[[Way], Sequence[Launched]]
    ways: tuple[Way, ...]
    nbytes: Callable[[Any], int]
    library: tuple[Node, ...]
    rest: Callable[[Graph], GpuProgram]
    work: int

    def key(self, machine: Machine) -> str:
        """Stands for all that the choice depends on."""
        kernels = [(one.kernel.source.digest, *map(power_of_two, one.kernel.words)) for one in self.kernels(BY_RULE)]
        parts = (
            _VERSION, TRITON, torch.__version__, machine.arch, machine.processors, kernels, self.ways,
            [node.op for node in self.nodes], [node.op for node in self.library],
        )  # fmt: skip
        return hashlib.sha256(repr(parts).encode()).hexdigest()


@record
class _Known:
    way: Way
    report: ChoiceReport


@dataclass(slots=True)
class Chooser:
    """The choices of one compilation.

    seconds: what is left of them. always: torch's operator wherever it can compute something, and nothing timed. known,
    wanted: trials by key. uses: how many nodes ask for each since `begin`; given: how many torch computes.
    """

    machine: Machine
    cache: CodeCache
    seconds: float
    always: bool = False
    known: dict[str, _Known] = field(default_factory=dict)
    wanted: dict[str, Trial] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """What asks from now on asks anew."""
        self.uses.clear()

    def give(self) -> None:
        """What torch computes is its own from now on, and asks no more."""
        for key, count in self.uses.items():
            if key in self.known and self.known[key].way.is_library:
                self.given[key] = self.given.get(key, 0) + count

    def way(self, trial: Trial) -> Way:
        """How a trial's nodes are computed: as was chosen, else by the rule until `measure` was called."""
        if self.always:
            return BY_LIBRARY if trial.library else BY_RULE
        key = trial.key(self.machine)
        self.uses[key] = self.uses.get(key, 0) + 1
        if key not in self.known:
            kept = _read(self.cache.get(key))
            if kept is None:
                self.wanted.setdefault(key, trial)
                return BY_RULE
            self.known[key] = kept
        return self.known[key].way

    def measure(self) -> bool:
        """Measure what is wanted, as far as time goes; whether something is to be computed otherwise than by rule."""
        if not self.wanted:
            return False
        trials = sorted(self.wanted.items(), key=lambda item: -item[1].work * self.uses.get(item[0], 1))
        self.wanted.clear()
        begin = perf_counter()
        watch: Stopwatch | None = None
        for key, trial in trials:
            reason = "rule: no time was left to measure"
            if perf_counter() - begin < self.seconds and not gpu.is_capturing():
                try:
                    watch = watch or Stopwatch(self.machine)
                    self.known[key] = found = _measured(trial, watch)
                    self.cache.put(key, _written(found))
                    continue
                except FAILURES as error:
                    reason = f"rule: {said(error)}"
            self.known[key] = _Known(BY_RULE, ChoiceReport(trial.shape, RULE, (CandidateReport(RULE, None),), reason))
        self.seconds -= perf_counter() - begin
        return any(self.known[key].way != BY_RULE for key, _ in trials)

    def reports(self) -> tuple[ChoiceReport, ...]:
        """What was chosen, for the report."""
        counts = self.given | {key: count for key, count in self.uses.items() if key in self.known}
        return tuple(replace(self.known[key].report, nodes=count) for key, count in counts.items())


def _measured(trial: Trial, watch: Stopwatch) -> _Known:
    """The fastest way. Raises: SmeltError where none runs, RuntimeError of torch."""
    works: dict[Way, Work] = {}
    failed: dict[str, str] = {}
    owners: list[CudaExecutable] = []
    machine = watch.machine
    for way, codes in _compiled(trial, machine, failed).items():
        try:
            work, executable = _own(trial.kernels(way), codes, trial.nbytes, machine)
        except FAILURES as error:
            failed[way.name] = said(error)
            continue
        owners.append(executable)
        works[way] = work
    if trial.library:
        try:
            works[BY_LIBRARY] = _library(trial, machine, owners)
        except FAILURES as error:
            failed[LIBRARY] = said(error)
    try:
        by_name = {way.name: way for way in works}
        times, why = watch.compare({way.name: work for way, work in works.items()})
    finally:
        for executable in owners:
            executable.close()
    failed |= why
    if LIBRARY in times:
        times[LIBRARY] += _BOUNDARY_US
    if not times:
        raise SmeltError(f"no candidate for {trial.shape} runs: {next(iter(failed.values()), '')}", code="S0405")
    best = min(times, key=lambda name: times[name])
    candidates = [CandidateReport(name, round(us, 3)) for name, us in sorted(times.items(), key=lambda item: item[1])]
    candidates += [CandidateReport(f"{name} ({text})", None) for name, text in failed.items()]
    return _Known(by_name[best], ChoiceReport(trial.shape, best, tuple(candidates), "measured"))


def _compiled(trial: Trial, machine: Machine, failed: dict[str, str]) -> dict[Way, CudaCodes]:
    """The machine code of each way, all compiled side by side; those that the compiler refuses are left out."""
    kernels = {way: [one.kernel.source for one in trial.kernels(way)] for way in (BY_RULE, *trial.ways)}
    try:
        codes = compile_cuda([s for sources in kernels.values() for s in sources], machine.arch)
        return {way: {s.name: codes[s.name] for s in sources} for way, sources in kernels.items()}
    except InternalError:
        found = {}
        for way, sources in kernels.items():
            try:
                found[way] = compile_cuda(sources, machine.arch)
            except InternalError as error:
                failed[way.name] = said(error)
        return found


def _own(
    launches: Sequence[Launched], codes: CudaCodes, nbytes: Callable[[Any], int], machine: Machine
) -> tuple[Work, CudaExecutable]:
    """Work that launches kernels over memory of its own."""
    numbers: dict[Any, int] = {}
    dtypes: dict[int, DType] = {}
    for one in launches:
        for name, dtype in zip(one.buffers, one.dtypes, strict=True):
            dtypes.setdefault(numbers.setdefault(name, len(numbers)), dtype)
    memories = tuple(CudaMemory("argument", k, nbytes(name)) for name, k in numbers.items())
    kernels = [
        CudaLaunch(
            one.kernel.source.name, tuple(numbers[b] for b in one.buffers), one.kernel.words, one.kernel.programs,
            one.writes,
        )
        for one in launches
    ]  # fmt: skip
    after = predecessors(memories, kernels)
    ordered = tuple(replace(launch, after=before) for launch, before in zip(kernels, after, strict=True))
    plan = CudaPlan(tuple(codes.values()), memories, ordered, 0)
    tensors = [filled_memory(m.nbytes, dtype_to_torch(dtypes[m.number]), machine.index) for m in memories]
    executable = CudaExecutable(plan, machine.driver, machine.allocate, machine.index, machine.modules)
    return partial(_launch, executable, tensors, machine.index), executable


def _launch(executable: CudaExecutable, tensors: Sequence[torch.Tensor], index: int) -> None:
    executable.run([tensor.data_ptr() for tensor in tensors], (), (), gpu.stream_of(index))


def _library(trial: Trial, machine: Machine, owners: list[CudaExecutable]) -> Work:
    """Work by torch's operators, and by a launch of what stands around them."""
    inside = set(trial.library)
    inputs = list(dict.fromkeys(v for node in trial.library for v in used_values(node) if v.node not in inside))
    outputs = [result for node in trial.library for result in node.results]
    alone = extract(trial.graph, "library", inputs, outputs, ())
    given = [_tensor(value, machine.index) for value in inputs]
    run = partial(evaluate, alone, given, no_state)
    run()
    others = [node for node in trial.nodes if node not in inside]
    if not others:
        return run
    made = {result for node in others for result in node.results}
    taken = list(dict.fromkeys(v for node in others for v in used_values(node) if v not in made))
    wanted = [v for v in made if any(user not in others for user in v.users)]
    program = trial.rest(extract(trial.graph, "rest", taken, wanted, ()))
    plan = program.compiled(machine.arch)
    tensors = {
        kind: [
            filled_memory(m.nbytes, torch.uint8, machine.index)
            for m in sorted((m for m in plan.memories if m.kind == kind), key=lambda m: m.number)
        ]
        for kind in ("argument", "state", "result")
    }
    executable = CudaExecutable(plan, machine.driver, machine.allocate, machine.index, machine.modules)
    owners.append(executable)
    arguments, state, results = ([t.data_ptr() for t in found] for found in tensors.values())

    def both() -> None:
        run()
        executable.run(arguments, state, results, gpu.stream_of(machine.index))
        assert tensors  # its memory lives as long as the work

    return both


def _tensor(value: Value, index: int) -> Any:
    if not isinstance(value.type, TensorType):
        raise SmeltError(f"%{value.name} is a number of the host", code="S0303")
    at = Geometry.of(value.type)
    return filled(at.sizes, at.strides, at.extent, dtype_to_torch(value.type.dtype), index)


# --- what is kept


def _written(known: _Known) -> bytes:
    return json.dumps({"way": asdict(known.way), "report": asdict(known.report)}).encode()


def _read(data: bytes | None) -> _Known | None:
    """What was kept; None where it is nothing of the kind."""
    try:
        found = json.loads(data or b"")
        report = found["report"]
        candidates = tuple(CandidateReport(**one) for one in report.pop("candidates"))
        return _Known(Way.read(found["way"]), ChoiceReport(**report, candidates=candidates))
    except (ValueError, KeyError, TypeError):
        return None


def kernels_of(launches: Sequence[GpuKernel]) -> list[Launched]:
    """The launches of a program as those of a trial."""
    return [Launched(one.kernel, one.buffers, one.dtypes, one.writes) for one in launches]
