"""What patterns can say, how places of a model are named, and what is said where either is wrong."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt import pattern as p
from smelt.scheduling import Selection


class _Attention(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(size, size) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def split(self, x):
        b, s, h = x.size()
        return x.reshape(b, s, self.heads, h // self.heads).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        weights = self.dropout(torch.softmax(q @ k.transpose(-1, -2) / 2.0, dim=-1))
        return (weights @ v).transpose(1, 2).flatten(2)


class _Layer(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.attention, self.norm = _Attention(size, heads), nn.LayerNorm(size)
        self.up, self.act, self.down = nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size)

    def forward(self, x):
        x = self.norm(x + self.attention(x))
        return x + self.down(self.act(self.up(x)))


class _Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(_Layer(8, 2) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


_X = torch.zeros(2, 5, 8)


@pytest.fixture(scope="module", params=["source", "run"])
def s(request):
    return smelt.schedule(_Model(), _X if request.param == "run" else None)


def _heads(x, *, n: int):
    x = p.call_module("[qkv]_proj", x)
    return x.view(x.shape[0], x.shape[1], n, x.shape[2] // n).transpose(2, 1)


def _attention(q, k, v, *, scale: float):
    weights = p.named("weights", torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / scale, dim=-1))
    return torch.matmul(p.optional(["dropout"], weights), v)


# --- what a pattern says


def test_sizes_are_compared_by_value_and_free_numbers_captured(s):
    found = s.find(_heads)
    assert len(found) == 9
    assert {match["n"] for match in found} == {2}
    assert {match.path for match in found} == {f"layers.{i}.attention" for i in range(3)}
    assert s.find(lambda x: (y := p.call_module("q_proj", x)).view(y.shape[0], y.shape[1], 4, 2).transpose(1, 2)) == []


def test_attention_with_and_without_dropout(s):
    found = s.find(_attention)
    assert [match.path for match in found] == [f"layers.{i}.attention" for i in range(3)]
    for match in found:
        assert match["scale"] == 2.0
        assert match["weights"].node.op == "aten.softmax.int"
        assert [node.op for node in match.nodes if "matmul" in node.op or "dropout" in node.op] == [
            "aten.matmul.default", "aten.dropout.default", "aten.matmul.default",
        ]  # fmt: skip

    def bare(q, k, v):
        return torch.softmax(q @ k.transpose(-2, -1) / 2.0, -1) @ v

    class Bare(nn.Module):
        def forward(self, q, k, v):
            return bare(q, k, v)

    assert len(smelt.schedule(Bare()).find(_attention)) == 1
    assert s.find(bare) == []


def test_one_of_several_operators(s):
    def pattern(x):
        return p.call_module("down", p.one_of(["relu", "gelu"], p.call_module("up", x)))

    assert len(s.find(pattern)) == 3
    assert s.find(lambda x: p.one_of(["relu", "silu"], p.call_module("up", x))) == []


def test_several_outputs_side_by_side(s):
    def pattern(x):
        return p.call_module("q_proj", x), p.call_module("k_proj", x), p.call_module("v_proj", x)

    found = s.find(pattern)
    assert [len(match) for match in found] == [3, 3, 3]
    assert all(len(match.outputs) == 3 and len(match.inputs) == 1 for match in found)

    def alike(x):
        return tuple(p.call_module("[qkv]_proj", x) for _ in range(3))

    # The readings with q, k and v in other places cover the same nodes.
    assert [match.nodes for match in s.find(alike)] == [match.nodes for match in found]


def test_other_inputs_are_no_match_side_by_side():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, y):
            return self.fc1(x), self.fc2(y)

    s = smelt.schedule(Two())
    assert s.find(lambda x: (p.call_module("fc1", x), p.call_module("fc2", x))) == []
    assert len(s.find(lambda x, y: (p.call_module("fc1", x), p.call_module("fc2", y)))) == 1


def test_parts_of_a_split():
    class Gated(nn.Module):
        def forward(self, x):
            a, b = x.chunk(2, dim=-1)
            return F.silu(a) * b

    class Other(nn.Module):
        def forward(self, x):
            a, b = x.chunk(2, dim=-1)
            return F.silu(b) * a

    def pattern(x):
        a, b = x.chunk(2, dim=-1)
        return b * F.silu(a)

    for examples in (None, torch.zeros(3, 8)):
        assert len(smelt.schedule(Gated(), examples).find(pattern)) == 1
        assert smelt.schedule(Other(), examples).find(pattern) == []


def test_ranks_and_lengths_in_sizes():
    class Flat(nn.Module):
        def forward(self, x):
            return x.reshape(x.numel() // 2, x.dim() - 1)

    def pattern(x):
        return x.reshape(x.numel() // 2, len(x.shape) - 1)

    assert len(smelt.schedule(Flat(), torch.zeros(3, 2, 2)).find(pattern)) == 1
    assert len(smelt.schedule(Flat(), torch.zeros(3, 2, 2)).find(lambda x: x.view(-1, 2))) == 1
    assert smelt.schedule(Flat(), torch.zeros(3, 2, 2)).find(lambda x: x.view(-1, 3)) == []


def test_sizes_of_another_tensor_are_not_the_same():
    class Sizes(nn.Module):
        def forward(self, x, y):
            return x.view(y.size(0), -1)

    s = smelt.schedule(Sizes())
    assert s.find(lambda x: x.view(x.size(0), -1)) == []
    (match,) = s.find(lambda x, y: x.view(y.size(0), -1))
    assert [match["x"], match["y"]] == match.target.graph.inputs
    assert s.find(lambda x, y: x.view(y.size(1), -1)) == []


def test_a_wide_sum_is_read_once():
    class Sum(nn.Module):
        def forward(self, a, b, c, d):
            return ((a + b) + (c + d)) + ((a + c) + (b + d))

    def pattern(a, b, c, d, e, f, g, h):
        return ((a + b) + (c + d)) + ((e + f) + (g + h))

    (match,) = smelt.schedule(Sum()).find(pattern)
    assert len(match) == 7


def test_a_sum_whose_names_must_agree():
    class Sum(nn.Module):
        def forward(self, a, b, c):
            return (c + b) + (b + a)

    def pattern(x, y, z):
        return (x + y) + (x + z)

    (match,) = smelt.schedule(Sum()).find(pattern)
    assert match["x"] is match.target.graph.inputs[1]

    class Other(nn.Module):
        def forward(self, a, b, c, d):
            return (c + b) + (d + a)

    assert smelt.schedule(Other()).find(pattern) == []


def test_types_of_parameters_are_asked():
    class Sine(nn.Module):
        def forward(self, x):
            return x.sin()

    def typed(x: smelt.f32[None, 4]):
        return x.sin()

    assert len(smelt.schedule(Sine(), torch.zeros(2, 4)).find(typed)) == 1
    assert smelt.schedule(Sine(), torch.zeros(2, 5)).find(typed) == []
    assert smelt.schedule(Sine(), torch.zeros(2, 4, dtype=torch.float64)).find(typed) == []
    assert smelt.schedule(Sine(), torch.zeros(4)).find(typed) == []


def test_numbers_of_another_kind_are_other_constants():
    class Third(nn.Module):
        def forward(self, x):
            return (x * 3).relu()

    for pattern, float_answer, int_answer in ((lambda x: (x * 3).relu(), 1, 1), (lambda x: (x * 3.0).relu(), 1, 0)):
        assert len(smelt.schedule(Third(), torch.zeros(2)).find(pattern)) == float_answer
        assert len(smelt.schedule(Third(), torch.zeros(2, dtype=torch.int64)).find(pattern)) == int_answer


def test_axes_count_from_either_end_where_the_rank_is_known():
    class Softmax(nn.Module):
        def forward(self, x):
            return torch.softmax(x, 1)

    def pattern(x):
        return F.softmax(x, dim=-1)

    assert len(smelt.schedule(Softmax(), torch.zeros(2, 3)).find(pattern)) == 1
    assert smelt.schedule(Softmax(), torch.zeros(2, 3, 4)).find(pattern) == []
    assert smelt.schedule(Softmax()).find(pattern) == []


def test_predicates(s):
    assert {match.nodes[0].op for match in s.find(p.op("softmax"))} == {"aten.softmax.int"}
    assert len(s.find(p.op("softmax", "gelu"))) == 6
    assert len(s.find(p.op("softmax") | p.op("aten.gelu.default"))) == 6
    assert s.find(p.op("softmax") & p.op("gelu")) == []
    assert len(s.find(p.op("linear") & ~p.shape(None, None, 8))) == len(s.find(p.op("linear"))) - (
        len(s.find(p.op("linear") & p.shape(None, None, 8)))
    )
    assert len(s.find(where=lambda node: node.op == "aten.softmax.int")) == 3
    assert [m.path for m in s.find(_attention, where=lambda match: "1" in match.path)] == ["layers.1.attention"]


def test_predicates_on_types():
    s = smelt.schedule(_Model(), _X)
    assert len(s.find(p.op("linear") & p.shape(2, 5, 16))) == 3
    assert len(s.find(p.op("linear") & p.dtype(torch.float32))) == 15
    assert s.find(p.dtype(torch.float64)) == []


def test_module_classes_and_names(s):
    assert [match.path for match in s.find(nn.GELU)] == [f"layers.{i}.act" for i in range(3)]
    assert [match.path for match in s.find(_Attention)] == [f"layers.{i}.attention" for i in range(3)]
    assert [match.path for match in s.find(r"layers\.1\.\w+")] == [
        "layers.1.attention", "layers.1.norm", "layers.1.up", "layers.1.act", "layers.1.down",
    ]  # fmt: skip
    assert s.find("act.*x") == []
    assert s.find("ct") == []


def test_a_call_of_a_module_with_parts(s):
    found = s.find(lambda x: p.call_module("norm", x + p.call_module("attention", x)))
    assert [match.path for match in found] == [f"layers.{i}" for i in range(3)]


def test_a_layer_that_is_called_twice_in_a_row():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(self.fc(x))

    s = smelt.schedule(Twice())
    first, second = s.find("fc")
    assert (len(first), len(second)) == (1, 1)
    assert second.inputs == first.outputs
    assert len(s.find(lambda x: p.call_module("fc", p.call_module("fc", x)))) == 1


def test_overlapping_matches_and_a_selection_without():
    class Chain(nn.Module):
        def forward(self, x):
            return x.sin().sin().sin().sin().sin()

    found = smelt.schedule(Chain()).find(lambda x: x.sin().sin())
    assert len(found) == 4
    assert found[0].overlaps(found[1])
    assert not found[0].overlaps(found[2])
    assert found.disjoint() == [found[0], found[2]]


def test_a_match_stays_on_one_side_of_a_branch():
    class Branch(nn.Module):
        def forward(self, x):
            y = x.sin()
            if x.sum() > 0:
                return y.cos().tan()
            return x

    s = smelt.schedule(Branch())
    assert s.find(lambda x: x.sin().cos()) == []
    assert len(s.find(lambda x: x.cos().tan())) == 1


def test_constants_of_tensors_are_compared():
    class Shifted(nn.Module):
        def forward(self, x):
            return x + torch.tensor([1.0, 2.0])

    s = smelt.schedule(Shifted())
    assert len(s.find(lambda x: x + torch.tensor([1.0, 2.0]))) == 1
    assert s.find(lambda x: x + torch.tensor([1.0, 3.0])) == []


# --- places of a model


def test_paths_and_wildcards(s):
    assert s["layers.0.attention"].module is s.module.layers[0].attention
    assert s["layers.0"]["attention"].path == "layers.0.attention"
    several = s["layers.*.attention"]
    assert isinstance(several, Selection)
    assert [part.path for part in several] == [f"layers.{i}.attention" for i in range(3)]
    assert len(several.find(_heads)) == 9
    assert len(s["layers.1"].find(_heads)) == 3
    assert len(s["layers.[01]*.attention"]) == 2
    assert "layers.2.norm" in s
    assert "layers.*.norm" in s
    assert "layers.3" not in s
    assert "layers.*.nrm" not in s
    assert 3 not in s
    assert [part.path for part in s["layers"]] == ["layers.0", "layers.1", "layers.2"]


def test_a_wildcard_for_a_part_is_not_the_whole():
    s = smelt.schedule(nn.Sequential(nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU())), torch.zeros(1, 2))
    assert [part.path for part in s["*"]] == ["0", "1"]
    s["*"].outline(s["*"].find(nn.ReLU))
    assert "the whole, after" not in s.diff() and "1, after" in s.diff()


def test_printed_tree():
    assert str(smelt.schedule(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())))) == (
        "Sequential: Sequential\n  0: Linear\n  1: Sequential\n    0: ReLU"
    )


def test_nodes_of_a_part(s):
    part = s["layers.1.attention"].nodes
    assert part
    assert all(node.scope.startswith("layers.1.attention") for node in part)
    assert set(part) < set(s.nodes)


def test_tied_modules_have_both_names():
    layer = nn.Linear(2, 2)
    s = smelt.schedule(nn.Sequential(layer, layer))
    assert "0" in s
    assert "1" in s
    assert len(s.find(nn.Linear)) == 2
    assert len(s["1"].find(nn.Linear)) == 2


# --- errors


def _code(call):
    with pytest.raises(smelt.ScheduleError) as caught:
        call()
    return caught.value.code, str(caught.value)


def test_unknown_path_names_the_nearest(s):
    code, text = _code(lambda: s["layers.0.atention"])
    assert code == "S0601"
    assert "'layers.0.attention'" in text
    assert _code(lambda: s["layers.*.atention"])[0] == "S0601"


def test_a_pattern_that_cannot_be_captured(s):
    def broken(x):
        return torch.sqrt(x.shape[0])

    code, text = _code(lambda: s.find(broken))
    assert code == "S0602"
    assert "test_patterns.py" in text
    assert _code(lambda: s.find(object()))[0] == "S0602"
    assert _code(lambda: s.find("a("))[0] == "S0602"
    assert _code(lambda: s.find(lambda x: p.call_module("a(", x)))[0] == "S0602"


def test_a_pattern_with_a_branch(s):
    def either(x):
        return x.sin() if x.sum() > 0 else x.cos()

    assert _code(lambda: s.find(either))[0] == "S0602"


def test_a_pattern_with_nothing_to_look_for(s):
    assert _code(lambda: s.find(lambda x: x))[0] == "S0603"
    assert _code(lambda: s.find(lambda x: x.shape[0] * 2))[0] == "S0603"
    assert _code(lambda: s.find(lambda x: p.optional(["dropout"], x)))[0] == "S0603"
    assert _code(s.find)[0] == "S0603"


def test_a_pattern_with_too_many_readings():
    class Many(nn.Module):
        def forward(self, x, y):
            return tuple(x + y for _ in range(20))

    def nine(x, y):
        return tuple(x + y for _ in range(9))

    assert _code(lambda: smelt.schedule(Many()).find(nine))[0] == "S0604"


def test_no_module():
    assert _code(lambda: smelt.schedule(torch.sin))[0] == "S0605"
