"""Calls with free numbers and sizes through the native entry: what it runs itself, what it leaves to Python."""

from __future__ import annotations

import enum
import math
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import smelt
from smelt.codegen.lower import lower
from smelt.compiler.object.compiled import dispatcher_of
from smelt.compiler.object.compiled_dispatch import Dispatcher, _slow
from smelt.compiler.object.compiled_native import native_entry
from smelt.diag import Options
from smelt.ir import parse
from smelt.runtime.encoding.entry_table import Kind
from smelt.runtime.entering.entry import Counters, Target
from smelt.runtime.executable import Executable
from smelt.runtime.guarding.guards import GuardSet, NumberForm, SizeCheck, TensorForm
from tests.codegen.harness import lookup_in, machine_code
from tests.control.harness import OWN

RULE = {"measure": False}


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def scaled(x: torch.Tensor, n: Any) -> torch.Tensor:
    return x * n + 0.5


def _text(sizes: str, kind: str) -> str:
    return f"""\
graph f(%x: f32[{sizes}], %n: {kind}) -> f32[{sizes}] {{
  %0: f32[{sizes}] = aten.mul.Tensor(%x, %n)
  %1: f32[{sizes}] = aten.add.Tensor(%0, 0.5)
  return %1
}}"""


def _target(text: str, *args: Any) -> Target:
    """What runs a graph's plan; "python" where an idle frame is lacking, the failure where it fails."""
    executable = Executable(lower(parse(text), lookup_in({}), OWN).plan, machine_code())
    executable.call(*args)  # so that there is a frame
    places = tuple(f"args[{i}]" for i in range(len(args)))
    return Target(
        lambda args, kwargs: "python", executable.call, places, Kind.SINGLE, None, lambda *a: ("failed", a[1])
    )


def served(
    target: Target,
    args: tuple[Any, ...],
    free: Mapping[str, Any],
    plans: Sequence[tuple[Mapping[str, int], Target]] = (),
    checks: tuple[str, ...] = (),
) -> Any:
    """A compiled object whose only row is this; calls that it does not serve answer "slow"."""

    def slow(*args: Any) -> Any:
        return "slow"

    code = native_entry(Dispatcher, _slow, Options())
    assert code is not None
    guards = GuardSet((), args, {}, free=free, checks=[SizeCheck(text) for text in checks], writes=False)
    row = code.row(guards, args, {}, target, Counters(), plans)
    assert row is not None and row.runs_plan and row.guards.asks == 0
    compiled = smelt.compile(lambda *args: slow(*args), options=RULE)
    compiled(torch.ones(1))
    assert code.is_installed(type(compiled)) or code.install(type(compiled))
    dispatcher: Any = dispatcher_of(compiled)
    dispatcher._serve = lambda args, kwargs, missed: "slow"
    dispatcher.table = code.table([row])
    made: Any = compiled
    made.row = row
    return made


class Level(enum.IntEnum):
    HIGH = 3


class Count(int):
    pass


def test_an_int_is_read_natively() -> None:
    x = torch.randn(50)
    f = served(_target(_text("50", "int"), x, 3), (x, 3), {"args[1]": NumberForm("n")})
    for n in (3, 0, -1, 7, 2**31, -(2**62), 2**63 - 1, -(2**63)):
        torch.testing.assert_close(f(x, n), scaled(x, n), rtol=0, atol=0)
    for other in (2**63, -(2**63) - 1, 10**30, True, 3.0, Level.HIGH, Count(3), np.int64(3), "3", None, x):
        assert isinstance(f(x, other), str), other
    assert isinstance(f(x), str) and isinstance(f(x, 3, 3), str) and isinstance(f(x[1:], 3), str)


def test_a_float_is_read_natively() -> None:
    x = torch.randn(50)
    f = served(_target(_text("50", "float"), x, 0.5), (x, 0.5), {"args[1]": NumberForm()})
    for n in (0.5, -0.0, 1e300, 5e-324, math.inf, math.nan):
        torch.testing.assert_close(f(x, n), scaled(x, n), rtol=0, atol=0, equal_nan=True)
    for other in (1, True, np.float64(0.5), np.float32(0.5), "1.0", None, torch.tensor(0.5)):
        assert isinstance(f(x, other), str), other


