"""What a capture does not do: run the program twice, look through all objects of the process, watch itself."""

from __future__ import annotations

import functools
import gc
import logging
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import smelt
from smelt.capture import captured
from smelt.capture.convert import swap
from smelt.capture.reads import reads, reads_patch, reads_values
from smelt.capture.recording.recorder import Recorder
from smelt.capture.recording.spans import Site
from smelt.capture.recording.tensor_slots import Slot
from smelt.capture.structure.roots import reachable
from smelt.diag import Span
from smelt.diag.collector import full_collections_later
from smelt.passes.base import PassContext

_X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])


def _decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self: Any, x: torch.Tensor) -> torch.Tensor:
        return function(self, x * 2) if x.sum() > 0 else function(self, x)

    return wrapper


class _Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = lambda x: x.relu() if x.max() > 2 else x.tanh()

    @_decorated
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(row if row.sum() > 1 else -row for row in self.act(x))


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList((_Layer(), _Layer()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)[None] + _helper(x)
        return x


def _helper(x: torch.Tensor) -> torch.Tensor:
    return x / 2 if x.mean() < 0.5 else x


@pytest.fixture
def refused_scans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A garbage collector whose objects staging asks for, counted."""
    scans: list[int] = []

    def get_objects() -> list[Any]:
        scans.append(1)
        return gc.get_objects()

    monkeypatch.setattr(swap, "gc", SimpleNamespace(get_objects=get_objects))
    yield scans


def test_functions_are_found_without_looking_at_all_objects(refused_scans: list[int]) -> None:
    model = _Model()
    program = smelt.trace(model, (_X,))
    assert "if" in {node.op for node in program.graph.walk()} and not refused_scans
    for x in (_X, -_X, _X * 10, _X - 1):
        torch.testing.assert_close(program(x), model(x))


def test_a_function_that_nothing_names_is_found_among_all_objects(refused_scans: list[int]) -> None:
    hidden = types.FunctionType(_helper.__code__, {"torch": torch}, "hidden")
    held: ContextVar[Any] = ContextVar("held")
    held.set(hidden)

    def program(x: torch.Tensor) -> torch.Tensor:
        return held.get()(x) + _helper(x - 1)

    traced = smelt.trace(program, (_X,))
    assert "if" in {node.op for node in traced.graph.walk()} and refused_scans
    for x in (_X, -_X, _X * 10, _X * 0.1):
        torch.testing.assert_close(traced(x), program(x))


def test_full_collections_wait_and_thresholds_are_as_before() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), full_collections_later(), full_collections_later():
        young, middle, full = gc.get_threshold()
        assert before[0] < young < 200 * before[0] and middle == before[1] and full > 10**6
        raise KeyError
    assert gc.get_threshold() == before
    gc.set_threshold(0)
    with full_collections_later():
        assert gc.get_threshold()[0] == 0  # switched off by the user
    gc.set_threshold(*before)
    with full_collections_later():
        gc.set_threshold(600, 11, 12)
    found = gc.get_threshold()
    gc.set_threshold(*before)
    assert found == (600, 11, 12)


@pytest.fixture
def whole_heap() -> Iterator[None]:
    """The collector knows of all that the process holds, as in a user's: of little it would look at all more often."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("whole_heap")
def test_no_full_collection_falls_into_a_first_call() -> None:
    generations: list[int] = []

    def told(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(8)))
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(2, 1, 1)
    gc.callbacks.append(told)
    try:
        with torch.no_grad():
            expected = model(_X)
            generations.clear()
            smelt.trace(model, (_X,))
            traced = list(generations)
            generations.clear()
            found = smelt.compile(model)(_X)
            compiled = list(generations)
    finally:
        gc.callbacks.remove(told)
        gc.set_threshold(*before)
    torch.testing.assert_close(found, expected)
    assert 2 not in traced and 2 not in compiled and 0 in traced and 0 in compiled


_NAMED, _OTHER = (logging.getLogger(f"tests.capture.{name}") for name in ("named", "other"))


def _logs(x: torch.Tensor) -> torch.Tensor:
    _NAMED.debug("x")
    return x


def test_loggers_that_a_program_does_not_name_are_not_looked_through() -> None:
    for logger in (_NAMED, _OTHER):
        logger.bias = torch.ones(3)  # type: ignore[attr-defined]
    found = reachable(_logs).entries
    assert id(_NAMED.bias) in found and id(_OTHER.bias) not in found  # type: ignore[attr-defined]


