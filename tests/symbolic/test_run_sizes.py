"""Plans for many sizes at run time: one encoding, filled for each tuple; threads, evictions, what fails."""

import gc
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smelt.capture.dynamic.spec import Free
from smelt.runtime.encoding import sizes as runtime_sizes
from smelt.runtime.encoding.sizes import SizedExecutable
from smelt.runtime.launches import Launches, Spot
from smelt.runtime.plan import ArenaTensor, Empty, KernelCode, Launch, Plan, Release, View, Word
from smelt.runtime.pool import Pool
from smelt.runtime.schedule import Group, schedule

from .sized import assert_like_eager, flat, free, sized


def norm(x, y):
    return torch.softmax(x * 2 + y, -1), (x.sum(-1, keepdim=True) * y).tanh()


def _norm(b=4, s=30):
    return sized(norm, (torch.randn(b, s), torch.randn(b, s)), free("BS", "BS"))


def _call(b, s):
    return torch.randn(b, s), torch.randn(b, s)


def test_one_encoding_serves_all_sizes(monkeypatch):
    encoded = []
    honest = runtime_sizes.encode
    monkeypatch.setattr(runtime_sizes, "encode", lambda *args: encoded.append(1) or honest(*args))
    one = _norm()
    for b in range(2, 12):
        assert_like_eager(one, _call(b, 3 * b))
    assert len(encoded) == 1 and not one.executable._cannot_share
    assert one.executable.at((5, 15)) is one.executable.at((5, 15))
    assert one.executable.at((5, 15)).stats.runs == 1
    assert one.executable.at((5, 15)).is_native


def test_launches_without_items_at_some_sizes(monkeypatch):
    encoded = []
    honest = runtime_sizes.encode
    monkeypatch.setattr(runtime_sizes, "encode", lambda *args: encoded.append(1) or honest(*args))
    one = _norm()
    items = [n for i in one.lowered.plan.template.instructions for n in [getattr(i, "items", None)] if type(n) is Word]
    before = torch.get_num_threads()
    empty = set()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            for sizes in ((2, 6), (4, 16), (7, 33), (5000, 64), (6001, 50), (9000, 35), (16, 16), (20000, 8)):
                assert_like_eager(one, _call(*sizes))
                words = one.lowered.plan.words(*sizes)
                empty |= {i for i, count in enumerate(items) if count.value(words) == 0}
    finally:
        torch.set_num_threads(before)
    assert empty and len(encoded) == 1
    assert all(one.executable.at(sizes).is_native for sizes in ((2, 6), (5000, 64)))


def test_plans_that_are_not_used_go():
    one = _norm()
    few = SizedExecutable(one.lowered.plan, one.executable._machine_code, kept=3)
    for b in (2, 3, 4, 5, 2, 3, 4, 5, 6):
        x, y = _call(b, 7)
        for a, e in zip(few.call(x, y), norm(x, y), strict=True):
            torch.testing.assert_close(a, e)
        assert len(few._ready) <= 3
    assert (6, 7) in few._ready and (2, 7) not in few._ready


def test_arenas_are_kept_within_bounds(monkeypatch):
    monkeypatch.setattr(runtime_sizes, "KEPT_NBYTES", 0)
    one = sized(lambda x: (x @ x.transpose(0, 1)).softmax(-1) @ x, (torch.randn(20, 8),), free("N_"))
    for n in (20, 40, 30, 50):
        assert_like_eager(one, (torch.randn(n, 8),))
    assert len(one.executable._ready) == 1


def test_threads_with_different_sizes_do_not_disturb_each_other():
    one = _norm()
    few = SizedExecutable(one.lowered.plan, one.executable._machine_code, kept=2)
    wrong, errors = [], []
    begin = threading.Barrier(4)

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        begin.wait()
        try:
            for _ in range(60):
                b, s = (int(torch.randint(2, 9, (), generator=generator)) for _ in range(2))
                x, y = torch.randn(b, s, generator=generator), torch.randn(b, s, generator=generator)
                for a, e in zip(few.call(x, y), norm(x, y), strict=True):
                    if a.shape != e.shape or not torch.allclose(a, e, atol=1e-5):
                        wrong.append((b, s))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and not wrong


