"""The native profile hook sees what Python's sees, once it is told so, and leaves everything else as it is."""

from __future__ import annotations

import cProfile
import ctypes
import os
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import smelt
from smelt.codegen.llvm.emit import emit_object
from smelt.codegen.llvm.profiler import profiler_text
from smelt.diag import events
from smelt.runtime.machine import profiler as module
from smelt.runtime.machine.profiler import CAPACITY, Profiler, Word, load_profiler
from tests.forked import smelt_forks


@pytest.fixture(scope="module")
def profiler() -> Profiler:
    made = load_profiler(emit_object(profiler_text()))
    assert made is not None
    return made


@pytest.fixture(autouse=True)
def nobody_profiles() -> Iterator[None]:
    yield
    sys.setprofile(None)


def _event(frame: FrameType, event: str, arg: Any) -> tuple[str, str]:
    return event, frame.f_code.co_name if event == "call" else arg.__name__


def test_each_function_is_shown_until_the_hook_has_enough(profiler: Profiler) -> None:
    def known() -> int:
        return len("a")

    def never_known() -> int:
        return abs(-1)

    seen: list[tuple[str, str]] = []

    def hook(frame: FrameType, event: str, arg: Any) -> bool:
        seen.append(_event(frame, event, arg))
        return seen[-1][1] not in ("never_known", "abs")

    profiler.start(hook)
    for _ in range(3):
        known()
        never_known()
    sys.setprofile(None)
    first = [("call", "known"), ("c_call", "len"), ("call", "never_known"), ("c_call", "abs")]
    assert seen == [*first, *first[2:], *first[2:], ("c_call", "setprofile")]


def test_a_recording_forgets_what_the_last_one_saw(profiler: Profiler) -> None:
    def program() -> None:
        pass

    for _ in range(2):
        seen: list[str] = []

        def hook(frame: FrameType, event: str, arg: Any, seen: list[str] = seen) -> bool:
            seen.append(_event(frame, event, arg)[1])
            return True

        profiler.start(hook)
        program()
        sys.setprofile(None)
        assert seen == ["program", "setprofile"]


def test_what_is_put_aside_comes_back_and_other_threads_see_nothing(profiler: Profiler) -> None:
    def program() -> None:
        pass

    seen: list[str] = []

    def hook(frame: FrameType, event: str, arg: Any) -> bool:
        seen.append(_event(frame, event, arg)[1])
        return False

    resume = profiler.start(hook)
    sys.setprofile(None)
    program()
    assert "program" not in seen
    resume()
    assert sys.getprofile() is hook
    program()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(sys.getprofile()))
    thread.start()
    thread.join()
    sys.setprofile(None)
    assert seen.count("program") == 1
    assert found == [None]


def test_an_error_of_the_hook_is_the_programs_and_keeps_what_was_to_be_called_from_it(profiler: Profiler) -> None:
    ran: list[str] = []

    def program() -> None:
        ran.append("program")

    def cleanup() -> None:
        ran.append("cleanup")

    def hook(frame: FrameType, event: str, arg: Any) -> bool:
        if frame.f_code in (program.__code__, cleanup.__code__):
            raise ZeroDivisionError(frame.f_code.co_name)
        return False

    def both() -> None:
        try:
            program()
        finally:
            cleanup()

    try:
        profiler.start(hook)
        with pytest.raises(ZeroDivisionError, match="cleanup"):
            both()
    finally:
        sys.setprofile(None)
    assert ran == []
    both()
    assert ran == ["program", "cleanup"]


def test_a_full_table_shows_the_rest_each_time(profiler: Profiler) -> None:
    space: dict[str, Any] = {}
    many = CAPACITY // 2 + 50
    exec("\n".join(f"def f{i}(): pass" for i in range(many)), space)
    functions = [space[f"f{i}"] for i in range(many)]
    count = 0

    def hook(frame: FrameType, event: str, arg: Any) -> bool:
        nonlocal count
        count += event == "call"
        return True

    profiler.start(hook)
    for function in functions:
        function()
    first = count
    for function in functions:
        function()
    sys.setprofile(None)
    assert first == many
    assert profiler.block[Word.COUNT] == CAPACITY // 2
    assert count == many + 50


@pytest.mark.parametrize("fault", ["layout", "hook"])
def test_a_python_that_is_laid_out_otherwise_gets_its_own_hook(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = profiler_text()
    if fault == "layout":
        monkeypatch.setattr(module, "DEFINITION_AT", module.DEFINITION_AT + 8)
        monkeypatch.setattr(ctypes, "string_at", lambda address, size: b"other\0")
    else:  # it would never ask about builtins
        text = text.replace("i32 4, label %builtin", "i32 5, label %builtin")
    assert load_profiler(emit_object(text)) is None
    assert sys.getprofile() is None


def test_recordings_find_the_same_with_either_hook(profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for chosen in (None, profiler):
        monkeypatch.setattr(events.native, "is_known", True)
        monkeypatch.setattr(events.native, "profiler", chosen)
        with pytest.warns(smelt.SmeltWarning) as warned:
            program = smelt.trace(_reads, (2.0,))
        found.append(([str(w.message) for w in warned], str(program.graph)))
    assert found[0] == found[1]
    assert any("reads the clock" in text for text in found[0][0])
    assert any("opens a file" in text for text in found[0][0])


def _reads(x: float) -> torch.Tensor:
    time.time()
    with open(os.devnull):
        return torch.ones(3) * x


def test_a_later_process_has_it_without_a_compiler(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys
        import smelt, torch
        from smelt.diag import events
        for _ in range(2):
            smelt.compile(lambda x: x * 2 + 1, options={"cache_dir": FOLDER})(torch.ones(3))
        print(events.native.profiler is not None, "llvmlite" in sys.modules)
        """
    )
    program = program.replace("FOLDER", repr(str(tmp_path)))
    answers = [smelt_forks().run(program).split() for _ in range(2)]
    assert answers == [["True", "True"], ["True", "False"]]


def test_a_profile_of_pythons_own_goes_on() -> None:
    profile = cProfile.Profile()
    profile.enable()
    try:
        made = load_profiler(emit_object(profiler_text()))
        sorted([2, 1])
    finally:
        profile.disable()
    assert made is not None and any("sorted" in str(entry.code) for entry in profile.getstats())
