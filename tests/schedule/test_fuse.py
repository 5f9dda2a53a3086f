"""Fused regions and merged layers: answers, gradients, weights, what is refused and what is taken back."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.pattern import call_module
from smelt.scheduling.comparing import measuring

pytestmark = pytest.mark.usefixtures("faster")


class _Output(nn.Module):
    def __init__(self, drop=0.3):
        super().__init__()
        self.fc, self.drop, self.norm = nn.Linear(16, 16), nn.Dropout(drop), nn.LayerNorm(16)

    def forward(self, x):
        y = F.linear(x, self.fc.weight) + self.fc.bias
        return self.norm(self.drop(y) + x)


def _tail(y, bias, x, weight, norm_bias):
    return F.layer_norm(F.dropout(y + bias, 0.3) + x, (16,), weight, norm_bias)


def _eval_tail(y, bias, x, weight, norm_bias):
    return F.layer_norm(F.dropout(y + bias, 0.3, False) + x, (16,), weight, norm_bias)


def _grads(model, x):
    x = x.clone().requires_grad_()
    torch.manual_seed(5)
    result = model(x)
    result.square().sum().backward()
    return [result.detach(), x.grad, *(p.grad for p in model.parameters())]


def test_a_fused_region_runs_natively_without_gradients_and_sees_new_weights():
    model, x = _Output().eval(), torch.randn(4, 16)
    s = smelt.schedule(model, x)
    built = s.fuse(s.find(_eval_tail)[0]).build()
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(built(x), model(x))
            for module in (built, model):
                module.norm.weight.mul_(2)
                module.fc.bias.add_(1)
        built.load_state_dict(_Output().state_dict())
        reference = _Output().eval()
        reference.load_state_dict(built.state_dict())
        torch.testing.assert_close(built(x), reference(x))
        double = built.double()
        torch.testing.assert_close(double(x.double()), reference.double()(x.double()))


def test_a_fused_region_inside_a_compiled_whole():
    model, x = _Output().eval(), torch.randn(4, 16)
    s = smelt.schedule(model, x)
    built = smelt.compile(s.fuse(s.find(_eval_tail)[0]).build())
    with torch.no_grad():
        torch.testing.assert_close(built(x), model(x))
        assert not built.stats().fallbacks


def test_what_measures_slower_is_not_taken_unless_it_is_to_be_kept(monkeypatch):
    monkeypatch.setattr(measuring, "seconds", lambda ways: [1.0, 2.0])
    model, x = _Output().eval(), torch.randn(4, 16)
    s = smelt.schedule(model, x)
    (match,) = s.find(_eval_tail)
    with pytest.warns(smelt.SmeltWarning, match="slower, and so not applied"):
        s.fuse(match)
    assert not s.log and not s.reports
    s.fuse(match, keep=True)
    assert len(s.log) == 1


def test_measuring_takes_turns_and_leaves_random_numbers():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    times = measuring_seconds([lambda: torch.rand(2), lambda: torch.rand(3)])
    assert len(times) == 2 and all(t > 0 for t in times) and torch.equal(torch.rand(1), expected)


measuring_seconds = measuring.seconds


# --- several linear layers as one


class _Attention(nn.Module):
    def __init__(self, key_bias=True):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8, bias=key_bias), nn.Linear(8, 4)
        self.out = nn.Linear(4, 8)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k = (t.view(t.shape[0], t.shape[1], 2, 4).transpose(1, 2) for t in (q, k))
        v = v.view(v.shape[0], v.shape[1], 2, 2).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(x.shape[0], x.shape[1], 4))


def _projection(x):
    return call_module("[qkv]", x)


@pytest.mark.parametrize("key_bias", [True, False])
def test_q_k_v_become_one_linear_with_the_keys_as_before(key_bias):
    model, x = _Attention(key_bias), torch.randn(2, 3, 8)
    s = smelt.schedule(model, x)
    s.fuse_horizontal(s.find(_projection), name="qkv")
    built = s.build()
    assert list(built.state_dict()) == list(model.state_dict())
    ops = [node.op for node in s._state.scope("").edited.graph.walk()]
    assert ops.count("aten.linear.default") == 1 and "smelt_step.call.default" in ops
    with torch.no_grad():
        torch.testing.assert_close(built(x), model(x))
    for found, expected in zip(_grads(built, x), _grads(model, x), strict=True):
        torch.testing.assert_close(found, expected)


def test_merged_layers_train_and_take_other_checkpoints():
    model, x = _Attention(), torch.randn(2, 3, 8)
    s = smelt.schedule(model, x)
    built = s.fuse_horizontal(s.find(_projection)).build()
    reference = copy.deepcopy(model)
    for module in (built, reference):
        optimizer = torch.optim.SGD(module.parameters(), 1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
    with torch.no_grad():
        torch.testing.assert_close(built(x), reference(x))
        other = _Attention()
        built.load_state_dict(other.state_dict())
        torch.testing.assert_close(built(x), other(x))
        built.load_state_dict(model.state_dict(), assign=True)
        torch.testing.assert_close(built(x), model(x))
        built.q.weight.data.mul_(2)
        model_again = copy.deepcopy(model)
        model_again.q.weight.data.copy_(built.q.weight)
        torch.testing.assert_close(built(x), model_again(x))
        torch.testing.assert_close(smelt.compile(s.build())(x), model(x))


def test_layers_of_different_inputs_are_not_merged():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x, y):
            return self.q(x) + self.k(y)

    s = smelt.schedule(Cross(), (torch.randn(2, 8), torch.randn(2, 8)))
    with pytest.raises(smelt.ScheduleError) as caught:
        s.fuse_horizontal(s.find(_projection))
    assert caught.value.code == "S0609" and "different inputs" in caught.value.why and not s.log


def test_a_layer_of_what_another_one_gives_is_not_merged_with_it():
    s = smelt.schedule(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(2, 8))
    with pytest.raises(smelt.ScheduleError) as caught:
        s.fuse_horizontal(s.find(nn.Linear))
    assert "different inputs" in caught.value.why and not s.log


def test_a_hook_on_a_merged_layer_is_refused():
    model = _Attention()
    model.k.register_forward_hook(lambda module, args, result: None)
    s = smelt.schedule(model, torch.randn(2, 3, 8))
    with pytest.raises(smelt.ScheduleError) as caught:
        s.fuse_horizontal(s.find(_projection))
    assert caught.value.code == "S0610"


def test_what_follows_each_of_the_merged_layers_moves_behind_them():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            q = torch.sin(self.q(x)).view(-1, 2, 4).transpose(1, 2)
            k = torch.cos(self.k(x)).view(-1, 2, 4).transpose(1, 2)
            return q * k + self.v(x).view(-1, 2, 4).transpose(1, 2)

    model, x = Model(), torch.randn(3, 8)
    s = smelt.schedule(model, x)
    built = s.fuse_horizontal(s.find(_projection)).build()
    torch.testing.assert_close(built(x), model(x))


def test_equal_regions_of_a_step_are_measured_once(monkeypatch):
    asked = []
    monkeypatch.setattr(measuring, "seconds", lambda ways: asked.append(len(ways)) or [2.0, 1.0])
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, 8)) for width in (8, 8, 16)])
    s = smelt.schedule(model, torch.randn(2, 8))
    s["*"].fuse(s["*"].find(lambda x: F.gelu(call_module("0", x))), name="up")
    assert asked == [2, 2] and len(s.reports) == 3
    assert s.verify().difference is None
