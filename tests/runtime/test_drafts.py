"""Code that is replaced in use: made quickly for the first call, and well for those that follow."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import smelt
from smelt.codegen.llvm.emit import emit_draft, emit_object
from smelt.codegen.llvm.walkers.entry_ir import entry_text
from smelt.codegen.llvm.walkers.executor_ir import executor_text
from smelt.diag import PackageError, SmeltWarning
from smelt.runtime.machine import drafts
from smelt.runtime.machine.loader import LoadedCode, load_object
from smelt.runtime.machine.native import native_entry
from tests.forked import smelt_forks

I64 = ctypes.c_int64
ADD = """
@outside = external global i64
define i64 @f(i64 %x) {{
  %y = add i64 %x, {number}
  ret i64 %y
}}
define i64 @g() {{
  %v = load i64, ptr @outside
  %y = call i64 @f(i64 %v)
  ret i64 %y
}}
"""
OUTSIDE = ctypes.c_int64(100)
EXTERNALS = {"outside": ctypes.addressof(OUTSIDE)}


def adding(number: int) -> bytes:
    return emit_object(ADD.format(number=number))


def functions(code: LoadedCode) -> tuple[Callable[[int], int], Callable[[], int]]:
    return ctypes.CFUNCTYPE(I64, I64)(code.address("f")), ctypes.CFUNCTYPE(I64)(code.address("g"))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "_drafts", drafts._Drafts())


def test_a_function_that_is_called_by_its_address_is_replaced() -> None:
    code = load_object(adding(1), EXTERNALS, replaceable=True)
    f, g = functions(code)
    assert (f(1), g()) == (2, 101)
    for number in (2, 3):
        code.replace(load_object(adding(number), EXTERNALS))
        assert (f(1), g()) == (1 + number, 100 + number)
    with pytest.raises(PackageError, match="does not define"):
        code.replace(load_object(emit_object("define i64 @f(i64 %x) {\n  ret i64 %x\n}\n")))
    assert (f(1), g()) == (4, 103)


def test_drafts_are_finished_once_a_run_is_over(fresh: None) -> None:
    made: list[int] = []

    def finished() -> bytes:
        made.append(threading.get_ident())
        return adding(20)

    drafts.promise(adding(10), finished)
    drafts.promise(adding(10), finished)
    loaded = [drafts.load(adding(10), EXTERNALS) for _ in range(2)]
    calls = [functions(code) for code in loaded]
    assert [(f(1), g()) for f, g in calls] == [(11, 110)] * 2 and not made
    drafts.begin()
    drafts.finish()
    assert [(f(1), g()) for f, g in calls] == [(21, 120)] * 2
    assert len(made) == 1 and made[0] != threading.get_ident()
    drafts.promise(adding(30), lambda: adding(40))  # from now on at once
    code = drafts.load(adding(30), EXTERNALS)
    drafts.finish()
    assert functions(code)[0](1) in (31, 41)


def test_a_draft_that_cannot_be_finished_stays(fresh: None) -> None:
    drafts.promise(adding(50), lambda: bytes(1 // 0))
    drafts.promise(adding(60), lambda: adding(61))
    loaded = [drafts.load(adding(number), EXTERNALS) for number in (50, 60)]
    with pytest.warns(SmeltWarning, match="slower than it could be"):
        drafts.finish()
    assert [functions(code)[0](1) for code in loaded] == [51, 62]


def test_what_is_no_draft_is_loaded_as_ever(fresh: None) -> None:
    code = drafts.load(adding(70), EXTERNALS)
    drafts.finish()
    assert functions(code)[0](1) == 71


def test_the_executor_and_the_entry_can_be_drafts() -> None:
    entry = native_entry(emit_draft(executor_text(platform.machine(), profile=False) + entry_text()))
    assert entry is not None  # it has passed all kinds of arguments through its table


def sums_up(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for row in x:
        if row.sum() > 0:
            total = total + (row * row).sum()
    while total < 100:
        total = total * 1.5 + 1
    return total


def test_answers_before_and_after(tmp_path: Path) -> None:
    compiled = smelt.compile(sums_up, options={"cache_dir": str(tmp_path)})
    inputs = [torch.randn(5, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    for _ in range(2):
        for x in inputs:
            torch.testing.assert_close(compiled(x), sums_up(x))
        drafts.finish()


PROGRAM = """
import os, sys, torch, smelt

torch.set_num_threads(1)

def f(x):
    while x.sum() < 50:
        x = x * 1.5
    return x + 1

compiled = smelt.compile(f)
x = torch.ones(4)
for _ in range(1 if "once" in sys.argv else 3):
    assert torch.equal(compiled(x), f(x))
if "fork" in sys.argv:
    child = os.fork()
    if not child:
        other = smelt.compile(lambda x: f(x) * 2)
        os._exit(not all(torch.equal(other(x), f(x) * 2) for _ in range(3)))
    assert os.waitpid(child, 0)[1] == 0
print("loaded" if "llvmlite" in sys.modules else "without")
"""


@pytest.mark.parametrize("argument", ["", "fork", "once"])
def test_a_later_process_finds_the_finished_code(tmp_path: Path, argument: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    environment = {"SMELT_CACHE_DIR": str(tmp_path / "cache")}

    def run(words: str, has_own_interpreter: bool = False) -> str:
        if has_own_interpreter:
            command, told = [sys.executable, str(program), words], {**os.environ, **environment}
            return subprocess.run(command, env=told, check=True, capture_output=True, text=True).stdout.strip()
        code = f"import runpy, sys; sys.argv[1:] = [{words!r}]; runpy.run_path({str(program)!r}, run_name='__main__')"
        return smelt_forks().run(code, environment=environment).strip()

    # Where it is called once the interpreter ends while a thread is at work: that is tried with a whole one.
    first = run(argument, has_own_interpreter=argument == "once")
    assert [first, run(argument.replace("fork", ""))] == ["loaded", "without"]
