"""One capture for equal layers, and another one wherever the graph could be another."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.scheduling.graphs import scope_graphs

IDS, NAMES, CHOSEN, NUMBERS = {}, {}, [], {"scale": 2.0}


class _Layer(nn.Module):
    """Reads what `ask` says, by which layers may go different ways."""

    def __init__(self, width=8, index=0):
        super().__init__()
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
        self.index, self.flag, self.ask, self.table = index, False, None, [1, 2]

    def forward(self, x, mask=None, *, twice=False):
        y = self.q(x) + self.k(x)
        if self.ask is not None and self.ask(self):
            y = F.relu(y)
        if mask is not None:
            y = y + mask
        return y.to(x.dtype) * 2 if twice else y.to(x.dtype)


def _flag_of(layer):
    return any(value for key, value in vars(layer).items() if key == "flag")


class _Model(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(_Layer(index=i) for i in range(layers))
        self.given = [((), {}) for _ in range(layers)]

    def forward(self, x):
        for layer, (args, kwargs) in zip(self.layers, self.given, strict=True):
            x = layer(x, *args, **kwargs)
        return x


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():  # with them the first layer's argument is another one than the second's: a leaf
        yield


@pytest.fixture
def runs(monkeypatch):
    """The paths' modules that were captured."""
    found, capture = [], scope_graphs.capture_scope

    def counted(module, *args, **kwargs):
        found.append(module)
        return capture(module, *args, **kwargs)

    monkeypatch.setattr(scope_graphs, "capture_scope", counted)
    return found


def _graphs(model, x):
    s = smelt.schedule(model, x)
    s._state.prepare([f"layers.{i}" for i in range(len(model.layers))])
    return [s._state.scope(f"layers.{i}") for i in range(len(model.layers))]


def _check(model, x, runs, count):
    """That so many runs were needed, and that each graph is that of its own layer alone."""
    together = _graphs(model, x)
    assert len(runs) == count
    for i, scope in enumerate(together):
        s = smelt.schedule(model, x)
        alone = s._state.scope(f"layers.{i}")
        assert str(scope.original) == str(alone.original)
        assert scope.tensors.keys() == alone.tensors.keys()
        own = model.layers[i].state_dict()
        for path, tensor in scope.tensors.items():
            if path in own:
                assert torch.equal(tensor, own[path]), path
    return together


def test_equal_layers_are_captured_once(runs):
    model, x = _Model(4), torch.randn(2, 8)
    scopes = _check(model, x, runs, 1)
    assert len({id(scope.original) for scope in scopes}) == len(scopes)


def test_what_nobody_read_may_differ(runs):
    model = _Model()
    model.layers[1].note = model.layers[0].note = model.layers[2].note = "first"
    model.layers[1].note, model.layers[2].table = "second", [3]
    _check(model, torch.randn(2, 8), runs, 1)


def _set(name, value, on=1):
    def change(model):
        setattr(model.layers[on], name, value)

    return change


def _ask(ask, **more):
    def change(model):
        for layer in model.layers:
            layer.ask = ask
        for name, value in more.items():
            setattr(model.layers[1], name, value)

    return change


def _shape(model):
    model.layers[1].q.bias = None


def _wide(model):
    model.layers[1].q.weight = nn.Parameter(torch.randn(16, 8).t().contiguous().t()[:8])


def _dtype(model):
    model.layers[1].double()
    for layer in (model.layers[1].q, model.layers[1].k):
        layer.register_forward_pre_hook(_to_double)


def _to_double(module, args):
    return tuple(a.double() for a in args)


def _hook(model):
    model.layers[1].q.register_forward_hook(lambda module, args, output: F.relu(output))


