"""Machine code on disk and in memory: corrupt, truncated, unwritable, full, shared; and loading it without LLVM."""

from __future__ import annotations

import ctypes
import os
import platform
import stat
import struct
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from smelt.codegen.llvm.emit import emit_object
from smelt.codegen.llvm.walkers.entry_ir import entry_text
from smelt.codegen.llvm.walkers.executor_ir import executor_text
from smelt.diag import InternalError, PackageError, SmeltWarning
from smelt.runtime.machine import loader
from smelt.runtime.machine.cache import CodeCache
from smelt.runtime.machine.elf import MACHINE_AARCH64, parse_object
from smelt.runtime.machine.loader import load_object
from tests.forked import smelt_forks

KEY = "ab" * 32
I64 = ctypes.c_int64


def entry_file(folder: Path) -> Path:
    (path,) = folder.glob("*.obj")
    return path


def test_what_was_put_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert CodeCache(str(folder)).get_or_build(KEY, lambda: b"payload") == b"payload"
    assert CodeCache(str(folder)).get_or_build(KEY, lambda: b"other") == b"payload"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert CodeCache(str(folder)).get("cd" * 32) is None
    assert [p.suffix for p in folder.iterdir()] == [".obj"]


def test_without_a_folder(tmp_path: Path) -> None:
    cache = CodeCache("")
    assert cache.get_or_build(KEY, lambda: b"x") == b"x"
    assert cache.get_or_build(KEY, lambda: b"y") == b"x"
    cache.clear_memory()
    assert cache.get(KEY) is None


@pytest.mark.parametrize("fault", ["empty", "truncated", "header", "bit", "longer", "other version", "directory"])
def test_corrupt_entries_are_built_again(tmp_path: Path, fault: str) -> None:
    CodeCache(str(tmp_path)).put(KEY, b"payload" * 100)
    path = entry_file(tmp_path)
    data = bytearray(path.read_bytes())
    if fault == "empty":
        data = bytearray()
    elif fault == "truncated":
        del data[-10:]
    elif fault == "header":
        del data[20:]
    elif fault == "bit":
        data[-1] ^= 1
    elif fault == "longer":
        data += b"!"
    elif fault == "other version":
        data[8] ^= 1
    path.unlink()
    if fault == "directory":
        path.mkdir()
        with pytest.warns(SmeltWarning):
            assert CodeCache(str(tmp_path)).get_or_build(KEY, lambda: b"new") == b"new"
        return
    path.write_bytes(bytes(data))
    assert CodeCache(str(tmp_path)).get_or_build(KEY, lambda: b"new") == b"new"
    assert CodeCache(str(tmp_path)).get(KEY) == b"new"


def test_a_folder_that_cannot_be_made_gives_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = CodeCache(str(tmp_path / "file" / "cache"))
    with pytest.warns(SmeltWarning, match="not cached on disk") as caught:
        assert cache.get_or_build(KEY, lambda: b"x") == b"x"
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put("cd" * 32, b"y")
        assert cache.get("cd" * 32) == b"y" and cache.get(KEY) == b"x"


def test_a_full_disk_gives_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    cache = CodeCache(str(tmp_path))
    cache.put(KEY, b"x")
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.warns(SmeltWarning, match="No space left"):
        cache.put("cd" * 32, b"y")
    assert cache.get("cd" * 32) == b"y"


