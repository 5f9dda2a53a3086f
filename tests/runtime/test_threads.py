"""Launches shared by threads: the same bits with any number of them, at any time, however a run ends."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import torch

from smelt._torch.library import shim
from smelt.runtime import schedule
from smelt.runtime.encoding import addresses, encode
from smelt.runtime.encoding.table import POOL_AT, TEAMS, TEAMS_AT, Op, PoolWord, Team, TeamWord
from smelt.runtime.executable import Executable
from smelt.runtime.machine.threads import team_words
from smelt.runtime.plan import ArenaTensor, Bump, Dispatch, Empty, Instruction, Launch, Plan, PyCall, Release, Use, View
from smelt.runtime.schedule import Enter, Group, Leave, Single
from tests.runtime.kernels import ROWS, bits, built, rows

f32 = torch.float32
N, ITEMS = 64, 256
LONG = 1000.0  # declared nanoseconds of an item: long enough for any launch of many items to be shared


@pytest.fixture(autouse=True)
def _four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames for four threads on any machine; each test sets how many there are."""
    monkeypatch.setattr(addresses, "team_limit", lambda: 4)


def chain(count: int, *, item_ns: float = LONG) -> Plan:
    """`count` launches, each of what the one before wrote, between two arena tensors; the last writes the output."""
    steps: list[Instruction] = [rows(2, 0, N, ITEMS, item_ns=item_ns, scale=0.5)]
    steps += [rows(2 + (i + 1) % 2, 2 + i % 2, N, ITEMS, item_ns=item_ns, scale=0.5) for i in range(count - 2)]
    steps += [Empty(1, (ITEMS, N), (N, 1), f32), rows(1, 2 + count % 2, N, ITEMS, item_ns=item_ns, scale=0.5)]
    arena = tuple(ArenaTensor(2 + i, i * 4 * N * ITEMS, (ITEMS, N), (N, 1), f32) for i in range(2))
    return Plan(4, (0,), (1,), tuple(steps), arena=arena, arena_nbytes=8 * N * ITEMS)


def chained(x: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count):
        x = x * 0.5 + 1
    return x


def records(plan: Plan) -> list[Op]:
    encoded = encode.encode(plan)
    return [Op(encoded.code[start]) for start in encoded.starts]


def test_threads_of_any_number_give_the_same_bits(machine_code: bytes) -> None:
    plan = chain(10)
    assert [records(plan).count(op) for op in (Op.REGION, Op.LAUNCH, Op.LEAVE)] == [1, 10, 1]
    executable = Executable(plan, machine_code)
    x = torch.randn(ITEMS, N)
    want = chained(x, 10)
    for count in (1, 2, 4, 1, 3, 2, 7):
        torch.set_num_threads(count)
        for _ in range(20):
            assert torch.equal(executable.call(x)[0], want)


@pytest.mark.parametrize("items", [251, 3, 17])
def test_a_last_chunk_that_is_not_whole(machine_code: bytes, items: int) -> None:
    """Every item runs, and none behind the last."""
    sink, x = torch.empty(items + 64, N), torch.randn(items + 64, N)
    steps = (rows(2, 0, N, items, item_ns=LONG * ITEMS / items), Empty(1, (1, N), (N, 1), f32), rows(1, 2, N, 1))
    executable = Executable(Plan(3, (0,), (1,), (*steps, Bump(2)), held=((2, sink),)), machine_code)
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        for _ in range(5):
            sink.fill_(7.0)
            executable.call(x)
            assert torch.equal(sink[:items], x[:items] * 2 + 1)
            assert bool((sink[items:] == 7).all())


def test_many_launches_in_one_region(machine_code: bytes) -> None:
    plan = chain(1000)
    assert records(plan).count(Op.REGION) == 1
    executable = Executable(plan, machine_code)
    x = torch.randn(ITEMS, N)
    want = chained(x, 1000)
    torch.set_num_threads(4)
    for _ in range(3):
        assert torch.equal(executable.call(x)[0], want)


