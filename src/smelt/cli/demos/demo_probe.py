"""One system in a process of its own, which prints a line of JSON.

Run apart, so that neither the first result nor the peak of memory has anything of the other system in it.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch

import smelt
from smelt.cli.demos.demo_model import BatchShape, load_model, make_batches, read_corpus
from smelt.diag import SmeltError
from smelt.diag.records import record

System = Literal["eager", "smelt"]
_CHILD = "from smelt.cli.demos.demo_probe import child; child()"


@record
class Request:
    """What a probe embeds, and with what. `cache_dir` is where machine code is kept ("" for nowhere)."""

    system: System
    model: str
    corpus: str
    rows: int
    tokens: int
    threads: int
    cache_dir: str = ""


@record
class Reading:
    """`first_result_s`: from the loaded model to the first batch's embeddings, compiling included.

    `peak_mb`: the process's largest resident memory (10^6 bytes) once the whole corpus is embedded; None where the
    system does not tell. `loaded_mb`: the same before the first batch, so the difference is what embedding took.
    """

    first_result_s: float
    peak_mb: float | None
    loaded_mb: float | None


def build(system: System, model: torch.nn.Module, cache_dir: str = "") -> Callable[..., Any]:
    """The model as the system runs it."""
    if system == "eager":
        return model
    return smelt.compile(model, options={"cache_dir": cache_dir, "adaptive": False})


def read(request: Request) -> Reading:
    """Load the model in this process, take the first result, embed the rest."""
    torch.set_num_threads(request.threads)
    sentences = read_corpus(Path(request.corpus))  # first: what is not there is said before the model is loaded
    model, tokenizer = load_model(Path(request.model))
    batches = make_batches(tokenizer, sentences, BatchShape(request.rows, request.tokens))
    loaded_mb = peak_memory_mb()
    with torch.no_grad():
        start = time.perf_counter()
        run = build(request.system, model, request.cache_dir)
        run(batches[0].ids, batches[0].mask)
        first_result_s = time.perf_counter() - start
        for batch in batches[1:]:
            run(batch.ids, batch.mask)
    return Reading(first_result_s, peak_memory_mb(), loaded_mb)


def read_in_fresh_process(request: Request, timeout_s: float = 600) -> Reading:
    """`read` in a new interpreter.

    Raises: SmeltError (S0502) with the end of its output if that process fails.
    """
    command = [sys.executable, "-c", _CHILD, json.dumps(asdict(request))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise _failed(request, f"it took longer than {timeout_s:.0f} s") from error
    if done.returncode != 0:
        raise _failed(request, f"exit status {done.returncode}: " + "\n".join(done.stderr.splitlines()[-8:]))
    return Reading(**json.loads(done.stdout.splitlines()[-1]))


def _failed(request: Request, why: str) -> SmeltError:
    return SmeltError(
        f"the process that measures {request.system} failed",
        why=why,
        fix="run `smelt demo --quick`, which measures in one process and shows where it fails",
        code="S0502",
    )


def peak_memory_mb() -> float | None:
    """The largest resident memory of this process so far, in 10^6 bytes; None where the system does not tell.

    Linux's `ru_maxrss` starts at the parent's peak (it is carried over by fork and exec), `VmHWM` at 0.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return _peak_by_rusage()
    kib = next((line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), None)
    return None if kib is None else int(kib) * 1024 / 1e6


def _peak_by_rusage() -> float | None:
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def child() -> None:
    """The child's side: the request is the first argument, the reading its last line of output."""
    print(json.dumps(asdict(read(Request(**json.loads(sys.argv[1]))))))
