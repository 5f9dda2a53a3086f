"""Branches and loops that the GPU decides: a whole call, from guards to the driver, beside eager.

One launch runs all of it: the driver's recorded calls, and what reads the device's memory for the host, say so. The GPU
is one that is not there (`fake_cuda`), whose conditional nodes hold to what is documented of them (`fake_driver`).
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.diag import LateError
from smelt.runtime.cuda.conditions import NAME
from tests.triton.fake_cuda import fake_gpu
from tests.triton.fake_driver import FakeDriver
from tests.triton.test_compile_cuda import drawn, same


@pytest.fixture
def gpu() -> Iterator[FakeDriver]:
    with fake_gpu(compiles=False) as driver:
        yield driver


def number(value: Any, **options: Any) -> Tensor:
    return torch.tensor(value, **options).cuda()


def tree(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


class Call:
    """What a call of a compiled program gives, asks of the driver, and reads of the device's memory."""

    def __init__(self, gpu: FakeDriver, program: Any, *args: Any) -> None:
        calls, ran, waits = len(gpu.calls), len(gpu.ran), len(gpu.device.waits)  # type: ignore[attr-defined]
        self.found = program(*args)
        self.calls, self.ran = gpu.calls[calls:], gpu.ran[ran:]
        self.waits = gpu.device.waits[waits:]  # type: ignore[attr-defined]


def alike(found: Any, want: Any) -> None:
    for ours, eager in zip(tree(found), tree(want), strict=True):
        if isinstance(eager, Tensor):
            same(ours, eager)
        else:
            assert type(ours) is type(eager) and ours == eager


def one_launch(gpu: FakeDriver, function: Callable[..., Any], *calls: tuple[Any, ...], waits: int = 0) -> Any:
    """Compiled, all calls give what eager gives, by one launch each and with so many reads; the compiled object."""
    program = smelt.compile(function, fullgraph=True)
    for args in calls:
        program(*args)
    for args in (*calls, *calls[::-1]):
        call = Call(gpu, program, *args)
        alike(call.found, function(*args))
        assert call.calls.count("launch") == 1 and "wait" not in call.calls, call.calls
        assert call.calls[-1] == "launch" and len(call.waits) == waits, (call.calls, call.waits)
    stats = program.stats()
    assert len(stats.rows) == 1 and stats.fallbacks == {}
    return program


# --- branches


def test_a_branch(gpu: FakeDriver) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2.0 if x.sum() > 0 else torch.softmax(x, -1) - x.t()
        return y + 1.0

    one_launch(gpu, function, (drawn(6, 6).abs(),), (-drawn(6, 6).abs(),))


def test_only_the_arm_that_is_taken_runs(gpu: FakeDriver) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.exp() if x.sum() > 0 else torch.softmax(x, -1).cumsum(-1)
        return y + 1.0

    program = one_launch(gpu, function, (drawn(4, 8).abs(),), (-drawn(4, 8).abs(),))
    here, there = (set(Call(gpu, program, sign * drawn(4, 8).abs()).ran) for sign in (1.0, -1.0))
    assert NAME in here & there and here - there and there - here


def test_a_branch_without_its_first_arm(gpu: FakeDriver) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        if x.sum() > 0:
            pass
        else:
            y = y * 3.0
        return y.exp()

    one_launch(gpu, function, (drawn(8), drawn(8, seed=1)), (-drawn(8), drawn(8, seed=1)))


def test_an_argument_that_comes_out_unchanged_is_that_argument(gpu: FakeDriver) -> None:
    def function(x: Tensor) -> Tensor:
        return x if x.sum() > 0 else x + 1.0

    # Which of the two it is has to be known, so the host reads one number.
    program = one_launch(gpu, function, (drawn(8).abs(),), (-drawn(8).abs(),), waits=1)
    x = drawn(8).abs()
    assert program(x) is x and program(-x) is not x


def test_arms_give_one_value_twice_and_views_of_others(gpu: FakeDriver) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if x.sum() > 0:
            a = b = x * 2.0
            c = y[1:3].t()
        else:
            a, b, c = y.t().contiguous(), y * 0.5, x[2:].t()
        return a + 1.0, b - 1.0, c * 2.0

    x, y = drawn(4, 4), drawn(4, 4, seed=1)
    one_launch(gpu, function, (x.abs(), y), (-x.abs(), y))


