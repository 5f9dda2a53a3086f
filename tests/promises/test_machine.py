"""What the machine may lack: a compiler, a warm or intact cache, a folder to write to, LLVM itself."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import smelt
from smelt.codegen.llvm.walkers import executor
from smelt.diag import InternalError, SmeltError, SmeltWarning
from smelt.runtime.machine import drafts
from smelt.runtime.machine.cache import CodeCache
from tests.forked import smelt_forks
from tests.promises.models import RULE, assert_agrees, block, entry_of, how_nodes_run, images

# Compiles and runs a model in a process of its own; prints what happened as JSON.
_CHILD = """
import json, shutil, sys, warnings
import torch, smelt
from tests.promises.models import block, images
from smelt.capture import tensors_of
from smelt.compiler.programs.numeric_comparison import disagreement

torch.set_grad_enabled(False)
found = {"compilers": [n for n in ("gcc", "g++", "cc", "c++", "clang", "clang++") if shutil.which(n)], "native": []}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for made in (block(), images()):
        want = tensors_of(made.model(**made.inputs))
        compiled = smelt.compile(made.model)
        for _ in range(3):
            difference = disagreement(want, tensors_of(compiled(**made.inputs)))
            assert difference is None, difference
        entry = compiled.stats().rows[0].entry
        found["native"].append(entry is not None and entry.executable.is_native)
found["warnings"] = [f"{w.category.__name__}: {w.message}" for w in caught]
found["llvm"] = "llvmlite" in sys.modules
found["heavy"] = [n for n in ("torch._dynamo", "torch._inductor", "sympy", "triton") if n in sys.modules]
print(json.dumps(found))
"""


def in_a_process(cache: Path, **environment: str) -> dict[str, Any]:
    """The child's report. `environment` goes on top of this process's own."""
    written = smelt_forks().run(_CHILD, environment={"SMELT_CACHE_DIR": str(cache), **environment})
    report: dict[str, Any] = json.loads(written.splitlines()[-1])
    return report


_AT_ONCE = f"""
import atexit, os, sys
children = []
for _ in range(4):
    child = os.fork()
    if not child:
        exec({_CHILD!r}, {{"__name__": "__main__"}})
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(0)
    children.append(child)
