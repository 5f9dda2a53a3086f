"""Attributes of torch's classes, replaced for a time by captures and by others at once, end as they were."""

from __future__ import annotations

import builtins
import contextlib
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import smelt
from smelt._torch.seen.record_patches import Patches
from smelt.capture.recording.detector import detecting
from smelt.capture.scripting.values.tensors import answering_open
from smelt.capture.staging.fakes.patches import answering
from tests.forked import smelt_forks

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


def _program(x: smelt.f32[2, 3]):
    y = torch.relu(x.data) + x.shape[0]
    return y * 2 if y.sum() > 0 else y


_PLACES = (
    torch.Tensor,
    torch.nn.Module,
    torch.nn.Linear,
    torch.autograd.Function,
    torch.autograd,
    torch,
    torch.overrides,
)


def _state() -> list[dict[str, Any]]:
    return [dict(vars(place)) for place in (*_PLACES, builtins, warnings)]


@pytest.mark.spread(2)
@pytest.mark.parametrize("door", [smelt.trace, smelt.script], ids=["trace", "script"])
def test_what_was_entered_is_left_when_an_entry_fails(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replacement of a capture fails in turn: all stand as before, and the next capture is whole."""
    linear, x = torch.nn.Linear(3, 3), torch.rand(2, 3)
    entered, failing = 0, -1

    def replaced(self: Patches, owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
        nonlocal entered
        entered += 1

        def fails(original: Any) -> Any:
            raise OSError(name)

        return original(self, owner, name, fails if entered == failing + 1 else make)

    def capture() -> torch.Tensor:
        nonlocal entered
        entered = 0
        if door is smelt.script:
            return smelt.script(_program)(x)
        return smelt.trace(lambda x: _program(linear(x)), (x,))(x)

    original = Patches.replaced
    wanted = capture()
    monkeypatch.setattr(Patches, "replaced", replaced)
    capture()
    count, before = entered, _state()
    assert count > 10
    for failing in range(count):
        with contextlib.suppress(OSError, smelt.SmeltError), warnings.catch_warnings(action="ignore"):
            capture()
        assert _state() == before, failing
        assert not Patches._attributes
    failing = -1
    assert torch.equal(capture(), wanted)


@pytest.mark.parametrize("name", ["own", "inherited"])
def test_a_replacement_that_cannot_be_made_leaves_those_around_it(name: str) -> None:
    before, patches = dict(vars(Owner)), Patches()
    with patches.replaced(Owner, name, _named("around")):
        with pytest.raises(ZeroDivisionError), Patches().replaced(Owner, name, lambda original: 1 / 0):
            pass
        assert getattr(Owner(), name)() == ["around", name]
    assert dict(vars(Owner)) == before and not Patches._attributes


@pytest.mark.parametrize("name", ["data", "_base", "_version", "requires_grad", "shape", "grad", "is_leaf"])
def test_what_stands_for_an_attribute_of_tensors_has_its_names(name: str) -> None:
    """torch's compiler, imported while a program is captured, asks its getters what class they are of."""
    own = getattr(torch.Tensor, name)
    found: list[Any] = []
    for standing in (lambda: detecting(None, "entry"), answering, answering_open):  # type: ignore[arg-type]
        with standing():
            found += [vars(torch.Tensor)[name]] if name in vars(torch.Tensor) else []
    assert found and own not in found
    for getter in found:
        assert (getter.__name__, getter.__objclass__) == (own.__name__, own.__objclass__)


@pytest.mark.nightly
def test_torchs_compiler_can_be_imported_while_a_program_is_captured() -> None:
    code = "import torch, sys, smelt\ndef f(x):\n    import torch._dynamo\n    return x.data + 1\n"
    code += "x = torch.ones(2)\nassert smelt.trace(f, (x,))(x).tolist() == [2, 2]\n"
    code += "assert torch.compile(lambda x: x + 1, backend='eager')(x).tolist() == [2, 2]\n"
    smelt_forks().run("import warnings\nwarnings.simplefilter('ignore')\n" + code)


def test_a_script_needs_no_compiler_of_torchs(tmp_path: Path) -> None:
    """It takes seconds to import, and kernels for data-free tensors would import it in the middle of a capture."""
    program = "import sys, torch, smelt\n@smelt.script\ndef f(x: smelt.f32[2, 3]):\n    y = x.data\n"
    program += "    for i in range(3):\n        y = torch.relu(y + i)\n    return y\n"
    program += "assert 'torch._dynamo' not in sys.modules\n"
    (tmp_path / "program.py").write_text(program)
    smelt_forks().run(f"import runpy\nrunpy.run_path({str(tmp_path / 'program.py')!r}, run_name='__main__')")
