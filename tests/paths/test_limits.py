"""Where paths end: too many of them, values that differ at each call, threads, what cannot be held back."""

from __future__ import annotations

import re
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt import SmeltWarning
from smelt.compiler.object import compiled_build
from smelt.compiler.paths import PATIENCE

from .judge import agree
from .programs import PROGRAMS

pytestmark = pytest.mark.usefixtures("paths_only")

SEED_OF_HIGH, SEED_OF_LOW = 1, 0  # the first draw is above and below a half


def by_value(x: Tensor) -> Tensor:
    return x * x[0].item()


def by_count(x: Tensor) -> Tensor:
    for _ in range(int(x[0])):
        x = x + 1
    return x


def test_a_value_that_differs_at_each_call_is_left_to_eager_with_one_warning() -> None:
    compiled = smelt.compile(by_value)
    line = by_value.__code__.co_firstlineno + 1
    with pytest.warns(
        SmeltWarning, match=rf"{re.escape(__file__)}:{line}.* was 0\.0, 1\.0, 2\.0, 3\.0, \.\.\."
    ) as seen:
        for n in range(60):
            x = torch.full((3,), float(n))
            assert torch.equal(compiled(x), by_value(x))
    assert len(seen) == 1
    stats = compiled.stats()
    assert stats.builds == PATIENCE and [row.entry for row in stats.rows] == [None]


def test_paths_that_are_used_stay_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_build, "PATH_LIMIT", 4)
    compiled = smelt.compile(by_count)
    for n in range(4):
        for _ in range(6):
            assert compiled(torch.tensor([float(n)])).item() == 2 * n
    assert compiled.stats().builds == 4 and len(compiled.stats().rows) == 4
    for _ in range(6):  # the fifth takes the place of the one used longest ago, which is 0
        assert compiled(torch.tensor([4.0])).item() == 8
    assert compiled.stats().builds == 5 and len(compiled.stats().rows) == 4
    for n in (1, 2, 3, 4):
        assert compiled(torch.tensor([float(n)])).item() == 2 * n
    assert compiled.stats().builds == 5
    assert compiled(torch.tensor([0.0])).item() == 0
    assert compiled.stats().builds == 6
    with pytest.warns(SmeltWarning, match="it has more paths than are cached"):
        for n in range(5, 12):
            for _ in range(6):
                assert compiled(torch.tensor([float(n)])).item() == 2 * n
    assert [row.entry for row in compiled.stats().rows] == [None]
    assert compiled(torch.tensor([3.0])).item() == 6


def test_fullgraph_says_why_instead() -> None:
    compiled = smelt.compile(by_value, fullgraph=True)
    with pytest.raises(smelt.CaptureError, match="its path differs at nearly each call"):
        for n in range(60):
            compiled(torch.full((3,), float(n)))


def test_other_shapes_are_other_guards_with_paths_of_their_own() -> None:
    compiled = smelt.compile(by_count, dynamic=False)
    for size in range(1, 5):
        for n in range(4):
            for _ in range(4):
                x = torch.full((size,), float(n))
                assert torch.equal(compiled(x), by_count(x))
    stats = compiled.stats()
    assert stats.builds == 16 == len(stats.rows) and not stats.fallbacks
    assert len({id(row.paths) for row in stats.rows}) == 4


