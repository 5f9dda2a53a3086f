"""Verifying a schedule: the wrong step is named, with the first value that differs; nothing is left behind."""

import gc
import pickle
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.scheduling import Arguments, StepError

from .models import Mlp, Same, fixed

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.usefixtures("young_heap")
def test_copies_of_the_model_are_released():
    s = smelt.schedule(Mlp(), fixed(2, 8))
    s["act"].replace(nn.LeakyReLU(0.0))
    s.verify()
    gc.collect()
    before = sum(type(o) is Mlp for o in gc.get_objects())
    s.verify()
    gc.collect()
    assert sum(type(o) is Mlp for o in gc.get_objects()) == before


def test_a_schedule_without_steps_agrees_bit_for_bit():
    found = smelt.schedule(Mlp(), fixed(4, 8)).verify(scale=2.0, x=fixed(2, 8))
    assert found.error == 0.0 and found.gradients and found.runs == 4


def test_several_inputs():
    s = smelt.schedule(Mlp())
    s["act"].replace(nn.Hardtanh(0.0, 5.0))
    small, large = fixed(4, 8), fixed(4, 8) * 1000
    kinds = [small, (small,), {"x": small, "scale": 2.0}, Arguments((small,), {"scale": 3.0})]
    assert s.verify(inputs=kinds).runs == 16
    assert s.verify(small, scale=0.5, inputs=kinds).runs == 20
    with pytest.raises(StepError, match="after step 1") as caught:
        s.verify(small, inputs=[small, large])
    assert "input 2" in caught.value.why


def test_there_must_be_something_to_compare_on():
    with pytest.raises(smelt.ScheduleError, match="nothing to compare on") as caught:
        smelt.schedule(Mlp()).verify()
    assert caught.value.code == "S0622"
    with pytest.raises(smelt.ScheduleError, match="the model itself raises RuntimeError"):
        smelt.schedule(Mlp()).verify(fixed(4, 9))
    with pytest.raises(smelt.ScheduleError, match="arguments cannot be copied"):
        smelt.schedule(Mlp()).verify(fixed(4, 8), scale=sys._getframe())


@pytest.mark.spread(2)
@pytest.mark.parametrize("wrong", range(6))
def test_the_wrong_step_is_found_among_many(wrong):
    model = Mlp(6)
    s = smelt.schedule(model, fixed(3, 8))
    for i in range(6):
        s[f"layers.{i}"].replace(make=lambda path, old, i=i: Same.of(old, off=0.01 if i == wrong else 0.0))
    with pytest.raises(StepError) as caught:
        s.verify()
    assert caught.value.step is s.log[wrong]
    assert f"after step {wrong + 1}, s['layers.{wrong}']" in str(caught.value)
    assert len(s.log) == 6


def test_the_first_of_two_wrong_steps_or_the_second_is_named_never_a_right_one():
    s = smelt.schedule(Mlp(6), fixed(3, 8))
    for i in range(6):
        s[f"layers.{i}"].replace(make=lambda path, old, i=i: Same.of(old, off=0.01 * (i in (1, 4))))
    with pytest.raises(StepError) as caught:
        s.verify()
    assert caught.value.step in (s.log[1], s.log[4])


def test_steps_on_graphs_are_verified():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return F.relu(self.fc(x)) + x

    def pattern(x, y):
        return F.relu(x) + y

    s = smelt.schedule(Net(), fixed(4, 8))
    s.replace(lambda x, y: torch.clamp(x, min=0) + y, s.find(pattern)[0])
    assert s.verify().difference is None
    s.undo()
    s.replace(lambda x, y: F.relu(x) - y, s.find(pattern)[0])
    with pytest.raises(StepError, match="after step 1"):
        s.verify()


def test_verify_each_refuses_the_step_that_is_wrong():
    model = Mlp()
    s = smelt.schedule(model, fixed(4, 8), verify_each=True)
    s["layers.0"].replace(make=lambda path, old: Same.of(old))
    built = s.build()
    with pytest.raises(StepError, match="after step 2") as caught:
        s["layers.*"].replace(make=lambda path, old: Same.of(old, off=0.1))
    assert caught.value.difference.path == "output['out']"
    assert [step.path for step in s.log] == ["layers.0"]
    assert str(s.build()) == str(built)
    s["layers.1"].replace(make=lambda path, old: Same.of(old))
    assert s.verify().difference is None and len(s.log) == 2


def test_verify_each_needs_inputs():
    with pytest.raises(smelt.ScheduleError, match="nothing to compare on"):
        smelt.schedule(Mlp(), verify_each=True)


def test_a_step_that_makes_the_model_raise_is_named():
    s = smelt.schedule(Mlp(), fixed(4, 8))
    s["layers.1"].replace(nn.Linear(9, 8))
    with pytest.raises(StepError) as caught:
        s.verify()
    assert caught.value.step is s.log[0]


def test_weights_of_a_replacement_that_are_not_the_models_are_named():
    s = smelt.schedule(Mlp(), fixed(4, 8))
    s["layers.1"].replace(nn.Linear(8, 8))
    with pytest.raises(StepError, match=r"layers\.1\.weight\[0, 0\] is ") as caught:
        s.verify()
    assert "before the first call" in caught.value.why


def test_errors_are_pickled_with_what_differs():
    s = smelt.schedule(Mlp(), fixed(4, 8))
    s["act"].replace(nn.GELU())
    with pytest.raises(StepError) as caught:
        s.verify()
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and again.difference == caught.value.difference


def test_random_numbers_of_each_run_are_the_same_and_the_callers_are_kept():
    s = smelt.schedule(Mlp(), fixed(4, 8))
    s["drop"].replace(nn.Dropout(0.1))
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    s.verify()
    assert torch.equal(torch.rand(3), expected)
    s["drop"].replace(nn.Dropout(0.11))
    with pytest.raises(StepError) as caught:
        s.verify()
    assert "train mode" in caught.value.why


def test_a_model_in_eval_mode_is_verified_in_train_mode_too():
    s = smelt.schedule(Mlp().eval(), fixed(4, 8))
    s["drop"].replace(nn.Identity())
    with pytest.raises(StepError) as caught:
        s.verify()
    assert "input 0 in train mode" in caught.value.why


def test_transformers_models():
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=40)
    torch.manual_seed(0)
    model = BertModel(config).eval()
    ids = torch.randint(0, 40, (2, 6), generator=torch.Generator().manual_seed(0))
    s = smelt.schedule(model)
    s["encoder.layer.*.output.dense"].replace(make=lambda path, old: Same.of(old))
    assert s.verify(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True).gradients
    s["encoder.layer.1.output.dense"].replace(make=lambda path, old: Same.of(old, off=1e-3))
    with pytest.raises(StepError) as caught:
        s.verify(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
    assert caught.value.step is s.log[1]
    assert caught.value.difference.path == "output.last_hidden_state"
