"""Targets, digests, the cache of kernels, and launches placed by a lowering."""

from __future__ import annotations

import shutil
import struct
import subprocess
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from smelt.codegen.llvm import emit
from smelt.codegen.llvm.isa import AVX2, AVX512, AVX512_BF16, BASELINE_X86, NEON, Isa, best_isa, host_isa
from smelt.codegen.llvm.joined import joined
from smelt.codegen.llvm.objects import KernelSource, compile_kernels
from smelt.codegen.lower.context import Context
from smelt.codegen.lower.launched_kernels import launch, with_code
from smelt.diag import InternalError, Options, SmeltError, SmeltWarning
from smelt.ir import parse
from smelt.runtime.executable import Executable
from smelt.runtime.machine.cache import CodeCache
from smelt.runtime.machine.elf import MACHINE_AARCH64, MACHINE_X86_64, external_names, parse_object
from smelt.runtime.machine.loader import host_machine
from smelt.runtime.plan import Launch
from tests.codegen.harness import machine_code
from tests.forked import smelt_forks

V3 = frozenset(["avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm", "sse2"])
V4 = V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])

ADD_ONE = """
define i32 @KERNEL(ptr noalias %args, i64 %begin, i64 %end, ptr noalias %scratch) nounwind {
  %xa = getelementptr i64, ptr %args, i64 1
  %out = load ptr, ptr %args
  %x = load ptr, ptr %xa
  %v = load <8 x float>, ptr %x, align 4
  %y = fadd <8 x float> %v, <float 1.0, float 1.0, float 1.0, float 1.0, float 1.0, float 1.0, float 1.0, float 1.0>
  store <8 x float> %y, ptr %out, align 4
  ret i32 0
}
"""


def host() -> Isa:
    found = host_isa()
    assert found is not None
    return found


def test_the_best_target_never_exceeds_the_cpu() -> None:
    x86 = MACHINE_X86_64
    assert best_isa(x86, V4 | {"avx512_bf16"}) == AVX512_BF16
    assert best_isa(x86, V4) == AVX512
    assert best_isa(x86, V4 - {"avx512vl"}) == AVX2
    assert best_isa(x86, V3 - {"fma"}) == BASELINE_X86
    assert best_isa(x86, V3, "avx512") == AVX2
    assert best_isa(x86, V4, "avx2") == AVX2
    assert best_isa(x86, V4, "baseline") == best_isa(x86, V4, "neon") == BASELINE_X86
    assert best_isa(MACHINE_AARCH64, frozenset({"asimd"}), "avx2") == NEON
    assert best_isa(x86, V4, "none") is None
    assert best_isa(None, V4) is None


def test_the_environment_narrows_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_ISA", " None ")
    assert host_isa() is None
    monkeypatch.setenv("SMELT_ISA", "sse9")
    with pytest.raises(SmeltError, match="SMELT_ISA") as raised:
        host_isa()
    assert raised.value.code == "S0301"


@pytest.mark.parametrize("target", [BASELINE_X86, AVX2, AVX512, AVX512_BF16])
def test_every_target_is_one_that_llvm_knows(target: Isa, capfd: pytest.CaptureFixture[str]) -> None:
    """A name that LLVM does not know would be ignored with a remark on stderr."""
    if host_machine() != MACHINE_X86_64:
        pytest.skip("another CPU")
    source = KernelSource.of(ADD_ONE)
    assert parse_object(compile_kernels([source], target)[source.symbol].object).relocations
    assert capfd.readouterr().err == ""


def test_equal_texts_are_one_kernel() -> None:
    a, b = KernelSource.of(ADD_ONE), KernelSource.of(str(ADD_ONE))
    assert a == b and a != KernelSource.of(ADD_ONE.replace("1.0", "2.0"))
    assert list(compile_kernels([a, b], host())) == [a.symbol]
    with pytest.raises(InternalError, match="@KERNEL"):
        KernelSource.of("define i32 @other() { ret i32 0 }")


def test_one_bad_kernel_harms_no_other() -> None:
    good, bad = KernelSource.of(ADD_ONE), KernelSource.of(ADD_ONE.replace("ret i32 0", "ret i64 0"))
    told: list[str] = []
    found = compile_kernels([bad, good], host(), failed=lambda source, error: told.append(source.symbol))
    assert list(found) == [good.symbol] and told == [bad.symbol]
    with pytest.raises(InternalError, match="not valid LLVM text"):
        compile_kernels([bad], host())


