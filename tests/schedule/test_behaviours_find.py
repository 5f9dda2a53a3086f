"""Acceptance behaviours 1 to 8 of a schedule language: finding."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.pattern import call_module

from .models import matched_ops, whole
from .seed_attention import Attention


def _heads(x):
    x = call_module(r"[qkv]_proj", x)
    new_shape = x.shape[:-1] + (16, -1)  # noqa: RUF005
    x = x.view(new_shape)
    return x.permute(0, 2, 1, 3)


def test_behaviour_01_seed_attention_has_three_matches_in_order_and_need_not_run():
    s = smelt.schedule(Attention())
    found = s.find(_heads)
    assert [match.path for match in found] == ["self_attn"] * 3
    weights = [match.nodes[0].args[1].name for match in found]
    assert weights == ["self_attn_q_proj_weight", "self_attn_k_proj_weight", "self_attn_v_proj_weight"]
    for match in found:
        assert match.nodes[0].op == "aten.linear.default"
        assert match.nodes[-1].op == "aten.permute.default"
        assert "aten.sym_size.default" in [node.op for node in match.nodes]
        assert match.outputs == (match.nodes[-1].result,)
        assert match.inputs == (match["x"],)
    assert len(found.disjoint()) == 3
    assert "q = self.permute_for_scores(self.q_proj(hidden_states))" in str(found[0])
    assert "self_attn (SelfAttention)" in str(found[0])


def test_behaviour_01_seed_attention_as_a_part():
    s = smelt.schedule(Attention())
    assert len(s["self_attn"].find(_heads)) == 3
    assert len(s["proj"].find(_heads)) == 0


def test_behaviour_01_what_is_not_reached_is_searched_on_its_own():
    s = smelt.schedule(Attention())
    (dense,) = s.find("dense")
    assert dense.path == "proj.dense"
    assert any("sqrt" in note and "seed_attention.py" in note for note in s.notes)


def test_behaviour_01_seed_attention_with_inputs_all_the_same():
    s = smelt.schedule(Attention(), torch.zeros(2, 8, 1024))
    assert [match.path for match in s.find(_heads)] == ["self_attn"] * 3


class _TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.relu, self.fc2 = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)

    def forward(self, x):
        return self.fc2(self.relu(self.fc1(x)))


def test_behaviour_02_regex_finds_exactly_the_calls_in_order():
    s = smelt.schedule(_TwoLayers())
    found = s.find(r"fc\d")
    assert [match.path for match in found] == ["fc1", "fc2"]
    assert matched_ops(found) == [["linear"], ["linear"]]


def test_behaviour_02_what_is_no_pattern_is_a_typed_error():
    with pytest.raises(smelt.ScheduleError) as caught:
        smelt.schedule(_TwoLayers()).find(123)
    assert caught.value.code == "S0602"


class _LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(1, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2, 2))
        self.fc, self.relu = nn.Linear(864, 120), nn.ReLU()
        self.fc1, self.relu1 = nn.Linear(120, 84), nn.ReLU()
        self.fc2 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.layer1(x)
        x = x.reshape(x.size(0), -1)
        x = self.relu1(self.fc1(self.relu(self.fc(x))))
        return self.fc2(x)


@pytest.mark.parametrize("examples", [None, torch.zeros(2, 1, 28, 28)])
def test_behaviour_03_a_module_as_pattern_matches_by_kind_not_by_shape(examples):
    s = smelt.schedule(_LeNet(), examples)
    found = s.find(nn.Sequential(nn.Linear(10, 20), nn.ReLU()))
    assert matched_ops(found) == [["linear", "relu"]] * 2
    assert [match.nodes[0].scope for match in found] == ["fc", "fc1"]


def test_behaviour_03_the_same_by_name():
    def pattern(x):
        return F.relu(call_module(r"fc\d?", x))

    s = smelt.schedule(_LeNet())
    found = s.find(pattern)
    assert matched_ops(found) == [["linear", "relu"]] * 2
    assert [match.nodes for match in found] == [
        match.nodes for match in s.find(nn.Sequential(nn.Linear(1, 1), nn.ReLU()))
    ]


def test_behaviour_03_batch_norm_then_relu():
    found = smelt.schedule(_LeNet())["layer1"].find(lambda x: F.relu(call_module(nn.BatchNorm2d, x)))
    (match,) = found
    computing = [node for node in match.nodes if node.op in ("aten.batch_norm.default", "aten.relu.default")]
    assert [node.op for node in computing] == ["aten.batch_norm.default", "aten.relu.default"]
    # What the layer leaves in its buffers belongs to it.
    assert match.nodes[-1].op == "write"
    assert match.path == "layer1"
    assert match.outputs == (computing[-1].result,)


class _Residual(nn.Module):
    def __init__(self, functional):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.relu = F.relu if functional else nn.ReLU()

    def forward(self, x):
        return self.relu(self.conv(x)) + x


@pytest.mark.parametrize("functional", [True, False])
def test_behaviour_04_functional_and_module_forms_are_one(functional):
    found = smelt.schedule(_Residual(functional)).find(lambda x, y: F.relu(x) + y)
    assert matched_ops(found) == [["relu", "add"]]


def test_behaviour_04_a_parameter_used_twice_is_one_value():
    def pattern(x):
        return F.relu(x) + x

    assert len(whole(lambda x: F.relu(x) + x).find(pattern)) == 1
    assert len(whole(lambda x, y: F.relu(x) + y).find(pattern)) == 0


def _diamond(m, n):
    a = m + n
    return a * 2 + a * 3


def test_behaviour_05_diamond_with_other_nodes_between():
    def program(m, n):
        a = m + n
        u = m.sin()
        b = a * 2
        v = n.cos() + u
        c = a * 3
        return b + c, v

    found = whole(program).find(_diamond)
    assert matched_ops(found) == [["add", "mul", "mul", "add"]]


def test_behaviour_05_other_users_of_an_inner_value_are_told():
    def program(m, n):
        a = m + n
        u = a.sin()
        b = a * 2
        v = a.cos()
        return b + a * 3, u, v

    s = whole(program)
    assert s.find(_diamond) == []
    (match,) = s.find(_diamond, escaping=True)
    assert matched_ops([match]) == [["add", "mul", "mul", "add"]]
    assert match.escaping == (match.nodes[0].result,)

    def with_output(m, n):
        a = m + n
        return a, a * 2 + a * 3

    (match,) = s.find(with_output)
    assert match.outputs == (match.nodes[0].result, match.nodes[-1].result)
    assert match.escaping == ()


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y, z: (x + y) * (y - z),
        lambda x, y, z: (y - z) * (x + y),
        lambda x, y, z: (y - z) * (y + x),
        lambda x, y, z: torch.mul(input=y - z, other=torch.add(y, x, alpha=1)),
    ],
)
def test_behaviour_06_tree_with_operands_either_way(program):
    (match,) = whole(program).find(lambda x, y, z: (x + y) * (y - z))
    assert sorted(node.op for node in match.nodes) == ["aten.add.Tensor", "aten.mul.Tensor", "aten.sub.Tensor"]
    assert [match[name].name for name in "xyz"] == [value.name for value in match.target.graph.inputs]


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    ("program", "pattern"),
    [
        (lambda x: F.relu(x * 2), lambda x: F.relu(x * 3)),
        (lambda x: F.softmax(x, dim=0), lambda x: F.softmax(x, dim=-1)),
        (lambda p, q: (p + q, F.relu(p)), lambda p, q: F.relu(p + q)),
        (lambda x, y: x - y + y * 0, lambda x, y: y - x + y * 0),
        (lambda x, y: torch.add(x, y, alpha=2), lambda x, y: x + y),
        (lambda x: F.gelu(x, approximate="tanh"), lambda x: F.gelu(x)),
        (lambda x: x.view(-1, 4), lambda x: x.view(4, -1)),
        (lambda x: x * -0.0, lambda x: x * 0.0),
        (lambda x: x * True, lambda x: x * 1),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_behaviour_07_constants_keywords_and_dataflow_are_compared(program, pattern, known):
    examples = [torch.zeros(8, 8) for _ in range(program.__code__.co_argcount)] if known else []
    assert whole(program, *examples).find(pattern) == []
    assert len(whole(program, *examples).find(program)) == 1


def test_behaviour_08_a_failing_pattern_of_ten_on_a_thousand_nodes():
    from smelt.scheduling.finding.patterns import read_pattern
    from smelt.scheduling.finding.search import Search
    from smelt.scheduling.finding.target import Target

    lines = "\n".join(f"  %v{i + 1}: f32[4] = aten.{'sin' if i % 3 else 'cos'}.default(%v{i})" for i in range(1000))
    graph = smelt.parse(f"graph g(%v0: f32[4]) -> f32[4] {{\n{lines}\n  return %v1000\n}}")

    def pattern(x):
        for _ in range(10):
            x = x.sin()
        return x

    search = Search(read_pattern(pattern), Target(graph, "", {}))
    assert list(search.run()) == []
    assert search.steps <= 10 * 1000


def _adds(text_of_add):
    lines = "\n".join(f"  %v{i + 1}: f32[4] = aten.add.Tensor({text_of_add(i)})" for i in range(20))
    return smelt.parse(f"graph g(%v0: f32[4], %w: f32[4]) -> f32[4] {{\n{lines}\n  return %v20\n}}")


@pytest.mark.parametrize("text_of_add", [lambda i: f"%v{i}, %v{i}", lambda i: f"%v{i}, %w", lambda i: "%v0, %w"])
@pytest.mark.parametrize("ends_in_relu", [False, True])
def test_behaviour_08_twenty_equal_adds(text_of_add, ends_in_relu):
    from smelt.scheduling.finding.patterns import read_pattern
    from smelt.scheduling.finding.search import Search
    from smelt.scheduling.finding.target import Target

    def relu(a, b, c, d, e, f, g, h, i):
        return F.relu(a + b + c + d + e + f + g + h + i)

    def mul(a, b, c, d, e, f, g, h, i):
        return (a + b + c + d + (e + f + g + h)) + i + a + b

    search = Search(read_pattern(relu if ends_in_relu else mul), Target(_adds(text_of_add), "", {}))
    assert list(search.run()) == []
    assert search.steps <= 2000


def test_what_is_not_found_is_told_with_what_may_be_amiss():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.Linear(4, 4)

        def forward(self, x):
            return self.attention(x) * 0.25

    def untyped(x, k):
        return x * k

    def typed(x, k: float):
        return x * k

    s = smelt.schedule(Scaled())
    assert [m.captures["k"] for m in s.find(typed)] == [0.25]
    assert str(s.find(untyped)) == (
        "no match of untyped: k is a tensor, since it has no type; as a number (k: float) the pattern is there"
    )
    assert str(s.find("atention")) == "no match of 'atention': did you mean 'attention'?"
    assert "no module has that name" in str(s.find("zzz"))
    assert str(s.find(lambda x: x.tanh())) == "no match of <lambda>"
    with pytest.raises(smelt.ScheduleError, match=r"S0607\] there is no match of untyped") as error:
        s.fuse(s.find(untyped))
    assert "k: float" in error.value.why
