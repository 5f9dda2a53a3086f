"""Which sizes and numbers of a call are left free: static first, what changed after that."""

from __future__ import annotations

import enum
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.compiler import staged
from smelt.compiler.deciding.generalisation import Earlier, freedom
from smelt.compiler.deciding.seen_calls import seen_call
from smelt.compiler.sizes.dims import Dim
from smelt.compiler.sizes.dynamic_shapes import wishes

X, Y = ("args[0]", 0), ("args[0]", 1)


def chosen(call: tuple[Any, ...], *earlier: tuple[tuple[Any, ...], set[Any]], dynamic: Any = None, **more: Any) -> Any:
    before = [Earlier(seen_call(args, {}), frozenset(free)) for args, free in earlier]
    found = freedom(seen_call(call, {}), before, dynamic, more.get("wishes", ()), more.get("refused", {}))
    assert found.entries.keys() == found.why.keys()
    return set(found.entries)


def t(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor]:
    return (torch.zeros(shape, dtype=dtype),)


def test_the_first_call_is_static() -> None:
    assert chosen(t(4, 8)) == set()


def test_what_changed_is_free() -> None:
    assert chosen(t(5, 8), (t(4, 8), set())) == {X}
    assert chosen(t(5, 9), (t(4, 8), set())) == {X, Y}
    assert chosen(t(4, 8), (t(4, 8), set())) == set()


def test_sizes_of_0_and_1_stay() -> None:
    assert chosen(t(1, 9), (t(1, 8), set())) == {Y}
    # A size that was larger is free if 1 can be one among others.
    assert chosen(t(1, 9), (t(4, 8), set())) == {X, Y}
    assert chosen(t(0, 8), (t(4, 8), {X})) == set()
    assert chosen(t(5, 8), (t(1, 8), set())) == {X}


def test_what_was_free_stays_free() -> None:
    assert chosen(t(5, 9), (t(4, 8), set()), (t(5, 8), {X})) == {X, Y}
    # Whatever made the second entry miss, the call differs from it in nothing.
    assert chosen(t(5, 8), (t(4, 8), set()), (t(5, 8), {X})) == {X}


def test_the_nearest_call_decides() -> None:
    assert chosen(t(4, 9), (t(5, 8), set()), (t(4, 8), set())) == {Y}


@pytest.mark.parametrize("other", [t(5, 8, dtype=torch.float64), t(5, 8, 1), (torch.zeros(5, 8), 1), ([1],), (None,)])
def test_other_kinds_of_calls_are_no_neighbours(other: Any) -> None:
    assert chosen(other, (t(4, 8), set())) == set()


def test_numbers() -> None:
    n = ("args[0]", None)
    assert chosen((3,), ((2,), set())) == {n}
    assert chosen((-3,), ((2,), set())) == {n}
    assert chosen((1,), ((2,), set())) == set()
    assert chosen((2.5,), ((2.0,), set())) == {n}
    assert chosen((1.0,), ((2.0,), set())) == {n}
    assert chosen((-0.0,), ((0.0,), set())) == {n}
    assert chosen((math.nan,), ((math.nan,), set())) == set()
    assert chosen((2,), ((2.0,), set())) == set()
    assert chosen((True,), ((2,), set())) == set()
    assert chosen((True,), ((False,), set())) == set()


def test_what_is_no_plain_number_stays() -> None:
    class Color(enum.IntEnum):
        RED, BLUE = 2, 3

    import numpy as np

    assert chosen((Color.RED,), ((Color.BLUE,), set())) == set()
    assert chosen((np.int64(3),), ((np.int64(2),), set())) == set()
    assert chosen(("a",), (("b",), set())) == set()


def test_a_tensor_given_twice_is_another_kind() -> None:
    (a,), (b,), (c,) = t(4, 8), t(4, 8), t(5, 8)
    assert chosen((c, c), ((a, b), set())) == set()
    assert chosen((c, c), ((a, a), set())) == {X}


def test_nested_arguments() -> None:
    call, before = ({"k": [*t(5, 8), 3]},), ({"k": [*t(4, 8), 2]},)
    assert chosen(call, (before, set())) == {("args[0]['k'][0]", 0), ("args[0]['k'][1]", None)}


