"""One native function: no Python inside, other threads advance, any number of threads may call."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.compiler import Compiled
from tests.promises.models import RULE, SIX, Block, assert_agrees, block, entry_of, how_nodes_run, images, make


def events_inside(builtin: Any, run: Callable[[], Any]) -> list[str]:
    """What the interpreter did in this thread between the call of a builtin and its return, while `run` runs."""
    inside, seen, calls = False, [], 0

    def hook(frame: Any, event: str, arg: Any) -> None:
        nonlocal inside, calls
        if event == "c_call" and arg is builtin:
            inside, calls = True, calls + 1
        elif event == "c_return" and arg is builtin:
            inside = False
        elif inside:
            seen.append(f"{event} {frame.f_code.co_qualname}")

    sys.setprofile(hook)
    try:
        run()
    finally:
        sys.setprofile(None)
    assert calls == 1
    return seen


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", SIX)
def test_no_python_between_entry_and_return(name: str) -> None:
    pytest.importorskip("transformers")
    made = make(name)
    expected = made.model(**made.inputs)
    compiled = smelt.compile(made.model, options=RULE)
    for _ in range(3):
        assert_agrees(compiled(**made.inputs), expected)
    entry = entry_of(compiled)
    executable = entry.executable
    assert isinstance(executable.call, type(len)) and executable.counts.python == 0
    inputs = entry.signature.flatten((), made.inputs)
    assert events_inside(executable.call, lambda: executable.call(*inputs)) == []
    nodes = how_nodes_run(compiled)
    assert nodes and "python" not in nodes
    assert compiled.stats().fallbacks == {} and smelt.explain(compiled).fallbacks == []


def test_a_node_that_needs_python_is_seen_and_counted() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.promises.doubled(x) + 1

    with torch.library._scoped_library("promises", "DEF") as library:
        library.define("doubled(Tensor x) -> Tensor")
        library.impl("doubled", lambda x: x * 2, "CompositeExplicitAutograd")
        compiled, x = smelt.compile(f, options=RULE), torch.randn(5)
        for _ in range(3):
            assert torch.equal(compiled(x), x * 2 + 1)
        counts = entry_of(compiled).executable.counts
        assert counts.python + counts.dispatcher >= 1
        assert {"python", "dispatcher"} & set(how_nodes_run(compiled))


def test_another_thread_advances_during_a_call() -> None:
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]).eval()
    x = torch.randn(512, 512)
    compiled = smelt.compile(model, options=RULE)
    for _ in range(3):
        compiled(x)
    call = entry_of(compiled).executable.call
    count, stop = [0], threading.Event()

    def spin() -> None:
        while not stop.is_set():
            count[0] += 1
            time.sleep(0)  # gives the interpreter lock away, which nothing else makes it do here

    def advance(run: Callable[[], Any]) -> int:
        before = count[0]
        run()
        return count[0] - before

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=spin)
    sys.setswitchinterval(1000)
    try:
        thread.start()
        kept = advance(lambda: sum(range(1_000_000)))  # a builtin that keeps the lock
        released = 0
        for _ in range(200):  # a busy machine may not schedule the other thread at once
            released += advance(lambda: call(x))
            if released > 100:
                break
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert kept == 0 and released > 100


def in_threads(count: int, work: Callable[[int], None]) -> list[BaseException]:
    """Run `work(i)` in threads that start together; what they raised."""
    barrier, errors = threading.Barrier(count), []

    def body(i: int) -> None:
        try:
            with torch.no_grad():
                barrier.wait(30)
                work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return errors


@pytest.mark.parametrize("sample", [block, images])
def test_two_threads_run_one_model_at_once(sample: Any) -> None:
    made = sample()
    xs = [torch.randn_like(made.inputs["x"]) for _ in range(4)]
    expected = [made.model(x) for x in xs]
    compiled = smelt.compile(made.model, options=RULE)
    compiled(xs[0])

    def work(i: int) -> None:
        for step in range(60):
            k = (step * (2 * i + 1)) % 4
            assert_agrees(compiled(xs[k]), expected[k])

    assert in_threads(2, work) == []
    assert entry_of(compiled).executable.stats.runs == 120


@pytest.mark.parametrize("threads", [2, 4])
def test_first_calls_at_once(threads: int) -> None:
    made = block()
    xs = [torch.randn(2, 8, 32) for _ in range(threads)]
    expected = [made.model(x) for x in xs]
    compiled = smelt.compile(made.model, options=RULE)

    def work(i: int) -> None:
        for _ in range(3):
            assert_agrees(compiled(xs[i]), expected[i])

    assert in_threads(threads, work) == []
    assert_agrees(compiled(xs[0]), expected[0])
    stats = compiled.stats()
    assert stats.builds == 1 and len(stats.rows) == 1
    assert set(stats.fallbacks) <= {"another thread is compiling it", "still compiling in the background"}
    entry_of(compiled)


def test_first_calls_of_different_models_at_once() -> None:
    made = [block(), images(), block(), images()]
    expected = [m.model(**m.inputs) for m in made]
    compiled = [smelt.compile(m.model, options=RULE) for m in made]

    def work(i: int) -> None:
        for _ in range(4):
            assert_agrees(compiled[i](**made[i].inputs), expected[i])

    assert in_threads(4, work) == []
    for c, m, want in zip(compiled, made, expected, strict=True):
        assert_agrees(c(**m.inputs), want)
        assert c.stats().builds == 1
        entry_of(c)


def test_different_first_shapes_at_once() -> None:
    made = block()
    xs = [torch.randn(1, n, 32) for n in (3, 5, 7)]
    expected = [made.model(x) for x in xs]
    compiled = smelt.compile(made.model, options=RULE, dynamic=False)

    def work(i: int) -> None:
        for step in range(12):
            k = (step + i) % 3
            assert_agrees(compiled(xs[k]), expected[k])

    assert in_threads(3, work) == []
    for x, want in zip(xs, expected, strict=True):
        compiled(x)
        assert_agrees(compiled(x), want)
        entry_of(compiled)
    assert len(compiled.stats().rows) == 3


def test_sizes_that_become_free_in_one_of_many_threads() -> None:
    made = block()
    xs = [torch.randn(2, n, 32) for n in (3, 5, 7, 9)]
    expected = [made.model(x) for x in xs]
    compiled = smelt.compile(made.model, options=RULE)

    def work(i: int) -> None:
        for step in range(16):
            k = (step + i) % 4
            assert_agrees(compiled(xs[k]), expected[k])

    assert in_threads(4, work) == []
    builds = compiled.stats().builds
    for x, want in zip(xs, expected, strict=True):
        assert_agrees(compiled(x), want)
    assert builds <= compiled.stats().builds <= builds + 2 <= 4


def test_a_compiled_module_inside_a_compiled_module() -> None:
    inner = smelt.compile(Block().eval(), options=RULE)
    outer_model = nn.Sequential(nn.Linear(32, 32), inner, nn.LayerNorm(32)).eval()
    outer = smelt.compile(outer_model, options=RULE)
    x = torch.randn(2, 8, 32)
    expected = nn.Sequential(outer_model[0], inner.smelt_target, outer_model[2])(x)
    for _ in range(3):
        assert_agrees(outer(x), expected)
    assert entry_of(outer).executable.stats.runs == 2 and inner.stats().builds == 0
    assert "aten.linear.default" in str(entry_of(outer).graph)
    for _ in range(2):
        assert_agrees(inner(x), inner.smelt_target(x))
    entry_of(inner)


def test_a_compiled_function_that_calls_compiled_functions() -> None:
    inner = smelt.compile(lambda x: torch.relu(x) * 3, options=RULE)

    @smelt.compile(options=RULE, dynamic=False)
    def outer(x: torch.Tensor, depth: int) -> torch.Tensor:
        return inner(x) if depth == 0 else outer(x - 1, depth - 1) + 1

    assert isinstance(outer, Compiled)
    x = torch.randn(6)
    for depth in (0, 2, 3):
        for _ in range(3):
            assert torch.equal(outer(x, depth), torch.relu(x - depth) * 3 + depth)
            entry_of(outer)
    assert inner.stats().builds == 0 and outer.stats().builds == 3


def test_a_forked_child_calls_and_compiles_while_its_parent_compiles() -> None:
    """What the parent's other threads held at the fork is held for ever in the child, which must not wait for it."""
    made = block()
    x, other = torch.randn(2, 8, 32), torch.randn(3, 5, 32)
    expected, later = made.model(x), made.model(other)
    compiled = smelt.compile(made.model, options=RULE, dynamic=False)
    compiled(x)
    recording, forked = threading.Event(), threading.Event()

    def slow(x: torch.Tensor) -> torch.Tensor:
        recording.set()
        forked.wait(60)
        return x.sin() + 1

    def compile_it() -> None:
        smelt.compile(slow, options=RULE)(x)

    thread = threading.Thread(target=compile_it)
    thread.start()
    assert recording.wait(60)
    child = os.fork()
    if not child:
        # A library's own threads do not come along, and eager would wait for them.
        signal.alarm(60)
        torch.set_num_threads(1)
        try:
            for _ in range(2):
                assert_agrees(compiled(x), expected)
                assert_agrees(compiled(other), later)
                assert torch.equal(smelt.compile(torch.cos, options=RULE)(x), x.cos())
        except BaseException:
            os._exit(1)
        os._exit(0)
    ended = os.waitpid(child, 0)[1]
    forked.set()
    thread.join(60)
    assert ended == 0 and not thread.is_alive()


def test_the_number_of_threads_may_change_between_calls() -> None:
    made = block()
    x = torch.randn(4, 32, 32)
    expected = made.model(x)
    compiled = smelt.compile(made.model, options=RULE)
    for count in (1, 2, 1, 3, 2, 1):
        torch.set_num_threads(count)
        assert_agrees(compiled(x), expected)
        assert torch.get_num_threads() == count

    def work(i: int) -> None:
        torch.set_num_threads(i + 1)
        for _ in range(10):
            assert_agrees(compiled(x), expected)

    assert in_threads(2, work) == []
    assert compiled.stats().builds == 1
