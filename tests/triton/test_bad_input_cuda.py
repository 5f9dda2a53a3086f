"""What users of GPUs bring: pinned and managed memory, several devices, no memory, a lost one. Eager's answer or error.

The GPUs are some that are not there (`fake_cuda`), with an allocator of pinned memory whose copies are late.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt._torch import gpu as gpu_of_torch
from smelt.diag import SmeltWarning
from smelt.runtime.cuda import machine
from tests.triton.fake_cuda import fake_gpu, on_device
from tests.triton.fake_driver import FakeDriver
from tests.triton.test_compile_cuda import drawn, same


@pytest.fixture
def gpu() -> Iterator[FakeDriver]:
    with fake_gpu(compiles=False) as driver:
        yield driver


@pytest.fixture
def gpus() -> Iterator[FakeDriver]:
    with fake_gpu(compiles=False, devices=2) as driver:
        yield driver


# --- memory of the host


def test_numbers_of_calls_go_through_pinned_memory_and_wait_for_nothing(gpu: FakeDriver) -> None:
    def function(x: Tensor, scale: float) -> Tensor:
        return torch.relu(x * scale) + 1.0

    program = smelt.compile(function, fullgraph=True)
    x = drawn(8)
    for scale in (0.5, 1.5, 2.5):
        same(program(x, scale), function(x, scale))
    memory = gpu.device
    before, waits = len(memory.pinned), len(memory.waits)  # type: ignore[attr-defined]
    found = [program(x, 3.0 + k) for k in range(4)]
    # Each call has pinned memory of its own: a copy may be late.
    assert len(memory.pinned) == before + 4 and len(memory.waits) == waits  # type: ignore[attr-defined]
    for k, ours in enumerate(found):
        same(ours, function(x, 3.0 + k))


def test_pinned_tensors_are_copied_late_and_stay_pinned(gpu: FakeDriver) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        pinned = (x * 2.0).pin_memory()
        return pinned, pinned.to("cuda", non_blocking=True) + 1.0

    program = smelt.compile(function)
    for seed in range(4):
        x = drawn(8, seed=seed).cpu()
        found, want = program(x), function(x)
        assert found[0].is_pinned() and want[0].is_pinned() and not x.is_pinned()
        same(found, want)


def test_a_pinned_argument_is_an_argument_of_the_hosts(gpu: FakeDriver) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x.to("cuda", non_blocking=True) * y) - 0.5

    program = smelt.compile(function, fullgraph=True)
    for seed in range(4):
        x, y = drawn(8, seed=seed).cpu().pin_memory(), drawn(8, seed=seed + 9)
        same(program(x, y), function(x, y))
    same(program(x.clone(), y), function(x, y))  # not pinned: another kind of memory, the same program
    assert len(program.stats().rows) == 1


def test_managed_memory_is_read_where_it_is(gpu: FakeDriver) -> None:
    """What both the host and a GPU address: a tensor of the GPU's, which the host writes to between calls."""
    on_host = torch.arange(8.0)
    managed = on_device(on_host, 2)
    gpu.device.note(managed, ())  # type: ignore[attr-defined]
    program = smelt.compile(lambda x, y: torch.relu(x - 2.0) * y, fullgraph=True)
    y = drawn(8)
    for k in range(5):
        same(program(managed, y), torch.relu(managed - 2.0) * y)
        on_host.add_(float(k) - 1.0)
    assert gpu.calls[-1] == "launch" and managed.data_ptr() == on_host.data_ptr()


# --- several devices


def test_a_program_runs_on_the_gpu_of_its_tensors(gpus: FakeDriver) -> None:
    def function(x: Tensor) -> Tensor:
        while x.abs().max() > 0.1:
            x = x * 0.5
        return x.exp()

    program = smelt.compile(function, fullgraph=True)
    for index in (1, 0, 1, 0, 1):
        x = drawn(8).cpu().to(f"cuda:{index}")
        found = program(x)
        assert found.device == torch.device("cuda", index)
        same(found, function(x))
        assert gpus.device.current == 0  # type: ignore[attr-defined]
    # Each launch, with that GPU at hand.
    assert {*gpus.launched_on} == {0, 1} and gpus.launched_on[-1] == 1
    assert len(program.stats().rows) == 2 and program.stats().fallbacks == {}