def _other_class(model):
    class Doubling(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    model.layers[1].q.__class__ = Doubling


def _tied(model):
    model.layers[1].k.weight = model.layers[1].q.weight


def _frozen(model):
    model.layers[1].q.weight.requires_grad_(False)


def _own_forward(model):
    layer = model.layers[1].q
    layer.forward = lambda x: F.relu(F.linear(x, layer.weight, layer.bias))


def _mask(model):
    model.given[1] = ((torch.ones(8),), {})


def _twice(model):
    model.given[1] = ((), {"twice": True})


DIFFERENT = {
    "a flag": _ask(lambda layer: layer.flag, flag=True),
    "a number of another type": _ask(lambda layer: layer.flag is False, flag=0),
    "a float": _ask(lambda layer: layer.flag, flag=-0.0),
    "an index": _ask(lambda layer: layer.index == 1),
    "a name by the index": _ask(lambda layer: f"{layer.index}" == "1"),
    "a list": _ask(lambda layer: len(layer.table) > 2, table=[1, 2, 3]),
    "all attributes": _ask(lambda layer: vars(layer)["flag"], flag=True),
    "its dict": _ask(lambda layer: layer.__dict__["flag"], flag=True),
    "its dict by name": _ask(lambda layer: getattr(layer, "__dict__")["flag"], flag=True),  # noqa: B009
    "its dict from a helper": _ask(lambda layer: _flag_of(layer), flag=True),
    "the mode": lambda model: (_ask(lambda layer: layer.training)(model), model.layers[1].eval()),
    "a missing bias": _shape,
    "strides": _wide,
    "dtype": _dtype,
    "a hook": _hook,
    "a class": _other_class,
    "tied weights": _tied,
    "requires_grad": _frozen,
    "a forward of its own": _own_forward,
    "a tensor among the arguments": _mask,
    "a keyword": _twice,
}


@pytest.mark.spread(10)
@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_layers_that_differ_are_captured_by_themselves(change, runs):
    model, x = _Model(), torch.randn(2, 8)
    change(model)
    together = _graphs(model, x)
    assert len(runs) >= 2, "a graph was taken for another"
    for i, scope in enumerate(together):
        alone = smelt.schedule(model, x)._state.scope(f"layers.{i}")
        assert str(scope.original) == str(alone.original)


class _Registered(nn.Module):
    """Asks tables outside which layer it is."""

    def __init__(self, how):
        super().__init__()
        self.fc, self.how = nn.Linear(8, 8), how

    def __deepcopy__(self, memo):
        made = _Registered(self.how)
        made.fc = copy.deepcopy(self.fc, memo)
        made.place = len(CHOSEN)
        CHOSEN.append(made)
        IDS[id(made)] = made.place
        NAMES[made] = made.place
        return made

    def forward(self, x):
        y = self.fc(x)
        return F.relu(y) if self.how(self) else y


class _Outer(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.layers = nn.ModuleList(_Registered(how) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    "how",
    [
        lambda layer: IDS[id(layer)] % 3 == 1,
        lambda layer: NAMES[layer] % 3 == 1,
        lambda layer: layer is CHOSEN[1],
        lambda layer: layer in CHOSEN[1:2],
    ],
    ids=["by number", "by object", "by identity", "among a list"],
)
def test_a_table_outside_tells_layers_apart(how, runs):
    for table in (IDS, NAMES, CHOSEN):
        table.clear()
    model, x = _Outer(how).eval(), torch.randn(2, 8)
    shown = [str(scope.original) for scope in _graphs(model, x)]
    assert ["relu" in text for text in shown] == [False, True, False]


def test_a_table_that_tells_nothing_is_no_obstacle(runs):
    model = _Model()
    _ask(lambda layer: NUMBERS["scale"] > 3)(model)
    _check(model, torch.randn(2, 8), runs, 1)


def test_a_step_on_layers_that_share_a_graph():
    model, x = _Model(4).eval(), torch.randn(2, 8)
    s = smelt.schedule(model, x)
    layers = s["layers.*"]
    layers.fuse_horizontal(layers.find(lambda x, w, b: F.linear(x, w, b)), name="qk")
    built = s.build()
    torch.testing.assert_close(built(x), model(x))
    assert "qk" in str(s._state.scope("layers.3").edited.graph)
    assert str(s._state.scope("layers.3").original).count("linear") == 2
    s.verify()


def test_a_leaf_and_what_autograd_computed_are_two_calls(runs):
    with torch.enable_grad():
        _check(_Model(3), torch.randn(2, 8), runs, 2)
