"""One loaded program, called from many threads at once: right answers, one copy of the weights, no waiting."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.runtime.ingot.natives import targets
from smelt.runtime.ingot.program import EntryPoint
from tests.forked import light_forks
from tests.ingots.mapped import WIDE_NBYTES, assert_shared, mapped_nbytes, mapped_of, wide
from tests.ingots.programs import Mlp, branches

THREADS, CALLS = 8, 40


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Mlp]:
    model = Mlp().eval()
    smelt.trace(model, (torch.randn(3, 16),)).save(tmp_path / "m.ingot")
    return tmp_path / "m.ingot", model


def test_each_thread_gets_its_own_answer(saved: tuple[Path, Mlp], tmp_path: Path) -> None:
    path, model = saved
    smelt.trace(branches, (torch.randn(3, 16),)).save(tmp_path / "b.ingot")
    loaded, branching = smelt.load(path), smelt.load(tmp_path / "b.ingot")
    begin = threading.Barrier(THREADS)

    def work(seed: int) -> list[tuple[Any, ...]]:
        draw = torch.Generator().manual_seed(seed)
        begin.wait()  # the first calls, which load code and pack weights, are made at once, too
        found = []
        with torch.no_grad():
            for _ in range(CALLS):
                x = torch.randn(3, 16, generator=draw)
                found.append((x, loaded(x), branching(x)))
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, range(THREADS)))
    with torch.no_grad():
        for x, one, other in (each for found in results for each in found):
            torch.testing.assert_close(one, model(x))
            torch.testing.assert_close(other, branches(x))


def test_native_code_is_made_once(saved: tuple[Path, Mlp], monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    make = EntryPoint._built
    monkeypatch.setattr(EntryPoint, "_built", lambda self, sizes: built.append(1) or make(self, sizes))
    loaded = smelt.load(saved[0])
    call = torch.no_grad()(lambda i: loaded(torch.ones(3, 16)))
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(call, range(THREADS * 4)))
    assert built == [1]


def test_loads_share_the_memory_of_the_file(saved: tuple[Path, Mlp], tmp_path: Path) -> None:
    """Pages that nobody writes to are the file's own, in each process that maps it."""
    model = torch.nn.Embedding(60_000, 32)
    smelt.trace(model, (torch.tensor([1]),)).save(tmp_path / "large.ingot", targets=[])
    loaded = [smelt.load(tmp_path / "large.ingot") for _ in range(2)]
    for program in loaded:
        float(program.weight.detach().sum())
    found = mapped_nbytes(tmp_path / "large.ingot")
    assert found["maps"] >= 2 and found["Private_Dirty"] == 0


# Two processes load a program and call it; a third, which maps nothing, looks at them while they wait.
_TWO = """
import json, os, torch, smelt
processes, ready, go = [], os.pipe(), os.pipe()
for _ in range(2):
    processes.append(os.fork())
    if not processes[-1]:
        os.close(go[1])
        loaded = smelt.load({path!r})
        with torch.no_grad():
            loaded(torch.ones(40, 256))
        os.write(ready[1], b"." if loaded.is_native else b"!")
        os.read(go[0], 1)  # until the other end is closed
        os._exit(0)
os.close(ready[1])
assert os.read(ready[0], 1) + os.read(ready[0], 1) == b".."
print(json.dumps([open(f"/proc/{{process}}/smaps").read() for process in processes]))
"""


def test_processes_share_the_memory_of_the_file(tmp_path: Path) -> None:
    """Weights in panels, which a call has read."""
    with torch.no_grad():
        smelt.trace(wide(), (torch.ones(40, 256),)).save(tmp_path / "wide.ingot", targets=targets()[:1])
    found = light_forks().run(_TWO.format(path=str(tmp_path / "wide.ingot")))
    one, other = (mapped_of(text, tmp_path / "wide.ingot") for text in json.loads(found))
    assert_shared(one, other, WIDE_NBYTES)
