"""A traced program follows the modules that it calls, wherever it has them from: their flags, members and hooks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


class Holder:
    """Neither a module nor a container."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def run(self, x: Tensor) -> Tensor:
        return self.model(x)


class Outer(nn.Module):
    """Holds a module where no registry sees it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.parts = [model]

    def forward(self, x: Tensor) -> Tensor:
        return self.parts[0](x)


def itself(model: nn.Module) -> Any:
    return model


def closure(model: nn.Module) -> Any:
    return lambda x: model(x)


def reads_the_flag(model: nn.Module) -> Any:
    return lambda x: model[1](nn.functional.dropout(x, 0.5, training=model.training))  # type: ignore[index]


def method(model: nn.Module) -> Any:
    return Holder(model).run


def bound(model: nn.Module) -> Any:
    return partial(lambda m, x: m(x), model)


def in_a_dict(model: nn.Module) -> Any:
    held = {"model": model}
    return lambda x: held["model"](x)


def member_beside_its_module(model: nn.Module) -> Any:
    layer = model[1]  # type: ignore[index]
    return lambda x: model(x) + layer(x)


WAYS = [itself, closure, method, bound, in_a_dict, member_beside_its_module, Outer]


def double_output(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return out * 2


def double_linears(module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
    return out * 2 if isinstance(module, nn.Linear) else None


CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "eval": lambda m: m.eval(),
    "one eval": lambda m: m[0].eval(),
    "replaced": lambda m: m.__setitem__(1, nn.Linear(4, 4)),
    "hook": lambda m: m[1].register_forward_hook(double_output),
    "hook before": lambda m: m.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    "hook of all": lambda m: nn.modules.module.register_module_forward_hook(double_linears),
    "weight": lambda m: setattr(m[1], "weight", nn.Parameter(torch.zeros(4, 4))),
}


@pytest.mark.spread(10)
@pytest.mark.parametrize("way", [*WAYS, reads_the_flag])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_in_a_module_is_captured_anew(way: Any, change: Callable[[nn.Sequential], Any]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4)), torch.ones(2, 4)
    source = way(model)
    program = smelt.trace(source, (x,))
    again = copy.deepcopy(program)
    program(x)
    handle = change(model)
    try:
        for _ in range(3):
            torch.manual_seed(1)
            expected = source(x)
            torch.manual_seed(1)
            assert torch.equal(program(x), expected)
    finally:
        if hasattr(handle, "remove"):
            handle.remove()
    torch.manual_seed(1)
    expected = source(x)
    torch.manual_seed(1)
    assert torch.equal(program(x), expected)
    assert again(x).shape == x.shape


@pytest.mark.parametrize("way", WAYS)
def test_flags_that_go_back_and_forth_are_captured_once_each(way: Any) -> None:
    model, x = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4)), torch.ones(2, 4)
    source = way(model)
    program = smelt.trace(source, (x,))
    for training in (True, False, True, False):
        model.train(training)
        torch.manual_seed(1)
        expected = source(x)
        torch.manual_seed(1)
        assert torch.equal(program(x), expected)
    assert len(program.units) == 2


def test_another_module_in_the_same_place() -> None:
    torch.manual_seed(0)
    held, x = {"model": nn.Linear(4, 4)}, torch.ones(2, 4)
    layer = nn.Linear(4, 4)

    def f(x: Tensor) -> Tensor:
        return held["model"](x) + layer(x)

    program = smelt.trace(f, (x,))
    for _ in range(2):
        assert torch.equal(program(x), f(x))
        held["model"], layer = layer, nn.Linear(4, 4)
    assert torch.equal(program(x), f(x))
    del held["model"]
    with pytest.raises(KeyError):
        program(x)
