"""Converted code stands in place of functions for a block only, for one thread only."""

from __future__ import annotations

import functools
import sys
import threading
from types import CodeType

import pytest

from smelt.capture.convert import PLAIN, CannotConvert, PlainRuntime, current, functions_of, installed, swapped


class Noting(PlainRuntime):
    """Notes where ifs and calls are."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def if_(self, at, *rest):
        self.seen.append(("if", at))
        super().if_(at, *rest)


def choose(a):
    if a:
        return "yes"
    return "no"


class Holder:
    def method(self, a):
        if a:
            return [x for x in (a,) if x]
        return None

    @property
    def prop(self):
        return 1 if self.__dict__ else 2

    @staticmethod
    def static(a):
        return a or 1

    @classmethod
    def klass(cls, a):
        return a or cls

    @functools.lru_cache  # noqa: B019
    def cached(self, a):
        return a or 3


def make(k):
    @functools.wraps(choose)
    def wrapper(a):
        if a:
            return choose(k)
        return k

    return wrapper


def codes_in(code: CodeType) -> list[CodeType]:
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return inner + [d for c in inner for d in codes_in(c)]


def test_swapped_and_put_back() -> None:
    old, runtime = choose.__code__, Noting()
    with swapped([choose, Holder().method], runtime):
        assert choose.__code__ is not old
        assert current() is runtime
        assert (choose(1), choose(0), Holder().method(2)) == ("yes", "no", [2])
    assert choose.__code__ is old
    assert current() is PLAIN
    first = old.co_firstlineno + 1
    assert runtime.seen[:2] == [("if", first)] * 2
    assert len(runtime.seen) == 4  # the method's, and its comprehension's
    choose(1)
    assert len(runtime.seen) == 4


def test_put_back_after_an_error() -> None:
    old = choose.__code__
    with pytest.raises(KeyError), swapped([choose], Noting()):
        raise KeyError
    assert choose.__code__ is old
    assert current() is PLAIN


def test_nothing_is_touched_where_one_cannot_be_converted() -> None:
    def generator():
        yield 1

    old = choose.__code__
    runtime = Noting()
    with pytest.raises(CannotConvert, match="generator"), swapped([choose, generator], runtime):
        raise AssertionError
    assert choose.__code__ is old


def test_within_itself() -> None:
    old, outer, inner = choose.__code__, Noting(), Noting()
    with swapped([choose], outer):
        new = choose.__code__
        with installed(inner):
            choose(1)
        with swapped([choose], inner):
            assert choose.__code__ is new
            choose(1)
        assert choose.__code__ is new
        assert current() is outer
        choose(1)
    assert (len(outer.seen), len(inner.seen)) == (1, 2)
    assert choose.__code__ is old


def test_other_threads_have_the_plain_runtime() -> None:
    runtime = Noting()
    results: list[object] = []

    def other() -> None:
        results.append((current(), choose(1), choose(0)))

    with swapped([choose], runtime):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert results == [(PLAIN, "yes", "no")]
    assert not runtime.seen


def test_one_thread_at_a_time() -> None:
    old = choose.__code__
    inside = threading.Event()
    order: list[str] = []

    def second() -> None:
        inside.wait()
        with swapped([choose], Noting()):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with swapped([choose], Noting()):
        inside.set()
        thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert choose.__code__ is old


def test_code_objects_stand_for_their_functions() -> None:
    runtime = Noting()
    with swapped([choose.__code__], runtime):
        choose(1)
    assert len(runtime.seen) == 1


@pytest.mark.parametrize(
    ("code", "function"),
    [
        (choose.__code__, choose),
        (Holder.method.__code__, Holder.method),
        (Holder.prop.fget.__code__, Holder.prop.fget),
        (Holder.static.__code__, Holder.static),
        (Holder.klass.__func__.__code__, Holder.klass.__func__),
        (Holder.cached.__wrapped__.__code__, Holder.cached.__wrapped__),
    ],
)
def test_functions_by_name(code: CodeType, function: object) -> None:
    assert functions_of([code]) == [function]


def test_a_comprehension_is_its_functions() -> None:
    parts = [*codes_in(Holder.method.__code__)]
    assert len(parts) == (sys.version_info < (3, 12))  # later it is no code of its own
    assert all(functions_of([comprehension]) == [Holder.method] for comprehension in parts)


def test_nested_functions_and_the_one_that_makes_them() -> None:
    made = [make(1), make(2)]
    assert {*functions_of([made[0].__code__])} == {make, *made}
    runtime = Noting()
    with swapped([made[0].__code__], runtime):
        assert (made[0](1), made[1](0), make(0)(3)) == ("yes", 2, "no")
    assert len(runtime.seen) == 3


def test_functions_that_no_name_leads_to() -> None:
    def local(a):
        return a or 1

    hidden = {"deep": [lambda: local]}
    code = local.__code__
    assert local in functions_of([code])
    assert test_functions_that_no_name_leads_to in functions_of([code])
    assert hidden


def test_hints_come_first() -> None:
    class Local:
        def method(self, a):
            return a or self

    frame = sys._getframe()
    code = Local.method.__code__
    for hint in (Local, Local(), Local.method, frame):
        assert Local.method in functions_of([code], [hint])
