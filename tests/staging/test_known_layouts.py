"""Operators on operands that lie alike, without free sizes: what fake tensors need not be asked again."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import smelt
from smelt._torch.seen.staged_fakes import FakeTensors
from smelt.capture.staging.objects.unconverted_code import Watch, unwatched


def counted(x: Any, n: Any) -> Any:
    k = n.item()
    y = x.clone()
    y.mul_(k)
    y.add_(k)
    y.mul_(k)
    return (y + 1 if k > 2 else y), y._version, y.requires_grad


def by_kind(x: Any, n: Any) -> Any:
    k, i = n.item(), int(n)
    z = x.to(torch.int64)
    return x * k, z * k, z * i, z + (i > 2), z / i if i else z, torch.where(x > k, x, i), torch.clamp(z, max=i)


def overlapping(x: Any, n: Any) -> Any:
    y, z = x.clone(), x.clone()
    k = n.item()
    y[1:].mul_(y[:-1].clone()).mul_(k)
    z[:2].mul_(z[:2]).mul_(k)
    z.addcmul_(z, z, value=k)
    w = torch.zeros(1).expand(3).clone()
    return y, z, w.addcmul_(y, z, value=k).addcmul_(y, y, value=k)


def refused(x: Any, n: Any) -> Any:
    i = int(n)
    z = x.to(torch.int64)
    try:
        z = z**i
    except RuntimeError:
        z = z - 1
    return z if i < 2 else z + 1


@pytest.mark.spread(4)
@pytest.mark.parametrize("program", [counted, by_kind, overlapping, refused], ids=lambda p: p.__name__)
def test_numbers_that_data_decide(program: Any) -> None:
    compiled = smelt.compile(program)
    for number in (0.0, 1.0, 3.0, -2.0, 5.0, 2.0):
        x, n = torch.linspace(1, 4, 3), torch.tensor(number)
        found, expected = compiled(x, n), program(x, n)
        for one, two in zip(found, expected, strict=True):
            if isinstance(two, torch.Tensor):
                assert one.dtype == two.dtype and one.stride() == two.stride()
                torch.testing.assert_close(one, two, equal_nan=True)
            else:
                assert type(one) is type(two) and one == two


def test_who_begins_to_watch_in_unwatched_code_goes_on() -> None:
    class Session:
        base_frame = None

    watch = Watch(Session(), lambda code: False, ())
    with watch.ready(True):
        assert sys.gettrace() == watch._meet
        unwatched(lambda: None)()
        assert sys.gettrace() == watch._meet
        unwatched(watch.start)()
        assert sys.gettrace() == watch._enter


def test_writes_of_a_tensor_without_a_fake_are_counted() -> None:
    fakes, state = FakeTensors(), torch.zeros(3)
    before = state._version
    fakes.note_write(state)
    fakes.note_write(state)
    view = state[1:]
    assert fakes.version_of(state) == fakes.version_of(view) == before + 2
    fake = fakes.of(state)
    assert (fake._version, fakes.version_of(state)) == (2, before + 2)
    fakes.note_write(state)
    assert (fake._version, fakes.version_of(state)) == (3, before + 3)


def test_memory_is_one_with_a_fake_and_without() -> None:
    fakes, state, other = FakeTensors(), torch.zeros(3), torch.zeros(3)
    alias = state.detach()
    assert fakes.memory_of(state) == fakes.memory_of(alias) != fakes.memory_of(other)
    viewed = fakes.view(fakes.of(alias), [2], [1])
    assert fakes.memory_of(state) == fakes.memory_of(viewed) == fakes.memory_of(state[1:])
    assert fakes.memory_of(other) != fakes.memory_of(viewed)
