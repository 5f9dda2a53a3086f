"""Sizes that remember where they come from: any expression is, at all sizes, what integers give there."""

import copy
import dataclasses
import math
import pickle
import struct
import threading

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smelt.ir import Sym, SymExpr, TensorType
from smelt.ir.dims import dim_of, is_static, size_of
from smelt.ir.dtypes import DType
from smelt.ir.size_trace import Trace
from smelt.ir.sizes import (
    Evaluation,
    Range,
    Size,
    SizeFloat,
    SizeLeak,
    blind,
    ceil_div,
    chosen,
    current_trace,
    equals,
    evaluating,
    expression,
    is_one,
    is_symbolic,
    is_whole,
    late,
    late_float,
    size_max,
    size_min,
    to_words,
    tracing,
    value,
)

B_TO_S = {"B": (4, Range(2, 64)), "S": (12, Range(2, None))}


# --- any expression ---------------------------------------------------------------------------------------------------


@late(low=None)
def _mixed(a: int, b: int) -> tuple[int, float]:
    return (a ^ b) + 3, a / (abs(b) + 1)


@late
def _tiles(a: int, sizes: tuple[int, ...]) -> int:
    return abs(a) % 7 + sum(s & 3 for s in sizes)


_UNARY = {
    "-": lambda a: -a,
    "abs": abs,
    "<<": lambda a: a << 3,
    ">>": lambda a: a >> 2,
    "&": lambda a: a & 7,
    "&~": lambda a: a & -8,
    "**": lambda a: a**2,
    "late": lambda a: _tiles(a, (a, 5)),
    "floor": lambda a: math.floor(a / 3),
    "ceil": lambda a: math.ceil(a * 0.25),
    "round": lambda a: round(a * 1.5),
}
_BINARY = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": size_min,
    "max": size_max,
    "ceil": ceil_div,
    "late": lambda a, b: _mixed(a, b)[0],
    "late float": lambda a, b: math.ceil(_mixed(a, b)[1]),
    "if": lambda a, b: a + 1 if a < b else b - a,
    "eq": lambda a, b: a if a == b else 5,
    "divmod": lambda a, b: divmod(a, b)[1] + 1,
}

_leaves = st.sampled_from(("B", "S", "T")) | st.integers(-9, 70)
_expressions = st.recursive(
    _leaves,
    lambda inner: (
        st.tuples(st.sampled_from(tuple(_UNARY)), inner) | st.tuples(st.sampled_from(tuple(_BINARY)), inner, inner)
    ),
    max_leaves=9,
)


def _compute(e, symbols):
    if isinstance(e, str):
        return symbols[e]
    if isinstance(e, tuple):
        operands = [_compute(part, symbols) for part in e[1:]]
        return (_UNARY if len(e) == 2 else _BINARY)[e[0]](*operands)
    return e


_sizes = st.fixed_dictionaries({"B": st.integers(1, 40), "S": st.integers(1, 40), "T": st.integers(0, 1000)})
_RANGES = {"B": Range(1, 40), "S": Range(1, None), "T": Range(0, 1000)}


def _traced(e, hints, replay=None) -> tuple[Trace, object]:
    with tracing({name: (hints[name], within) for name, within in _RANGES.items()}, replay) as trace:
        return trace, _compute(e, trace.symbols)


@settings(max_examples=400, deadline=None)
@given(_expressions, _sizes, st.lists(_sizes, min_size=1, max_size=4))
def test_an_expression_is_what_integers_give_wherever_its_guards_hold(e, hints, elsewhere):
    try:
        wanted = _compute(e, hints)
    except ZeroDivisionError:
        assume(False)
    assume(abs(wanted) < 2**53)  # beyond, floats round
    trace, result = _traced(e, hints)
    assert value(result) == wanted
    assert not trace.leaks
    for sizes in (hints, *elsewhere):
        at = Evaluation(trace, sizes)
        try:
            holds = all(map(at.holds, trace.guards))
            at_result = at(result) if holds else None
        except ZeroDivisionError:
            with pytest.raises(ZeroDivisionError):
                _compute(e, sizes)
            continue
        if sizes is hints:
            assert holds
        if holds:
            assert at_result == _compute(e, sizes)


