"""Programs that give no gradients are compiled for inference wherever they are called; what gives some is trained."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


class Decorated(Net):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Inferring(Net):
    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Classifier(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).argmax(-1)


class Branching(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if x.sum() > 0:
            return y.detach() * 2
        with torch.no_grad():
            return self.first.weight * y.sum()


class Looping(Net):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        while x.norm() < 100:
            x = super().forward(x) * 0.1 + x * 2
        return x


NET = Net()


@torch.no_grad()
def predict(x: Tensor) -> Tensor:
    return NET(x).softmax(-1)


@torch.inference_mode()
def infer(x: Tensor) -> Tensor:
    return NET(x) + 1


def within(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = NET(x)
    return y * 2


def detached(x: Tensor) -> dict[str, Tensor]:
    y = NET(x)
    return {"best": y.argmax(-1), "score": y.detach().amax(-1), "of": y.shape[0] * torch.ones(2)}


def views(x: Tensor) -> tuple[Tensor, ...]:
    w = NET.first.weight
    with torch.no_grad():
        v = w[1]
    return w, w.detach(), w.detach()[1:] + 0, v, NET(x).detach()


def normalizes(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(0.5)
        NET.first.bias.add_(0.0)
    return NET(x).detach()


PROGRAMS = [
    *(pytest.param(program, id=program.__name__) for program in (predict, infer, within, detached, views, normalizes)),
    *(
        pytest.param(cls().eval(), id=cls.__name__)
        for cls in (Decorated, Inferring, Classifier, Branching, Looping)
    ),
]  # fmt: skip
HAVE = (lambda t: t.requires_grad, lambda t: t.is_leaf, lambda t: t.is_inference(), lambda t: t._base is None)


def parts(result: Any) -> list[Tensor]:
    return list(result.values()) if isinstance(result, dict) else list(result) if type(result) is tuple else [result]


def assert_as_eager(program: Callable[..., Any], compiled: Callable[..., Any], x: Tensor) -> None:
    mine, theirs = x.detach().clone(), x.detach().clone()
    found, expected = (parts(f(y.requires_grad_(x.requires_grad))) for f, y in ((compiled, mine), (program, theirs)))
    assert len(found) == len(expected)
    for a, b in zip([*found, mine], [*expected, theirs], strict=True):
        assert torch.allclose(a, b, 1e-4, 1e-5) and a.dtype == b.dtype
        assert [have(a) for have in HAVE] == [have(b) for have in HAVE]


@pytest.fixture(autouse=True)
def with_gradients() -> Iterator[None]:
    with torch.enable_grad():
        yield


@pytest.mark.spread(3)
@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_is_no_grad_itself_is_compiled(program: Any, needs: bool) -> None:
    needs = needs and program is not normalizes  # a leaf's memory may not be written
    compiled = smelt.compile(program)
    for i in range(5):
        x = torch.randn(3, 4).abs_() * (1 if i < 3 else -1)
        assert_as_eager(program, compiled, x.requires_grad_(needs))
    stats = compiled.stats()
    assert stats.builds <= 2 and not stats.fallbacks, stats


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_traced_one_runs_natively(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = smelt.trace(program, (torch.ones(3, 4),))
    if program not in (views, normalizes):
        monkeypatch.setattr(type(traced), "_by_op", None)
    for _ in range(3):
        assert_as_eager(program, traced, torch.randn(3, 4).abs_())
        if program is not normalizes:
            assert_as_eager(program, traced, torch.randn(3, 4).abs_().requires_grad_())


def gradients(result: Tensor, *of: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(result.sum(), of))


TRAIN = pytest.mark.parametrize("train", [True, False])


@TRAIN
def test_an_argument_that_requires_gradients_later(train: bool) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.detach() * y, x.argmax()

    compiled, x = smelt.compile(f, options={"train": train}), torch.randn(4, requires_grad=True)
    for needs in (False, False, True, True, False):
        y = torch.randn(4, requires_grad=needs)
        found = compiled(x, y)
        assert torch.equal(found[0], f(x, y)[0]) and found[0].requires_grad is needs
        if needs:
            assert torch.equal(gradients(found[0], y)[0], x.detach())
    stats = compiled.stats()
    assert stats.builds == 1 + train and sum(stats.fallbacks.values()) == (0 if train else 2), stats


@TRAIN
def test_a_parameter_that_requires_gradients_later(train: bool) -> None:
    net = Net().eval().requires_grad_(False)
    compiled, x = smelt.compile(net, options={"train": train}), torch.randn(3, 4)
    for needs in (False, False, True, True, False):
        net.first.weight.requires_grad_(needs)
        found = compiled(x)
        assert torch.allclose(found, net(x), 1e-4, 1e-5) and found.requires_grad is needs
        if needs:
            assert torch.allclose(*gradients(found, net.first.weight), *gradients(net(x), net.first.weight))
    assert compiled.stats().builds == 1 + train


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_gradients_that_a_program_switches_on_itself_are_autograds() -> None:
    weight = nn.Parameter(torch.ones(3), requires_grad=False)

    def f(x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = x * weight
        return y

    compiled, traced = smelt.compile(f), smelt.trace(f, (torch.ones(3),))
    with torch.no_grad():
        for needs in (False, False, True, True, False):
            weight.requires_grad_(needs)
            x = torch.randn(3)
            for found in (compiled(x), traced(x)):
                assert torch.equal(found, f(x)) and found.requires_grad is needs


class Parted(Net):
    """One way has a history, the other has none."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if x.sum() > 0:
            return y.detach()
        return y * 2


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("first", [1, -1])
def test_one_way_without_gradients_does_not_speak_for_the_other(first: int) -> None:
    net = Parted().eval()
    compiled = smelt.compile(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = smelt.trace(net, (torch.ones(3, 4),))
    for sign in (first, first, -first, first, -first, -first):
        x = torch.randn(3, 4).abs() * sign
        for found in (compiled(x), traced(x)):
            assert torch.allclose(found, net(x), 1e-4, 1e-5) and found.requires_grad is (sign < 0)
            if sign < 0:
                state = list(net.parameters())
                for a, b in zip(gradients(found, *state), gradients(net(x), *state), strict=True):
                    assert torch.allclose(a, b, 1e-4, 1e-5)


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_what_is_left_behind_with_a_history_is_autograds() -> None:
    class Keeps(Net):
        last: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.last = super().forward(x)
            return self.last.argmax(-1)

    def writes(x: Tensor, w: Tensor) -> None:
        x[0].mul_(w)

    net = Keeps().eval()
    compiled, x = smelt.compile(net), torch.randn(3, 4)
    for _ in range(4):
        compiled(x)
        assert net.last is not None and net.last.requires_grad and net.last.grad_fn is not None
    written = smelt.compile(writes)
    for _ in range(4):
        w, y = torch.randn(4, requires_grad=True), torch.ones(3, 4)
        written(y, w)
        assert y.requires_grad and torch.equal(gradients(y, w)[0], torch.ones(4))


def test_without_training_nothing_is_recorded() -> None:
    net = Net()
    compiled = smelt.compile(net, options={"train": False})
    for n in range(2, 30):
        x = torch.randn(n, 4)
        compiled(x).sum().backward()
    stats = compiled.stats()
    assert stats.builds == 0 and not stats.rows and list(stats.fallbacks.values()) == [28], stats
    with torch.no_grad():
        compiled(x), compiled(x)
    assert compiled.stats().builds == 1


def test_without_training_nothing_is_built_for_calls_that_need_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    from smelt.compiler.unit import Unit

    monkeypatch.setattr(Unit, "of", None)
    compiled = smelt.compile(lambda x: NET(x), options={"train": False})
    for n in range(2, 12):
        x = torch.randn(n, 4)
        assert compiled(x).requires_grad
    assert compiled.stats().builds == 0


def test_strict_without_training_refuses_only_what_needs_gradients() -> None:
    compiled = smelt.compile(predict, options={"strict": True, "train": False})
    x = torch.randn(3, 4, requires_grad=True)
    assert torch.allclose(compiled(x), predict(x)) and torch.allclose(compiled(x), predict(x))
    for target in (NET, lambda x: NET(x)):
        with pytest.raises(smelt.CaptureError, match="gradients are needed"):
            smelt.compile(target, fullgraph=True, options={"train": False})(x)


@pytest.mark.nightly
def test_generate_of_transformers_is_compiled_with_its_parameters_as_they_are() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=80, n_positions=96, pad_token_id=3)
    model = transformers.GPT2LMHeadModel(config).eval()
    assert all(parameter.requires_grad for parameter in model.parameters())
    prompt = torch.randint(4, 80, (1, 5))
    given = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    expected = model.generate(prompt, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = smelt.compile(model.generate)
        for _ in range(4):
            assert torch.equal(compiled(prompt, **given), expected)
    stats = compiled.stats()
    assert not any("gradients" in why for why in stats.fallbacks), stats
    assert stats.calls == 4 and stats.builds <= 2 and any(row.entry or row.split for row in stats.rows), stats
