"""Runs of a schedule on the memory of the user's model: everything is bit for bit as before afterwards."""

import contextlib
import copy
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.scheduling.finding import probing
from smelt.scheduling.finding.probing import probe_of, run_seen

WIDTH = 96  # weights of 36 KB: large enough to be shared


class _Layer(nn.Module):
    def __init__(self, act=None):
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(WIDTH, WIDTH))
        self.act = act if act is not None else _none

    def forward(self, x):
        y = self.drop(self.norm(self.fc(x)))
        self.count.add_(1)
        self.act(self)
        return F.gelu(y)


def _none(layer):
    pass


def _in_place(layer):
    with torch.no_grad():
        layer.fc.weight.mul_(2)


def _through_a_view(layer):
    layer.fc.weight.data[3:5].zero_()


def _many(layer):
    with torch.no_grad():
        torch._foreach_add_([layer.fc.weight, layer.fc.bias], 1.0)


def _out(layer):
    with torch.no_grad():
        torch.add(layer.fc.weight, 1, out=layer.fc.weight)


def _numpy(layer):
    layer.fc.weight.detach().numpy()[2] = 7


def _array(layer):
    np.asarray(layer.fc.weight.detach())[2] = 7


def _storage(layer):
    layer.fc.weight.untyped_storage().fill_(1)


def _dlpack(layer):
    np.from_dlpack(layer.fc.weight.detach()).view()[...].sum()
    torch.from_dlpack(layer.fc.weight.detach()).fill_(3)


def _other_tensor(layer):
    layer.fc.weight.data = torch.zeros(WIDTH, WIDTH)
    layer.fc.weight.requires_grad_(False)
    layer.fc.weight.note = "seen"
    layer.fc.weight.grad = torch.ones(WIDTH, WIDTH)


def _resized(layer):
    with torch.no_grad():
        layer.fc.weight.requires_grad_(False).resize_(2 * WIDTH, WIDTH).zero_()


def _set(layer):
    with torch.no_grad():
        layer.fc.weight.set_(torch.zeros(3, WIDTH))


def _backward(layer):
    with torch.enable_grad():
        F.linear(torch.ones(2, WIDTH), layer.fc.weight).sum().backward()
    with torch.no_grad():
        layer.fc.weight.sub_(layer.fc.weight.grad)


def _hooked(layer):
    layer.fc.register_forward_hook(lambda *given: None)
    layer.fc.weight.register_hook(lambda grad: grad)


def _drawing(layer):
    torch.rand(3), random.random(), np.random.rand()


def _other_operator(layer):
    torch.ops.smelt_probing_test.careless(layer.fc.weight)


ACTS = [
    _none, _in_place, _through_a_view, _many, _out, _numpy, _array, _storage, _dlpack, _other_tensor, _resized, _set,
    _backward, _hooked, _drawing, _other_operator,
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _operator():
    library = torch.library.Library("smelt_probing_test", "DEF")
    library.define("careless(Tensor x) -> Tensor")  # says nothing of what it writes

    def careless(x):
        x.detach().zero_()
        return x.clone()

    library.impl("careless", careless, "CPU")
    library.impl("careless", careless, "AutogradCPU")
    yield
    library._destroy()


def _raising(act):
    def raising(layer):
        act(layer)
        raise ValueError("in the middle")

    return raising


class _Model(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.first, self.second = _Layer(), _Layer(act)

    def forward(self, x):
        return self.second(self.first(x))


def _seen(model):
    """All that a user can see of a model and the process."""
    tensors = {}
    for name, t in [*model.named_parameters(), *model.named_buffers()]:
        tensors[name] = (
            id(t), t.data_ptr(), t._version, t.untyped_storage().nbytes(), t.shape, t.stride(), t.requires_grad,
            None if t.grad is None else t.grad.clone().numpy().tobytes(), dict(t.__dict__), t._backward_hooks,
            t.detach().clone().numpy().tobytes(),
        )  # fmt: skip
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    drawn = np.random.get_state()
    return (
        tensors, hooks, [(id(m), m.training) for m in model.modules()], torch.get_rng_state().numpy().tobytes(),
        random.getstate(), drawn[1].tobytes() + repr(drawn[2:]).encode(), torch.is_grad_enabled(),
    )  # fmt: skip


@pytest.mark.spread(14)
@pytest.mark.parametrize("act", [*ACTS, *map(_raising, ACTS)], ids=lambda a: getattr(a, "__qualname__", "") + "_")
@pytest.mark.parametrize("grad", [True, False])
def test_a_search_leaves_the_model_as_it_was(act, grad):
    model, x = _Model(act), torch.randn(4, WIDTH)
    assert probing._shared(model), "nothing is shared, so that this tests nothing"
    before = _seen(model)
    with torch.set_grad_enabled(grad), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        s = smelt.schedule(model, x)
        s.find(lambda x: F.gelu(x))
        assert _seen(model)[:-1] == before[:-1]
        # What some of these do is refused, or raises when it is done again.
        with contextlib.suppress(smelt.ScheduleError, RuntimeError, ValueError):
            s["second"].replace(lambda x: F.gelu(x), s["second"].find(lambda x: F.gelu(x))[:1], scope="second")
    assert _seen(model) == before


@pytest.mark.parametrize("act", [a for a in ACTS if a is not _none], ids=lambda a: a.__name__)
def test_a_probe_runs_as_its_model(act):
    """Values are those of a copy with memory of its own, while the model's stay."""
    model, x = _Model(act).eval(), torch.randn(4, WIDTH)
    copied, before = copy.deepcopy(model), _seen(model)
    torch.manual_seed(0), copied(x)
    with probe_of(model) as probe:
        torch.manual_seed(0), run_seen(probe, (x,))
        after = {name: tensor.detach().clone() for name, tensor in probe.state_dict().items()}
    for name, tensor in copied.state_dict().items():
        assert torch.equal(tensor, after[name]), name
    assert _seen(model)[:3] == before[:3]


def test_weights_are_not_copied_by_a_search():
    model, x = _Model(_none).eval(), torch.randn(4, WIDTH)
    with probe_of(model) as probe:
        weight, own = probe.first.fc.weight, model.first.fc.weight
        assert weight is not own
        assert weight.data_ptr() == own.data_ptr()
        assert probe.first.count.data_ptr() != model.first.count.data_ptr()
        run_seen(probe, (x,))


def test_ties_and_views_stay_in_a_probe():
    model = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
    model[1].weight = model[0].weight
    joined = torch.randn(2 * WIDTH, WIDTH)
    model[2].weight = nn.Parameter(joined[:WIDTH])
    model.register_buffer("other", joined[WIDTH:])
    with probe_of(model) as probe:
        assert probe[1].weight is probe[0].weight
        assert probe[0].weight.data_ptr() == model[0].weight.data_ptr()
        assert probe[2].weight.data_ptr() != model[2].weight.data_ptr()


def test_a_probe_within_a_schedule_with_steps_has_memory_of_its_own():
    model, x = _Model(_none).eval(), torch.randn(4, WIDTH)
    s = smelt.schedule(model, x)
    before = _seen(model)
    layer = s["first.act"] if "first.act" in s else s["first.fc"]
    layer.outline(layer.find(lambda x, w, b: F.linear(x, w, b)), name="fc", scope="first.fc")
    assert s.find(lambda x: F.gelu(x))
    assert not probing.is_seen(s._state.tree)
    assert _seen(model) == before