def test_branches_one_behind_another_and_in_one_another(gpu: FakeDriver) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 1.0
        if x[0].sum() > 0:
            y = y.exp()
            if y.sum() > 20:
                y = y / y.sum()
                if y.max() > 0.5:
                    y = y * 2.0
            else:
                y = y - 1.0
        if x[1].sum() > 0:
            y = y + x
        return y.sum(0) + 1.0

    rows = [(a, b) for a in (0.1, 3.0, -1.0) for b in (1.0, -1.0)]
    calls = [(torch.stack([a * drawn(8).abs(), b * drawn(8, seed=2).abs()]),) for a, b in rows]
    one_launch(gpu, function, *calls)


def test_numbers_and_bools_of_branches_stay_on_the_gpu(gpu: FakeDriver) -> None:
    def function(x: Tensor) -> Tensor:
        is_large, count, scale = False, 1, 0.5
        if x.sum() > 0:
            is_large, count, scale = True, 3, x.max().item()
        if not is_large and x.min() < -2:
            count = count + 4
        if count > 2:
            x = x.double() * scale * count
        else:
            x = x.double() - scale
        return x + 1.0

    calls = [(drawn(8).abs(),), (-drawn(8).abs(),), (-drawn(8).abs() - 2.0,)]
    one_launch(gpu, function, *calls)


def test_a_write_behind_a_branch(gpu: FakeDriver) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: Tensor
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                self.seen += x.sum(0)
            return x * self.seen

    ours, eager = Counts().cuda(), Counts().cuda()
    program = smelt.compile(ours, fullgraph=True)
    for k in range(7):
        x = drawn(4, 8, seed=k).abs() * (-1.0 if k % 3 == 0 else 1.0)
        call, want = Call(gpu, program, x), eager(x)
        same(call.found, want), same(ours.seen, eager.seen)
        if k > 3:
            assert call.calls.count("launch") == 1 and call.waits == []


# --- loops


def test_a_loop_until_it_converges(gpu: FakeDriver) -> None:
    def function(x: Tensor) -> Tensor:
        while x.abs().max() > 0.1:
            x = x * 0.5 + x.mean() * 0.125
        return x * 2.0

    # Among these: no turn at all.
    calls = [(drawn(4, 8),), (drawn(4, 8) * 100.0,), (drawn(4, 8) * 0.001,)]
    program = one_launch(gpu, function, *calls)
    turns = [Call(gpu, program, *call).ran.count(NAME) - 1 for call in calls]
    assert turns[1] > turns[0] > 0 == turns[2]


def test_a_loop_whose_end_is_data(gpu: FakeDriver) -> None:
    def function(x: Tensor, n: Tensor) -> Tensor:
        h = x
        for i in range(int(n)):
            h = torch.tanh(h) * 2 + i
        return h * 1.0

    program = one_launch(gpu, function, *((drawn(4, 8), number(n)) for n in (3, 0, 1, -2, 7)))
    assert Call(gpu, program, drawn(4, 8), number(5)).ran.count(NAME) == 6


