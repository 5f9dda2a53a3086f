"""Modules that are compiled several at once: each function's object is what it would be of a module of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from smelt.codegen.llvm import emit
from smelt.codegen.llvm.batches import Batch, batches
from smelt.codegen.llvm.isa import NEON, Isa, host_isa
from smelt.codegen.llvm.objects import KernelSource, compile_kernels
from smelt.codegen.llvm.parted import Module
from smelt.codegen.lower.launched_kernels import launch, with_code
from smelt.diag import InternalError, Options
from smelt.runtime.executable import Executable
from smelt.runtime.machine.elf import external_names, parse_object
from smelt.runtime.plan import Launch
from tests.codegen.harness import machine_code
from tests.codegen.test_kernel_objects import PRIVATE, eager, host, lowering

# Each of a length of its own: one constant in memory, one that every kernel has under the same name, a loop.
KERNEL = """
@shared.table = internal constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.0]
declare float @llvm.fabs.f32(float)
define i32 @KERNEL(ptr noalias %args, i64 %begin, i64 %end, ptr noalias %scratch) #0 {
entry:
  %xa = getelementptr i64, ptr %args, i64 1
  %out = load ptr, ptr %args
  %x = load ptr, ptr %xa
  br label %head
head:
  %i = phi i64 [0, %entry], [%n, %head]
  %p = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %p
  %a = call float @llvm.fabs.f32(float %v)
LINES
  %k = and i64 %i, 3
  %t = getelementptr float, ptr @shared.table, i64 %k
  %w = load float, ptr %t
  %s = fadd float %y0, %w
  %q = getelementptr float, ptr %out, i64 %i
  store float %s, ptr %q
  %n = add nsw i64 %i, 1
  %b = icmp slt i64 %n, 8
  br i1 %b, label %head, label %done
done:
  ret i32 0
}
attributes #0 = { nounwind "no-jump-tables"="true" }
"""
COUNT = 21


def kernel(number: int) -> str:
    """|x| (number + 1.7) + the table."""
    lines = [f"  %y{number} = fmul float %a, {number + 1}.5"]
    lines += [f"  %y{k} = fadd float %y{k + 1}, %a" for k in reversed(range(number))]
    return KERNEL.replace("LINES", "\n".join(lines))


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[KernelSource]:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    return [KernelSource.of(kernel(number)) for number in range(COUNT)]


def made(sources: Sequence[KernelSource]) -> list[Batch]:
    return batches([Module(source.symbol, source.text) for source in sources])


def code(object_: bytes, symbol: str) -> tuple[bytes, list[tuple[int, int, bytes]]]:
    """A function's instructions, and what each of its relocations is towards, with what follows there."""
    parsed = parse_object(object_)
    sections = {section.index: section.data for section in parsed.sections}
    (found,) = (s for s in parsed.symbols if s.name == symbol)
    nbytes = found.nbytes or len(sections[found.section]) - found.value
    targets = []
    for r in sorted(parsed.relocations, key=lambda r: r.offset):
        to = parsed.symbols[r.symbol]
        seen = sections[to.section][to.value :][:16] if to.name.startswith(".LCPI") or not to.name else b""
        targets.append((r.offset - found.value, r.kind, seen[:4]))
    return sections[found.section][found.value : found.value + nbytes], targets


@pytest.mark.parametrize("isa", [None, NEON], ids=["host", "neon"])
def test_a_function_is_what_it_is_alone(sources: list[KernelSource], isa: Isa | None) -> None:
    target = (host().cpu, host().features, "") if isa is None else (isa.cpu, isa.features, isa.triple)
    found = made(sources)
    assert len(found) == 4 and sum(len(batch.modules) for batch in found) == COUNT
    for batch, whole in zip(found, emit.emit_objects([batch.text for batch in found], *target), strict=True):
        assert isinstance(whole, bytes)
        cut = batch.cut(whole)
        for module in batch.modules:
            (alone,) = emit.emit_objects([module.text], *target)
            assert isinstance(alone, bytes)
            assert code(cut[module.symbol], module.symbol) == code(alone, module.symbol)
            assert external_names(parse_object(cut[module.symbol])) == ()
            assert {s.name for s in parse_object(cut[module.symbol]).symbols} == {"", module.symbol}