@pytest.mark.usefixtures("young_heap")
def test_results_are_the_callers_own():
    one = _norm()
    first = one.executable.call(*_call(3, 5))
    kept = [t.clone() for t in first]
    for n in range(2, 20):
        one.executable.call(*_call(n, 5))
    gc.collect()
    for a, b in zip(first, kept, strict=True):
        assert torch.equal(a, b)


def test_a_cache_that_grows_at_each_step():
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(32, 96)

        def forward(self, x, keys, values):
            q, k, v = (t.view(2, 1, 2, 16).transpose(1, 2) for t in self.qkv(x).split(32, -1))
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            return F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).reshape(2, 1, 32), keys, values

    step = Step().eval()
    cache = [torch.randn(2, 2, 3, 16) for _ in range(2)]
    one = sized(step, (torch.randn(2, 1, 32), *cache), free("", "__T", "__T"))
    ours, theirs = list(cache), list(cache)
    for _ in range(60):
        x = torch.randn(2, 1, 32)
        with torch.no_grad():
            wanted, *theirs = step(x, *theirs)
        found, *ours = one.executable.call(x, *ours)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(ours[0].shape and torch.tensor(ours[0].shape), torch.tensor(theirs[0].shape))


def test_what_a_kernel_refuses_raises_eagers_error_at_any_sizes():
    table = torch.randn(10, 6)

    def program(ids):
        return F.embedding(ids, table).sum(0)

    one = sized(program, (torch.randint(0, 10, (4, 9)),), free("BS"))
    for b, s in ((4, 9), (2, 3), (7, 30)):
        ids = torch.randint(0, 10, (b, s))
        assert_like_eager(one, (ids,))
        ids[b - 1, s - 1] = 10
        with pytest.raises(IndexError):
            one.executable.call(ids)
        ids[b - 1, s - 1] = 9
        assert_like_eager(one, (ids,))


