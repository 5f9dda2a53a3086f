"""How often a program is built as its sizes and numbers change, and what serves each call."""

from __future__ import annotations

import gc
import threading
import warnings
from typing import Any

import pytest
import torch

import smelt
from smelt.capture.staging.session import Session
from smelt.compiler import SizedUnit


class Stop:
    """A criterion as programs make a new one of for each call."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, x: Any) -> Any:
        return x * self.length

    def times(self, x: Any) -> Any:
        return x * self.length


def either_sign(x: Any, n: Any) -> Any:
    y = x**2
    return (n + 1) * y if n >= 0 else y / n


def builds(compiled: Any) -> int:
    return compiled.stats().builds


def free(compiled: Any) -> list[list[str]]:
    """What is free in each entry, oldest first."""
    return [entry["free"] for entry in compiled.stats().to_dict()["entries"]]


def test_static_symbolic_reuse_new_entry() -> None:
    compiled, x, counts = smelt.compile(either_sign), torch.randn(3, 4), []
    for n in (2, 3, 6, -3, -4, 7):
        torch.testing.assert_close(compiled(x, n), either_sign(x, n))
        counts.append(builds(compiled))
    assert counts == [1, 2, 2, 3, 3, 3]
    assert sorted(free(compiled)) == [[], ["args[1]"], ["args[1]"]]
    assert compiled.stats().fallbacks == {}


def test_dynamic_false_keeps_all() -> None:
    compiled, x = smelt.compile(either_sign, dynamic=False), torch.randn(3, 4)
    for n in (2, 3, 6):
        torch.testing.assert_close(compiled(x, n), either_sign(x, n))
    assert builds(compiled) == 3
    assert free(compiled) == [[], [], []]


def test_dynamic_true_frees_all_at_once() -> None:
    compiled = smelt.compile(either_sign, dynamic=True)
    for rows, n in ((3, 2), (4, 3), (9, 60)):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x, n), either_sign(x, n))
    assert builds(compiled) == 1
    assert free(compiled) == [["args[0].shape[0]", "args[0].shape[1]", "args[1]"]]


def test_a_plan_for_many_sizes() -> None:
    def f(x: Any, w: Any) -> Any:
        return torch.softmax(x @ w, -1)

    compiled, w = smelt.compile(f), torch.randn(8, 5)
    for rows in (4, 7, 2, 33, 100, 7):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x, w), f(x, w))
    assert builds(compiled) == 2
    unit = next(row.entry for row in compiled.stats().rows if isinstance(row.entry, SizedUnit))
    assert (len(unit.templates), unit.lowered_alone, unit.plans_made) == (1, 0, 4), unit.why_alone


def test_float_that_changes_is_a_number_of_the_run() -> None:
    compiled, x = smelt.compile(lambda x, a: x * a), torch.randn(5)
    for a in (0.5, 0.25, -0.0, float("inf"), 3.0):
        torch.testing.assert_close(compiled(x, a), x * a)
    assert builds(compiled) == 2
    unit = next(row.entry for row in compiled.stats().rows if isinstance(row.entry, SizedUnit))
    assert unit.plans_made == 1


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.times = 2

    def forward(self, x: Any) -> Any:
        return x * self.times


def test_attributes_of_modules_stay_guarded() -> None:
    module = Scaled()
    compiled = smelt.compile(module)
    for rows, times in ((3, 2), (4, 2), (5, 2), (5, 3), (6, 3)):
        module.times = times
        x = torch.randn(rows, 2)
        torch.testing.assert_close(compiled(x), x * times)
    # What is free stays free where another guard fails.
    assert builds(compiled) == 3
    assert free(compiled)[-1] == ["args[0].shape[0]"]


def test_weights_written_between_plans() -> None:
    layer = torch.nn.Linear(16, 16)
    compiled = smelt.compile(layer)
    with torch.no_grad():
        for rows in (3, 5, 9, 3, 17, 40):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(compiled(x), layer(x))
            layer.weight.mul_(1.5)
        layer.weight.data.mul_(2)
        compiled.refresh()
        for rows in (3, 5, 9, 3, 17, 40):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(compiled(x), layer(x))


def test_named_sizes_that_a_program_fixes() -> None:
    def f(x: Any) -> Any:
        if x.shape[0] == 4:
            return x * 2
        return x + 1

    compiled = smelt.compile(f, dynamic_shapes={"x": {0: "B"}})
    with pytest.raises(smelt.CaptureError, match="B was to stay free, and the program holds only where it is 4") as e:
        compiled(torch.randn(4, 2))
    assert e.value.code == "S0111"
    assert e.value.where is not None and "x.shape[0] == 4" in e.value.where.text
    assert "B == 4" in e.value.why


def test_two_names_for_one_size() -> None:
    compiled = smelt.compile(lambda x, y: x + y, dynamic_shapes={"x": {0: "B"}, "y": {0: "C"}})
    with pytest.raises(smelt.CaptureError, match="C was to stay free, and the program holds only where it is B") as e:
        compiled(torch.randn(4, 2), torch.randn(4, 2))
    assert e.value.fix == "call both B"


def test_one_name_for_two_sizes() -> None:
    def f(x: Any, y: Any) -> Any:
        return x + y

    compiled = smelt.compile(f, dynamic_shapes={"x": {0: "B"}, "y": {0: "B"}})
    for rows in (4, 9, 3):
        x, y = torch.randn(rows, 2), torch.randn(rows, 2)
        torch.testing.assert_close(compiled(x, y), x + y)
    assert builds(compiled) == 1
    with pytest.warns(smelt.SmeltWarning, match="calls both B"):
        assert compiled(torch.randn(4, 2), torch.randn(1, 2)).shape == (4, 2)
    strict = smelt.compile(f, dynamic_shapes={"x": {0: "B"}, "y": {0: "B"}}, fullgraph=True)
    with pytest.raises(smelt.CaptureError, match="calls both B"):
        strict(torch.randn(4, 2), torch.randn(1, 2))


def test_outside_of_a_named_range_there_is_an_entry_of_its_own() -> None:
    compiled = smelt.compile(lambda x: x * 2, dynamic=False, dynamic_shapes={"x": {0: smelt.Dim("B", min=2, max=8)}})
    for rows in (4, 8, 2):
        compiled(torch.randn(rows, 2))
    assert builds(compiled) == 1
    with pytest.warns(smelt.SmeltWarning, match=r"x.shape\[0\] is 9"):
        torch.testing.assert_close(compiled(torch.ones(9, 2)), torch.full((9, 2), 2.0))
    assert builds(compiled) == 2


def test_a_wish_without_a_place_runs_nothing() -> None:
    seen: list[int] = []

    def f(x: Any) -> Any:
        seen.append(1)
        return x

    with pytest.raises(smelt.SmeltError, match="no parameter"):
        smelt.compile(f, dynamic_shapes={"y": {0: "B"}})
    compiled = smelt.compile(f, dynamic_shapes={"x": {2: "B"}})
    with pytest.raises(smelt.SmeltError, match="dimension 2 of x"):
        compiled(torch.randn(4, 2))
    assert seen == []


def test_numbers_beyond_64_bits_are_left_to_the_program() -> None:
    def f(x: Any, n: Any) -> Any:
        return x + 1, n * n * n

    compiled, x = smelt.compile(f), torch.randn(3)
    for n in (3, 5, 2**40, 7, 2**70, 11):
        assert compiled(x, n)[1] == n**3
    assert len(compiled.stats().rows) <= 3


def test_in_the_background() -> None:
    compiled = smelt.compile(lambda x: torch.tanh(x) * 2, background=True)
    for _ in range(3):
        for rows in (4, 6, 9, 3):
            x = torch.randn(rows, 3)
            torch.testing.assert_close(compiled(x), torch.tanh(x) * 2)


def test_from_several_threads() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    compiled, failures = smelt.compile(layer), []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        try:
            for _ in range(12):
                rows = int(torch.randint(1, 20, (), generator=generator))
                x = torch.randn(rows, 8, generator=generator)
                torch.testing.assert_close(compiled(x), layer(x))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_a_divisor_of_two_sizes_keeps_its_brackets_in_the_guard() -> None:
    def program(x: Any, y: Any) -> Any:
        rows = x.shape[0] * 100 // (4 * y.shape[0])
        return (x * 2 if rows * y.shape[0] == 25 * x.shape[0] else x * 3) + y.sum()

    compiled = smelt.compile(program)
    sizes = [(2, 2), (4, 4), (4, 2), (12, 3), (9, 6), (10, 4)]
    for first, second in (*sizes, *sizes):
        x, y = torch.ones(first), torch.zeros(second)
        assert torch.equal(compiled(x, y), program(x, y)), (first, second)
    # One of each way, and the first call's own.
    assert builds(compiled) <= 4


def test_dropout_draws_where_sizes_may_seem_to_be_none() -> None:
    # With no element dropout gives back its operand; that there are rows is told by guards, when nodes were asked once.
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Dropout(0.5))
    program = smelt.trace(model, torch.randn(4, 3, 10, 8), dynamic_shapes={"input": {0: "B", 2: "H"}})
    for rows in (10, 9):
        x = torch.randn(2, 3, rows, 8)
        with torch.no_grad():
            torch.manual_seed(3)
            expected, drawn = model(x), torch.get_rng_state()
            torch.manual_seed(3)
            assert torch.allclose(program(x), expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(torch.get_rng_state(), drawn)


def test_autocast_decides_dtypes_at_free_sizes() -> None:
    def program(x: Any, w: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch.nn.functional.linear(x, w)
            total = y.sum().item() if y.dtype == torch.bfloat16 else 0.0
        return y, total, y.dtype

    compiled, w = smelt.compile(program), torch.randn(6, 6)
    for rows in (2, 4, 3, 7):
        x = torch.randn(rows, 6)
        (y, total, dtype), (y0, total0, dtype0) = compiled(x, w), program(x, w)
        assert torch.equal(y, y0) and total == total0 and dtype is dtype0


@pytest.mark.parametrize(
    "program", [lambda x, f: f[0](x), lambda x, f: f[0].times(x), lambda x, f: (f[0](x), Stop(f[0].length + 1))]
)
def test_an_object_that_is_another_one_at_each_call_is_known_by_its_parts(program: Any) -> None:
    compiled, x = smelt.compile(program), torch.randn(3)
    for length in (2, 2, 2, 3, 4, 5, 2):
        found, expected = compiled(x, [Stop(length)]), program(x, [Stop(length)])
        if isinstance(found, tuple):
            assert found[1].length == expected[1].length
            found, expected = found[0], expected[0]
        assert torch.equal(found, expected)
    assert builds(compiled) <= 3
    changed = Stop(2)
    compiled(x, [changed])
    changed.length = 7
    assert torch.equal(torch.as_tensor(compiled(x, [changed])[0]), torch.as_tensor(program(x, [changed])[0]))


def test_a_class_that_gets_another_call_is_seen() -> None:
    class Other(Stop):
        pass

    compiled, x = smelt.compile(lambda x, f: f(x) + 1), torch.randn(3)
    for _ in range(3):
        assert torch.equal(compiled(x, Other(2)), x * 2 + 1)
    Other.__call__ = lambda self, x: x - self.length  # type: ignore[method-assign]
    assert torch.equal(compiled(x, Other(2)), x - 2 + 1)


def test_a_free_number_in_an_object_that_is_returned() -> None:
    def program(x: Any, k: int) -> Any:
        return x * k, Stop(k)

    compiled, x = smelt.compile(program), torch.randn(3)
    for k in (2, 3, 4, 5):
        y, stop = compiled(x, k)
        assert torch.equal(y, x * k) and stop.length == k
    assert builds(compiled) == 2


EMBEDDINGS, POSITIONS = torch.randn(10, 4), torch.randn(64, 4)


def with_positions(ids: Any) -> Any:
    for _ in range(20):
        x = EMBEDDINGS[ids] + POSITIONS[torch.arange(ids.shape[1])]
        found = x.sum((1, 2)).long().remainder(10)[:, None]
        ids = torch.cat([ids, found], 1)
        if (found == 1).all():
            break
    return ids


def test_what_grows_in_a_loop_from_a_free_size_fixes_none() -> None:
    compiled = smelt.compile(with_positions)
    for n in (3, 5, 8, 4, 9, 2):
        ids = torch.randint(0, 10, (1, n))
        assert torch.equal(compiled(ids), with_positions(ids))
    assert builds(compiled) == 2 and free(compiled)[1] == ["args[0].shape[1]"]


def beside_its_first(x: Any, y: Any) -> Any:
    while x.sum() < 20:
        x = torch.cat([x + y, x.new_ones(1)]) if x.sum() > -5 else torch.cat([x, x])
    return x


def test_what_fits_in_the_first_turn_only_fails_as_ever() -> None:
    compiled = smelt.compile(beside_its_first, dynamic=True)
    for n in (3, 4, 6):
        x, y = torch.ones(n), torch.ones(n)
        with pytest.raises(RuntimeError, match="size of tensor"):
            beside_its_first(x, y)
        with pytest.raises(RuntimeError, match="size of tensor"):
            compiled(x, y)
        assert torch.equal(compiled(x, y * 20), beside_its_first(x, y * 20))


def sessions() -> int:
    gc.collect()
    return sum(type(o) is Session for o in gc.get_objects())


@pytest.mark.usefixtures("young_heap")
def test_what_a_build_needed_does_not_stay() -> None:
    before = sessions()
    compiled = smelt.compile(beside_its_first, dynamic=True)
    x = torch.ones(3)
    assert torch.equal(compiled(x, x * 20), beside_its_first(x, x * 20))
    assert sessions() <= before
