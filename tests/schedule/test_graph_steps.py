"""Steps on matches that keep what is computed: checkpoint, decompose, outline and inline, print_at; compile."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt


class _Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(0.4)

    def forward(self, x, scale=1.0):
        return self.b(self.drop(F.gelu(self.a(x)))) * scale + x


def _hidden(x, w, b):
    return F.dropout(F.gelu(F.linear(x, w, b)), 0.4)


def _ops(s, path=""):
    return [node.op.split(".")[1] for node in s._state.scope(path).edited.graph.walk() if "." in node.op]


def _everything(model, x, **options):
    x = x.clone().requires_grad_()
    torch.manual_seed(7)
    result = model(x, **options)
    result.square().sum().backward()
    return [result.detach(), x.grad, *(p.grad for p in model.parameters())]


def _same(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_outline_and_inline_are_inverse_and_bitwise():
    model, x = _Mlp(), torch.randn(4, 8)
    s = smelt.schedule(model, x)
    before = _ops(s)
    s.outline(s.find(_hidden)[0], name="hidden")
    assert _ops(s) == ["call", "linear", "mul", "add"]
    assert _same(_everything(s.build(), x), _everything(copy.deepcopy(model), x))
    (call,) = s.find("hidden_0")
    assert call.nodes[0].op == "smelt_step.call.default" and len(call.outputs) == 1
    assert [match.nodes for match in s.find(r"hid\w+")] == [call.nodes] and s.find("hidden") == []
    s.inline(call)
    assert _ops(s) == before
    assert _same(_everything(s.build(), x), _everything(copy.deepcopy(model), x))
    with pytest.raises(smelt.ScheduleError) as caught:
        s.inline(s.find(lambda x: F.gelu(x))[0])
    assert caught.value.code == "S0607"


def test_print_at_prints_at_each_call_and_changes_nothing(capsys):
    model, x = _Mlp().eval(), torch.randn(4, 8)
    s = smelt.schedule(model, x)
    s.print_at(s.find(lambda x: F.gelu(x))[0])
    built = s.build()
    capsys.readouterr()
    for _ in range(2):
        assert torch.equal(built(x), model(x))
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 and all("float32[4, 16] min" in row for row in rows)


def test_compile_is_a_step_of_the_whole_and_of_a_part():
    model, x = nn.Sequential(_Mlp(), _Mlp()).eval(), torch.randn(4, 8)
    s = smelt.schedule(model, x)
    s.replace(F.relu, s["0"].find(lambda x: F.gelu(x))[0])
    expected = s.build()
    whole = s.compile().build()
    part = smelt.schedule(model, x)
    part["1"].compile()
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(whole(x), expected(x))
            torch.testing.assert_close(part.build()(x), model(x))
    assert isinstance(whole, nn.Sequential) and whole.stats().calls == 2 and not whole.stats().fallbacks
    assert list(whole.state_dict()) == list(model.state_dict())
    assert part.verify().gradients  # without a warning: that gradients run as in eager is what is requested
    assert "compiled" in str(s) and s.log[-1].primitive == "compile"
    again = smelt.apply(s.to_json(), model, x).build()
    with torch.no_grad():
        torch.testing.assert_close(again(x), expected(x))


def test_steps_for_2_layers_apply_to_6():
    model, x = nn.ModuleList([_Mlp(), _Mlp()]).eval(), torch.randn(4, 8)

    class Stack(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.layers = nn.ModuleList([_Mlp() for _ in range(n)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    del model
    s = smelt.schedule(Stack(2), x)
    layers = s["layers.*"]
    layers.outline(layers.find(_hidden), name="hidden")
    layers = s["layers.*"]
    layers.checkpoint(layers.find(lambda x, w, b: F.linear(x, w, b)))
    large = Stack(6)
    again = smelt.apply(s.to_json(), large, x)
    assert _same(_everything(again.build(), x), _everything(large, x))
    assert _ops(again, "layers.5") == ["call", "call", "mul", "add"]


def test_too_many_kinds_of_calls_run_as_they_are_where_that_is_the_same(monkeypatch):
    from smelt.scheduling.graphs import scheduled

    monkeypatch.setattr(scheduled, "STORM_LIMIT", 2)
    model = _Mlp().eval()
    s = smelt.schedule(model, torch.randn(4, 8))
    kept = s.outline(s.find(lambda x: F.gelu(x))[0]).build()
    s.replace(F.relu, s.undo().find(lambda x: F.gelu(x))[0])
    replaced = s.build()
    with pytest.warns(smelt.SmeltWarning, match="different calls were captured already"):
        for n in range(1, 6):
            x = torch.randn(n, 8)
            assert torch.equal(kept(x), model(x))
            assert torch.equal(replaced(x), model.b(F.relu(model.a(x))) * 1.0 + x)


def test_a_hook_with_effects_below_the_scope_is_called_once_and_the_original_runs():
    model, x, said = _Mlp().eval(), torch.randn(4, 8), []
    s = smelt.schedule(model, x)
    built = s.outline(s.find(lambda x: F.gelu(x))[0]).build()
    assert torch.equal(built(x), model(x))
    built.a.register_forward_hook(lambda module, args, result: said.append("a"))
    with pytest.warns(smelt.SmeltWarning, match="falls back to eager, without outline"):
        assert torch.equal(built(x), model(x))
    assert said == ["a"]
    built(x)
    assert said == ["a", "a"]
    s = smelt.schedule(model, x)
    replaced = s.replace(F.relu, s.find(lambda x: F.gelu(x))[0]).build()
    replaced.a.register_forward_hook(lambda module, args, result: said.append("b"))
    with pytest.raises(smelt.ScheduleError) as caught:
        replaced(x)
    assert caught.value.code == "S0613"


def test_what_is_changed_after_the_build_is_seen():
    model, x = _Mlp().eval(), torch.randn(4, 8)
    s = smelt.schedule(model, x)
    built = s.replace(F.relu, s.find(lambda x: F.gelu(x))[0]).build()

    def expected():
        return built.b(F.relu(built.a(x))) * 1.0 + x

    with torch.no_grad():
        assert torch.equal(built(x), expected())
        built.a = nn.Linear(8, 16)
        assert torch.equal(built(x), expected())
        built.b.weight = nn.Parameter(torch.randn(8, 16))
        assert torch.equal(built(x), expected())
        handle = built.a.register_forward_hook(lambda module, args, result: result * 2)
        assert torch.equal(built(x), expected())
        handle.remove()
        assert torch.equal(built(x), expected())


class _Normed(nn.Module):
    def __init__(self, is_module):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.is_module = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), is_module

    def forward(self, x):
        x = self.conv(x)
        if self.is_module:
            return F.relu(self.norm(x))
        own = self.norm
        return F.relu(F.batch_norm(x, own.running_mean, own.running_var, own.weight, own.bias, self.training))


@pytest.mark.parametrize("step", ["outline", "checkpoint"])
@pytest.mark.parametrize("which", ["the module with its counts", "the operator in the module", "a function"])
def test_a_batch_norm_in_training_keeps_its_gradient_and_counts_a_batch_once(step, which):
    model, x = _Normed(which != "a function").train(), torch.randn(2, 3, 6, 6)
    s = smelt.schedule(model, x)
    is_whole = which == "the module with its counts"
    getattr(s, step)(s.find(nn.BatchNorm2d) if is_whole else s.find(where=lambda node: "batch_norm" in node.op))
    built = s.build()
    for own in (model, built):
        for _ in range(2):
            own(x).square().sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), built.buffers(), strict=True))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), built.parameters(), strict=True))


class _Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.a(x)) + torch.tanh(self.b(x))


class _Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.head = _Two(), nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.head(self.block(x)))


def _tanh(x):
    return torch.tanh(x)


def _tanh_again(x):
    return 2 * torch.sigmoid(2 * x) - 1


@pytest.mark.spread(2)
@pytest.mark.parametrize("sites", [[1, 2], [2]])
def test_a_step_that_leaves_an_earlier_one_around_it_nothing_is_refused(sites):
    """Modules inside take their steps first in what is built, so the step around them is checked again at once."""
    model, x = _Around().eval(), torch.randn(3, 4)
    s = smelt.schedule(model, x)
    whole = s.find(_tanh)
    s.outline([whole[i] for i in sites], name="part", scope="")
    shown = str(s)
    with pytest.raises(smelt.ScheduleError, match=r"earlier step does not fit any more.*is not found") as refused:
        s["block"].replace(_tanh_again, s["block"].find(_tanh), each=True)
    assert refused.value.code == "S0609" and str(s) == shown and len(s.log) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(s.build()(x), model(x))
    other = smelt.schedule(model, x)  # the other way round it fits
    other["block"].replace(_tanh_again, other["block"].find(_tanh), each=True)
    other.outline(other.find(_tanh), name="part", scope="")
    torch.testing.assert_close(other.build()(x), model(x))
    assert len(other.log) == 2


def test_a_call_is_inlined_in_a_module_inside_of_one_with_steps():
    """There the module's graph is made while the one around it is recorded, and nobody watches what a call reads."""
    model, x = _Around().eval(), torch.randn(3, 4)
    s = smelt.schedule(model, x)
    s.checkpoint(s.find(_tanh)[-1])
    s["block"].outline(s["block"].find(_tanh), name="part")
    s["block"].inline(s["block"].find(r"part_\d"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(s.build()(x), model(x))