assert not any(os.waitpid(child, 0)[1] for child in children)
"""


def test_without_a_compiler_and_then_with_a_warm_cache(tmp_path: Path) -> None:
    cache, nothing = tmp_path / "cache", tmp_path / "bin"
    nothing.mkdir()
    bare = {"PATH": str(nothing), "CC": str(nothing / "cc"), "CXX": str(nothing / "cxx")}
    cold = in_a_process(cache, **bare)
    assert cold["compilers"] == [] and cold["native"] == [True, True] and cold["warnings"] == []
    assert cold["llvm"]
    objects = sorted(cache.glob("*.obj"))
    assert objects and cache.stat().st_mode & 0o077 == 0

    warm = in_a_process(cache, **bare)
    assert warm["native"] == [True, True] and warm["warnings"] == []
    assert not warm["llvm"], "a warm cache needs no LLVM"
    assert sorted(cache.glob("*.obj")) == objects
    assert cold["heavy"] == warm["heavy"] == [], "their imports take longer than a compilation"

    for path in objects:
        path.write_bytes(path.read_bytes()[:-100] + b"\0" * 100)
    damaged = {path: path.read_bytes() for path in objects}
    rebuilt = in_a_process(cache)
    assert rebuilt["native"] == [True, True] and rebuilt["warnings"] == [] and rebuilt["llvm"]
    assert any(path.read_bytes() != data for path, data in damaged.items())
    assert not in_a_process(cache)["llvm"]


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:10],
        lambda data: data[: len(data) // 2],
        lambda data: data + b"more",
        lambda data: bytes(len(data)),
        lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
        lambda data: data[:8] + b"\xff" + data[9:],
    ],
)
def test_a_corrupt_entry_is_built_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    made, folder = block(), tmp_path / "cache"
    expected = made.model(**made.inputs)

    def run() -> None:
        # A limit of its own makes a cache object of its own, as a new process would have.
        run.limit += 1  # type: ignore[attr-defined]
        options = {**RULE, "cache_dir": str(folder), "cache_limit_mb": run.limit}  # type: ignore[attr-defined]
        compiled = smelt.compile(made.model, options=options)
        for _ in range(2):
            assert_agrees(compiled(**made.inputs), expected)
        entry_of(compiled)
        drafts.finish()  # what a thread makes goes into the folder, too

    run.limit = 100  # type: ignore[attr-defined]
    run()
    good = {path: path.read_bytes() for path in folder.glob("*.obj")}
    assert good
    for path, data in good.items():
        path.write_bytes(damage(data))
    run()
    # The code of calls is loaded once a process, so only the plans' own is needed again.
    rebuilt = {path for path in good if path.exists() and path.read_bytes() == good[path]}
    assert rebuilt and all(path.read_bytes() == damage(good[path]) for path in good if path not in rebuilt)


def test_several_processes_on_one_empty_cache(tmp_path: Path) -> None:
    """All start at once; each gets its answers from native code, and leaves whole entries to the next."""
    written = smelt_forks().run(_AT_ONCE, environment={"SMELT_CACHE_DIR": str(tmp_path)})
    reports = [json.loads(line) for line in written.splitlines()]
    assert len(reports) == 4
    for report in reports:
        assert report["native"] == [True, True]
        assert report["warnings"] == []
    names = [file.name for file in tmp_path.iterdir()]
    assert names and all(name.endswith(".obj") for name in names), "a writer left a file behind"
    after = in_a_process(tmp_path)
    assert after["llvm"] is False, "what they left was built again"
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(names)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    # The user may be root, whom no permission stops: a file stands where the folder should be.
    (tmp_path / "file").write_text("")
    options = {**RULE, "cache_dir": str(tmp_path / "file" / "cache")}
    models = [block(), images()]
    expected = [m.model(**m.inputs) for m in models]
    compiled = [smelt.compile(m.model, options=options) for m in models]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            for c, made, want in zip(compiled, models, expected, strict=True):
                assert_agrees(c(**made.inputs), want)
    (only,) = [w for w in caught if issubclass(w.category, SmeltWarning)]
    assert "machine code is not cached on disk" in str(only.message) and str(tmp_path) in str(only.message)
    for c in compiled:
        entry_of(c)
    program = smelt.trace(models[0].model, (), models[0].inputs, options=options)
    assert Path(program.code.path).exists()


def test_a_folder_that_refuses_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    made = block()
    expected = made.model(**made.inputs)
    compiled = smelt.compile(made.model, options={**RULE, "cache_dir": str(tmp_path / "cache")})
    monkeypatch.setattr("smelt.runtime.machine.cache.os.replace", refuse)
    with pytest.warns(SmeltWarning, match="No space left"):
        compiled(**made.inputs)
    assert_agrees(compiled(**made.inputs), expected)
    entry_of(compiled)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.spread(3)
@pytest.mark.parametrize("isa", ["avx2", "baseline", "none"])
def test_a_cpu_that_has_less(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_ISA", isa)
    for made in (block(), images()):
        expected = made.model(**made.inputs)
        compiled = smelt.compile(made.model, options={**RULE, "cache_dir": str(tmp_path)})
        for _ in range(3):
            assert_agrees(compiled(**made.inputs), expected)
        has_kernels = "kernel" in how_nodes_run(compiled)
        assert entry_of(compiled) and has_kernels == (isa != "none")


def _fail(text: str) -> bytes:
    raise InternalError("emitted code is not valid LLVM text")


def _executor_is(build: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor's object code is made by `build`, through the cache as ever."""

    def made(name: str, text: str, cache: CodeCache) -> bytes:
        return cache.get_or_build(hashlib.sha256(name.encode()).hexdigest(), lambda: build(text))

    monkeypatch.setattr(executor, "drafted_object", made)


@pytest.mark.spread(3)
@pytest.mark.parametrize("failure", [_fail, lambda text: 1 // 0, lambda text: b"not an object"])
def test_an_executor_that_cannot_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Any) -> None:
    _executor_is(failure, monkeypatch)
    options = {**RULE, "cache_dir": str(tmp_path / "cache")}
    for sample in (block, images):
        made = sample()
        expected = made.model(**made.inputs)
        compiled = smelt.compile(made.model, options=options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                assert_agrees(compiled(**made.inputs), expected)
        assert len([w for w in caught if issubclass(w.category, SmeltWarning)]) <= 1
        entry: Any = compiled.stats().rows[0].entry
        assert entry is not None and not entry.executable.is_native
        assert how_nodes_run(compiled)
        program = smelt.trace(made.model, (), made.inputs, options={**options, "cache_limit_mb": 7})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_agrees(program(**made.inputs), expected)


def test_an_executor_that_cannot_be_built_is_said_once_and_refused_in_strict_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _executor_is(_fail, monkeypatch)
    options = {**RULE, "cache_dir": str(tmp_path / "cache")}
    made = block()
    compiled = smelt.compile(made.model, options=options)
    with pytest.warns(SmeltWarning, match="plans run in Python") as caught:
        for _ in range(3):
            compiled(**made.inputs)
    assert len(caught) == 1
    with pytest.raises(SmeltError, match="not valid LLVM text"):
        smelt.compile(made.model, options={**options, "strict": True})(**made.inputs)