def test_a_plain_program_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    linear = torch.nn.Linear.forward

    def counted(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        runs.append("linear")
        return linear(self, x)

    class Counted(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(Counted(3, 3), torch.nn.GELU())
    monkeypatch.setattr(torch.nn.Linear, "forward", counted)
    for capture in (
        lambda: smelt.trace(model, (_X,), check=False),
        lambda: smelt.compile(model)(_X),
        lambda: list(smelt.schedule(model, example_inputs=(_X,)).find(lambda x: torch.nn.functional.gelu(x))),
    ):
        runs.clear()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it notes its runs is an effect
            capture()
        assert runs == ["linear"]


def test_the_recorders_own_calls_are_no_events_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    profile = reads._Recorder.profile

    def counted(self: Any, frame: types.FrameType, event: str, arg: Any) -> bool:
        if event == "call":
            seen[frame.f_code.co_qualname] += 1
        profile(self, frame, event, arg)
        return False  # show it each time

    monkeypatch.setattr(reads._Recorder, "profile", counted)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    with torch.no_grad():
        smelt.compile(model)(_X)
    assert seen["Linear.forward"] == 1 and seen["Recorder.record"] >= 2
    assert not any(seen[f"Recorder.{name}"] for name in ("_note", "_define", "_family", "_encode"))


def test_what_a_recording_does_beside_the_run_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = reads._Recorder.profile
    seen: Counter[str] = Counter()

    def counted(self: Any, frame: types.FrameType, event: str, arg: Any) -> bool:
        seen[frame.f_code.co_qualname.partition(".")[0]] += 1
        return profile(self, frame, event, arg)

    monkeypatch.setattr(reads._Recorder, "profile", counted)
    layer = torch.nn.Linear(4, 4)
    with torch.no_grad(), reads.record_reads({"layer": layer}, (torch.ones(2, 4),), {}):
        got = captured.capture(layer, (torch.ones(2, 4),))
    assert got.graph is not None
    assert seen["Linear"] > 0  # the run itself is
    assert not seen.keys() & {"_Walk", "GraphBuilder", "Builder"}


def test_what_torchs_own_call_of_a_module_reads_is_one_fact() -> None:
    class Layer(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).relu()

    model = torch.nn.Sequential(Layer(3, 3), Layer(3, 3))
    compiled = smelt.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(_X), model(_X))
        (row,) = compiled.stats().rows
        reads = [test.read for test in row.guards.facts.tests]
        assert [read.owner for read in reads if read.kind == "module"] == [model, *model]
        assert not any(read.key in reads_values.CALL_HOOKS for read in reads if read.kind in ("item", "absent"))
        model[1].register_forward_hook(lambda module, args, result: result - 1)
        torch.testing.assert_close(compiled(_X), model(_X))


def test_parameters_and_children_are_found_without_torchs_own_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)
            self.register_buffer("shift", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + self.shift + (1 if hasattr(self, "more") else 2)

    looked: list[str] = []
    lookup = torch.nn.Module.__getattr__

    def counted(self: torch.nn.Module, name: str) -> Any:
        looked.append(name)
        return lookup(self, name)

    monkeypatch.setattr(torch.nn.Module, "__getattr__", counted)
    monkeypatch.setattr(reads_patch, "_GETATTR", counted)
    model = Layer()
    compiled = smelt.compile(model)
    with torch.no_grad():
        expected = model(_X)
        assert {"inner", "weight", "shift", "more"} <= {*looked}
        looked.clear()
        torch.testing.assert_close(compiled(_X), expected)
        assert {*looked} <= {"more"}  # which is not there: torch's own error is raised
        monkeypatch.setattr(reads_patch, "_GETATTR", lookup)  # as another lookup, which may give anything
        model.more = torch.nn.Identity()
        looked.clear()
        torch.testing.assert_close(compiled(_X), expected - 1)
        assert "inner" in looked
        model.inner = torch.nn.Linear(3, 3)
        torch.testing.assert_close(compiled(_X), model(_X))


def test_analyses_are_kept_until_the_next_edit() -> None:
    graph = smelt.trace(lambda x: (x + 1).relu() * 2, (_X,)).graph.clone()
    context = PassContext()
    rewriter = context.rewriter(graph)
    aliases, depends = context.aliases(graph), context.dependence(graph)
    assert context.aliases(graph) is aliases and context.dependence(graph) is depends
    assert context.aliases(graph.clone()) is not aliases
    aliases = context.aliases(graph)
    node = next(n for n in graph.walk() if n.op == "aten.relu.default")
    rewriter.replace_node(node, (node.args[0],))
    assert context.aliases(graph) is not aliases and context.dependence(graph) is not depends
    assert node.results[0] not in context.aliases(graph).roots


def _until(x: torch.Tensor) -> torch.Tensor:
    n = 0
    while n < 200 and x[0, 0] < 9:
        x, n = x * 1.5 - 0.5, n + 1
    return x


def test_a_place_that_runs_many_times_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[object] = Counter()

    def counted(site: Site) -> Span:
        asked[site] += 1
        return found(site)

    found = Site.span.fget
    assert found is not None
    monkeypatch.setattr(Site, "span", property(counted))
    with torch.no_grad():
        smelt.compile(_until)(torch.zeros(1, 1))
    assert asked and max(asked.values()) < 50


def _while_far(x: torch.Tensor) -> torch.Tensor:
    far, n = x.abs().sum() < 9, 0
    while n < 200 and far:
        x, n = x * 0.5 + 0.5, n + 1
    return x


def test_what_made_a_tensor_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sought: Counter[int] = Counter()

    def counted(recorder: Recorder, slot: Slot) -> object:
        sought[id(slot)] += 1
        return found(recorder, slot)

    found = Recorder.maker_of
    monkeypatch.setattr(Recorder, "maker_of", counted)
    with torch.no_grad():
        smelt.compile(_while_far)(torch.ones(2))
    assert sought and max(sought.values()) < 50
