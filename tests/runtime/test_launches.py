"""Own kernels in a plan: natively, in Python, with data that a kernel refuses, over memory of every kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from smelt.diag import InternalError, SmeltWarning
from smelt.runtime.executable import Executable
from smelt.runtime.plan import (
    ArenaTensor,
    Call,
    Dispatch,
    Empty,
    Instruction,
    KernelCode,
    Launch,
    Out,
    Plan,
    PyCall,
    Release,
    Use,
    View,
)
from tests.runtime.kernels import ROWS, bits, built, rows, rows_eager

Runner = Callable[[Plan], Executable]
f32 = torch.float32


def vector_text(lanes: int) -> str:
    """out[0:lanes] = x[lanes reversed] + (0, 1, 2, ...) over f32: a shuffle and an addend from a constant pool."""
    ramp = ", ".join(f"float {i}.0" for i in range(lanes))
    order = ", ".join(f"i32 {i}" for i in reversed(range(lanes)))
    return f"""
define i32 @KERNEL(ptr noalias %args, i64 %begin, i64 %end, ptr noalias %scratch) nounwind {{
  %xa = getelementptr i64, ptr %args, i64 1
  %out = load ptr, ptr %args
  %x = load ptr, ptr %xa
  %v = load <{lanes} x float>, ptr %x, align 4
  %r = shufflevector <{lanes} x float> %v, <{lanes} x float> poison, <{lanes} x i32> <{order}>
  %y = fadd <{lanes} x float> %r, <{ramp}>
  store <{lanes} x float> %y, ptr %out, align 4
  ret i32 0
}}
"""


def test_a_launch_writes_its_buffer(runner: Runner) -> None:
    plan = Plan(2, (0,), (1,), (Empty(1, (6, 5), (5, 1), f32), rows(1, 0, 5, 6)))
    executable = runner(plan)
    for _ in range(2):
        x = torch.randn(6, 5)
        torch.testing.assert_close(executable.run([x])[0], x * 2 + 1, rtol=0, atol=0)
    if executable.is_native:
        assert executable.counts.kernels == 1 and executable.counts.python == 0
        assert isinstance(executable.call, type(len))  # launches leave the fast way in open


def test_memory_of_every_kind(runner: Runner) -> None:
    """Inputs with an offset, arena tensors and views of them, held tensors whose memory is exchanged, results."""
    live, fixed = torch.randn(4, 5), torch.randn(4, 5)
    instructions: tuple[Instruction, ...] = (
        View(5, 3, (4, 5), (5, 1), 16, 4),
        rows(5, 0, 5, 4),
        Empty(6, (8, 5), (5, 1), f32),
        View(7, 6, (4, 5), (5, 1), 20, 4),
        View(8, 7, (2, 5), (5, 1), 10, 4),
        View(9, 6, (4, 5), (5, 1), 0, 4),
        rows(9, 5, 5, 4),
        rows(7, 1, 5, 2, scale=3.0),
        rows(8, 2, 5, 2, scale=4.0),
        Release((5, 7, 8, 9)),
    )
    plan = Plan(
        10, (0,), (6,), instructions, held=((1, live), (2, fixed)), fixed=frozenset({2}),
        arena=(ArenaTensor(3, 64, (64,), (1,), f32),), arena_nbytes=64 + 256,
    )  # fmt: skip
    executable = runner(plan)
    for _ in range(2):
        x = torch.randn(5, 5)[1:]
        want = torch.cat([(x * 2 + 1) * 2 + 1, (live * 3 + 1)[:2], (fixed * 4 + 1)[:2]])
        torch.testing.assert_close(executable.run([x])[0], want, rtol=0, atol=0)
        live.data = torch.randn(4, 5)


def test_results_of_libraries_and_views_without_a_known_size(runner: Runner) -> None:
    instructions: tuple[Instruction, ...] = (
        Call("aoti_torch_cpu_mul_Tensor", (Use(0), Use(0), Out(1)), torch.mul),
        View(2, 1, (2, 3), (3, 1), 3),
        Empty(3, (2, 3), (3, 1), f32),
        rows(3, 2, 3, 2),
        Dispatch(torch.ops.aten.relu.default, (Use(3),), (4,)),
        Release((1, 2, 3)),
    )
    x = torch.randn(3, 3)
    got = runner(Plan(5, (0,), (4,), instructions)).run([x])[0]
    torch.testing.assert_close(got, ((x * x)[1:] * 2 + 1).relu(), rtol=0, atol=0)


def test_a_view_outlives_its_source(runner: Runner) -> None:
    """Also a view of a view that needs no tensor of its own."""
    instructions: tuple[Instruction, ...] = (
        Empty(1, (64, 32), (32, 1), f32),
        rows(1, 0, 32, 64),
        View(2, 1, (32, 32), (32, 1), 1024, 4),
        View(5, 2, (16, 32), (32, 1), 512, 4),
        Release((1, 2)),
        Empty(3, (64, 32), (32, 1), f32),
        rows(3, 0, 32, 64, scale=0.0),
        Empty(4, (16, 32), (32, 1), f32),
        rows(4, 5, 32, 16),
        Release((3, 5)),
    )
    x = torch.randn(64, 32)
    got = runner(Plan(6, (0,), (4,), instructions)).run([x])[0]
    torch.testing.assert_close(got, (x[48:] * 2 + 1) * 2 + 1, rtol=0, atol=0)


def test_the_memory_of_a_view_outlives_its_source(runner: Runner) -> None:
    """Or what takes it in between is read for it: the source is given back, and the view is all that holds it."""
    noted: list[StorageWeakRef] = []

    def note(source: torch.Tensor) -> None:
        noted.append(StorageWeakRef(source.untyped_storage()))

    def look(x: torch.Tensor) -> None:
        assert not noted[0].expired()

    instructions: tuple[Instruction, ...] = (
        Empty(1, (64, 32), (32, 1), f32),
        rows(1, 0, 32, 64),
        PyCall(note, (1,)),
        View(2, 1, (32, 32), (32, 1), 1024, 4),
        Release((1,)),
        PyCall(look, (0,)),
        Empty(3, (32, 32), (32, 1), f32),
        rows(3, 2, 32, 32),
        Release((2,)),
    )
    x = torch.randn(64, 32)
    got = runner(Plan(4, (0,), (3,), instructions)).run([x])[0]
    torch.testing.assert_close(got, (x[32:] * 2 + 1) * 2 + 1, rtol=0, atol=0)
    assert noted[0].expired()


def test_no_items(runner: Runner) -> None:
    plan = Plan(2, (0,), (1,), (Empty(1, (0, 5), (5, 1), f32), rows(1, 0, 5, 0)))
    assert runner(plan).run([torch.empty(0, 5)])[0].shape == (0, 5)


def test_constant_pools(runner: Runner) -> None:
    for lanes in (4, 8, 16):

        def eager(out: torch.Tensor, x: torch.Tensor, lanes: int = lanes) -> None:
            out.copy_(x.flip(0) + torch.arange(lanes))

        launch = Launch(built(vector_text(lanes)), (1, 0), (), 1, eager, (0,))
        x = torch.randn(lanes)
        got = runner(Plan(2, (0,), (1,), (Empty(1, (lanes,), (1,), f32), launch))).run([x])[0]
        torch.testing.assert_close(got, x.flip(0) + torch.arange(lanes), rtol=0, atol=0)


@pytest.mark.parametrize("through_view", [False, True])
def test_refused_data_raises_eagers_error(runner: Runner, through_view: bool) -> None:
    """And leaves the next call right."""
    views = (View(3, 0, (6, 5), (5, 1), 0, 4),) if through_view else ()
    source = 3 if through_view else 0
    plan = Plan(
        4, (0,), (2,), (*views, Empty(1, (6, 5), (5, 1), f32), rows(1, source, 5, 6), Empty(2, (6, 5), (5, 1), f32),
                        rows(2, 1, 5, 6), Release((1,))),
    )  # fmt: skip
    executable = runner(plan)
    x = torch.rand(6, 5)
    want = (x * 2 + 1) * 2 + 1
    bad = x.clone()
    bad[3, 3] = -1
    for _ in range(3):
        torch.testing.assert_close(executable.call(x)[0], want, rtol=0, atol=0)
        with pytest.raises(IndexError, match="minus one is out of range"):
            executable.call(bad)
    assert executable.stats.runs == 3


def test_eager_may_take_what_the_kernel_refuses(runner: Runner) -> None:
    launch = Launch(built(ROWS), (1, 0), (5, bits(2.0)), 6, lambda out, x: out.copy_(x * 2 + 1), (0,))
    x = torch.rand(6, 5)
    x[0, 0] = -1
    got = runner(Plan(2, (0,), (1,), (Empty(1, (6, 5), (5, 1), f32), launch))).run([x])[0]
    torch.testing.assert_close(got, x * 2 + 1, rtol=0, atol=0)


def test_a_kernel_without_code_runs_eager(runner: Runner) -> None:
    launch = Launch(KernelCode("smelt_none", b""), (1, 0), (5, bits(2.0)), 6, rows_eager(2.0), (0,))
    x = torch.rand(6, 5)
    executable = runner(Plan(2, (0,), (1,), (Empty(1, (6, 5), (5, 1), f32), launch)))
    torch.testing.assert_close(executable.run([x])[0], x * 2 + 1, rtol=0, atol=0)
    assert executable.counts.kernels == 0 and executable.counts.python >= 1


def test_a_kernel_that_cannot_be_loaded_warns_once(machine_code: bytes) -> None:
    text = "declare i32 @nowhere()\n" + vector_text(4).replace("ret i32 0", "%r2 = call i32 @nowhere()\n ret i32 %r2")
    launch = Launch(built(text), (1, 0), (), 1, lambda out, x: out.copy_(x), (0,))
    plan = Plan(2, (0,), (1,), (Empty(1, (4,), (1,), f32), launch))
    with pytest.warns(SmeltWarning, match="no address is known for nowhere"):
        executable = Executable(plan, machine_code)
    assert Executable(plan, machine_code).counts.kernels == executable.counts.kernels == 0
    x = torch.randn(4)
    torch.testing.assert_close(executable.run([x])[0], x, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"items": -1}, "items"),
        ({"writes": (2,)}, "writes"),
        ({"words": (2**63,)}, "int64"),
        ({"item_ns": -1.0}, "ns"),
        ({"item_ns": float("inf")}, "ns"),
    ],
)
def test_launches_that_break_the_rules(change: dict[str, object], match: str) -> None:
    given: dict[str, object] = {"kernel": KernelCode("k", b""), "buffers": (1, 0), "words": (), "items": 1}
    given |= {"eager": torch.add, "writes": (0,), **change}
    launch = Launch(**given)  # type: ignore[arg-type]
    with pytest.raises(InternalError, match=match):
        Executable(Plan(2, (0,), (1,), (Empty(1, (1,), (1,), f32), launch)), None)
