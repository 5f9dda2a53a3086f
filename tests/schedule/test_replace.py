"""Replacing parts of a graph: what stays, and what is refused."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.capture.structure.roots import reachable
from smelt.pattern import call_module

from .models import LinearNorm, edited_ops, linear_norm
from .seed_attention import Attention

# --- what is not touched is eager, bit for bit


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        y = F.relu_(self.bn(self.conv(x)))
        y = self.drop(y).mean((2, 3))
        return {"out": torch.tanh(self.head(y)), "pooled": y}


def _taken(model, x):
    s = smelt.schedule(model, x)
    return s.replace(lambda x: torch.tanh(x), s.find(lambda x: torch.tanh(x))[0]).build()


@pytest.mark.parametrize("training", [False, True])
def test_an_untouched_part_is_bitwise_eager_with_gradients_and_buffers(training):
    model, x = _Net().train(training), torch.randn(2, 3, 8, 8)
    built = _taken(model, x)
    expected_model = copy.deepcopy(model)
    for _ in range(2):
        left, right = x.clone().requires_grad_(), x.clone().requires_grad_()
        torch.manual_seed(1)
        expected = expected_model(left)
        torch.manual_seed(1)
        found = built(right)
        assert list(found) == ["out", "pooled"]
        for name in found:
            assert torch.equal(found[name], expected[name]), name
        expected["out"].sum().backward()
        found["out"].sum().backward()
        assert torch.equal(left.grad, right.grad)
        for (name, a), b in zip(expected_model.named_parameters(), built.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad), name
        for (name, a), b in zip(expected_model.state_dict().items(), built.state_dict().values(), strict=True):
            assert torch.equal(a, b), name


def test_what_is_kept_of_captures_is_not_what_the_program_reaches():
    model, x = _Net().eval(), torch.randn(2, 3, 8, 8)
    built = _taken(model, x)
    before = reachable(built)
    built(x)
    built(x[:1])
    after = reachable(built)
    assert [function.__qualname__ for function in after.functions] == [f.__qualname__ for f in before.functions]
    assert list(after.modules.values()) == list(before.modules.values())
    assert {entry.path for entry in after} == {entry.path for entry in before}


def test_other_sizes_dtypes_modes_and_attributes_are_captured_anew():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.drop = 2.0, nn.Dropout(0.5)

        def forward(self, x, flip=False):
            y = self.drop(torch.sin(x) * self.scale)
            return -y if flip else y

    model = Scaled().eval()
    s = smelt.schedule(model, torch.randn(4))
    built = s.replace(torch.cos, s.find(lambda x: torch.sin(x))[0]).build()
    for x in (torch.randn(4), torch.randn(2, 3), torch.randn(4, dtype=torch.float64)):
        assert torch.equal(built(x), torch.cos(x) * 2.0)
        assert torch.equal(built(x, flip=True), -(torch.cos(x) * 2.0))
    built.scale = 3.0
    x = torch.randn(4)
    assert torch.equal(built(x), torch.cos(x) * 3.0)
    built.train()
    torch.manual_seed(0)
    found = built(x)
    torch.manual_seed(0)
    assert torch.equal(found, F.dropout(torch.cos(x) * 3.0))


def test_what_is_built_can_be_compiled_traced_copied_and_pickled():
    import pickle

    model, x = _Net().eval(), torch.randn(2, 3, 8, 8)
    s = smelt.schedule(model, x)
    built = s.replace(torch.sigmoid, s.find(lambda x: torch.tanh(x))[0]).build()
    with torch.no_grad():
        expected = built(x)["out"]
        assert torch.equal(expected, torch.sigmoid(model.head(model(x)["pooled"])))
        assert torch.equal(copy.deepcopy(built)(x)["out"], expected)
        torch.testing.assert_close(smelt.compile(s.build())(x)["out"], expected)
        traced = smelt.trace(s.build(), (x,))
        torch.testing.assert_close(traced(x)["out"], expected)
    assert "aten.sigmoid.default" in [node.op for node in traced.graph.walk()]
    del pickle


# --- bad input


def test_another_dtype_or_size_is_refused():
    x = torch.randn(4, 4)
    s = smelt.schedule(nn.Sequential(nn.ReLU()), x)
    (match,) = s.find(lambda x: F.relu(x))
    for wrong in (lambda x: x.double(), lambda x: x[:2], lambda x: (x, x), lambda x: 3, lambda x: x @ x[:, :3].T):
        with pytest.raises(smelt.ScheduleError) as caught:
            s.replace(wrong, match)
        assert caught.value.code == "S0608"
    assert not s.log


def test_overlapping_matches_are_refused():
    class Chain(nn.Module):
        def forward(self, x):
            return torch.sin(torch.sin(torch.sin(x)))

    s = smelt.schedule(Chain(), torch.randn(4))
    found = s.find(lambda x: torch.sin(torch.sin(x)))
    with pytest.raises(smelt.ScheduleError) as caught:
        s.replace(lambda x: x, found)
    assert caught.value.code == "S0609" and "overlap" in caught.value.what


def test_a_value_that_escapes_is_refused_before_any_edit():
    class Model(nn.Module):
        def forward(self, x):
            y = torch.sin(x)
            return torch.cos(y) + y

    s = smelt.schedule(Model(), torch.randn(4))
    (match,) = s.find(lambda x: torch.cos(torch.sin(x)), escaping=True)
    with pytest.raises(smelt.ScheduleError) as caught:
        s.replace(lambda x: x, match)
    assert caught.value.code == "S0609" and "used outside" in caught.value.what


def test_what_lies_between_the_nodes_is_refused():
    class Model(nn.Module):
        def forward(self, x):
            y = torch.sin(x)
            return y * torch.exp(y)

    def pattern(x, z):
        y = torch.sin(x)
        return y * z, y

    s = smelt.schedule(Model(), torch.randn(4))
    for match in s.find(pattern, escaping=True):
        with pytest.raises(smelt.ScheduleError) as caught:
            s.replace(lambda x, z: (x, x), match)
        assert caught.value.code == "S0609"


def test_a_hook_inside_is_refused_and_names_the_module():
    model = LinearNorm().eval()
    model.fc.register_forward_hook(lambda module, args, result: None)
    s = smelt.schedule(model, torch.randn(4, 8))
    with pytest.raises(smelt.ScheduleError) as caught:
        s.replace(nn.Identity(), s.find(linear_norm)[0])
    assert caught.value.code == "S0610" and "fc (Linear)" in caught.value.what
    assert caught.value.where is not None and caught.value.where.function == "LinearNorm.forward"


def test_what_a_replacement_reads_is_asked_for_at_each_call():
    class Config:
        scale = 2.0

    x, shift = torch.randn(4), torch.ones(4)

    def scaled(x):
        return F.relu(x) * Config.scale + shift

    s = smelt.schedule(nn.Sequential(nn.ReLU()), x)
    built = s.replace(scaled, s.find(lambda x: F.relu(x))[0]).build()
    compiled = smelt.compile(s.build())
    for scale in (2.0, 3.0):
        Config.scale = scale
        shift.add_(1)
        assert torch.equal(built(x), F.relu(x) * scale + shift)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), F.relu(x) * scale + shift)


def test_a_model_that_cannot_run_takes_steps_too():
    class QKV(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(1024, 3072)

        def forward(self, x):
            y = self.proj(x).view(x.shape[0], x.shape[1], 3, 16, 64).permute(2, 0, 3, 1, 4)
            return y[0], y[1], y[2]

    def heads(x):
        x = call_module(r"[qkv]_proj", x)
        x = x.view(x.shape[:-1] + (16, -1))  # noqa: RUF005
        return x.permute(0, 2, 1, 3)

    s = smelt.schedule(Attention())
    s.replace(QKV(), s.find(heads))
    assert type(s["self_attn.QKV_0"].module) is QKV
    assert edited_ops(s, "self_attn").count("linear") == 0
    assert "self_attn.QKV_0.proj.weight" in s.build().state_dict()