# A kernel with two private functions, one of which calls the other and reads a constant.
PRIVATE = """
@table = private unnamed_addr constant [3 x float] [float 2.0, float 3.0, float 5.0], align 4
declare float @llvm.fabs.f32(float)
define i32 @KERNEL(ptr noalias %args, i64 %begin, i64 %end, ptr noalias %scratch) #0 {
  %xa = getelementptr i64, ptr %args, i64 1
  %out = load ptr, ptr %args
  %x = load ptr, ptr %xa
  call void @scale.all(ptr %x, ptr noalias %out, i64 1)
  %last = getelementptr float, ptr %out, i64 7
  store float LAST, ptr %last
  ret i32 0
}
define internal void @scale.all(ptr %x, ptr noalias %out, i64 %which) #0 {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%n, %head]
  %at = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %at
  %y = call float @scale(float %v, i64 %which)
  %to = getelementptr float, ptr %out, i64 %i
  store float %y, ptr %to
  %n = add i64 %i, 1
  %more = icmp slt i64 %n, 8
  br i1 %more, label %head, label %done
done:
  ret void
}
define internal float @scale(float %v, i64 %which) #0 {
  %at = getelementptr float, ptr @table, i64 %which
  %by = load float, ptr %at
  %size = call float @llvm.fabs.f32(float %v)
  %y = fmul float %size, %by
  ret float %y
}
attributes #0 = { nounwind "no-jump-tables"="true" }
"""


def test_functions_that_kernels_share_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[str] = []
    compile_texts = emit.emit_objects

    def watched(texts: Sequence[str], *target: str) -> list[bytes | InternalError]:
        emitted.extend(texts)
        return compile_texts(texts, *target)

    monkeypatch.setattr(emit, "emit_objects", watched)
    sources = [KernelSource.of(PRIVATE.replace("LAST", last)) for last in ("7.0", "9.0", "11.0")]
    cache = CodeCache(str(tmp_path))
    found = compile_kernels(sources[:2], host(), cache) | compile_kernels(sources[2:], host(), cache)
    assert [sum(f"{name}" in text for text in emitted) for name in ("fmul", "define void", "@smelt_part")] == [1, 1, 5]
    assert len(emitted) == 5 and not any("define internal" in text for text in emitted)
    for source, last in zip(sources, (7.0, 9.0, 11.0), strict=True):
        ctx, x, out = lowering(Options())
        launch(ctx, source, (out, x), items=1, eager=eager, writes=(0,))
        plan = with_code(ctx, ctx.builder.finish((out,)))
        given = torch.arange(-4.0, 4.0)
        (result,) = Executable(plan, machine_code()).run([given])
        assert torch.equal(result, torch.cat([given.abs()[:7] * 3, torch.tensor([last])]))
        assert found[source.symbol].object == next(i.kernel.object for i in plan.instructions if isinstance(i, Launch))


def test_a_joined_object_shows_nothing_but_its_kernel(tmp_path: Path) -> None:
    """Two that hold the same functions are linked into one library."""
    linker, sources = shutil.which("ld"), [KernelSource.of(PRIVATE.replace("LAST", last)) for last in ("7.0", "9.0")]
    found = compile_kernels(sources, host())
    for source in sources:
        parsed = parse_object(found[source.symbol].object)
        assert {s.name for s in parsed.symbols if s.name} == {source.symbol} and external_names(parsed) == ()
        (tmp_path / f"{source.symbol}.o").write_bytes(found[source.symbol].object)
    if linker is not None:
        objects = [str(tmp_path / f"{source.symbol}.o") for source in sources]
        told = subprocess.run([linker, "-shared", "-o", str(tmp_path / "both.so"), *objects], capture_output=True)
        assert (told.returncode, told.stderr) == (0, b"")


def test_a_bad_private_function_harms_the_kernels_that_call_it() -> None:
    good = KernelSource.of(PRIVATE.replace("LAST", "7.0"))
    bad = KernelSource.of(PRIVATE.replace("LAST", "7.0").replace("ret float %y", "ret i32 0"))
    told: list[str] = []
    found = compile_kernels([bad, good], host(), failed=lambda source, error: told.append(source.symbol))
    assert list(found) == [good.symbol] and told == [bad.symbol]


def test_objects_of_different_machines_or_with_memory_of_their_own_are_not_joined() -> None:
    texts = ["define i32 @f() { ret i32 0 }", "@w = global i32 1\ndefine ptr @f() { ret ptr @w }"]
    plain, writes = (emit.emit_object(text) for text in texts)
    other = bytearray(plain)
    other[18:20] = struct.pack("<H", MACHINE_X86_64 if host_machine() != MACHINE_X86_64 else MACHINE_AARCH64)
    with pytest.raises(InternalError, match="different machines"):
        joined("f", [plain, bytes(other)])
    with pytest.raises(InternalError, match="not constant"):
        joined("f", [plain, writes])


