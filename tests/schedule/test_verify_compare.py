"""Comparing two modules: each kind of difference is found and named, and rounding is none."""

import collections
import copy
import dataclasses
import random
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from smelt.bench.decode import cache_name
from smelt.diag import ScheduleError
from smelt.scheduling.comparing.compare import Comparer, Item, Tolerance, items
from smelt.scheduling.comparing.compare_modules import Comparison, compare
from smelt.scheduling.comparing.compare_runs import Arguments

pytestmark = pytest.mark.usefixtures("one_thread")


def _compare(
    reference: nn.Module, candidate: nn.Module, *args, backward: bool | None = None, tolerance=None, **kwargs
) -> Comparison:
    made = [lambda module=module: copy.deepcopy(module) for module in (reference, candidate)]
    return compare(*made, [Arguments(args, kwargs)], backward=backward, tolerance=tolerance or Tolerance())


def _with(module: nn.Module, forward) -> nn.Module:
    """A copy of a module that computes something else."""
    made = copy.deepcopy(module)
    made.__class__ = type(type(module).__name__, (type(module),), {"forward": forward})
    return made


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.fc2(self.drop(F.relu(self.fc1(x))))


def _x(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _nothing(module, x):
    return x


class _Function(nn.Module):
    """A module without parameters that is a function of its arguments."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def test_equal_modules_agree_bit_for_bit_in_both_modes_with_gradients():
    found = _compare(_Net(), _Net(), _x(3, 8))
    assert found.difference is None and found.is_bitwise
    assert (found.runs, found.error, found.gradients, found.unmatched) == (4, 0.0, True, ())
    assert str(found) == "results, states and gradients of 4 runs agree bit for bit"


def test_another_value_is_named_with_its_index():
    def forward(self, x):
        y = _Net.forward(self, x).clone()
        with torch.no_grad():
            y[2, 1] += 0.5
        return y

    net, x = _Net().eval(), _x(3, 8)
    found = _compare(net, _with(net, forward), x).difference
    assert (found.path, found.index) == ("output", (2, 1))
    assert found.expected == net(x)[2, 1].item()
    assert found.got == pytest.approx(found.expected + 0.5)
    assert "float64" in found.why


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("start", ["train", "eval"])
def test_a_difference_in_one_mode_only_is_found_from_either(mode, start):
    def forward(self, x):
        return _Net.forward(self, x) * (2 if self.training == (mode == "train") else 1)

    net = _Net().train(start == "train")
    found = _compare(net, _with(net, forward), _x(3, 8))
    assert found.difference.path == "output"
    assert f"in {mode} mode" in found.where


def test_wrong_gradients_of_arguments_are_found():
    net = _Net()
    wrong = _with(net, lambda self, x: _Net.forward(self, x.detach()))
    found = _compare(net, wrong, _x(3, 8))
    assert found.difference.path == "gradient of argument [0]"
    assert found.difference.got == "None"
    assert "with gradients" in found.where
    assert _compare(net, wrong, _x(3, 8), backward=False).difference is None


def test_wrong_gradients_of_parameters_are_found():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def forward(self, x):
        return F.linear(self.drop(F.relu(self.fc1(x))), self.fc2.weight, Doubled.apply(self.fc2.bias))

    net = _Net()
    found = _compare(net, _with(net, forward), _x(3, 8)).difference
    assert (found.path, found.index) == ("gradient of parameter fc2.bias", (0,))
    assert found.got == pytest.approx(2 * found.expected)


def test_an_output_that_lost_its_gradient_is_found():
    net = _Net()
    found = _compare(net, _with(net, lambda self, x: _Net.forward(self, x).detach()), _x(3, 8)).difference
    assert found.path.startswith("outputs with a gradient")


def test_another_draw_of_random_numbers_is_found():
    def forward(self, x):
        y = _Net.forward(self, x)
        torch.rand(1)
        return y

    net = _Net()
    found = _compare(net, _with(net, forward), _x(3, 8)).difference
    assert found.path == "random numbers after the call['torch']"


def test_other_random_numbers_with_the_same_count_are_found():
    net = _Net()
    wrong = copy.deepcopy(net)
    wrong.drop.p = 0.3
    assert _compare(net, wrong, _x(3, 8)).difference.path == "output"


@pytest.mark.parametrize("draw", [lambda: random.random(), lambda: np.random.rand()])
def test_draws_of_python_and_numpy_count(draw):
    def forward(self, x):
        draw()
        return _Net.forward(self, x)

    net = _Net()
    assert "random numbers" in _compare(net, _with(net, forward), _x(3, 8)).difference.path


def test_buffers_after_the_call_are_compared():
    norm = nn.BatchNorm1d(4)
    wrong = copy.deepcopy(norm)
    wrong.momentum = 0.2
    found = _compare(norm, wrong, _x(5, 4)).difference
    assert found.path == "parameter or buffer running_mean"


def test_attributes_that_the_call_changes_are_compared():
    class Counts(nn.Module):
        def __init__(self, step):
            super().__init__()
            self.calls, self.step, self.seen = 0, step, []

        def forward(self, x):
            self.calls += self.step
            self.seen.append(int(x[0]))
            return x + 1

    right, wrong = Counts(1), Counts(1)
    wrong.step = 2
    assert _compare(right, copy.deepcopy(right), torch.tensor([1])).difference is None
    found = _compare(right, wrong, torch.tensor([1])).difference
    assert (found.path, str(found.expected), str(found.got)) == ("attribute calls of Counts after the call", "1", "2")


def test_writes_to_arguments_are_compared():
    right = _Function(lambda x: x.mul_(2) + 1)
    assert _compare(right, copy.deepcopy(right), _x(3)).difference is None
    found = _compare(right, _Function(lambda x: x * 2 + 1), _x(3)).difference
    assert (found.path, found.index) == ("arguments after the call[0]", (0,))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (float("nan"), 0.0),
        (0.0, float("nan")),
        (float("inf"), 3e38),
        (float("inf"), float("-inf")),
        (float("inf"), float("nan")),
    ],
)
def test_nan_and_infinities_stay_where_they_are(right, wrong):
    def gives(value):
        return _Function(lambda x: torch.cat([x, torch.tensor([1.0, value])]))

    assert _compare(gives(right), gives(right), _x(2)).difference is None
    found = _compare(gives(right), gives(wrong), _x(2)).difference
    assert (found.path, found.index) == ("output", (3,))


def test_integers_and_bools_are_exact():
    count = _Function(lambda x: (x > 0).sum())
    assert _compare(count, _Function(lambda x: (x > 0).sum() + 1), _x(9)).difference.path == "output"
    found = _compare(_Function(lambda x: x > 0), _Function(lambda x: x >= 0), torch.tensor([1.0, 0.0])).difference
    assert (found.index, found.expected, found.got) == ((1,), False, True)
    large = torch.tensor([2**53 + 1])
    assert _compare(_Function(lambda x: x), _Function(lambda x: x - 1), large).difference.got == 2**53


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        (lambda x: x, lambda x: x.double(), "output is of dtype torch.float64 instead of of dtype torch.float32"),
        (lambda x: x, lambda x: x[None], "output is of shape [1, 3] instead of of shape [3]"),
        (lambda x: (x,), lambda x: [x], "output is a list of 1 instead of a tuple of 1"),
        (lambda x: {"a": x}, lambda x: {"b": x}, "output is a dict of ['b'] instead of a dict of ['a']"),
        (lambda x: (x, 1), lambda x: (x, 2), "output[1] is 2 instead of 1"),
        (lambda x: (x, None), lambda x: (x, x), "output[1] is a tensor of torch.float32 [3] instead of None"),
        (lambda x: 1, lambda x: True, "output is True instead of 1"),
        (lambda x: x, lambda x: None, "output is None instead of a tensor of torch.float32 [3]"),
        (lambda x: x, lambda x: x.to_sparse(), "output is of layout torch.sparse_coo instead of of layout"),
    ],
)
def test_structure_and_types_are_compared(right, wrong, told):
    assert _compare(_Function(right), _Function(right), _x(3)).difference is None
    assert str(_compare(_Function(right), _Function(wrong), _x(3)).difference).startswith(told)


_Pair = collections.namedtuple("_Pair", "first second")


@dataclasses.dataclass
class _Data:
    logits: torch.Tensor
    rest: list


class _Object:
    def __init__(self, tensor):
        self.tensor = tensor


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda y: {"a": [(y,)]}, "output['a'][0][0]"),
        (lambda y: _Pair(1, y), "output.second"),
        (lambda y: _Data(y, []), "output.logits"),
        (lambda y: _Data(torch.zeros(1), [y]), "output.rest[0]"),
        (lambda y: _Object(y), "output.tensor"),
        (lambda y: collections.OrderedDict(x=y), "output['x']"),
    ],
)
def test_nested_outputs_name_the_place(wrap, path):
    right = _Function(lambda x: wrap(x + 1))
    assert _compare(right, copy.deepcopy(right), _x(3)).difference is None
    assert _compare(right, _Function(lambda x: wrap(x + 2)), _x(3)).difference.path == path


def test_outputs_of_transformers_and_their_caches():
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=30, n_positions=16)).eval()
    name = cache_name(model)
    ids = torch.randint(0, 30, (2, 5), generator=torch.Generator().manual_seed(0))
    found = _compare(model, copy.deepcopy(model), input_ids=ids, use_cache=True)
    assert found.difference is None and found.gradients

    def forward(self, *args, **kwargs):
        result = GPT2Model.forward(self, *args, **kwargs)
        with torch.no_grad():
            result[name].layers[1].values[0, 0, 0, 0] += 1
        return result

    wrong = _compare(model, _with(model, forward), input_ids=ids, use_cache=True).difference
    assert wrong.path.startswith(f"output.{name}.")
    assert "[1]" in wrong.path and wrong.path.endswith(".values")


def test_errors_are_compared():
    right = _Net()

    def forward(self, x):
        raise KeyError("gone")

    found = _compare(right, _with(right, forward), _x(3, 8)).difference
    assert (found.path, found.expected, found.got) == ("the call", "a result", "KeyError: 'gone'")


def test_a_mode_in_which_the_model_raises_must_raise_alike():
    norm = nn.BatchNorm1d(4).eval()  # one value per channel: an error in train mode
    assert _compare(norm, copy.deepcopy(norm), _x(1, 4)).difference is None
    wrong = _with(norm, lambda self, x: F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias))
    assert _compare(norm, wrong, _x(1, 4)).difference.path == "the call"


def test_what_the_model_itself_cannot_take_is_said():
    with pytest.raises(ScheduleError, match="the model itself raises RuntimeError") as caught:
        _compare(_Net(), _Net(), _x(3, 9))
    assert caught.value.code == "S0622"


def test_backward_must_exist_where_it_is_asked_for():
    frozen = _Net().requires_grad_(False)
    ids = _Function(lambda x: x + 1)
    assert _compare(ids, ids, torch.tensor([1])).gradients is False
    with pytest.raises(ScheduleError, match="no output of the model has a gradient"):
        _compare(ids, ids, torch.tensor([1]), backward=True)
    assert _compare(frozen, frozen, _x(3, 8), backward=True).gradients  # that of the argument


def test_a_model_that_looks_into_its_arguments_is_run_without_their_gradients():
    looks = nn.Sequential(_Function(lambda x: x * float(x.numpy().max())), nn.Linear(8, 2))
    found = _compare(looks, copy.deepcopy(looks), _x(3, 8))
    assert found.difference is None and found.gradients


def test_a_reference_whose_backward_fails_is_compared_without():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + 1

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("no gradient")

    fails = _Function(lambda x: Fails.apply(x))
    assert _compare(fails, fails, _x(3)).difference is None
    with pytest.raises(ScheduleError, match="no gradient"):
        _compare(fails, fails, _x(3).requires_grad_(), backward=True)


# Parameters


def test_parameters_that_start_otherwise_are_named():
    net, other = _Net(), _Net()
    with torch.no_grad():
        other.fc2.weight[1, 2] += 1
    found = _compare(net, other, _x(3, 8))
    assert (found.difference.path, found.difference.index, found.where) == (
        "fc2.weight", (1, 2), "before the first call",
    )  # fmt: skip


def test_lost_ties_are_named():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    untied = copy.deepcopy(net)
    untied[1].weight = nn.Parameter(untied[1].weight.detach().clone())
    assert _compare(net, net, _x(2, 4)).difference is None
    found = _compare(net, untied, _x(2, 4)).difference
    assert str(found) == "0.weight and 1.weight is several instead of one tensor"


def test_modes_of_parts_are_compared():
    net = _Net()
    other = copy.deepcopy(net)
    other.drop.eval()
    assert _compare(net, other, _x(3, 8)).difference.path == "drop.training"


class _Renamed(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.first, self.last, self.drop = net.fc1, net.fc2, net.drop

    def forward(self, x):
        return self.last(self.drop(F.relu(self.first(x))))


def test_renamed_parameters_are_matched_by_value():
    net = _Net()
    found = _compare(net, _Renamed(copy.deepcopy(net)), _x(3, 8))
    assert found.difference is None and found.unmatched == ()

    def forward(self, x):
        return F.linear(self.drop(F.relu(self.first(x))), self.last.weight.detach(), self.last.bias)

    wrong = _compare(net, _with(_Renamed(copy.deepcopy(net)), forward), _x(3, 8)).difference
    assert wrong.path == "gradient of parameter fc2.weight"


class _Merged(nn.Module):
    """Two linears as one; its checkpoint is that of the two."""

    def __init__(self, two):
        super().__init__()
        self.weight = nn.Parameter(torch.cat([two.a.weight, two.b.weight]).detach())
        self.scale = 1.0
        self.register_state_dict_post_hook(self._split)

    @staticmethod
    def _split(module, state, prefix, metadata):
        weight = state.pop(prefix + "weight")
        state[prefix + "a.weight"], state[prefix + "b.weight"] = weight[:3], weight[3:]

    def forward(self, x):
        weight = self.weight
        if self.scale != 1.0:
            weight = weight.detach() + (weight - weight.detach()) * self.scale
        a, b = F.linear(x, weight).split((3, 2), -1)
        return a, b


class _Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 3, bias=False), nn.Linear(4, 2, bias=False)

    def forward(self, x):
        return self.a(x), self.b(x)


def test_merged_weights_are_compared_under_their_own_names():
    two = _Two()
    merged = _Merged(two)
    found = _compare(two, merged, _x(2, 4))
    assert found.difference is None and found.unmatched == ()
    merged.scale = 2.0
    wrong = _compare(two, merged, _x(2, 4)).difference
    assert wrong.path == "gradient of parameter a.weight"
    assert wrong.got == pytest.approx(2 * wrong.expected, rel=1e-5)


def test_models_without_parameters_and_arguments():
    assert _compare(_Function(lambda: torch.ones(2)), _Function(lambda: torch.ones(2))).difference is None
    assert _compare(_Function(lambda: torch.ones(2)), _Function(lambda: torch.zeros(2))).difference.path == "output"


# Rounding


class _Split(nn.Linear):
    """A linear layer whose sums are taken in another order."""

    def forward(self, x):
        half = x.shape[-1] // 2
        return x[..., :half] @ self.weight.t()[:half] + (x[..., half:] @ self.weight.t()[half:] + self.bias)


class _Off(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight * (1 + self.off), self.bias)


def _deep(kind=nn.Linear, **attributes):
    torch.manual_seed(0)
    layers = []
    for _ in range(3):
        layer = kind(64, 64)
        for name, value in attributes.items():
            setattr(layer, name, value)
        layers += [layer, nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_another_order_of_sums_is_no_difference(dtype):
    found = _compare(_deep().to(dtype), _deep(_Split).to(dtype), _x(7, 64).to(dtype))
    assert found.difference is None
    assert 0 < found.error < 100 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("dtype", "off"), [(torch.float32, 1e-5), (torch.float64, 1e-13), (torch.bfloat16, 0.1), (torch.float16, 0.02)]
)
def test_what_rounding_does_not_explain_is_a_difference(dtype, off):
    found = _compare(_deep().to(dtype), _deep(_Off, off=off).to(dtype), _x(7, 64).to(dtype))
    assert found.difference is not None and found.difference.is_rounding


def test_one_wrong_element_among_many_is_a_difference():
    def forward(self, x):
        y = nn.Sequential.forward(self, x)
        return y + F.one_hot(torch.tensor(5), 64) * 1e-4

    assert _compare(_deep().eval(), _with(_deep().eval(), forward), _x(70, 64)).difference.index[-1] == 5


def test_gradients_that_are_zero_but_for_rounding_agree():
    def made(kind):
        torch.manual_seed(0)
        return nn.Sequential(kind(64, 8), nn.BatchNorm1d(8))

    # A bias before a batch norm has no effect: its gradient is rounding alone, and another order gives other ones.
    found = _compare(made(nn.Linear), made(_Split), _x(16, 64))
    assert found.difference is None and not found.is_bitwise
    assert str(found).startswith("results, states and gradients of 4 runs agree within rounding (results ")


class _Attends(nn.Module):
    """Attention behind a norm. A bias of keys changes nothing, and one key has all weight: what is left is rounding."""

    def __init__(self, width, is_fused):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Parameter(torch.randn(width, width) * 0.3) for _ in range(3))
        self.bias, self.is_fused = nn.Parameter(torch.randn(width)), is_fused

    def forward(self, x):
        x = F.layer_norm(x, x.shape[-1:])
        q, k, v = x @ self.q, torch.addmm(self.bias, x, self.k), x @ self.v
        if not self.is_fused:
            return torch.softmax(q @ k.t() / 8, -1) @ v
        return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], scale=0.125)[0, 0]


@pytest.mark.spread(3)
@pytest.mark.parametrize("rows", [1, 2, 5, 16])
@pytest.mark.parametrize("width", [8, 16, 64])
def test_what_a_row_has_in_common_is_rounded_in_common(width, rows):
    found = _compare(_Attends(width, False), _Attends(width, True), _x(rows, width))
    assert found.difference is None


def test_a_wrong_gradient_beside_one_that_is_rounding_alone_is_a_difference():
    def wrong(self, x):
        y = _Attends.forward(self, x)
        return y + (1e-5 * (self.bias - self.bias.detach())).sum()

    found = _compare(_Attends(16, False), _with(_Attends(16, True), wrong), _x(5, 16))
    assert found.difference.path == "gradient of parameter bias"


def test_a_result_that_is_zero_has_no_relative_error():
    comparer = Comparer(Tolerance())
    values = [[Item("gradient", torch.full((3,), value))] for value in (0.0, 1e-10, 0.0, 1e-9)]
    assert comparer.first(*values[:3], [values[3]]) is None
    assert comparer.first(*values[:3]).path == "gradient" and comparer.errors["gradient"] == 0


def test_cancellation_is_judged_by_what_cancels():
    right = _Function(lambda x: (x.sum() + 1e4) - 1e4)
    other = _Function(lambda x: (x.flip(0).cumsum(0)[-1] + 1e4) - 1e4)
    assert _compare(right, other, _x(1000)).difference is None
    assert _compare(right, _Function(lambda x: (x.sum() + 1e4) - 1e4 + 0.5), _x(1000)).difference is not None


def test_dropout_and_random_numbers_are_followed_in_float64():
    def noisy(kind):
        torch.manual_seed(0)
        add = _Function(lambda x: x + torch.randn_like(x) * torch.rand(x.shape) + torch.bernoulli(torch.sigmoid(x)))
        return nn.Sequential(kind(64, 64), add, nn.Dropout(0.5))

    found = _compare(noisy(nn.Linear), noisy(_Split), _x(9, 64))
    assert found.difference is None and found.error > 0


def test_complex_values():
    right = _Function(lambda x: torch.fft.fft(x))
    assert _compare(right, _Function(lambda x: torch.fft.fft(x.flip(0).flip(0))), _x(16)).difference is None
    found = _compare(right, _Function(lambda x: torch.fft.fft(x).conj()), _x(16)).difference
    assert found.path == "output"


def test_without_float64_floats_are_close_by_their_type():
    class Stubborn(nn.Linear):
        def forward(self, x):
            if x.dtype == torch.float64:
                raise TypeError("only f32")
            return super().forward(x)

    class StubbornSplit(_Split):
        pass

    def made(kind, scale=1.0):
        torch.manual_seed(0)
        return nn.Sequential(kind(64, 64), _Function(lambda x: x * scale))

    assert _compare(made(Stubborn), made(StubbornSplit), _x(5, 64)).difference is None
    found = _compare(made(Stubborn), made(StubbornSplit, 1.001), _x(5, 64)).difference
    assert "are close within" in found.why


def test_constants_in_f32_do_not_blunt_the_float64_run():
    scaled = nn.Sequential(_Function(lambda x: x.to(torch.float32) * torch.tensor(0.1)), nn.Linear(64, 4))
    other = copy.deepcopy(scaled)
    other[0].function = lambda x: x.to(torch.float32) * torch.tensor(0.1 + 1e-6)
    assert _compare(scaled, copy.deepcopy(scaled), _x(5, 64)).difference is None
    assert _compare(scaled, other, _x(5, 64)).difference is not None


def test_what_steps_give_away_is_allowed_and_no_more():
    lossy = Tolerance(lossy=0.02)
    right, x = _deep().eval(), _x(9, 64)
    assert _compare(right, _deep(_Off, off=1e-3).eval(), x, tolerance=Tolerance()).difference is not None
    found = _compare(right, _deep(_Off, off=1e-3).eval(), x, tolerance=lossy, backward=False)
    assert found.difference is None and 1e-5 < found.error < 0.02
    assert _compare(right, _deep(_Off, off=0.5).eval(), x, tolerance=lossy).difference is not None


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_scalars_and_empty_tensors(shape):
    function = _Function(lambda x: (x * 2, x.sum()))
    assert _compare(function, copy.deepcopy(function), _x(*shape)).difference is None
    assert _compare(function, _Function(lambda x: (x * 2, x.sum() + 1)), _x(*shape)).difference.path == "output[1]"


def test_items_name_each_leaf_once_and_end_in_cycles():
    loop = [1]
    loop.append(loop)
    assert [item.path for item in items(loop, "x")] == ["x", "x[0]", "x[1]"]
    assert Comparer(None).first(items(loop, "x"), items(loop, "x")) is None


# Nothing is left behind


def _global_state():
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        repr(np.random.get_state(legacy=False)["state"]["key"].tolist()),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
        sys.gettrace(),
        sys.getprofile(),
        torch.get_num_threads(),
        len(torch.nn.modules.module._global_forward_hooks),
    )


@pytest.mark.parametrize("fails", [False, True])
def test_no_global_state_changes(fails):
    net = _Net()
    candidate = _with(net, lambda self, x: _Net.forward(self, x) + 1) if fails else copy.deepcopy(net)
    before = _global_state()
    assert (_compare(net, candidate, _x(3, 8)).difference is not None) == fails
    with torch.inference_mode():
        assert (_compare(net, candidate, _x(3, 8)).difference is not None) == fails
    with torch.no_grad():
        assert _compare(net, net, _x(3, 8)).gradients
    assert _global_state() == before


def test_neither_arguments_nor_their_gradients_are_touched():
    x = _x(3, 4).requires_grad_()
    y = x * 2  # no leaf
    kept = y.detach().clone()
    writes = _Function(lambda a, b: a.mul_(3) + b["y"])
    assert _compare(writes, writes, y, {"y": y}).difference is None
    assert torch.equal(y, kept) and x.grad is None and y.requires_grad


def test_aliased_arguments_stay_aliased():
    base = _x(4)
    writes = _Function(lambda a, b: (a.add_(1), b * 1)[1])
    reads_first = _Function(lambda a, b: (b * 1, a.add_(1))[0])
    assert _compare(writes, writes, base, base[:2], backward=False).difference is None
    assert _compare(writes, reads_first, base, base[:2], backward=False).difference.path == "output"
