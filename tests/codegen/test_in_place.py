"""Updates that a kernel writes straight into the tensor: where nobody can tell, and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt
from smelt._torch.library import shim
from smelt._torch.tensor_layout import LAYOUT
from smelt.codegen.lower import Lowered
from smelt.diag import InternalError, Miss, Options, SmeltError, SmeltWarning
from smelt.ir import parse
from smelt.runtime.check import check_plan
from smelt.runtime.executable import Executable
from smelt.runtime.plan import Blit, Bump, Copy, Dispatch, Expect, Launch, Plan
from tests.codegen.harness import assert_same, call, executables, lowered, machine_code
from tests.runtime.kernels import rows

OWN = Options(deterministic=True)
Update = Callable[..., Tensor | tuple[Tensor, ...] | None]


def ways(plan: Lowered) -> tuple[int, int]:
    """How many tensors are written in place, and how many by a copy."""
    kinds = [type(i) for i in plan.plan.instructions]
    by_bytes = list(pairwise(kinds)).count((Blit, Bump))
    return kinds.count(Bump) - by_bytes, kinds.count(Copy) + by_bytes


def planned(f: Update, inputs: list[Tensor]) -> Lowered:
    """The plan of a program, of which two runs leave and give what eager's do, natively and in Python."""
    traced = smelt.trace(f, tuple(t.clone() for t in inputs), check=False)
    plan = lowered(traced.graph_for(*inputs), {}, OWN)
    for executable in executables(plan.plan):
        ours, theirs = ([torch.empty_like(t).copy_(t) for t in inputs] for _ in range(2))
        for _ in range(2):
            expected = f(*theirs)
            versions = [t._version for t in ours]
            found = call(plan, executable, ours, {})
            more = () if expected is None else (expected,) if isinstance(expected, Tensor) else expected
            assert_same([*found, *ours], [*more, *theirs], exact=False)
            assert all(t._version - n in (0, 1) for t, n in zip(ours, versions, strict=True))
        bumped = [t._version > n for t, n in zip(ours, versions, strict=True)]
        assert sum(bumped) == len(plan.mutations)
    return plan


def adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    p.mul_(1 - 1e-3 * 0.01)
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.addcdiv_(m, (v.sqrt() / 0.5).add_(1e-8), value=-1e-3)


def test_an_optimizer_copies_no_parameter() -> None:
    def step(*tensors: Tensor) -> None:
        for k in range(0, len(tensors), 4):
            adamw(*tensors[k : k + 4])

    sizes = ((64, 48), (7,), (3, 5, 2))
    plan = planned(step, [torch.rand(size) for size in sizes for _ in range(4)])
    assert ways(plan) == (9, 0)
    assert plan.report.memory.arena_nbytes == plan.report.memory.peak_nbytes == 0
    notes = [n for n in plan.report.nodes if n.op == "write"]
    assert {n.how for n in notes} == {"in place"} and all(n.target.startswith("%") for n in notes)


def test_tensors_that_change_places_do_so_in_one_kernel() -> None:
    def swap(a: Tensor, b: Tensor) -> None:
        old = a * 1.0
        a.copy_(b * 1.0)
        b.copy_(old)

    def cycle(a: Tensor, b: Tensor, c: Tensor) -> None:
        x, y, z = a + b, b * c, c - a
        a.copy_(y)
        b.copy_(z)
        c.copy_(x)

    for n in (5, 64, 1001):
        assert ways(planned(swap, [torch.rand(n), torch.rand(n)])) in ((2, 0), (1, 1))
        assert ways(planned(cycle, [torch.rand(n) for _ in range(3)])) == (3, 0)


def test_an_update_that_reads_other_elements_has_memory_of_its_own() -> None:
    for update in (
        lambda x: x.add_(x.sum()),
        lambda x: x.add_(x[0].clone()),
        lambda x: x.add_(x.flip(0)),
        lambda x: x.copy_(x.softmax(-1)),
        lambda x: x.copy_(x.cumsum(0)),
        lambda x: x.sub_(x.mean(-1, keepdim=True)),
    ):
        assert ways(planned(lambda x, u=update: u(x), [torch.rand(8, 9)])) == (0, 1)  # type: ignore[misc]


def test_running_statistics_are_updated_in_place() -> None:
    def update(mean: Tensor, x: Tensor) -> None:
        mean.mul_(0.9).add_(x.mean(0), alpha=0.1)

    assert ways(planned(update, [torch.rand(16), torch.rand(32, 16)])) == (1, 0)


