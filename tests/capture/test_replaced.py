"""Attributes of torch's classes, replaced for a time by captures and by others at once, end as they were."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import smelt
from smelt._torch.record_patches import Patches

_FX = os.path.dirname(torch.fx.__file__)


class Base:
    def inherited(self) -> list[str]:
        return ["inherited"]


class Owner(Base):
    def own(self) -> list[str]:
        return ["own"]


def _named(name: str) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        return lambda self: [name, *original(self)]

    return make


@pytest.fixture(params=["own", "inherited"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_replacements_leave_in_any_order(name: str) -> None:
    before, one, two = dict(vars(Owner)), Patches(), Patches()
    a, b, again = (patches.replaced(Owner, name, _named(n)) for patches, n in ((one, "a"), (two, "b"), (one, "c")))
    read = getattr(Owner(), name)
    assert read() == [name]
    a.__enter__()
    b.__enter__()
    again.__enter__()
    assert getattr(Owner(), name)() == ["b", "a", name]
    a.__exit__(None, None, None)
    assert getattr(Owner(), name)() == ["b", "a", name]
    again.__exit__(None, None, None)
    assert getattr(Owner(), name)() == ["b", name]
    b.__exit__(None, None, None)
    assert dict(vars(Owner)) == before


def _of_fx(original: Any) -> Any:
    """A call as torch.fx sets it: a function of its own code."""
    code = compile("def wrapper(self): return ['fx', *original(self)]", os.path.join(_FX, "proxy.py"), "exec")
    space = {"original": original}
    exec(code, space)
    return space["wrapper"]


def test_what_fx_set_before_is_not_put_back() -> None:
    """It is taken away while ours should stand: ours must not bring it back, nor undo it before."""
    original = Owner.own
    Owner.own = of_fx = _of_fx(original)  # type: ignore[method-assign]
    with Patches().replaced(Owner, "own", _named("ours")):
        assert Owner.own is of_fx
        Owner.own = original  # type: ignore[method-assign]
        with Patches().replaced(Owner, "own", _named("inner")):
            assert Owner().own() == ["inner", "ours", "own"]
    assert Owner.own is original


@pytest.mark.parametrize("turns", [1, 2])
def test_what_fx_sets_later_stays_and_what_it_puts_back_is_known(turns: int) -> None:
    original, patches = Owner.own, Patches()
    with patches.replaced(Owner, "own", _named("ours")):
        put = Owner.own
        Owner.own = of_fx = _of_fx(put)  # type: ignore[method-assign]
    assert Owner.own is of_fx
    with patches.replaced(Owner, "own", _named("meanwhile")):
        assert Owner.own is of_fx
    # What it found is ours, and what it puts back.
    Owner.own = put  # type: ignore[method-assign]
    for _ in range(turns):
        with patches.replaced(Owner, "own", _named("again")):
            assert Owner().own() == ["again", "own"]
        assert Owner.own is original


def test_modules_are_called_as_before_after_traces_and_captures_at_once() -> None:
    """torch.fx sets the call of `nn.Module` while it traces, in whatever thread, and so does a capture."""
    before = dict(vars(torch.nn.Module))
    linear, x, done = torch.nn.Linear(3, 3), torch.rand(2, 3), threading.Event()

    def capture() -> None:
        while not done.is_set():
            smelt.trace(linear, (x,))

    thread = threading.Thread(target=capture)
    thread.start()
    try:
        for _ in range(30):
            make_fx(lambda x: torch.relu(x) * 2)(x)
    finally:
        done.set()
        thread.join()
    # fx may have put back a call of a capture that was over by then: the next one takes it away.
    smelt.trace(linear, (x,))
    assert dict(vars(torch.nn.Module)) == before