def test_they_run(sources: list[KernelSource], tmp_path: Path) -> None:
    found = compile_kernels(sources, host())
    x = torch.arange(-4.0, 4.0)
    table = torch.tensor([1.0, 2.0, 3.0, 4.0]).repeat(2)
    for number, source in enumerate(sources):
        ctx, given, out = lowering(Options())
        launch(ctx, source, (out, given), items=1, eager=eager, writes=(0,))
        plan = with_code(ctx, ctx.builder.finish((out,)))
        (step,) = (i for i in plan.instructions if isinstance(i, Launch))
        assert code(step.kernel.object, source.symbol) == code(found[source.symbol].object, source.symbol)
        (result,) = Executable(plan, machine_code()).run([x])
        expected = x.abs() * (number + 1.5)
        for _ in range(number):
            expected = expected + x.abs()
        assert torch.equal(result, expected + table)
        (tmp_path / f"{source.symbol}.o").write_bytes(found[source.symbol].object)
    if (linker := shutil.which("ld")) is not None:
        objects = [str(tmp_path / f"{source.symbol}.o") for source in sources]
        told = subprocess.run([linker, "-shared", "-o", str(tmp_path / "all.so"), *objects], capture_output=True)
        assert (told.returncode, told.stderr) == (0, b"")


def test_kernels_and_what_they_call_may_be_in_one(sources: list[KernelSource]) -> None:
    calling = [KernelSource.of(PRIVATE.replace("LAST", f"{last}.0")) for last in range(12)]
    found = compile_kernels([*sources, *calling], host())
    for source in calling:
        assert external_names(parse_object(found[source.symbol].object)) == ()
        (alone,) = compile_kernels([source], host()).values()
        sizes = [
            sum(len(s.data) for s in parse_object(o).sections) for o in (alone.object, found[source.symbol].object)
        ]
        assert abs(sizes[0] - sizes[1]) < 256


def test_one_that_llvm_refuses_harms_no_other(sources: list[KernelSource]) -> None:
    bad = KernelSource.of(kernel(COUNT).replace("ret i32 0", "ret i64 0"))
    told: list[str] = []
    found = compile_kernels([*sources, bad], host(), failed=lambda source, error: told.append(source.symbol))
    assert told == [bad.symbol] and list(found) == [source.symbol for source in sources]


def test_what_cannot_be_cut_is_compiled_apart(sources: list[KernelSource], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = compile_kernels(sources[:2], host())

    def refuse(batch: Batch, whole: bytes) -> dict[str, bytes]:
        raise InternalError("no")

    monkeypatch.setattr(Batch, "cut", refuse)
    found = compile_kernels(sources, host())
    assert len(found) == COUNT
    assert all(found[s.symbol].object == expected[s.symbol].object for s in sources[:2])


@pytest.mark.parametrize(
    "change",
    [
        ("float 4.0]", "float 5.0]"),
        ("declare float @llvm.fabs.f32(float)", "declare float @llvm.fabs.f32(float) #1\nattributes #1 = { nounwind }"),
        ("nounwind", "nounwind uwtable"),
        ("internal constant", "private constant"),
    ],
)
def test_what_means_something_else_is_in_another_batch(sources: list[KernelSource], change: tuple[str, str]) -> None:
    other = KernelSource.of(kernel(COUNT).replace(*change))
    (home,) = (batch for batch in made([*sources, other]) if other.symbol in {m.symbol for m in batch.modules})
    assert len(home.modules) == 1
    assert len(compile_kernels([*sources, other], host())) == COUNT + 1


def test_few_are_compiled_one_by_one(sources: list[KernelSource]) -> None:
    assert host_isa() is not None
    assert [len(batch.modules) for batch in made(sources[:4])] == [1] * 4
