"""What Smelt replaces while it records reads as what it was: guards hold at the next call, and identity is kept."""

from __future__ import annotations

import functools
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

import smelt
from smelt._torch.seen.record_patches import Patches
from smelt.compiler.object.compiled import dispatcher_of

COMPILE, GRAD = torch.compile, torch.autograd.grad


def _replaced() -> list[tuple[Any, str]]:
    """Every attribute that stands for another one while a program is recorded."""
    found: list[tuple[Any, str]] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        found.extend((one.owner, one.name) for one in list(Patches._attributes.values()))
        return x + 1

    with pytest.warns(smelt.SmeltWarning):
        smelt.trace(program, torch.ones(2), check=False)
    return list(dict.fromkeys(found))


def test_all_that_is_replaced_reads_as_the_original() -> None:
    table = _replaced()
    assert (torch, "compile") in table and (torch.autograd, "grad") in table and (torch.Tensor, "tolist") in table
    lines = []
    for i, (_, name) in enumerate(table):
        lines.append(f"def read_{i}(x):\n    return x + 1 if owner_{i}.{name} is not None else x\n")
    scope: dict[str, Any] = {f"owner_{i}": owner for i, (owner, _) in enumerate(table)}
    exec(compile("\n".join(lines), __file__, "exec"), scope)
    for i, (owner, name) in enumerate(table):
        compiled = smelt.compile(scope[f"read_{i}"])
        for _ in range(4):
            compiled(torch.ones(3))
        stats = dispatcher_of(compiled).stats()
        assert (stats.builds, stats.fallbacks) == (1, {}), f"{owner.__name__}.{name}"


def test_functions_of_modules_keep_their_identity_and_their_code() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.compile is COMPILE and torch.autograd.grad is GRAD else x - 1

    codes = [(one, one.__code__) for one in (COMPILE, GRAD) if isinstance(one, FunctionType)]
    compiled = smelt.compile(program)
    for size in (2, 3, 4):
        x = torch.randn(size)
        assert torch.equal(compiled(x), x + 1)
    assert dispatcher_of(compiled).stats().builds == 2
    assert all(one.__code__ is code for one, code in codes)
    assert isinstance(torch, ModuleType) and torch.compile is COMPILE


def test_a_cache_may_give_lists_that_were_made_in_the_recorded_run() -> None:
    @functools.lru_cache(maxsize=16)
    def plan(width: int) -> tuple[int, list[int]]:
        return width * 2, [width, 1]

    def program(x: torch.Tensor) -> torch.Tensor:
        factor, sizes = plan(x.shape[1])
        return (x * factor).reshape([-1, *sizes])

    compiled = smelt.compile(program)
    for width in (3, 4, 3, 4, 3):
        x = torch.randn(2, width)
        assert torch.equal(compiled(x), program(x))
    stats = dispatcher_of(compiled).stats()
    assert stats.builds == 2 and not stats.fallbacks


def test_a_list_out_of_a_cache_that_the_program_changes_is_seen() -> None:
    @functools.lru_cache(maxsize=16)
    def log(width: int) -> list[int]:
        return [width]

    def program(x: torch.Tensor) -> torch.Tensor:
        held = log(x.shape[1])
        held.append(1)
        return x * len(held)

    compiled = smelt.compile(program)
    x = torch.ones(2, 3)
    found = [float(compiled(x)[0, 0]) for _ in range(6)]
    assert found == [2, 3, 4, 5, 6, 7]
