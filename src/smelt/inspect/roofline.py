"""The machine's ceilings, measured, and the plot of kernels below them.

Source of the model: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 2009.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from smelt.diag.packages import not_installed
from smelt.diag.records import record
from smelt.inspect.shown import Row
from smelt.runtime.cuda.machine import machine
from smelt.runtime.cuda.timing import Stopwatch

_COPY_NBYTES = 64 << 20
_COPY_TRIALS = 8


@record
class Ceilings:
    """gflops: peak of f32 multiply-adds; gbps: bytes read plus written by a large copy, in GB/s; of `threads`.

    Of a GPU: gflops of bf16 products, threads: its multiprocessors.
    """

    gflops: float
    gbps: float
    threads: int

    def floor_us(self, nbytes: int, flops: int) -> float:
        """Least microseconds for so many bytes through memory and operations. Data in a cache may be faster."""
        return max(nbytes / self.gbps, flops / self.gflops) / 1e3


def measure_ceilings() -> Ceilings:
    """The ceilings of this machine at torch's present number of threads; about half a second."""
    threads = torch.get_num_threads()
    peak = importlib.import_module("smelt.codegen.llvm.fma_peak").measure_fma_peak(threads)
    source = torch.ones(_COPY_NBYTES // 4)
    target = torch.zeros_like(source)
    best = float("inf")
    for _ in range(_COPY_TRIALS):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return Ceilings(peak.gflops, 2 * _COPY_NBYTES / best / 1e9, threads)


def measure_gpu_ceilings(index: int = 0) -> Ceilings:
    """The ceilings of a GPU: the fastest of several large copies, and of several large products of bf16, by events.

    Sizes follow from its cache: a copy is eight times as large, a product has as many columns as the cache numbers in a
    square. Raises: SmeltError (S0405) where there is no GPU that Smelt can use.
    """
    found = machine(index)
    watch = Stopwatch(found)
    device = torch.device("cuda", index)
    cache_nbytes = found.driver.cache_nbytes(index)
    source = torch.ones(max(16, 8 * cache_nbytes) // 4, device=device)
    target = torch.empty_like(source)
    n = 1 << (max(64, cache_nbytes).bit_length() // 2)
    left = torch.ones(n, n, dtype=torch.bfloat16, device=device)
    copied = min(watch.times_us(lambda: target.copy_(source), _COPY_TRIALS))
    multiplied = min(watch.times_us(lambda: torch.mm(left, left), _COPY_TRIALS))
    gbps = 2 * source.nbytes / max(copied, 1e-3) / 1e3
    return Ceilings(2 * n**3 / max(multiplied, 1e-3) / 1e3, gbps, found.processors[0])


def plot_roofline(rows: Sequence[Row], ceilings: Ceilings, path: Path) -> str:
    """Draw the measured kernels below the ceilings: operations per byte against GFLOP/s, both logarithmic.

    Kernels without floating-point operations stand at the left edge by their bytes. Returns "" or why there is none.
    """
    measured = [row for row in rows if row.get("us")]
    if not measured:
        return "nothing was measured: compile with options={'profile': True} and call the program"
    if absent := not_installed(["matplotlib"], "bench"):
        return absent
    importlib.import_module("matplotlib").use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(9, 5.5))
    points = [(_intensity(row), max(float(row["GFLOP/s"]), 1e-2), row) for row in measured]
    left = min(0.05, *(x for x, _, _ in points)) / 2
    right = max(100.0, *(x for x, _, _ in points)) * 2
    ridge = ceilings.gflops / ceilings.gbps
    axes.plot([left, ridge, right], [left * ceilings.gbps, ceilings.gflops, ceilings.gflops], color="#1c2230")
    for number, (x, y, row) in enumerate(points):
        axes.scatter([x], [y], s=20 + 12 * min(int(row["launches"]), 24), color=f"C{number % 10}", alpha=0.8)
        axes.annotate(str(row["computes"])[:36], (x, y), textcoords="offset points", xytext=(6, 4), fontsize=7)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("floating-point operations per byte of memory")
    axes.set_ylabel("GFLOP/s")
    limits = f"{ceilings.gflops:.0f} GFLOP/s of multiply-adds, {ceilings.gbps:.0f} GB/s of copying"
    axes.set_title(f"{ceilings.threads} threads: {limits}")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return ""


def _intensity(row: Row) -> float:
    return max(float(row["flops"]) / max(float(row["bytes"]), 1.0), 0.02)
