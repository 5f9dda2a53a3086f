"""Programs that read tensors which follow from sizes and numbers alone: at other sizes another value is no error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


def summed(x: Any, f: Any) -> Any:
    return x + int(torch.arange(x.shape[0]).sum())


def asked(x: Any, f: Any) -> Any:
    return x + 1 if torch.arange(x.shape[0]).sum() > 8 else x * 2


def numbered(x: Any, f: Any) -> Any:
    return x - 1 if torch.full([], f) <= 0 else x + 1


def written(x: Any, f: Any) -> Any:
    x.add_(1)
    if torch.ones(x.shape[0], 2).sum() > 9:
        x.mul_(f)
    return x * 2


@pytest.mark.spread(3)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [summed, asked, numbered, written])
def test_another_value_is_another_path(program: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = smelt.compile(program, dynamic=dynamic)
    for size, f in (
        (3, 2.0),
        (4, 1.5),
        (5, -1.0),
        (6, 3.0),
        (3, -2.0),
        (7, 0.5),
        (4, 1.5),
        (5, -1.0),
        (0, 2.0),
        (1, 0.0),
    ):
        given, kept = torch.arange(size) / 4, torch.arange(size) / 4
        assert torch.equal(compiled(given, f), program(kept, f))
        assert torch.equal(given, kept)
    assert compiled.stats().fallbacks == {}


def test_a_value_of_its_own_for_each_size_ends_at_the_limit() -> None:
    compiled = smelt.compile(summed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for size in [*range(2, 40), *range(2, 40)]:
            x = torch.ones(size)
            assert torch.equal(compiled(x, 1.0), summed(x, 1.0))
    assert compiled.stats().builds <= 18
    assert compiled.stats().fallbacks.keys() == {"too many different calls were compiled already"}


def test_a_trace_refuses_the_other_value() -> None:
    program = smelt.trace(summed, (torch.ones(4), 1.0), dynamic_shapes={"x": {0: "B"}})
    assert torch.equal(program(torch.ones(4), 1.0), summed(torch.ones(4), 1.0))
    with pytest.raises(smelt.CaptureError):
        program(torch.ones(5), 1.0)
