"""The library itself: what it needs, how large it is, its headers; and files of weights that are not its own."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.package.c.addresses import Elsewhere
from smelt.package.c.export import export
from smelt.package.c.link import RUNTIME
from smelt.runtime.encoding import table
from smelt.runtime.encoding.encode import encode
from smelt.runtime.ingot.natives import targets
from smelt.runtime.machine.elf import parse_object
from tests.ingots.mapped import WIDE_NBYTES, assert_shared, mapped_nbytes, wide
from tests.ingots.test_commands import call
from tests.ingots_c.client import Failed, Library
from tests.ingots_c.conftest import Built, driver
from tests.ingots_c.mutants import mutants

FILE = 2
# All of these are in glibc 2.17, and nothing else may be asked for.
_GLIBC = (
    "posix_memalign malloc calloc free memcpy memmove memset memcmp strcmp strerror snprintf vsnprintf open close "
    "read fstat __fxstat mmap munmap pthread_create pthread_join pthread_mutex_init pthread_mutex_destroy "
    "pthread_mutex_lock pthread_mutex_unlock pthread_cond_init pthread_cond_destroy pthread_cond_wait "
    "pthread_cond_broadcast sched_yield clock_gettime pow ldexp frexp nearbyint floor __errno_location "
    "__tls_get_addr __stack_chk_fail __cxa_finalize __gmon_start__ _ITM_deregisterTMCloneTable "
    "_ITM_registerTMCloneTable"
)
GLIBC = frozenset(_GLIBC.split())


def symbols(library: Path, *flags: str) -> set[str]:
    out = subprocess.run(["nm", *flags, str(library)], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines() if line.strip()}


class TestLibrary:
    def test_it_needs_the_c_library_alone(self, built: Built) -> None:
        assert symbols(built.exported.library, "-D", "--undefined-only") <= GLIBC
        needed = subprocess.run(
            ["readelf", "-d", str(built.exported.library)], check=True, capture_output=True, text=True
        ).stdout
        glibc = {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
        assert set(re.findall(r"NEEDED.*\[(.*?)\]", needed)) <= glibc

    def test_it_exports_its_interface_alone(self, built: Built) -> None:
        text = (RUNTIME / "smelt.h").read_text().split("*/", 1)[1]
        inline = set(re.findall(r"static inline \w+ (smelt_\w+)\(", text))
        declared = set(re.findall(r"\b(smelt_\w+)\(", text)) - inline
        assert symbols(built.exported.library, "-D", "--defined-only") == {*declared, "all_program"}

    def test_its_runtime_is_small(self, built: Built) -> None:
        sizes = subprocess.run(["size", "-A", str(built.exported.library)], check=True, capture_output=True, text=True)
        kernels = sum(len(code.object) for code in _kernels(built))
        whole = sum(int(line.split()[1]) for line in sizes.stdout.splitlines() if line.startswith("."))
        assert whole - kernels < 200_000

    def test_numbers_of_the_executor(self) -> None:
        """C names them again; a change of one must reach the other."""
        text = (RUNTIME / "internal.h").read_text() + (RUNTIME / "numbers.c").read_text()
        cells = {name: int(value) for name, value in re.findall(r"CELL_(\w+) = (\d+)", text)}
        assert cells and cells == {name: int(table.Cell[name]) for name in cells}
        arith = {name: int(value) for name, value in re.findall(r"\b([IF]_\w+) = (\d+)", text)}
        assert arith and arith == {name: int(table.Arith[name]) for name in arith}
        statuses = re.search(r"enum \{ (RUN_OK.*?) \}", text)
        assert statuses is not None
        assert statuses[1].split(", ") == [f"RUN_{status.name}" for status in table.Status]
        assert int(re.findall(r"TEAM_WORDS = (\d+)", text)[0]) == len(table.TeamWord)

    def test_tables_differ_from_those_of_this_process_in_addresses_alone(self, built: Built) -> None:
        loaded = built.loaded()
        for name in ("mlp", "collatz", "lstm", "block"):
            plan = loaded.entry(name).native().executable.plan
            here, there = encode(plan), encode(plan, where=Elsewhere())
            waiting = {cell for cell, _ in there.relocations} | {table.Cell.TEAM_WORDS, *_modes()}
            if here.team_limit == there.team_limit:
                assert list(here.code) == list(there.code)
            same = [i for i in range(len(there.cells)) if i not in waiting]
            assert len(here.cells) == len(there.cells) and len(waiting) < len(there.cells)
            changed = [i for i in same if here.cells[i] != there.cells[i]]
            chunks = {chunk for chunk in changed if here.team_limit != there.team_limit}
            assert set(changed) <= chunks

    def test_the_headers_are_c_and_cpp(self, built: Built, tmp_path: Path) -> None:
        folder = built.exported.library.parent
        (tmp_path / "main.c").write_text(
            '#include "all.h"\nint main(void) { return smelt_entries(&all_program) != 13; }\n'
        )
        strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", str(folder)]
        static = ["-std=c99", *strict, str(tmp_path / "main.c"), str(folder / "liball.a"), "-lpthread", "-lm"]
        subprocess.run(["cc", *static, "-o", str(tmp_path / "main")], check=True)
        subprocess.run([tmp_path / "main"], check=True)
        compiler = shutil.which("c++")
        if compiler is not None:
            (tmp_path / "main.cpp").write_text('#include "all.h"\n#include "smelt.hpp"\n')
            subprocess.run([compiler, "-std=c++11", *strict, "-fsyntax-only", str(tmp_path / "main.cpp")], check=True)


def _modes() -> list[int]:
    return [int(cell) for cell, _ in (*table.GRAD_CELLS, *table.AUTOCAST_CELLS)]


def _kernels(built: Built) -> list[Any]:
    found = {}
    for name in built.calls:
        for code in built.loaded().entry(name).native().text.code:
            parse_object(code.object)
            found[code.symbol] = code
    return list(found.values())


def test_sizes_of_a_range_are_named_at_export(tmp_path: Path) -> None:
    """One file, of which each library takes the sizes that it is for, without a compiler of Smelt's."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 3)).eval()
    with torch.no_grad():
        program = smelt.trace(model, (torch.randn(4, 16),), dynamic_shapes=[{0: smelt.Dim("rows", max=64)}])
        program.save(tmp_path / "m.ingot", sizes=[{"rows": range(1, 65)}], targets=targets()[:1])
        code = call("export", tmp_path / "m.ingot", "--out", tmp_path / "cli", "--size", "rows=7", "--size", "rows=64")
        assert code[0] == 0 and "forward_7(" in code[1] and "forward_64(" in code[1]
        made = export(tmp_path / "m.ingot", tmp_path / "build", sizes=[{"rows": n} for n in (1, 7, 40)])
        context, loaded = Library(made).open(made.weights).context(), smelt.load(tmp_path / "m.ingot")
        for n in (1, 7, 40):
            given = torch.randn(n, 16)
            assert torch.equal(context.call(f"forward_{n}", given)[0], loaded(given))
    with pytest.raises(smelt.PackageError, match="rows <= 64"):
        export(tmp_path / "m.ingot", tmp_path / "none", sizes=[{"rows": 65}])


