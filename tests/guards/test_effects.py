"""Programs whose run does more than compute: found, named with file and line, never replayed."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from smelt.capture.reads.reads import ReadLog, RecorderBusy, record_reads
from smelt.diag import CaptureError, SmeltWarning
from tests.guards.double import Builder

COUNT = 0
LOG: list[int] = []
LAST: Any = None
GENERATOR = np.random.default_rng(0)
ITERATOR = iter(range(1000))


class Registry:
    calls = 0


def _count(x: Any) -> Any:
    global COUNT
    COUNT += 1
    return x * 2


def _store(x: Any) -> Any:
    global LAST
    LAST = x
    return x * 2


def _append(x: Any) -> Any:
    LOG.append(1)
    return x * 2


def _class(x: Any) -> Any:
    Registry.calls += 1
    return x * 2


def _fork(x: Any) -> Any:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    return x


EFFECTS: dict[str, Callable[[Any], Any]] = {
    "random numbers": lambda x: x * random.random(),
    "random.gauss": lambda x: x * random.gauss(0, 1),
    "numpy": lambda x: x * float(np.random.rand()),
    "numpy generator": lambda x: x * float(GENERATOR.normal()),
    "clock": lambda x: x * (time.time() > 0),
    "environment": lambda x: x * len(dict(os.environ)),
    "print": lambda x: (print("called"), x)[1],
    "open": lambda x: (open(os.devnull).close(), x)[1],
    "logging": lambda x: (logging.getLogger("smelt.test").critical("x"), x)[1],
    "uuid": lambda x: (uuid.uuid4(), x)[1],
    "seed": lambda x: (torch.manual_seed(0), x)[1],
    "generator state": lambda x: (torch.get_rng_state(), x)[1],
    "iterator": lambda x: x * next(ITERATOR),
    "thread": _fork,
    "global counter": _count,
    "global assigned": _store,
    "list": _append,
    "class attribute": _class,
    "globals()": lambda x: x * len(globals()),
}


def record(f: Any, *args: Any) -> ReadLog:
    with record_reads({"f": f}, args) as log:
        f(*args)
    return log


@pytest.mark.parametrize("name", EFFECTS)
def test_an_effect_is_found_at_its_line(name: str) -> None:
    log = record(EFFECTS[name], torch.ones(2))
    assert not log.is_replayable, name
    assert __file__ in log.why_not()


# What these change is state of the program, which a compiled one changes, too.
STATE = ("global counter", "global assigned", "list", "class attribute")


@pytest.mark.parametrize("name", [name for name in EFFECTS if name not in STATE])
def test_a_program_with_effects_is_never_replayed(name: str) -> None:
    builder = Builder()
    c = builder.compile(EFFECTS[name])
    x = torch.ones(2)
    with torch.no_grad():
        c(x)  # a first run may be filling caches
        with pytest.warns(SmeltWarning, match="has effects") as caught:
            c(x)
        assert len(caught) == 1
        assert os.path.basename(caught[0].filename) == os.path.basename(__file__)
        c(x)
        c(x)
    assert builder.runs == 0
    assert len(builder.entries) == 2


def test_plain_programs_have_no_effects() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.drop = nn.Dropout(0.1)

        def forward(self, x: torch.Tensor, names: list[str]) -> dict[str, torch.Tensor]:
            local = [x]
            local.append(self.linear(x))
            return {name: self.drop(t) for name, t in zip(names, local, strict=True)}

    log = record(Model(), torch.ones(2, 4), ["a", "b"])
    assert log.is_replayable, log.why_not()


def test_argument_containers_that_change_are_effects() -> None:
    def f(items: list[int]) -> int:
        items.append(1)
        return len(items)

    log = record(f, [1])
    assert [m.name for m in log.mutations] == ["args[0]"]


def test_module_attribute_stores_are_effects_and_values_restored_are_not() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n = 0
            self.flag = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before, self.flag = self.flag, True
            x = x + int(self.flag)
            self.flag = before
            if x.numel() > 2:
                self.n += 1
                self.cache = x
            return x

    model = Model()
    assert record(model, torch.ones(2)).is_replayable
    changed = {m.name: m for m in record(model, torch.ones(3)).mutations}
    assert {"f.n", "f.cache"} <= set(changed)
    assert changed["f.n"].span is not None and changed["f.n"].span.text == "self.n += 1"


def test_a_store_of_what_was_there_is_guarded() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mode = "a"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mode = "a"
            return x + 1

    model = Model()
    builder = Builder()
    c = builder.compile(model)
    with torch.no_grad():
        c(torch.ones(2))
        c(torch.ones(2))
        assert builder.runs == 1
        model.mode = "b"
        c(torch.ones(2))
    assert model.mode == "a"


def test_an_argument_kept_from_call_to_call_is_an_effect() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept: set[Any] = set()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept.clear()
            self.kept.add(x)
            return x + 1

    model = Model()
    builder = Builder()
    c = builder.compile(model)
    x, y = torch.ones(2), torch.ones(2)
    with torch.no_grad(), pytest.warns(SmeltWarning, match="has effects"):
        for value in (x, x, x, y):
            c(value)
            assert model.kept == {value}
    assert builder.runs == 0


def test_a_cache_filled_by_the_first_run_does_not_prevent_compilation() -> None:
    class Lazy(nn.Module):
        table: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = torch.arange(4.0)
            return x + self.table

    builder = Builder()
    c = builder.compile(Lazy())
    x = torch.ones(4)
    with torch.no_grad():
        results = [c(x) for _ in range(4)]
    assert all(torch.equal(r, results[0]) for r in results)
    assert builder.runs == 2
    assert len(c.stats().rows) == 1


def test_strict_refuses_effects() -> None:
    c = Builder().compile(EFFECTS["iterator"], options={"strict": True})
    with torch.no_grad(), pytest.raises(CaptureError, match="has effects"):
        c(torch.ones(2))


def test_everything_is_undone_also_after_an_error() -> None:
    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyError("mine")

    def profiler(frame: Any, event: str, arg: Any) -> None: ...

    import sys

    before = dict(Model.__dict__), dict(nn.Module.__dict__)
    sys.setprofile(profiler)
    try:
        with pytest.raises(KeyError, match="mine"), record_reads({"f": Model()}) as log:
            Model()(1)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert (dict(Model.__dict__), dict(nn.Module.__dict__)) == before
    assert log.reads == []


def test_one_recording_at_a_time_and_other_threads_are_not_seen() -> None:
    class Shared:
        a, b = 1, 2

    shared = Shared()
    outcome: list[Any] = []

    def other() -> None:
        outcome.append(shared.b)
        try:
            with record_reads({}):
                pass
        except RecorderBusy as error:
            outcome.append(error)

    def f() -> int:
        return shared.a

    with record_reads({"f": f}) as log:
        f()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert outcome[0] == 2 and isinstance(outcome[1], RecorderBusy)
    assert not any(read.key == "b" and read.kind == "static" for read in log.reads)
