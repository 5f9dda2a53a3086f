"""Schedules as text: written, read, applied to other models."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.pattern import call_module


class _Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.b(F.gelu(self.act(self.a(x)) + x))


class _Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = nn.ModuleList([_Layer() for _ in range(n)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class _Scale(nn.Module):
    def __init__(self, inner, by):
        super().__init__()
        self.inner, self.by = inner, by

    def forward(self, x):
        return self.inner(x) * self.by


def _expected(model, x, weight):
    for layer in model.layers:
        x = layer.b(F.gelu(torch.tanh(F.linear(x, weight)) + x) * 2.0)
    return x


def _scheduled(n, x):
    s = smelt.schedule(_Model(n), x)
    layers = s["layers.*"]
    layers.replace(lambda x, k=2.0: F.gelu(x) * k, layers.find(lambda y: F.gelu(y)))
    s["layers.*.act"].replace(torch.tanh)
    s["layers.*.a"].replace(nn.Linear(4, 4, bias=False))
    return s


@pytest.mark.nightly
def test_a_schedule_for_2_layers_applies_to_24():
    x = torch.randn(2, 4)
    s = _scheduled(2, x)
    assert [step.path for step in s.log] == ["layers.*", "layers.*.act", "layers.*.a"]
    model = _Model(24)
    again = smelt.apply(s.to_json(), model, x)
    assert len(again.log) == 3
    weight = s.build().layers[0].a.weight
    assert torch.equal(again.build()(x), _expected(model, x, weight))


def test_what_is_applied_writes_the_same_text():
    x = torch.randn(2, 4)
    text = _scheduled(2, x).to_json()
    assert smelt.apply(text, _Model(3), x).to_json() == text


def test_a_replacement_that_holds_a_module_of_the_model_names_its_place():
    x, model = torch.randn(2, 4), _Model(2)
    s = smelt.schedule(model, x)
    s["layers.0.a"].replace(_Scale(s["layers.0.a"].module, 3.0))
    text = s.to_json()
    assert json.loads(text)["steps"][0]["arguments"]["new"]["modules"]["inner"] == {"module_at": "layers.0.a"}
    other = _Model(2)
    built = smelt.apply(text, other).build()
    assert torch.equal(built.layers[0].a(x), other.layers[0].a(x) * 3.0)
    assert torch.equal(built.layers[0].a.inner.weight, other.layers[0].a.weight)


def test_a_horizontal_replacement_by_a_module_with_weights():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.fc1(x) * self.fc2(x)

    x, model = torch.randn(2, 4), Branches()
    s = smelt.schedule(model, x)
    s.replace(_Two(), s.find(lambda x: call_module(r"fc\d", x)))
    found = smelt.apply(s.to_json(), model, x).build()
    assert torch.equal(found(x), s.build()(x)) and "_Two_0.weight" in found.state_dict()


class _Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))

    def forward(self, x):
        return tuple(F.linear(x, self.weight).chunk(2, -1))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"smelt_schedule": 99, "steps": []}', '{"smelt_schedule": 1, "steps": [{"path": "a"}]}',
     '{"smelt_schedule": 1, "steps": [{"path": "", "primitive": "replace", "arguments": {"new": {"type": "os:no"}}}]}',
     '{"smelt_schedule": 1, "steps": [{"path": "", "primitive": "replace", "arguments": {"new": {"odd": 1}}}]}'],
)  # fmt: skip
def test_a_text_of_another_version_or_of_something_else_is_refused(text):
    with pytest.raises(smelt.ScheduleError) as caught:
        smelt.apply(text, _Model(1))
    assert caught.value.code == "S0611"


def test_a_text_for_another_model_is_refused_and_names_the_step():
    x = torch.randn(2, 4)
    text = _scheduled(2, x).to_json()
    with pytest.raises(smelt.ScheduleError) as caught:
        smelt.apply(text, nn.Sequential(nn.Linear(4, 4)), x)
    assert caught.value.code == "S0601" and "step 1" in caught.value.notes[0]

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4))])

        def forward(self, x):
            return self.layers[0](x)

    with pytest.raises(smelt.ScheduleError) as caught:
        smelt.apply(text, Other(), x)
    assert caught.value.code == "S0613"


def test_what_cannot_be_written_says_which_step_and_why():
    weight = torch.randn(4)
    x = torch.randn(2, 4)
    s = smelt.schedule(_Model(1), x)
    s.replace(lambda x: F.gelu(x) * weight, s.find(lambda y: F.gelu(y))[0])
    with pytest.raises(smelt.ScheduleError) as caught:
        s.to_json()
    assert caught.value.code == "S0611" and "outside" in caught.value.why
    assert s.build()(x).shape == x.shape
    s.undo()
    s.replace(F.relu, s.find(where=lambda node: node.op == "aten.gelu.default")[0])
    with pytest.raises(smelt.ScheduleError) as caught:
        s.to_json()
    assert "predicate" in caught.value.what
