"""One loaded program, called from many threads at once: right answers, one copy of the weights, no waiting."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.runtime.ingot.program import EntryPoint
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
    mapped = [lines for lines in _mappings() if str(tmp_path / "large.ingot") in lines[0]]
    dirty = sum(int(line.split()[1]) for lines in mapped for line in lines if line.startswith("Private_Dirty"))
    assert len(mapped) >= 2 and dirty == 0


def _mappings() -> list[list[str]]:
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("this system does not tell what is mapped")
    found: list[list[str]] = []
    for line in smaps.read_text().splitlines():
        if not line.split()[0].endswith(":"):
            found.append([])
        found[-1].append(line)
    return found
