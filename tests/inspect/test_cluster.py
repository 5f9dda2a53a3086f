"""Figures of this machine: measured once, cached, replaced by what is passed; one error where they cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from smelt.cli.plan import _figures
from smelt.diag import SmeltError
from smelt.inspect.ranks import cluster
from smelt.parallel.proving.figures import Kernels, Link


def test_figures_are_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    runs: list[int] = []

    def kernels() -> Kernels:
        runs.append(torch.get_num_threads())
        return Kernels(product_gflops=77.0)

    monkeypatch.setattr(cluster, "measure_kernels", kernels)
    monkeypatch.setattr(cluster, "measure_link", lambda: Link(50.0, 2.0))
    before = torch.get_num_threads()
    first, second = cluster.local_figures(1), cluster.local_figures(1)
    assert first == second and runs == [1] and first.kernels.product_gflops == 77.0
    assert "measured here, 1 thread a rank" in first.origin and torch.get_num_threads() == before
    cluster.local_figures(2)
    cluster.local_figures(1, again=True)
    assert runs == [1, 2, 1]
    # What is passed stands in the place of what is measured; for another machine nothing is measured.
    mixed = _figures("300T", None, ["tp=5us,200GB/s"], True, 1)
    assert mixed.kernels.product_gflops == 300e3 and mixed.kernels.node_us == first.kernels.node_us
    assert mixed.link("tp") == Link(5, 200) and mixed.link("dp") == Link(50.0, 2.0)
    other = _figures("300T", "2TB/s", ["5us,200GB/s"], True, 1)
    assert runs == [1, 2, 1] and other.kernels.memory_gbps == 2000 and "measured" not in other.origin


def test_kernels_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_TRIALS", 1)
    found = cluster.measure_kernels()
    assert all(getattr(found, name) > 0 for name in Kernels.__dataclass_fields__)


def test_processes_that_do_not_talk_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_TALK", "raise SystemExit('no network here')")
    with pytest.raises(SmeltError) as caught:
        cluster.measure_link()
    assert caught.value.code == "S0646" and "no network here" in caught.value.why and "--link" in caught.value.fix


@pytest.mark.nightly
def test_two_processes_talk() -> None:
    found = cluster.measure_link()
    assert 0 < found.latency_us < 1e6 and found.gbps > 0
