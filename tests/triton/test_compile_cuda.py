"""`smelt.compile` of programs whose tensors are on a GPU: a whole call, from guards to the driver, beside eager.

The GPU is one that is not there (`fake_cuda`): eager's operators are the CPU's, and our launches are interpreted.
"""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt._torch import gpu as gpu_of_torch
from smelt.codegen.lower.gpu.lowering import gpu_of
from smelt.diag import LateError, SmeltError, SmeltWarning
from smelt.runtime.cuda import machine
from smelt.runtime.cuda.driver import unusable
from tests.triton.fake_cuda import fake_gpu
from tests.triton.fake_driver import FakeDriver
from tests.triton.harness import apart


@pytest.fixture
def gpu() -> Iterator[FakeDriver]:
    with fake_gpu() as driver:
        yield driver


def drawn(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).cuda()


def same(found: Any, want: Any, tolerance: float = 1e-5) -> None:
    for ours, eager in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, want)), strict=True):
        assert (ours.device, ours.dtype, ours.stride()) == (eager.device, eager.dtype, eager.stride())
        assert type(ours) is type(eager)
        torch.testing.assert_close(ours.cpu(), eager.cpu(), rtol=tolerance, atol=tolerance)


def compiled(function: Callable[..., Any]) -> Any:
    """Compiled at once, with an error where it would fall back."""
    return smelt.compile(function, fullgraph=True)