@settings(max_examples=200, deadline=None)
@given(_expressions, _sizes, _sizes)
def test_the_same_computation_at_other_sizes_within_the_guards_takes_the_same_guards(e, hints, others):
    try:
        trace, result = _traced(e, hints)
        at = Evaluation(trace, others)
        assume(all(map(at.holds, trace.guards)))
        again, other = _traced(e, others)
    except ZeroDivisionError:
        assume(False)
    assert [str(g) for g in again.guards] == [str(g) for g in trace.guards]
    assert str(other) == str(result)
    assert value(other) == at(result)


@settings(max_examples=200, deadline=None)
@given(_expressions, _sizes, st.lists(_sizes, max_size=4))
def test_bounds_hold_at_all_sizes(e, hints, elsewhere):
    try:
        trace, result = _traced(e, hints)
    except ZeroDivisionError:
        assume(False)
    if type(result) is not Size:
        return
    low, high = trace.bounds(result.poly)
    for sizes in (hints, *elsewhere):
        at = Evaluation(trace, sizes)
        try:
            if all(map(at.holds, trace.guards)):
                assert low <= at(result) <= high
        except ZeroDivisionError:
            pass


@settings(max_examples=200, deadline=None)
@given(_expressions, _sizes, _sizes)
def test_sizes_in_types_and_back(e, hints, others):
    try:
        trace, result = _traced(e, hints)
        dim = dim_of(result)
    except (ZeroDivisionError, TypeError):
        assume(False)
    if all(map(Evaluation(trace, hints).holds, trace.guards)):
        assert size_of(dim, hints) == value(result)
    at = Evaluation(trace, others)
    try:
        wanted = at(result)
    except ZeroDivisionError:
        return
    assert size_of(dim, others) == wanted


# --- normal forms -----------------------------------------------------------------------------------------------------


def _guards(ask, **ranges) -> list[str]:
    with tracing({**B_TO_S, **ranges}) as trace:
        ask(trace.symbols["B"], trace.symbols["S"])
    assert all(map(Evaluation(trace, {"B": 4, "S": 12, "T": 7}).holds, trace.guards))
    return [str(guard) for guard in trace.guards]


@pytest.mark.parametrize(
    ("ask", "guards"),
    [
        (lambda b, s: b > 1, []),
        (lambda b, s: b <= 64, []),
        (lambda b, s: b == 1, []),
        (lambda b, s: s, []),
        (lambda b, s: bool(s), []),
        (lambda b, s: b * s - b > 0, []),
        (lambda b, s: b * s >= s + b, []),
        (lambda b, s: s % 8 < 8, []),
        (lambda b, s: (4 * s) % 4 == 0, []),
        (lambda b, s: 4 * s + 2 == 8 * b + 1, []),
        (lambda b, s: s + 1 == s, []),
        (lambda b, s: b * s * 4 < 1000, ["B*S - 249 <= 0"]),
        (lambda b, s: b * s * 4 >= 1000, ["B*S - 249 <= 0"]),
        (lambda b, s: [b * 8 < 50, b * 8 < 56, b <= 6, b > 6], ["B - 6 <= 0"]),
        (lambda b, s: [b < 10, b < 20, b * 2 > 30], ["B - 9 <= 0"]),
        (lambda b, s: [s > 10, s > 5], ["-S + 11 <= 0"]),
        (lambda b, s: [s != 16, s == 16, 2 * s == 32], ["S - 16 != 0"]),
        (lambda b, s: [s == 12, s > 11, s < 13, s == 12], ["S - 12 == 0"]),
        (lambda b, s: [b == s, s == b], ["B - S != 0"]),
        (lambda b, s: [s % 4 == 0, s % 4 != 0], ["((S) % (4)) == 0"]),
        (lambda b, s: b * 0.5 < s * 0.25 + 10.0, ["((B) * 0.5) < (((S) * 0.25) + 10.0)"]),
        (lambda b, s: b * 0.5 >= s, ["not (S) <= ((B) * 0.5)"]),
        (lambda b, s: b * 0.5 < 0.5, []),
        (lambda b, s: b < math.inf, []),
    ],
)
def test_guards_have_one_form_and_what_ranges_decide_has_none(ask, guards):
    assert _guards(ask) == guards


