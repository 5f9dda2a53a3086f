"""How fast kernels are here, and messages between two processes of this machine, measured once and kept on disk.

Times are of the processor where one thread computes, so that other work on the machine disturbs them little; those of
messages are the least of many, by the clock.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import smelt
from smelt.diag import Options, SmeltError
from smelt.diag.packages import VERSION
from smelt.parallel.proving.figures import Figures, Kernels, Link, from_dict, to_dict
from smelt.runtime.machine.cache import CodeCache, code_cache
from smelt.runtime.machine.cpu import cpu_fingerprint

_ROWS, _WIDTH = 512, 512
_TRIALS = 7
_LARGE = 4 << 20  # bytes of a message whose transfer is what takes time
_TIMEOUT_S = 120


def local_figures(threads: int, *, again: bool = False) -> Figures:
    """Of this machine with so many threads a rank; measured at the first call, about ten seconds, or `again`."""
    store = _store()
    key = _key(threads)
    kept = None if again else store.get(key)
    if kept is not None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return from_dict(json.loads(kept))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        kernels = measure_kernels()
    finally:
        torch.set_num_threads(before)
    found = Figures(kernels, {"": measure_link()}, f"measured here, {threads} thread{'s' * (threads > 1)} a rank, gloo")
    store.put(key, json.dumps(to_dict(found)).encode())
    return found


def _store() -> CodeCache:
    options = Options.make()
    return code_cache(options.cache_dir, options.cache_limit_mb)


def _key(threads: int) -> str:
    parts = ["figures", 1, VERSION, torch.__version__, cpu_fingerprint(), threads]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def measure_kernels() -> Kernels:
    """Of compiled code at torch's present number of threads."""
    x, large = torch.randn(_ROWS, _WIDTH), torch.randn(8 << 20)
    linear = nn.Linear(_WIDTH, 4 * _WIDTH, bias=False).eval()
    product = _least(smelt.compile(linear), x)
    gelu = _least(smelt.compile(torch.nn.functional.gelu), x)
    copied = _least(smelt.compile(lambda t: t + 1.0), large)
    chain = nn.Sequential(*(nn.Linear(8, 8) for _ in range(32))).eval()
    small = _least(smelt.compile(chain), torch.randn(1, 8))
    return Kernels(
        product_gflops=2 * _ROWS * _WIDTH * 4 * _WIDTH / product / 1e9,
        element_gops=17 * x.numel() / gelu / 1e9,
        memory_gbps=2 * large.numel() * large.element_size() / copied / 1e9,
        node_us=small / 32 * 1e6,
        update_ns=_update_ns(),
    )


def _least(f: Callable[..., Any], *args: torch.Tensor) -> float:
    """Seconds of a call: of the processor with one thread, else by the clock."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best = float("inf")
    with torch.no_grad():
        for _ in range(3):
            f(*args)
        for _ in range(_TRIALS):
            count, start = 0, clock()
            while count < 3 or clock() - start < 5e-3:
                f(*args)
                count += 1
            best = min(best, (clock() - start) / count)
    return best


def _update_ns() -> float:
    """Of AdamW, for one parameter."""
    parameters = [nn.Parameter(torch.randn(256, 256)) for _ in range(32)]
    for one in parameters:
        one.grad = torch.randn(256, 256)
    update = torch.optim.AdamW(parameters, lr=1e-4)

    def step() -> None:
        update.step()

    with torch.enable_grad():
        return _least(step) / sum(one.numel() for one in parameters) * 1e9


def measure_link() -> Link:
    """Between two processes of this machine. Raises: SmeltError (S0646) where they cannot be started or do not talk."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Where torchrun has started this process, its variables would send the two to its own store.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC_", "MASTER_"))}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _TALK, str(port), str(_LARGE)]
    both = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True)
        for rank in range(2)
    ]
    try:
        out, error = both[0].communicate(timeout=_TIMEOUT_S)
        if both[0].returncode:
            raise ValueError(error.strip().splitlines()[-1] if error.strip() else "a process ended")
        small, large = map(float, out.split())
    except (subprocess.TimeoutExpired, ValueError) as failure:
        raise SmeltError(
            "messages between processes cannot be measured here", why=str(failure).splitlines()[0][:200],
            fix="give the link's figures: --link 100us,1.5GB/s", code="S0646",
        ) from None  # fmt: skip
    finally:
        for one in both:
            one.kill()
            one.communicate()
    # An all-reduce of two ranks has two hops, and sends as much as there is.
    return Link(small / 2 * 1e6, _LARGE / max(large - small, 1e-9) / 1e9)


_TALK = """
import sys, time, datetime
import torch, torch.distributed as dist
port, large, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=60))
for count, trials in ((1, 100), (large // 4, 12)):
    tensor, times = torch.zeros(count), []
    for _ in range(trials):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - start)
    print(sorted(times)[len(times) // 4])
dist.destroy_process_group()
"""
