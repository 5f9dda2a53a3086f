"""Times of instructions, natively, in Python and inside regions of threads, and ranges in torch's profiler."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from smelt.codegen.llvm.walkers.executor import executor_object
from smelt.runtime import calls
from smelt.runtime.encoding import encode
from smelt.runtime.executable import Executable
from smelt.runtime.machine.cache import code_cache
from smelt.runtime.plan import ArenaTensor, Dispatch, Empty, Plan, PyCall, Release, Use
from smelt.runtime.profile import ADDRESSES, THREADS, ProfileRow
from tests.runtime.kernels import rows

f32 = torch.float32
N, ITEMS = 64, 256


def plan_of(*, item_ns: float = 0.0, profile: bool = True, python: bool = False) -> Plan:
    launch = rows(1, 0, N, ITEMS, item_ns=item_ns)
    steps = (
        launch,
        rows(1, 0, N, ITEMS, item_ns=item_ns, scale=3.0),
        calls.add(2, 1, 1),
        Dispatch(torch.ops.aten.relu.default, (Use(2),), (3,)),
        Empty(4, (ITEMS, N), (N, 1), f32),
        rows(4, 3, N, ITEMS, item_ns=item_ns),
        PyCall(lambda t: t.add_(1), (4,)) if python else Release((2,)),
        Release((2, 3)) if python else Release((3,)),
    )
    arena = (ArenaTensor(1, 0, (ITEMS, N), (N, 1), f32),)
    origins = tuple(f"step {i}" for i in range(len(steps)))
    return Plan(
        5, (0,), (4,), steps, arena=arena, arena_nbytes=4 * N * ITEMS, origins=origins, profile=profile
    )  # fmt: skip


def measuring() -> bytes:
    return executor_object(code_cache(""), profile=True)


def want(x: torch.Tensor) -> torch.Tensor:
    y = x * 3 + 1
    return (y + y).relu() * 2 + 1


def by_index(rows_: tuple[ProfileRow, ...]) -> dict[int, ProfileRow]:
    return {row.index: row for row in rows_ if row.index >= 0}


def test_every_instruction_has_its_times() -> None:
    executable = Executable(plan_of(), measuring())
    assert executable.is_native and executable.profile() == ()
    x = torch.randn(ITEMS, N)
    for _ in range(5):
        assert torch.equal(executable.call(x)[0], want(x))
    found = executable.profile()
    own = by_index(found)
    assert sorted(own) == list(range(8)) and all(row.calls == 5 for row in own.values())
    assert all(0 <= 5 * row.min_ns <= row.total_ns for row in own.values())
    assert own[0].label == "rows x2.0" and own[0].origin == "step 0" and own[3].label == "aten.relu.default"
    assert own[0].min_ns > own[6].min_ns  # a pass over 16,384 elements against one deletion
    assert [row.label for row in found if row.index < 0] == [ADDRESSES]


def test_regions_of_threads_are_told_apart() -> None:
    plan = plan_of(item_ns=1000.0)
    assert encode.encode(plan).team_limit > 1
    executable = Executable(plan, measuring())
    x = torch.randn(ITEMS, N)
    for count in (1, 2):
        torch.set_num_threads(count)
        for _ in range(3):
            assert torch.equal(executable.call(x)[0], want(x))
    found = executable.profile()
    assert all(row.calls == 6 for row in by_index(found).values())
    assert [row.calls for row in found if row.label == THREADS] == [6]


def test_the_interpreter_measures_too() -> None:
    executable = Executable(plan_of(python=True), None)
    x = torch.randn(ITEMS, N)
    assert torch.equal(executable.call(x)[0], want(x) + 1)
    own = by_index(executable.profile())
    assert sorted(own) == list(range(7)) and all(row.calls == 1 and row.min_ns > 0 for row in own.values())


def test_without_the_option_there_is_nothing() -> None:
    plain = plan_of(profile=False)
    encoded = encode.encode(plain)
    assert encoded.profile is None and len(encode.encode(plan_of()).starts) > len(encoded.starts)
    x = torch.randn(ITEMS, N)
    for code in (measuring(), executor_object(code_cache("")), None):
        executable = Executable(plain, code)
        assert torch.equal(executable.call(x)[0], want(x)) and executable.profile() == ()
    # and the code that does not measure runs a plan that asks for it
    executable = Executable(plan_of(), executor_object(code_cache("")))
    assert torch.equal(executable.call(x)[0], want(x)) and executable.profile() == ()


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_ranges_in_torchs_profiler() -> None:
    executable = Executable(plan_of(item_ns=1000.0), measuring())
    torch.set_num_threads(2)
    x = torch.randn(ITEMS, N)
    executable.call(x)
    with profile(activities=[ProfilerActivity.CPU]) as session:
        for _ in range(3):
            executable.call(x)
    names = [event.name for event in session.events()]
    assert [names.count(name) for name in ("rows x2.0", "rows x3.0", "aoti_torch_cpu_add_Tensor")] == [6, 3, 3]


def test_a_range_ends_when_its_call_fails() -> None:
    """The same holds for every later call: none is left open."""
    executable = Executable(plan_of(), measuring())
    x = torch.rand(ITEMS, N)
    bad = x.clone()
    bad[0, 0] = -1
    with profile(activities=[ProfilerActivity.CPU]) as session:
        for data in (bad, x, bad, x):
            try:
                executable.call(data)
            except IndexError:
                continue
    names = [event.name for event in session.events()]
    assert names.count("rows x2.0") == 6 and names.count("rows x3.0") == 2