@pytest.mark.parametrize("lock", [False, True])
def test_many_at_once_are_as_one_by_one(monkeypatch: pytest.MonkeyPatch, lock: bool) -> None:
    """By several threads past llvmlite's lock, and where that is not as expected; a bad one stays alone."""
    if lock:
        monkeypatch.setattr(emit, "_unlocked_emit", lambda: None)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    texts = [ADD_ONE.replace("@KERNEL", "@f").replace("float 1.0>", f"float {i}.0>") for i in range(20)]
    texts[7] = texts[7].replace("ret i32 0", "ret i64 0")
    found = emit.emit_objects(texts, host().cpu, host().features)
    assert isinstance(found[7], InternalError)
    for i, (text, code) in enumerate(zip(texts, found, strict=True)):
        assert i == 7 or code == emit.emit_object(text, host().cpu, host().features)


def test_entries_are_apart_by_target_and_rebuilt_when_corrupt(tmp_path: Path) -> None:
    source = KernelSource.of(ADD_ONE)
    folder = tmp_path / "code"
    first = compile_kernels([source], host(), CodeCache(str(folder)))[source.symbol]
    other = Isa("baseline", host().cpu, host().features, 4, 16)
    compile_kernels([source], other, CodeCache(str(folder)))
    entries = sorted(folder.iterdir())
    assert len(entries) == 2
    for path in entries:
        path.write_bytes(path.read_bytes()[:-3])
    again = compile_kernels([source], host(), CodeCache(str(folder)))[source.symbol]
    assert again.object == first.object


PROGRAM = """
    import sys
    from smelt.codegen.llvm.isa import host_isa
    from smelt.codegen.llvm.objects import KernelSource, compile_kernels
    from smelt.runtime.machine.cache import CodeCache
    source = KernelSource.of(@TEXT)
    assert compile_kernels([source], host_isa(), CodeCache(@CACHE))[source.symbol].object
    print("llvmlite" in sys.modules)
"""


def test_a_warm_process_needs_no_compiler(tmp_path: Path) -> None:
    def run() -> str:
        program = textwrap.dedent(PROGRAM).replace("@CACHE", repr(str(tmp_path / "cache")))
        return smelt_forks().run(program.replace("@TEXT", repr(ADD_ONE))).strip()

    assert [run(), run()] == ["True", "False"]


# --- placed by a lowering ---------------------------------------------------------------------------------------------


def lowering(options: Options) -> tuple[Context, int, int]:
    """A context over a graph of one input, with the slots of the input and of a result of the same type."""
    graph = parse("graph g(%x: f32[8]) -> f32[8] {\n  %y: f32[8] = aten.add.Scalar(%x, 1)\n  return %y\n}")
    ctx = Context(graph, lambda kind, path: torch.empty(0), options)
    ctx.add_input(graph.inputs[0])
    node = next(iter(graph.body))
    return ctx, ctx.slot(graph.inputs[0]), ctx.buffer(node.result, (8,))


def eager(out: torch.Tensor, x: torch.Tensor) -> None:
    out.copy_(x + 1)


def test_kernels_are_built_at_the_end_of_a_lowering() -> None:
    ctx, x, out = lowering(Options())
    for _ in range(2):
        launch(ctx, KernelSource.of(ADD_ONE), (out, x), items=1, eager=eager, writes=(0,), label="x + 1")
    plan = ctx.builder.finish((out,))
    assert [i.kernel.object for i in plan.instructions if isinstance(i, Launch)] == [b"", b""]
    executable = Executable(with_code(ctx, plan), machine_code())
    assert executable.counts.kernels == 2 and executable.counts.python == 0
    given = torch.randn(8)
    assert torch.equal(executable.run([given])[0], given + 1)


def test_without_a_target_eager_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_ISA", "none")
    ctx, x, out = lowering(Options(strict=True))
    launch(ctx, KernelSource.of(ADD_ONE), (out, x), items=1, eager=eager, writes=(0,))
    executable = Executable(with_code(ctx, ctx.builder.finish((out,))), machine_code())
    given = torch.randn(8)
    assert torch.equal(executable.run([given])[0], given + 1) and executable.counts.kernels == 0


def test_a_kernel_that_cannot_be_built_runs_eager_with_a_warning_or_is_an_error() -> None:
    bad = KernelSource.of(ADD_ONE.replace("ret i32 0", "ret i64 0"))
    ctx, x, out = lowering(Options())
    launch(ctx, bad, (out, x), items=1, eager=eager, writes=(0,))
    with pytest.warns(SmeltWarning, match="1 of 1 kernels cannot be built"):
        plan = with_code(ctx, ctx.builder.finish((out,)))
    given = torch.randn(8)
    assert torch.equal(Executable(plan, machine_code()).run([given])[0], given + 1)
    ctx, x, out = lowering(Options(strict=True))
    launch(ctx, bad, (out, x), items=1, eager=eager, writes=(0,))
    with pytest.raises(InternalError, match="not valid LLVM text"):
        with_code(ctx, ctx.builder.finish((out,)))
