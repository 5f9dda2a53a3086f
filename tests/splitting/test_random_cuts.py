"""Functions cut at random lines do what they did: nothing is compiled here, the pieces are run as they are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

from smelt.capture.splitting.code import Source
from smelt.capture.splitting.plan import Marks, Piece, place_of

Trace = list[Any]


def straight(x: int, log: Trace) -> Any:
    """A docstring."""
    a = x + 1
    b = a * 2
    log.append(b)
    a, c = b - 1, a + b
    a += c
    d = [a, b, c]
    log.append(d[0] + d[-1])
    return a * b - c


def branches(x: int, log: Trace) -> Any:
    y = x * 2
    if y > 4:
        z = y - 1
        log.append(z + 1)
        if z % 3 == 0:
            return z * 10
    elif y < 0:
        z = -y
        w = z + 1
        log.append(w * 2)
    else:
        z = log.append(0) or y + 5
    y = z + y
    return (y + z, len(log))


def unbound(x: int, log: Trace) -> Any:
    if x > 1:
        late = x * 2
        log.append(late + 1)
    y = x + 3
    z = y * late
    return z + y


def deleted(x: int, log: Trace) -> Any:
    y = x + 1
    z = y * 2
    del y
    log.append(z + 1)
    if x % 2:
        y = z + 1
    return y + z


def loops(x: int, log: Trace) -> Any:
    total, last = 0, None
    for i in range(x + 3):
        square = i * i
        if square % 5 == 4:
            log.append(square + 1)
            continue
        total = total + square
        last = total + i
        if total > 40:
            log.append(total + 0)
            break
        for j in range(i):
            total += j * 2
            if j == 3:
                break
        else:
            total = total + 1
    else:
        log.append("whole" + str(total))
        total = total * 2
    while total > 10:
        total = total - 7
        if total % 4 == 0:
            last = total + 0
            continue
        log.append(total * 1)
    return total, last, i + square


def tries(x: int, log: Trace) -> Any:
    state = x + 1
    try:
        state = state * 2
        log.append(state + 0)
        part = 10 // (x - 2)
        state = part + state
        log.append(part - 1)
        if state > 30:
            return state + part
    except ZeroDivisionError as error:
        log.append(type(error).__name__ + "!")
        state = state - 100
        part = state + 1
    else:
        state = state + 1000
        log.append(state + 0)
    finally:
        log.append("finally" + str(state))
        state = state + 0.5
    return state + part


def nested_tries(x: int, log: Trace) -> Any:
    done: list[int] = []
    for i in range(4):
        value = i + x
        try:
            try:
                value = value * 3
                check = 12 // (i - 1)
                value = value + check
            finally:
                done = [*done, value + 0]
                log.append(value - 1)
                if i == 3:
                    break  # noqa: B012
        except ZeroDivisionError:
            value = -value
            log.append(value * 2)
            continue
        done = [*done, value * 10]
    return done, value + i


class Swallowing:
    def __enter__(self) -> int:
        return 5

    def __exit__(self, *error: Any) -> bool:
        return error[0] is not None and issubclass(error[0], ValueError)


def managers(x: int, log: Trace) -> Any:
    y = x + 1
    with Swallowing() as five:
        y = y * five
        log.append(y + 0)
        z = y + 1
        y = int("no" if x % 2 else "7") + y
        z = z * 2
        log.append(z + 0)
    log.append(y + 0)
    with Swallowing():
        z = y * 3
        log.append(z + 1)
    return y + five


def nests(x: int, log: Trace) -> Any:
    factor = x + 2

    def scaled(n: int) -> int:
        return n * factor

    total = scaled(3) + factor
    log.append(total + 1)
    factor = factor * 10
    other = scaled(2) + total
    pairs = [(i, i * other) for i in range(3) if i != factor]
    log.append(pairs[0][1] + 0)
    other = sum(p[1] * i for i, p in enumerate(pairs)) + other
    a, b = (v * 2 for v in (other, factor))
    key = sorted(pairs, key=lambda p: -p[1] * factor)
    factor = 7
    return a + b, key, scaled(1)


def counts(x: int, log: Trace) -> Any:
    count = 0

    def more() -> int:
        nonlocal count
        count += x
        return count

    first = more() + count
    log.append(first + 0)
    second = count + first
    third = more() * 2 + count
    return first + second + third, count


def matches(x: int, log: Trace) -> Any:
    subject = [x, x + 1] if x % 2 else {"k": x}
    y = x + 1
    match subject:
        case [a, b] if a > 1:
            y = a + b
            log.append(y + 0)
        case {"k": value}:
            y = value * 3
            log.append(y + 1)
            z = y + 1
            y = z + value
        case _:
            log.append("other" + str(x))
    return y + 1


def walrus(x: int, log: Trace) -> Any:
    if (y := x + 1) > 2 and (z := y * 2) > 3:
        log.append(z + 0)
        y = z + y
    while (n := y - 3) > 0:
        y = n + 0
        log.append(y * 2)
    return y + x


def stars(x: int, *rest: int, log: Trace | None = None, **named: int) -> Any:
    first, *others = rest or (x, x + 1, x + 2)
    total = first + sum(others)
    if log is not None:
        log.append(total + 0)
    pair = dict(named, total=total + 1)
    others[0:1] = [total * 2, total]
    pair["x"] = x + 1
    pair["x"] += 2
    return total, others, pair


def steps(x: int, log: Trace) -> Iterator[int]:
    y = x + 1
    for i in range(3):
        y = y * 2 + i
        log.append(y + 0)
        got = yield y + 1
        y = y + (got or 1)
        z = y - i
        log.append(z * 1)
    yield from (z + k for k in range(2))
    return (y + z, "end")  # type: ignore[return-value]


class Base:
    def value(self, x: int) -> int:
        return x * 100


class Derived(Base):
    def value(self, x: int) -> int:
        y = x + 1
        z = super().value(y) + 1
        self.__hidden = z * 2
        return self.__hidden + y + __class__.__name__.count("e")  # type: ignore[name-defined]


FUNCTIONS: list[Callable[..., Any]] = [
    straight, branches, unbound, deleted, loops, tries, nested_tries, managers, nests, counts, matches, walrus,
]  # fmt: skip


def outcome(function: Callable[..., Any], x: int) -> Any:
    log: Trace = []
    try:
        result = function(x, log=log)
    except Exception as error:
        result = (type(error).__name__, str(error))
    return result, log


def cut(function: FunctionType, marks: Marks) -> tuple[FunctionType, tuple[Piece, ...]]:
    """The function with pieces that are plain functions."""

    class Pieces:
        @staticmethod
        def pick(fn: Any) -> Any:
            return fn

    source = Source(function)
    plan = source.planner.plan(marks)
    pieces: Any = Pieces()
    for number, piece in enumerate(plan.pieces):
        setattr(pieces, f"run_{number}", source.piece(function, piece, {}))
    return source.around(function, plan, pieces), plan.pieces


def random_marks(function: FunctionType, numbers: random.Random) -> Marks:
    first = function.__code__.co_firstlineno
    last = max(line for _, _, line in function.__code__.co_lines() if line is not None)
    marks = Marks({line for line in range(first, last + 1) if numbers.random() < numbers.choice((0.05, 0.2, 0.4))})
    for piece in Source(function).planner.plan(marks).pieces:
        if numbers.random() < 0.3:
            marks.cuts.add(place_of([numbers.choice(piece.body)]))
        elif numbers.random() < 0.2:
            marks.opened.add(piece.place)
    return marks


@pytest.mark.spread(5)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_cut_anywhere(function: FunctionType) -> None:
    numbers = random.Random(function.__name__)
    made = 0
    for _ in range(60):
        marks = random_marks(function, numbers)
        other, pieces = cut(function, marks)
        made += len(pieces)
        for x in range(-2, 9):
            assert outcome(other, x) == outcome(function, x), (x, marks)
    assert made > 30


@pytest.mark.spread(3)
@pytest.mark.parametrize("args", [(1,), (2, 5), (3, 5, 7, 9)])
def test_parameters_of_all_kinds(args: tuple[int, ...]) -> None:
    numbers = random.Random(0)
    for _ in range(40):
        other, _ = cut(stars, random_marks(stars, numbers))
        left: Trace = []
        right: Trace = []
        assert other(*args, log=left, k=2) == stars(*args, log=right, k=2) and left == right
        assert other(*args) == stars(*args)


def test_generators() -> None:
    def drive(function: Any, x: int) -> Any:
        log: Trace = []
        generator, seen = function(x, log), []
        try:
            seen.append(next(generator))
            for value in (4, None, 2, None, None, None):
                seen.append(generator.send(value))
        except StopIteration as end:
            seen.append(end.value)
        return seen, log

    numbers = random.Random(1)
    for _ in range(60):
        other, _ = cut(steps, random_marks(steps, numbers))
        assert drive(other, 3) == drive(steps, 3)


def test_methods_with_private_names_and_super() -> None:
    numbers = random.Random(2)
    for _ in range(30):
        other, _ = cut(Derived.value, random_marks(Derived.value, numbers))  # type: ignore[arg-type]
        one, two = Derived(), Derived()
        assert other(one, 3) == two.value(3) and vars(one) == vars(two)


def test_a_traceback_has_the_lines() -> None:
    other, pieces = cut(tries, Marks())  # type: ignore[arg-type]
    assert pieces
    with pytest.raises(TypeError) as caught:
        other("x", [])
    assert caught.traceback[-1].lineno == tries.__code__.co_firstlineno  # counted from 0: the first statement