OPERATORS = {
    "roll": lambda x, n, m: torch.roll(x, n // 2, 0),
    "topk": lambda x, n, m: x.topk(m // 2).values,
    "cumsum": lambda x, n, m: torch.cumsum(x, 0) * m,
    "repeat": lambda x, n, m: x.repeat(2, n),
    "pad": lambda x, n, m: F.pad(x, (1, n)),
    "tril": lambda x, n, m: torch.tril(x, n - m),
    "narrow": lambda x, n, m: x.narrow(1, m // 3, 2),
    "sort": lambda x, n, m: x.sort(-1).values[:, : m // 2],
    "full": lambda x, n, m: torch.full((m, n), n * 0.5) + x.t(),
    "arange": lambda x, n, m: torch.arange(1, n + 1) * torch.ones(m, 1),
    "chunk": lambda x, n, m: torch.cat([x, x], 1).chunk(2, 1)[1] * n,
    "view": lambda x, n, m: torch.cumsum(x, 0).reshape(m, -1).t().reshape(n, -1),
    "floats": lambda x, n, m: x * (n / m) + x.clamp(max=n) - m**0.5,
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_that_operators_take_follow_the_sizes(name):
    def program(x):
        return OPERATORS[name](x, *x.shape) + 0

    one = sized(program, (torch.randn(6, 9),), free("NM"))
    ran = 0
    for n, m in ((6, 9), (2, 7), (3, 30), (12, 18), (9, 6), (40, 41), (5, 64), (3, 9)):
        args = (torch.randn(n, m),)
        if one.holds(args):
            assert_like_eager(one, args)
            ran += 1
    assert ran >= 3


def test_a_row_that_is_seen_several_times():
    def program(x):
        return x.unsqueeze(0).expand(2, -1, -1).sum(0).t() + 0, x.expand(3, *x.shape) * 2

    one = sized(program, (torch.randn(3, 4),), free("NM"))
    for n, m in ((3, 4), (2, 3), (3, 2), (16, 33), (2, 130)):
        assert_like_eager(one, (torch.randn(n, m),))


def test_sizes_of_none_and_one_where_they_are_in_range():
    def program(x, y):
        return torch.softmax(x * 2, -1) + y, x.sum(0), (x - y).relu().mean(-1)

    free_sizes = {("args[0]", 0): Free("N", 0, None), ("args[1]", 0): Free("N", 0, None)}
    one = sized(program, (torch.randn(5, 8), torch.randn(5, 8)), free_sizes)
    ran = 0
    for n in (5, 2, 1, 0, 30, 0, 1):
        args = (torch.randn(n, 8), torch.randn(n, 8))
        if one.holds(args):
            assert_like_eager(one, args)
            ran += 1
    assert ran >= 3


def test_without_machine_code_plans_run_in_python():
    one = _norm()
    slow = SizedExecutable(one.lowered.plan, None)
    x, y = _call(3, 11)
    for a, e in zip(slow.call(x, y), norm(x, y), strict=True):
        torch.testing.assert_close(a, e)
    assert not slow.at((3, 11)).is_native


def test_outputs_that_are_numbers_and_views_follow_the_sizes():
    def program(x):
        n, m = x.shape
        return x[1:, : m - 1], n * m, x.sum() * 2, n / m, (n, [m + 1])

    one = sized(program, (torch.randn(6, 9),), free("NM"))
    for n, m in ((6, 9), (2, 2), (3, 30), (17, 4)):
        x = torch.randn(n, m)
        assert_like_eager(one, (x,))
        view = flat(one.answers((x,))[0])[0]
        assert view.data_ptr() == x[1:].data_ptr()


# --- parts ------------------------------------------------------------------------------------------------------------


def test_words_are_sums():
    a, b = Word.of(0), Word.of(2)
    words = (5, -1, 7)
    assert (a * 4 + 3 + b + a).value(words) == 5 * 5 + 3 + 7
    assert (2 + b * 0).value(words) == 2
    assert (a * 1.0).is_double and not a.is_double and (a * 1.0).value((2.5,)) == 2.5
    assert isinstance(a, int) and type(a) is not int
    assert a == Word.of(0) != b and a != 5 and a != 0 and len({a, Word.of(0), b, a * 1.0, 0}) == 4


def test_memory_is_lent_and_comes_back():
    pool = Pool()
    small, large = pool.take(100), pool.take(1000)
    assert small.numel() >= 100 and large.numel() >= 1000 and small.data_ptr() != large.data_ptr()
    for block in (small, large):
        pool.give(block)
    assert pool.take(50).data_ptr() == small.data_ptr()
    assert pool.take(60).data_ptr() == large.data_ptr()
    assert pool.take(60).data_ptr() not in (small.data_ptr(), large.data_ptr())


def _launch(reads, write, items=4):
    return Launch(KernelCode("k", b""), (*reads, write), (), items, print, (len(reads),), 1e6)


def _groups(instructions, arena, any_offsets=False):
    plan = Plan(9, (0,), (), instructions, arena=arena, arena_nbytes=4096)
    code = {i: None for i, one in enumerate(instructions) if isinstance(one, Launch)}
    launches = Launches(code, {slot: Spot(slot) for slot in range(9)})
    return [item.indices for item in schedule(plan, launches, 4, any_offsets=any_offsets) if isinstance(item, Group)]


def _tensor(slot, offset):
    return ArenaTensor(slot, offset, (16,), (1,), torch.float32)


def test_a_view_with_a_handle_lies_in_the_memory_of_its_source():
    view = View(3, 1, (16,), (1,), 0, 4)
    arena = (_tensor(1, 0), _tensor(2, 64))
    assert _groups((_launch((0,), 1), view, _launch((3,), 2), Release((3,))), arena) == [(0,), (2,)]
    owned = (Empty(1, (16,), (1,), torch.float32), _launch((0,), 1), view, _launch((3,), 2), Release((1, 3)))
    assert _groups(owned, (_tensor(2, 64),)) == [(1,), (3,)]


def test_without_certain_offsets_only_what_is_alive_together_runs_side_by_side():
    # 1 and 2 are alive together; 1 is dead when 4 is written, and might lie where 4 does.
    instructions = (_launch((0,), 1), _launch((0,), 2), _launch((1, 2), 3), _launch((0,), 4), _launch((3, 4), 5))
    arena = tuple(_tensor(slot, 64 * slot) for slot in (1, 2, 3, 4, 5))
    assert _groups(instructions, arena) == [(0, 1), (2, 3), (4,)]
    assert _groups(instructions, arena, any_offsets=True) == [(0, 1), (2,), (3,), (4,)]