class Net(nn.Module):
    """Norm, a product with its activation, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def test_a_call_is_one_launch_on_the_callers_stream(gpu: FakeDriver) -> None:
    model = Net().cuda().eval().requires_grad_(False)
    program = compiled(model)
    for seed in range(3):
        before = len(gpu.calls)
        same(program(drawn(4, 16, seed=seed)), model(drawn(4, 16, seed=seed)))
    # The second compiled call: arguments of nodes, then one launch.
    assert set(gpu.calls[before:-1]) <= {"set_kernel"} and gpu.calls[-1] == "launch"
    assert gpu.streams[-1] == 7


def test_results_are_as_eager_makes_them(gpu: FakeDriver) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        h = torch.softmax(x, -1) * y.t()
        return h, h.t(), h[1:], x, (x + 1.0).sum(0)

    x, y = drawn(6, 8), drawn(8, 6, seed=1)
    program = compiled(function)
    for _ in range(2):
        found = program(x, y)
        same(found, function(x, y))
        assert found[3] is x and found[1].data_ptr() == found[0].data_ptr()


def test_operators_without_a_kernel_are_torchs(gpu: FakeDriver) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.sort(x * 2.0, -1)[0].exp().sum(0)

    program = compiled(function)
    program(drawn(5, 7))
    before = len(gpu.calls)
    same(program(drawn(5, 7, seed=1)), function(drawn(5, 7, seed=1)))
    assert gpu.calls[before:].count("launch") == 2


def test_writes_are_seen_and_counted(gpu: FakeDriver) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: Tensor
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.seen += x.sum(0)
            x.mul_(2.0)
            return x * self.seen

    ours, eager = Counts().cuda(), Counts().cuda()
    program = compiled(ours)
    for seed in range(3):
        x, y = drawn(4, 3, seed=seed), drawn(4, 3, seed=seed)
        before = x._version
        same(program(x), eager(y))
        same((x, ours.seen), (y, eager.seen))
        assert x._version > before


def test_a_tensor_that_begins_anywhere_has_kernels_of_its_own(gpu: FakeDriver) -> None:
    whole = drawn(65)
    program = compiled(lambda x: torch.softmax(x * 2.0, -1))
    for begin in (0, 1, 0, 3):
        x = whole[begin : begin + 32]
        same(program(x), torch.softmax(x * 2.0, -1))


def test_the_device_is_guarded(gpu: FakeDriver) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.relu(x) + 1.0

    program = compiled(function)
    for x in (drawn(8), drawn(8).cpu(), drawn(8, seed=1), drawn(8, seed=1).cpu()):
        same(program(x), function(x))
    assert gpu.calls.count("launch") == 1


def test_another_stream_waits_for_the_last(gpu: FakeDriver) -> None:
    program = compiled(lambda x: x.exp())
    x = drawn(8)
    for stream in (7, 7, 9):
        gpu.device.stream = stream
        program(x)
    assert gpu.calls[-2:] == ["order", "launch"] and gpu.streams[-1] == 9
    assert gpu.device.used == [9]


def test_a_callers_capture_gets_torchs_operators(gpu: FakeDriver) -> None:
    program = compiled(lambda x: x.exp() + 1.0)
    x = drawn(8)
    program(x), program(x)
    before = len(gpu.calls)
    gpu.device.is_capturing = True
    captured = program(x)
    assert gpu.calls[before:] == []
    gpu.device.is_capturing = False
    same(captured, x.exp() + 1.0)
    same(program(x), x.exp() + 1.0)
    assert gpu.calls[-1] == "launch"


def test_without_a_driver_eager_answers_and_says_why_once(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise unusable("there is no driver of a GPU here", "libcuda is not found", "install it")

    monkeypatch.setattr(machine, "CudaDriver", none)
    program = smelt.compile(lambda x: x.exp() * 2.0)
    with pytest.warns(SmeltWarning, match="no driver of a GPU"):
        program(drawn(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(program(drawn(8)), drawn(8).exp() * 2.0)


@pytest.mark.parametrize("call", ["load_module", "instantiate", "launch"])
def test_a_call_that_fails_is_eagers_and_nothing_is_left(gpu: FakeDriver, call: str) -> None:
    program = smelt.compile(lambda x: x.exp() * 2.0)
    program(drawn(8))
    gpu.fail, gpu.fail_at = call, 0
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        same(program(drawn(8)), drawn(8).exp() * 2.0)
    same(program(drawn(8, seed=1)), drawn(8, seed=1).exp() * 2.0)


def test_an_index_out_of_range_is_told_at_a_later_call_and_once(gpu: FakeDriver) -> None:
    table, good = drawn(5, 4), torch.tensor([0, 4, 2]).cuda()
    program = smelt.compile(lambda t, i: F.embedding(i, t) * 2.0)
    program(table, good)
    program(table, good + 3)
    with pytest.raises(LateError, match="an index out of range") as caught:
        program(table, good)
    assert caught.value.code == "S0406" and "test_compile_cuda.py" in str(caught.value)
    before = gpu.calls.count("launch")
    same(program(table, good), F.embedding(good, table) * 2.0)
    assert gpu.calls.count("launch") == before + 1 and "wait" not in gpu.calls


@pytest.mark.usefixtures("young_heap")
def test_an_index_out_of_range_is_told_by_any_program(gpu: FakeDriver) -> None:
    table, good, bad = drawn(5, 4), torch.tensor([0, 4]).cuda(), torch.tensor([0, 9]).cuda()
    first, second, other = (smelt.compile(f) for f in (lambda t, i: t[i] * 2.0, lambda t, i: t[i] * 3.0, torch.exp))
    for _ in range(2):
        first(table, good), second(table, good), other(table)
    first(table, bad)
    with pytest.raises(LateError, match="index out of range") as caught:
        other(table)
    assert "test_compile_cuda.py" in str(caught.value)
    same(other(table), table.exp())
    second(table, bad)
    del second  # what a program that is gone has found is told, too
    gc.collect()
    with pytest.raises(LateError, match="index out of range"):
        first(table, good)
    same(other(table), table.exp())


def test_an_index_out_of_range_is_told_where_the_process_ends(gpu: FakeDriver) -> None:
    table, good, bad = drawn(5, 4), torch.tensor([0, 4]).cuda(), torch.tensor([0, 9]).cuda()
    program = smelt.compile(lambda t, i: t[i] * 2.0)
    program(table, good), program(table, good), program(table, bad)
    with pytest.warns(SmeltWarning, match="index out of range"):
        machine.warn_at_exit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        machine.warn_at_exit()


@pytest.mark.usefixtures("young_heap")
def test_a_device_that_is_lost_is_eagers_answer_or_error(gpu: FakeDriver) -> None:
    """Every call of the driver fails from some moment on, also where programs go and the process ends."""
    program = smelt.compile(lambda t, i: t[i] * 2.0)
    table, index = drawn(5, 4), torch.tensor([0, 4]).cuda()
    program(table, index), program(table, index)
    gpu.lost = True
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        same(program(table.clone(), index), table[index] * 2.0)
    assert any("failed" in str(one.message) for one in said), [str(one.message) for one in said]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del program
        gc.collect()
        machine.warn_at_exit()


def test_pinned_and_managed_memory_of_the_host_are_the_hosts(gpu: FakeDriver) -> None:
    """A tensor's device alone says where it is: memory that a GPU could read as well is an argument of the CPU's."""

    def function(x: Tensor, number: Tensor) -> Tensor:
        return torch.relu(x * number) + 1.0

    program = smelt.compile(function)
    x, number = drawn(4, 8), torch.tensor(2.0)  # as pinned memory is, a tensor of the CPU's
    for seed in range(3):
        same(program(drawn(4, 8, seed=seed), number + seed), function(drawn(4, 8, seed=seed), number + seed))
    with pytest.raises(RuntimeError):
        program(x, torch.ones(8)[:7])


def test_sizes_are_free_without_another_capture(gpu: FakeDriver) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x * 2.0 + 1.0, -1).sum(0)

    program = smelt.compile(function, dynamic=True, fullgraph=True)
    for rows in (3, 5, 4, 7, 5, 12):
        x = drawn(rows, 8, seed=rows)
        same(program(x), function(x))
    stats = program.stats()
    assert len(stats.rows) <= 2 and stats.fallbacks == {}
    # Kernels take sizes as words, so those of one size run for others with the same factors of two; so does the graph,
    # whose nodes take other words and blocks.
    assert gpu.calls.count("load_module") == len(gpu.modules) <= 4
    assert len(gpu.executables) < len(gpu.streams)
    before = len(gpu.calls)
    for rows in (9, 11, 13):
        same(program(drawn(rows, 8)), function(drawn(rows, 8)))
    assert {*gpu.calls[before:]} == {"set_kernel", "launch"}


def test_a_branch_on_data_and_a_loop_that_the_host_drives_say_so(gpu: FakeDriver) -> None:
    gpu.version = 12020  # without conditional nodes

    def function(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = (x * 2.0).exp()
        while x.sum() < 100.0:
            x = x * 2.0 + 1.0
        return torch.relu(x) - 1.0

    program = smelt.compile(function)
    for sign in (1.0, -1.0, 1.0, -1.0, 1.0):
        x = drawn(4, 8).abs() * sign
        before = gpu.calls.count("launch")
        same(program(x), function(x))
    assert gpu.calls.count("launch") > before + 1
    report = smelt.explain(program, x).to_text(everything=True)
    assert "which waits for the GPU" in report and "test_compile_cuda.py" in report


@pytest.mark.usefixtures("young_heap")
def test_what_no_program_needs_is_given_back(gpu: FakeDriver) -> None:
    program, other = (compiled(lambda x: x.exp() * 2.0) for _ in range(2))
    for _ in range(2):
        program(drawn(8)), other(drawn(8))
    assert len(gpu.modules) == 1 and gpu.executables
    del program
    gc.collect()
    same(other(drawn(8)), drawn(8).exp() * 2.0)
    del other
    gc.collect()
    assert gpu.nothing_left


@pytest.mark.parametrize(("momentum", "most"), [(0.0, 1), (0.9, 1)])
def test_a_whole_training_step_is_launches_alone(momentum: float, most: int) -> None:
    apart(train, momentum, most)


def train(gpu: FakeDriver, momentum: float, most: int) -> None:
    """A step has so many launches at most, and leaves the parameters that eager's leaves."""

    def stepping(model: nn.Module) -> Callable[[Tensor], Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)

        def step(x: Tensor) -> Tensor:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    ours = nn.Sequential(nn.Linear(16, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 4)).cuda()
    eager = copy.deepcopy(ours)
    program, step = smelt.compile(stepping(ours)), stepping(eager)
    for seed in range(5):
        before = len(gpu.calls)
        same(program(drawn(4, 16, seed=seed)), step(drawn(4, 16, seed=seed)))
    assert 1 <= gpu.calls[before:].count("launch") <= most
    assert program.stats().rows[0].entry.lowered.report.counts.keys() <= {
        "kernel",
        "view",
        "static",
        "state",
        "in place",
    }
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach().cpu(), rtol=1e-5, atol=1e-6)


