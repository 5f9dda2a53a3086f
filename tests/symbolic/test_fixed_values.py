"""Programs that need the value of a size: each value is a result of its own, and costs no more than a static build."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.compiler.deciding.call_profile import MOST_FIXED

TABLE = {4: 1.0, 6: 2.0, 7: 3.0}


def looked_up(x: Any) -> Any:
    return x * TABLE.get(x.shape[0], 0.5)


def listed(x: Any) -> Any:
    return [0.0] * x.shape[0], x + 1


def named(x: Any) -> Any:
    return {f"{x.shape[0]} rows": 1}, x + 1


def returned(x: Any) -> Any:
    return x.shape[0] * 2, x + 1


def even(x: Any) -> Any:
    return x * 2 if x.shape[0] % 2 == 0 else x + 1


def one_of_them(x: Any) -> Any:
    return x * 2 if x.shape[0] == 6 else x + 1


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert found[0] == expected[0] and type(found[0]) is type(expected[0])
        found, expected = found[1], expected[1]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("f", (looked_up, listed, named))
def test_a_program_for_each_value(f: Callable[..., Any]) -> None:
    compiled = smelt.compile(f)
    for rows in (4, 6, 7, 9, 12, 4, 6, 13):
        x = torch.randn(rows, 3)
        assert_same(compiled(x), f(x))
    stats = compiled.stats()
    assert stats.builds == 6 and stats.fallbacks == {}
    # After the first builds that came to one value each, none leaves the size free.
    (why,) = stats.refused.values()
    assert "each of its values is a program of its own at" in why and "test_fixed_values.py" in why
    assert sum(bool(entry["free"]) for entry in stats.to_dict()["entries"]) <= MOST_FIXED


@pytest.mark.parametrize("f", (looked_up, listed))
def test_however_many_values_builds_are_bounded(f: Callable[..., Any]) -> None:
    compiled = smelt.compile(f)
    with pytest.warns(smelt.SmeltWarning, match="compiled again and again"):
        for rows in (*range(2, 30), *range(2, 30)):
            x = torch.randn(rows, 3)
            assert_same(compiled(x), f(x))
    assert compiled.stats().builds <= 16 and len(compiled.stats().rows) <= 8


@pytest.mark.parametrize(("f", "most"), ((returned, 2), (even, 3), (one_of_them, 4)))
def test_values_that_need_no_program_of_their_own(f: Callable[..., Any], most: int) -> None:
    compiled = smelt.compile(f)
    for rows in (4, 6, 7, 9, 12, 6, 13, 20, 21, 6):
        x = torch.randn(rows, 3)
        assert_same(compiled(x), f(x))
    assert compiled.stats().builds <= most and compiled.stats().refused == {}


def test_other_sizes_stay_free() -> None:
    compiled = smelt.compile(looked_up)
    for rows, columns in ((4, 3), (6, 5), (7, 6), (9, 7)):
        compiled(torch.randn(rows, columns))
    before = compiled.stats().builds
    for columns in (8, 9, 10, 11):
        x = torch.randn(9, columns)
        assert_same(compiled(x), looked_up(x))
    assert compiled.stats().builds == before


def test_what_is_named_stays_an_error() -> None:
    compiled = smelt.compile(looked_up, dynamic_shapes={"x": {0: "B"}})
    for rows in (4, 6, 7):
        with pytest.raises(smelt.CaptureError, match="B was to stay free"):
            compiled(torch.randn(rows, 3))


def test_parts_of_a_free_size() -> None:
    def thirds(x: Any) -> Any:
        a, b, c = x.chunk(3, 0)
        return torch.cat([c, a * 2, b])

    def halves(x: Any) -> Any:
        gate, value = x.chunk(2, -1)
        return torch.sigmoid(gate) * value

    for f, most, shapes in (
        (thirds, 3, ((6, 2), (9, 2), (7, 2), (8, 2), (30, 2), (31, 2))),
        (halves, 2, ((3, 6), (4, 8), (5, 10), (7, 4))),
    ):
        compiled = smelt.compile(f)
        for shape in shapes:
            x = torch.randn(shape)
            assert_same(compiled(x), f(x))
        assert compiled.stats().builds <= most and compiled.stats().fallbacks == {}
        assert all(getattr(row.entry, "why_alone", "") == "" for row in compiled.stats().rows)


def keyed(x, n):
    return {n: x + 1}


def lettered(x, n):
    return {f"{n}": x + 1}


def padded(x, n):
    return [0] * n, x + 1


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("f", "use"),
    [(keyed, "it is a key of a dict"), (lettered, "its text is made there"), (padded, "how long a list or text is")],
)
def test_what_a_number_is_used_for_is_said(f: Callable[..., Any], use: str) -> None:
    compiled, x = smelt.compile(f), torch.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for n in range(3, 24):
            assert repr(compiled(x, n)) == repr(f(x, n))
    text = str(compiled.stats())
    assert use in text and f" in {f.__name__}: " in text
    # What matters comes first, and values in which misses differ are counted.
    assert [line.partition(":")[0] for line in text.splitlines()[1:3]] == ["fell back 5 times", "not free"]
    assert len(text.splitlines()) < 8 and "took 16 values, 3 first and 18 last" in text


SENTINEL = float("0.1")


def same_number(x: Any, n: Any, m: Any) -> Any:
    return (x + n) if n is m else (x - m)


def sentinel(x: Any, n: Any, m: Any, rate: float = SENTINEL) -> Any:
    return x * rate * n if rate is not SENTINEL else x * 100


def sizes_of_two(x: Any, n: Any, m: Any) -> Any:
    y = torch.ones(n + m)
    return x + 1, y, n + 0 is n, y.shape[0] is x.shape[0]


def in_a_list(x: Any, n: Any, m: Any) -> Any:
    return [k for k in (m, n, n) if k is n], x * n


def none_and_others(x: Any, n: Any, m: Any) -> Any:
    return x * n if n is not None and m is not ... and x is not n else x


@pytest.mark.parametrize("f", [same_number, sentinel, sizes_of_two, in_a_list, none_and_others])
def test_which_object_a_number_is(f: Any) -> None:
    compiled = smelt.compile(f)
    x = torch.ones(8)
    for n, m in ((5, 3), (7, 2), (4, 4), (6, 6), (6, 1), (3, 5)):
        assert str(compiled(x, n, m)) == str(f(x, n, m)), (n, m)
    assert (compiled.stats().builds <= 2) == (f in (none_and_others, sentinel))  # which ask nothing of n and m


def test_a_sentinel_among_floats() -> None:
    compiled = smelt.compile(sentinel)
    for rate in (0.5, 0.7, 0.9, SENTINEL, 0.25):
        assert torch.equal(compiled(torch.ones(2), 2, 3, rate), sentinel(torch.ones(2), 2, 3, rate))


def test_a_trace_says_that_identity_is_asked_for() -> None:
    with pytest.raises(smelt.CaptureError, match="the identity of a dynamic number") as error:
        smelt.trace(same_number, (torch.ones(2), 5, 3), dynamic_shapes={"x": None, "n": "n", "m": "m"})
    assert error.value.where is not None and error.value.where.file == __file__
