"""State that no attribute hook and no copy shows: found where the run reaches it, so that the original runs."""

from __future__ import annotations

import array
import ctypes
import gc
import io
import os
import queue
import sys
import threading
import weakref
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smelt
from smelt.capture.reads.reads import record_reads
from smelt.diag import SmeltWarning
from tests.forked import Forks
from tests.guards.double import Builder


class Key:
    """Something that weak containers can hold."""


class Local(threading.local):
    n = 0


KEY = Key()
LOCAL = threading.local()
LOCAL.n = 2
OWN_LOCAL = Local()
QUEUE: queue.Queue[int] = queue.Queue()
SIMPLE: queue.SimpleQueue[int] = queue.SimpleQueue()
ARRAY = array.array("i", [1, 2])
BYTES = bytearray(b"ab")
VIEW = memoryview(BYTES)
SEMAPHORE, EVENT, CONDITION = threading.Semaphore(2), threading.Event(), threading.Condition()
WEAK_KEYS: Any = weakref.WeakKeyDictionary({KEY: 2})
WEAK_VALUES: Any = weakref.WeakValueDictionary({"a": KEY})
WEAK_SET: Any = weakref.WeakSet([KEY])
BUFFER, TEXT = io.BytesIO(b"abc"), io.StringIO("abc")
NUMBER = ctypes.c_int(3)
HELD = {"events": [EVENT]}


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def forward(self, x: Any) -> Any:
        return x * 2 if self.event.is_set() else x


HIDDEN: dict[str, Callable[[Any], Any]] = {
    "thread local": lambda x: x * LOCAL.n,
    "a class of thread locals": lambda x: x * OWN_LOCAL.n,
    "queue": lambda x: x * QUEUE.qsize(),
    "simple queue": lambda x: x * SIMPLE.qsize(),
    "array": lambda x: x * ARRAY[0],
    "bytearray": lambda x: x * BYTES[0],
    "memoryview": lambda x: x * VIEW[0],
    "semaphore": lambda x: (SEMAPHORE.acquire(blocking=False), x)[1],
    "event": lambda x: x * EVENT.is_set(),
    "condition": lambda x: (CONDITION.acquire(), CONDITION.release(), x)[2],
    "weak keys": lambda x: x * WEAK_KEYS[KEY],
    "weak values": lambda x: x * len(WEAK_VALUES),
    "weak set": lambda x: x * len(WEAK_SET),
    "bytes buffer": lambda x: x * len(BUFFER.getvalue()),
    "text buffer": lambda x: x * len(TEXT.getvalue()),
    "C number": lambda x: x * NUMBER.value,
    "inside a container": lambda x: x * HELD["events"][0].is_set(),
    "attribute": Holder(),
    "listdir": lambda x: x * len(os.listdir(".")),
    "stat": lambda x: x * os.stat(".").st_size,
    "exists": lambda x: x * os.path.exists("nowhere"),
    "garbage collector": lambda x: x * (len(gc.get_objects()) > 0),
}


@pytest.mark.spread(12)
@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_state_is_never_replayed(name: str) -> None:
    builder = Builder()
    c = builder.compile(HIDDEN[name])
    x = torch.ones(2)
    with torch.no_grad():
        c(x)
        with pytest.warns(SmeltWarning, match="has effects"):
            c(x)
        c(x)
    assert builder.runs == 0


def test_locks_that_are_not_taken_and_watchable_classes_are_compiled() -> None:
    held, table = [threading.RLock(), threading.Lock()], UserDict({"k": 2})

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * table["k"] * len(held) / 2

    builder = Builder()
    c = builder.compile(f)
    x = torch.ones(2)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(c(x), x * 2)
        assert builder.runs == 2
        table["k"] = 3
        assert torch.equal(c(x), x * 3)


LOCK = threading.Lock()


