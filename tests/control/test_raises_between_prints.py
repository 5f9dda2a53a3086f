"""What is heard of a program that raises: what it printed before, and nothing that stands behind the `raise`."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt


def two_raises(x: Tensor) -> Tensor:
    if x[0] > 1:
        raise ValueError("a")
    print("after 0")
    if x[1] > 1:
        raise ValueError("b")
    print("after 1", x[2].item())
    return x * 2


def each_turn(x: Tensor) -> Tensor:
    for i in range(4):
        if x[i] > 1:
            raise KeyError(i)
        print("turn", i)
    return x + 1


def asserts(x: Tensor) -> Tensor:
    assert x[0] <= 1, "a"
    warnings.warn("first", stacklevel=2)
    assert x[1] <= 1, "b"
    warnings.warn("second", stacklevel=2)
    return x - 1


def an_index(x: Tensor) -> Tensor:
    y = torch.arange(3.0)[x.long()]
    print("taken")
    z = torch.arange(3.0)[x.long() * 2]
    print("taken again")
    return y + z


def a_draw(x: Tensor) -> Tensor:
    if x[0] > 1:
        raise ValueError("a")
    print("drawn")
    r = torch.rand(4)
    if r[0] + x[1] > 2:
        raise ValueError("b")
    print("after")
    return x * r


def turns_without_end(x: Tensor) -> Tensor:
    if x[0] > 1:
        raise ValueError("would never end")
    n = x[0] + 0
    while n != 0:
        n = (n - 1).clamp(min=0) if x[0] <= 1 else n + 1
    return x[1] > 1, n


INPUTS = [torch.zeros(4)] + [torch.zeros(4).index_fill(0, torch.tensor(i), 2.0) for i in range(4)]
INPUTS.append(torch.ones(4))


def heard(program: Callable[[Tensor], Any], x: Tensor) -> Any:
    """What comes back or is raised, what is printed, and what is warned of."""
    torch.manual_seed(0)
    out = io.StringIO()
    with warnings.catch_warnings(record=True) as told, contextlib.redirect_stdout(out):
        warnings.simplefilter("always")
        try:
            result = program(x)
        except Exception as error:
            result = type(error), str(error)
    return result, out.getvalue(), [str(one.message) for one in told if one.category is UserWarning]


@pytest.mark.spread(15)
@pytest.mark.parametrize("program", [two_raises, each_turn, asserts, an_index, a_draw, turns_without_end])
@pytest.mark.parametrize("way", ["compile", "dynamic", "trace", "script"])
def test_nothing_is_heard_of_what_stands_behind(program: Callable[[Tensor], Any], way: str) -> None:
    made: dict[str, Callable[[], Any]] = {
        "compile": lambda: smelt.compile(program),
        "dynamic": lambda: smelt.compile(program, dynamic=True),
        "trace": lambda: smelt.trace(program, INPUTS[0]),
        "script": lambda: smelt.script(program),
    }
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = made[way]()
    for x in INPUTS * 2:
        found, expected = heard(compiled, x), heard(program, x)
        assert found[1:] == expected[1:]
        if isinstance(expected[0], Tensor):
            assert torch.equal(found[0], expected[0])
        else:
            assert found[0] == expected[0]


def one_element(x: Tensor) -> Tensor:
    return torch.arange(3.0)[x.long() * 2][3] + 1


def one_element_behind(x: Tensor) -> Tensor:
    return (F.embedding(x.long() * 2, torch.eye(3)) + 1)[0, 0] * 2


def one_quotient(x: Tensor) -> Tensor:
    return (torch.arange(4) // (x.long() - 1))[:2].sum()


def again_behind(x: Tensor) -> Tensor:
    y = torch.arange(3.0)[x.long() * 2] + 1
    print(y[3].item())
    return y * 2


@pytest.mark.parametrize("program", [one_element, one_element_behind, one_quotient, again_behind])
@pytest.mark.parametrize("dynamic", [None, True])
def test_elements_that_nobody_needs_raise_too(program: Callable[[Tensor], Any], dynamic: bool | None) -> None:
    compiled = smelt.compile(program, dynamic=dynamic)
    for x in INPUTS * 2:
        found, expected = heard(compiled, x), heard(program, x)
        assert found[1] == expected[1]
        assert torch.equal(found[0], expected[0]) if isinstance(expected[0], Tensor) else found[0] == expected[0]
