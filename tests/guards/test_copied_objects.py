"""What a program reads of an object by copying or pickling it, or by a name that it is given, is seen as any other."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt

pytestmark = pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")


class Config:
    def __init__(self) -> None:
        self.k = 1
        self.sizes = [1, 2]


class Slots:
    __slots__ = ("k", "sizes")

    def __init__(self) -> None:
        self.k = 1
        self.sizes = [1, 2]


class Layer(torch.nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        config = copy.deepcopy(self.config)
        config.k += 1
        config.sizes.append(config.k)
        return x * config.k + sum(config.sizes)


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "in a list": lambda o: copy.deepcopy([o])[0],
    "pickled": lambda o: pickle.loads(pickle.dumps(o)),
}


@pytest.mark.parametrize("kind", [Config, Slots])
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_is_of_what_the_object_holds_now(way: str, kind: Any) -> None:
    held, made = kind(), WAYS[way]

    def program(x: torch.Tensor) -> Any:
        other = made(held)
        return x * other.k + other.sizes[0]

    compiled = smelt.compile(program)
    x = torch.ones(2)
    for change in (lambda: None, lambda: setattr(held, "k", 33), lambda: held.sizes.insert(0, 7), lambda: None):
        change()
        for _ in range(2):
            assert torch.equal(compiled(x), program(x))


@pytest.mark.parametrize("kind", [Config, Slots])
def test_of_a_module(kind: Any) -> None:
    module = Layer(kind())
    compiled = smelt.compile(Layer(module.config))
    x = torch.ones(2)
    for k in (1, 1, 33, 33, 2):
        module.config.k = k
        assert torch.equal(compiled(x), module(x)) and module.config.sizes == [1, 2]


@pytest.mark.parametrize("kind", [Config, Slots])
@pytest.mark.parametrize("way", WAYS)
def test_state_that_goes_through_a_copy(way: str, kind: Any) -> None:
    made = WAYS[way]

    def program(o: Any, x: torch.Tensor) -> torch.Tensor:
        other = made(o)
        other.k += 1
        o.k = other.k * 2
        return x * o.k

    one, two = kind(), kind()
    compiled = smelt.compile(lambda x: program(two, x))
    for _ in range(6):
        assert torch.equal(compiled(torch.ones(1)), program(one, torch.ones(1)))
        assert one.k == two.k


def test_a_function_of_torchs_by_a_name_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor, name: str) -> Any:
        return getattr(F, name)(x)

    compiled = smelt.compile(program)
    x = torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(x, "tanh"), x.tanh())
    monkeypatch.setattr(F, "tanh", lambda v: v * 0)
    assert torch.equal(compiled(x, "tanh"), x * 0)
