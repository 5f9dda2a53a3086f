"""Training steps and other programs that write on a GPU: in one launch, where it is written, compiled once.

The GPU is one that is not there (`fake_cuda`): eager's operators are the CPU's, and our launches are interpreted.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from tests.training.test_gradient_scaling import run_beside_eager
from tests.triton.fake_cuda import fake_gpu
from tests.triton.fake_driver import FakeDriver
from tests.triton.harness import apart
from tests.triton.test_compile_cuda import compiled, drawn, same


@pytest.fixture
def gpu() -> Iterator[FakeDriver]:
    with fake_gpu() as driver:
        yield driver


class Training:
    """A model with an optimizer, and its step."""

    def __init__(self, model: nn.Module, optimizer: str, options: dict[str, Any]) -> None:
        self.model = model
        self.optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05, **options)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def __call__(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def counts(program: Any) -> dict[str, int]:
    """How the nodes run that the last entry has, by kinds."""
    return dict(program.stats().rows[-1].entry.lowered.report.counts)


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("optimizer", "options", "is_scheduled"),
    [
        ("AdamW", {}, False),
        ("AdamW", {"foreach": False, "amsgrad": True}, False),
        ("AdamW", {"capturable": True}, False),
        ("AdamW", {"capturable": True, "foreach": False, "amsgrad": True}, False),
        ("AdamW", {}, True),
        ("SGD", {"momentum": 0.9, "nesterov": True}, True),
    ],
)
def test_a_step_is_compiled_once_for_all_counts_of_steps(
    optimizer: str, options: dict[str, Any], is_scheduled: bool
) -> None:
    apart(step_often, optimizer, options, is_scheduled)


def step_often(gpu: FakeDriver, optimizer: str, options: dict[str, Any], is_scheduled: bool) -> None:
    """Steps are one launch each, that writes parameters and moments where they are, as eager's steps leave them."""
    model = nn.Linear(3, 2).cuda()
    ours, eager = (Training(copy.deepcopy(model), optimizer, options) for _ in range(2))
    program = smelt.compile(ours)
    for seed in range(7 if is_scheduled else 5):
        before, builds = len(gpu.calls), program.stats().builds
        same(program(drawn(4, 3, seed=seed)), eager(drawn(4, 3, seed=seed)))
        if is_scheduled:
            ours.schedule.step(), eager.schedule.step()
        for mine, theirs in zip(ours.model.parameters(), eager.model.parameters(), strict=True):
            assert mine._version > 0
            torch.testing.assert_close(mine.detach().cpu(), theirs.detach().cpu())
            for name, value in eager.optimizer.state[theirs].items():
                found = ours.optimizer.state[mine][name]
                torch.testing.assert_close(found.cpu(), value.cpu(), rtol=1e-5, atol=1e-7)
    assert program.stats().builds == builds and len(program.stats().rows) == 1
    assert gpu.calls[before:].count("launch") == 1 and gpu.calls[-1] == "launch" and "wait" not in gpu.calls
    if is_scheduled:
        return  # a plan for any learning rate
    found = counts(program)
    # What is copied are counts of steps, which are the host's.
    assert found.get("copy", 0) <= 2 and "python" not in found and "dispatch" not in found
    assert found["in place"] >= 4


def test_what_is_read_otherwise_is_written_behind_that(gpu: FakeDriver) -> None:
    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a: Tensor
            self.b: Tensor
            self.c: Tensor
            for name in "abc":
                self.register_buffer(name, torch.arange(12.0).view(3, 4))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            before = self.a.flip(0) + x  # of what is there before
            self.a.add_(x)
            self.b.copy_(self.b.flip(1) * 2.0)  # each element of another one
            self.c.copy_(torch.softmax(x, -1))  # nothing of it is read
            return before, self.c.sum(0)

    ours, eager = Turns().cuda(), Turns().cuda()
    program = compiled(ours)
    for seed in range(3):
        x = drawn(3, 4, seed=seed)
        same(program(x), eager(x))
        same((ours.a, ours.b, ours.c), (eager.a, eager.b, eager.c))
    # What is written where it is: no other element of it is read.
    assert counts(program)["in place"] == 1 and counts(program)["copy"] == 2


def test_what_several_kernels_compute_anew_reads_what_was_there_before(gpu: FakeDriver) -> None:
    def function(count: Tensor, scale: Tensor, x: Tensor) -> Tensor:
        more = count + 1  # cheap enough to be computed in each kernel that needs it
        y = torch.softmax(x * more, -1)
        scale.copy_(torch.where(more == 2, scale * 1.7, scale))
        count.copy_(torch.where(more == 2, 0, more))
        return y @ y.t() * more

    program = compiled(function)
    ours, eager = ([torch.zeros(()).cuda(), torch.ones(()).cuda()] for _ in range(2))
    for seed in range(5):
        x = drawn(4, 4, seed=seed)
        same(program(*ours, x), function(*eager, x))
        same(tuple(ours), tuple(eager))


def test_a_callers_capture_has_writes(gpu: FakeDriver) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(y)
        return x + 1.0

    program = compiled(function)
    x, want, y = drawn(8), drawn(8), drawn(8, seed=1)
    for is_capturing in (False, False, True, False):
        gpu.device.is_capturing = is_capturing
        found, eager = program(x, y), function(want, y)
        gpu.device.is_capturing = False
        same(found, eager)
        same(x, want)


def test_numbers_of_the_host_are_arguments_of_a_launch(gpu: FakeDriver) -> None:
    def function(x: Tensor, n: float, k: int) -> Tensor:
        return (x * n).exp() + k

    program = smelt.compile(function, dynamic=True)
    for n, k in ((0.5, 2), (0.25, 3), (-1.0, 4), (2.0, 5)):
        same(program(drawn(4, 8), n, k), function(drawn(4, 8), n, k))
    before = gpu.calls.count("load_module")
    same(program(drawn(4, 8), 0.125, 9), function(drawn(4, 8), 0.125, 9))
    assert gpu.calls.count("load_module") == before and gpu.calls[-1] == "launch"


def test_a_number_beyond_an_elements_range_raises_as_eager(gpu: FakeDriver) -> None:
    def function(x: Tensor, a: Tensor, n: Tensor) -> Tensor:
        x.addcmul_(a, a, value=n.item())
        return x

    program = compiled(function)
    for number in (2.0, 3.0, 1e300, 0.5):
        n = torch.tensor(number, dtype=torch.float64)
        try:
            want = function(drawn(4), drawn(4, seed=1), n)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)):
                program(drawn(4), drawn(4, seed=1), n)
        else:
            same(program(drawn(4), drawn(4, seed=1), n), want)


@pytest.mark.parametrize("fused", [True, False])
def test_scaled_gradients_under_autocast_are_inside_the_step(fused: bool) -> None:
    apart(scaled, fused)


def scaled(gpu: FakeDriver, fused: bool) -> None:
    """torch's fused optimizer asks nothing; of another one the host reads whether a gradient overflowed."""
    program = run_beside_eager("AdamW", {"eps": 0.1, "fused": fused}, torch.bfloat16, 0.0, "cuda")
    found = counts(program)
    if fused:
        assert found.keys() <= {"state", "static", "kernel", "view", "in place", "copy"}, found
        assert "wait" not in gpu.calls
    else:
        report = smelt.explain(program).to_text(everything=True)
        assert "which waits for the GPU" in report and "test_gradient_scaling.py" in report