def test_a_failing_rename_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(SmeltWarning):
        CodeCache(str(tmp_path)).put(KEY, b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_user_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CodeCache(str(tmp_path)).put(KEY, b"theirs")
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.warns(SmeltWarning, match="another user"):
        assert CodeCache(str(tmp_path)).get_or_build(KEY, lambda: b"ours") == b"ours"


def test_an_open_folder_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    CodeCache(str(tmp_path)).put(KEY, b"x")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = CodeCache(str(tmp_path), limit_mb=1)
    keys = [f"{i:064x}" for i in range(4)]
    for age, key in enumerate(keys[:3]):
        cache.put(key, bytes(300 << 10))
        os.utime(tmp_path / f"{key}.obj", (1000 + age, 1000 + age))
    fresh = CodeCache(str(tmp_path), limit_mb=1)
    assert fresh.get(keys[0]) is not None  # used now, so the second is the oldest
    stale = tmp_path / ".writing-old"
    stale.write_bytes(b"left by a killed writer")
    os.utime(stale, (1000, 1000))
    fresh.put(keys[3], bytes(300 << 10))
    assert sorted(p.stem for p in tmp_path.iterdir()) == [keys[0], keys[2], keys[3]]


def test_writers_at_once(tmp_path: Path) -> None:
    caches = [CodeCache(str(tmp_path)) for _ in range(4)]
    keys = [f"{i:064x}" for i in range(20)]

    def write(cache: CodeCache) -> None:
        for key in keys:
            cache.put(key, key.encode() * 50)

    threads = [threading.Thread(target=write, args=(c,)) for c in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fresh = CodeCache(str(tmp_path))
    assert all(fresh.get(key) == key.encode() * 50 for key in keys)


# --- the loader -------------------------------------------------------------------------------------------------------

MODULE = """
@table = private constant [4 x i64] [i64 3, i64 5, i64 7, i64 11]
@counter = internal global i64 40
declare i64 @outside(i64)
declare double @other(double)
define i64 @pick(i64 %i) {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}
define i64 @count() {
  %v = load i64, ptr @counter
  %w = add i64 %v, 1
  store i64 %w, ptr @counter
  ret i64 %w
}
define i64 @ask(i64 %x) {
  %v = call i64 @outside(i64 %x)
  %w = call i64 @pick(i64 %v)
  %d = call double @other(double 2.5)
  %e = fptosi double %d to i64
  %s = add i64 %w, %e
  ret i64 %s
}
define ptr @where() {
  ret ptr @outside
}
"""


@pytest.fixture
def outside() -> Iterator[dict[str, int]]:
    first = ctypes.CFUNCTYPE(I64, I64)(lambda x: x - 1)
    second = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda x: 40 * x)
    yield {n: ctypes.cast(f, ctypes.c_void_p).value or 0 for n, f in (("outside", first), ("other", second))}


def test_constants_data_and_calls_out(outside: dict[str, int]) -> None:
    code = load_object(emit_object(MODULE), outside)
    assert [ctypes.CFUNCTYPE(I64, I64)(code.address("pick"))(i) for i in range(4)] == [3, 5, 7, 11]
    count = ctypes.CFUNCTYPE(I64)(code.address("count"))
    assert [count(), count()] == [41, 42]
    assert ctypes.CFUNCTYPE(I64, I64)(code.address("ask"))(3) == 7 + 100
    assert ctypes.CFUNCTYPE(ctypes.c_void_p)(code.address("where"))() == outside["outside"]
    with pytest.raises(PackageError, match="does not define"):
        code.address("nothing")


def test_a_missing_symbol_is_an_error_not_a_crash(outside: dict[str, int]) -> None:
    with pytest.raises(PackageError, match="no address is known for other"):
        load_object(emit_object(MODULE), {"outside": outside["outside"]})


def test_cut_and_garbled_objects_are_refused_or_harmless(outside: dict[str, int]) -> None:
    data = emit_object(MODULE)
    for length in range(0, len(data), 13):
        with pytest.raises(PackageError):
            parse_object(data[:length])
    for at in range(0, len(data), 3):
        garbled = bytearray(data)
        garbled[at] ^= 0xFF
        try:
            load_object(bytes(garbled), outside)  # loaded, never run: the checksum is what vouches for content
        except PackageError:
            continue


def test_objects_of_another_machine() -> None:
    data = bytearray(emit_object(executor_text(platform.machine())))
    struct.pack_into("<H", data, 18, 243)
    with pytest.raises(PackageError, match="machine 243"):
        load_object(bytes(data))


def test_relocations_of_aarch64(outside: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cross-compiled, bound, never run: the bound instructions are decoded instead."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    data = machine.emit_object(llvm.parse_assembly(MODULE))
    monkeypatch.setattr(loader, "host_machine", lambda: MACHINE_AARCH64)
    monkeypatch.setattr(loader, "_protect", lambda *_: None)
    monkeypatch.setattr(loader, "_clear_instruction_cache", lambda *_: None)
    code = load_object(data, outside)

    def words(name: str, count: int) -> list[tuple[int, int]]:
        start = code.address(name)
        return [(start + 4 * i, ctypes.c_uint32.from_address(start + 4 * i).value) for i in range(count)]

    def page(at: int, word: int) -> int:
        pages = (word >> 29 & 3) | (word >> 5 & 0x7FFFF) << 2
        return (at >> 12 << 12) + ((pages - (1 << 21) if pages >> 20 else pages) << 12)

    (at, adrp), (_, add) = words("pick", 2)
    table = page(at, adrp) + (add >> 10 & 0xFFF)
    assert list((I64 * 4).from_address(table)) == [3, 5, 7, 11]
    branches = []
    for at, word in words("ask", 10):
        if word >> 26 == 0b100101:
            field = word & 0x3FFFFFF
            branches.append(at + 4 * (field - (1 << 26) if field >> 25 else field))
    assert branches[1] == code.address("pick")
    assert I64.from_address(branches[0] + 8).value == outside["outside"]
    assert I64.from_address(branches[2] + 8).value == outside["other"]
    (at, adrp), (_, load) = words("where", 2)
    assert I64.from_address(page(at, adrp) + (load >> 10 & 0xFFF) * 8).value == outside["outside"]


def test_the_executor_needs_no_relocation() -> None:
    for profile in (False, True):
        parsed = parse_object(emit_object(executor_text(platform.machine(), profile=profile) + entry_text()))
        assert parsed.relocations == () and all(s.is_code for s in parsed.sections)


def test_text_that_is_not_llvm() -> None:
    with pytest.raises(InternalError, match="not valid LLVM text"):
        emit_object("define i32 @f() { ret i64 0 }")


PROGRAM = """
    import sys, time
    import torch
    from smelt.codegen.llvm.walkers.executor import executor_object
    from smelt.runtime.machine.cache import CodeCache
    from smelt.runtime.executable import Executable
    from smelt.runtime.plan import Plan
    from smelt.runtime import calls
    code = executor_object(CodeCache(sys.argv[1]))
    executable = Executable(Plan(2, (0,), (1,), (calls.add(1, 0, 0),)), code)
    assert executable.is_native
    assert executable.run([torch.ones(2)])[0].tolist() == [2.0, 2.0]
    print("llvmlite" in sys.modules)
"""


def test_a_second_process_compiles_nothing_and_needs_no_compiler(tmp_path: Path) -> None:
    def run() -> str:
        program = textwrap.dedent(PROGRAM).replace("sys.argv[1]", repr(str(tmp_path / "cache")))
        return smelt_forks().run(program, environment={"PATH": str(tmp_path / "empty")}).strip()

    assert run() == "True"
    before = {p.name for p in (tmp_path / "cache").iterdir()}
    time.sleep(0.01)
    assert run() == "False"
    assert {p.name for p in (tmp_path / "cache").iterdir()} == before


@pytest.mark.parametrize("kind", ["", "plan"])
def test_an_entry_under_the_name_of_another_is_built_again(tmp_path: Path, kind: str) -> None:
    other = "cd" * 32
    cache = CodeCache(str(tmp_path))

    def put(key: str, payload: bytes) -> None:
        cache.keep(key, payload, kind) if kind else cache.put(key, payload)

    def get(key: str) -> bytes | None:
        fresh = CodeCache(str(tmp_path))
        return fresh.take(key, kind) if kind else fresh.get(key)

    put(KEY, b"one")
    put(other, b"two")
    one, two = (next(tmp_path.glob(f"{key}*.obj")) for key in (KEY, other))
    contents = one.read_bytes(), two.read_bytes()
    one.write_bytes(contents[1])
    two.write_bytes(contents[0])
    assert get(KEY) is None and get(other) is None
    assert list(tmp_path.iterdir()) == []
    put(KEY, b"one")
    assert get(KEY) == b"one"


def test_an_entry_under_the_name_of_another_kind_is_built_again(tmp_path: Path) -> None:
    cache = CodeCache(str(tmp_path))
    cache.keep(KEY, b"a plan", "plan")
    (tmp_path / f"{KEY}.plan.obj").rename(tmp_path / f"{KEY}.obj")
    assert CodeCache(str(tmp_path)).get_or_build(KEY, lambda: b"code") == b"code"
    assert CodeCache(str(tmp_path)).get(KEY) == b"code"
