"""The machine's peak of fused multiply-adds, measured: the floor under every matrix product.

One loop of independent `x = x * a + b` chains per thread, held in vector registers. All chains start from different
values and the factors come from memory, so no two chains are equal and the compiler can merge none of them.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from smelt.diag.records import record

_FLOPS_PER_FMA = 2
_LOOP_NAME = "smelt_fma_peak"


@record
class VectorShape:
    """Lanes of one f32 vector register and the chains that fit in the register file (latency x ports need ~10)."""

    lanes: int
    chains: int


@record
class FmaPeak:
    """`gflops` of all `threads` together, the best of several short trials; `lanes` is the f32 vector width."""

    gflops: float
    threads: int
    lanes: int


def host_vector_shape() -> VectorShape:
    """The widest f32 vector the host runs, with chains that leave registers for the two factors."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return VectorShape(16, 24)
    if features.get("avx2") and features.get("fma"):
        return VectorShape(8, 12)
    return VectorShape(4, 12)


def fma_loop_ir(shape: VectorShape) -> str:
    """LLVM IR of `void f(ptr factors, ptr state, i64 n)`: n steps of every chain, starts and ends in `state`.

    `factors` holds the multiplier and then the addend, `state` one vector a chain, all of `shape.lanes` f32.
    """
    vector = f"<{shape.lanes} x float>"
    intrinsic = f"llvm.fma.v{shape.lanes}f32"
    nbytes = shape.lanes * 4
    chains = range(shape.chains)
    loads = [
        f"  %p{i} = getelementptr i8, ptr %state, i64 {i * nbytes}\n  %s{i} = load {vector}, ptr %p{i}, align 4"
        for i in chains
    ]
    phis = [f"  %x{i} = phi {vector} [ %s{i}, %entry ], [ %y{i}, %loop ]" for i in chains]
    steps = [f"  %y{i} = call {vector} @{intrinsic}({vector} %x{i}, {vector} %a, {vector} %b)" for i in chains]
    stores = [f"  store {vector} %y{i}, ptr %p{i}, align 4" for i in chains]
    return "\n".join(
        [
            f"declare {vector} @{intrinsic}({vector}, {vector}, {vector})",
            f"define void @{_LOOP_NAME}(ptr %factors, ptr %state, i64 %n) {{",
            "entry:",
            f"  %a = load {vector}, ptr %factors, align 4",
            f"  %pb = getelementptr i8, ptr %factors, i64 {nbytes}",
            f"  %b = load {vector}, ptr %pb, align 4",
            *loads,
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
            *phis,
            *steps,
            "  %next = add i64 %i, 1",
            "  %more = icmp slt i64 %next, %n",
            "  br i1 %more, label %loop, label %done",
            "done:",
            *stores,
            "  ret void",
            "}",
        ]
    )


@record
class FmaLoop:
    """A compiled loop; `run(factors, state, n)` takes addresses, releases the GIL. `owner` keeps the code alive."""

    run: Callable[[int, int, int], None]
    shape: VectorShape
    owner: Any


def compile_fma_loop() -> FmaLoop:
    """The loop of `fma_loop_ir` for this host (about 5 ms)."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    shape = host_vector_shape()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    module = llvm.parse_assembly(fma_loop_ir(shape))
    jit = llvm.create_lljit_compiler(machine)
    library = llvm.JITLibraryBuilder().add_ir(module).export_symbol(_LOOP_NAME).link(jit, _LOOP_NAME)
    address = library[_LOOP_NAME]
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
    return FmaLoop(function, shape, (jit, library, machine))


def measure_fma_peak(threads: int, *, trials: int = 20, trial_ms: float = 3.0, loop: FmaLoop | None = None) -> FmaPeak:
    """f32 GFLOP/s of `threads` threads in FMA chains alone; the best of `trials`, since a disturbance only lowers it.

    All threads start at a barrier; a trial lasts until the last one is done.
    """
    loop = loop or compile_fma_loop()
    steps = _steps_for(loop, trial_ms)
    best = max(_trial_gflops(loop, threads, steps) for _ in range(trials))
    return FmaPeak(best, threads, loop.shape.lanes)


def _operands(shape: VectorShape) -> tuple[np.ndarray, np.ndarray]:
    """Factors whose chains neither overflow nor turn denormal (fixed point near 2), and distinct starts."""
    factors = np.concatenate([np.full(shape.lanes, 0.5), np.ones(shape.lanes)]).astype(np.float32)
    state = (1.0 + np.arange(shape.chains * shape.lanes) / 1000.0).astype(np.float32)
    return factors, state


def _steps_for(loop: FmaLoop, trial_ms: float) -> int:
    """Loop steps that last about `trial_ms` on one thread."""
    factors, state = _operands(loop.shape)
    steps = 20_000
    loop.run(factors.ctypes.data, state.ctypes.data, steps)
    start = time.perf_counter()
    loop.run(factors.ctypes.data, state.ctypes.data, steps)
    elapsed = max(time.perf_counter() - start, 1e-6)
    return max(steps, int(steps * trial_ms / 1e3 / elapsed))


def _trial_gflops(loop: FmaLoop, threads: int, steps: int) -> float:
    """GFLOP/s of one trial, from the first thread's start to the last one's end."""
    barrier = threading.Barrier(threads)
    starts = [0.0] * threads
    ends = [0.0] * threads

    def work(index: int) -> None:
        factors, state = _operands(loop.shape)
        barrier.wait()
        starts[index] = time.perf_counter()
        loop.run(factors.ctypes.data, state.ctypes.data, steps)
        ends[index] = time.perf_counter()

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    flops = _FLOPS_PER_FMA * loop.shape.lanes * loop.shape.chains * steps * threads
    return flops / (max(ends) - min(starts)) / 1e9