def test_callers_at_once(machine_code: bytes) -> None:
    executable = Executable(chain(20), machine_code)
    torch.set_num_threads(2)
    wrong: list[int] = []

    def call(seed: int) -> None:
        x = torch.randn(ITEMS, N, generator=torch.Generator().manual_seed(seed))
        want = chained(x, 20)
        wrong.extend(seed for _ in range(50) if not torch.equal(executable.call(x)[0], want))

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == [] and executable.stats.runs == 200


@pytest.mark.parametrize("count", [1, 4])
def test_any_chunk_may_refuse(machine_code: bytes, count: int) -> None:
    executable = Executable(chain(4), machine_code)
    torch.set_num_threads(count)
    x = torch.rand(ITEMS, N)
    for row in (0, ITEMS // 2, ITEMS - 1):
        bad = x.clone()
        bad[row, 3] = -1
        with pytest.raises(IndexError, match="minus one"):
            executable.call(bad)
        assert torch.equal(executable.call(x)[0], chained(x, 4))


def test_eager_takes_over_inside_a_region(machine_code: bytes) -> None:
    """What eager computes there is what later launches of the region see."""

    def eager(out: torch.Tensor, x: torch.Tensor) -> None:
        out.copy_(x * 4 + 1)

    first = Launch(built(ROWS), (2, 0), (N, bits(4.0)), ITEMS, eager, (0,), LONG)
    steps = (first, Empty(1, (ITEMS, N), (N, 1), f32), rows(1, 2, N, ITEMS, item_ns=LONG))
    plan = Plan(3, (0,), (1,), steps, arena=(ArenaTensor(2, 0, (ITEMS, N), (N, 1), f32),), arena_nbytes=4 * N * ITEMS)
    assert records(plan).count(Op.REGION) == 1
    executable = Executable(plan, machine_code)
    torch.set_num_threads(4)
    x = torch.rand(ITEMS, N)
    x[7, 7] = -1
    assert torch.equal(executable.call(x)[0], (x * 4 + 1) * 2 + 1)


def test_a_region_ends_before_a_library_call(machine_code: bytes) -> None:
    steps = (
        Empty(1, (ITEMS, N), (N, 1), f32),
        rows(1, 0, N, ITEMS, item_ns=LONG),
        Dispatch(torch.ops.aten.relu.default, (Use(1),), (2,)),
        Empty(3, (ITEMS, N), (N, 1), f32),
        rows(3, 2, N, ITEMS, item_ns=LONG),
        PyCall(lambda t: t + 1, (3,), (4,)),
        Release((1, 2, 3)),
    )
    plan = Plan(5, (0,), (4,), steps)
    assert records(plan).count(Op.REGION) == records(plan).count(Op.LEAVE) == 2
    torch.set_num_threads(2)
    x = torch.randn(ITEMS, N)
    got = Executable(plan, machine_code).run([x])[0]
    assert torch.equal(got, (x * 2 + 1).relu() * 2 + 1 + 1)


def test_a_failing_step_inside_a_region_leaves_nothing_behind(machine_code: bytes) -> None:
    huge = 1 << 60
    steps = (
        Empty(1, (ITEMS, N), (N, 1), f32),
        rows(1, 0, N, ITEMS, item_ns=LONG),
        rows(1, 0, N, ITEMS, item_ns=LONG),
        Empty(2, (huge,), (1,), f32),
        rows(1, 2, N, ITEMS, item_ns=LONG),
        Release((2,)),
    )
    executable = Executable(Plan(3, (0,), (1,), steps), machine_code)
    torch.set_num_threads(2)
    for _ in range(3):
        with pytest.raises(Exception, match="Empty failed"):
            executable.call(torch.randn(ITEMS, N))


def test_where_nothing_says_how_many_threads_there_are_one_does_all(machine_code: bytes) -> None:
    torch.set_num_threads(4)
    with shim.hidden("torch_get_num_threads"):
        plan = chain(10)
        assert Op.REGION not in records(plan)
        executable = Executable(plan, machine_code)
        x = torch.randn(ITEMS, N)
        assert executable.is_native and torch.equal(executable.call(x)[0], chained(x, 10))


def test_scratch_is_each_threads_own(machine_code: bytes) -> None:
    """A kernel that writes its items into scratch first, and copies them from there."""
    text = """
define i32 @KERNEL(ptr noalias %args, i64 %begin, i64 %end, ptr noalias %scratch) nounwind {
entry:
  %xa = getelementptr i64, ptr %args, i64 1
  %out = load ptr, ptr %args
  %x = load ptr, ptr %xa
  %address = ptrtoint ptr %scratch to i64
  %low = and i64 %address, 63
  %aligned = icmp eq i64 %low, 0
  %given = icmp ne ptr %scratch, null
  %fine = and i1 %aligned, %given
  br i1 %fine, label %rows, label %bad
rows:
  %row = phi i64 [ %begin, %entry ], [ %rown, %copied ]
  %any = icmp slt i64 %row, %end
  br i1 %any, label %fill, label %done
fill:
  %i = phi i64 [ 0, %rows ], [ %in, %fill ]
  %at = mul i64 %row, 64
  %xi = add i64 %at, %i
  %xp = getelementptr float, ptr %x, i64 %xi
  %v = load float, ptr %xp
  %sp = getelementptr float, ptr %scratch, i64 %i
  store volatile float %v, ptr %sp
  %in = add i64 %i, 1
  %fm = icmp slt i64 %in, 64
  br i1 %fm, label %fill, label %copy
copy:
  %j = phi i64 [ 0, %fill ], [ %jn, %copy ]
  %sq = getelementptr float, ptr %scratch, i64 %j
  %w = load volatile float, ptr %sq
  %oi = add i64 %at, %j
  %op = getelementptr float, ptr %out, i64 %oi
  store float %w, ptr %op
  %jn = add i64 %j, 1
  %cm = icmp slt i64 %jn, 64
  br i1 %cm, label %copy, label %copied
copied:
  %rown = add i64 %row, 1
  br label %rows
done:
  ret i32 0
bad:
  ret i32 1
}
"""

    def refused(out: torch.Tensor, x: torch.Tensor) -> None:
        raise AssertionError("the scratch memory is not as promised")

    launch = Launch(built(text), (1, 0), (), ITEMS, refused, (0,), LONG, scratch_nbytes=4 * N - 4)
    executable = Executable(Plan(2, (0,), (1,), (Empty(1, (ITEMS, N), (N, 1), f32), launch)), machine_code)
    x = torch.randn(ITEMS, N)
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        for _ in range(50):
            assert torch.equal(executable.call(x)[0], x)


# out[item] = address of the scratch memory, out[2 + item] = whether the other item ran at the same time, for which
# it waits a while; the counter of items that began is the second buffer.
_MEET = """
define i32 @KERNEL(ptr noalias %args, i64 %begin, i64 %end, ptr noalias %scratch) nounwind {
entry:
  %ca = getelementptr i64, ptr %args, i64 1
  %out = load ptr, ptr %args
  %counter = load ptr, ptr %ca
  %address = ptrtoint ptr %scratch to i64
  br label %item
item:
  %i = phi i64 [ %begin, %entry ], [ %in, %met ]
  %any = icmp slt i64 %i, %end
  br i1 %any, label %start, label %done
start:
  %old = atomicrmw add ptr %counter, i64 1 seq_cst
  br label %wait
wait:
  %turn = phi i64 [ 0, %start ], [ %next, %wait ]
  %next = add i64 %turn, 1
  %now = load atomic i64, ptr %counter seq_cst, align 8
  %both = icmp sge i64 %now, 2
  %late = icmp sge i64 %turn, 200000000
  %leave = or i1 %both, %late
  br i1 %leave, label %met, label %wait
met:
  %at = getelementptr i64, ptr %out, i64 %i
  store i64 %address, ptr %at
  %other = getelementptr i64, ptr %at, i64 2
  %flag = zext i1 %both to i64
  store i64 %flag, ptr %other
  %in = add i64 %i, 1
  br label %item
done:
  ret i32 0
}
"""


def test_scratch_of_threads_at_once_lies_apart(machine_code: bytes) -> None:
    def refused(out: torch.Tensor, counter: torch.Tensor) -> None:
        raise AssertionError("the kernel takes everything")

    counter = torch.zeros(1, dtype=torch.int64)
    launch = Launch(built(_MEET), (1, 0), (), 2, refused, (0, 1), 1e6, scratch_nbytes=1000)
    steps = (Empty(1, (4,), (1,), torch.int64), launch, Bump(0))
    executable = Executable(Plan(2, (0,), (1,), steps), machine_code)
    torch.set_num_threads(2)
    for _ in range(100):
        counter.zero_()
        first, second, *met = executable.call(counter)[0].tolist()
        if met == [1, 1]:
            assert abs(first - second) >= 1000
            return
        # The process may be resting from threads that came late.
        time.sleep(0.05)
    pytest.fail("two threads never met")


def team_word(number: int, word: Team) -> int:
    """Where a word of a team stands among the process's."""
    return TEAMS_AT + number * int(Team.NCELLS) + int(word)


@pytest.fixture
def _words_as_before() -> Iterator[None]:
    """What a test writes into the process's words is taken back."""
    words = team_words()
    before = list(words)
    yield
    for at, value in enumerate(before):
        if at < POOL_AT + len(PoolWord) or (at - TEAMS_AT) % Team.NCELLS in (Team.OWNER, Team.HIRED):
            words[at] = value


def test_after_fork(machine_code: bytes) -> None:
    """The child has no threads, waits for none, and makes its own."""
    torch.set_num_threads(2)
    executable = Executable(chain(10), machine_code)
    x = torch.randn(ITEMS, N)
    want = chained(x, 10)
    words, hired = team_words(), team_word(0, Team.HIRED)
    words[TeamWord.REST_UNTIL] = 0
    assert torch.equal(executable.call(x)[0], want) and words[hired] >= 1
    child = os.fork()
    if child == 0:
        words[TeamWord.REST_UNTIL] = 0
        has_none = words[hired] == 0
        is_same = all(torch.equal(executable.call(x)[0], want) for _ in range(50))
        os._exit(0 if has_none and is_same and words[hired] == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert words[hired] >= 1 and torch.equal(executable.call(x)[0], want)


@pytest.mark.usefixtures("_words_as_before")
def test_a_thread_that_never_comes_is_not_waited_for(machine_code: bytes) -> None:
    torch.set_num_threads(2)
    executable = Executable(chain(10), machine_code)
    x = torch.randn(ITEMS, N)
    words = team_words()
    for number in range(TEAMS - 1):
        words[team_word(number, Team.OWNER)] = 1
    words[team_word(TEAMS - 1, Team.HIRED)] = 1  # nobody has hired anybody
    for _ in range(20):
        words[TeamWord.REST_UNTIL] = 0
        assert torch.equal(executable.call(x)[0], chained(x, 10))
        assert words[team_word(TEAMS - 1, Team.TICKETS)] == words[team_word(TEAMS - 1, Team.OWNER)] == 0


@pytest.mark.usefixtures("_words_as_before")
def test_where_all_teams_are_taken_one_thread_does_all(machine_code: bytes) -> None:
    torch.set_num_threads(2)
    executable = Executable(chain(10), machine_code)
    x = torch.randn(ITEMS, N)
    words = team_words()
    words[TeamWord.REST_UNTIL] = 0
    before = [words[team_word(number, Team.TICKETS)] for number in range(TEAMS)]
    for number in range(TEAMS):
        words[team_word(number, Team.OWNER)] = 1
    assert torch.equal(executable.call(x)[0], chained(x, 10))
    assert [words[team_word(number, Team.TICKETS)] for number in range(TEAMS)] == before == [0] * TEAMS
    assert all(words[team_word(number, Team.OWNER)] for number in range(TEAMS))


@pytest.mark.usefixtures("_words_as_before")
def test_where_the_system_grants_no_thread_one_does_all(machine_code: bytes) -> None:
    asked: list[int] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    def refused(*args: int) -> int:
        asked.append(len(args))
        return 11

    torch.set_num_threads(4)
    executable = Executable(chain(10), machine_code)
    x = torch.randn(ITEMS, N)
    words = team_words()
    words[TeamWord.REST_UNTIL] = 0
    words[POOL_AT + PoolWord.CREATE] = ctypes.cast(refused, ctypes.c_void_p).value or 0
    for number in range(TEAMS - 1):
        words[team_word(number, Team.OWNER)] = 1
    words[team_word(TEAMS - 1, Team.HIRED)] = 0
    assert torch.equal(executable.call(x)[0], chained(x, 10)) and asked == [4]
    assert words[team_word(TEAMS - 1, Team.OWNER)] == 0


def test_a_process_ends_while_its_threads_look_for_work() -> None:
    """The interpreter takes down what it has; the threads go on until the process is gone."""
    code = """
import torch, smelt
from smelt.runtime.encoding.table import TEAMS_AT, Team
from smelt.runtime.machine.threads import team_words
torch.set_num_threads(2)
x = torch.randn(2000, 500)
compiled = smelt.compile(lambda x: torch.tanh(x) * 2 + 1)
for _ in range(3):
    torch.testing.assert_close(compiled(x), torch.tanh(x) * 2 + 1)
print(team_words()[TEAMS_AT + Team.HIRED], flush=True)
"""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_one_thread_does_all_while_waiting_for_others_would_cost_more(machine_code: bytes) -> None:
    """The words are this process's; what they say changes how fast an answer comes, never the answer."""
    torch.set_num_threads(2)
    executable = Executable(chain(10), machine_code)
    x = torch.randn(ITEMS, N)
    want = chained(x, 10)
    words = team_words()
    words[TeamWord.REST_UNTIL] = words[TeamWord.WORK] = words[TeamWord.RESTS] = 0
    words[TeamWord.STALL] = 10**12
    before = time.monotonic_ns()
    assert torch.equal(executable.call(x)[0], want)
    assert before < words[TeamWord.REST_UNTIL] <= time.monotonic_ns() + 2 * 10**7
    assert words[TeamWord.STALL] == words[TeamWord.WORK] == 0
    words[TeamWord.REST_UNTIL] = 2**62
    assert torch.equal(executable.call(x)[0], want)
    assert words[TeamWord.STALL] == words[TeamWord.WORK] == 0  # nobody was waited for
    words[TeamWord.REST_UNTIL] = 0
    words[TeamWord.WORK] = 10**12  # halved, for it is more than is remembered
    assert torch.equal(executable.call(x)[0], want)
    assert words[TeamWord.REST_UNTIL] == 0 and 0 < words[TeamWord.WORK] < 10**12
    words[TeamWord.WORK] = words[TeamWord.STALL] = 0


def test_one_thread_does_all_for_longer_where_that_comes_again(machine_code: bytes) -> None:
    torch.set_num_threads(2)
    executable = Executable(chain(10), machine_code)
    x = torch.randn(ITEMS, N)
    words = team_words()

    def rests(least_ms: int, stall: int, work: int) -> bool:
        """Whether one thread does all for so long from some moment of a call on."""
        words[TeamWord.REST_UNTIL], words[TeamWord.STALL], words[TeamWord.WORK] = 0, stall, work
        before = time.monotonic_ns()
        executable.call(x)
        return bool(before <= words[TeamWord.REST_UNTIL] - least_ms * 1_000_000 <= time.monotonic_ns())

    words[TeamWord.RESTS] = 0
    assert all(rests(ms, 10**12, 0) for ms in (20, 40, 80, 160, 160))
    assert not rests(0, 0, 10**9) and words[TeamWord.REST_UNTIL] == 0 and words[TeamWord.RESTS] == 2  # no wait
    assert rests(80, 10**12, 0)
    for _ in range(5):
        rests(0, 0, 10**9)
    assert words[TeamWord.RESTS] == 0
    words[TeamWord.WORK] = words[TeamWord.STALL] = words[TeamWord.REST_UNTIL] = 0


# --- what runs side by side -------------------------------------------------------------------------------------------


def planned(plan: Plan, limit: int = 4) -> list[schedule.Item]:
    return schedule.schedule(plan, encode.Launches.of(plan, is_possible=True), limit)


def groups(plan: Plan) -> list[tuple[int, ...]]:
    return [item.indices for item in planned(plan) if isinstance(item, Group)]


def empties(*slots: int) -> list[Instruction]:
    return [Empty(slot, (ITEMS, N), (N, 1), f32) for slot in slots]


def test_independent_launches_share_a_record_and_give_the_same(machine_code: bytes) -> None:
    steps = [
        *empties(1), rows(1, 0, N, ITEMS, item_ns=LONG),
        *empties(2), rows(2, 0, N, ITEMS, item_ns=LONG / 100, scale=3.0),
        View(3, 0, (ITEMS, N), (N, 1), 0, 4), *empties(4), rows(4, 3, N, ITEMS, item_ns=LONG, scale=5.0),
        Release((3,)),
        *empties(5), rows(5, 4, N, ITEMS, item_ns=LONG),
        Release((4,)),
    ]  # fmt: skip
    plan = Plan(6, (0,), (1, 2, 5), tuple(steps))
    assert groups(plan) == [(1, 3, 6), (9,)]
    executable = Executable(plan, machine_code)
    x = torch.randn(ITEMS, N)
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        for _ in range(20):
            a, b, c = executable.call(x)
            assert torch.equal(a, x * 2 + 1) and torch.equal(b, x * 3 + 1)
            assert torch.equal(c, (x * 5 + 1) * 2 + 1)


@pytest.mark.parametrize(
    ("launches", "together"),
    [
        ([(3, 0), (4, 0)], True),  # read one input, write two arena tensors that are apart
        ([(3, 0), (5, 0)], False),  # two arena tensors that overlap
        ([(3, 0), (3, 1)], False),  # the same result
        ([(3, 0), (4, 3)], False),  # reads what was written
        ([(4, 3), (3, 0)], False),  # writes what was read
        ([(1, 0), (3, 0)], False),  # an input that may be a view of the other
        ([(1, 3), (4, 0)], False),
        ([(1, 3), (4, 2)], True),  # the compiler's own constant is nobody's view
    ],
)
def test_which_launches_are_independent(launches: Sequence[tuple[int, int]], together: bool) -> None:
    arena = (
        ArenaTensor(3, 0, (ITEMS, N), (N, 1), f32), ArenaTensor(4, 4 * N * ITEMS, (ITEMS, N), (N, 1), f32),
        ArenaTensor(5, 64, (8,), (1,), f32),
    )  # fmt: skip
    steps = [rows(out, x, N, ITEMS, item_ns=LONG) for out, x in launches]
    held = ((2, torch.randn(ITEMS, N)),)
    plan = Plan(
        6, (0, 1), (), tuple(steps), held=held, arena=arena, arena_nbytes=8 * N * ITEMS, fixed=frozenset({2})
    )  # fmt: skip
    assert groups(plan) == ([(0, 1)] if together else [(0,), (1,)])


def test_the_grain() -> None:
    def chunks(items: int, item_ns: float, limit: int = 4) -> int:
        launch = rows(1, 0, N, items, item_ns=item_ns)
        return -(-items // schedule.chunk_size(launch, limit))

    assert chunks(1000, 10.0) == 1  # ten microseconds
    assert chunks(1000, 20.0) == 2
    assert chunks(1000, 1000.0) == 20  # five of 50 for each; 16 are four of 63
    assert chunks(1000, 1000.0, limit=2) == 8
    assert chunks(36, 10_000.0, limit=2) == 12  # six of 3; eight are 20 items for one and 16 for the other
    assert chunks(3, 1e6) == 3
    assert chunks(1000, 1e6, limit=1) == chunks(1000, 0.0) == 1


def test_no_region_for_little_work_or_one_thread() -> None:
    def has_region(plan: Plan, limit: int = 4) -> bool:
        return any(isinstance(item, Enter) for item in planned(plan, limit))

    assert has_region(chain(4, item_ns=100.0))
    assert not has_region(chain(4, item_ns=40.0))  # each launch is ten microseconds
    assert not has_region(chain(4), limit=1)


def test_a_region_holds_no_more_than_it_must() -> None:
    """It begins and ends with launches that are shared, and ends before long work of one thread."""
    short, long = LONG / 1000, LONG
    steps: list[Instruction] = [*empties(1), rows(1, 0, N, ITEMS, item_ns=short)]
    steps += [rows(1, 0, N, ITEMS, item_ns=item_ns) for item_ns in (long, short, long, short)]
    steps += [rows(1, 0, N, 1, item_ns=1e6), rows(1, 0, N, ITEMS, item_ns=long)]
    kinds = [type(item) for item in planned(Plan(2, (0,), (1,), tuple(steps)))]
    assert kinds == [Single, Group, Enter, Group, Group, Group, Leave, Group, Group, Enter, Group, Leave]
