"""Bad input: each is a ScheduleError of its code that says why, and model and schedule are unchanged."""

import contextlib
import json

import pytest
import torch
from torch import nn

import smelt
from smelt.pattern import call_module

from .models import fixed

pytestmark = pytest.mark.usefixtures("one_thread", "faster")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        y = torch.sin(torch.sin(torch.sin(q * k)))
        return self.norm(y + v) * y


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(8, 8)
        self.head.weight = self.layers[0].q.weight
        self.act = nn.GELU()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.act(self.head(x))


def _state_of(s, model):
    """All that can be seen of a schedule and of its model."""
    built = s.build()
    torch.manual_seed(1)
    with torch.no_grad():
        answer = built(fixed(3, 8))
    modules = [(name, type(part), part.training, sorted(part.__dict__)) for name, part in model.named_modules()]
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    state = {
        name: (id(value), value._version, value.tolist()) for name, value in model.state_dict(keep_vars=True).items()
    }
    shown = str(s), str(s.log), s.diff(), s.reports, s.notes, list(built.state_dict()), answer.tolist()
    return shown, modules, hooks, state, torch.get_rng_state().tolist()


@contextlib.contextmanager
def _refused(s, model, code, *said):
    before, log = _state_of(s, model), s.log
    with pytest.raises(smelt.ScheduleError) as caught:
        yield caught
    error = caught.value
    assert error.code == code, str(error)
    assert error.why and error.fix, str(error)
    for text in said:
        assert text in str(error), str(error)
    assert _state_of(s, model) == before and list(s.log) == list(log)


def _scheduled(model=None, **options):
    """A schedule with a step on a module and one on a graph behind it."""
    model = model or Model()
    s = smelt.schedule(model, fixed(3, 8), **options)
    s["head"].decompose()
    s["layers.1"].outline(s["layers.1"].find(lambda x: call_module("norm", x)), name="normed")
    return s, model


def _twice(x):
    return torch.sin(torch.sin(x))


def _sum(a, b):
    return a + b


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    "path", ["layers.0.k_proj", "layers.0.nrom", "layer", "layers.*.nrom", "head.weight", "heads.0", 3]
)
def test_an_unknown_path_names_the_nearest(path):
    s, model = _scheduled()
    near = {"layers.0.nrom": "'layers.0.norm'", "layer": "'layers'", "layers.*.nrom": "layers.", "heads.0": "'head'"}
    with _refused(s, model, "S0601", near.get(path, "")):
        s[path]


def _never(x):
    return torch.sqrt(x.shape[0])


def _either(x):
    return x.sin() if x.sum() > 0 else x.cos()


def _outside(x):
    with open("/nowhere/at/all") as file:
        return x * len(file.read())


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "pattern", [_never, _either, _outside, 123, None, object(), "a(", lambda x: call_module("(", x)]
)
def test_a_pattern_that_cannot_be_captured(pattern):
    s, model = _scheduled()
    with _refused(s, model, "S0603" if pattern is None else "S0602"):
        s.find(pattern)


def test_a_predicate_given_as_a_pattern_is_told_the_way():
    s, model = _scheduled()
    with _refused(s, model, "S0602", "find(where=...)"):
        s.find(lambda node: node.op.startswith("aten.softmax"))


class Wider(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x, y, z):
        return x + y * self.weight * z


