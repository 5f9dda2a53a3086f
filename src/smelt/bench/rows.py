"""The rows of the report: one per model, dtype and system, written as a JSON list.

Keys that every row has: `model`, `system`, `dtype`, `median_ms`, `ratio_to_eager` (above 1 is faster than eager),
`cold_s`, `warm_start_s`, `peak_mb`, `max_abs_err` (against eager), `settings`; null where not measured, and then
`error` says why if something failed. The others are described by the fields below.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass
class Row:
    """One line of the report.

    p20_ms, blocks_ms: 20th percentile of the interleaved samples; median with the system alone in the process' time.
    one_thread_ms: median of the system prepared anew for one thread.
    faults_per_call, load_average: page faults of a call; runnable processes on the machine at the time.
    cold_s, warm_start_s, import_s, peak_mb, base_mb: see `smelt.bench.startup`; warm_start_s is `cold_s` of the
        process that starts after it.
    cold_cpu_s: CPU seconds of the same until its first result, of all its threads and children.
    saved_mb: what autograd keeps between forward and backward, parameters and inputs left out, each memory once.
    loss_gap: the largest relative difference to eager's loss over the first steps.
    competing: whether another process kept one core busy while the row's times were taken.
    rms_err, eager_rms_err, rms_ratio: root mean square error against float64, eager's own, their quotient.
    """

    model: str
    system: str
    dtype: str = "f32"
    median_ms: float | None = None
    ratio_to_eager: float | None = None
    p20_ms: float | None = None
    blocks_ms: float | None = None
    one_thread_ms: float | None = None
    one_thread_ratio: float | None = None
    cold_s: float | None = None
    cold_cpu_s: float | None = None
    warm_start_s: float | None = None
    import_s: float | None = None
    peak_mb: float | None = None
    base_mb: float | None = None
    max_abs_err: float | None = None
    rms_err: float | None = None
    eager_rms_err: float | None = None
    rms_ratio: float | None = None
    faults_per_call: float | None = None
    load_average: float | None = None
    gflop: float | None = None
    saved_mb: float | None = None
    loss_gap: float | None = None
    competing: bool = False
    error: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, bool]:
        """What makes a row the same measurement as an earlier one."""
        return (self.model, self.dtype, self.system, self.competing)

    @property
    def label(self) -> str:
        """The model, with the dtype where it is not f32, and whether a core was busy."""
        notes = [*([] if self.dtype == "f32" else [self.dtype]), *(["busy"] if self.competing else [])]
        return f"{self.model} ({', '.join(notes)})" if notes else self.model

    def note(self, problem: str) -> None:
        """Add a problem to those the row already names."""
        self.error = f"{self.error}; {problem}" if self.error else problem


def machine() -> dict[str, Any]:
    """The machine and the versions that a row was measured with."""
    return {
        "cpu": _cpu_name(),
        "cpus": os.cpu_count(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    facts = {name.strip(): value.strip() for name, value in pairs}
    name = facts.get("model name", platform.machine())
    family = [f"{k} {facts[k]}" for k in ("cpu family", "model") if k in facts]
    return f"{name} ({', '.join(family)})" if family else name


def as_json(rows: Iterable[Row]) -> str:
    """The rows as JSON, floats to 6 significant digits (a NaN or infinity as text, since JSON has neither)."""
    return json.dumps([as_plain(asdict(row)) for row in rows], indent=1, allow_nan=False)


def as_plain(value: Any) -> Any:
    """As JSON takes it, floats to 6 significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if value - value == 0 else str(value)
    if isinstance(value, dict):
        return {str(k): as_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(v) for v in value]
    return value if isinstance(value, bool | int | str | None) else str(value)


def write(rows: Iterable[Row], path: Path) -> None:
    """Write the rows so that a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        file.write(as_json(rows) + "\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def read(path: Path) -> list[Row]:
    """Rows written by `write`, unknown keys left out.

    Raises: ValueError where the file is not such a list.
    """
    known = set(Row.__dataclass_fields__)
    data = json.loads(path.read_text())
    if not isinstance(data, list) or not all(isinstance(r, dict) and {"model", "system"} <= r.keys() for r in data):
        raise ValueError(f"{path} is not a list of benchmark rows")
    return [Row(**{k: v for k, v in r.items() if k in known}) for r in data]


def merge(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """`old` with the rows that were measured anew replaced in place, the others of `new` at the end."""
    latest = {row.key: row for row in new}
    kept = [latest.pop(row.key, row) for row in old]
    return kept + list(latest.values())