def test_a_loop_that_counts_down_and_by_more_than_one(gpu: FakeDriver) -> None:
    def function(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        h = g = x + 0.0
        for i in range(9, int(n), -2):
            h = h * 0.5 + i
        for j in range(int(n), 4):
            g = g * 0.5 - j
        return h * 1.0, g * 1.0

    one_launch(gpu, function, *((drawn(8), number(n)) for n in (0, 1, 8, 9, 30, 3)))


def test_a_loop_whose_end_the_host_knows(gpu: FakeDriver) -> None:
    def function(x: Tensor, n: int) -> Tensor:
        h = x
        for _ in range(n):
            h = torch.tanh(h) * 2
        return h + 1.0

    program = smelt.compile(function, fullgraph=True)
    for n in (3, 5, 4):
        program(drawn(4, 8), n)
    for n in (6, 0, 9):
        call = Call(gpu, program, drawn(4, 8), n)
        same(call.found, function(drawn(4, 8), n))
        assert call.calls.count("launch") == 1 and call.waits == [] and call.ran.count(NAME) == n + 1


def test_what_is_carried_changes_places(gpu: FakeDriver) -> None:
    def function(x: Tensor, y: Tensor, z: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        a, b, c = x * 1.0, y * 1.0, z * 1.0
        for _ in range(int(n)):
            a, b, c = b, c, a
        return a + 0.5, b + 0.5, c + 0.5

    one_launch(gpu, function, *((drawn(8), drawn(8, seed=1), drawn(8, seed=2), number(n)) for n in (1, 2, 3, 0, 4)))


def test_a_carried_value_is_used_after_its_next_one_is_computed(gpu: FakeDriver) -> None:
    def function(x: Tensor, y: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x * 1.0, y * 1.0
        i = number(0)
        while i < n:
            a, b = a + b, a
            i = i + 1
        return a * 2.0, b * 2.0

    one_launch(gpu, function, *((drawn(8), drawn(8, seed=1), number(n)) for n in (1, 2, 5, 0)))


def test_a_turn_reads_other_elements_of_what_it_writes(gpu: FakeDriver) -> None:
    def function(x: Tensor, n: Tensor) -> Tensor:
        a = x * 1.0
        for _ in range(int(n)):
            a = a + a.t() + a.flip(0)
        return a * 1.0

    one_launch(gpu, function, *((drawn(6, 6), number(n)) for n in (1, 2, 3)))


def test_a_carried_square_is_turned(gpu: FakeDriver) -> None:
    def function(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x * 1.0, x * 2.0
        for _ in range(int(n)):
            a, b = a.t().contiguous(), a.t().contiguous() + b
        return a * 1.0, b * 1.0

    one_launch(gpu, function, *((drawn(6, 6), number(n)) for n in (1, 2, 3)))


def test_one_value_is_carried_twice(gpu: FakeDriver) -> None:
    def function(x: Tensor, y: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x * 1.0, y * 1.0
        for _ in range(int(n)):
            a = b = a * b + 1.0
        return a * 2.0, b * 3.0

    one_launch(gpu, function, *((drawn(8), drawn(8, seed=1), number(n)) for n in (1, 2, 3, 0)))


def test_a_first_value_is_needed_behind_the_loop(gpu: FakeDriver) -> None:
    def function(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first = x.exp()
        a = first
        for _ in range(int(n)):
            a = a * 0.5
        return a + first, first * 2.0, x * 1.0

    one_launch(gpu, function, *((drawn(8), number(n)) for n in (1, 3, 0)))


def test_values_from_around_a_loop_last_through_all_turns(gpu: FakeDriver) -> None:
    def function(x: Tensor, n: Tensor) -> Tensor:
        w, m = x.exp(), x.sum(0)
        a = x * 1.0
        for _ in range(int(n)):
            t = torch.softmax(a * w, -1)
            u = t.cumsum(0) + m
            v = u.flip(1) - t
            a = a + v * 0.1
        return a + w

    one_launch(gpu, function, *((drawn(5, 7), number(n)) for n in (1, 4, 0)))


def test_loops_in_loops_and_branches_in_them(gpu: FakeDriver) -> None:
    def function(x: Tensor, n: Tensor) -> Tensor:
        a = x * 1.0
        for i in range(int(n)):
            b = a * 0.5
            while b.abs().max() > 0.05:
                b = b * 0.25
                if b.sum() > 0:
                    b = b - b.mean()
            a = a + b * i if a.sum() > 0 else a - b
        return a * 1.0

    one_launch(gpu, function, *((s * drawn(4, 8), number(n)) for s in (1.0, -1.0) for n in (1, 3, 0)))


class Recurrent(nn.Module):
    """A recurrent network that stops when its state is at rest."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.state = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, steps: Tensor, h: Tensor) -> Tensor:
        for t in range(steps.shape[0]):
            h = torch.tanh(self.up(steps[t]) + self.state(h))
            if h.abs().max() < 0.01:
                break
        return h


def test_a_recurrent_network_that_stops_early(gpu: FakeDriver) -> None:
    torch.manual_seed(3)
    model = Recurrent().cuda().eval().requires_grad_(False)
    for parameter in (model.state.weight, model.state.bias, model.up.bias):
        parameter.mul_(0.25 if parameter.dim() == 2 else 0.0)
    steps, h = drawn(40, 4, 8), drawn(4, 8, seed=1)
    quiet = steps.clone()
    quiet[17:] = 0.0
    program = one_launch(gpu, model, (steps, h), (quiet, h))
    all_, early = (Call(gpu, program, s, h).ran.count(NAME) for s in (steps, quiet))
    assert all_ == 41 and 18 <= early < 41


def test_a_number_that_the_host_wants_is_read_once(gpu: FakeDriver) -> None:
    def function(x: Tensor) -> tuple[Tensor, int]:
        n = 0
        while x.abs().max() > 0.1:
            x = x * 0.5
            n += 1
        return x * 1.0, n

    program = one_launch(gpu, function, (drawn(8),), (drawn(8) * 9.0,), (drawn(8) * 0.0,), waits=1)
    report = str(smelt.explain(program, drawn(8)).to_dict())
    assert "aten.item.default, which waits for the GPU" in report and "decided by the GPU" in report


def test_integers_bools_and_halves_are_carried(gpu: FakeDriver) -> None:
    def function(x: Tensor, k: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        total = torch.zeros((), dtype=torch.int64, device="cuda")
        seen = m.clone()
        while k.sum() > 0:
            total = total + k.sum()
            seen = seen ^ (k > 2)
            x = x * 0.5 + k.to(x.dtype)
            k = k - 1
        return x * 1.0, total + 0, seen.logical_not()

    x, k, m = drawn(8).to(torch.bfloat16), number([3, 1, 0, 2, -1, 4, 0, 1]), drawn(8) > 0
    one_launch(gpu, function, (x, k, m), (x, -k, m))


# --- what is driven by the host, and says why


@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize("prepare", ["version", "refused"])
def test_a_driver_without_conditional_nodes(gpu: FakeDriver, prepare: str) -> None:
    def function(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * 2.0
        while x.abs().max() > 0.1:
            x = x * 0.5
        return x + 1.0

    if prepare == "version":
        gpu.version = 12030
    else:
        gpu.fail = "condition"
    program = smelt.compile(function)
    for sign in (1.0, -1.0, 1.0, -1.0):
        same(program(sign * drawn(8).abs()), function(sign * drawn(8).abs()))
    report = str(smelt.explain(program, drawn(8)).to_dict())
    why = "CUDA 12.3, and conditional nodes need 12.4" if prepare == "version" else "the driver refuses them"
    assert "while, which waits for the GPU" in report and why in report
    assert not gpu.conditions if prepare == "version" else True
    del program
    gc.collect()
    assert gpu.nothing_left


def _sorted(x: Tensor) -> Tensor:
    while x.sum() > 1.0:
        x = torch.sort(x * 0.5)[0]
    return x + 1.0


def _drawn(x: Tensor) -> Tensor:
    while x.sum() > 1.0:
        x = x * torch.rand_like(x)
    return x + 1.0


def _turned(x: Tensor) -> Tensor:
    x = x.reshape(2, 4)
    y = x @ x.t()
    while y.sum() > 1.0:
        y = y.t() * 0.5
    return y + 1.0


def _powers(x: Tensor) -> Tensor:
    n = 1
    while x.sum() > n:
        x, n = x * 0.5, n * 3
    return x + n


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_sorted, "aten.sort"),
        (_drawn, "draws random numbers, as many as the data says"),
        (_powers, "py.mul in it computes a number as only Python does"),
        (_turned, "which is no tensor of known sizes and strides"),
    ],
)
def test_what_stays_with_the_host_and_why(gpu: FakeDriver, function: Callable[..., Tensor], why: str) -> None:
    program = smelt.compile(function)
    for scale in (1.0, 5.0, 0.1, 5.0):
        x = drawn(8).abs() * scale
        found = program(x)
        if function is not _drawn:
            same(found, function(x))
    report = str(smelt.explain(program, drawn(8)).to_dict())
    assert "while, which waits for the GPU" in report and why in report


# --- errors, memory, streams


def test_an_index_out_of_range_in_a_loop_is_told_by_the_next_call(gpu: FakeDriver) -> None:
    def function(table: Tensor, index: Tensor, n: Tensor) -> Tensor:
        a = table[0] * 0.0
        for i in range(int(n)):
            a = a + table[index[i]]
        return a * 1.0

    table, index = drawn(6, 4), number([0, 5, 2, 9])
    program = smelt.compile(function, fullgraph=True)
    for n in (3, 2):
        same(program(table, index, number(n)), function(table, index, number(n)))
    program(table, index, number(4))
    with pytest.raises(LateError, match="index out of range") as caught:
        program(table, index, number(1))
    assert "test_conditions.py" in str(caught.value)
    same(program(table, index, number(3)), function(table, index, number(3)))


def converging(x: Tensor) -> Tensor:
    while x.abs().max() > 0.1:
        x = x * 0.5
    return x + 1.0


@pytest.mark.usefixtures("young_heap")
def test_arguments_of_nodes_in_arms_are_changed_with_the_graph(gpu: FakeDriver) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x * y if x.sum() > 0 else x - y) + y

    program = smelt.compile(function, fullgraph=True)
    x, y = drawn(8).abs(), drawn(8, seed=1)
    program(x, y), program(x, y)
    kept = [(x.clone(), y.clone()) for _ in range(3)]  # at other addresses
    for a, b in kept:
        call = Call(gpu, program, a, b)
        same(call.found, function(x, y))
        assert set(call.calls) == {"set_node", "update", "launch"} and call.calls.count("update") == 1
    # A driver that does not change an executable is given a new one.
    gpu.refuses_updates = True
    for a, b in ((-x, y), (x.clone(), y.clone())):
        call = Call(gpu, program, a, b)
        same(call.found, function(a, b))
        assert call.calls[-4:] == ["update", "destroy_executable", "instantiate", "launch"]
    assert len(gpu.executables) == 1
    del program
    gc.collect()
    assert gpu.nothing_left


def test_sizes_are_free(gpu: FakeDriver) -> None:
    program = smelt.compile(converging, dynamic=True, fullgraph=True)
    for rows in (3, 5, 9, 3, 7):
        same(program(drawn(rows, 8, seed=rows)), converging(drawn(rows, 8, seed=rows)))
    before = gpu.calls.count("instantiate")
    for rows in (11, 13, 15, 3):
        call = Call(gpu, program, drawn(rows, 8))
        same(call.found, converging(drawn(rows, 8)))
        assert call.calls.count("launch") == 1 and call.waits == []
    assert gpu.calls.count("instantiate") == before and program.stats().fallbacks == {}


def test_another_stream_waits_for_the_last(gpu: FakeDriver) -> None:
    program = smelt.compile(converging, fullgraph=True)
    for stream in (7, 7, 9):
        gpu.device.stream = stream  # type: ignore[attr-defined]
        same(program(drawn(8)), converging(drawn(8)))
    assert gpu.calls[-2:] == ["order", "launch"] and gpu.streams[-1] == 9


@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize(
    "call", ["condition", "add_conditional", "add_kernel", "instantiate", "update", "set_node", "launch"]
)
def test_a_call_that_fails_is_eagers_and_nothing_is_left(gpu: FakeDriver, call: str) -> None:
    program = smelt.compile(converging)
    program(drawn(8)), program(drawn(8))
    if call not in ("update", "set_node", "launch"):
        program = smelt.compile(lambda x: converging(x) * 1.0)
        program(drawn(8))
    gpu.fail, gpu.fail_at = call, 0
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        same(program(drawn(8) * 2.0), tree(converging(drawn(8) * 2.0))[0])
    for k in range(3):
        same(program(drawn(8, seed=k)), converging(drawn(8, seed=k)))
    del program
    gc.collect()
    assert gpu.nothing_left


def test_a_callers_capture_is_refused_as_by_eager(gpu: FakeDriver) -> None:
    """While a graph of the caller's is captured no data can be read: the operators run, and torch says so."""
    program = smelt.compile(converging)
    program(drawn(8)), program(drawn(8))
    x, before = drawn(8), len(gpu.calls)
    gpu.device.is_capturing = True  # type: ignore[attr-defined]
    for function in (program, converging):
        with pytest.raises(RuntimeError, match="stream is capturing"):
            function(x)
    assert gpu.calls[before:] == []
    gpu.device.is_capturing = False  # type: ignore[attr-defined]
    call = Call(gpu, program, x)
    same(call.found, converging(x))
    assert call.calls[-1] == "launch"