def test_processes_share_the_memory_of_the_file(tmp_path: Path) -> None:
    """Two programs in C that have called it, and wait."""
    with torch.no_grad():
        smelt.trace(wide(), (torch.ones(40, 256),)).save(tmp_path / "all.ingot", targets=targets()[:1])
    exported = export(tmp_path / "all.ingot", tmp_path / "build")
    command = [driver(exported, ["cc"], ()), "hold", exported.weights]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in both:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert_shared(*(mapped_nbytes(exported.weights, process.pid) for process in both), WIDE_NBYTES)
    finally:
        for process in both:
            process.communicate()
    assert [process.returncode for process in both] == [0, 0]


class TestRefused:
    def test_operators_without_kernels_are_named(self, tmp_path: Path) -> None:
        x = torch.randn(3, 4)
        programs = {"sorts": lambda x: torch.sort(x, -1)[0], "fine": lambda x: x + 1, "draws": torch.rand_like}
        smelt.save({n: smelt.trace(p, (x,)) for n, p in programs.items()}, tmp_path / "m.ingot", targets=targets()[:1])
        with pytest.raises(smelt.PackageError, match=r"draws: aten.rand_like.default; sorts: aten.sort") as refused:
            export(tmp_path / "m.ingot", tmp_path / "out")
        assert "fine" not in str(refused.value) and not (tmp_path / "out").exists()

    def test_what_is_missing_is_said(self, tmp_path: Path, built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(smelt.PackageError, match="saved without neon"):
            export(built.ingot, tmp_path, target="neon")
        with pytest.raises(smelt.PackageError, match="there is no target 'sse'"):
            export(built.ingot, tmp_path, target="sse")
        with pytest.raises(smelt.PackageError, match="there is no command 'no-such-cc'"):
            export(built.ingot, tmp_path, compiler="no-such-cc")
        monkeypatch.setattr(shutil, "which", lambda name: None)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(smelt.PackageError, match=r"(?s)no C compiler.*install a C compiler .*ziglang"):
            export(built.ingot, tmp_path)


class TestBrokenWeights:
    def test_each_is_a_status_and_a_text(self, built: Built, tmp_path: Path) -> None:
        content = built.exported.weights.read_bytes()
        path = tmp_path / "w"
        library = built.model().library
        for edit in mutants(content, 200, seed=1):
            what, mutant = edit.what, edit.of(content)
            path.write_bytes(mutant)
            for flags in (1, 2):
                try:
                    model = library.open(path, flags)
                except Failed as failed:
                    assert failed.status == FILE and str(path) in failed.text, what
                else:
                    # Without a look at all of it, other floating numbers are another model.
                    assert flags == 2 and len(mutant) == len(content), what
                    model.context().call("mlp", *built.calls["mlp"][0])

    def test_whole_numbers_are_always_compared(self, built: Built, tmp_path: Path) -> None:
        content = bytearray(built.exported.weights.read_bytes())
        at = content.index(b"counter.at")
        content[at] ^= 1
        (tmp_path / "w").write_bytes(content)
        with pytest.raises(Failed, match="digests differ"):
            built.model().library.open(tmp_path / "w")

    def test_no_file(self, built: Built, tmp_path: Path) -> None:
        library = built.model().library
        for path, text in ((tmp_path / "none", "No such file"), (tmp_path, "is no plain file|Is a directory")):
            with pytest.raises(Failed, match=text) as failed:
                library.open(path)
            assert failed.value.status == FILE
