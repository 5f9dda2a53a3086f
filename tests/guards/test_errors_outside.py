"""Errors that somebody keeps outside: what a program changes of them happens at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

pytestmark = pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")


class Problem(Exception):
    """An error of the program's."""


KEPT: Any = None


def _noted(x: torch.Tensor) -> torch.Tensor:
    KEPT.add_note("n")
    return x + 1


def _noted_in_an_arm(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        KEPT.add_note("n")
    return x + 1


def _more_args(x: torch.Tensor) -> torch.Tensor:
    KEPT.args += (1,)
    return x + len(KEPT.args)


def _cause(x: torch.Tensor) -> torch.Tensor:
    KEPT.__cause__ = KeyError(1) if x.sum() > 0 else None
    return x * 2


def _attribute(x: torch.Tensor) -> torch.Tensor:
    KEPT.held = [x]
    return x * 2


def _looks(error: BaseException) -> str:
    return repr((error.args, vars(error), error.__cause__))


@pytest.mark.parametrize("kind", [Problem, ValueError])
@pytest.mark.parametrize("fn", [_noted, _noted_in_an_arm, _more_args, _cause, _attribute])
def test_an_error_is_changed_at_each_call(fn: Callable[[torch.Tensor], torch.Tensor], kind: type[Exception]) -> None:
    global KEPT
    eager, own = kind("a"), kind("a")
    compiled = smelt.compile(fn, options={"measure": False})
    for number in (1.0, -1.0, 2.0, -2.0, 1.0):
        x = torch.full((2,), number)
        KEPT = eager
        wanted = fn(x)
        KEPT = own
        torch.testing.assert_close(compiled(x), wanted)
        assert _looks(own) == _looks(eager)
