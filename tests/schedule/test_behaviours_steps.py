"""Acceptance behaviours 9 to 19 of a schedule language: replacing, fusing, decomposing, hooks, checkpoints."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.pattern import call_module

from .models import Block, LinearNorm, edited, edited_ops, fixed, linear_norm, matched_ops, whole

pytestmark = pytest.mark.usefixtures("one_thread", "faster")


class _Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.fc1(x).permute(1, 0) + self.fc2(x).permute(1, 0) * self.fc3(x).permute(1, 0)


class _Fused(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]))
        self.n = len(layers)

    def forward(self, x):
        return tuple(part.permute(1, 0) for part in F.linear(x, self.weight, self.bias).chunk(self.n, -1))


def _branch(x):
    return call_module(r"fc\d", x).permute(1, 0)


def test_behaviour_09_horizontal_replace_is_one_call_with_several_results():
    model, x = _Branches(), torch.randn(4, 8)
    s = smelt.schedule(model, x)
    s.replace(_Fused(model.fc1, model.fc2, model.fc3), s.find(_branch))
    built = s.build()
    torch.testing.assert_close(built(x), model(x))
    assert edited_ops(s) == ["call", "mul", "add"]
    assert list(s["_Fused_0"].module.state_dict()) == ["weight", "bias"]


def test_behaviour_09_branches_of_different_inputs_are_passed_all_or_refused():
    class Two(nn.Module):
        def forward(self, x, y):
            return F.relu(x) + F.relu(y) * 2

    def both(x, y):
        return F.relu(x), F.relu(y)

    x, y = torch.randn(4), torch.randn(4)
    s = smelt.schedule(Two(), (x, y))
    with pytest.raises(smelt.ScheduleError) as caught:
        s.replace(lambda x: (F.relu(x), F.relu(x)), s.find(lambda x: F.relu(x)))
    assert caught.value.code == "S0608" and "%x, %y" in caught.value.why
    assert len(s.log) == 0
    s.replace(both, s.find(lambda x: F.relu(x)))
    assert torch.equal(s.build()(x, y), Two()(x, y))


@pytest.mark.parametrize("name, child", [(None, "Identity_0"), ("test", "test_0")])
def test_behaviour_10_vertical_replace_names_the_new_module(name, child):
    model, x = LinearNorm().eval(), torch.randn(4, 8)
    s = smelt.schedule(model, x)
    s.replace(nn.Identity(), s.find(linear_norm)[0], name=name)
    assert type(s[child].module) is nn.Identity and child in s
    assert edited_ops(s) == ["call", "relu"]
    assert not any(node.op in ("param", "buffer") for node in edited(s).walk())
    assert torch.equal(s.build()(x), F.relu(x))


def test_behaviour_10_the_new_module_is_called_as_a_module():
    model, x = LinearNorm().eval(), torch.randn(4, 8)
    s = smelt.schedule(model, x)
    s.replace(nn.Dropout(0.5), s.find(linear_norm)[0])
    built = s.build()
    assert torch.equal(built(x), F.relu(x))
    calls = []
    built.Dropout_0.register_forward_hook(lambda module, args, result: calls.append(1))
    built.train()
    torch.manual_seed(0)
    found = built(x)
    torch.manual_seed(0)
    assert torch.equal(found, F.relu(F.dropout(x, 0.5)))
    assert calls == [1]


class _Sums(nn.Module):
    def forward(self, a, b, c):
        x = a + b
        y = c * 2
        return x + y


def test_behaviour_11_insertion_point():
    def three(a, b, y):
        return a + b + y

    def new_func(a, b, y):
        return a - b - y

    given = torch.tensor(3.0), torch.tensor(4.0), torch.tensor(5.0)
    s = smelt.schedule(_Sums(), given)
    s.replace(new_func, s.find(three)[0])
    assert edited_ops(s) == ["mul", "sub", "sub"]
    assert s.build()(*given) == 3.0 - 4.0 - 10.0


def test_behaviour_11_insertion_point_of_a_module():
    class New(nn.Module):
        def forward(self, a, b, y):
            return a - b - y

    given = torch.tensor(3.0), torch.tensor(4.0), torch.tensor(5.0)
    s = smelt.schedule(_Sums(), given)
    s.replace(New(), s.find(lambda a, b, y: a + b + y)[0])
    assert edited_ops(s) == ["mul", "call"]
    assert s.build()(*given) == -11.0


@pytest.mark.parametrize("examples", [None, True])
def test_behaviour_12_a_chain_of_lambdas(examples):
    class Chain(nn.Module):
        def forward(self, a, b):
            return (a + b) - a

    a, b = torch.tensor(4), torch.tensor(10)
    s = smelt.schedule(Chain(), examples and (a, b))
    s.replace(lambda a, b: a * b, s.find(lambda a, b: a + b)[0])
    s.replace(lambda a, b: a // b, s.find(lambda a, b: a - b)[0])
    assert s.build()(a, b) == 10
    assert [step.primitive for step in s.log] == ["replace", "replace"]
    # Python's numbers are constants of a graph: never an answer without the steps, but an error with the way round.
    with pytest.raises(smelt.ScheduleError, match=r"call it with tensors: torch.tensor\(4\)"):
        s.build()(4, 10)
    with pytest.raises(smelt.ScheduleError) as caught:
        smelt.schedule(Chain(), (4, 10)).find(lambda a, b: a + b)
    assert caught.value.code == "S0605" and "torch.tensor(4), not 4" in caught.value.fix


def test_behaviour_13_another_number_of_arguments_changes_nothing():
    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(()))

        def forward(self, x, y, z):
            return x + y + z

    class Model(nn.Module):
        def forward(self, x, y):
            return x + y

    x, y = torch.randn(4), torch.randn(4)
    model = Model()
    s = smelt.schedule(model, (x, y))
    (match,) = s.find(lambda p, q: p + q)
    text = str(s)
    with pytest.raises(smelt.ScheduleError) as caught:
        s.replace(Three(), match)
    assert caught.value.code == "S0608"
    assert str(s) == text and not s.log and not s.build().state_dict() and not list(model.children())
    s.replace(Three(), match, arguments={"z": 0})
    assert torch.equal(s.build()(x, y), x + y)
    assert list(s.build().state_dict()) == ["Three_0.w"]


def test_behaviour_14_a_function_with_default_arguments():
    def scaled(x, scale=3.0, *, shift=1.0):
        return F.relu(x) * scale + shift

    x = torch.randn(4)
    s = smelt.schedule(nn.Sequential(nn.ReLU()), x)
    s.replace(scaled, s.find(lambda x: F.relu(x))[0])
    assert torch.equal(s.build()(x), F.relu(x) * 3.0 + 1.0)


def test_behaviour_14_relu_by_gelu_keeps_no_stale_keywords():
    class Model(nn.Module):
        def forward(self, x):
            return F.relu(x, inplace=False)

    x = torch.randn(4)
    s = smelt.schedule(Model(), x)
    s.replace(F.gelu, s.find(lambda x: F.relu(x))[0])
    assert torch.equal(s.build()(x), F.gelu(x))


def test_behaviour_15_replace_all_reaches_nested_lists_and_sequences():
    model, x, asked = Block(), torch.randn(2, 4), []

    def make(path, old, approximate):
        asked.append((path, type(old)))
        return nn.GELU(approximate)

    s = smelt.schedule(model)
    s.replace_all(nn.ReLU, make, approximate="tanh")
    assert sorted(asked) == [("act", nn.ReLU), ("layers.0", nn.ReLU), ("seq.1", nn.ReLU)]
    built = s.build()
    assert not any(isinstance(part, nn.ReLU) for part in built.modules())
    reference = copy.deepcopy(model)
    reference.act, reference.seq[1], reference.layers[0] = (nn.GELU("tanh") for _ in range(3))
    assert torch.equal(built(x), reference(x))
    assert type(model.act) is nn.ReLU


def test_behaviour_15_a_replacement_that_holds_the_old_module_is_not_replaced_again():
    model, x = Block(), torch.randn(2, 4)
    s = smelt.schedule(model)
    s.replace_all(nn.Linear, lambda path, old: nn.Sequential(old, nn.Tanh()))
    built = s.build()
    assert type(built.fc) is nn.Sequential and type(built.fc[0]) is nn.Linear
    assert torch.equal(built.fc.state_dict()["0.weight"], model.fc.weight)
    assert torch.equal(built.fc(x), torch.tanh(model.fc(x)))


def test_behaviour_16_bias_and_gelu_of_a_decomposed_linear():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8)
    s = smelt.schedule(model, x)
    s["0"].decompose()
    (match,) = s.find(lambda x, bias: F.gelu(x + bias))
    assert [node.op for node in match.nodes] == ["aten.add.Tensor", "aten.gelu.default"]
    built = s.fuse(match, name="bias_gelu").build()
    assert list(built.state_dict()) == list(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(built(x), model(x))
    for found, expected in zip(_everything(built, x), _everything(copy.deepcopy(model), x), strict=True):
        torch.testing.assert_close(found, expected)
    assert "bias_gelu_0" in s.reports[-1] and "bytes" in s.reports[-1]


def _everything(model, x, **options):
    x = x.clone().requires_grad_()
    torch.manual_seed(7)
    result = model(x, **options)
    result.square().sum().backward()
    return [result.detach(), x.grad, *(p.grad for p in model.parameters())]


def test_behaviour_16_decompose_of_a_match_makes_the_addition_findable():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()).double(), torch.randn(4, 8, dtype=torch.float64)
    s = smelt.schedule(model, x)
    s.decompose(s.find(lambda x, w, b: F.linear(x, w, b))[0])
    (match,) = s.find(lambda x, b: F.gelu(x + b))
    assert [node.op for node in match.nodes] == ["aten.add.Tensor", "aten.gelu.default"]
    for found, expected in zip(_everything(s.build(), x), _everything(model, x), strict=True):
        torch.testing.assert_close(found, expected)
    with pytest.raises(smelt.ScheduleError) as caught:
        s.decompose(s.find(lambda x: F.gelu(x))[0])
    assert caught.value.code == "S0607" and len(s.log) == 1


# decompose


def test_behaviour_16_decompose_then_bias_and_activation_are_one_match():
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return F.gelu(self.fc(x))

    def pattern(x, bias):
        return F.gelu(bias + x)

    s = smelt.schedule(Biased(), fixed(4, 8))
    assert len(s.find(pattern)) == 0
    s["fc"].decompose()
    found = s.find(pattern)
    assert [[node.op.split(".")[1] for node in match.nodes] for match in found] == [["add", "gelu"]]
    assert s.verify().gradients
    x = fixed(4, 8)
    assert torch.allclose(s.build()(x), Biased()(x), atol=1e-6)
    assert isinstance(s.build().fc, nn.Linear)


def test_behaviour_16_decompose_without_a_bias_says_so():
    s = smelt.schedule(nn.Sequential(nn.Linear(4, 4, bias=False)))
    with pytest.raises(smelt.ScheduleError, match="0 has no bias to be added apart") as caught:
        s["0"].decompose()
    assert caught.value.code == "S0607" and s.log == ()


def test_behaviour_17_bias_dropout_residual_norm():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.dropout, self.norm = nn.Linear(8, 8, bias=False), nn.Dropout(0.1), nn.LayerNorm(8)
            self.bias = nn.Parameter(torch.zeros(8))

        def forward(self, x):
            return self.norm(self.dropout(self.fc(x) + self.bias) + x)

    def pattern(x, bias, residual):
        return call_module("norm", F.dropout(x + bias, 0.1) + residual)

    (match,) = smelt.schedule(Block()).find(pattern)
    assert matched_ops([match]) == [["add", "dropout", "add", "layer_norm"]]
    assert match["bias"].name == "bias"


def test_behaviour_17_an_inner_value_that_escapes_is_no_match():
    def program(x, b):
        y = F.gelu(x + b)
        return y * 2, y

    assert whole(program).find(lambda x, b: F.gelu(x + b) * 2) == []
    assert len(whole(program).find(lambda x, b: F.gelu(x + b))) == 1


class _Output(nn.Module):
    def __init__(self, drop=0.3):
        super().__init__()
        self.fc, self.drop, self.norm = nn.Linear(16, 16), nn.Dropout(drop), nn.LayerNorm(16)

    def forward(self, x):
        y = F.linear(x, self.fc.weight) + self.fc.bias
        return self.norm(self.drop(y) + x)


def _tail(y, bias, x, weight, norm_bias):
    return F.layer_norm(F.dropout(y + bias, 0.3) + x, (16,), weight, norm_bias)


def test_behaviour_17_bias_dropout_residual_norm_with_the_same_seed():
    model, x = _Output(), torch.randn(4, 16)
    s = smelt.schedule(model, x)
    (match,) = s.find(_tail)
    assert len(match.nodes) == 4
    built = s.fuse(match, name="tail").build()
    for found, expected in zip(_everything(built, x), _everything(model, x), strict=True):
        assert torch.equal(found, expected)


def test_behaviour_17_a_value_that_escapes_is_refused_before_any_edit():
    class Model(nn.Module):
        def forward(self, x):
            y = torch.sin(x)
            return torch.cos(y), y

    s = smelt.schedule(Model(), torch.randn(4))
    with pytest.raises(smelt.ScheduleError) as caught:
        s.fuse(s.find(lambda x: torch.cos(torch.sin(x)), escaping=True)[0])
    assert caught.value.code == "S0609" and not s.log

    def both(x):
        y = torch.sin(x)
        return torch.cos(y), y

    x = torch.randn(4)
    built = s.fuse(s.find(both)[0]).build()
    with torch.no_grad():
        for found, expected in zip(built(x), Model()(x), strict=True):
            torch.testing.assert_close(found, expected)


def test_behaviour_18_hooks_survive_a_replaced_module():
    model, x, said = Block(), torch.randn(2, 4), []
    model.fc.register_forward_pre_hook(lambda module, args: said.append("before"))
    model.fc.register_forward_hook(lambda module, args, kwargs, result: said.append("after"), with_kwargs=True)
    model.fc.register_full_backward_hook(lambda module, given, taken: said.append("backward"))
    for new in (nn.Linear(4, 4), None):
        s = smelt.schedule(model)
        built = s["fc"].replace(nn.Sequential(s["fc"].module, nn.Tanh()) if new is None else new).build()
        said.clear()
        built(x.clone().requires_grad_()).sum().backward()
        assert said == ["before", "after", "backward"]
    said.clear()
    model(x)
    assert said == ["before", "after"]


@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook"])
def test_behaviour_18_hooks_inside_a_fused_region_are_an_error(hook):
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    s = smelt.schedule(model, fixed(2, 4))
    assert len(s.fuse(s.find(lambda x: F.gelu(call_module("0", x)))).log) == 1
    getattr(model[1], hook)(lambda *given: None)
    s = smelt.schedule(model, fixed(2, 4))
    with pytest.raises(smelt.ScheduleError) as caught:
        s.fuse(s.find(lambda x: F.gelu(call_module("0", x))))
    assert caught.value.code == "S0610" and "1 (GELU) has a hook" in caught.value.what and not s.log


class _Part(nn.Module):
    def forward(self, x):
        return torch.sin(x)


def test_behaviour_18_hooks_survive_a_step_on_a_graph_elsewhere():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = _Part(), _Part()

        def forward(self, x):
            return self.b(self.a(x))

    model, x, said = Model(), torch.randn(4), []
    model.a.register_forward_hook(lambda module, args, result: said.append("a"))
    model.b.register_forward_pre_hook(lambda module, args: said.append("b"))
    s = smelt.schedule(model, x)
    part = s["b"]
    built = part.replace(torch.cos, part.find(lambda x: torch.sin(x))[0]).build()
    said.clear()
    assert torch.equal(built(x), torch.cos(torch.sin(x)))
    assert said == ["a", "b"]


class _Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(0.4)

    def forward(self, x, scale=1.0):
        return self.b(self.drop(F.gelu(self.a(x)))) * scale + x


def _hidden(x, w, b):
    return F.dropout(F.gelu(F.linear(x, w, b)), 0.4)


def _same(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_behaviour_19_checkpoint_of_a_match_keeps_answers_and_gradients():
    model, x = _Mlp(), torch.randn(4, 8)
    s = smelt.schedule(model, x)
    built = s.checkpoint(s.find(_hidden)[0]).build()
    for options in ({}, {"scale": 3.0}):
        assert _same(_everything(copy.deepcopy(built), x, **options), _everything(copy.deepcopy(model), x, **options))
    built(x), model(x)  # what is captured is captured here
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)), lambda t: None):
        built(x)
    assert (4, 16) in kept  # of the second layer, which needs its input
    plain = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: plain.append(tuple(t.shape)), lambda t: None):
        model(x)
    assert plain.count((4, 16)) > kept.count((4, 16))


def test_behaviour_19_checkpoint_of_a_module_keeps_answers_and_gradients():
    model, x = nn.Sequential(_Mlp(), _Mlp()), fixed(4, 8)
    for path in ("0", "0.a", "*", ""):
        s = smelt.schedule(model, x)
        (s[path] if path else s).checkpoint()
        assert _same(_everything(s.build(), x), _everything(copy.deepcopy(model), x))


def test_behaviour_19_checkpoint_of_keywords_out_of_order():
    class Order(nn.Module):
        def forward(self, a, b, *rest, mask=None, preserve_rng_state=1.0, context_fn=None, **more):
            return a * 2 + b * 3 + sum(rest) * 5 + mask * 7 * preserve_rng_state + more["determinism_check"] * 11

    s = smelt.schedule(Order())
    s.checkpoint()
    order, given = s.build(), {name: fixed(4, seed=i) for i, name in enumerate("abcd")}
    a, b, c, d = (given[name].requires_grad_() for name in "abcd")
    found = order(determinism_check=d, preserve_rng_state=0.5, mask=c, b=b, a=a)
    assert torch.equal(found, Order()(a, b, mask=c, preserve_rng_state=0.5, determinism_check=d))
    found.sum().backward()
    assert [t.grad[0].item() for t in (a, b, c, d)] == [2.0, 3.0, 3.5, 11.0]
    assert torch.equal(order(a, b, c, c, mask=d, determinism_check=a), Order()(a, b, c, c, mask=d, determinism_check=a))