def test_a_bool_is_read_natively() -> None:
    x = torch.randn(50)
    f = served(_target(_text("50", "bool"), x, True), (x, True), {"args[1]": NumberForm()})
    for n in (True, False):
        torch.testing.assert_close(f(x, n), scaled(x, n), rtol=0, atol=0)
    for other in (1, 0, 1.0, None, np.bool_(True)):
        assert isinstance(f(x, other), str), other


def test_the_plan_is_chosen_by_sizes() -> None:
    tensors = {n: torch.randn(n, 4) for n in (3, 5, 8, 9)}
    plans = [({"B": n}, _target(_text(f"{n}, 4", "int"), tensors[n], 3)) for n in (3, 5, 8)]
    base = Target(lambda args, kwargs: "python")
    free = {"args[0]": TensorForm(("B", 4)), "args[1]": NumberForm("n")}
    f = served(base, (tensors[5], 3), free, plans, ("n != 1", "B % 7 != 2"))
    for n in (5, 3, 8, 3, 5):
        torch.testing.assert_close(f(tensors[n], -n), scaled(tensors[n], -n), rtol=0, atol=0)
    # No plan; guards that fail.
    assert f(torch.ones(4, 4), 3) == "python"
    assert f(tensors[9], 3) == "slow" and f(tensors[5], 1) == "slow" and f(tensors[5].t(), 3) == "slow"
    assert f.row.hits == 5


def test_a_plan_that_needs_no_sizes() -> None:
    x = torch.randn(50)
    plans: list[tuple[dict[str, int], Target]] = [({}, _target(_text("50", "float"), x, 0.5))]
    f = served(Target(lambda args, kwargs: "python"), (x, 0.5), {"args[1]": NumberForm("s")}, plans)
    torch.testing.assert_close(f(x, 0.25), scaled(x, 0.25), rtol=0, atol=0)


def test_numbers_of_another_kind_than_the_plan_takes() -> None:
    x = torch.randn(50)
    plans: list[tuple[dict[str, int], Target]] = [({}, _target(_text("50", "float"), x, 0.5))]
    code = native_entry(Dispatcher, _slow, Options())
    assert code is not None
    guards = GuardSet((), (x, 3), {}, free={"args[1]": NumberForm("n")}, writes=False)
    row = code.row(guards, (x, 3), {}, plans[0][1], Counters())
    assert row is not None and not row.runs_plan


def test_nothing_leaks() -> None:
    x = torch.randn(50)
    f = served(_target(_text("50", "int"), x, 3), (x, 3), {"args[1]": NumberForm("n")})
    numbers = [10**6 + i for i in range(50)]
    for n in numbers:
        f(x, n)
    before = [sys.getrefcount(n) for n in numbers], sys.getrefcount(x)
    for _ in range(20):
        for n in numbers:
            f(x, n)
    assert ([sys.getrefcount(n) for n in numbers], sys.getrefcount(x)) == before