@pytest.mark.parametrize("name", ["branch", "write_between", "masked", "draws_decide"])
def test_threads(name: str) -> None:
    factory, inputs = PROGRAMS[name]
    program = factory()
    compiled = smelt.compile(program)
    wrong: list[Any] = []
    expected = []
    for (x,) in inputs:
        given = x.clone()
        expected.append((program(given), given))

    def work(offset: int) -> None:
        for n in range(60):
            i = (n * 7 + offset) % len(inputs)
            given = inputs[i][0].clone()
            found = compiled(given)
            if name != "draws_decide" and not (
                torch.equal(found, expected[i][0]) and torch.equal(given, expected[i][1])
            ):
                wrong.append((i, found, given))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def draws_between(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Draw between a path that missed and its record, as another thread may: the call takes the missed way then."""
    miss = compiled_build.Builds.miss
    left = [times]

    def drawing(self: Any, args: Any, kwargs: Any, missed: Any) -> Any:
        if missed and left[0]:
            left[0] -= 1
            torch.manual_seed(SEED_OF_HIGH)
        return miss(self, args, kwargs, missed)

    monkeypatch.setattr(compiled_build.Builds, "miss", drawing)


def test_draws_of_another_thread_between_a_miss_and_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    factory, inputs = PROGRAMS["draws_decide"]
    compiled = smelt.compile(factory())
    (x,) = inputs[0]
    torch.manual_seed(SEED_OF_HIGH)
    assert torch.equal(compiled(x), x + 1)
    draws_between(monkeypatch, 3)
    for _ in range(4):
        for seed in (SEED_OF_LOW, SEED_OF_HIGH):
            torch.manual_seed(seed)
            compiled(x)
    stats = compiled.stats()
    assert not stats.fallbacks and all(row.entry is not None for row in stats.rows) and len(stats.rows) == 2


def test_a_path_that_is_contradicted_at_each_call_is_left_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    factory, inputs = PROGRAMS["draws_decide"]
    compiled = smelt.compile(factory())
    (x,) = inputs[0]
    torch.manual_seed(SEED_OF_HIGH)
    compiled(x)
    draws_between(monkeypatch, 100)
    with pytest.warns(SmeltWarning, match="does not come to the values that Python reads"):
        for _ in range(10):
            torch.manual_seed(SEED_OF_LOW)
            compiled(x)
    assert [row.entry for row in compiled.stats().rows] == [None]


def test_what_another_way_would_fail_at_is_not_run() -> None:
    def f(a: Tensor, i: Tensor) -> Tensor:
        if torch.linalg.det(a) == 0:
            return a + 1
        b = torch.linalg.inv(a)
        if b[0, 0] > 0:
            return b
        return torch.nn.functional.embedding(i, a)

    fine, single, other = torch.eye(2), torch.zeros(2, 2), -torch.eye(2)
    low, high = torch.tensor([0, 1]), torch.tensor([0, 7])
    compiled = smelt.compile(f)
    agree(compiled, f, [(fine, low), (single, low), (other, low), (fine, high), (single, high), (other, low)] * 2)
    assert not compiled.stats().fallbacks
    agree(compiled, f, [(other, high), (fine, high), (other, low)])  # eager's own error


def test_an_effect_on_one_way_only_leaves_the_others_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Tensor) -> Tensor:
        if x.sum() > 0:
            print("positive")
        return x * 2

    compiled = smelt.compile(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        for n, x in enumerate([-torch.ones(2), torch.ones(2), -torch.ones(2)] * 5):
            assert torch.equal(compiled(x), x * 2), n
    assert capsys.readouterr().out == "positive\n" * 5
    (path,) = (row for row in compiled.stats().rows if row.entry is not None)
    assert path.hits == 9


def test_what_numpy_may_write_is_not_compiled() -> None:
    def write(x: Tensor) -> Tensor:
        x.numpy()[0] = 5
        return x * 2

    def read_later(x: Tensor) -> Tensor:
        y = x * 1
        a = y.numpy()
        y.add_(1)
        return x * float(a[0])

    def give(x: Tensor) -> Any:
        return (x * 2).numpy()

    for f in (write, read_later, give):
        compiled = smelt.compile(f)
        with pytest.warns(SmeltWarning, match="not compiled|compiled as partitions"):
            compiled(torch.ones(3))
        for n in range(4):
            x = torch.full((3,), float(n))
            left, right = x.clone(), x.clone()
            assert str(compiled(left)) == str(f(right)) and torch.equal(left, right)


def test_an_address_is_never_compared() -> None:
    compiled = smelt.compile(lambda x: x + 1 if x.data_ptr() % 2 == 0 else x)
    with pytest.warns(SmeltWarning, match="data_ptr"):
        compiled(torch.ones(3))
    assert compiled.stats().rows[0].entry is None


def test_memory_shared_between_what_is_written_and_what_decides() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        if y.sum() > 3:
            x.mul_(2)
        return x + y

    compiled = smelt.compile(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        for value in (0.0, 3.0, -1.0) * 3:
            a, b = torch.full((3,), value), torch.full((3,), value)
            assert torch.equal(compiled(a, a), f(b, b)) and torch.equal(a, b)
            c, d = torch.full((4,), value), torch.full((4,), value)
            assert torch.equal(compiled(c[:3], c[1:]), f(d[:3], d[1:])) and torch.equal(c, d)
            e = torch.full((3,), value)
            assert torch.equal(compiled(a, e), f(b, e)) and torch.equal(a, b)


def test_reading_what_rounding_decides_is_given_up() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return x * (x @ w).sum().item()

    compiled = smelt.compile(f)
    torch.manual_seed(0)
    w = torch.randn(300, 300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        xs = [torch.randn(5, 300) for _ in range(3)]
        for x in xs * 8:
            assert torch.allclose(compiled(x, w), f(x, w))
    assert compiled.stats().builds <= PATIENCE


def test_a_guard_fails_beside_the_paths() -> None:
    class M(torch.nn.Module):
        scale = 2

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale if x.sum() > 0 else x - self.scale

    model = M()
    compiled = smelt.compile(model)
    for scale in (2, 3, 2, 5):
        model.scale = scale
        for x in (torch.ones(2), -torch.ones(2)) * 2:
            assert torch.equal(compiled(x), x * scale if x[0] > 0 else x - scale)


def test_background_compilation() -> None:
    compiled = smelt.compile(by_count, background=True)
    for n in (1, 2, 1, 3, 2, 1) * 10:
        assert compiled(torch.tensor([float(n)])).item() == 2 * n


def test_explain_tells_the_way_of_each_graph() -> None:
    compiled = smelt.compile(by_count)
    for n in (1, 2, 1):
        compiled(torch.tensor([float(n)]))
    report = smelt.explain(compiled)
    where = f"{__file__}:{by_count.__code__.co_firstlineno + 1} in by_count"
    read = [row for row in report.guards if row["kind"] == "read of data"]
    assert [(row["entry"], row["value"], row["where"]) for row in read] == [(0, "1.0", where), (1, "2.0", where)] or [
        (row["entry"], row["value"], row["where"]) for row in read
    ] == [(0, "2.0", where), (1, "1.0", where)]
    whys = {row["why"] for row in report.graphs}
    assert whys == {"the first call of its kind", f"the value of a tensor was 1.0, now 2.0 (read at {where})"}
    assert [row["guard"] for row in report.recompiles] == [f"the value of a tensor was 1.0, now 2.0 (read at {where})"]
    assert "read of data" in str(report)


def by_rank(x: Tensor) -> Tensor:
    h = torch.tanh(x @ x.t())
    k = int((h.sum() * 0 + x[0, 0]).floor())
    for i in range(6):
        if k == i:
            return h.reshape((1,) * i + (3, 3))
    return h


def test_a_value_that_was_found_leads_to_the_path_it_belongs_to() -> None:
    compiled = smelt.compile(by_rank)
    inputs = [torch.full((3, 4), n + 0.5) for n in range(6)]
    for x in inputs:
        for _ in range(4):
            assert torch.allclose(compiled(x), by_rank(x))
    (paths,) = {id(row.paths): row.paths for row in compiled.stats().rows}.values()
    assert paths is not None
    for turn in range(3):
        for x in inputs[:: 1 if turn % 2 else -1]:
            before = paths.misses
            found, expected = compiled(x), by_rank(x)
            assert found.shape == expected.shape and torch.allclose(found, expected)
            assert paths.misses <= before + 1
