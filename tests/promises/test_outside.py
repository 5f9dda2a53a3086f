"""What a program does outside of Python is done when it does it, and never by a run of Smelt's own."""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.diag import CaptureError

pytestmark = pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning")
PLUS, MINUS = torch.ones(3), -torch.ones(3)
ORDERS = ("nnnn", "pnnp", "npnp")
FOLDER = ""
HELD: Any = None


def log() -> str:
    return os.path.join(FOLDER, "log")


def appends() -> None:
    with open(log(), "a") as file:
        file.write("x")


def runs_a_command() -> None:
    subprocess.run([sys.executable, "-S", "-c", f"open({log()!r}, 'a').write('x')"], check=True)


def writes_a_descriptor() -> None:
    number = os.open(log(), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(number, b"x")
    os.close(number)


def writes_a_path() -> None:
    path = pathlib.Path(log())
    path.write_text((path.read_text() if path.exists() else "") + "x")


def makes_folders() -> None:
    os.makedirs(os.path.join(tempfile.mkdtemp(dir=FOLDER), "inside"))


def cleans_up() -> None:
    try:
        appends()
    finally:
        os.mkdir(os.path.join(FOLDER, str(len(os.listdir(FOLDER)))))


def saves_tensors() -> None:
    torch.save({}, os.path.join(FOLDER, str(len(os.listdir(FOLDER)))))


def writes_what_is_open() -> None:
    HELD.write("x")
    HELD.flush()


ACTS = [appends, runs_a_command, writes_a_descriptor, writes_a_path, makes_folders, cleans_up, saves_tensors,
        writes_what_is_open]  # fmt: skip


def on_one_way(act: Callable[[], None]) -> Callable[[Tensor], Tensor]:
    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            act()
        return x * 2

    return program


def on_both_ways(act: Callable[[], None]) -> Callable[[Tensor], Tensor]:
    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            act()
            return x * 2
        act()
        act()
        return x - 1

    return program


PROGRAMS = [on_one_way, on_both_ways]


@pytest.fixture(autouse=True)
def _here(tmp_path: pathlib.Path) -> Any:
    with torch.no_grad():
        yield


def seen(folder: pathlib.Path, run: Callable[[], Any]) -> tuple[Any, dict[str, str], int]:
    """The answer of a run in a new folder, the files there afterwards, and how many folders."""
    global FOLDER, HELD
    folder.mkdir()
    FOLDER = str(folder)
    with open(folder / "held", "a") as HELD:
        answer = run()
    inside = list(folder.rglob("*"))
    texts = {p.name: p.read_text() for p in inside if p.name in ("log", "held")}
    return answer, texts, len(inside)


@pytest.mark.spread(10)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("make", PROGRAMS)
def test_a_compiled_program_does_what_eager_does(make: Any, act: Any, tmp_path: pathlib.Path) -> None:
    for order in ORDERS:
        found = []
        for name in ("eager", "compiled"):
            program = make(act) if name == "eager" else smelt.compile(make(act))

            def run(program: Any = program, order: str = order) -> list[Any]:
                return [program(PLUS if c == "p" else MINUS).tolist() for c in order]

            found.append(seen(tmp_path / f"{name} {order}", run))
        assert found[0] == found[1], order


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("make", PROGRAMS)
def test_tracing_does_what_the_run_does(make: Any, act: Any, tmp_path: pathlib.Path) -> None:
    _, *wanted = seen(tmp_path / "eager", lambda: make(act)(MINUS))
    _, *found = seen(tmp_path / "trace", lambda: smelt.trace(make(act), (MINUS,)))
    assert found == wanted


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("make", PROGRAMS)
def test_scripting_does_nothing(make: Any, act: Any, tmp_path: pathlib.Path) -> None:
    def run() -> None:
        with pytest.raises(CaptureError, match=r"must not do what cannot be undone|iterator from outside"):
            smelt.script(make(act))

    assert seen(tmp_path / "script", run)[1:] == ({"held": ""}, 1)


LIBRARY = ctypes.CDLL(None)


def of_a_library(x: Tensor) -> Tensor:
    return x + LIBRARY.rand() % 100


def test_functions_of_c_libraries_are_called_each_time() -> None:
    compiled = smelt.compile(of_a_library)
    found = []
    for program in (of_a_library, compiled):
        LIBRARY.srand(1)
        found.append([program(torch.zeros(1)).item() for _ in range(6)])
    assert found[0] == found[1]