REPLACEMENTS = {
    "too many parameters": (Wider(), "takes 3 arguments, and the match passes 2"),
    "too few parameters": (lambda: torch.zeros(3, 8), ""),
    "two results": (lambda a, b: (a, b), "2 results"),
    "no result": (lambda a, b: None, ""),
    "a number": (lambda a, b: 3, ""),
    "another size": (lambda a, b: (a + b)[:2], "sizes"),
    "another rank": (lambda a, b: (a + b)[None], "sizes"),
    "another dtype": (lambda a, b: (a + b).double(), "dtype"),
    "sizes that do not fit": (lambda a, b: a @ b, ""),
    "a failing one": (lambda a, b: a.no_such_method(), "no_such_method"),
    "no function": (3, "3"),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", REPLACEMENTS)
def test_a_replacement_with_another_arity_shape_or_dtype(name):
    new, said = REPLACEMENTS[name]
    s, model = _scheduled()
    (match,) = s["layers.0"].find(_sum)
    with _refused(s, model, "S0608", said):
        s.replace(new, match)
    with _refused(s, model, "S0608", said):
        s["layers.*"].replace(new, s["layers.*"].find(_sum))


@pytest.mark.parametrize("new", [3, None, "nn.ReLU", nn.ReLU])
def test_a_replacement_of_a_module_that_is_none(new):
    s, model = _scheduled()
    with _refused(s, model, "S0608"):
        s["act"].replace(new)
    with _refused(s, model, "S0608"):
        s.replace_all(nn.GELU, lambda path, old: new)


ON_MATCHES = {
    "replace": lambda s, found: s.replace(lambda x: x, found),
    "replace each": lambda s, found: s.replace(lambda x: x, found, each=True),
    "fuse": lambda s, found: s.fuse(found),
    "outline": lambda s, found: s.outline(found),
    "checkpoint": lambda s, found: s.checkpoint(found),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("step", ON_MATCHES)
def test_overlapping_matches(step):
    s, model = _scheduled()
    found = s["layers.0"].find(_twice)
    assert len(found) == 2 and len(found.disjoint()) == 1
    with _refused(s, model, "S0609", "two matches overlap"):
        ON_MATCHES[step](s, found)


@pytest.mark.spread(6)
@pytest.mark.parametrize("step", ON_MATCHES)
def test_an_intermediate_that_escapes(step):
    s, model = _scheduled()
    assert not s["layers.0"].find(lambda x, v: torch.sin(torch.sin(x)) + v).disjoint()
    (match,) = s["layers.0"].find(lambda x, v: torch.sin(torch.sin(x)) + v, escaping=True)
    with _refused(s, model, "S0609", "used outside"):
        ON_MATCHES[step](s, match)


HOOKS = [
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
]


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    ("step", "hook"),
    [
        *((step, HOOKS[0]) for step in (*ON_MATCHES, "fuse_horizontal", "decompose")),
        *(("fuse", hook) for hook in HOOKS),
    ],
)
def test_a_hook_inside_a_region(step, hook):
    model = Model()
    getattr(model.layers[0].k, hook)(lambda *given: None)
    s, model = _scheduled(model)
    steps = {
        **ON_MATCHES,
        "fuse_horizontal": lambda s, found: s.fuse_horizontal(found),
        "decompose": lambda s, found: s.decompose(found),
    }
    found = s["layers.0"].find(lambda x: call_module("[qkv]", x))
    with _refused(s, model, "S0610", "layers.0.k (Linear) has a hook"):
        steps[step](s, found)


@pytest.mark.spread(2)
@pytest.mark.parametrize("given", [3, None, "layers.0", ["layers.0"], [None], []])
def test_what_is_no_match(given):
    s, model = _scheduled()
    with _refused(s, model, "S0607"):
        s.fuse(given) if given is not None else s.fuse_horizontal([None, None])


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", ["a.b", "", 3, "two words"])
def test_a_name_that_is_none(name):
    s, model = _scheduled()
    found = s["layers.0"].find(lambda x: call_module("norm", x))
    for step in (s.fuse, s.outline, lambda found, name: s.replace(nn.Identity(), found, name=name)):
        with _refused(s, model, "S0608", "is no name"):
            step(found, name=name)


ODD = {
    "a scope that there is not": (lambda s, found: s.fuse(found, scope="layers.7"), "S0601", "did you mean 'layers.0'"),
    "a predicate that is none": (lambda s, found: s.find(nn.Linear, where=3), "S0602", "no predicate"),
    "a builtin as a pattern": (lambda s, found: s.find(nn.functional.gelu), "S0602", "lambda x: gelu(x)"),
    "arguments that are none": (lambda s, found: s.replace(_twice, found, arguments=3), "S0607", "no arguments"),
    "a function to tune that is none": (lambda s, found: s.tune(3), "S0607", "no function"),
    "an option of compile": (lambda s, found: s.compile(speed=3), "S0607", "speed"),
    "an offset that is text": (lambda s, found: s["act"].fork_rng("a"), "S0607", "no offset"),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", ODD)
def test_odd_arguments(name):
    step, code, said = ODD[name]
    s, model = _scheduled()
    found = s["layers.0"].find(lambda x: call_module("norm", x))
    with _refused(s, model, code, said):
        step(s, found)


def test_a_hook_with_effects_in_the_scope():
    model, called = Model(), []
    model.layers[0].k.register_forward_hook(lambda *given: called.append(1))
    s, model = _scheduled(model)
    with _refused(s, model, "S0613", "remove the hooks of k"):
        s.fuse(s["layers.0"].find(_sum))
    with _refused(s, model, "S0610", "layers.0.k (Linear) has a hook"):
        s.fuse(s["layers.0"].find(lambda x: call_module("k", x)))


@pytest.mark.spread(3)
@pytest.mark.parametrize("since", [3, 99, -1, "0", None, True])
def test_a_difference_since_a_step_that_there_is_not(since):
    s, model = _scheduled()
    with _refused(s, model, "S0607", "2 were applied"):
        s.diff(since)


def _other_models():
    class Fewer(Model):
        def __init__(self):
            super().__init__(1)

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.layers = nn.Linear(8, 8), nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

        def forward(self, x):
            return self.head(self.layers[1](self.layers[0](x)))

    return {"a missing layer": (Fewer(), "S0601"), "other code": (Plain(), "S0613")}


@pytest.mark.parametrize("which", ["a missing layer", "other code"])
def test_a_text_of_another_model(which):
    other, code = _other_models()[which]
    text = _scheduled()[0].to_json()
    s = smelt.schedule(other, fixed(3, 8))
    with _refused(s, other, code, "in step 2 of the schedule"):
        smelt.apply(text, other, fixed(3, 8))


@smelt.register_primitive
def mark_for_test(draft, at, *, depth=None, **options):
    draft.module(at.path).requires_grad_(False)
    draft.put("act", draft.own(nn.ReLU()))
    draft.note(at.path, "marked")
    return options["width"] + depth


OWN_CODE = {
    "a primitive that raises a TypeError": (lambda s: s.mark_for_test(width=1), "TypeError: unsupported operand"),
    "a primitive that raises a KeyError": (lambda s: s["layers.*"].mark_for_test(), "KeyError: 'width'"),
    "a primitive without such an argument": (
        lambda s: s.narrow_for_test(speed=1), "unexpected keyword argument 'speed'", "takes (draft, at)", "written at",
    ),
    "make of one argument": (lambda s: s["act"].replace(make=lambda path: nn.ReLU()), "takes (path)"),
    "make of one argument for all": (lambda s: s.replace_all(nn.Linear, lambda path: nn.Identity()), "takes (path)"),
    "make that has no such option": (lambda s: s.replace_all(nn.GELU, lambda path, old: old, n=3), "argument 'n'"),
    "make that is none": (lambda s: s.replace_all(nn.GELU, None), "not callable"),
    "make that raises for the second": (
        lambda s: s.replace_all(nn.LayerNorm, lambda path, old: {"layers.1.norm": nn.Identity()}[path]), "KeyError",
    ),
}  # fmt: skip


@smelt.register_primitive
class NarrowForTest(smelt.Primitive):
    name = "narrow_for_test"

    def apply(self, draft, at):
        draft.note(at.path, "narrow")


@pytest.mark.spread(3)
@pytest.mark.parametrize("which", OWN_CODE)
def test_code_of_the_users_own_in_a_step_that_cannot_be_called_or_raises(which):
    do, *said = OWN_CODE[which]
    s, model = _scheduled()
    with _refused(s, model, "S0607", "test_bad_input.py", *said) as caught:
        do(s)
    assert caught.value.where is not None and caught.value.__cause__ is not None


CHANGES = {
    "an older format": lambda data: data.update(smelt_schedule=0),
    "a newer format": lambda data: data.update(smelt_schedule=2),
    "no format": lambda data: data.pop("smelt_schedule"),
    "no steps": lambda data: data.pop("steps"),
    "steps of another kind": lambda data: data.update(steps={"path": ""}),
    "a step without a path": lambda data: data["steps"][1].pop("path"),
    "a step that is text": lambda data: data["steps"].append("decompose"),
    "a path that is a number": lambda data: data["steps"][0].update(path=3),
    "a primitive that is none": lambda data: data["steps"][0].update(primitive="smelt_it"),
    "a primitive that is a number": lambda data: data["steps"][0].update(primitive=3),
    "arguments that it does not take": lambda data: data["steps"][0].update(arguments={"speed": {"int": 3}}),
    "an argument of no kind": lambda data: data["steps"][1]["arguments"].update(name={"odd": 1}),
    "a pattern that is no graph": lambda data: data["steps"][1]["selector"].update(
        pattern={"graph": "graph {", "constants": {}}
    ),
    "an ordinal that there is not": lambda data: data["steps"][1]["selector"].update(ordinals=[7]),
    "ordinals that are text": lambda data: data["steps"][1]["selector"].update(ordinals="all"),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("change", CHANGES)
def test_a_text_of_another_version_or_with_something_else_in_it(change):
    data = json.loads(_scheduled()[0].to_json())
    CHANGES[change](data)
    model = Model()
    s = smelt.schedule(model, fixed(3, 8))
    before = _state_of(s, model)
    with pytest.raises(smelt.ScheduleError):
        smelt.apply(json.dumps(data), model, fixed(3, 8))
    assert _state_of(s, model) == before
