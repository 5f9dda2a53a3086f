"""Arguments by name may have any name, those of our own parameters included."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smelt

X = torch.tensor([1.0, 2.0])


def scaled(x, self=1):
    return x * self + 1


def branching(x, *, self, args=0):
    y = x * self
    return y + args if y.sum() > 0 else y - 1


def keywords(x, **given):
    return {name: x * value for name, value in given.items()}


def prints(x, self):
    print(self)
    return x * self


class Holder(nn.Module):
    def forward(this, x, **given):
        return x * given["y"]


def _text(value):
    return str(value)


@pytest.mark.spread(3)
@pytest.mark.parametrize("number", [3, torch.tensor(3.0)])
@pytest.mark.parametrize("f", [scaled, branching, keywords])
def test_an_argument_may_be_called_self(f, number):
    compiled = smelt.compile(f)
    for value in (number, number, number + 1):
        assert _text(compiled(X, self=value)) == _text(f(X, self=value))
    assert _text(compiled.warmup(X, self=number)) == _text(f(X, self=number))
    assert not compiled.stats().fallbacks
    program = smelt.trace(f, (X,), {"self": number})
    for _ in range(2):
        assert _text(program(X, self=number)) == _text(f(X, self=number))
    assert smelt.parse(str(program.graph)) == program.graph
    assert program.graph_for(X, self=number)


def test_scripts_take_it_too():
    program = smelt.script(scaled)
    for _ in range(2):
        assert _text(program(X, self=torch.tensor(3.0))) == _text(scaled(X, self=3))


@pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning")
def test_pieces_take_it_too(capsys):
    compiled = smelt.compile(prints)
    for value in (1, 2, 3, 4):
        assert _text(compiled(X, self=value)) == _text(prints(X, self=value))


def test_the_order_of_arguments_is_kept_and_hooks_run():
    def f(x, **given):
        return x * given["self"] - next(iter(given.values()))

    program = smelt.trace(f, (X,), {"self": 3, "other": 5})
    seen = []
    program.register_forward_hook(lambda *given: seen.append(1))
    assert _text(program(X, self=3, other=5)) == _text(f(X, self=3, other=5))
    assert seen


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    "name",
    [
        "args",
        "kwargs",
        "fn",
        "f",
        "options",
        "original",
        "target",
        "name",
        "state",
        "torch",
        "aten",
        "inputs",
        "check",
        "compiled",
        "row",
        "graph",
        "run",
        "inf",
        "nan",
        "forward",
        "v0",
        "program",
        "cls",
        "module",
        "result",
    ],
)
def test_an_argument_may_be_called_as_ours_are(name):
    compiled = smelt.compile(keywords)
    for value in (3, 3, 4):
        assert _text(compiled(X, **{name: value})) == _text(keywords(X, **{name: value}))
    assert not compiled.stats().fallbacks
    program = smelt.trace(keywords, (X,), {name: torch.tensor(3.0)})
    assert _text(program(X, **{name: torch.tensor(3.0)})) == _text(keywords(X, **{name: torch.tensor(3.0)}))
    inputs = [X, torch.tensor(3.0)]
    assert torch.equal(program.code.run(*inputs)[0], X * 3)


def test_a_module_that_takes_any_name():
    module = Holder()
    compiled = smelt.compile(module)
    assert torch.equal(compiled(X, y=3), X * 3)
    with pytest.raises(TypeError, match="self"):  # torch's own call does not take it
        module(X, self=3)
    with pytest.raises(TypeError, match="self"):
        compiled(X, self=3)