def test_threads_keep_their_numbers_apart() -> None:
    x = torch.randn(20_000)
    f = smelt.compile(scaled, options=RULE)
    for s in (0.5, 0.25, 0.125):
        f(x, s)
    wrong: list[float] = []

    def work(s: float) -> None:
        with torch.no_grad():
            expected = scaled(x, s)
            wrong.extend(s for _ in range(60) if not torch.equal(f(x, s), expected))

    threads = [threading.Thread(target=work, args=(float(s),)) for s in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- compiled objects


def native_calls(compiled: Any, *calls: tuple[Any, ...]) -> int:
    """How many of the calls native code served to their end."""
    dispatcher = dispatcher_of(compiled)
    before = dispatcher.counters.calls
    for args in calls:
        torch.testing.assert_close(compiled(*args), compiled.__wrapped__(*args), rtol=0, atol=0, equal_nan=True)
    return int(dispatcher.counters.calls - before)


@pytest.mark.parametrize("values", [(2, 3, 4, 5, 6, 7), (0.5, 0.25, 3.0, 4.0, 5.0, 6.0)], ids=["int", "float"])
def test_a_number_that_changes_is_compiled_once(values: tuple[Any, ...]) -> None:
    x = torch.randn(64)
    compiled = smelt.compile(scaled, options=RULE)
    native_calls(compiled, *((x, n) for n in values))
    builds = compiled.stats().builds
    assert builds == 2
    assert native_calls(compiled, *((x, n + 10) for n in values)) == len(values)
    assert compiled.stats().builds == builds and not compiled.stats().fallbacks


def test_arithmetic_in_python_between() -> None:
    def f(x: torch.Tensor, s: float, i: int) -> torch.Tensor:
        return x * (s**i + math.floor(s))

    x = torch.randn(64)
    compiled = smelt.compile(f, options=RULE)
    values = [(0.5, 2), (1.5, 3), (2.5, 4), (0.75, 5), (3.5, 6), (1.25, 7)]
    for _ in range(2):
        native_calls(compiled, *((x, s, i) for s, i in values))
    assert native_calls(compiled, *((x, s + 1, i + 1) for s, i in values)) == len(values)
    # What Python raises is raised, time and again, and what comes next is right.
    for _ in range(3):
        for s, i in ((1e10, 10**4), (0.0, -1), (math.inf, 2), (math.nan, 2)):
            raised = []
            for call in (f, compiled):
                with pytest.raises((OverflowError, ZeroDivisionError, ValueError)) as caught:
                    call(x, s, i)
                raised.append((type(caught.value), str(caught.value)))
            assert raised[0] == raised[1]
        native_calls(compiled, (x, 0.5, 9))


def test_sizes_that_come_again_are_served_natively() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 3).sum(-1)

    compiled = smelt.compile(f, options=RULE)
    calls = [(torch.randint(-9, 9, (n, 16)).float(),) for n in (4, 5, 6, 7)]
    for _ in range(4):
        native_calls(compiled, *calls)
    assert native_calls(compiled, *calls, *calls) == 8
    assert compiled.stats().builds == 2


def test_a_weight_that_changes_is_seen_at_every_size() -> None:
    layer = torch.nn.Linear(8, 8)

    def f(x: torch.Tensor) -> torch.Tensor:
        return layer(x)

    compiled = smelt.compile(f, options=RULE)
    calls = [torch.randn(n, 8) for n in (16, 17, 18)]
    for _ in range(4):
        for x in calls:
            torch.testing.assert_close(compiled(x), f(x))
    layer.weight.mul_(-2)
    for _ in range(4):
        for x in calls:
            torch.testing.assert_close(compiled(x), f(x))


def _row_of(x, f):
    return x[int(f * 2)], x * f


def _all_but_first(x, f):
    _, *rest = x[0] + torch.stack([torch.full([], f), torch.ones([])])
    return rest


@pytest.mark.parametrize("program", [_row_of, _all_but_first])
def test_a_float_beside_or_below_returned_views(program):
    x, compiled = torch.arange(12.0).reshape(6, 2), smelt.compile(program)
    for f in [0.5, 1.0, 1.5, -0.0, 0.0, 2.0, 0.25] * 2 + ([math.nan] if program is _all_but_first else []):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found, expected = compiled(x, f), program(x, f)
        for a, b in zip(found, expected, strict=True):
            assert a.tolist() == b.tolist() or math.isnan(f)
            assert torch.equal(a.signbit(), b.signbit()) and a.storage_offset() == b.storage_offset()
        assert (found[0].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) == (program is _row_of)


def _limited(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 3:
        raise ValueError("above 3")
    return x


def test_a_tensor_made_of_a_free_number_is_asked_behind_a_fork() -> None:
    """What it is follows from the number alone, but a graph cannot expect it on one of its paths only."""

    def f(x: torch.Tensor, ratio: float) -> torch.Tensor:
        try:
            x = _limited(x) + 1
        except ValueError:
            x = x - 1
        if torch.full([], ratio).clone() > 1:
            return x * 2
        return x - 0.5

    compiled = smelt.compile(f)
    for ratio in (0.0, 0.5, 2.0, 0.25, 3.0):
        for x in (torch.ones(2, 3), -torch.ones(2, 3)):
            assert torch.equal(compiled(x, ratio), f(x, ratio)), ratio
    assert compiled.stats().builds == 2