def test_the_gpu_at_hand_stays_the_callers(gpus: FakeDriver) -> None:
    program = smelt.compile(lambda x: x.exp() * 2.0, fullgraph=True)
    with torch.cuda.device(1):
        for _ in range(3):
            x = drawn(8).cpu().to("cuda:0")
            same(program(x), x.exp() * 2.0)
            assert torch.cuda.current_device() == 1
    assert {*gpus.launched_on} == {0}


def test_tensors_of_several_gpus_run_eagerly_with_one_warning(gpus: FakeDriver) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2.0, y.to("cuda:0") + x

    program = smelt.compile(function)
    x, y = drawn(8).cpu().to("cuda:0"), drawn(8, seed=1).cpu().to("cuda:1")
    with pytest.warns(SmeltWarning, match="cuda:0 and cuda:1"):
        program(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(program(x, y), function(x, y))
    assert "launch" not in gpus.calls


def test_what_torch_refuses_of_several_gpus_is_torchs_error(gpus: FakeDriver) -> None:
    program = smelt.compile(lambda x, y: x * 2.0 + y)
    x, y = drawn(8).cpu().to("cuda:0"), drawn(8, seed=1).cpu().to("cuda:1")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="same device"):
            program(x, y)
    same(program(x, x), x * 2.0 + x)


# --- no memory, no device


def converging(x: Tensor) -> Tensor:
    while x.abs().max() > 0.1:
        x = x * 0.5
    return x + 1.0


@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize("which", ["memory", "empty"])
def test_memory_that_cannot_be_had_raises_as_eager_and_the_next_call_works(
    gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Of a larger arena, for another size, or of a result."""
    from_torch, left = getattr(gpu_of_torch, which), [1]

    def scarce(*args: Any) -> Tensor:
        if left:
            left.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return from_torch(*args)  # type: ignore[no-any-return]

    program = smelt.compile(converging, dynamic=True)
    for rows in (3, 5, 4):
        program(drawn(rows, 8))
    monkeypatch.setattr(gpu_of_torch, which, scarce)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        program(drawn(100, 8))
    assert not left
    for rows in (4, 100, 5, 100):
        before = gpu.calls.count("launch")
        same(program(drawn(rows, 8)), converging(drawn(rows, 8)))
    assert gpu.calls.count("launch") == before + 1
    del program
    gc.collect()
    assert gpu.nothing_left


def test_a_driver_that_refused_conditional_nodes_once_is_asked_again(gpu: FakeDriver) -> None:
    gpu.fail = "condition"
    first, second = (smelt.compile(lambda x, k=k: converging(x) * k) for k in (1.0, 2.0))
    for _ in range(3):
        same(first(drawn(8)), converging(drawn(8)))
    waits = gpu.device.waits  # type: ignore[attr-defined]
    assert waits
    for _ in range(2):
        second(drawn(8))
    before = len(waits)
    same(second(drawn(8)), converging(drawn(8)) * 2.0)
    report = str(smelt.explain(second, drawn(8)).to_dict())
    assert "decided by the GPU" in report and len(waits) > before  # eager's, to compare with


@pytest.mark.usefixtures("young_heap")
def test_a_device_that_is_lost_is_eagers_answer(gpu: FakeDriver) -> None:
    program = smelt.compile(converging)
    program(drawn(8)), program(drawn(8))
    gpu.lost = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(4):
            same(program(drawn(8, seed=seed)), converging(drawn(8, seed=seed)))
    # What failed first is told, not what failed when it was given up.
    assert any("set_node failed" in reason for reason in program.stats().fallbacks), program.stats().fallbacks
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del program
        gc.collect()
        machine.warn_at_exit()
