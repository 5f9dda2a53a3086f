"""A traced program asks its modules as Python does: the instance first, then the class, then the registries."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt


def _t(value: float) -> Tensor:
    return torch.full((3,), value)


class Part(nn.Module):
    """A part of a model."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(_t(value))
        self.register_buffer("buffer", _t(value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.buffer


class Model(nn.Module):
    """A model with a part, a part in a list, and tensors of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.listed = Part(2.0), [Part(3.0)]
        self.bias, self.plain = nn.Parameter(_t(1.0)), _t(0.25)
        self.register_buffer("buffer", _t(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.listed[0](self.part(x)) + self.bias + self.buffer + self.plain


class Other(Model):
    """Another model of the same members."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 100


class OtherPart(Part):
    """Another part of the same members."""

    def forward(self, x: Tensor) -> Tensor:
        return x - 1


def _again(model: Any, name: str, value: Any) -> None:
    delattr(model, name)
    setattr(model, name, value)


def _buffer_of_plain(model: Any) -> None:
    del model.plain
    model.register_buffer("plain", _t(3.0))


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "a part beside its registry": lambda m: object.__setattr__(m, "part", Part(50.0)),
    "a parameter beside its registry": lambda m: m.__dict__.__setitem__("bias", _t(30.0)),
    "a buffer beside its registry": lambda m: m.__dict__.__setitem__("buffer", _t(30.0)),
    "a member of a part": lambda m: m.part.__dict__.__setitem__("weight", _t(30.0)),
    "forward of a part": lambda m: setattr(m.part, "forward", lambda x: x * 7),
    "forward": lambda m: setattr(m, "forward", lambda x: x * 7),
    "forward as a method": lambda m: m.__dict__.__setitem__("forward", types.MethodType(lambda self, x: x - 3, m)),
    "forward of a part in a list": lambda m: setattr(m.listed[0], "forward", lambda x: x * 7),
    "what calls forward": lambda m: setattr(m.part, "_call_impl", lambda x: x - 9),
    "a buffer that becomes a tensor": lambda m: _again(m, "buffer", _t(9.0)),
    "a parameter that becomes a tensor": lambda m: _again(m, "bias", _t(9.0)),
    "a tensor that becomes a buffer": _buffer_of_plain,
    "a tensor that becomes a parameter": lambda m: _again(m, "plain", nn.Parameter(_t(3.0))),
    "another registry": lambda m: m.__dict__.__setitem__("_buffers", {"buffer": _t(44.0)}),
    "another list": lambda m: setattr(m, "listed", [Part(20.0)]),
    "an item of the list": lambda m: m.listed.__setitem__(0, Part(20.0)),
    "another class": lambda m: setattr(m, "__class__", Other),
    "another class of a part": lambda m: setattr(m.part, "__class__", OtherPart),
    "another part": lambda m: setattr(m, "part", Part(9.0)),
}


@pytest.mark.spread(10)
@pytest.mark.parametrize("by", ["trace", "trace of a function", "compile"])
@pytest.mark.parametrize("change", _CHANGES)
def test_a_change_is_seen(change: str, by: str) -> None:
    model, x = Model(), _t(1.0)
    program: Any = model if by != "trace of a function" else lambda x: model(x) + 0
    with torch.no_grad():
        run = smelt.compile(program) if by == "compile" else smelt.trace(program, (x,))
        assert torch.equal(run(x), program(x))
        _CHANGES[change](model)
        for i in range(2):
            assert torch.equal(run(x + i), program(x + i))


def test_a_change_of_the_class_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Model(), _t(1.0)
    with torch.no_grad():
        traced = smelt.trace(model, (x,))
        monkeypatch.setattr(Part, "forward", lambda self, x: x - 5)
        assert torch.equal(traced(x), model(x))
        monkeypatch.setattr(Model, "buffer", property(lambda self: _t(77.0)), raising=False)
        assert torch.equal(traced(x), model(x))


def test_nothing_is_captured_anew_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Model(), _t(1.0)
    with torch.no_grad():
        traced = smelt.trace(model, (x,))
        traced(x.double())  # of another type: a second capture, beside the first
        model.note = 1
        captured: list[int] = []
        monkeypatch.setattr(traced, "_capture", lambda *_: captured.append(1))
        for _ in range(2):
            assert torch.equal(traced(x), model(x))
            traced(x.double())
        assert not captured


def test_a_buffer_that_is_gone() -> None:
    model = Model()
    traced = smelt.trace(model, (_t(1.0),))
    del model.buffer
    with torch.no_grad(), pytest.raises(smelt.CaptureError, match=r"S0107.*buffer holds no tensor(.|\n)*was deleted"):
        traced(_t(1.0))
