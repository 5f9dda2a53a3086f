"""Property tests draw the same examples in each run of the suite; SMELT_RANDOM=1 lets them draw others."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

# Read when torch is loaded. Where each core has a test process of its own, threads that keep their core busy while they
# wait for work take it from the other process.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Inductor would start processes that compile beside it, each with a torch of its own.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Where the environment has no bytecode written, each of the many processes of a run would compile all of Smelt anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# What imports and the collection of tests make stays: nothing of it is garbage.
gc.disable()

import torch  # noqa: E402

from smelt._torch import settings as torch_settings  # noqa: E402
from smelt.compiler import kept_plans  # noqa: E402
from smelt.compiler.deciding import ledger, worth  # noqa: E402
from smelt.diag import idle_memory  # noqa: E402
from smelt.runtime.machine import drafts  # noqa: E402

# For each seed torch writes down the stack once for each kind of device that is not there; nobody reads it, and many
# tests seed thousands of times.
for _devices in (torch.cuda, torch.xpu, torch.mtia):
    _devices.traceback = SimpleNamespace(**{**vars(traceback), "format_stack": list})

# What is compiled stays so, and all is built that is asked for, however long it takes: no test depends on the time of
# a run. Objects that modules of tests make when they are imported are meant, too.
_is_adaptive, ledger.is_adaptive = ledger.is_adaptive, lambda options: False

# Memory that a build leaves is what the next test builds with: taken back, it would be asked for again at once.
idle_memory.MUCH_NBYTES = idle_memory.NEW_CODE_NBYTES = 2**62  # type: ignore[misc]

settings.register_profile("suite", derandomize=True)
if not os.environ.get("SMELT_RANDOM"):
    settings.load_profile("suite")
    # Examples would also be drawn of the numbers in our own sources, so that each edit of these changes them; to find
    # the numbers each process reads 1,800 files for two seconds.
    providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `spread(n)`, one case of each `n` is in `make test`, and `make nightly` has the others.

    Of the first `n` it is the first, of the next the second, and so on: so no value of an inner parameter is left out.
    """
    met: Counter[tuple[Path, str]] = Counter()
    for item in items:
        mark = item.get_closest_marker("spread")
        if mark is None or not isinstance(item, pytest.Function):
            continue
        (step,) = mark.args
        test = (item.path, item.originalname)
        block, place = divmod(met[test], step)
        met[test] += 1
        if place != block % step:
            item.add_marker("nightly")


def pytest_collection_finish() -> None:
    """What tests and libraries hold is never looked through for garbage, and what is made from now on thirty times less
    often than by itself.
    """
    young, middle, full = gc.get_threshold()
    gc.set_threshold(young, middle, 30 * full)
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """All is looked through once for what fails as it goes; pytest does so five times, and the interpreter twice."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left_changed"] = LEFT_CHANGED
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--bless` rewrites what golden files expect."""
    parser.addoption("--bless", action="store_true", default=False, help="write what is given into golden files")


@pytest.fixture
def young_heap() -> Iterator[None]:
    """For a test that collects garbage: what was there before it is not looked through, which takes a second."""
    gc.freeze()
    yield


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled stays so, however long it takes: no test depends on the time of a run."""
    monkeypatch.setattr(worth, "SETTLING", 10**9)


@pytest.fixture
def adaptive(monkeypatch: pytest.MonkeyPatch) -> None:
    """For objects that are made in the test times decide, as for a user's."""
    monkeypatch.setattr(ledger, "is_adaptive", _is_adaptive)


@pytest.fixture(autouse=True)
def settings_as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test begins with the settings of the process that the one before began with: graphs depend on them. What
    a test leaves changed is put back, and said at the end of the run.
    """
    settings, threads = torch_settings.pairs() + _MODES, torch.get_num_threads()
    before = [read() for read, _ in settings]
    yield
    torch.set_num_threads(threads)
    for (read, put), old in zip(settings, before, strict=True):
        if (now := read()) != old:
            put(old)
            LEFT_CHANGED.append(f"{request.node.nodeid}: {read.__name__} was {old!r}, became {now!r}")


LEFT_CHANGED: list[str] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What tests of another process left changed."""
    LEFT_CHANGED.extend(getattr(node, "workeroutput", {}).get("left_changed", ()))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which tests left settings changed."""
    for line in LEFT_CHANGED:
        terminalreporter.write_line(f"left changed by {line}")


_MODES: list[torch_settings.Pair] = [
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
]


@pytest.fixture(autouse=True)
def no_drafts_left() -> Iterator[None]:
    """What a thread does behind a test's first native run is done before the next test, whose disk may refuse."""
    yield
    drafts.finish()


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are as wide as they are in a file: what runs the tests tells them the width of its own terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def plans_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans come of passes and lowering in this process, and not of what an earlier one kept on disk."""
    monkeypatch.setattr(kept_plans, "WORTH_MS", float("inf"))
