"""Generated code computes what the trace means."""

import dataclasses
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smelt.codegen.lower.symbolic.code import guards_function, words_function
from smelt.ir.sizes import Evaluation, Range, SizeLeak, late, late_float, size_max, size_min, tracing, value


@dataclasses.dataclass(frozen=True)
class _Block:
    rows: int
    scale: float
    names: tuple[str, ...] = ()


@late
def _blocks(block: _Block, sizes: list[int], flag: bool, *, unit: int = 4) -> tuple[_Block, list[int], float]:
    assert flag is True and block.names == ("a",) and type(block.rows) is int
    return dataclasses.replace(block, rows=block.rows // unit), [s + 1 for s in sizes], block.scale * len(sizes)


@late_float
def _cost(rows: int, inf: float) -> float:
    return max(1, rows - 20) if inf == math.inf else 0


def _numbers(b, s):
    block, sizes, scale = _blocks(_Block(b * s, 0.5, ("a",)), [s, 7], True, unit=3)
    cost = _cost(b * s, math.inf)
    return (
        b, b * s + 1, -b, s // 4, s % 5, (b + s) // (b + 1), s // b % 3, -(-s // 16), size_max(b, 9),
        size_min(s, b * 3), block.rows, block.rows * b, sizes[0], scale, cost, cost * 0.5 + b, math.ceil(s * 0.3),
        math.floor(b / s), round(s / 7), s / 3, 5, 0.25,
    )  # fmt: skip


_sizes = st.tuples(st.integers(1, 60), st.integers(1, 5000))


@settings(max_examples=60, deadline=None)
@given(_sizes, st.lists(_sizes, min_size=1, max_size=5))
def test_words_are_what_python_gives(at_hand, elsewhere):
    with tracing({"B": (at_hand[0], Range(1, 60)), "S": (at_hand[1], Range(1))}) as trace:
        numbers = _numbers(*trace.symbols.values())
    assert not trace.guards and not trace.leaks
    words = words_function(trace, numbers)
    for sizes in (at_hand, *elsewhere):
        found = words(*sizes)
        assert found == _numbers(*sizes)
        assert [type(x) for x in found] == [type(value(x)) for x in numbers]
        assert Evaluation(trace, dict(zip("BS", sizes, strict=True)))(numbers) == found


@settings(max_examples=60, deadline=None)
@given(_sizes, st.lists(_sizes, min_size=1, max_size=8))
def test_guards_hold_where_the_comparisons_come_out_alike(at_hand, elsewhere):
    def asked(b, s):
        return (b * s < 900, s % 8 == 0, b == s, s * 0.1 < b, _cost(s, math.inf) < 50.0, b > 3 and s > 3, b <= 61)

    with tracing({"B": (at_hand[0], Range(1, 60)), "S": (at_hand[1], Range(1))}) as trace:
        outcome = asked(*trace.symbols.values())
    holds = guards_function(trace, trace.guards, {"B": (1, 60), "S": (1, math.inf)})
    assert holds(*at_hand) is True and asked(*at_hand) == outcome
    for sizes in elsewhere:
        if holds(*sizes):
            assert asked(*sizes) == outcome
        elif 3 not in at_hand and sizes[0] > 3 and sizes[1] > 3 and at_hand[0] > 3 and at_hand[1] > 3:
            assert asked(*sizes) != outcome


def test_guards_hold_in_range_only():
    with tracing({"B": (4, Range(2, 8)), "S": (4, Range())}) as trace:
        pass
    holds = guards_function(trace, trace.guards, {"B": (2, 8), "S": (2, math.inf)})
    assert [holds(*at) for at in ((1, 5), (2, 5), (8, 2), (9, 2), (3, 1))] == [False, True, True, False, False]


def test_a_late_result_that_is_no_word_is_an_error():
    @late
    def rest(size: int) -> int:
        return 10 - size

    with tracing({"S": (4, Range(0))}) as trace:
        words = words_function(trace, (rest(trace.symbols["S"]),))
    assert words(10) == (0,)
    with pytest.raises(SizeLeak):
        words(11)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 50), st.integers(2, 50))
def test_nothing_is_computed_that_no_word_needs(b, s):
    assume(b != s)
    calls = []

    @late
    def noted(size: int) -> int:
        calls.append(size)
        return size

    with tracing({"B": (b, Range()), "S": (s, Range())}) as trace:
        B, S = trace.symbols.values()
        needed = noted(B)
        numbers = (needed, needed * 2)
        noted(S)
    calls.clear()
    assert words_function(trace, numbers)(7, 8) == (7, 14)
    assert calls == [7]
