"""Steps on modules, and what is built: copies, transactions, primitives of one's own."""

import copy
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt

from .models import Block, RMSNorm, Tied


def _parts(module):
    return {id(part) for part in module.modules()}


def test_no_step_is_a_plain_copy_bitwise_eager():
    model, ids = Tied().eval(), torch.tensor([1, 2, 3])
    model.norm.train()
    built = smelt.schedule(model).build()
    assert type(built) is Tied and built is not model and not _parts(built) & _parts(model)
    assert list(built.state_dict()) == list(model.state_dict())
    assert torch.equal(built(ids), model(ids))
    assert [part.training for part in built.modules()] == [part.training for part in model.modules()]
    assert built.note == model.note and built.note is not model.note
    assert torch.equal(built.seen, model.seen) and "seen" not in built.state_dict()
    with torch.no_grad():
        built.norm.weight.add_(1)
    assert torch.equal(model.norm.weight, torch.ones(4))


def test_share_has_the_very_tensors_and_modules_of_its_own():
    model = Tied()
    built = smelt.schedule(model).build(share=True)
    assert not _parts(built) & _parts(model)
    assert built.norm.weight is model.norm.weight and built.seen is model.seen
    assert built.head.weight is built.embed.weight is model.embed.weight


@pytest.mark.parametrize("share", [False, True])
def test_empty_tables_of_a_copy_are_its_own_and_one_where_they_were_one(share):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    noted = OrderedDict()
    noted.title = "kept"
    model.seen, model.noted, model.names = {}, noted, set()
    model[0].seen, model[1].noted = model.seen, noted
    built = smelt.schedule(model).build(share=share)
    assert built[0].seen is built.seen and built[1].noted is built.noted and built.noted.title == "kept"
    built.seen["x"], built.noted["x"] = 1, 1
    built.names.add("x")
    built[0].register_forward_hook(lambda module, args, result: result * 0)
    assert not model.seen and not model.noted and not model.names and not model[0]._forward_hooks
    assert not built[1]._forward_hooks and type(built[0]._forward_hooks) is OrderedDict


def test_a_built_module_pickles_with_its_steps():
    model, x = RMSNorm().eval(), torch.randn(3, 8)
    s = smelt.schedule(model, x)
    s.replace(torch.sqrt, s.find(lambda x: torch.rsqrt(x))[0])
    built = s.build()
    again = pickle.loads(pickle.dumps(built))
    assert torch.equal(again(x), built(x))


# --- transactions


def test_a_refused_step_changes_nothing():
    model = Block()
    s = smelt.schedule(model)
    s["fc"].replace(nn.Identity())
    text, keys = str(s), list(s.build().state_dict())
    for wrong, code in ((lambda: s["fc"].replace(3), "S0608"), (lambda: s.replace_all(nn.Conv2d, None), "S0607")):
        with pytest.raises(smelt.ScheduleError) as caught:
            wrong()
        assert caught.value.code == code
        assert str(s) == text and list(s.build().state_dict()) == keys and len(s.log) == 1
    with pytest.raises(smelt.ScheduleError, match="make raises ZeroDivisionError") as caught:
        s.replace_all(nn.ReLU, lambda path, old: 1 / 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert str(s) == text and len(s.log) == 1


def test_undo_goes_back_step_by_step():
    model, x = Block(), torch.randn(2, 4)
    s = smelt.schedule(model, x)
    s["fc"].replace(nn.Identity())
    s.replace(F.gelu, s.find(lambda x: F.relu(x)), each=True)
    assert len(s.log) == 2
    assert torch.equal(s.undo().build()(x), _without_first(model)(x)) and len(s.log) == 1
    assert torch.equal(s.undo().build()(x), model(x)) and s.module is model
    with pytest.raises(smelt.ScheduleError):
        s.undo()


def _without_first(model):
    model = copy.deepcopy(model)
    model.fc = nn.Identity()
    return model


def test_the_printed_tree_shows_what_was_done_where():
    s = smelt.schedule(Block())
    s["fc"].replace(nn.Identity())
    rows = str(s).splitlines()
    assert rows[1].split("#")[0].strip() == "fc: Identity" and "was Linear" in rows[1]
    assert "#" not in rows[2]
    assert "-fc: Linear" in s.diff() and "+fc: Identity" in s.diff()


def test_a_module_given_to_several_places_has_weights_of_its_own_in_each():
    model = nn.ModuleList([Block(), Block()])
    s = smelt.schedule(model)
    s["*.fc"].replace(nn.Linear(4, 4))
    built = s.build()
    assert len(s.log) == 1 and s.log[0].path == "*.fc"
    assert torch.equal(built[0].fc.weight, built[1].fc.weight)
    assert built[0].fc.weight is not built[1].fc.weight


# --- primitives of one's own


def test_a_registered_primitive_is_a_method_of_schedules():
    @smelt.register_primitive
    def freeze_for_test(draft, at, *, value=False):
        draft.module(at.path).requires_grad_(value)
        draft.note(at.path, "frozen")

    class Half(smelt.Primitive):
        name = "half_for_test"

        def apply(self, draft, at):
            draft.put(at.path, draft.own(nn.Identity()))

    assert smelt.register_primitive(Half) is Half
    model = Block()
    s = smelt.schedule(model)
    s["fc"].freeze_for_test().half_for_test
    s["seq.0"].half_for_test()
    built = s.build()
    assert type(built.seq[0]) is nn.Identity and "frozen" in str(s)
    assert {"freeze_for_test", "half_for_test", "replace"} <= set(smelt.list_primitives())
    assert smelt.list_primitives(name_only=False)["half_for_test"] is Half
    for twice in (Half, type("Find", (smelt.Primitive,), {"name": "find"}), nn.Linear, 3):
        with pytest.raises(smelt.ScheduleError) as caught:
            smelt.register_primitive(twice)
        assert caught.value.code == "S0606"


def test_an_unknown_path_and_an_unknown_primitive():
    s = smelt.schedule(Block())
    with pytest.raises(smelt.ScheduleError) as caught:
        s["fx"]
    assert "fc" in caught.value.fix
    with pytest.raises(AttributeError, match="its primitives are"):
        s.fuze()
