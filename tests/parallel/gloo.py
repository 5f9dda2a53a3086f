"""Programs of several processes that talk over gloo, all forks of one that has imported torch and smelt."""

from __future__ import annotations

import json
from pathlib import Path

from tests.forked import training_forks

_HEAD = """
import datetime, itertools, json, os, sys, traceback
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
import smelt


stores = itertools.count()


def ranks(count, program, timeout=30):
    # Forks of a process that has computed nothing: each rank writes its answer, or its error, to a pipe. One alone has
    # no process group.
    found, store = [], "file://" + os.path.abspath(f"store_{next(stores)}")
    for rank in range(count):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            try:
                torch.set_num_threads(1)
                if count > 1:
                    timeout = datetime.timedelta(seconds=timeout)
                    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=count, timeout=timeout)
                answer = program(rank)
                if count > 1:
                    dist.barrier()
            except BaseException as error:
                answer = [type(error).__name__, getattr(error, "code", ""), str(error)]
            os.write(write, json.dumps(answer).encode())
            os._exit(0)
        os.close(write)
        found.append((child, os.fdopen(read)))
    answers = [json.loads(pipe.read() or "null") for _, pipe in found]
    for child, _ in found:
        os.waitpid(child, 0)
    return answers
"""
"""What programs have: `ranks(count, program)` runs `program(rank)` in as many processes, and gives their answers."""


def run(code: str, folder: Path, timeout_s: int = 300) -> list[object]:
    """What a program prints last, as JSON."""
    return json.loads(training_forks().run(_HEAD + code, folder, timeout_s).strip().splitlines()[-1])