@pytest.mark.parametrize("steps", ["1, 10", "12, 1", "1, 16", "3, 40", "24, 2", "7, 90"])
def test_targets_of_any_layout_whose_elements_lie_apart(steps: str) -> None:
    text = f"""\
graph f(%x: f32[10, 12]{{{steps}}}, %y: f32[10, 12]) -> () {{
  %0: f32[10, 12]{{{steps}}} = aten.mul.Tensor(%x, 2.0)
  %1: f32[10, 12] = aten.add.Tensor(%0, %y)
  %2: f32[10, 12]{{{steps}}} = write(%x, %1)
  return
}}"""
    plan = lowered(text, {}, OWN)
    assert ways(plan) == (1, 0)
    strides = [int(step) for step in steps.split(",")]
    for executable in executables(plan.plan):
        whole, y = torch.rand(1200), torch.rand(10, 12)
        expected = whole.clone()
        at = expected.as_strided((10, 12), strides, 3)
        at.mul_(2).add_(y)
        executable.run([whole.as_strided((10, 12), strides, 3), y])
        assert torch.equal(whole, expected)


def test_elements_between_those_of_a_target_stay() -> None:
    text = """\
graph f(%x: f32[4, 3]{6, 2}) -> () {
  %0: f32[4, 3] = aten.mul.Tensor(%x, 2.0)
  %1: f32[4, 3]{6, 2} = write(%x, %0)
  return
}"""
    plan = lowered(text, {}, OWN)
    assert ways(plan) == (1, 0)
    for executable in executables(plan.plan):
        whole = torch.arange(24.0).reshape(4, 6)
        expected = whole.clone()
        expected[:, ::2] *= 2
        executable.run([whole[:, ::2]])
        assert torch.equal(whole, expected)


def test_targets_whose_elements_share_a_place_are_copied_to() -> None:
    text = """\
graph f(%x: f32[4, 3]{1, 1}) -> () {
  %0: f32[4, 3] = aten.mul.Tensor(%x, 2.0)
  %1: f32[4, 3]{1, 1} = write(%x, %0)
  return
}"""
    assert ways(lowered(text, {}, OWN)) == (0, 1)


def test_another_dtype_or_size_is_copied() -> None:
    for size, dtype in (("[2, 3]", "f64"), ("[2, 3]", "f16"), ("[1, 3]", "f32")):
        text = f"""\
graph f(%x: f32{size}) -> () {{
  %b: {dtype}[2, 3] = buffer("b")
  %0: f32{size} = aten.exp.default(%x)
  %1: {dtype}[2, 3] = write(%b, %0)
  return
}}"""
        assert ways(lowered(text, {"b": torch.zeros(2, 3, dtype=torch_dtype(dtype))}, OWN)) == (0, 1)


def torch_dtype(name: str) -> torch.dtype:
    return {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16}[name]


def test_what_is_returned_or_written_twice_has_memory_of_its_own() -> None:
    text = """\
graph f(%x: f32[8], %y: f32[8]) -> f32[8] {
  %0: f32[8] = aten.mul.Tensor(%x, 2.0)
  %1: f32[8] = write(%x, %0)
  return %0
}"""
    plan = lowered(text, {}, OWN)
    assert ways(plan) == (0, 1)
    x = torch.ones(8)
    (found,) = Executable(plan.plan, machine_code()).run([x, x.clone()])
    x.zero_()
    assert found.tolist() == [2.0] * 8
    both = text.replace("return %0", "%2: f32[8] = write(%y, %0)\n  return %1")
    assert ways(lowered(both, {}, OWN)) == (0, 2)


def test_old_contents_that_are_needed_later_are_read_before() -> None:
    """The update runs last, behind all that reads what the tensor held."""

    def reads(x: Tensor, w: Tensor) -> Tensor:
        y = x.clone()
        x.mul_(2)
        return torch.cumsum(y @ w, 0)

    assert ways(planned(reads, [torch.rand(6, 6), torch.eye(6)])) == (1, 0)

    def both(x: Tensor) -> Tensor:
        y = x.clone()
        x.mul_(2)
        return torch.cumsum(x, 0).matmul(y)

    planned(both, [torch.rand(6, 6)])


EXPECTED = """\
graph f(%x: f32[8], %n: i64[]) -> () {
  %0: f32[8] = aten.mul.Tensor(%x, 2.0)
  LATER
  %2: f32[8] = write(%x, %0)
  return
}"""