def test_a_size_without_symbols_is_a_number():
    with tracing(B_TO_S) as trace:
        B, S = trace.symbols["B"], trace.symbols["S"]
        for plain in (B - B, B * 0, (B * S) // (S * B), (B * 8) % 4, (B * S + 3 - S * B), B // B, B % B):
            assert type(plain) is int
        assert (B * S + S) // S - B == 1
        assert type((B * (S + 1) * 64) // ((S + 1) * 64) - B) is int
    assert not trace.guards


def test_one_number_has_one_form():
    with tracing(B_TO_S) as trace:
        B, S = trace.symbols["B"], trace.symbols["S"]
        assert str((8 * S + 4) // 4) == str(2 * S + 1)
        assert str((4 * S) // 8) == str(S // 2)
        assert str((S + 5) // 4) == str(1 + (S + 1) // 4)
        assert str((6 * S) % 4) == str(2 * (S % 2))
        assert hash(B * S) == hash(S * B)
        assert {B * S: 1}[S * B] == 1
        assert {12: 1}.get(S) is None
    assert not trace.guards


def test_guards_say_where():
    with tracing(B_TO_S) as trace:
        assert trace.symbols["S"] != 3
    assert [str(guard) for guard in trace.guards] == ["S - 3 != 0"]
    assert "test_sizes.py" in trace.guards[0].where and "in test_guards_say_where" in trace.guards[0].where


# --- leaks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        int,
        float,
        range,
        lambda size: [0][size],
        lambda size: [0] * size,
        lambda size: (0,) * size,
        lambda size: math.sqrt(size),
        lambda size: math.gcd(size, 2),
        lambda size: struct.pack("q", size),
        lambda size: size.bit_length(),
        lambda size: size & 5,
        lambda size: 2**size,
        lambda size: size**size,
        lambda size: 1 << size,
        lambda size: size | 1,
        lambda size: 8 >> size,
        lambda size: round(size, -1),
        lambda size: size // 2.5,
        pickle.dumps,
        lambda size: int(size * 0.5),
        lambda size: float(size * 0.5),
        lambda size: round(size * 0.5, 1),
        lambda size: bytes(size),
    ],
)
def test_what_asks_for_the_number_fails_and_is_kept(use):
    with tracing(B_TO_S) as trace, pytest.raises(SizeLeak, match="S"):
        use(trace.symbols["S"])
    assert trace.leaks


def test_torch_does_not_see_numbers():
    import torch

    with tracing(B_TO_S) as trace:
        for use in (torch.empty, torch.zeros(3).narrow, torch.Size):
            with pytest.raises((SizeLeak, TypeError)):
                use((trace.symbols["S"],))


def test_the_text_of_a_size_is_no_number():
    with tracing(B_TO_S) as trace:
        S = trace.symbols["S"]
        for text in (str(S), f"{S}", repr(S), f"{S:4d}", "".join(map(str, (S,))), f"{S * 0.5}", str((S,))):
            assert "12" not in text and "⟨" in text


def test_copies_stay_sizes():
    with tracing(B_TO_S) as trace:
        S = trace.symbols["S"]
        assert copy.deepcopy([S])[0] is S
        assert copy.copy(S * 0.5).expr == (S * 0.5).expr


# --- what they pass for -----------------------------------------------------------------------------------------------


def test_a_size_passes_for_an_integer():
    with tracing(B_TO_S) as trace:
        S = trace.symbols["S"]
        assert isinstance(S, int) and not isinstance(S, bool) and not isinstance(S, float)
        assert isinstance(S * 0.5, float) and not isinstance(S * 0.5, int)
        match S:
            case int():
                pass
            case _:
                raise AssertionError
        assert is_static((S, 3)) and is_static((S * S,))
        kind = TensorType.of(DType.F32, (S, 16), (16, 1))
        assert kind.strides is None and kind.is_static and kind.sizes[0] is S
        assert str(kind.numel) == "⟨16*S⟩" and kind.steps == (16, 1)
        assert kind == TensorType(DType.F32, (S, 16))
        assert math.prod((S, 2)) == 2 * S and sum((S, S)) == 2 * S
        assert type(S) is Size and type(S / 2) is SizeFloat
        assert math.ceil(S) is S and S.is_integer()
    assert not trace.guards


def test_sizes_of_two_traces_are_never_one():
    with tracing(B_TO_S) as first:
        S = first.symbols["S"]
    with tracing(B_TO_S) as second:
        T = second.symbols["S"]
        assert S != T and (S == T) is False
        assert S not in {T: 1}
        with pytest.raises(SizeLeak):
            S + T
        with pytest.raises(SizeLeak):
            _tiles(S, ())


def test_sizes_of_a_trace_that_has_ended_are_no_numbers():
    with tracing(B_TO_S) as trace:
        S = trace.symbols["S"]
    assert trace.symbols["S"] == S
    for use in (
        lambda: S > 1,
        lambda: S + 1,
        lambda: S // 4,
        lambda: S * 0.5,
        lambda: int(S),
        lambda: -S,
        lambda: S == 3,
    ):
        with pytest.raises(SizeLeak):
            use()


def test_sizes_of_a_trace_that_has_ended_are_what_an_evaluation_says():
    import torch

    with tracing(B_TO_S) as trace:
        B, S = trace.symbols["B"], trace.symbols["S"]
        rows, half, chunks = B * S, S * 0.5, _tiles(S, (B,))
    atoms = len(trace.atoms)
    inner = []

    def in_thread():
        with pytest.raises(SizeLeak) as raised:
            int(rows)
        inner.append(raised.value)

    with evaluating(trace, Evaluation(trace, {"B": 3, "S": 10})):
        assert (rows, half, int(rows), float(rows), int(half)) == (30, 5.0, 30, 30.0, 5)
        assert (
            type(rows + 1) is int and type(rows * 0.5) is float and type(half + 1) is float and type(rows / 4) is float
        )
        assert rows + S == 40 and 50 - rows == 20 and S - 20 == -10 and rows // S == 3 and 7 % S == 7 and S**2 == 100
        assert rows > 29 and not rows < S and half <= S and -rows == -30 and bool(rows) and divmod(rows, 4) == (7, 2)
        assert 2 / half == 0.4 and half > 4.5 and math.ceil(half * 1.1) == 6 and size_min(rows, 7) == 7
        assert chunks == _tiles(10, (3,)) and [0] * B == [0, 0, 0] and list(range(B)) == [0, 1, 2]
        assert torch.zeros(rows).view(B, S).shape == (3, 10) and torch.zeros(4).as_strided((B,), (1,)).shape == (3,)
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
        assert len(inner) == 1
    with pytest.raises(SizeLeak):
        int(rows)
    assert len(trace.atoms) == atoms


def test_each_thread_has_its_own_trace():
    seen = []
    with tracing(B_TO_S) as trace:
        thread = threading.Thread(target=lambda: seen.append(current_trace()))
        thread.start()
        thread.join()
        assert current_trace() is trace
        with tracing({}) as inner:
            assert current_trace() is inner
        assert current_trace() is trace
    assert seen == [None] and current_trace() is None


def test_a_hint_out_of_its_range_is_refused():
    with pytest.raises(ValueError, match="B = 1"), tracing({"B": (1, Range(2))}):
        pass


# --- late, blind, chosen, general -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Problem:
    m: int
    n: int
    name: str = "x"

    @property
    def area(self) -> int:
        return self.m * self.n


@late(low=1)
def _plan(problem: _Problem, scale: float, lists: list[int]) -> tuple[int, _Problem, float, None]:
    assert type(problem.m) is int
    return max(problem.m, 8), dataclasses.replace(problem, m=sum(lists)), problem.area * scale, None


def test_late_functions_see_numbers_and_give_terms():
    def use(m, n):
        return _plan(_Problem(m, n), 0.5, [n, 3])

    with tracing(B_TO_S) as trace:
        B, S = trace.symbols["B"], trace.symbols["S"]
        made = use(B * 2, S)
        again = use(2 * B, S)
        assert [type(x) for x in (made[0], made[1].m, made[1].n, made[2], made[3])] == [
            Size, Size, Size, SizeFloat, type(None),
        ]  # fmt: skip
        assert (made[0] == again[0]) is True and len(trace.calls) == 1
        assert made[0] >= 1 and value(made[2]) == 48.0
        assert use(3, 4) == (8, _Problem(7, 4), 6.0, None)
    assert not trace.guards
    assert Evaluation(trace, {"B": 30, "S": 5})(made) == use(60, 5)
    assert use(60, 5)[0] == 60


def test_late_knows_one_from_true_and_from_one_point_zero():
    @late(low=None)
    def kind(x: object, size: int) -> int:
        return {int: 1, bool: 2, float: 3}[type(x)] * size

    with tracing(B_TO_S) as trace:
        S = trace.symbols["S"]
        made = (kind(1, S), kind(True, S), kind(1.0, S))
    assert Evaluation(trace, {"B": 2, "S": 10})(made) == (10, 20, 30)


def test_late_functions_that_give_what_is_no_word_fail():
    @late
    def few(size: int) -> bool:
        return size < 3

    @late
    def shape(size: int) -> tuple[int, ...]:
        return (size,) * (1 if size < 20 else 2)

    @late
    def negative(size: int) -> int:
        return 15 - size

    with tracing(B_TO_S) as trace:
        S = trace.symbols["S"]
        with pytest.raises(TypeError, match="bool"):
            few(S)
        made, low = shape(S), negative(S)
    assert Evaluation(trace, {"B": 2, "S": 13})((made, low)) == ((13,), 2)
    for x in (made, low):
        with pytest.raises(SizeLeak):
            Evaluation(trace, {"B": 2, "S": 21})(x)


def test_late_float_gives_floats_where_python_gives_an_integer():
    @late_float
    def cost(size: int) -> float:
        return max(1, size * 0.1)

    with tracing({"S": (2, Range())}) as trace:
        made = cost(trace.symbols["S"])
    assert type(made) is SizeFloat and type(made.value) is float
    assert Evaluation(trace, {"S": 50})(made) == 5.0
    assert cost(2) == 1


@blind
def _is_few(rows: int) -> bool:
    return rows < 20


def test_blind_comparisons_are_kept_and_replayed():
    def run(hint, replay=None):
        with tracing({"S": (hint, Range())}, replay) as trace:
            S = trace.symbols["S"]
            few = _is_few(S)
            with blind():
                order = sorted((S, 50, 2 * S))
                far = S * 0.5 > 100.0
            outside = S < 1000
        return trace, (few, list(map(str, order)), far), outside

    trace, first, _ = run(12)
    assert first == (True, ["⟨S⟩", "⟨2*S⟩", "50"], False)
    assert [str(g) for g in trace.guards] == ["S - 999 <= 0"]
    other, again, _ = run(300, trace.decisions)
    assert again == first and other.decisions == trace.decisions
    _, fresh, _ = run(300)
    assert fresh == (False, ["50", "⟨S⟩", "⟨2*S⟩"], True)
    assert _is_few(3) and not _is_few(30)


def test_chosen_functions_see_numbers():
    calls = []

    @chosen
    def best(size: int, names: tuple[str, ...]) -> str:
        calls.append(type(size))
        return names[size % len(names)]

    def run(hint, replay=None):
        with tracing({"S": (hint, Range())}, replay) as trace:
            return trace, best(trace.symbols["S"], ("a", "b", "c"))

    trace, first = run(4)
    assert first == "b" and not trace.guards
    assert run(5)[1] == "c" and run(5, trace.decisions)[1] == "b"
    assert best(5, ("a", "b", "c")) == "c"
    assert set(calls) == {int}


def test_general_questions_take_no_guard():
    with tracing({**B_TO_S, "Z": (1, Range(0))}) as trace:
        B, S, Z = (trace.symbols[name] for name in "BSZ")
        assert not is_one(B) and not is_one(Z) and is_one(1) and not is_one(2)
        assert is_one(B - B + 1)
        assert equals(B * S, S * B) and not equals(B, S) and not equals(B, 4) and equals(4, 4)
        assert is_whole(B * 16, 8) and is_whole(B * S, S) and not is_whole(S, 4) and is_whole(12, 4)
        assert not is_whole(13, 4)
    assert not trace.guards


def test_min_and_max_without_a_guard():
    with tracing({"B": (4, Range(2, 64)), "S": (100, Range(80, 4096))}) as trace:
        B, S = trace.symbols["B"], trace.symbols["S"]
        assert size_min(B, S) is B and size_max(B, S, 64) is S and size_max(3, 7) == 7 and size_min(7) == 7
        assert size_max(B, 2) is B and size_min(B, 64) is B and size_max(2, B) is B
        made = size_min(2 * B, S), size_max(S, 90, B)
        assert made[0] >= 4 and made[0] <= 128 and made[1] >= 90
        assert str(size_min(S, 2 * B)) == str(made[0])
    assert not trace.guards
    for sizes in ({"B": 50, "S": 81}, {"B": 39, "S": 200}):
        at = Evaluation(trace, sizes)
        assert at(made) == (min(2 * sizes["B"], sizes["S"]), max(sizes["S"], 90))


def test_words():
    with tracing(B_TO_S) as trace:
        words = to_words((trace.symbols["S"], 3, True, 0.5, trace.symbols["S"] * 0.5))
    assert words[1:4] == (3, 1, struct.unpack("q", struct.pack("d", 0.5))[0])
    assert type(words[2]) is int
    at = Evaluation(trace, {"B": 2, "S": 7})(words)
    assert at[0] == 7 and struct.unpack("d", struct.pack("q", at[4]))[0] == 3.5
    assert all(type(word) is int for word in at)


def test_keys():
    with tracing(B_TO_S) as trace:
        B, S = trace.symbols["B"], trace.symbols["S"]
        assert expression(B * S) == expression(S * B) != expression(B)
        assert expression((B, 3)) == (expression(B), 3) and expression(5) == 5
        assert is_symbolic(B) and is_symbolic((1, [B])) and is_symbolic(_Problem(B, 3)) and is_symbolic(B * 0.5)
        assert not is_symbolic((1, 2.0, "a", None)) and not is_symbolic(3)
    assert not trace.guards


def test_symbols_of_types_become_sizes():
    with tracing(B_TO_S) as trace:
        made = size_of(SymExpr("+", SymExpr("*", Sym("B"), Sym("S")), 1), trace.symbols)
        assert str(made) == "⟨B*S + 1⟩"
        assert dim_of(made) == SymExpr("+", SymExpr("*", Sym("B"), Sym("S")), 1)
        assert str(dim_of(10 - trace.symbols["B"])) == "(10 - B)"
        with pytest.raises(TypeError):
            dim_of(_tiles(made, ()))
    assert size_of(SymExpr("max", Sym("B"), 3), {"B": 2}) == 3 and size_of(7, {}) == 7
