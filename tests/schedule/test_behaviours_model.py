"""Acceptance behaviours 22 to 25 of a schedule language: ties, checks, captures, what the model keeps."""

import copy
import dataclasses
import random
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.scheduling import StepError

from .models import Mlp, RMSNorm, Same, Tied, fixed

pytestmark = pytest.mark.usefixtures("one_thread")


def test_behaviour_22_build_keeps_ties_and_weights():
    model, ids = Tied(), torch.tensor([1, 2, 3])
    s = smelt.schedule(model, ids)
    assert s.ties == (("embed.weight", "head.weight"),)
    for built in (s.build(), s.replace_all(nn.LayerNorm, lambda path, old: nn.Sequential(old)).build()):
        assert built.head.weight is built.embed.weight
        assert torch.equal(built.head.weight, model.head.weight) and built.head.weight is not model.head.weight
        assert torch.equal(built(ids), model(ids))
    tied = s["head"].replace(make=lambda path, old: nn.Sequential(old)).build()
    assert tied.head[0].weight is tied.embed.weight
    assert s.ties == (("embed.weight", "head.0.weight"),)


def test_behaviour_23_a_wrong_replacement_fails_and_a_right_one_passes():
    model = Mlp()
    s = smelt.schedule(model)
    s["act"].replace(nn.LeakyReLU(0.0))
    assert s.verify(fixed(4, 8)).difference is None
    s.undo()
    s["act"].replace(nn.GELU())
    with pytest.raises(smelt.VerifyError, match="after step 1") as caught:
        s.verify(fixed(4, 8))
    error = caught.value
    assert (error.code, error.step) == ("S0621", s.log[0])
    assert error.difference.path == "output['out']"
    index, x = error.difference.index, fixed(4, 8)
    torch.manual_seed(2013)
    with torch.no_grad():
        assert error.difference.expected == copy.deepcopy(model)(x)["out"][index].item()
    assert error.where.line == s.log[0].where.line and error.where.file == __file__
    assert f"output['out'][{', '.join(map(str, index))}] is " in str(error)
    assert "input 0 in train mode without gradients" in error.why


def test_behaviour_23_models_without_parameters():
    s = smelt.schedule(nn.Sequential(nn.ReLU(), nn.Softmax(-1)))
    assert s.verify(fixed(3, 4)).gradients
    s["0"].replace(nn.ReLU6())
    assert s.verify(fixed(3, 4)).difference is None
    with pytest.raises(StepError):
        s.verify(fixed(3, 4) * 100)


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    states: tuple


def test_behaviour_23_keywords_and_nested_outputs():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fc = nn.Linear(4, 4)

        def forward(self, x, *, mask=None, labels=None):
            y = self.fc(x)
            y = y if mask is None else y.masked_fill(mask, 0.0)
            loss = F.mse_loss(y, labels["a"][0]) if labels else None
            return Answer(y, (loss, {"h": [y * 2]}))

    s = smelt.schedule(Nested())
    s["fc"].replace(make=lambda path, old: Same.of(old))
    given = {"mask": torch.eye(4) > 0, "labels": {"a": (fixed(4, 4, seed=2),)}}
    assert s.verify(fixed(4, 4), **given).difference is None
    s.undo()
    s["fc"].replace(make=lambda path, old: Same.of(old, off=1e-3))
    with pytest.raises(StepError) as caught:
        s.verify(fixed(4, 4), **given)
    assert (caught.value.difference.path, caught.value.difference.index) == ("output.logits", (0, 1))


def test_behaviour_23_renamed_parameters():
    class Renamed(nn.Module):
        def __init__(self, old):
            super().__init__()
            self.w, self.b = old.weight, old.bias

        def forward(self, x):
            return F.linear(x, self.w, self.b)

    s = smelt.schedule(Mlp())
    s["layers.1"].replace(make=lambda path, old: Renamed(old))
    found = s.verify(fixed(4, 8))
    assert found.gradients and found.unmatched == ()


def test_behaviour_23_backward_of_inputs_and_parameters():
    class NoGradient(Same):
        def forward(self, x):
            return super().forward(x.detach())

    class Frozen(Same):
        def forward(self, x):
            return F.linear(x, self.weight.detach(), self.bias)

    for kind, path in ((NoGradient, "gradient of argument [0]"), (Frozen, "gradient of parameter layers.0.weight")):
        s = smelt.schedule(Mlp(1))
        s["layers.0"].replace(make=lambda path, old, kind=kind: kind.of(old))
        assert s.verify(fixed(4, 8), backward=False).difference is None
        with pytest.raises(StepError) as caught:
            s.verify(fixed(4, 8))
        assert caught.value.difference.path == path
        assert "with gradients" in caught.value.why