@pytest.mark.parametrize(
    ("later", "in_place"),
    [
        ("%1: () = expect(%n, 3)", True),
        ("%1: f32[] = aten.sum.default(%0)\n  %3: () = expect(%1, 16.0)", False),
        ("%1: f32[] = aten.index.Tensor(%0, [%n])", False),
    ],
)
def test_a_run_that_ends_early_leaves_the_tensor(later: str, in_place: bool) -> None:
    later = later.replace("%1: () = ", "").replace("%3: () = ", "")
    text = EXPECTED.replace("LATER", later)
    if "index" in later:
        text = text.replace("-> () {", "-> f32[] {").replace("return", "return %1")
    plan = lowered(text, {}, OWN)
    assert ways(plan) == ((1, 0) if in_place else (0, 1))
    for executable in executables(plan.plan):
        x = torch.full((8,), 5.0)
        with pytest.raises((Miss, IndexError)):
            executable.run([x, torch.tensor(99)])
        assert x.tolist() == [5.0] * 8 and x._version == 0
        x = torch.ones(8)
        executable.run([x, torch.tensor(3)])
        assert x.tolist() == [2.0] * 8


def test_a_kernel_that_refuses_is_heard_before_anything_is_written() -> None:
    def f(seen: Tensor, x: Tensor, at: Tensor) -> Tensor:
        seen.add_(1)
        return x[at] * 2

    inputs = [torch.zeros(3), torch.rand(8), torch.tensor([2, 3])]
    plan = planned(f, inputs)
    assert ways(plan) == (1, 0)
    for executable in executables(plan.plan):
        seen = torch.zeros(3)
        with pytest.raises(IndexError):
            executable.run([seen, inputs[1], torch.tensor([2, 9])])
        assert seen.tolist() == [0.0] * 3


def test_what_tiles_read_is_read_before_they_write() -> None:
    def f(a: Tensor, b: Tensor, c: Tensor) -> None:
        x, y = b + c.t(), a - c.t()
        a.copy_(x)
        b.copy_(y)

    assert ways(planned(f, [torch.rand(70, 70) for _ in range(3)])) == (2, 0)


