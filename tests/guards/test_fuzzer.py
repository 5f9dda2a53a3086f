"""The mutation fuzzer over small programs and tiny models: no call may give an answer from before a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.compiler.object.compiled import dispatcher_of
from tests.guards.fuzz import Subject, fuzz
from tests.guards.fuzz_programs import subjects

_SUBJECTS = {subject.name: subject for subject in subjects()}
_COMPILING_ANEW = ("with_config", "with_inheritance", "closures", "Hooked_5", "method", "Stateful")
_MODELS = {"bert": 83, "gpt2": 97, "llama": 89, "vit": 101, "t5": 151}  # each so-manieth place in `make test`


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_FUZZ_GAIN", "2")


@pytest.mark.spread(14)
@pytest.mark.parametrize("name", _SUBJECTS)
def test_every_change_is_seen(name: str) -> None:
    report = fuzz(_SUBJECTS[name])
    assert not report.uncompiled
    assert not report.stale
    assert report.mattered.total() >= 1
    assert len(report.fleeting) <= 2


def test_the_programs_read_all_kinds_of_places() -> None:
    """Changes of each kind make a difference in some program: else the test above would show nothing of them."""
    seen: Counter[str] = Counter()
    anew = {subject.name: subject for subject in subjects()}
    for name in (
        "with_helper_defaults",
        "with_partial",
        "with_environment",
        "closures",
        "with_isinstance",
        "Hooked_5",
        "Block_1",
    ):
        seen += fuzz(anew[name]).mattered
    kinds = {"attribute", "cell", "class", "default", "entry", "environment", "global", "hook", "modules", "parameters"}
    assert kinds | {"buffers", "class of", "code", "mode", "setting", "shadow", "tensor"} <= set(seen)


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", _COMPILING_ANEW)
def test_entries_made_meanwhile_are_right(name: str) -> None:
    report = fuzz(_SUBJECTS[name], every=4, again=True)
    assert not report.stale


@pytest.mark.nightly
@pytest.mark.parametrize("name", _SUBJECTS)
def test_entries_made_meanwhile_are_right_everywhere(name: str) -> None:
    report = fuzz(_SUBJECTS[name], again=True)
    assert not report.stale


def _model(name: str) -> Subject:
    pytest.importorskip("transformers")
    from tests.zoo.build import build

    sample = build(name)
    return Subject(name, sample.model, (), sample.other(0, 0))


@pytest.mark.spread(5)
@pytest.mark.parametrize("name", _MODELS)
def test_models(name: str) -> None:
    report = fuzz(_model(name), every=_MODELS[name], start=5)
    assert not report.uncompiled
    assert not report.stale
    assert report.mattered.total() >= 1
    assert len(report.fleeting) <= 2


@pytest.mark.nightly
@pytest.mark.parametrize("name", _MODELS)
def test_models_everywhere(name: str) -> None:
    report = fuzz(_model(name))
    assert not report.uncompiled
    assert not report.stale


# ---------------------------------------------------------------- what it found


class _Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.register_buffer("shift", torch.tensor([1.0, 0.0, 1.0, 0.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.shift


@pytest.mark.spread(6)
@pytest.mark.parametrize("which", ["scale", "shift"])
@pytest.mark.parametrize(
    "data",
    [
        torch.arange(4, dtype=torch.float64),
        torch.arange(4, dtype=torch.bfloat16),
        torch.arange(8.0)[::2],
        torch.arange(8.0)[1::2],
        torch.tensor([7.0]),
        torch.arange(12.0).reshape(3, 4),
        torch.tensor([5.0, 6.0]).repeat_interleave(2).expand(2, 3, 4),
    ],
    ids=["double", "bf16", "strided", "offset", "one", "rank", "expanded"],
)
def test_data_of_another_layout(which: str, data: torch.Tensor) -> None:
    module, x = _Plain(), torch.randn(3, 4)
    compiled = smelt.compile(module)
    with torch.no_grad():
        for _ in range(4):
            compiled(x)
        before = getattr(module, which).data
        getattr(module, which).data = data
        for _ in range(4):
            _same(compiled(x), module(x))
        getattr(module, which).data = before
        _same(compiled(x), module(x))
    assert not dispatcher_of(compiled).stats().fallbacks


def test_a_model_made_half_by_itself() -> None:
    """`module.half()` writes into the parameters that there are; no argument tells that anything happened."""
    module = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.LayerNorm(4)).eval()
    compiled, ids = smelt.compile(module), torch.tensor([[0, 1], [4, 2]])
    with torch.no_grad():
        for _ in range(4):
            compiled(ids)
        for change in (module.double, module.bfloat16, module.float):
            change()
            for _ in range(3):
                _same(compiled(ids), module(ids))


def test_tensors_in_lists_and_tuples_keep_their_layout() -> None:
    parts = [torch.ones(4), torch.full((4,), 2.0)]
    held = (torch.full((4,), 3.0),)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * parts[0] + parts[1] * held[0]

    compiled, x = smelt.compile(program), torch.randn(3, 4)
    for tensor in (*parts, *held):
        for _ in range(4):
            compiled(x)
        tensor.data = torch.arange(4, dtype=torch.float64)
        for _ in range(3):
            _same(compiled(x), program(x))


def test_keyword_defaults_changed_in_their_dict() -> None:
    def program(x: torch.Tensor, *, gain: float = 2.0) -> torch.Tensor:
        return x * gain

    compiled, x = smelt.compile(program), torch.randn(3, 4)
    for _ in range(4):
        compiled(x)
    assert program.__kwdefaults__ is not None
    program.__kwdefaults__["gain"] = 5.0
    _same(compiled(x), x * 5)


def test_the_class_of_an_object_in_a_global() -> None:
    class A:
        pass

    class B:
        pass

    thing = A()
    compiled, x = smelt.compile(lambda x: x * 2 if type(thing) is A else x * 3), torch.randn(4)
    for _ in range(4):
        _same(compiled(x), x * 2)
    thing.__class__ = B  # type: ignore[assignment]
    _same(compiled(x), x * 3)


def test_an_object_that_cannot_be_shown() -> None:
    class Setting:
        def __init__(self, gain: float) -> None:
            self.gain = gain

        def __repr__(self) -> str:
            raise KeyError("half made")

    held = {"setting": Setting(2.0)}
    compiled, x = smelt.compile(lambda x: x * held["setting"].gain), torch.randn(4)
    for _ in range(4):
        _same(compiled(x), x * 2)
    held["setting"] = Setting(3.0)
    _same(compiled(x), x * 3)
    assert dispatcher_of(compiled).stats().guard_failures


def _decorated(function: Any) -> Any:
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class _Parent(torch.nn.Module):
    @_decorated
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class _Child(_Parent):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


def test_a_decorated_method_called_through_super(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = _Child(), torch.randn(4)
    compiled = smelt.compile(module)
    for _ in range(4):
        _same(compiled(x), x * 2 + 1)
    monkeypatch.setattr(_Parent, "forward", lambda self, x: x * 5)
    _same(compiled(x), x * 5 + 1)


def test_a_decorated_special_method(monkeypatch: pytest.MonkeyPatch) -> None:
    class Table:
        @_decorated
        def __getitem__(self, index: int) -> float:
            return index + 1.0

    table = Table()
    compiled, x = smelt.compile(lambda x: x * table[1]), torch.randn(4)
    for _ in range(4):
        _same(compiled(x), x * 2)
    monkeypatch.setattr(Table, "__getitem__", lambda self, index: 7.0)
    _same(compiled(x), x * 7)


def test_a_truth_that_comes_to_a_class_later() -> None:
    class Thing:
        pass

    thing = Thing()
    compiled, x = smelt.compile(lambda x: x * 2 if thing else x * 3), torch.randn(4)
    for _ in range(4):
        _same(compiled(x), x * 2)
    Thing.__bool__ = lambda self: False  # type: ignore[attr-defined]
    _same(compiled(x), x * 3)


def _same(found: Any, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    torch.testing.assert_close(found, expected)