def _global_state():
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
        sys.gettrace(),
        sys.getprofile(),
        torch.overrides.has_torch_function((0,)),
        len(torch.nn.modules.module._global_forward_hooks),
        torch.nn.Module.__call__,
    )


@pytest.mark.parametrize("wrong", [False, True])
def test_behaviour_23_leaves_no_global_state(wrong):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model(fixed(8, 4)).sum().backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    s = smelt.schedule(model, fixed(8, 4))
    if wrong:
        s["0"].replace(make=lambda path, old: Same.of(old, off=0.1))
    before = _global_state()
    for _ in range(2):
        if wrong:
            with pytest.raises(StepError):
                s.verify()
        else:
            s.verify()
    assert _global_state() == before
    assert model.training and all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert all(torch.equal(grad, p.grad) for grad, p in zip(grads, model.parameters(), strict=True))
    assert len(s.log) == wrong


def test_behaviour_24_a_module_that_cannot_be_captured_says_so():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.from_numpy(x.numpy() + 1)

    model = nn.Sequential(Odd())
    with pytest.raises(smelt.ScheduleError) as caught:
        smelt.schedule(model).find(lambda x: torch.sin(x))
    assert caught.value.code == "S0605" and "test_behaviours_model.py" in caught.value.why


def test_behaviour_24_a_module_whose_way_depends_on_data_refuses_steps_on_its_graph_and_says_where():
    class Model(nn.Module):
        def forward(self, x):
            y = torch.sin(x)
            return y if y.sum() > 0 else torch.cos(y)

    s = smelt.schedule(Model(), torch.ones(3))
    with pytest.raises(smelt.ScheduleError) as caught:
        s.replace(torch.cos, s.find(lambda x: torch.sin(x))[0])
    assert caught.value.code == "S0613"
    assert caught.value.where is not None and "y.sum() > 0" in caught.value.where.text
    assert not s.log


def test_behaviour_24_what_cannot_be_captured_says_so():
    class Never(nn.Module):
        def forward(self, x):
            raise NotImplementedError("not written")

    with pytest.raises(smelt.ScheduleError) as caught:
        smelt.schedule(Never()).find(lambda x: x.sin())
    assert caught.value.code == "S0605"
    assert "Never" in str(caught.value)
    assert "not written" in str(caught.value)


def test_behaviour_25_eval_stays_eval_and_train_changes_dropout_after_the_step():
    model, x = RMSNorm().eval(), torch.randn(3, 8)
    keys = list(model.state_dict())
    s = smelt.schedule(model, x)
    built = s.replace(lambda x: 1 / torch.sqrt(x), s.find(lambda x: torch.rsqrt(x))[0]).build()

    def expected(x):
        y = x * (1 / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return model.weight * y

    assert not built.training and not built.drop.training
    assert list(built.state_dict()) == keys
    assert torch.equal(built(x), expected(x))
    built.train()
    torch.manual_seed(3)
    found = built(x)
    torch.manual_seed(3)
    assert torch.equal(found, F.dropout(expected(x)))
    built.eval()
    assert torch.equal(built(x), expected(x))
    assert not model.training and list(model.state_dict()) == keys and "forward" not in model.__dict__


def test_behaviour_25_the_model_is_never_touched():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    names = {name: set(vars(module)) for name, module in model.named_modules()}
    for examples in (None, torch.randn(3, 4, generator=torch.Generator().manual_seed(1))):
        s = smelt.schedule(model, examples)
        assert s.find(nn.Linear)
        assert s.find(lambda x: x.sin()) == []
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert names == {name: set(vars(module)) for name, module in model.named_modules()}
    assert [type(module) for module in model] == [nn.Linear, nn.BatchNorm1d, nn.Dropout]


def test_behaviour_25_eval_stays_eval_and_is_seen():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    s = smelt.schedule(model)
    assert s.find(lambda x: F.dropout(x, 0.5)) == []
    assert len(s.find(lambda x: F.dropout(x, 0.5, training=False))) == 1
    assert not model.training