def test_a_kernel_that_may_refuse_some_elements_does_not_write_in_place() -> None:
    def look_up(x: Tensor, table: Tensor, at: Tensor) -> None:
        x.add_(table[at])

    inputs = [torch.rand(40), torch.rand(5), torch.randint(0, 5, (40,))]
    assert ways(planned(look_up, inputs)) == (0, 1)

    def divide(x: Tensor, y: Tensor) -> None:
        x.copy_(x // y)

    plan = planned(divide, [torch.arange(40), torch.arange(1, 41)])
    assert ways(plan) == (0, 1)
    x = torch.arange(40)
    with pytest.raises(RuntimeError):
        Executable(plan.plan, machine_code()).run([x, torch.arange(40) - 39])
    assert torch.equal(x, torch.arange(40))


# --- parts


def test_a_cache_is_written_at_its_new_part_alone() -> None:
    def step(cache: Tensor, k: Tensor, q: Tensor) -> Tensor:
        cache[:, 3] = k
        return (q.unsqueeze(1) @ cache.transpose(1, 2)).squeeze(1)

    plan = planned(step, [torch.rand(2, 8, 4), torch.rand(2, 4), torch.rand(2, 4)])
    assert ways(plan) == (1, 0)
    (first,) = [i for i in plan.plan.instructions if isinstance(i, Launch) and i.label == "select_scatter"]
    assert sum(k.nbytes for k in plan.report.kernels if k.label == first.label) == 2 * 2 * 4 * 4


def test_parts_of_parts_are_written_where_they_lie() -> None:
    def update(cache: Tensor, k: Tensor) -> None:
        cache[1][:, 2:5].mul_(k)
        cache[1, :, 2:5, 0].add_(1)

    assert ways(planned(update, [torch.rand(3, 4, 8, 2), torch.rand(4, 3, 2)])) in ((1, 0), (0, 1))

    def one(cache: Tensor, k: Tensor) -> None:
        cache[1][:, 2:5].copy_(k * 2)

    plan = planned(one, [torch.rand(3, 4, 8, 2), torch.rand(4, 3, 2)])
    assert ways(plan) == (1, 0) and plan.report.memory.arena_nbytes == 0


def test_a_part_at_a_position_of_the_run() -> None:
    text = """\
graph f(%cache: f32[2, 8, 4], %k: f32[2, 4], %at: i64[]) -> f32[2, 8, 4] {
  %0: f32[2, 8, 4] = aten.index_put.default(%cache, [None, %at], %k)
  %1: f32[2, 8, 4] = write(%cache, %0)
  return %1
}"""
    plan = lowered(text, {}, OWN)
    assert ways(plan) == (1, 0) and plan.report.memory.arena_nbytes == 0
    for executable in executables(plan.plan):
        cache, k = torch.rand(2, 8, 4), torch.rand(2, 4)
        expected = cache.clone()
        for at in (0, 7, -1):
            expected[:, at] = k
            executable.run([cache, k, torch.tensor(at)])
            assert torch.equal(cache, expected)
        with pytest.raises(IndexError):
            executable.run([cache, k + 1, torch.tensor(8)])
        assert torch.equal(cache, expected) and cache._version == 3


def test_two_parts_of_one_kernel_are_checked_before_either_is_written() -> None:
    text = """\
graph f(%a: f32[8, 64], %b: f32[8, 64], %k: f32[64], %i: i64[], %j: i64[]) -> () {
  %0: f32[64] = aten.mul.Tensor(%k, 2.0)
  %1: f32[8, 64] = aten.index_put.default(%a, [%i], %0)
  %2: f32[64] = aten.add.Tensor(%0, %k)
  %3: f32[8, 64] = aten.index_put.default(%b, [%j], %2)
  %4: f32[8, 64] = write(%a, %1)
  %5: f32[8, 64] = write(%b, %3)
  return
}"""
    for same in (True, False):
        plan = lowered(text.replace("[%j]", "[%i]") if same else text, {}, OWN)
        assert sum(ways(plan)) == 2 and ways(plan)[0] >= 1 + same
        for executable in executables(plan.plan):
            a, b = torch.zeros(8, 64), torch.zeros(8, 64)
            with pytest.raises(IndexError):
                executable.run([a, b, torch.ones(64), torch.tensor(1 + 8 * same), torch.tensor(8)])
            assert not a.any() and not b.any()
            executable.run([a, b, torch.ones(64), torch.tensor(3), torch.tensor(3)])
            assert a[3].tolist() == [2.0] * 64 and b[3].tolist() == [3.0] * 64 and a.sum() == 128


def test_caches_of_many_layers_are_written_at_one_position() -> None:
    """What checks the position again cannot fail; what the attention of a layer reads is the cache itself."""

    def step(x: Tensor, at: Tensor, *caches: Tensor) -> Tensor:
        for cache in caches:
            cache.index_copy_(1, at, x * 2)
            x = F.scaled_dot_product_attention(x, cache, cache)
        return x

    def put(x: Tensor, at: Tensor, *caches: Tensor) -> Tensor:
        for cache in caches:
            cache[:, at] = x + 1
            x = F.scaled_dot_product_attention(x, cache, cache)
        return x

    for f in (step, put):
        inputs = [torch.rand(2, 1, 4), torch.tensor([3]), *(torch.rand(2, 8, 4) for _ in range(3))]
        plan = planned(f, inputs)
        assert [type(i) for i in plan.plan.instructions].count(Copy) == 0
        assert sum(isinstance(i, Dispatch) and str(i.op).endswith("_.default") for i in plan.plan.instructions) == 3
        for executable in executables(plan.plan):
            with pytest.raises((SmeltError, IndexError)):
                executable.run([inputs[0], torch.tensor([9]), *inputs[2:]])


def test_other_positions_are_checked_before_anything_is_written() -> None:
    def step(a: Tensor, b: Tensor, x: Tensor, i: Tensor, j: Tensor) -> None:
        a.index_copy_(0, i, x)
        b.index_copy_(0, j, x)

    inputs = [torch.rand(8, 4), torch.rand(8, 4), torch.rand(2, 4), torch.tensor([0, 1]), torch.tensor([5, 6])]
    plan = planned(step, inputs)
    assert [type(i) for i in plan.plan.instructions].count(Copy) == 1
    for executable in executables(plan.plan):
        a, b = inputs[0].clone(), inputs[1].clone()
        with pytest.raises((SmeltError, IndexError)):
            executable.run([a, b, inputs[2], inputs[3], torch.tensor([5, 8])])
        assert torch.equal(a, inputs[0])


# --- versions, and who else uses the tensors


def test_autograd_sees_that_a_saved_tensor_was_written() -> None:
    w = torch.rand(8, requires_grad=True)
    m = torch.rand(8)
    step = smelt.trace(adamw, (w.detach().clone(), torch.rand(8), m.clone(), m.clone()), check=False)
    saved = w.detach().requires_grad_()
    loss = (saved * saved).sum()
    with torch.no_grad():
        step(saved.detach(), torch.rand(8), m, m.clone())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inference_tensors_have_no_version_and_others_have_one() -> None:
    plan = lowered(EXPECTED.replace("LATER\n", ""), {}, OWN)
    for executable in executables(plan.plan):
        ordinary = torch.ones(8)
        with torch.inference_mode():
            of_inference = torch.ones(8)
            for x in (of_inference, ordinary):
                executable.run([x, torch.tensor(0)])
                assert x.tolist() == [2.0] * 8
        assert ordinary._version == 1


def test_versions_are_counted_in_python_where_torch_keeps_them_elsewhere() -> None:
    plan = lowered(EXPECTED.replace("LATER\n", ""), {}, OWN)
    with shim.hidden(LAYOUT):
        executable = Executable(plan.plan, machine_code())
        x = torch.ones(8)
        executable.run([x, torch.tensor(0)])
    assert x._version == 1 and x.tolist() == [2.0] * 8
    assert executable.counts.python == 1


def test_many_threads_update_tensors_of_their_own() -> None:
    plan = lowered(EXPECTED.replace("LATER\n", "").replace("[8]", "[70000]"), {}, OWN)
    executable = Executable(plan.plan, machine_code())
    tensors = [torch.full((70000,), float(k)) for k in range(4)]

    def run(x: Tensor) -> None:
        for _ in range(20):
            executable.run([x, torch.tensor(0)])

    threads = [threading.Thread(target=run, args=(x,)) for x in tensors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, x in enumerate(tensors):
        assert bool((x == k * 2.0**20).all()) and x._version == 20


def test_inputs_that_share_memory_are_updated_as_in_eager() -> None:
    def f(a: Tensor, b: Tensor) -> None:
        a.mul_(2)
        b.add_(a.clone())

    compiled = smelt.compile(f)
    with torch.no_grad():
        for _ in range(3):
            apart, alike = [torch.ones(8), torch.ones(8)], [torch.ones(8), torch.ones(8)]
            compiled(*apart)
            f(*alike)
            assert all(map(torch.equal, apart, alike))
        base, same = torch.arange(12.0), torch.arange(12.0)
        with pytest.warns(SmeltWarning, match="memory that other tensors may share"):
            compiled(base[:8], base[4:])
        f(same[:8], same[4:])
        assert torch.equal(base, same)


def test_any_size_is_updated_in_place() -> None:
    compiled = smelt.compile(adamw, dynamic=True)
    with torch.no_grad():
        for n in (5, 64, 33, 1000, 7, 4096):
            ours = [torch.rand(n, 3) for _ in range(4)]
            theirs = [t.clone() for t in ours]
            compiled(*ours)
            adamw(*theirs)
            assert_same(ours, theirs, exact=False)
    nodes = smelt.explain(compiled).to_dict()
    assert "in place" in str(nodes)


# --- the plan's rules


def test_a_plan_that_hides_a_write_is_refused() -> None:
    launch = rows(1, 0, 4, 2)
    check_plan(Plan(2, (0, 1), (), (launch, Bump(1))))
    for steps in (
        (launch,),
        (launch, Bump(0)),
        (Bump(1), launch),
        (launch, Expect(0, 1.0, torch.float32), Bump(1)),
    ):
        with pytest.raises(InternalError):
            check_plan(Plan(2, (0, 1), (), steps))
    with pytest.raises(InternalError, match="a constant"):
        held = ((1, torch.zeros(2, 4)),)
        check_plan(Plan(2, (0,), (), (launch, Bump(1)), held=held, fixed=frozenset((1,))))


def test_graphs_of_these_tests_parse() -> None:
    assert parse(EXPECTED.replace("LATER\n", "")).body


def test_small_state_that_is_read_is_copied_by_its_bytes() -> None:
    """A counter that is stepped and asked for its number: written behind all that may end the run, version counted."""
    counters = [torch.zeros(()) for _ in range(3)]

    def count(x: torch.Tensor) -> torch.Tensor:
        total = 0.0
        for counter in counters:
            counter.add_(1)
            total = total + counter.item()
        return x * total

    compiled = smelt.compile(count, options={"adaptive": False})
    with torch.no_grad():
        for call in range(1, 5):
            versions = [counter._version for counter in counters]
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0 * call))
            assert [counter.item() for counter in counters] == [call] * 3
            assert all(c._version > before for c, before in zip(counters, versions, strict=True))
    report = smelt.explain(compiled).to_dict()
    assert "copy 3" in report["graphs"][0]["nodes by how they run"]