class Lazy(torch.nn.Module):
    """Makes something at its first call, under a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: float | None = None

    def prepare(self) -> None:
        if self.scale is not None:
            return
        with LOCK:
            self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.prepare()
        assert self.scale is not None
        return x * self.scale


def locks_each_time(x: torch.Tensor) -> torch.Tensor:
    with LOCK:
        return x * 2


def comes_to_it_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for i in range(3):
        if i == 2:
            return x * 2
        with LOCK:
            x = x + 0
    return x


def test_locks_that_a_call_comes_not_to_are_not_taken() -> None:
    x, lazy = torch.ones(2), Lazy()
    with torch.no_grad():
        lazy(x)
        compiled = smelt.compile(lazy, options={"measure": False}, fullgraph=True)
        for _ in range(3):
            assert torch.equal(compiled(x), x * 2)
        assert not compiled.stats().fallbacks
        for f in (locks_each_time, comes_to_it_in_a_loop, lambda x: locks_each_time(Lazy()(x)) / 2):
            with pytest.raises(smelt.CaptureError, match="takes a lock"):
                smelt.compile(f, options={"measure": False}, fullgraph=True)(x)


def test_a_further_call_in_the_same_run_may_take_the_lock() -> None:
    x, first, second = torch.ones(2), Lazy(), Lazy()
    with torch.no_grad():
        first(x)
        with pytest.raises(smelt.CaptureError, match="takes a lock"):
            smelt.compile(lambda x: second(first(x)), options={"measure": False}, fullgraph=True)(x)


def test_attributes_that_a_function_sets_on_itself() -> None:
    def counted(x: torch.Tensor) -> torch.Tensor:
        counted.n = getattr(counted, "n", 0) + 1  # type: ignore[attr-defined]
        return x * counted.n  # type: ignore[attr-defined]

    def asked(x: torch.Tensor) -> torch.Tensor:
        if not hasattr(asked, "n"):
            asked.n = 0  # type: ignore[attr-defined]
        asked.n += 1  # type: ignore[attr-defined]
        return x * asked.n  # type: ignore[attr-defined]

    @torch.no_grad()
    def wrapped(x: torch.Tensor) -> torch.Tensor:
        wrapped.n = getattr(wrapped, "n", 0) + 1
        return x * wrapped.n

    for f in (counted, asked, wrapped):
        c = smelt.compile(f)
        with torch.no_grad():
            assert [float(c(torch.ones(()))) for _ in range(4)] == [1.0, 2.0, 3.0, 4.0], f.__name__


def test_attributes_set_through_the_compiled_name() -> None:
    @smelt.compile
    def counted(x: torch.Tensor) -> torch.Tensor:
        counted.n = getattr(counted, "n", 0) + 1
        return x * counted.n

    with torch.no_grad():
        assert [float(counted(torch.ones(()))) for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]
        counted.n = 10
        assert [float(counted(torch.ones(()))) for _ in range(2)] == [11.0, 12.0]
    assert not any("has effects" in reason for reason in counted.stats().fallbacks)


def test_attributes_that_others_set_on_a_function() -> None:
    def helper() -> int:
        return 1

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * (helper() + getattr(helper, "extra", 0))

    c = Builder().compile(f)
    x = torch.ones(())
    with torch.no_grad():
        assert [float(c(x)) for _ in range(2)] == [1.0, 1.0]
        helper.extra = 4  # type: ignore[attr-defined]
        assert float(c(x)) == 5.0
        helper.extra = 5  # type: ignore[attr-defined]
        assert float(c(x)) == 6.0


LATE = """
import sys
import numpy as np
import torch
from smelt.capture.reads.reads import record_reads
for name in [n for n in sys.modules if n.startswith("numpy.random")]:
    del sys.modules[name]
np.__dict__.pop("random", None)
{program}
with record_reads({{"f": f}}, (torch.ones(3),)) as log:
    f(torch.ones(3))
assert any(e.what == "draws random numbers" for e in log.effects), log.effects
"""
PROGRAMS = {
    "attribute": "def f(x):\n    return x + torch.from_numpy(np.random.randn(3))",
    "import": "def f(x):\n    from numpy import random\n    return x + float(random.rand())",
    "submodule": "def f(x):\n    import numpy.random\n    return x + float(numpy.random.rand())",
    "name": "def f(x):\n    from numpy.random import rand\n    return x + float(rand())",
    "closure": "def f(x):\n    import numpy as n\n    def g():\n        return n.random.rand()\n    return x + g()",
}


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks("import torch, smelt.capture.reads.reads")
    yield made
    made.close()


@pytest.mark.spread(5)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_module_loaded_by_the_run_itself(forks: Forks, name: str) -> None:
    forks.run(LATE.format(program=PROGRAMS[name]))


def test_what_a_run_loads_is_followed_once() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        from tests.guards import late_module

        return x * late_module.factor()

    sys.modules.pop("tests.guards.late_module", None)
    with record_reads({"f": f}, (torch.ones(2),)) as log:
        f(torch.ones(2))
    assert log.effects == []


class _HoldsNumpy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.library = {"np": np}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(self.library["np"].random.rand())


def test_numpys_global_generator_is_seen_however_it_is_reached() -> None:
    module = _HoldsNumpy().eval()
    with record_reads({"module": module}, (torch.ones(2),)) as log:
        module(torch.ones(2))
    assert "random" in log.why_not()


def test_how_often_a_tensor_was_written_is_read_at_every_call() -> None:
    weight = torch.ones(3)

    def versions(x: torch.Tensor) -> torch.Tensor:
        own = x * 2
        own.add_(1)
        return own * own._version + (x._version + 10 * weight.view(-1)._version)

    x, twin = torch.ones(3), torch.ones(3)
    with pytest.warns(smelt.SmeltWarning, match="version counter"):
        compiled = smelt.compile(versions)
        for _ in range(4):
            assert torch.equal(compiled(x), versions(twin))
            for tensor in (x, twin, weight):
                tensor.add_(1)
    for make in (lambda: smelt.trace(versions, (x,)), lambda: smelt.script(versions)):
        with pytest.raises(smelt.CaptureError, match="version counter of a tensor from outside was read") as error:
            make()
        assert error.value.where.line == versions.__code__.co_firstlineno + 3


def test_views_made_without_gradients_of_parameters_that_are_written() -> None:
    """Torch forbids to ask such a view whether it is a leaf."""
    weight, other = (torch.nn.Parameter(torch.eye(3)) for _ in range(2))
    with torch.no_grad():
        held = other[0]

    def program(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * held

    compiled = smelt.compile(program)
    for _ in range(3):
        (weight * other).sum().backward()
        torch.optim.SGD([weight, other], lr=0.1).step()
        with torch.no_grad():
            for row in (weight[1], weight.t()[2], torch.ones(3)):
                before = row.clone()
                found = compiled(row)
                torch.testing.assert_close(found, row * held)
                assert torch.equal(row, before + 1)