def test_dynamic_true_and_false() -> None:
    assert chosen((*t(4, 1), 5, 0, 0.5, True), dynamic=True) == {X, ("args[1]", None), ("args[3]", None)}
    assert chosen(t(5, 8), (t(4, 8), set()), dynamic=False) == set()


def test_named_and_kept() -> None:
    def f(x: Any) -> None: ...

    named = wishes({"x": {0: Dim("B"), 1: None}}, f, t(1, 8), {})
    assert chosen(t(1, 8), wishes=named) == {X}
    assert chosen(t(1, 9), (t(1, 8), {X}), wishes=named, dynamic=False) == {X}
    assert chosen(t(4, 8), wishes=wishes({"x": {1: None}}, f, t(4, 8), {}), dynamic=True) == {X}


def test_refused() -> None:
    assert chosen(t(5, 9), (t(4, 8), set()), refused={X: "because"}) == {Y}


def test_a_list_that_grows_in_an_argument_keeps_no_size_fixed() -> None:
    """Each length of the list is an entry; sizes and the numbers in it are free, and what is not is told."""

    def step(x: torch.Tensor, cache: dict[str, Any]) -> torch.Tensor:
        cache["h"] = torch.cat([cache["h"], x]) if "h" in cache else x
        cache.setdefault("steps", []).append(x.shape[0])
        return cache["h"].mean(0)

    compiled = smelt.compile(step)
    builds = []
    for sizes in ((2, 3, 4, 2), (5, 2, 6, 3), (7, 8, 2, 4)):
        found: dict[str, Any] = {}
        known: dict[str, Any] = {}
        for n in sizes:
            x = torch.randn(n, 4)
            torch.testing.assert_close(compiled(x, found), step(x, known))
            assert found["steps"] == known["steps"] and torch.equal(found["h"], known["h"])
        builds.append(compiled.stats().builds)
    assert builds[-1] == builds[1] <= 6 and not compiled.stats().fallbacks
    assert any(
        row.get("fixed") == "args[1]['steps']" and "another number of items" in str(row["why"])
        for row in smelt.explain(compiled).symbols
    )


def many_ways(x: Any) -> Any:
    ways: tuple[int, ...] = ()
    for i in range(9):
        if x.sum() > i:
            ways = (*ways, i)
    return x + len(ways)


def test_a_program_of_too_many_ways_is_staged_with_symbols_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    stage = staged._staged

    def noted(*args: Any, **kwargs: Any) -> Any:
        tried.append(args[-1])
        return stage(*args, **kwargs)

    monkeypatch.setattr(staged, "_staged", noted)
    compiled = smelt.compile(many_ways)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for rows in (3, 5):
            x = torch.ones(rows) * 0.5
            assert torch.equal(compiled(x), many_ways(x))
    assert len([spec for spec in tried if spec is not None]) == 1


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x[: round(x.shape[0] * 0.3) + round(32 / x.shape[0])]


def counted(x: torch.Tensor) -> torch.Tensor:
    count = torch.zeros(())
    count += x.shape[0]
    return x / count


def compared(x: torch.Tensor) -> torch.Tensor:
    return x * (x.sum() < x.shape[0] / 2)


def all_true(x: torch.Tensor) -> torch.Tensor:
    if torch._is_all_true(x > -0.5):
        return x + 1
    return x - 1


@pytest.mark.parametrize("program", [rounded, counted, compared, all_true])
def test_one_build_for_all_sizes(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compiled = smelt.compile(program, options={"measure": False})
    for rows in (6, 9, 12, 7, 33):
        for x in (torch.rand(rows, 4), torch.rand(rows, 4) - 1):
            assert torch.equal(compiled(x), program(x))
    assert compiled.stats().builds <= 3 and not compiled.stats().fallbacks


def test_distributions_are_whole() -> None:
    def scored(x: torch.Tensor) -> torch.Tensor:
        # Dynamo turns validation off for the whole process.
        return torch.distributions.Normal(x, 1.0, validate_args=True).log_prob(x * 2)

    compiled = smelt.compile(scored, options={"measure": False})
    x = torch.randn(3, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), scored(x))
    (row,) = compiled.stats().rows
    assert row.entry is not None and not row.entry.why_paths
    with pytest.raises(ValueError, match="Expected parameter loc"):
        compiled(x * float("nan"))