def test_gradients_go_back_by_one_launch() -> None:
    apart(go_back)


def go_back(gpu: FakeDriver) -> None:
    """A compiled model's backward is one launch, and its gradients are eager's."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.inner(x))
            return h * 2.0, h.t().exp()

    ours, eager = Two().cuda(), Two().cuda()
    eager.load_state_dict(ours.state_dict())
    program = smelt.compile(ours)
    # Of one result only, of both, and a gradient that lies otherwise than its result.
    for seed, loss in enumerate((lambda a, b: a.sum(), lambda a, b: (a * b.t()).sum(), lambda a, b: b.t().sum())):
        x, y = (drawn(6, 8, seed=seed).requires_grad_() for _ in range(2))
        program(x)
        found, want = loss(*program(x)), loss(*eager(y))
        before = gpu.calls.count("launch")
        found.backward(), want.backward()
        assert gpu.calls.count("launch") == before + 1
        same((x.grad, ours.inner.weight.grad), (y.grad, eager.inner.weight.grad))
        ours.zero_grad(), eager.zero_grad()


def test_memory_that_cannot_be_had_raises_as_eager_and_the_next_call_works(
    gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_torch, left = gpu_of_torch.empty, [1]

    def scarce(*args: Any) -> Tensor:
        if left:
            left.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return from_torch(*args)

    program = smelt.compile(lambda x: x.exp() * 2.0)
    program(drawn(8)), program(drawn(8))
    monkeypatch.setattr(gpu_of_torch, "empty", scarce)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        program(drawn(8, seed=1))
    before = gpu.calls.count("launch")
    same(program(drawn(8, seed=2)), drawn(8, seed=2).exp() * 2.0)
    assert not left and gpu.calls.count("launch") == before + 1


def test_tensors_on_several_gpus_are_refused_with_both_names() -> None:
    text = """graph f(%x: f32[4]@"cuda:0", %y: f32[4]@"cuda:1") -> f32[4]@"cuda:1" {
      return %y
    }"""
    with pytest.raises(SmeltError, match="cuda:0 and cuda:1") as caught:
        gpu_of(smelt.parse(text))
    assert caught.value.code == "S0303"
