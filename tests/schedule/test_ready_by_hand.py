"""Ready schedules on six models written by hand, each in a spelling of its own; what is taken is counted."""

import copy
import warnings

import pytest
import torch

import smelt
from smelt import schedules
from tests.schedule import hand_models as models


def _ids():
    return torch.randint(0, 90, (2, 10))


def _encoder():
    keep = torch.ones(2, 10, dtype=torch.bool)
    keep[1, 7:] = False
    return models.Encoder(), (_ids(), keep)


def _decoder():
    return models.Decoder(), (_ids(),)


def _grouped():
    return models.Grouped(), (_ids(),)


def _encoder_decoder():
    return models.EncoderDecoder(), (_ids(), _ids()[:, :7])


def _images():
    return models.Images(), (torch.randn(2, 3, 16, 16),)


def _convolutions():
    return models.Convolutions(), (torch.randn(2, 3, 16, 16),)


_TAKEN = {
    _encoder: {"merged linears": 6, "attention": 2},
    _decoder: {"merged linears": 6, "attention": 2},
    _grouped: {"merged linears": 10, "attention": 2},
    _encoder_decoder: {"merged linears": 24, "attention": 6},
    _images: {"attention": 2},
    _convolutions: {},
}
_all = pytest.mark.parametrize("make", _TAKEN, ids=lambda make: make.__name__[1:])


@pytest.mark.spread(6)
@_all
def test_all_that_is_found_is_taken_and_computes_the_same(make):
    torch.manual_seed(0)
    model, inputs = make()
    ready = schedules.inference(model.eval(), inputs)
    assert ready.applied == _TAKEN[make]
    assert {name: ready.found.get(name) for name in ready.applied} == ready.applied
    assert not any(text.startswith(("attention", "merged")) for text in ready.skipped)
    # The gradient of the bias of keys is zero but for rounding; gradients are compared below.
    ready.schedule.verify(backward=False if make is _decoder else None)


@pytest.mark.spread(6)
@_all
def test_gradients_buffers_and_dropout_are_those_of_the_model(make):
    torch.manual_seed(0)
    model, inputs = make()
    built = schedules.inference(model.eval(), inputs).schedule.build()
    assert list(built.state_dict()) == list(model.state_dict())
    for training in (False, True):
        seen = []
        for module in (model, built):
            module.train(training).zero_grad()
            torch.manual_seed(5)
            y = module(*inputs)
            (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
            grads = {name: parameter.grad for name, parameter in module.named_parameters()}
            seen.append({"y": y.detach(), **grads, **{n: b.clone() for n, b in module.named_buffers()}})
        for name, value in seen[0].items():
            torch.testing.assert_close(seen[1][name], value, rtol=2e-3, atol=2e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("make", [_encoder, _decoder, _grouped], ids=lambda make: make.__name__[1:])
def test_a_schedule_for_two_layers_fits_four(make):
    torch.manual_seed(0)
    model, inputs = make()
    ready = schedules.inference(model.eval(), inputs)
    deep = type(model)(4).eval()
    again = smelt.apply(ready.schedule.to_json(), deep, inputs)
    with torch.no_grad():
        torch.testing.assert_close(again.build()(*inputs), deep(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_other_batches_lengths_modes_and_dtypes_are_each_captured_once(monkeypatch):
    torch.manual_seed(0)
    model, inputs = _encoder()
    built = schedules.inference(model.eval(), inputs).schedule.build()
    layer, calls = built.layers[0].forward, []
    kept = layer._entry
    monkeypatch.setattr(layer, "_entry", lambda *args: calls.append(1) or kept(*args))
    sizes = [(1, 3), (2, 10), (3, 1), (1, 9), (4, 5), (2, 3), (1, 12), (5, 2), (2, 7), (3, 8)]
    for _ in range(2):
        for b, n in sizes:
            ids, keep = torch.randint(0, 90, (b, n)), torch.ones(b, n, dtype=torch.bool)
            with torch.no_grad():
                torch.testing.assert_close(built(ids, keep), model(ids, keep), rtol=1e-4, atol=1e-5)
        assert len(calls) == len(sizes)
    for change in (lambda m: m.double(), lambda m: m.float(), copy.deepcopy, lambda m: m.train().eval()):
        model, built = change(model), change(built)
        with torch.no_grad():
            mask = inputs[1] if model.layers[0].query.weight.dtype == torch.float32 else torch.ones_like(inputs[1])
            torch.testing.assert_close(built(inputs[0], mask), model(inputs[0], mask), rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(built(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    other = models.Encoder().eval()
    built.load_state_dict(other.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(built(*inputs), other(*inputs), rtol=1e-4, atol=1e-5)


def test_batch_norm_in_training_takes_no_step():
    torch.manual_seed(0)
    model, inputs = _convolutions()
    ready = schedules.inference(model.train(), inputs, fuse=True)
    assert len(ready.schedule.log) == 0 and not ready.applied
    built = ready.schedule.build()
    torch.testing.assert_close(built(*inputs), model(*inputs), rtol=0, atol=0)
    assert all(torch.equal(a, b) for a, b in zip(built.buffers(), model.buffers(), strict=True))


class _Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = models.Across(near=False)

    def forward(self, x, cache):
        if float(x.sum()) > 1e9:
            x = x + 1
        q, k, v = self.layer.q(x), self.layer.k(x), self.layer.v(x)
        cache.append(k)
        return torch.softmax(q @ k.mT, -1) @ v


class _Holds(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _Branches()

    def forward(self, x):
        return self.inner(x, [])


def test_a_branch_is_refused_with_its_line_and_the_way_round():
    s = smelt.schedule(_Holds().eval(), torch.randn(2, 5, 32))
    linears = s.find(where=lambda node: node.op == "aten.linear.default")
    with pytest.raises(smelt.ScheduleError, match="its path depends on data") as told:
        s.fuse_horizontal(linears, scope="inner")
    assert told.value.code == "S0613" and told.value.where.file == __file__ and "smaller module" in told.value.fix
    assert "float(x.sum())" in told.value.where.text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(s.log) == 0 and s.verify() is not None
