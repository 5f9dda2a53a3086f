"""From Python 3.13 on one instruction loads or stores two variables: what a program reads through them is found."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

import smelt

home = types.SimpleNamespace(k=2.0)
module = types.ModuleType("smelt_joined")
module.k = 2.0  # type: ignore[attr-defined]
notes: list[int] = []


def stored_then_loaded(x: torch.Tensor) -> torch.Tensor:
    m = module
    return x * m.k  # type: ignore[attr-defined,no-any-return]


def loaded_second(x: torch.Tensor) -> torch.Tensor:
    m = module
    y = x + 1
    return torch.mul(y, m.k)  # type: ignore[attr-defined]


def stored_second(x: torch.Tensor) -> torch.Tensor:
    y, m = x + 1, module
    return y * m.k  # type: ignore[attr-defined,no-any-return]


def bound_again(x: torch.Tensor) -> torch.Tensor:
    m: Any = module
    y, m = x + 1, home
    return y * m.k  # type: ignore[no-any-return]


def test_what_is_read_through_a_name() -> None:
    for program in (stored_then_loaded, loaded_second, stored_second, bound_again):
        compiled, x = smelt.compile(program), torch.ones(2)
        for value in (2.0, 2.0, 3.0, 3.0, 2.0):
            module.k = home.k = value  # type: ignore[attr-defined]
            with torch.no_grad():
                assert torch.equal(compiled(x), program(x)), program.__name__


def made() -> tuple[Callable[[torch.Tensor], torch.Tensor], list[int]]:
    held: list[int] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        held.append(1)

        def count() -> int:
            return len(held)

        return x * count()

    return program, held


def test_a_list_that_an_inner_function_is_given_is_read() -> None:
    (program, held), (twin, _) = made(), made()
    compiled, x = smelt.compile(program), torch.ones(2)
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(compiled(x), twin(x))
    assert len(held) == 4


def test_a_parameter_that_is_loaded_after_another_is_stored_is_read() -> None:
    def program(x: smelt.f32[2], n: int) -> torch.Tensor:
        a = x + 1
        return n * a

    scripted = smelt.script(program)
    for n in (2, 3, 2):
        assert torch.equal(scripted(torch.ones(2), n), torch.full((2,), 2.0 * n))
